"""`kernel.trace` without a GPU, and the caches behind it: the same input compiles once, and a changed input compiles again."""

from __future__ import annotations

import linecache
import os
import pathlib
import signal
import textwrap
import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.codegen import gpu, llvm, sass
from blocknb.errors import CompilerBug, KernelError, OutOfResources, SyntaxUnsupported
from blocknb.runtime import cache
from blocknb.runtime import compile as compiler

pytestmark = pytest.mark.usefixtures("fresh_cache")


@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


TYPES = ("*fp32:16", "*fp32:16", "*fp32:16", "i32")


def define(text: str, file: str, **names: Any) -> Any:
    """Runs `text` as a notebook cell with the file name `file`, and returns its `kernel`."""
    text = textwrap.dedent(text)
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"blocknb": blocknb, "tl": tl, **names}
    exec(compile(text, file, "exec"), space)
    return space["kernel"]


CELL = """
@blocknb.kernel
def kernel(x, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + offsets, tl.load(x + offsets, mask=offsets < n) * 2, mask=offsets < n)
"""


def test_a_trace_holds_every_stage_the_texts_and_the_times() -> None:
    trace = add.trace(*TYPES, BLOCK=256)
    names = [stage.name for stage in trace.stages]
    assert names[0] == "parse"
    assert names[-1] == "barriers"
    assert ".visible .entry add(" in trace.ptx.replace("\n", " ").replace("add (", "add(")
    assert ".target sm_90a" in trace.ptx
    assert "define" in trace.llvm
    assert {*names, "codegen", "llvm parse", "llvm optimise", "llvm emit"} <= set(trace.milliseconds)
    assert trace.signature == {"x": "*fp32:16", "y": "*fp32:16", "out": "*fp32:16", "n": "i32"}
    assert trace.constants == {"BLOCK": 256}
    assert not trace.from_cache


def test_arrays_give_the_trace_of_their_types() -> None:
    x = np.zeros(512, np.float32)
    offset = (-x.ctypes.data % 16) // 4
    aligned = x[offset : offset + 256]
    assert add.trace(aligned, aligned, aligned, 100, BLOCK=256).ptx == add.trace(*TYPES, BLOCK=256).ptx


def test_a_trace_has_the_requested_target() -> None:
    assert ".target sm_80" in add.trace(*TYPES, BLOCK=256, target="sm_80").ptx
    cpu = add.trace(*TYPES, BLOCK=256, target="cpu:haswell")
    assert cpu.ptx is None
    assert "add" in cpu.assembly


def test_a_cubin_comes_with_registers_and_sass_when_the_tools_are_there() -> None:
    trace = add.trace(*TYPES, BLOCK=256)
    if "cubin" not in trace.artifacts:
        pytest.skip("no ptxas")
    assert trace.resources.registers and trace.resources.registers >= 8
    assert trace.resources.threads == 128
    assert trace.sass is None or any("LDG" in line.text for line in trace.sass.lines)


def test_a_disk_hit_restores_code_and_recreates_stages_on_demand() -> None:
    first = add.trace(*TYPES, BLOCK=256)
    compiler.forget()
    second = add.trace(*TYPES, BLOCK=256)
    assert second.from_cache
    assert second.ptx == first.ptx
    assert second.resources == first.resources
    assert second.milliseconds == first.milliseconds
    assert [s.text for s in second.stages] == [s.text for s in first.stages]
    assert second.stages[-1].notes == first.stages[-1].notes


