"""`%%blockkernel --interpret`: the cell's launches run as Python, with prints, breakpoints and errors."""

from __future__ import annotations

import re

KERNEL = """@blocknb.kernel
def scale(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    {extra}
    tl.store(out + at, 2 * v, mask=at < n)
"""


def cell(extra, launch, options="--interpret"):
    return f"%%blockkernel {options}\n{KERNEL.format(extra=extra)}\n{launch}"


def test_what_a_kernel_prints_appears_in_the_cell(notebook):
    answer = notebook.run(cell("print(tl.program_id(0), v[None, :].shape, v)", "scale[2](x, out, 8, BLOCK=4)\nout[:9]"))
    assert answer.status == "ok", answer.outputs
    assert answer.printed == "0 (1, 4) [0. 1. 2. 3.]\n1 (1, 4) [4. 5. 6. 7.]\n"
    assert answer.cards == [] and "Interpreted scale: no kernel was compiled." in str(answer.bundles)
    assert notebook.run("out[:9].tolist() == [0, 2, 4, 6, 8, 10, 12, 14, out[8]]").bundles[0]["text/plain"] == "True"


def test_the_next_cell_compiles_again(notebook):
    assert notebook.run(cell("pass", "scale[2](x, out, 8, BLOCK=4)")).status == "ok"
    answer = notebook.run("%%blockkernel\nscale[2](x, out, 8, BLOCK=4)")
    assert answer.status == "ok" and len(answer.cards) == 1


def test_an_out_of_bounds_access_is_shown_at_its_line_with_its_program(notebook):
    answer = notebook.run(cell("pass", "scale[20](x, out, 8, BLOCK=4)"))
    assert answer.status == "error"
    text = answer.error_text
    assert "program (16, 0, 0) loads element 64 of `x`, which has 64 elements" in text
    assert "v = tl.load(x + at)\n" in text and "^^^^^^^^^^^^^^^" in text and "line 5, in scale" in text


def test_after_an_error_the_failing_program_can_be_interpreted(notebook):
    notebook.run(cell("pass", "scale[20](x, out, 8, BLOCK=4)"))
    answer = notebook.run(
        "import sys, traceback\n"
        "frame, line = list(traceback.walk_tb(sys.last_value.__traceback__))[-1]\n"
        "print(frame.f_code.co_name, line, frame.f_locals['at'])"
    )
    assert answer.printed == "scale 5 [64 65 66 67]\n", answer.outputs


def test_a_breakpoint_opens_the_notebooks_debugger_in_the_kernel(notebook):
    answer = notebook.run(
        cell("breakpoint()", "scale[1](x, out, 8, BLOCK=4)"), answers=["p v.sum(0)", "w", "n", "p at", "c"]
    )
    assert answer.status == "ok", answer.outputs
    text = re.sub(r"\x1b\[[0-9;]*m", "", answer.printed)
    assert "6.0" in text and "int32 (4,): array([0, 1, 2, 3], dtype=int32)" in text
    assert "tl.store(out + at, 2 * v, mask=at < n)" in text
    assert "interpreter.py" not in text  # the stack is the user's


def test_an_interrupt_stops_an_interpreted_launch(notebook):
    answer = notebook.run(
        cell(
            "print('started', flush=True) if tl.program_id(0) == 0 else None", "scale[10**8](x, out, 8, BLOCK=1)"
        ).replace("tl.load(x + at)", "tl.load(x)"),
        interrupt_after="started",
    )
    assert answer.status == "error" and answer.errors[0]["ename"] == "KeyboardInterrupt"
    assert answer.seconds < 10
    assert notebook.run("%%blockkernel --quiet\nscale[1](x, out, 8, BLOCK=1)").status == "ok"
