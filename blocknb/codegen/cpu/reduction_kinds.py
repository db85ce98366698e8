"""Recognises the combine functions of reductions, and finds their identities."""

from __future__ import annotations

import math

from blocknb.analysis.ranges import limits
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.scalar_math.register_types import NARROW
from blocknb.ir.core import Op
from blocknb.language.ops import OPS
from blocknb.language.types import DType

#: The combine block of argmax and argmin (`frontend.numeric`), arguments 0 to 3, each op with the numbers of its operands.
INTEGER_WINS = (
    "cmp better 0 2", "cmp eq 0 2", "cmp lt 1 3", "and  5 6", "or  4 7", "select  8 0 2", "select  8 1 3", "yield  9 10",
)  # fmt: skip
FLOAT_WINS = (
    "cmp better 0 2", "cmp eq 0 2", "cmp ne 2 2", "cmp eq 0 0", "and  6 7", "or  4 8", "or  5 6", "cmp lt 1 3", "and  10 11",
    "or  9 12", "select  13 0 2", "select  13 1 3", "yield  14 15",
)  # fmt: skip


def plain_combine(op: Op) -> Op | None:
    """The operation of a combine block that has only one, such as (a, b) -> a + b; else None."""
    block = op.blocks[0]
    if len(op.args) != 1 or len(block.ops) != 2:
        return None
    inner, end = block.ops
    if end.args != inner.results or set(inner.args) != set(block.args):
        return None
    return inner if OPS[inner.name].has("associative") else None


def identity_of_places(op: Op) -> tuple[float | int, int] | None:
    """The identity of argmax or argmin with ties broken to the left, as (value, place); None for other combine blocks.

    It is the worst value at the last place. The worst float is a NaN.
    """
    block = op.blocks[0]
    if len(op.args) != 2 or block.ops[0].name != "cmp":
        return None
    numbers = {value: i for i, value in enumerate(block.args)}
    steps = []
    for inner in block.ops:
        steps.append(" ".join([inner.name, inner.attrs.get("pred", ""), *(str(numbers.get(a)) for a in inner.args)]))
        numbers.update({result: len(numbers) for result in inner.results})
    (value, place), predicate = (v.type.dtype for v in op.args), block.ops[0].attrs["pred"]
    wins = FLOAT_WINS if value.is_float else INTEGER_WINS
    if (
        place.kind != "int"
        or predicate not in ("gt", "lt")
        or steps != [step.replace("better", predicate) for step in wins]
    ):
        return None
    worst = math.nan if value.is_float else limits(value)[predicate == "lt"]
    return worst, (1 << place.bits - 1) - 1


def identity_of(op: Op, dtype: DType) -> float | int | None:
    """The identity of a plain combination, None if it has none."""
    nan = op.attrs.get("nan")
    low, high = limits(dtype)
    match op.name:
        case "add":
            return -0.0 if dtype.is_float else 0
        case "mul":
            return 1
        case "or" | "xor":
            return 0
        case "and":
            return True if dtype.bits == 1 else -1
        case "max" | "min" if dtype.is_float:
            # If NaNs lose, a NaN is the identity, and a row of NaNs gives a NaN.
            return math.nan if not nan else -math.inf if op.name == "max" else math.inf
        case "max" | "min":
            return low if op.name == "max" else high
    return None


class ReductionKind:
    """Facts about a reduce op.

    `loop` is the reduced loop, None for an axis of size one. `start` is the identity of a plain combination, and `places` that of argmax
    and argmin. `wide`: sums of fp16 or bf16 accumulate in fp32.
    """

    def __init__(self, op: Op):
        self.op, self.plain = op, plain_combine(op)
        self.dtypes = [v.type.dtype for v in op.args]
        self.loop = identity(op.args[0].type.shape)[op.attrs["axis"]]
        self.start = identity_of(self.plain, self.dtypes[0]) if self.plain else None
        self.wide = self.plain is not None and self.plain.name == "add" and self.dtypes[0].name in NARROW
        self.places = identity_of_places(op)

    def inner(self, axis: int | None) -> bool:
        """Whether it reduces along the vector loop `axis`."""
        return self.loop is not None and self.loop == axis

    def can_unroll(self, axis: int | None) -> bool:
        """Whether several accumulators along the vector loop can be combined in the end."""
        return self.start is not None or self.places is not None or not self.inner(axis)

    def is_float_extremum(self) -> bool:
        """Whether it is a maximum or minimum of floats in which NaNs lose."""
        plain = self.plain
        if plain is None or plain.name not in ("max", "min"):
            return False
        return self.dtypes[0].is_float and not plain.attrs.get("nan")