def test_the_sass_of_a_kernel_is_kept_on_disk_and_a_damaged_file_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], sass.disassembly

    def counted(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(sass, "disassembly", counted)
    first = add.trace(*TYPES, BLOCK=256)
    if first.sass is None:
        pytest.skip("no nvdisasm")
    compiler.forget()
    second = add.trace(*TYPES, BLOCK=256)
    assert second.from_cache and second.sass == first.sass and len(made) == 1
    for name in list(cache.shared().names()):
        pathlib.Path(cache.shared().root, name).write_bytes(b"x")
    compiler.forget()
    assert add.trace(*TYPES, BLOCK=256).sass == first.sass and len(made) == 2


def test_the_assembly_of_a_cell_is_kept_on_disk_with_the_file_name_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, real = [], llvm.list_cpu

    def counted(*given: Any) -> Any:
        made.append(given)
        return real(*given)

    monkeypatch.setattr(llvm, "list_cpu", counted)
    names, texts = ("/tmp/session_1/11.py", "/tmp/session_2/22.py", "<cell 3>"), []
    for name in names:
        compiler.forget()
        trace = define(CELL, name).trace("*fp32", "i32", BLOCK=8, target="cpu")
        texts.append(trace.assembly)
        assert trace.from_cache == (len(texts) > 1)
    assert len(made) == 2  # a name without a folder makes other debug data
    assert all(name.rpartition("/")[2] in text for name, text in zip(names, texts, strict=True))
    assert "11.py" not in texts[1] and "source0" not in "".join(texts)


def test_the_memory_cache_returns_the_same_object() -> None:
    assert add.compile(*TYPES, BLOCK=256) is add.compile(*TYPES, BLOCK=256)
    assert add.compile(*TYPES, BLOCK=256) is not add.compile(*TYPES, BLOCK=256, num_warps=8)
    assert add.compile(*TYPES, BLOCK=256) is not add.compile(*TYPES, BLOCK=512)


def test_a_cell_with_another_name_hits_the_disk_cache_and_shows_its_new_name() -> None:
    first = define(CELL, "/tmp/ipykernel_1/111.py").trace("*fp32:16", "i32", BLOCK=128)
    assert '"/tmp/ipykernel_1/111.py"' in first.ptx
    second = define(CELL, "/tmp/ipykernel_2/222.py").trace("*fp32:16", "i32", BLOCK=128)
    assert second.from_cache
    assert "ipykernel_1" not in second.ptx
    assert '"/tmp/ipykernel_2/222.py"' in second.ptx
    assert second.stages[0].after.loc.file == "/tmp/ipykernel_2/222.py"


def test_a_kernel_that_moved_in_its_file_is_compiled_again_because_its_lines_changed() -> None:
    define(CELL, "/tmp/a.py").trace("*fp32:16", "i32", BLOCK=128)
    assert not define("\n\n" + CELL, "/tmp/a.py").trace("*fp32:16", "i32", BLOCK=128).from_cache


HELPED = """
@blocknb.kernel
def kernel(x, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, helper(tl.load(x + offsets)) * FACTOR)
"""
TWICE = "@blocknb.kernel\ndef kernel(x):\n    return x + x\n"
SQUARE = "@blocknb.kernel\ndef kernel(x):\n    return x * x\n"


def test_a_helper_redefined_in_another_cell_is_noticed_at_the_next_launch() -> None:
    kernel = define(HELPED, "/tmp/h.py", helper=define(TWICE, "/tmp/t.py"), FACTOR=3)
    x = np.array([1, 2, 3, 4], np.float32)
    kernel[1,](x, BLOCK=4)
    np.testing.assert_array_equal(x, [6, 12, 18, 24])
    kernel.source.function.__globals__["helper"] = define(SQUARE, "/tmp/s.py")
    kernel[1,](x, BLOCK=4)
    np.testing.assert_array_equal(x, np.array([6, 12, 18, 24]) ** 2 * 3)


def test_a_helper_redefined_in_another_cell_is_noticed_by_warmup() -> None:
    kernel = define(HELPED, "/tmp/h.py", helper=define(TWICE, "/tmp/t.py"), FACTOR=3)
    before = kernel.warmup(np.ones(4, np.float32), BLOCK=4)
    kernel.source.function.__globals__["helper"] = define(SQUARE, "/tmp/s.py")
    assert kernel.warmup(np.ones(4, np.float32), BLOCK=4) is not before


THROUGH = """
@blocknb.kernel
def kernel(x):
    i = tl.arange(0, 4)
    tl.store(x + i, {call}(tl.load(x + i)))
"""
CALLS_HELPER = "@blocknb.kernel\ndef kernel(x):\n    return helper(x) + 1\n"


@pytest.mark.parametrize("way", ["an alias", "a module", "another helper", "a tuple"])
def test_an_indirectly_redefined_helper_is_noticed_by_launches_and_the_disk_cache(way: str) -> None:
    """A new session that defines the first text again finds its code on disk."""

    def session(helper: str) -> tuple[Any, Callable[[str], None]]:
        found, module = define(helper, "/tmp/helper.py"), types.ModuleType("own")
        module.f = found  # type: ignore[attr-defined]
        names = {"an alias": "alias", "a module": "own.f", "another helper": "outer", "a tuple": "both[0]"}
        outer = define(CALLS_HELPER, "/tmp/outer.py", helper=found)
        given = {"alias": found, "own": module, "outer": outer, "both": (found, found)}
        kernel = define(THROUGH.format(call=names[way]), "/tmp/k.py", **given)
        space = kernel.source.function.__globals__

        def redefine(text: str) -> None:
            new = define(text, "/tmp/helper.py")
            module.f = new  # type: ignore[attr-defined]
            space["alias"], space["both"] = new, (new, new)
            outer.source.function.__globals__["helper"] = new

        return kernel, redefine

    def launched(kernel: Any) -> list[float]:
        x = np.array([1, 2, 3, 4], np.float32)
        kernel[1,](x)
        return list(x - (way == "another helper"))

    kernel, redefine = session(TWICE)
    assert launched(kernel) == [2, 4, 6, 8]
    redefine(SQUARE)
    assert launched(kernel) == [1, 4, 9, 16]
    redefine(TWICE)
    assert launched(kernel) == [2, 4, 6, 8]
    compiler.forget()
    again, _ = session(SQUARE)
    assert launched(again) == [1, 4, 9, 16]
    assert again.latest.trace.from_cache


def test_a_changed_captured_value_is_noticed_at_the_next_launch() -> None:
    kernel = define(HELPED, "/tmp/h.py", helper=define(TWICE, "/tmp/t.py"), FACTOR=3)
    x = np.ones(4, np.float32)
    kernel[1,](x, BLOCK=4)
    kernel.source.function.__globals__["FACTOR"] = 5
    kernel[1,](x, BLOCK=4)
    np.testing.assert_array_equal(x, np.full(4, 60))


def test_kernels_with_different_helpers_have_different_cache_entries() -> None:
    first = define(HELPED, "/tmp/h.py", helper=define(TWICE, "/tmp/t.py"), FACTOR=3).trace("*fp32", BLOCK=64)
    second = define(HELPED, "/tmp/h.py", helper=define(SQUARE, "/tmp/t.py"), FACTOR=3).trace("*fp32", BLOCK=64)
    assert not second.from_cache
    assert second.stages[0].text != first.stages[0].text


def test_two_threads_that_want_the_same_kernel_compile_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    generated, both = [], threading.Barrier(2)
    generate = gpu.generate
    monkeypatch.setattr(gpu, "generate", lambda *a, **k: (generated.append(1), generate(*a, **k))[1])

    def trace(_: int) -> Any:
        both.wait()
        return add.compile(*TYPES, BLOCK=64)

    with ThreadPoolExecutor(2) as pool:
        a, b = pool.map(trace, range(2))
    assert a is b
    assert len(generated) == 1


def test_a_defect_of_the_compiler_carries_the_stages_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "generate", lambda *a, **k: 1 // 0)
    with pytest.raises(CompilerBug, match="ZeroDivisionError") as caught:
        add.trace(*TYPES, BLOCK=256)
    assert [s.name for s in caught.value.trace.stages][-1] == "barriers"
    assert caught.value.loc.line == add.source.node.lineno


def test_llvm_that_aborts_is_an_error_and_the_next_compile_works(monkeypatch: pytest.MonkeyPatch) -> None:
    generate = gpu.generate
    text = "declare float @llvm.exp.f32(float)\ndefine ptx_kernel void @add(ptr %p, float %x) {\n"
    text += "  %e = call float @llvm.exp.f32(float %x)\n  store float %e, ptr %p\n  ret void\n}\n"
    monkeypatch.setattr(gpu, "generate", lambda func, target: gpu.GpuModule(text, "add", 0, 128))
    with pytest.raises(KernelError) as caught:
        add.trace(*TYPES, BLOCK=256)
    assert caught.value.loc.line == add.source.node.lineno  # LLVM names no line, so the error shows the kernel
    monkeypatch.setattr(gpu, "generate", generate)
    assert add.trace(*TYPES, BLOCK=256).ptx


def test_the_error_for_too_much_shared_memory_has_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "generate", lambda func, target: gpu.GpuModule("", "add", 300_000, 128))
    with pytest.raises(OutOfResources, match="needs 300000 bytes.*has 232448"):
        add.trace(*TYPES, BLOCK=256)


