"""Launches on torch tensors in a process that cannot import CuPy: directly, in operators and layers, and in torch.compile.

One process answers all questions, because it imports torch and makes a CUDA context, which takes most of the time. Another one asks whether
imports of blocknb leave CUDA alone, so that a process can fork after them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("torch has no GPU here", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
HIDDEN = """
    import sys
    class Refuse:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("cupy", "cupy_backends", "cupyx"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Refuse())
"""
PROGRAM = """
    import threading
    import torch
    from torch.nn import functional as F
    import kernels_without_cupy as k
    import blocknb, blocknb.kernels, blocknb.torch
    from blocknb import testing
    from blocknb.errors import AccessError, KernelError, LaunchError
    from blocknb.runtime import machine

    def done(what): print("done:", what, flush=True)
    torch.manual_seed(0)
    x, y = torch.randn(1000, device="cuda"), torch.empty(1000, device="cuda")

    for n in (1000, 999, 1000, 0, 17):
        y.zero_()
        k.scale[(8,)](x, y, n, 3.0, BLOCK=128)
        assert torch.equal(y, torch.where(torch.arange(1000, device="cuda") < n, x * 3, 0)), n
    done("launches")

    stream = torch.cuda.Stream()
    big = torch.zeros(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        a = torch.randn(4096, 4096, device="cuda")
        for _ in range(10): a = a @ a * 1e-3
        big.fill_(5.0)
        k.scale[(4096,)](big, big, big.numel(), 3.0, BLOCK=1024)
        result = big * 2
    stream.synchronize()
    assert torch.all(result == 30).item()
    done("torch's stream")

    graph, before = torch.cuda.CUDAGraph(), torch.ones(1000, device="cuda")
    with torch.cuda.graph(graph):
        k.scale[(8,)](before, before, 1000, 2.0, BLOCK=128)
    for _ in range(3): graph.replay()
    assert torch.all(before == 8).item()
    done("a captured graph")

    failed = []
    def in_thread():
        try:
            k.scale[(8,)](x, y, 1000, 5.0, BLOCK=128)
        except BaseException as error:
            failed.append(error)
    thread = threading.Thread(target=in_thread)
    thread.start(); thread.join()
    assert not failed and torch.equal(y, x * 5), failed
    done("a thread")

    k.scale[(8,)](x, y, 1000, 2.0, BLOCK=128, checked=True)
    assert torch.equal(y, x * 2)
    try: k.scale[(9,)](x[:128], y, 1000, 2.0, BLOCK=128, checked=True)
    except AccessError as error: assert "x" in str(error)
    else: raise AssertionError("no AccessError")
    k.told[(1,)](x)
    done("reports")

    half = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.float16)
    for m, n, kk in ((512, 384, 256), (300, 200, 128), (0, 128, 64)):
        a, b = half(m, kk), half(kk, n)
        c = torch.empty(m, n, device="cuda", dtype=torch.float16)
        if m: blocknb.kernels.matmul(a, b, c)
        torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=2e-2)
    done("products with tensor maps")

    q = half(2, 4, 256, 64).requires_grad_()
    ours = blocknb.torch.nn.attention(q, q, q, is_causal=True)
    theirs = F.scaled_dot_product_attention(q, q, q, is_causal=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    one, other = (torch.autograd.grad(found.float().square().sum(), q)[0] for found in (ours, theirs))
    torch.testing.assert_close(one, other, rtol=5e-2, atol=5e-2)
    done("layers and gradients")

    f = lambda x, w: F.gelu(x * w).sum(0)
    x2, w = torch.randn(9, 33, device="cuda"), torch.randn(33, device="cuda", requires_grad=True)
    out = torch.compile(f, backend=blocknb.torch.backend)(x2, w)
    torch.testing.assert_close(out, f(x2, w))
    torch.testing.assert_close(*(torch.autograd.grad(found.sum(), w)[0] for found in (out, f(x2, w))))
    assert len(blocknb.torch.kernels()) >= 1
    done("torch.compile")

    milliseconds = testing.do_bench(lambda: k.scale[(4096,)](big, big, big.numel(), 1.0, BLOCK=1024), warmup=5, rep=20)
    assert 0.002 < milliseconds < 1, milliseconds
    y.zero_()
    k.tuned[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](x, y, 1000, 7.0)
    assert torch.equal(y, x * 7)
    done("a benchmark and an autotuner")

    class Wrapped:
        def __init__(self, tensor): self.__cuda_array_interface__, self.tensor = tensor.__cuda_array_interface__, tensor
    class Capsule:
        def __init__(self, tensor): self.tensor = tensor
        def __dlpack__(self, **more): return self.tensor.__dlpack__(**more)
        def __dlpack_device__(self): return self.tensor.__dlpack_device__()
    for wrapped in (Wrapped(y), Capsule(y)):
        k.scale[(8,)](x, wrapped, 1000, 11.0, BLOCK=128)
        torch.cuda.synchronize()
        assert torch.equal(y, x * 11)
    k.scale[(8,)](x, y, 1000, 13.0, BLOCK=128, interpret=True)
    assert torch.equal(y, x * 13)
    done("other protocols")

    target = blocknb.runtime.machine.current_target()
    assert target.arch == 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    found = machine.properties()
    assert found["multiprocessor_count"] == torch.cuda.get_device_properties(0).multi_processor_count
    try: k.scale[(8,)](x, y, 1000, 2.0, BLOCK=128, checked="race")
    except LaunchError as error: assert "checked='race' on a GPU needs CuPy" in str(error), error
    else: raise AssertionError("no LaunchError")
    assert "cupy" not in sys.modules
    done("properties, and what needs CuPy")

    try:
        k.scale[(1 << 20,)](x, torch.empty(1, device="cuda"), 1 << 30, 2.0, BLOCK=1024)
        torch.cuda.synchronize()
    except Exception as error:
        from blocknb.runtime import driver
        assert "scale" in str(driver.fault(error) or error), error
    else: raise AssertionError("no fault")
    done("a fault")
    sys.stdout.flush()
    import os
    os._exit(0)
"""
KERNELS = """
    import blocknb
    import blocknb.language as bl

    @blocknb.kernel
    def scale(x, out, n, factor, BLOCK: bl.constexpr):
        at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
        bl.store(out + at, bl.load(x + at, mask=at < n) * factor, mask=at < n)

    @blocknb.autotune([blocknb.Config({"BLOCK": block}) for block in (128, 512)], key=["n"])
    @blocknb.kernel
    def tuned(x, out, n, factor, BLOCK: bl.constexpr):
        at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
        bl.store(out + at, bl.load(x + at, mask=at < n) * factor, mask=at < n)

    @blocknb.kernel
    def told(x):
        bl.device_print("program", bl.program_id(0))
"""
QUESTIONS = [
    "launches", "torch's stream", "a captured graph", "a thread", "reports", "products with tensor maps", "layers and gradients",
    "torch.compile", "a benchmark and an autotuner", "other protocols", "properties, and what needs CuPy", "a fault",
]  # fmt: skip


def answers(program: str, folder: Path) -> list[str]:
    (folder / "kernels_without_cupy.py").write_text(textwrap.dedent(KERNELS))
    paths = os.pathsep.join(filter(None, [str(folder), str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=280
    )
    assert answer.returncode == 0, answer.stdout[-1000:] + answer.stderr[-3000:]
    return answer.stdout.splitlines()


def test_torch_alone_launches_everything_that_needs_no_array_of_cupy(tmp_path: Path) -> None:
    lines = answers(textwrap.dedent(HIDDEN) + textwrap.dedent(PROGRAM), tmp_path)
    assert [line[6:] for line in lines if line.startswith("done: ")] == QUESTIONS


FORKED = """
    import os
    import torch, torch._dynamo, torch._inductor.compile_fx
    own = torch.cuda._is_in_bad_fork
    if not (child := os.fork()):
        os._exit(int(own()))
    before = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    import blocknb, blocknb.kernels, blocknb.torch
    blocknb.torch.backend, blocknb.torch.nn, blocknb.torch.torch_op
    if not (child := os.fork()):
        os._exit(int(own()))
    after = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(before, after)
"""


def test_imports_do_not_touch_cuda_so_a_fork_can_use_it(tmp_path: Path) -> None:
    """torch refuses CUDA in the fork of a process that has counted the GPUs. Imports of torch alone may have done that."""
    (line,) = answers(textwrap.dedent(FORKED), tmp_path)
    before, after = line.split()
    assert before == after
