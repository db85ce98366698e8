"""`backend="blocknb"` with an import of Triton that raises, next to Triton, and by its entry point.

Each process imports torch and compiles, which takes most of the time, so one process answers several questions. All other tests of this
folder run without Triton where it is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest
import torch

import blocknb.torch

pytestmark = pytest.mark.own_count
ROOT = Path(__file__).resolve().parents[2]
#: Where `make test-torch` installs Triton, apart from the other packages.
APART = Path(sys.prefix) / "triton"
INSTALLED = importlib.util.find_spec("triton") is not None
PROGRAM = """
    import torch, blocknb.torch
    def f(x, w): return torch.nn.functional.gelu(x * w).sum(0)
    x, w = torch.randn(9, 33), torch.randn(33, requires_grad=True)
    out = torch.compile(f, backend=blocknb.torch.backend)(x, w)
    torch.testing.assert_close(out, f(x, w))
    (ours,) = torch.autograd.grad(out[1], w)
    (theirs,) = torch.autograd.grad(f(x, w)[1], w)
    torch.testing.assert_close(ours, theirs)
    print(len(blocknb.torch.kernels()), "kernels")
    print("operators:", blocknb.torch.kernels()[0].operators)
"""

#: A kernel for Triton itself; it needs no GPU to compile.
FOR_TRITON = """
    import triton, triton.language as tl
    from triton.backends.compiler import GPUTarget

    @triton.jit
    def doubled(x, BLOCK: tl.constexpr):
        at = x + tl.arange(0, BLOCK)
        tl.store(at, 2 * tl.load(at))

    def compiled():
        source = triton.compiler.ASTSource(doubled, {"x": "*fp32", "BLOCK": "constexpr"}, {"BLOCK": 128})
        return triton.compile(source, target=GPUTarget("cuda", 90, 32))
"""


def answer_of(program: str, **environment: str) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def run(before: str, after: str = "", **environment: str) -> str:
    return answer_of("".join(map(textwrap.dedent, (before, PROGRAM, after))), **environment)


#: Runs programs one after the other, each in a fork of a process that has imported what takes most of the time.
IN_FORKS = """
    import os, sys, traceback
    import torch._dynamo, torch._inductor.compile_fx, blocknb.torch
    for program in PROGRAMS:
        if not (child := os.fork()):
            try:
                exec(program, {"__name__": "__main__"})
                sys.stdout.flush()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
#: Makes the import of Triton raise.
REFUSED = """
    import sys
    from importlib.machinery import ModuleSpec
    class Refuse:  # torch itself looks for the package at its import, and survives only an import that raises
        def find_spec(self, name, path=None, target=None):
            return ModuleSpec(name, self) if name == "triton" else None
        def create_module(self, spec): return None
        def exec_module(self, module): raise ImportError("the import of triton is refused")
    sys.meta_path.insert(0, Refuse())
    try: import triton
    except ImportError: pass
    else: raise AssertionError("triton was imported")
"""
#: Inductor's own C++ back end for the CPU, whose answers and caches are its own again; `load` is what compiles its C++.
FOR_ITSELF = """
    counters = torch._dynamo.utils.counters
    assert counters["inductor"]["fxgraph_cache_hit"] or counters["aot_autograd"]["autograd_cache_hit"]
    torch._dynamo.reset()
    before = len(blocknb.torch.kernels())
    {run}
    assert len(blocknb.torch.kernels()) == before
    import torch._inductor.codegen.common as common
    from blocknb.torch.inductor import patches
    left = [(m.__name__, n) for m in patches._modules() for n, a in patches.PATCHES.items() if vars(m).get(n) is a]
    assert not left, left
    assert "blocknb" not in getattr(common.device_codegens["cpu"].scheduling, "__module__", "")
"""
#: A quick run compiles no C++, neither the kernel nor what tells the vector instructions: with torch's headers, each takes many seconds.
WITHOUT_A_COMPILER = """
    from unittest import mock
    from torch._inductor import async_compile, cpu_vec_isa
    answer = lambda types, source: lambda *_: None
    with (
        mock.patch.object(cpu_vec_isa, "valid_vec_isa_list", lambda: []),
        mock.patch.object(async_compile.AsyncCompile, "cpp_pybinding", side_effect=answer) as load,
    ):
        torch.compile(f)(x, w)
    assert load.call_count and all('extern "C"' in call.args[1] for call in load.call_args_list)
"""


@pytest.mark.parametrize(
    "run_itself",
    [
        pytest.param(WITHOUT_A_COMPILER, id="generated"),
        pytest.param("torch.testing.assert_close(torch.compile(f)(x, w), f(x, w))", id="run", marks=pytest.mark.full),
    ],
)
def test_it_works_where_the_import_of_triton_raises_also_from_a_cache_and_leaves_inductor_as_it_is(
    tmp_path, run_itself
):
    """The second process finds the graphs of the first, and their origins, in Inductor's cache. Then Inductor's own back end compiles."""
    never = "\nassert 'triton' not in sys.modules\n"
    first = textwrap.dedent(PROGRAM)
    second = first + textwrap.dedent(FOR_ITSELF).replace("{run}", textwrap.dedent(run_itself))
    programs = ["import sys\n" + program + never for program in (first, second)]
    found = answer_of(
        textwrap.dedent(REFUSED) + f"PROGRAMS = {programs!r}\n" + textwrap.dedent(IN_FORKS),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        CUDA_VISIBLE_DEVICES="",  # all tensors are the CPU's, and a fork of a process that has seen a GPU cannot use it
    ).splitlines()
    assert len(found) == 4 and "kernels" in found[0] and "kernels" in found[2]
    assert found[1] == found[3] and "aten." in found[1]


@pytest.mark.skipif(INSTALLED, reason="Triton is installed")
def test_the_other_tests_run_without_triton():
    torch.testing.assert_close(
        torch.compile(torch.erf, backend=blocknb.torch.backend)(torch.ones(3)), torch.ones(3).erf()
    )
    assert "triton" not in sys.modules


@pytest.mark.skipif(not INSTALLED and not APART.is_dir(), reason="Triton is not installed")
def test_an_installed_triton_stays_as_it_is_and_compiles(tmp_path):
    (tmp_path / "for_triton.py").write_text(textwrap.dedent(FOR_TRITON))
    before = f"""
        import sys
        sys.path.extend({[str(tmp_path), str(APART)]!r})
        import for_triton, triton
    """
    after = """
        assert sys.modules["triton"] is triton
        assert not triton.__file__.startswith(blocknb.__path__[0])
        import torch._inductor.runtime.triton_heuristics as theirs
        assert theirs.triton is triton
        compiled = for_triton.compiled()
        assert type(compiled).__module__ == "triton.compiler.compiler"
        assert ".visible .entry doubled" in compiled.asm["ptx"]
    """
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    assert "kernels" in run(before, after, **caches)


def test_the_entry_point_names_the_backend():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"blocknb": "blocknb.torch.inductor.backend:backend"}
