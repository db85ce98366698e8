"""`blocknb compile`: a kernel of a file, its IR after passes, its code, and an edited stage."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from blocknb import cli, passes
from blocknb.passes import load
from blocknb.passes.registry import REGISTERED

SCRIPT = """
    import numpy as np
    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def add(x, y, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

    @blocknb.autotune(configs=[blocknb.Config({"BLOCK": 64})], key=[])
    @blocknb.kernel
    def tuned(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), 1.0)

    if __name__ == "__main__":
        x = np.arange(1000, dtype=np.float32)
        add[4](x, x, np.zeros_like(x), 1000, BLOCK=256)
"""
TYPES = ("x=*fp32:16", "y=*fp32:16", "out=*fp32:16", "n=i32", "BLOCK=256")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("add.py").write_text(textwrap.dedent(SCRIPT))
    Path("quiet.py").write_text("x = 1\n")
    return "add.py"


def command(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> tuple[str, str]:
    """What the command writes to stdout and to stderr."""
    capsys.readouterr()
    assert cli.main(["compile", *arguments]) == status
    said = capsys.readouterr()
    return said.out, said.err


def headers(text: str) -> list[str]:
    return re.findall(r"^// -----// IR after (.*) //----- //$", text, re.MULTILINE)


def test_types_on_the_command_line_give_ptx_without_a_launch(script, capsys) -> None:
    out, err = command(capsys, f"{script}:add", *TYPES)
    assert ".visible .entry add(" in out
    assert ".target sm_90a" in out
    assert err == ""
    out, _ = command(capsys, f"{script}:add", *TYPES, "num_warps=8", "--stop-after", "choose_num_warps")
    assert "num_warps=8" in out


def test_a_launch_of_the_file_gives_the_types(script, capsys) -> None:
    out, _ = command(capsys, script, "--emit", "llvm")
    assert "define" in out
    out, _ = command(capsys, script, "--target", "sm_80")
    assert ".target sm_80" in out


def test_an_autotuned_kernel_is_found_behind_its_tuner(script, capsys) -> None:
    out, _ = command(capsys, f"{script}:tuned", "x=*fp32", "BLOCK=64")
    assert ".entry tuned(" in out


def test_the_compilation_stops_after_a_pass(script, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(func, target, notes):
        raise AssertionError("a pass after the last one ran")

    coalesce = load("tile.coalesce")
    monkeypatch.setitem(REGISTERED, "coalesce", replace(coalesce, run=fails))
    out, err = command(capsys, f"{script}:add", *TYPES, "--stop-after", "pointers")
    assert out.startswith("func @add(")
    assert "splat %22" in out or "ptradd %x" in out
    assert err == ""
    _, err = command(capsys, f"{script}:add", *TYPES, "--print-after", "pointers", status=1)
    assert headers(err) == ["pointers"]  # printed before the pass that fails
    assert "a pass after the last one ran" in err


def test_the_ir_after_passes_goes_to_stderr_in_order(script, capsys) -> None:
    out, err = command(capsys, f"{script}:add", *TYPES, "--print-after", "coalesce", "--print-after", "parse")
    assert headers(err) == ["parse", "coalesce"]
    assert "vec=1" in err
    assert ".entry add(" in out
    _, err = command(capsys, f"{script}:add", *TYPES, "--print-after", "all", "--stop-after", "coalesce")
    names = [name.removesuffix(" (no change)") for name in headers(err)]
    assert names[:4] == ["parse", "simplify", "unroll", "pointers"]
    assert names[-1] == "coalesce"
    assert "unroll (no change)" in headers(err)
    assert err.count("func @add(") == sum("(no change)" not in name for name in headers(err))
    assert set(names) <= {"parse", *(entry.split(".")[1] for entry in passes.ORDER)}


def test_a_pass_that_does_not_apply_stops_at_its_place(script, capsys) -> None:
    out, err = command(capsys, f"{script}:add", *TYPES, "--stop-after", "warp_specialization")
    assert " memory {" in out
    assert "shared_bytes" not in out
    assert err == "the pass warp_specialization does not apply to this kernel\n"


def test_an_edited_text_goes_in_where_it_came_out(script, capsys) -> None:
    text, _ = command(capsys, script, "--stop-after", "simplify")
    edited, count = re.subn(r"= add (.*tile<256xf32>)", r"= sub \1", text)
    assert count == 1
    Path("edited.ir").write_text(edited)
    out, _ = command(capsys, script, "--edit", "simplify=edited.ir", "--emit", "llvm")
    assert "fsub" in out
    assert "fadd" not in out
    Path("edited.ir").write_text(edited.replace("= sub", "= subtract"))
    _, err = command(capsys, script, "--edit", "simplify=edited.ir", status=1)
    assert re.search(r"line \d+, column \d+ of the edited IR: no op is called subtract", err)


def test_source_lines_are_written_on_request(script, capsys) -> None:
    plain, _ = command(capsys, script, "--stop-after", "simplify")
    out, _ = command(capsys, script, "--stop-after", "simplify", "--locs")
    assert 'add.py":' not in plain
    assert re.search(r'store .* at ".*add.py":9:\d+', out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.py",), "there is no file none.py"),
        (("add.py", "--stop-after", "simplfy"), "has no pass simplfy; did you mean simplify?"),
        (("add.py", "--print-after", "select_mma"), "has no pass select_mma"),  # on the CPU
        (("add.py:sub", "x=i32"), "add.py has no kernel sub; its kernels are: add, tuned"),
        (("add.py", "x=i32"), "add.py has several kernels"),
        (("add.py:add", "x"), "'x' is no NAME=VALUE"),
        (("add.py:add", "x=*fp33", "y=*fp32", "out=*fp32", "n=i32", "BLOCK=16"), "x=*fp33 is no type; write *fp32 for"),
        (("add.py:add", "x=*fp32:7", "y=*fp32", "out=*fp32", "n=i32", "BLOCK=16"), "x=*fp32:7 is no type"),
        (("add.py:add", "x=*fp32", "y=*fp32", "out=*fp32", "n=i31", "BLOCK=16"), "n=i31 is no type"),
        (("quiet.py",), "quiet.py launches no kernel; give the types"),
        (("add.py:tuned",), "add.py launches no kernel tuned; give the types"),
        (("add.py", "--emit", "ptx"), "there is no ptx for cpu"),
        (("add.py", "--edit", "simplify=none.ir"), "names no file with IR"),
    ],
)
def test_a_wrong_command_line_says_what_exists(arguments, message, script, capsys) -> None:
    _, err = command(capsys, *arguments, status=2)
    assert message in err


def test_an_error_of_the_kernel_has_its_place_and_status_1(script, capsys) -> None:
    _, err = command(capsys, f"{script}:add", "x=i32", status=1)
    assert "the kernel add misses the arguments `y`, `out`, `n` and `BLOCK`" in err
    assert "called from" not in err
