"""A failing optimization raises in the tests; for users, the kernel is compiled without it."""

import frontend_helpers
import numpy as np
import pytest
from support import replace_pass

import blocknb
import blocknb.language as tl
from blocknb import cli, passes
from blocknb.codegen import cpu
from blocknb.codegen.cpu import fusion, mask_bounds, nontemporal_stores, row_prefetch, rows, uniformity
from blocknb.codegen.cpu.uniformity import VARYING
from blocknb.errors import CompilerBug, Unsupported
from blocknb.frontend.parse import parse
from blocknb.runtime import compile as compiler
from blocknb.target import Target

CPU = Target.parse("cpu")
ARGUMENTS = {"x": np.zeros(4, np.float32), "y": np.zeros(4, np.float32), "n": 300, "BLOCK": 512}


def normalise(x, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * n + i % n, e / tl.sum(e, axis=0), mask=i < n)


def launch():
    """Compiles and runs the kernel; returns the notes of optimizations that were left out."""
    compiler.forget()
    x = np.random.default_rng(5).standard_normal((4, 300), dtype=np.float32)
    y = np.zeros_like(x)
    compiled = blocknb.kernel(normalise)[(4,)](x, y, 300, BLOCK=512)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)
    return [note for note in compiled.trace.notes if note.failed]


def function():
    k = frontend_helpers.kernel(normalise)
    return parse(k.source, {n: frontend_helpers.argument(k, n, v) for n, v in ARGUMENTS.items()}, {})


def generated():
    return cpu.generate(passes.run(function(), CPU, set(passes.optional()) - {"nontemporal_stores"})[0], CPU)


def broken(*args, **kwargs):
    raise AssertionError("this cannot be")


@pytest.fixture
def users_machine(own_cache, monkeypatch):
    monkeypatch.delenv("BLOCKNB_STRICT")


def refuses_to_speculate(forms, a, b, dtype):
    return broken() if forms.speculate else VARYING


#: A function that each optimization of the code generator needs, and its failing replacement.
BREAKS = {
    "row_prefetch": (row_prefetch.RowPrefetch, "prepare", lambda prefetch, forms: broken() if prefetch.ops else None),
    "nontemporal_stores": (nontemporal_stores.NontemporalStores, "is_profitable", broken),
    "mask_bounds": (mask_bounds.MaskBounds, "_finish", broken),
    "loop_versioning": (uniformity.UniformityAnalysis, "_wrap", refuses_to_speculate),
    "fusion": (fusion.FusionGraph, "_find_group", broken),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_failing_optimization_of_the_code_generator_is_left_out_for_users(name, users_machine, monkeypatch, capsys):
    monkeypatch.setattr(*BREAKS[name])
    (note,) = launch()
    assert note.text.startswith(f"{name} was left out: it failed with AssertionError at test_cpu_fallback.py:")
    assert note.kind == "warning"
    cli.main(["doctor", "--report"])
    assert f"`normalise` for {CPU}: {note.text}" in capsys.readouterr().out


@pytest.mark.parametrize("name", BREAKS)
def test_a_failing_optimization_of_the_code_generator_raises_in_the_tests(name, monkeypatch, tmp_path):
    monkeypatch.setattr(*BREAKS[name])
    with pytest.raises(AssertionError, match="this cannot be"):
        generated()


def test_several_failing_optimizations_are_left_out_together(users_machine, monkeypatch):
    for name in ("row_prefetch", "mask_bounds"):
        monkeypatch.setattr(*BREAKS[name])
    (note,) = launch()
    assert "row_prefetch" in note.text
    assert "mask_bounds" in note.text


def test_failure_without_a_responsible_optimization_is_a_compiler_bug(users_machine, monkeypatch):
    monkeypatch.setattr(rows.RowLoops, "emit", broken)
    with pytest.raises(CompilerBug, match="this cannot be"):
        launch()


def test_a_users_error_in_an_optimization_stays_the_users_error(users_machine, monkeypatch):
    def refuses(prefetch, forms):
        raise Unsupported("this target cannot do it")

    monkeypatch.setattr(row_prefetch.RowPrefetch, "prepare", refuses)
    with pytest.raises(Unsupported, match="this target cannot do it"):
        launch()


def test_a_failing_optional_pass_is_left_out_for_users(users_machine, monkeypatch, capsys):
    replace_pass(monkeypatch, "simplify", broken)
    (note,) = launch()
    assert note.text.startswith("simplify was left out: it failed with AssertionError")
    assert note.origin == "simplify"
    cli.main(["doctor", "--report"])
    assert note.text in capsys.readouterr().out


def test_a_failing_optional_pass_raises_in_the_tests(monkeypatch):
    replace_pass(monkeypatch, "simplify", broken)
    with pytest.raises(AssertionError, match="this cannot be"):
        passes.run(function(), CPU)


def test_a_users_error_in_an_optional_pass_stays_the_users_error(users_machine, monkeypatch):
    def refuses(func, target, notes):
        raise Unsupported("this target cannot do it")

    replace_pass(monkeypatch, "simplify", refuses)
    with pytest.raises(Unsupported, match="this target cannot do it"):
        launch()


def test_failing_required_pass_is_a_compiler_bug(users_machine, monkeypatch):
    replace_pass(monkeypatch, "barriers", broken)
    with pytest.raises(AssertionError, match="this cannot be"):
        passes.run(function(), Target.parse("sm_80"))


def test_report_without_failures_says_none(users_machine, capsys):
    assert launch() == []
    cli.main(["doctor", "--report"])
    assert capsys.readouterr().out.endswith("optimizations that failed and were left out:\n  none\n")


@blocknb.kernel
def wrapped(a, b, n, m):
    i = tl.arange(0, 512)
    u = tl.load(b + n + i)
    v = tl.load(b + m + i % 127)
    tl.store(b + 259 + (i ^ 361), u * v)
    w = tl.load(a + m + i % n)
    tl.store(b + 2 + i, w, mask=w > -3)


def test_wrapped_rows_are_prefetched_only_in_the_loop_without_wrap_around():
    """The loop for wrapped rows has no contiguous rows to prefetch, which failed an assertion."""
    rng = np.random.default_rng(11)
    for n, m in [(75, 314), (600, 3)]:
        a, b = rng.integers(-9, 9, (2, 2048)).astype(np.int32)
        expected, i = b.copy(), np.arange(512)
        product = expected[n + i] * expected[m + i % 127]
        expected[259 + (i ^ 361)] = product
        w = a[m + i % n]
        expected[2 + i] = np.where(w > -3, w, expected[2 + i])
        compiled = wrapped[(1,)](a, b, n, m)
        np.testing.assert_array_equal(b, expected)
        assert "@llvm.prefetch" in compiled.trace.llvm
