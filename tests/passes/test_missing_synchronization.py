"""Every op that orders accesses in a finished warp-specialized kernel is necessary: removing any one is detected.

The interpreter detects it, or the `simt` simulator does, which distinguishes lanes where the interpreter runs a warp in lockstep. The
loops are long enough to refill every stage of a circular buffer, in a program or in the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from fuzz import reports
from kernels.attention import forward_case, gradient_case
from kernels.base import CASES, Case, copied
from kernels.hopper import boxed_case

from blocknb.ir.build import rebuild
from blocknb.ir.core import Func, Op
from blocknb.ir.text import print_op
from blocknb.kernels.attention_gradients import gradients_kernel, query_gradients_kernel

ORDERED = (
    "barrier", "warp_barrier", "await", "arrive", "expect", "fence", "store_wait", "dot_wait", "wait", "copy_bulk", "store_bulk",
)  # fmt: skip
Change = Callable[[Op], Op | tuple]


@dataclass(frozen=True)
class Mutant:
    """A change of one op of a function."""

    op: Op
    what: str
    change: Change

    def of(self, func: Func) -> Func:
        def visit(op: Op, walk) -> object:
            if op.id != self.op.id:
                return NotImplemented
            made = self.change(op.replace(args=tuple(map(walk.get, op.args))))
            if isinstance(made, tuple):
                return made
            walk.builder.append(made)
            return op.results

        return rebuild(func, visit, "mutant")


def attributes(**more: Callable[[Op], int]) -> Change:
    return lambda op: op.replace(attrs={**op.attrs, **{name: find(op) for name, find in more.items()}})


def mutants(func: Func) -> Iterator[Mutant]:
    for op in func.ops():
        if op.name in ORDERED:
            yield Mutant(op, "dropped", lambda op: op.args if op.results else ())
        if op.name in ("dot_wait", "store_wait", "wait"):
            yield Mutant(op, "one more pending", attributes(in_flight=lambda op: op.attrs.get("in_flight", 0) + 1))
        if op.name == "mbarriers":
            yield Mutant(op, "an arrival more", attributes(arrivals=lambda op: op.attrs["arrivals"] + 1))
            if op.attrs["arrivals"] > 1:
                yield Mutant(op, "an arrival less", attributes(arrivals=lambda op: op.attrs["arrivals"] - 1))
        if op.name == "expect":
            yield Mutant(op, "bytes less", attributes(bytes=lambda op: op.attrs["bytes"] - 16))
        if op.name == "barrier":
            yield Mutant(op, "of warps", lambda op: op.replace(name="warp_barrier"))


def survives(case: Case, arguments: dict, func: Func) -> bool:
    """Whether a mutant gives right results without an error."""
    try:
        for seed in range(3):
            case.interpret(func, arguments, seed=seed, **({"ctas": 1} if func.attrs.get("persistent") else {}))
        got = {name: copied(value) for name, value in arguments.items()}
        reports.run(func, got, case.grid)
        case.check(arguments, got)
    except Exception:  # of any kind: CompilerBug, Race, AssertionError, an instruction that cannot run
        return False
    return True


def survivors(case: Case, only: str = "") -> list[str]:
    """The undetected mutants (`only` of one kind)."""
    arguments = case.make(np.random.default_rng(0))
    func, _ = case.lower(arguments, "sm_90a")
    assert any(op.name == "roles" for op in func.ops())
    assert survives(case, arguments, func)
    found = [mutant for mutant in mutants(func) if mutant.what.startswith(only)]
    assert len(found) > 12
    return [f"{m.what}: {print_op(func, m.op)}" for m in found if survives(case, arguments, m.of(func))]


def own(make: Callable, name: str, *args, **options) -> Case:
    """A case of this test only."""
    make(name, *args, **options)
    (found,) = (key for key in CASES if key.endswith(name))
    return replace(CASES.pop(found), name=name)


TURNS = own(boxed_case, "lost_in_turns", np.float16, 128, 128, 80, (64, 32, 16), 4e-3, num_stages=2, num_warps=4)
CONSUMERS = own(
    boxed_case, "lost_of_consumers", np.float16, 512, 64, 48, (256, 32, 16), 4e-3, num_stages=2, num_warps=8
)
EIGHT = own(boxed_case, "lost_of_eight", np.float32, 128, 128, 48, (128, 32, 32), 4e-3, num_stages=1, num_warps=8)
WIDE = own(boxed_case, "lost_of_wide", np.float16, 136, 272, 160, (64, 256, 32), 4e-3, num_stages=2, num_warps=4)
FORWARD = own(forward_case, "lost_forward", np.float16, 4, 1, 64, 192, 32, 32, 64, 32, num_warps=4, num_stages=2)
KEYS = own(
    gradient_case, "lost_keys", gradients_kernel, ("dk", "dv"), (4, 1, 1), np.float16, 2, 1, 160, 256, 48, 64, 32, 64, None,
    num_warps=4, num_stages=2,
)  # fmt: skip
QUERIES = own(
    gradient_case, "lost_queries", query_gradients_kernel, ("dq",), (4, 1, 1), np.float16, 1, 1, 256, 160, 48, 64, 64, 32, None,
    num_warps=4, num_stages=2,
)  # fmt: skip


def test_removing_any_synchronization_is_detected() -> None:
    assert not survivors(TURNS, "dropped")


@pytest.mark.full
@pytest.mark.parametrize("case", [TURNS, CONSUMERS, EIGHT, WIDE, FORWARD], ids=lambda case: case.name)
def test_changing_any_synchronization_is_detected(case: Case) -> None:
    assert not survivors(case)


@pytest.mark.full
@pytest.mark.parametrize("case", [KEYS, QUERIES], ids=lambda case: case.name)
def test_attention_gradients_have_only_redundant_waits_for_empty_slots(case: Case) -> None:
    """The producer waits first for the circular buffer that consumers release last, which implies the other waits."""
    assert all(text.startswith("dropped: await %empty") for text in survivors(case))
