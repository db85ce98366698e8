"""`blocknb bisect` with a broken compiler: it names the pass, or code generation, and shows the op."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from blocknb import cli
from blocknb.codegen.cpu import outlining
from blocknb.codegen.scalar_math.instructions import InstructionBuilder
from blocknb.fuzz import bisect, reproducer
from blocknb.fuzz.blame import Blame
from blocknb.fuzz.execute import Outcome
from blocknb.fuzz.generate import generate
from blocknb.ir.build import rebuild
from blocknb.passes import load
from blocknb.passes.registry import REGISTERED
from blocknb.passes.tile import nontemporal_stores
from blocknb.runtime import host

REVERSED = """
    import numpy as np
    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def negated(x, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + i, mask=i < n)
        tl.store(out + i, (value + 2.0) * (i - n) + 3.0, mask=i < n)

    x = np.arange(100, dtype=np.float32)
    negated[2](x, np.zeros_like(x), 100, BLOCK=64)
"""

PRODUCT = """
    import numpy as np
    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def product(a, b, out, K, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
        rows = tl.arange(0, BM)
        columns, inner = tl.arange(0, N), tl.arange(0, BK)
        total = tl.zeros((BM, N), tl.float32)
        for k in range(0, K, BK):
            left = tl.load(a + rows[:, None] * K + k + inner[None, :])
            right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
            total = tl.dot(left, right, total)
        tl.store(out + rows[:, None] * N + columns[None, :], total)

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float16) for _ in "ab")
    product[1](a, b, np.zeros((32, 32), np.float32), 32, N=32, BM=32, BK=16, num_warps=2)
"""


def run(folder: Path, text: str, *options: str) -> int:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    return cli.main(["bisect", str(script), *options])


def broken(monkeypatch: pytest.MonkeyPatch, entry: str, visit) -> None:
    """Rewrites the ops of a pass's output by `visit`, as a pass with a fault does."""
    right = load(entry)

    def wrong(func, target, notes):
        return rebuild(right.run(func, target, notes), visit)

    wrong.__doc__ = right.run.__doc__
    monkeypatch.setitem(REGISTERED, right.name, replace(right, run=wrong))


def adding(op, rebuild):
    """Adds where the kernel subtracts."""
    if op.name != "sub" or not op.result.type.shape:
        return NotImplemented
    return (rebuild.builder.op("add", *op.args).result,)


def test_a_right_compiler_has_no_wrong_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, REVERSED) == 0
    said = capsys.readouterr().out
    assert said.startswith("negated, grid (2, 1, 1), cpu")
    assert "and in machine code" in said
    assert run(tmp_path, REVERSED, "--target", "sm_90a") == 0
    assert "the machine code did not run" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["", "sm_90a"])
def test_a_fault_of_a_tile_pass_is_found_with_its_op(target, tmp_path: Path, monkeypatch, capsys) -> None:
    broken(monkeypatch, "tile.pointers", adding)
    assert run(tmp_path, REVERSED, *(["--target", target] if target else [])) == 1
    said = capsys.readouterr().out
    assert "pass pointers is wrong" in said
    assert "elements of out differ: out[" in said
    lines = [line.strip() for line in said.splitlines() if line.startswith(("  - ", "  + "))]
    assert [line.split("=")[1].split()[0] for line in lines] == [
        "sub",
        "cast",
        "add",
        "cast",
    ]  # and none of the pass's right changes
    assert "script.py, line 10: tl.store(out + i, (value + 2.0) * (i - n) + 3.0, mask=i < n)" in said


def test_a_fault_of_a_memory_level_pass_is_found_with_its_op(tmp_path: Path, monkeypatch, capsys) -> None:
    def without_its_sum(op, rebuild):
        if op.name != "store":
            return NotImplemented
        pointer, value, *rest = op.args
        rebuild.builder.op("store", pointer, rebuild.builder.op("add", value, value).result, *rest, **dict(op.attrs))
        return ()

    broken(monkeypatch, "memory.software_pipelining", without_its_sum)
    assert run(tmp_path, PRODUCT, "--target", "sm_80") == 1
    said = capsys.readouterr().out
    assert "product, grid (1, 1, 1), sm_80: pass software_pipelining is wrong" in said
    assert "+ store" in said


