"""Scans, sorts, gathers and atomics for the random block programs of `generator`."""

from __future__ import annotations

import math
from dataclasses import replace

from blocknb.language import types as t
from fuzz.program import Array
from fuzz.writer import Refused, Var, Writer, epsilon, int_bound


class Moves(Writer):
    """Statements that move elements along an axis, or add them up in memory."""

    def scan(self) -> None:
        """A cumulative sum; of floats only if it is exact."""
        x = self.pick(lambda v: bool(v.shape) and v.dtype.bits > 1 and v.bound < math.inf)
        axis, reverse = self.rng.randrange(len(x.shape)), self.rng.random() < 0.3
        n, text = x.shape[axis], f"bl.cumsum({x.name}, axis={axis}{', reverse=True' if reverse else ''})"
        if x.dtype.is_float:
            dtype = t.float32 if x.dtype == t.bfloat16 else x.dtype
            facts = self.rounded(dtype, x.bound * n, n * x.error, x.whole)
            if facts["error"]:
                facts["error"] += 16 * epsilon(dtype) * facts["bound"]
            self.define(text, shape=x.shape, **facts)
            return
        dtype = x.dtype if x.dtype.bits >= 32 else t.uint32 if x.dtype.kind == "uint" else t.int32
        self.define(text, dtype=dtype, shape=x.shape, bound=int_bound(dtype, x.bound * n))

    def rearrange(self) -> None:
        """The same elements in another order along an axis, or some of them several times."""
        rng = self.rng
        x = self.pick(lambda v: bool(v.shape))
        axis = rng.randrange(len(x.shape))
        match rng.choice(["flip", "gather", "gather", "sort", "interleave"]):
            case "flip":
                self.same(x, f"bl.flip({x.name}, {axis})")
            case "gather":
                index, text = self.fitting(x.shape, lambda v: v.dtype in (t.int32, t.int64))
                if text != index.name or index.shape != x.shape:
                    text = f"bl.broadcast_to({text}, {x.shape})"
                self.same(x, f"bl.gather({x.name}, {text} & {x.shape[axis] - 1}, {axis})")
            case "sort":
                if not x.exact or x.bound == math.inf or x.shape[-1] > 32 or x.dtype.bits == 1:
                    raise Refused
                self.same(x, f"bl.sort({x.name}{', descending=True' if rng.random() < 0.3 else ''})")
            case _:
                y = self.pick(lambda v: (v.dtype, v.shape) == (x.dtype, x.shape))
                shape = (*x.shape[:-1], 2 * x.shape[-1])
                if math.prod(shape) > 4096:
                    raise Refused
                both = replace(
                    x, shape=shape, bound=max(x.bound, y.bound), error=max(x.error, y.error), whole=x.whole and y.whole,
                    nonnegative=x.nonnegative and y.nonnegative,
                )  # fmt: skip
                self.same(both, f"bl.interleave({x.name}, {y.name})")

    def same(self, like: Var, text: str) -> None:
        """A new name for an expression with the same bounds as another one."""
        made = replace(like, name=self.fresh())
        self.line(f"{made.name} = {text}")
        self.keep(made)

    def atomic(self) -> None:
        """An atomic update at indices that may repeat. If they do not repeat, the old values are determined."""
        rng = self.rng
        x = self.pick(lambda v: v.dtype in (t.int32, t.int64, t.uint32, t.uint64) and v.name != "pid")
        kind = rng.choice(["add", "add", "max", "min", "and", "or", "xor"])
        name = self.fresh("sum")
        if not x.shape:
            self.arrays[name] = Array(name, x.dtype, self.grid, "whole")
            text = f"bl.atomic_{kind}({name} + pid, {x.name})"
            known = rng.random() < 0.5
        else:
            apart = rng.random() < 0.5
            known = apart and self.grid == 1 and rng.random() < 0.7
            kind = "xchg" if known and rng.random() < 0.2 else kind
            offsets, _, reach = self.offsets(x.shape, injective=apart)
            mask = self.mask(x.shape)
            self.arrays[name] = Array(name, x.dtype, reach, "whole")
            text = f"bl.atomic_{kind}({name} + {offsets}, {x.name}{f', mask={mask}' if mask else ''})"
        if not known:
            self.line(text)
            return
        self.define(text, dtype=x.dtype, shape=x.shape, bound=int_bound(x.dtype, math.inf))
