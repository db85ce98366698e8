"""Reports of running kernels: out-of-bounds accesses, prints and assertions, with the same text on interpreter, CPU and GPU."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
import seeds
from fuzz import reports
from kernels.base import Case
from out_of_bounds import OUT_OF_BOUNDS, OutOfBoundsCase, views

import blocknb
import blocknb.language as tl
from blocknb import AccessError, KernelError
from blocknb.codegen.report import REGIONS, WORDS, decode
from blocknb.errors import DeviceAssertionFailed
from blocknb.ir import interp
from blocknb.ir.report import SHOWN, Print


def told(action: Any) -> tuple[str, KernelError | None]:
    """Runs an action; returns what it printed, and the KernelError that it raised."""
    out, error = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            action()
        except KernelError as raised:
            error = raised
    return out.getvalue(), error


def lowered(k: Any, arguments: dict[str, Any], target: str = "sm_90a", **options: Any) -> Any:
    case = Case(k.__name__, k, lambda rng: {}, lambda a: {})
    return case.lower(arguments, target, **options)


def simulate(k: Any, grid: Any, arguments: dict[str, Any], target: str = "sm_90a", **options: Any) -> None:
    """Launches the GPU code in NumPy."""
    func, _ = lowered(k, arguments, target, **options)
    said = reports.run(func, arguments, grid, target)
    print(said.text, end="")
    if said.error is not None:
        raise said.error


def interpret(k: Any, grid: Any, arguments: dict[str, Any], **options: Any) -> None:
    _, stages = lowered(k, arguments, **options)
    func = stages[0].before
    interp.run(func, [arguments[hint.name] for hint in func.hints], grid, seed=3)


def interpret_lowered(k: Any, grid: Any, arguments: dict[str, Any], **options: Any) -> None:
    func, _ = lowered(k, arguments, **options)
    interp.run(func, [arguments[hint.name] for hint in func.hints], grid, seed=3)


def launch(k: Any, grid: Any, arguments: dict[str, Any], **options: Any) -> None:
    k[grid](**arguments, **options)


PLACES = {"interpreter": interpret, "lowered": interpret_lowered, "cpu": launch, "gpu code": simulate}


# -- out-of-bounds accesses -------------------------------------------------------------------------------------------------


def check(found: OutOfBoundsCase, error: KernelError | None) -> None:
    assert isinstance(error, AccessError)
    assert (error.program, error.index) == (found.program, found.index)
    assert error.message.split(";")[0] == found.message
    assert error.loc is not None
    line, carets = error.loc.excerpt().split("\n")
    assert line[carets.index("^") :].startswith(found.text)


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_checked_gpu_code_skips_and_reports_out_of_bounds_accesses(name):
    found = OUT_OF_BOUNDS[name]()
    before = {key: big.copy() for key, (big, _) in found.arrays.items()}
    arguments = views(found.arrays)
    _, error = told(lambda: simulate(found.kernel, found.grid, {**arguments, **found.rest}, checked=True))
    check(found, error)
    more = f"; {found.total} accesses outside of arrays were skipped" if found.total > 1 else ""
    assert error.message == found.message + more
    for key, expected in found.result.items():
        np.testing.assert_array_equal(arguments[key], expected, err_msg=key)
    for key, (big, index) in found.arrays.items():
        outside = np.ones(big.shape, bool)
        outside[index] = False
        np.testing.assert_array_equal(big[outside], before[key][outside], err_msg=key)


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_the_cpu_and_the_interpreter_report_the_same(name, monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "1")
    for place in (launch, interpret_in_order):
        found = OUT_OF_BOUNDS[name]()
        _, error = told(lambda: place(found.kernel, found.grid, {**views(found.arrays), **found.rest}))
        check(found, error)


def interpret_in_order(k: Any, grid: Any, arguments: dict[str, Any]) -> None:
    _, stages = lowered(k, arguments)
    func = stages[0].before
    for program in interp.programs_of(grid)[1]:
        interp.run(func, [arguments[hint.name] for hint in func.hints], grid, programs=[program])


@blocknb.kernel
def through_a_table(table, out, BLOCK: tl.constexpr):
    row = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + tl.arange(0, BLOCK), tl.load(row + tl.arange(0, BLOCK)))


def test_a_pointer_loaded_from_memory_is_unchecked_and_a_note_states_it():
    arguments = {"table": np.zeros(1, np.int64), "out": np.zeros(8, np.float32), "BLOCK": 8}
    _, stages = lowered(through_a_table, arguments, checked=True)
    (stage,) = [s for s in stages if s.name == "bounds_checks"]
    missed = [note for note in stage.notes if note.kind == "missed"]
    assert [note.text for note in missed] == [
        "the load is not checked if its address lies in no array argument: its pointer was made from an integer"
    ]
    assert "2 of 3 accesses checked" in stage.notes[-1].text


def test_unchecked_gpu_code_has_no_bounds_checks():
    k, arguments = (
        OUT_OF_BOUNDS["load_past_the_end"]().kernel,
        {"x": np.zeros(8, np.float32), "out": np.zeros(8, np.float32)},
    )
    func, stages = lowered(k, {**arguments, "BLOCK": 8})
    assert "bounds_checks" not in [s.name for s in stages]
    assert not {"inside", "outside"} & {op.name for op in func.ops()}
    trace = k.trace(**arguments, BLOCK=8)
    assert "param_2" not in trace.ptx
    assert "param_2" in k.trace(**arguments, BLOCK=8, checked=True).ptx


def test_unchecked_cpu_code_has_no_bounds_checks():
    k = OUT_OF_BOUNDS["load_past_the_end"]().kernel
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    assert k[1,](x[:60], out, BLOCK=64, checked=False).code.sites == ()
    with pytest.raises(AccessError):
        k[1,](x[:60], out, BLOCK=64)


def test_checked_takes_a_truth_value():
    with pytest.raises(blocknb.LaunchError, match="checked is 'yes'"):
        OUT_OF_BOUNDS["load_past_the_end"]().kernel[1,](np.zeros(8), np.zeros(8), BLOCK=8, checked="yes")


# -- prints ----------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def say_all(x, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.device_print("start")
    for k in range(n):
        print("k", k)
        tl.device_print("x:", values * k)
    print("pair", pid, values > 2, hex=False)


@pytest.mark.parametrize("place", PLACES)
def test_prints_are_in_order_everywhere(place):
    x = np.array([1.5, -2, 1e20, np.nan], np.float32)
    out, error = told(lambda: PLACES[place](say_all, (2,), {"x": x, "n": 2, "BLOCK": 2}))
    assert error is None
    assert out.splitlines() == [
        "pid (0, 0, 0) start",
        "pid (0, 0, 0) idx () k: 0",
        "pid (0, 0, 0) idx (0) x: 0.0",
        "pid (0, 0, 0) idx (1) x: -0.0",
        "pid (0, 0, 0) idx () k: 1",
        "pid (0, 0, 0) idx (0) x: 1.5",
        "pid (0, 0, 0) idx (1) x: -2.0",
        "pid (0, 0, 0) idx () pair: (operand 0) 0",
        "pid (0, 0, 0) idx (0) pair: (operand 1) 0",
        "pid (0, 0, 0) idx (1) pair: (operand 1) 0",
        "pid (1, 0, 0) start",
        "pid (1, 0, 0) idx () k: 0",
        "pid (1, 0, 0) idx (0) x: 0.0",
        "pid (1, 0, 0) idx (1) x: nan",
        "pid (1, 0, 0) idx () k: 1",
        "pid (1, 0, 0) idx (0) x: 1e+20",
        "pid (1, 0, 0) idx (1) x: nan",
        "pid (1, 0, 0) idx () pair: (operand 0) 1",
        "pid (1, 0, 0) idx (0) pair: (operand 1) 1",
        "pid (1, 0, 0) idx (1) pair: (operand 1) 0",
    ]


@blocknb.kernel
def say_matrix(x, M: tl.constexpr, N: tl.constexpr):
    i, j = tl.arange(0, M), tl.arange(0, N)
    tile = tl.load(x + i[:, None] * N + j[None, :])
    tl.device_print("rows", tl.sum(tile, 1))
    tl.device_print("tile", tile, hex=True)
    tl.device_print("transposed", tl.trans(tile))


NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [*NUMBERS, "bfloat16"])
def test_every_dtype_prints_as_numbers_and_as_bits(place, dtype):
    import ml_dtypes

    dtype = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    # sums of 16 of these are exact even in bf16
    x = seeds.rng().integers(0 if dtype.kind == "u" else -15, 16, 64).astype(dtype).reshape(4, 16)
    out, error = told(lambda: PLACES[place](say_matrix, (1,), {"x": x, "M": 4, "N": 16}))
    assert error is None
    lines = out.splitlines()
    assert len(lines) == 4 + 64 + 64
    assert [float(line.split(": ")[1]) for line in lines[:4]] == x.astype(float).sum(1).tolist()
    bits = x.reshape(-1).view(f"u{dtype.itemsize}")
    width = 2 * dtype.itemsize
    expected = [f"pid (0, 0, 0) idx ({i // 16}, {i % 16:2}) tile: 0x{b:0{width}x}" for i, b in enumerate(bits.tolist())]
    assert lines[4:68] == expected
    transposed = x.T.reshape(-1)
    text = [str(v) if dtype.kind == "f" or dtype.name == "bfloat16" else str(int(v)) for v in transposed]
    assert lines[68:] == [f"pid (0, 0, 0) idx ({i // 4:2}, {i % 4}) transposed: {t}" for i, t in enumerate(text)]


@blocknb.kernel
def say_much(BLOCK: tl.constexpr):
    tl.device_print("i", tl.arange(0, BLOCK))


@pytest.mark.parametrize("place", ["cpu", "gpu code", "interpreter"])
def test_lines_beyond_the_limit_are_counted(place):
    grid = 7 if place == "interpreter" else REGIONS["print"].room // 1024 + 1
    out, _ = told(lambda: PLACES[place](say_much, (grid,), {"BLOCK": 1024}))
    lines = out.splitlines()
    assert len(lines) == SHOWN + 1
    assert lines[SHOWN - 1] == "pid (3, 0, 0) idx (1023) i: 1023"
    assert lines[-1] == f"... {grid * 1024 - SHOWN} more lines"


def test_prints_of_concurrent_threads_are_not_mixed(monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "4")

    @blocknb.kernel
    def say_ids(BLOCK: tl.constexpr):
        tl.device_print("", tl.program_id(0) * 10 + tl.arange(0, BLOCK))

    out, _ = told(lambda: say_ids[200,](BLOCK=4))
    expected = [f"pid ({p}, 0, 0) idx ({i}): {10 * p + i}" for p in range(200) for i in range(4)]
    assert out.splitlines() == expected


def test_kernels_in_a_benchmark_print_nothing():
    from blocknb.testing import do_bench

    x = np.ones(2, np.float32)
    out, _ = told(lambda: do_bench(lambda: say_all[1,](x, 1, BLOCK=2), warmup=1, rep=1))
    assert out == ""


def test_print_of_constants_is_printed_while_compiling(fresh_cache):
    @blocknb.kernel
    def both(x, N: tl.constexpr):
        print("N is", N)
        print(tl.load(x))

    x = np.array([3], np.int32)
    out, _ = told(lambda: both[1,](x, N=7))
    assert out == "N is 7\npid (0, 0, 0) idx (): 3\n"


def test_a_reused_report_buffer_is_empty():
    words = np.full(WORDS, -1, np.int64)
    words[:4] = 0
    site = Print(None, "x", tl.int32, (), 0, 1, False)
    assert decode(words, [site], {}).text == ""


# -- assertions ------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def positive(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n)
    tl.device_assert(values > 0, "must be positive", mask=i < n)
    tl.store(out + i, values, mask=i < n)


@pytest.mark.parametrize("place", PLACES)
def test_an_assertion_names_line_program_element_and_message(place, monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "1")
    x, out = np.arange(1, 101, dtype=np.float32), np.zeros(100, np.float32)
    arguments = {"x": x, "out": out, "n": 100, "BLOCK": 32}
    assert told(lambda: PLACES[place](positive, (4,), arguments, debug=True)) == ("", None)
    np.testing.assert_array_equal(out, x)
    x[70] = -1
    _, error = told(lambda: PLACES[place](positive, (4,), arguments, debug=True))
    assert isinstance(error, DeviceAssertionFailed)
    assert error.message == "assertion failed in program (2, 0, 0) for element 6: must be positive"
    assert (error.program, error.index) == ((2, 0, 0), 6)
    assert "tl.device_assert(values > 0" in error.render()


def test_on_a_gpu_all_failures_are_counted_and_the_first_is_named():
    x = -np.ones(100, np.float32)
    arguments = {"x": x, "out": np.zeros(100, np.float32), "n": 100, "BLOCK": 32}
    _, error = told(lambda: simulate(positive, (4,), arguments, checked=True))
    assert (
        error.message == "assertion failed in program (0, 0, 0) for element 0 (100 failures in all): must be positive"
    )


@blocknb.kernel
def sums_to(x, wanted, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(x + tl.arange(0, BLOCK)))
    if total > 0:
        assert total == wanted, f"not the sum of {BLOCK}"
        print("total", total)


@pytest.mark.parametrize("place", PLACES)
def test_an_assert_statement_of_a_scalar(place):
    arguments = {"x": np.ones(64, np.int32), "wanted": 64, "BLOCK": 64}
    out, error = told(lambda: PLACES[place](sums_to, (1,), arguments, debug=True))
    assert (out, error) == ("pid (0, 0, 0) idx () total: 64\n", None)
    arguments["wanted"] = 65
    _, error = told(lambda: PLACES[place](sums_to, (1,), arguments, debug=True))
    assert error.message == "assertion failed in program (0, 0, 0): not the sum of 64"
    line, carets = error.loc.excerpt().split("\n")
    assert line[carets.index("^") : carets.rindex("^") + 1] == "total == wanted"


def test_a_gpu_tests_assertions_only_when_asked(monkeypatch):
    arguments = {"x": np.ones(64, np.int32), "wanted": 64, "BLOCK": 64}

    def tested(target: str, **options: Any) -> bool:
        trace = sums_to.trace(**arguments, target=target, **options)
        return any(op.name == "assert" for op in trace.stages[-1].after.ops())

    assert not tested("sm_90a")
    assert tested("sm_90a", debug=True)
    assert tested("sm_90a", checked=True)
    assert not tested("sm_90a", checked=True, debug=False)
    assert tested("cpu")
    assert not tested("cpu", debug=False)
    notes = [n for n in sums_to.trace(**arguments).notes if "is not tested" in n.text]
    assert [n.loc.line for n in notes] == [sums_to.source.first_line + 4]
    monkeypatch.setenv("TRITON_DEBUG", "1")
    assert tested("sm_90a")
    monkeypatch.setenv("TRITON_DEBUG", "0")
    assert not tested("sm_90a")


def test_the_failing_program_stops_on_the_cpu():
    x, out = np.array([1, -1, 1], np.float32), np.zeros(3, np.float32)
    _, error = told(lambda: positive[1,](x, out, 3, BLOCK=4))
    assert isinstance(error, DeviceAssertionFailed)
    assert (out == 0).all()


def test_an_unreachable_false_assertion_does_not_fail():
    @blocknb.kernel
    def cases(out, n):
        if n > 3:
            tl.device_assert(False, "too many")
        tl.store(out, n)

    out = np.zeros(1, np.int32)
    cases[1,](out, 3)
    with pytest.raises(DeviceAssertionFailed, match="too many"):
        cases[1,](out, 4)


# -- the compiler ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2, each=["target", "k"])
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize(
    "k", [say_all, say_matrix, positive, *dict.fromkeys(s().kernel for s in OUT_OF_BOUNDS.values())], ids=str
)
def test_ptxas_accepts_the_code(k, target):
    found = next((s() for s in OUT_OF_BOUNDS.values() if s().kernel is k), None)
    x = np.zeros(64, np.float32)
    arguments: dict[str, Any] = {"x": x, "out": x, "n": 3, "BLOCK": 32, "M": 4, "N": 16}
    arguments = {p.name: arguments[p.name] for p in k.source.parameters} if found is None else dict(found.rest)
    trace = k.trace(
        **(arguments if found is None else {**views(found.arrays), **arguments}), target=target, checked=True
    )
    assert trace.artifacts["cubin"]


def test_passes_neither_remove_nor_duplicate_prints():
    """A tile that every warp holds is printed once, and every pass keeps a print in a loop."""

    @blocknb.kernel
    def small(x):
        v = tl.load(x + tl.arange(0, 2))
        for i in range(3):
            tl.device_print("v", v)
            tl.device_print("i", i)

    x = np.array([4, 5], np.int32)
    for options in ({}, {"num_warps": 8}, {"without": ("unroll",)}):
        warps = {"num_warps": options.get("num_warps", 4)}
        for place in (simulate, interpret_lowered):
            out, _ = told(lambda place=place, warps=warps: place(small, (1,), {"x": x}, **warps))
            values = [line.split("idx ")[1] for line in out.splitlines()]
            assert values == [t for i in range(3) for t in ("(0) v: 4", "(1) v: 5", f"() i: {i}")]


def test_a_disk_hit_restores_the_sites_of_reports(tmp_path, monkeypatch):
    from blocknb.runtime import cache
    from blocknb.runtime import compile as compiler

    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    cache.shared.cache_clear()
    arguments = {"x": np.ones(4, np.float32), "out": np.ones(4, np.float32), "n": 4, "BLOCK": 4}
    compiler.forget()
    first = positive.compile(**arguments, checked=True)
    compiler.forget()
    again = positive.compile(**arguments, checked=True)
    assert again.trace.from_cache
    assert again.code == first.code or vars(again.code) == vars(first.code)
    assert again.code.reports
    assert again.code.extents == (0, 1)
    compiler.forget()
    cache.shared.cache_clear()


def test_an_interrupt_or_a_fault_keeps_earlier_output():
    x, out = np.array([1, -1], np.float32), np.zeros(2, np.float32)

    @blocknb.kernel
    def late(x, out):
        i = tl.program_id(0)
        v = tl.load(x + i)
        print("v", v)
        tl.device_assert(v > 0, "negative")
        tl.store(out + i, v)

    said, error = told(lambda: late[2,](x, out))
    assert "v: -1.0" in said
    assert error.message == "assertion failed in program (1, 0, 0): negative"