def test_a_missing_barrier_is_a_race_of_the_pass_that_places_barriers(tmp_path: Path, monkeypatch, capsys) -> None:
    broken(monkeypatch, "memory.barriers", lambda op, rebuild: () if op.name == "barrier" else NotImplemented)
    assert run(tmp_path, PRODUCT, "--target", "sm_80") == 1
    said = capsys.readouterr().out
    assert "pass barriers is wrong" in said
    assert "the interpreter raises CompilerBug" in said
    assert "script.py, line 1" in said
    assert "the pass changed nothing" in said


def test_a_fault_of_code_generation_is_told_from_the_passes(tmp_path: Path, monkeypatch, capsys) -> None:
    right = InstructionBuilder.binary

    def wrong(self, instruction, a, b, element, width):
        return right(self, instruction.replace("fadd", "fsub"), a, b, element, width)

    monkeypatch.setattr(InstructionBuilder, "binary", wrong)
    assert run(tmp_path, REVERSED) == 1
    said = capsys.readouterr().out
    assert "stages are right, and code generation is wrong" in said
    assert "by the last IR" in said


@pytest.mark.parametrize("device", ["cpu", "sm_90a"])
def test_a_script_of_the_fuzzer_is_bisected(device, tmp_path: Path, monkeypatch, capsys) -> None:
    scratch = type(host._scratch)
    for owner, name in [(nontemporal_stores, "LARGE"), (outlining, "LINES"), (scratch, "at_least")]:
        monkeypatch.setattr(
            owner, name, getattr(owner, name)
        )  # the script sets them, and later tests need their values
    kernel = generate(9, 0)
    text = reproducer.script(kernel, Outcome("wrong"), Blame("codegen"), "blocknb fuzz", device, "")
    assert run(tmp_path, text) == 0
    assert "right in all" in capsys.readouterr().out
    broken(monkeypatch, "tile.pointers", lambda op, rebuild: () if op.name == "store" else NotImplemented)
    assert run(tmp_path, text) == 1
    assert "pass pointers is wrong" in capsys.readouterr().out


def test_edited_code_is_checked_against_the_edited_ir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited = """
    stage = negated.trace(x, np.zeros_like(x), 100, BLOCK=64, target="cpu").stages["simplify"]
    out = np.zeros_like(x)
    stage.edit(stage.text.replace("= sub", "= add", 1))[2](x, out, 100)
    assert out[1] == 3.0 * (1 + 100) + 3.0
"""
    assert run(tmp_path, REVERSED + edited) == 0
    said = capsys.readouterr().out
    assert said.count("and in machine code") == 2
    assert "exception" not in said
    assert run(tmp_path, REVERSED + edited, "--target", "sm_90a") == 0
    assert capsys.readouterr().out.count("right in all") == 1  # edited IR is for the CPU only


def test_a_script_without_a_launch_is_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "x = 1") == 2
    assert "launches no kernel" in capsys.readouterr().out


def test_an_exception_of_the_script_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, REVERSED + "\n    raise ValueError('unexpected result')") == 0
    said = capsys.readouterr().out
    assert "ends with an exception: ValueError: unexpected result" in said
    assert "the front end may be" in said


def test_floats_may_differ_by_the_tolerance_of_their_dtype_and_integers_not_at_all() -> None:
    for dtype, near, far in ((np.float32, 1e-5, 1e-3), (np.float64, 1e-10, 1e-8), (np.float16, 2e-3, 5e-2)):
        want = np.array([1.0, np.nan, np.inf, 0.0], dtype)
        assert not bisect.difference({"x": want + np.array([near, 0, 0, near], dtype)}, {"x": want})
        assert "x[0]" in bisect.difference({"x": want + np.array([far, 0, 0, 0], dtype)}, {"x": want})
        assert "x[2]" in bisect.difference({"x": np.array([1, np.nan, -np.inf, 0], dtype)}, {"x": want})
        assert "x[1]" in bisect.difference({"x": np.array([1, 0, np.inf, 0], dtype)}, {"x": want})
    one = np.ones(1, ml_dtypes.bfloat16)
    assert not bisect.difference({"x": one * ml_dtypes.bfloat16(1.01)}, {"x": one})
    assert bisect.difference({"x": one * ml_dtypes.bfloat16(1.1)}, {"x": one})
    assert bisect.difference({"x": np.array([3])}, {"x": np.array([4])}).startswith("1 of 1 elements of x differ")