def test_an_interrupt_during_a_compile_leaves_everything_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cuda = llvm.compile_cuda
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))

    def waiting(*args: Any, **options: Any) -> Future[Any]:
        timer.start()  # not earlier: the passes may take longer than that
        return Future()

    monkeypatch.setattr(llvm, "compile_cuda", waiting)
    with pytest.raises(KeyboardInterrupt):
        add.trace(*TYPES, BLOCK=256)
    monkeypatch.setattr(llvm, "compile_cuda", compile_cuda)
    assert add.trace(*TYPES, BLOCK=256).ptx


def test_a_kernel_without_source_is_an_error() -> None:
    space = {"blocknb": blocknb}
    exec("def hidden(x): pass", space)
    kernel = blocknb.kernel(space["hidden"])
    with pytest.raises(SyntaxUnsupported, match="source of `hidden` cannot be found"):
        kernel[1,](np.zeros(1))


def test_do_not_specialize_compiles_once_for_all_values() -> None:
    kernel = blocknb.kernel(add.source.function, do_not_specialize=["n"])
    assert kernel.compile("*fp32", "*fp32", "*fp32", 16, BLOCK=64) is kernel.compile(
        "*fp32", "*fp32", "*fp32", 1, BLOCK=64
    )
    assert kernel.trace("*fp32", "*fp32", "*fp32", 1, BLOCK=64).signature["n"] == "i32"
    assert add.trace("*fp32", "*fp32", "*fp32", 1, BLOCK=64).constants["n"] == 1


def test_the_arrays_that_are_read_and_written_are_known_by_name() -> None:
    compiled = add.compile(*TYPES, BLOCK=256)
    assert compiled.loaded == {"x", "y"}
    assert compiled.stored == {"out"}


def test_a_pointer_chosen_by_a_loop_counts_for_every_array_it_may_be() -> None:
    swap = define(
        """
        @blocknb.kernel
        def kernel(a, b, n):
            p, q = a, b
            for i in range(n):
                p, q = q, p
            tl.store(p, 1.0)
        """,
        "/tmp/swap.py",
    )
    assert swap.compile("*fp32", "*fp32", "i32").stored == {"a", "b"}
