"""Loop rotation: parts of later iterations move before a loop and into its earlier iterations.

Modulo scheduling gives each op a stage, the number of iterations by which it runs late. The rotated loop then has three parts. A prologue
starts the first iterations, an iteration of the loop works for several iterations of the source, and an epilogue ends the last ones. The
loop carries the values that one iteration computes for a later one (`carrying`). `LoopRotation` is the common frame of the passes that do
this. Each pass says what moves. Source: Lam, "Software Pipelining" (PLDI 1988).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Generic, TypeVar

from blocknb.analysis.affine import Facts
from blocknb.ir.build import Rebuild, emit_copy
from blocknb.ir.core import Func, Op, Value

Plan = TypeVar("Plan")


class LoopRebuild(Rebuild):
    """Rebuilds a function, with loops that carry more values."""

    def __init__(self, func: Func, facts: Facts):
        super().__init__(func, lambda op, _: self.visit_op(op))
        self.facts = facts

    def visit_op(self, op: Op) -> object:
        """Emits what replaces an op, as the `visit` of a `Rebuild` does."""
        raise NotImplementedError

    def carrying(self, loop: Op, init: Sequence[Value], body: Callable[[list[Value]], Sequence[Value]]) -> Op:
        """The loop with additional carried values, which `init` starts. `body` emits an iteration without its `yield`, for the carried
        values at its beginning, and returns those at its end. The results of the loop keep their order."""
        (block,), inner = loop.blocks, [Value(x.type, x.name) for x in init]
        with self.builder.block((*block.args, *inner)) as opened:
            following, end = body(inner), block.terminator
            self.builder.append(end.replace(args=(*map(self.get, end.args), *following)))
        outer = (Value(x.type) for x in inner)
        return loop.replace(args=(*loop.args, *init), results=(*loop.results, *outer), blocks=(opened.done,))

    def copies(self, ops: Sequence[Op], known: Mapping[Value, Value]) -> MutableMapping[Value, Value]:
        """Emits copies of ops of a loop for another iteration; `known` holds that iteration's values. Returns these with the results."""
        found = ChainMap(dict(known), self.mapping)
        for op in ops:
            emit_copy(op, self.builder, found)
        return found

    def after_products(self, loop: Op, products: Sequence[Op]) -> list[Value]:
        """Emits the wait for products that outlast an iteration; returns the values that replace the loop's results."""
        end = loop.blocks[0].terminator
        sums = [loop.results[end.args.index(x.result)] for x in products]
        waited = dict(zip(sums, self.builder.op("dot_wait", *sums).results, strict=True)) if sums else {}
        return [waited.get(value, value) for value in loop.results]


class LoopRotation(LoopRebuild, Generic[Plan]):
    """Rotates each loop that has a plan. `plans`: by the id of the loop."""

    def __init__(self, func: Func, plans: Mapping[int, Plan], facts: Facts):
        super().__init__(func, facts)
        self.plans = plans

    def visit_op(self, op: Op) -> object:
        """Rotates a loop with a plan, and keeps any other op."""
        return NotImplemented if (plan := self.plans.get(op.id)) is None else self.rotate(op, plan)

    def rotate(self, loop: Op, plan: Plan) -> Sequence[Value]:
        """Emits the prologue, the loop and the epilogue; returns the values that replace the results."""
        raise NotImplementedError
