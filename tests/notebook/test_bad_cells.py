"""Every bad cell gives one message at the right line, and the kernel process continues."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from blocknb.codegen.toolchain import find_ptxas
from blocknb.target import Target

needs_ptxas = pytest.mark.skipif(find_ptxas(Target.parse("sm_90a")) is None, reason="there is no ptxas on this machine")


@dataclass(frozen=True)
class Bad:
    """A cell with an error. `line` is the line that the message names first (from 1), and `says` a part of the message."""

    name: str
    cell: str
    error: str
    line: int
    says: str


def kernel(body: str, launch: str = "k[1](x, out)", parameters: str = "x, out") -> str:
    """The source of a cell with a kernel whose body begins on line 4."""
    lines = "\n".join(f"    {line}" for line in body.split("\n"))
    return f"%%blockkernel\n@blocknb.kernel\ndef k({parameters}):\n{lines}\n{launch}"


CASES = [
    Bad("unknown name", kernel("i = tl.arange(0, 64)\ntl.store(out + i, valeu)"), "TypeMismatch", 5, "valeu"),
    Bad("unknown function", kernel("i = tl.arrange(0, 64)"), "TypeMismatch", 4, "arrange"),
    Bad("wrong shape", kernel("i = tl.arange(0, 64)\nj = i + tl.arange(0, 32)"), "TypeMismatch", 5, "32"),
    Bad("size not a power of two", kernel("i = tl.arange(0, 100)"), "TypeMismatch", 4, "power of two"),
    Bad("missing argument", kernel("tl.store(out, 1.0)", "k[1](x)"), "LaunchError", 3, "`out`"),
    Bad("unknown argument", kernel("tl.store(out, 1.0)", "k[1](x, out, BLOK=3)"), "LaunchError", 3, "BLOK"),
    Bad("missing dtype", kernel("tl.store(out, 1.0)", "k[1](x.astype(complex), out)"), "LaunchError", 3, "complex128"),
    Bad("a list for an array", kernel("tl.store(out, 1.0)", "k[1]([1, 2], out)"), "LaunchError", 3, "list"),
    Bad("float index", kernel("i = tl.arange(0, 64)\nv = tl.load(x + i * 0.5)"), "TypeMismatch", 5, "fp32"),
    Bad("store to a constant", kernel("tl.store(3, 1.0)"), "TypeMismatch", 4, "pointer"),
    Bad(
        "unsupported Python",
        kernel("try:\n    tl.store(out, 1.0)\nexcept ValueError:\n    pass"),
        "SyntaxUnsupported",
        4,
        "try",
    ),
    Bad("a comprehension", kernel("y = [i for i in range(3)]"), "SyntaxUnsupported", 4, "comprehension"),
    Bad("break", kernel("for i in range(3):\n    break"), "SyntaxUnsupported", 5, "break"),
    Bad("recursion", kernel("k(x, out)"), "SyntaxUnsupported", 4, "recurs"),
    Bad("a NumPy function", kernel("i = np.exp(tl.arange(0, 64))"), "KernelError", 4, "exp"),
    Bad("a tile too large", kernel("y = tl.zeros((4096, 4096), tl.float32)"), "KernelError", 4, "16777216"),
    Bad("a grid of four axes", kernel("tl.store(out, 1.0)", "k[1, 1, 1, 1](x, out)"), "LaunchError", 3, "four|4 axes"),
    Bad("a grid of floats", kernel("tl.store(out, 1.0)", "k[64 / 32](x, out)"), "LaunchError", 3, "cdiv"),
    Bad("a call without a grid", kernel("tl.store(out, 1.0)", "k(x, out)"), "LaunchError", 3, "grid"),
    Bad("three warps", kernel("tl.store(out, 1.0)", "k[1](x, out, num_warps=3)"), "ImpossibleNumWarps", 3, "num_warps"),
    Bad(
        "a type that changes in a loop", kernel("s = 0\nfor i in range(3):\n    s = s + 0.5"), "TypeMismatch", 6, "`s`"
    ),
    Bad("inner sizes of dot", kernel("y = tl.zeros((16, 32), tl.float32)\nz = tl.dot(y, y)"), "TypeMismatch", 5, "dot"),
    Bad("a failed static_assert", kernel("tl.static_assert(1 > 2, 'one is less')"), "KernelError", 4, "one is less"),
    Bad(
        "read-only output",
        kernel("tl.store(out, 1.0)", "out.flags.writeable = False\nk[1](x, out)"),
        "LaunchError",
        3,
        "read-only",
    ),
    Bad(
        "a grid's function",
        kernel("tl.store(out, 1.0)", 'k[lambda meta: (meta["m"],)](x, out)'),
        "LaunchError",
        5,
        "asks for `m`",
    ),
    Bad("a library function", kernel("v = 1.0\nw = tl.softmax(tl.load(x))"), "TypeMismatch", 5, "in `softmax`"),
    Bad(
        "a block size without its annotation",
        kernel("i = tl.arange(0, n)", "k[1](x, out, 64)", "x, out, n"),
        "TypeMismatch",
        4,
        "`n: tl.constexpr`",
    ),
    Bad("a store outside", kernel("i = tl.arange(0, 128)\ntl.store(out + i, 1.0)"), "AccessError", 5, "64"),
    Bad("a load outside", kernel("v = tl.load(x - 1)\ntl.store(out, v)"), "AccessError", 4, "-1"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_error_in_a_cell_gives_one_message_at_its_line(notebook, case):
    answer = notebook.run(case.cell)
    assert answer.status == "error"
    assert len(answer.errors) == 1, answer.outputs
    text = answer.error_text
    first, place, source = text.split("\n")[:3]
    if case.error != "KernelError":  # several rooms may be the first to notice
        assert first.startswith(f"{case.error}: "), first
    assert any(part in text for part in case.says.split("|")), text
    assert f", line {case.line}," in place + ",", text
    assert source.strip() == case.cell.split("\n")[case.line - 1].strip(), text
    assert "site-packages" not in text and "Traceback" not in text
    assert "blocknb/" not in text
    assert notebook.run("1 + 1").bundles[0]["text/plain"] == "2"


def test_an_error_in_a_helper_of_another_cell_shows_both_cells(notebook):
    assert (
        notebook.run("@blocknb.kernel\ndef first(p, N: tl.constexpr):\n    return tl.load(p + tl.arange(0, N))").status
        == "ok"
    )
    text = notebook.run(kernel("tl.store(out, tl.sum(first(x, 24)))")).error_text
    lines = text.split("\n")
    assert "arange(0, 24) has 24 elements" in lines[0]
    assert ", line 3, in first" in lines[1] and lines[2].strip() == "return tl.load(p + tl.arange(0, N))"
    assert lines[4].strip().startswith("called from cell") and ", line 4, in k" in lines[4]
    assert lines[5].strip() == "tl.store(out, tl.sum(first(x, 24)))"
    assert lines[6].strip() == "^" * len("first(x, 24)")
    assert notebook.run(kernel("tl.store(out, tl.sum(first(x, 32)))") + "\nout[0]").status == "ok"


def test_a_grid_of_zero_launches_nothing(notebook):
    answer = notebook.run(kernel("tl.store(out, 1.0)", "out[:] = 5\nk[0](x, out)\nout.sum()"))
    assert answer.status == "ok"
    assert answer.bundles[0]["text/plain"].endswith("(320.0)")


ENDLESS = kernel("i = 0\nwhile i < 1:\n    i = i * 1\ntl.store(out, i)", "print('running', flush=True)\nk[1](x, out)")


def test_an_endless_while_is_interrupted_within_a_second(notebook):
    notebook.run(ENDLESS.replace("i < 1", "i < 0"))  # so that the worker has started
    answer = notebook.run(ENDLESS, interrupt_after="running")
    assert answer.status == "error"
    assert answer.errors[0]["ename"] == "KeyboardInterrupt"
    assert "---> 9 k[1](x, out)" in answer.error_text and "blocknb/" not in answer.error_text
    assert answer.seconds < 1
    assert notebook.run("1 + 1").bundles[0]["text/plain"] == "2"


BROKEN = """
from blocknb.codegen import gpu
real = gpu.generate
def generate(func, target):
    made = real(func, target)
    object.__setattr__(made, "text", {text!r})
    return made
