"""Operand prefetch for an operand A that wgmma reads from registers because it is contiguous along M, and its synchronization."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import simt
from kernels import CASES
from kernels.base import Case, copied, parameters

import blocknb
import blocknb.language as bl
from blocknb.codegen import gpu
from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Func, Op, walk
from blocknb.ir.verify import verify
from blocknb.target import Target

NAMES = ("gemm_fp32_nn", "gemm_fp32_tt")


def lowered(name, k=None, **options):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(0))
    if k is not None:  # the same number of columns of a and rows of b
        arguments["k"] = k
    func, stages = case.lower(arguments, "sm_90a", **options)
    return func, {stage.name: [note.text for note in stage.notes] for stage in stages}, arguments


def product_of(func: Func) -> list[Op]:
    """The ops of the body of the loop with products."""
    (roles,) = (op for op in func.body.ops if op.name == "roles")
    loops = (op for op in walk(roles.blocks[0]) if op.name == "for")
    return next(list(op.blocks[0].ops) for op in loops if any(x.name == "dot" for x in op.blocks[0].ops))


def edited(func: Func, change) -> Func:
    def block(old: Block) -> Block:
        new = [change(op.replace(blocks=tuple(map(block, op.blocks))) if op.blocks else op) for op in old.ops]
        return Block(old.args, tuple(op for op in new if op is not None))

    return func.replace(body=block(func.body))


@pytest.mark.parametrize("name", NAMES)
def test_operand_a_is_copied_by_tma_and_read_during_the_previous_product(name):
    func, notes, _ = lowered(name)
    verify(func)
    assert sum("copied by TMA, by the producer warp" in text for text in notes["warp_specialization"]) == 2
    assert "operand a: read into registers an iteration ahead, while a product runs" in notes["mma_softmax_overlap"]
    body = product_of(func)
    order = [op.name for op in body if op.name in ("dot", "if", "dot_wait", "arrive")]
    assert order == ["dot", "if", "dot_wait", "arrive"]
    (reading,) = (op for op in body if op.name == "if")
    assert [op.name for op in reading.blocks[0].ops][:3] == ["await", "stage", "local_load"]


@pytest.mark.sampled(4, each=["options", "k", "name"])
@pytest.mark.parametrize(
    "options",
    [{}, {"without": ("mma_softmax_overlap",)}, {"num_stages": 1}, {"without": ("warp_specialization",)}],
    ids=str,
)
@pytest.mark.parametrize("k", [None, 0, 32])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_iterations_gives_right_results(name, k, options):
    case = CASES[name]
    func, notes, arguments = lowered(name, k, **options)
    messages = notes.get("mma_softmax_overlap", ())
    assert any("an iteration ahead" in text for text in messages) == (
        not options
    )  # a single stage is never released in time
    transposed = case.reference({**arguments, "a": arguments["a"][:k] if name.endswith("tt") else arguments["a"][:, :k],
                             "b": arguments["b"][:, :k] if name.endswith("tt") else arguments["b"][:k]})  # fmt: skip
    got = {key: copied(value) for key, value in arguments.items()}
    case_of(case, transposed).interpret(func, got)


def case_of(case, expected):
    """The case with this expected result."""
    from dataclasses import replace

    return replace(case, reference=lambda arguments: expected)


def test_generated_code_gives_the_same_results():
    case = CASES["gemm_fp32_nn"]
    func, _, arguments = lowered("gemm_fp32_nn", num_stages=3)
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), case.grid)
    case.check(arguments, got)


def test_removing_the_wait_of_the_prefetch_is_detected():
    func, _, arguments = lowered("gemm_fp32_nn")
    (reading,) = (op for op in product_of(func) if op.name == "if")
    awaited = reading.blocks[0].ops[0].id
    with pytest.raises(CompilerBug, match="copy"):
        CASES["gemm_fp32_nn"].interpret(edited(func, lambda op: None if op.id == awaited else op), arguments)


def test_transposed_result_is_stored_in_rows_by_tma():
    _, notes, _ = lowered("gemm_fp32_nn")
    assert notes["epilogue_subtiling"] == [
        "store: in 4 parts of 32x128, through 16384 bytes of shared memory, all warps together"
    ]
    assert notes["tma_store"] == ["store: by TMA from one of 2 buffers of 16384 bytes, 128-byte swizzle"]


@blocknb.kernel
def backwards(a, b, c, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """c = a^T b^T, with a loop from the end of K to its beginning."""
    left = bl.make_tensor_descriptor(a, [k, BM], [BM, 1], [BK, BM])
    right = bl.make_tensor_descriptor(b, [BN, k], [k, 1], [BN, BK])
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(k - BK, -1, -BK):
        total = bl.dot(left.load([start, 0]).T, right.load([0, start]).T, total)
    bl.store(c + bl.arange(0, BM)[:, None] * BN + bl.arange(0, BN)[None, :], total)


def test_backward_loop_has_no_operand_prefetch():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((96, 64), (32, 96)))
    expected = {"c": a.T.astype(float) @ b.T.astype(float)}
    case = Case("backwards", backwards, dict, lambda _: expected, rtol=5e-3, atol=5e-2)
    arguments = {"a": a, "b": b, "c": np.full((64, 32), np.nan, np.float32), "k": 96, "BM": 64, "BN": 32, "BK": 32}
    func, stages = case.lower(arguments, "sm_90a", num_warps=4)
    assert any(op.attrs.get("permuted_rows") for op in func.ops()) and any(op.name == "copy_bulk" for op in func.ops())
    assert not any(stage.notes for stage in stages if stage.name == "mma_softmax_overlap")
    case.interpret(func, arguments)
