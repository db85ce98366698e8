"""Calls of helpers for the random block programs of `generator`: with several results, with constants, with returns under a branch."""

from __future__ import annotations

import math
from dataclasses import replace

from blocknb.language import types as t
from fuzz.writer import Refused, Var, Writer, int_bound


class Calls(Writer):
    """Statements that call helpers."""

    def call(self) -> None:
        rng = self.rng
        name = rng.choice(["both", "crossed", "either", "least", "mixed", "climbed"])
        x = self.pick(lambda v: v.dtype.bits > 1 and v.name != "pid" and (name != "least" or not v.shape))
        like = [v for v in self.visible() if (v.dtype, v.shape) == (x.dtype, x.shape) and v.name != "pid"]
        y = rng.choice(like)
        match name:
            case "both":
                sums = [self.named(self.sum(x, y)) for _ in range(2)]
                self.line(f"{sums[0].name}, {sums[1].name} = both({x.name}, {y.name})")
                self.scopes[-1] += sums
            case "crossed":
                sums = [self.named(self.sum(x, y)) for _ in range(2)]
                pair, same = self.fresh("t"), self.named(x)
                self.line(f"{pair}, {same.name} = crossed({x.name}, y={y.name})")
                self.line(f"{sums[0].name}, {sums[1].name} = {pair}")
                self.scopes[-1] += [*sums, same]
            case "either":
                first = rng.random() < 0.5
                made = self.named(x if first else y)
                self.line(f"{made.name} = either({x.name}, {y.name}, {first})")
                self.keep(made)
            case "least":
                if not (x.exact and y.exact):
                    raise Refused
                whole, bound = x.whole and y.whole, max(x.bound, y.bound)
                if bound == math.inf and x.dtype.is_float:
                    raise Refused  # a NaN
                made = self.named(replace(x, bound=bound, whole=whole, nonnegative=x.nonnegative and y.nonnegative))
                self.line(f"{made.name} = least({x.name}, {y.name})")
                self.keep(made)
            case _:
                if x.dtype.is_float or x.dtype.bits < 32 or (name == "climbed" and x.dtype != t.int32):
                    raise Refused
                count = rng.randint(0, 3)
                text = f"{name}({x.name}, {count if name == 'mixed' else self.maybe_number(count)})"
                self.define(text, dtype=x.dtype, shape=x.shape, bound=int_bound(x.dtype, math.inf))

    def named(self, like: Var) -> Var:
        return replace(like, name=self.fresh())

    def sum(self, x: Var, y: Var) -> Var:
        """The bounds of x + y and of x - y."""
        if x.dtype.is_float:
            facts = self.rounded(x.dtype, x.bound + y.bound, x.error + y.error, x.whole and y.whole)
            return Var("", shape=x.shape, **facts)
        bound = x.bound + y.bound if x.dtype.kind == "int" else math.inf
        return Var("", x.dtype, x.shape, int_bound(x.dtype, bound))