gpu.generate = generate
try:
    k.trace("*fp32", "*fp32")
finally:
    gpu.generate = real
"""
ABORTS = """define ptx_kernel void @k(ptr addrspace(1) %p, float %x) {
  %y = call float @llvm.exp.f32(float %x)
  store float %y, ptr addrspace(1) %p
  ret void
}
declare float @llvm.exp.f32(float)
"""
REFUSED = """define ptx_kernel void @k() {
  call void asm sideeffect "no.such.instruction;", ""()
  ret void
}
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(ABORTS, "fexp", id="LLVM abort"),
        pytest.param(REFUSED, "such", id="ptxas", marks=needs_ptxas),
    ],
)
def test_a_compiler_that_dies_gives_one_message_at_the_cells_line(notebook, text, says):
    # A name of its own, so that no cache has the kernel.
    assert notebook.run(f"@blocknb.kernel\ndef k(x, out):\n    tl.store(out, tl.load(x))  # {says}").status == "ok"
    cell = BROKEN.format(text=text).strip()
    answer = notebook.run(cell)
    assert answer.status == "error"
    error = answer.error_text
    assert error.startswith("CompilerBug: ") and says in error
    line = 1 + [row.strip() for row in cell.split("\n")].index('k.trace("*fp32", "*fp32")')
    assert f"line {line}" in error and "site-packages" not in error
    assert notebook.run("k.trace('*fp32', '*fp32').ptx.count('st.global')").bundles[0]["text/plain"] == "1"


def test_run_all_stops_at_a_bad_cell(notebook):
    client = notebook.client
    client.execute(
        "input()", allow_stdin=True
    )  # holds the kernel until both cells stand in its queue, as Run All has it
    client.get_stdin_msg(timeout=120)
    bad = client.execute(kernel("i = tl.arange(0, 100)"), stop_on_error=True)
    later = client.execute("later = 1", stop_on_error=True)
    client.input("go on")
    replies = {}
    while not {bad, later} <= set(replies):
        reply = client.get_shell_msg(timeout=120)
        replies[reply["parent_header"]["msg_id"]] = reply["content"]["status"]
    assert (replies[bad], replies[later]) == ("error", "aborted")
    while client.get_iopub_msg(timeout=120)["parent_header"].get("msg_id") != later:
        pass
    while client.get_iopub_msg(timeout=120)["content"].get("execution_state") != "idle":
        pass
    assert notebook.run("'later' in globals()").bundles[0]["text/plain"] == "False"
