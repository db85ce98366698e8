"""Edited stages: a compilation continues from the text that a user changed, and the caches tell it from the kernel's own."""

from __future__ import annotations

import re

import numpy as np
import pytest
from kernels import CASES
from pretend_gpu import CupyArray, pretend

import blocknb
import blocknb.language as tl
from blocknb.errors import KernelError, LaunchError
from blocknb.ir.text import print_func
from blocknb.runtime import compile as compiler
from blocknb.runtime.job import Job
from blocknb.runtime.request import Request, StageEdit
from blocknb.runtime.stage_edit import EditError
from blocknb.target import Target
from blocknb.trace import Stage

pytestmark = pytest.mark.usefixtures("fresh_cache")


@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@blocknb.kernel
def product(a, b, out, K, N: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns, inner = tl.arange(0, N), tl.arange(0, BK)
    total = tl.zeros((BM, N), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + k + inner[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total.to(tl.float16))


GEMM = {"target": "sm_90a", "N": 128, "BM": 128, "BK": 64}


def gemm_trace():
    return product.trace("*fp16:16", "*fp16:16", "*fp16:16", "i32:64", **GEMM)


def numbers():
    x = np.arange(100, dtype=np.float32)
    return x, 2 * x, np.zeros_like(x)


def doubling(text: str) -> str:
    """The text of `product` with a sum of each result and itself before its conversion to fp16."""
    ((result, operand, layout),) = re.findall(r"(%\S+) = cast (%\S+) : tile<128x128xf16, (#\w+)>", text)
    line = f"{result} = cast {operand} : tile<128x128xf16, {layout}>"
    assert text.count(line) == 1
    return text.replace(line, f"%twice = add {operand}, {operand}\n  {line.replace(operand + ' ', '%twice ')}")


def adds(ptx: str) -> int:
    return len(re.findall(r"\badd(?:\.rn)?\.f32", ptx))


def subtracting(text: str) -> str:
    """The text of `add` with a subtraction in the place of its addition."""
    changed = re.sub(r"= add (%\S+, %\S+ : tile<64xf32)", r"= sub \1", text)
    assert changed != text
    return changed


# ---- stages by name ------------------------------------------------------------------------------------------------------


def test_a_stage_is_found_by_its_name_and_by_its_number():
    stages = add.trace(*numbers(), 100, BLOCK=64, target="cpu").stages
    assert stages["simplify"] is stages[1]
    assert [stage.name for stage in stages[:2]] == ["parse", "simplify"]


def test_an_unknown_stage_is_a_key_error_with_similar_names():
    stages = add.trace(*numbers(), 100, BLOCK=64, target="cpu").stages
    with pytest.raises(
        KeyError, match=r"^no stage 'pointer' ran; did you mean pointers\? The stages are parse, simplify"
    ):
        stages["pointer"]


# ---- compiling on --------------------------------------------------------------------------------------------------------


def llvm_text(request: Request, edit: StageEdit | None = None) -> tuple[str, Job]:
    job = Job(Request(request.source, request.kinds, request.options, request.target, edit))
    return job.generate(job.front())[1], job


@pytest.mark.sampled(9)
@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
@pytest.mark.parametrize("locs", [False, True])
@pytest.mark.parametrize(
    "sample", ["add_float16", "softmax_781", "matmul_float16", "attention_masked", "boxed_fp16", "gather"]
)
def test_a_stage_that_is_printed_and_read_unchanged_gives_the_same_code(sample, locs, target):
    case = CASES[sample]
    if target != "sm_90a" and sample == "boxed_fp16":
        pytest.skip("its tensor maps need Hopper")
    arguments = case.make(np.random.default_rng(0))
    binding, values = case.kernel.bound_call((), {**arguments, **case.options})
    kinds, _ = case.kernel.describe(binding, values)
    parsed = Target.parse(target)
    request = Request(case.kernel.source, *case.kernel._compile_arguments(binding, kinds, parsed, None), parsed)
    plain, job = llvm_text(request)
    stages = [stage for stage in job.stages if stage.name != "codegen"]
    assert len(stages) > 3
    for stage in stages:
        text, edited = llvm_text(request, StageEdit(stage.name, print_func(stage.after, locs=locs)))
        assert text == plain, stage.name
        assert [s.text for s in edited.stages] == [s.text for s in job.stages]
        assert [s.name for s in edited.stages if s.edited] == [stage.name]


def test_an_edited_stage_launches_and_the_kernel_keeps_its_own_code():
    x, y, out = numbers()
    edited = add.trace(x, y, out, 100, BLOCK=64, target="cpu").stages["pointers"]
    edited = edited.edit(subtracting(edited.text))
    edited[(2,)](x, y, out, 100, BLOCK=64)
    np.testing.assert_array_equal(out, -x)
    add[(2,)](x, y, out, 100, BLOCK=64)
    np.testing.assert_array_equal(out, 3 * x)
    edited[2](x, y, n=100, out=out)  # the constants are those of the code
    np.testing.assert_array_equal(out, -x)


@blocknb.kernel
def inverted(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) == 0, mask=at < n)


@pytest.mark.parametrize("name", ["parse", "simplify", "pointers"])
def test_a_text_has_pointers_to_bools_as_pointers_to_bytes(name):
    x, out = np.arange(100) % 3 == 0, np.zeros(100, bool)
    stage = inverted.trace(x, out, 100, BLOCK=64, target="cpu").stages[name]
    stage.edit(stage.text)[2](x, out, 100)
    np.testing.assert_array_equal(out, ~x)


def test_the_stages_before_an_edit_stay_and_the_others_are_made_from_it():
    stage = add.trace(*numbers(), 100, BLOCK=64, target="cpu").stages["simplify"]
    stages = stage.edit(subtracting(stage.text)).trace.stages
    assert [s.name for s in stages if s.edited] == ["simplify"]
    assert "the IR after this pass was edited by hand" in [note.text for note in stages["simplify"].notes]
    for name, op in (("parse", "add"), ("simplify", "sub"), ("pointers", "sub"), ("dtype_legalization", "sub")):
        assert len(re.findall(rf"= {op} .*: tile<64xf32>", stages[name].text)) == 1, name


def test_an_edit_can_be_edited_again():
    x, y, out = numbers()
    stage = add.trace(x, y, out, 100, BLOCK=64, target="cpu").stages["simplify"]
    second = stage.edit(subtracting(stage.text)).trace.stages["pointers"]
    once_more = second.edit(re.sub(r"= sub (.*f32)", r"= mul \1", second.text))
    once_more[2](x, y, out, 100)
    np.testing.assert_array_equal(out, x * y)


def test_an_edited_memory_level_stage_of_a_hopper_product_becomes_machine_code():
    trace = gemm_trace()
    stage = trace.stages["shared_memory_allocation"]
    assert stage.after.level == "memory"
    assert "wgmma" in trace.ptx
    edited = stage.edit(doubling(stage.text))
    assert edited.trace.stages["barriers"].after.level == "memory"
    assert adds(edited.trace.ptx) >= adds(trace.ptx) + 64  # of the 128 results of a thread
    assert edited.trace.artifacts["cubin"] != trace.artifacts["cubin"]
    assert edited.asm["ptx"] == edited.trace.ptx


def test_an_edited_product_launches_on_a_gpu_with_its_own_code(monkeypatch: pytest.MonkeyPatch):
    gpu = pretend(monkeypatch)
    a, b, out = (CupyArray(np.float16) for _ in "abc")
    options = {name: value for name, value in GEMM.items() if name != "target"}
    stage = product.trace(a, b, out, 64, **GEMM).stages["software_pipelining"]
    edited = stage.edit(doubling(stage.text))
    edited[1](a, b, out, 64)
    product[1](a, b, out, 64, **options)
    edited[1](a, b, out, 128)
    first, own, second = gpu.launches
    assert first.compiled is second.compiled is edited
    assert own.compiled.artifacts["cubin"] == product.trace(a, b, out, 64, **GEMM).artifacts["cubin"]
    assert first.compiled.artifacts["cubin"] != own.compiled.artifacts["cubin"]
    assert [launched.arguments["K"] for launched in (first, own, second)] == [64, 64, 128]


def test_ops_that_keep_their_ids_keep_their_source_lines():
    stage = gemm_trace().stages["software_pipelining"]
    edited = stage.edit(stage.text.replace("num_stages", "num_stages")).trace.stages["software_pipelining"]
    assert [op.loc for op in edited.after.ops()] == [op.loc for op in stage.after.ops()]
    assert any(op.loc for op in stage.after.ops())
    kept = print_func(stage.after, ids=False, locs=True)  # no ids: the text itself has the lines
    edited = stage.edit(kept).trace.stages["software_pipelining"]
    assert [op.loc for op in edited.after.ops() if op.name == "dot"] == [
        op.loc for op in stage.after.ops() if op.name == "dot"
    ]
    bare = stage.edit(print_func(stage.after, ids=False)).trace
    assert bare.ptx


# ---- caches --------------------------------------------------------------------------------------------------------------


def test_the_text_of_an_edit_is_a_part_of_both_keys():
    trace = add.trace(*numbers(), 100, BLOCK=64, target="cpu")
    text = trace.stages["simplify"].text
    request = trace.stages["simplify"].resume.args[0]  # the request of the trace
    parts = request.source, request.kinds, request.options, request.target
    edits = [None, StageEdit("simplify", text), StageEdit("parse", text), StageEdit("simplify", subtracting(text))]
    requests = [Request(*parts, edit) for edit in edits]
    assert len({made.digest for made in requests}) == len({made.key for made in requests}) == 4


def test_the_disk_keeps_edited_code_apart_and_finds_it_again():
    x, y, out = numbers()
    stage = add.trace(x, y, out, 100, BLOCK=64, target="cpu").stages["pointers"]
    text = subtracting(stage.text)
    first = stage.edit(text)
    compiler.forget()  # as in the next process
    plain = add.trace(x, y, out, 100, BLOCK=64, target="cpu")
    assert plain.from_cache
    assert not any(stage.edited for stage in plain.stages)
    again = plain.stages["pointers"].edit(text)
    assert again.trace.from_cache
    assert again.trace.artifacts == first.trace.artifacts
    assert [s.text for s in again.trace.stages] == [s.text for s in first.trace.stages]
    again[2](x, y, out, 100)
    np.testing.assert_array_equal(out, -x)


# ---- errors --------------------------------------------------------------------------------------------------------------

ERRORS = {
    "an unknown op": ("= add ", "= addd ", 7, 14, "no op is called addd", "did you mean add"),
    "an undefined value": ("%mask\n", "%maks\n", None, None, "%maks is not defined", "did you mean %mask"),
    "a type that does not follow": ("const 64 : i32", "const 64 : f32", None, None, "operands differ: i32 and f32", ""),
    "an unknown dtype": ("tile<64xf32>", "tile<64xf33>", None, None, "no dtype is called f33", "did you mean f32"),
    "another level": (") tile {", ") memory {", 1, 1, "the function is at the memory level", "write tile"),
    "a level that does not exist": (
        ") tile {",
        ") tiles {",
        1,
        None,
        "no level is called tiles",
        "the levels are tile",
    ),
    "another parameter": ("%x: ptr<f32>", "%x: ptr<f16>", 1, 1, "the parameters differ", "keep their names"),
    "an unreadable sign": ("arange 0 64", "arange 0 ? 64", None, None, "cannot read", "compare the line"),
    "a text that ends early": ("\n}\n", "\n", None, None, "the end of the text", "compare the line"),
    "a layout without a name": ("tile<64xf32>", "tile<64xf32, #a>", None, None, "no layout is called #a", "declare it"),
    "a broken type": ("tile<64xf32>", "tile<>", None, None, "not valid IR|no dtype", ""),
}


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names_line_and_column_and_shows_the_line(name):
    old, new, line, column, message, hint = ERRORS[name]
    stage = add.trace(*numbers(), 100, BLOCK=64, target="cpu").stages["parse"]
    text = re.sub(r" +// .*", "", stage.text)
    assert old in text
    text = text.replace(old, new, 1)
    with pytest.raises(EditError, match=r"^line \d+, column \d+ of the edited IR: ") as caught:
        stage.edit(text)
    error = caught.value
    assert re.search(message, error.message)
    assert hint in error.hint
    assert line in (None, error.loc.line)
    assert column in (None, error.loc.column + 1)
    shown, carets = error.loc.excerpt().split("\n")
    assert shown[4:] == text.splitlines()[error.loc.line - 1]
    assert carets.index("^") - 4 == error.loc.column
    assert str(error).count(shown) == 1


def problem(stage: Stage, text: str) -> EditError | None:
    try:
        stage.edit(text)
    except EditError as error:
        return error
    return None


def test_a_text_without_one_of_its_tokens_is_read_or_refused_with_its_place():
    stage = add.trace("*fp32:16", "*fp32:16", "*fp32:16", "i32", BLOCK=64, target="sm_90a").stages["coalesce"]
    words = [match.span() for match in re.finditer(r"[\w.%#]+|[^\w\s]", stage.text)]
    rng = np.random.default_rng(5)
    refused = 0
    for begin, end in rng.permutation(words)[:60]:
        error = problem(stage, stage.text[:begin] + stage.text[end:])
        refused += error is not None
        assert error is None or error.loc.excerpt()
    assert refused > 20


def test_an_edited_kernel_refuses_arguments_that_its_code_does_not_take():
    x, y, out = numbers()
    stage = add.trace(x, y, out, 100, BLOCK=64, target="cpu").stages["pointers"]
    edited = stage.edit(subtracting(stage.text))
    with pytest.raises(LaunchError, match=r"compiled with x = \*fp32:16, and the argument is \*fp16"):
        edited[2](x.astype(np.float16), y, out, 100)
    with pytest.raises(LaunchError, match="compiled with BLOCK = 64, and the argument is 32"):
        edited[2](x, y, out, 100, BLOCK=32)
    with pytest.raises(LaunchError, match="compiled with num_warps = None, and the argument is 8"):
        edited[2](x, y, out, 100, num_warps=8)
    with pytest.raises(LaunchError, match="the edited IR of add is for cpu"):
        edited.retarget("sm_90a")
    out.flags.writeable = False
    with pytest.raises(LaunchError, match="stores through `out`"):
        edited[2](x, y, out, 100)
    for_gpu = add.trace(x, y, out, 100, BLOCK=64, target="sm_90a").stages["pointers"]
    with pytest.raises(LaunchError, match="is for sm_90a, and the arrays lie on cpu"):
        for_gpu.edit(for_gpu.text)[2](x, y, out, 100)


def test_code_without_a_specialization_takes_more_specialized_arguments():
    x, y, out = (array[1:] for array in numbers())  # not aligned to 16 bytes
    stage = add.trace(x, y, out, 99, BLOCK=64, target="cpu").stages["pointers"]
    edited = stage.edit(subtracting(stage.text))
    x, y, out = numbers()
    edited[2](x, y, out, 96)
    np.testing.assert_array_equal(out[:96], -x[:96])
    edited[1](x, y, out, 1)
    with pytest.raises(LaunchError, match="the argument is"):
        edited[2](x, y, out, 2.0)


def test_a_failure_after_an_edit_points_at_the_edit(monkeypatch: pytest.MonkeyPatch):
    from blocknb.codegen import cpu

    stage = add.trace(*numbers(), 100, BLOCK=64, target="cpu").stages["pointers"]
    monkeypatch.setattr(cpu, "generate", lambda *args, **kwargs: {}["missing"])
    with pytest.raises(KernelError, match="the IR after pointers was edited"):
        stage.edit(subtracting(stage.text))
