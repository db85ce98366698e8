"""Every pass keeps the meaning of a kernel, as the interpreter checks at all three levels of the IR."""

from __future__ import annotations

import numpy as np
import pytest
import seeds
from kernels import CASES, quick
from sampling import chosen
from support import UNPLACED

from blocknb import passes
from blocknb.errors import CompilerBug
from blocknb.ir.core import Block, Func
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.target import Target

TARGETS = ("sm_90a", "sm_75", "cpu:x86-64")


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if quick.interpreted(name) else pytest.mark.full) for name in CASES]
)
def test_the_interpreter_agrees_before_and_after_every_pass(name, request):
    """For every target. IR that two targets share is interpreted once.

    A quick run takes about a sixth of the kernels (see `quick`). It interprets the IR after the last pass and after one in four of
    the other passes, chosen by the names of kernel and pass; --full interprets it after each pass.
    """
    one_in = 1 if request.config.getoption("--full") else 4
    case = CASES[name]
    arguments = case.make(seeds.rng())
    func, seen = case.parse(arguments), set()
    for target in TARGETS:
        _, stages = passes.run(func, Target.parse(target))
        changed = [s for s in reversed(stages) if s.after is not s.before or s.name == "barriers"]
        picked = [*changed[:1], *(s for s in changed[1:] if chosen(f"{name}/{s.name}", one_in))]
        for after, done in [(func, "parse"), *((stage.after, stage.name) for stage in picked)]:
            key = print_func(after), done in UNPLACED
            if key in seen:
                continue
            seen.add(key)
            verify(after)
            try:
                case.interpret(after, arguments, implicit_barriers=done in UNPLACED)
            except AssertionError as error:
                raise AssertionError(f"after {done} for {target}: {error}") from error


@pytest.mark.sampled(27)
@pytest.mark.parametrize("name", CASES)
def test_checked_mode_changes_no_result(name):
    case = CASES[name]
    arguments = case.make(seeds.rng())
    _, stages = case.lower(arguments, "sm_90a", checked=True)
    added = next(stage for stage in stages if stage.name == "bounds_checks")
    for stage in (added, stages[-1]):
        verify(stage.after)
        text = print_func(stage.after)
        assert print_func(parse_func(text)) == text
        case.interpret(stage.after, arguments)


@pytest.mark.parametrize(
    "name", ["softmax_781", "matmul_float16", "matmul_ieee", "attention", "reductions_64x32_float32"]
)
def test_removing_any_one_barrier_or_wait_is_noticed(name):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(5))
    func, _ = case.lower(arguments, "sm_90a")
    needed = [op.id for op in func.ops() if op.name in ("barrier", "wait", "commit")]
    options = {"ctas": 1} if func.attrs.get("persistent") else {}
    assert needed
    for removed in needed:
        with pytest.raises((CompilerBug, AssertionError)):
            for seed in range(4):
                case.interpret(without(func, removed), arguments, seed=seed, **options)


ROLES = ("await", "arrive", "expect", "copy_bulk", "dot_wait", "store_wait", "fence", "barrier")


def test_removing_any_op_by_which_roles_wait_for_each_other_is_noticed():
    """With two stages a ring and one CTA, so that all of them are used again."""
    case = CASES["wgmma_attention"]
    arguments = case.make(np.random.default_rng(5))
    func, _ = case.lower(arguments, "sm_90a", num_stages=2)
    case.interpret(func, arguments, ctas=1)
    needed = [op.id for op in func.ops() if op.name in ROLES]
    assert set(ROLES) <= {op.name for op in func.ops()}
    for removed in needed:
        less = without(func, removed)
        with pytest.raises((CompilerBug, AssertionError)):
            verify(less)  # it notices who uses a product that is under way; the rest is noticed when it runs
            for seed in range(3):
                case.interpret(less, arguments, seed=seed, ctas=1)


def without(func: Func, id: int) -> Func:
    """The function without the op of that id, whose results are then its arguments."""
    (removed,) = (op for op in func.ops() if op.id == id)
    instead = dict(zip(removed.results, removed.args, strict=bool(removed.results)))

    def strip(block: Block) -> Block:
        kept = [
            op.replace(args=tuple(instead.get(a, a) for a in op.args), blocks=tuple(map(strip, op.blocks)))
            for op in block.ops
            if op.id != id
        ]
        return Block(block.args, tuple(kept))

    return func.replace(body=strip(func.body))
