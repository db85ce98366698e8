"""Generates random tile-IR functions with exact arithmetic, so that any two correct implementations agree to the bit.

Where the order of a sum is unspecified, floats hold bounded integers; elsewhere IEEE arithmetic determines the result. Nothing is
undefined: divisors are nonzero, shifts are in range, casts fit. A value may be stored, carried by a loop, selected by a branch, reduced,
transposed, or used as an index.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.types import DType, Pointer, Tile

SHAPES = ((8,), (64,), (4, 16), (32, 8), (2, 4, 8), (1, 16), (16, 1), (128,))
DTYPES = (
    t.float32,
    t.float32,
    t.float64,
    t.float16,
    t.bfloat16,
    t.int32,
    t.int32,
    t.int64,
    t.int8,
    t.uint8,
    t.uint32,
    t.int16,
)
INPUT, OUTPUT = 1 << 15, 1 << 16
DIGITS = {"fp16": 11, "bf16": 8, "fp32": 24, "fp64": 53}


@dataclass(frozen=True)
class Known:
    """A value and its bounds: `whole` numbers of at most `bound` in magnitude (floats only)."""

    value: Value
    whole: bool = False
    bound: float = float("inf")


class Generator:
    """Builds one function from the choices of `rng`."""

    def __init__(self, rng: random.Random):
        self.rng, self.b = rng, Builder("parse")
        self.inputs = {d: Value(Tile(Pointer(d)), f"in_{d.short}") for d in dict.fromkeys(DTYPES)}
        self.outputs = {d: Value(Tile(Pointer(d)), f"out_{d.short}") for d in dict.fromkeys(DTYPES)}
        self.n = Value(Tile(t.int32), "n")
        self.stored = dict.fromkeys(self.outputs, 0)
        self.pid = self.b.value("program_id", axis=0)
        self.pools: list[list[Known]] = [[]]

    def function(self) -> Func:
        for _ in range(self.rng.randint(1, 3)):
            self.load()
        self.steps(self.rng.randint(3, 14), 0)
        for known in self.rng.sample(self.visible(), min(4, len(self.visible()))):
            self.store(known)
        params = (*self.inputs.values(), *self.outputs.values(), self.n)
        hints = tuple(Hint(p.name) for p in params)
        return Func("random", params, Block((), self.b.finish()), hints=hints)

    def arguments(self, seed: int) -> list:
        rng = np.random.default_rng(seed)
        ins = []
        for d in self.inputs:
            low = -6 if d.is_float or d.is_signed else 0
            ins.append(rng.integers(low, 7, INPUT).astype(d.numpy))
        outs = [np.zeros(OUTPUT, d.numpy) for d in self.outputs]
        return [*ins, *outs, int(rng.integers(1, 200))]

    # -- choices -------------------------------------------------------------------------------------------------------

    def visible(self) -> list[Known]:
        return [k for pool in self.pools for k in pool]

    def keep(self, value: Value, whole: bool = False, bound: float = float("inf")) -> Known:
        known = Known(value, whole, bound)
        self.pools[-1].append(known)
        return known

    def pick(self, accept=lambda k: True) -> Known | None:
        found = [k for k in self.visible() if accept(k)]
        return self.rng.choice(found[-6:] if self.rng.random() < 0.6 else found) if found else None

    def const(self, value, dtype: DType) -> Value:
        return self.b.const(value, dtype)

    def steps(self, count: int, depth: int) -> None:
        simple = [
            self.load,
            self.binary,
            self.binary,
            self.unary,
            self.compare,
            self.select,
            self.cast,
            self.bitcast,
            self.reduce,
            self.view,
            self.broadcast,
            self.argmax,
            self.store_some,
            self.dot,
        ]
        nested = [self.loop, self.branch, self.repeat]
        for _ in range(count):
            if depth < 2 and self.rng.random() < 0.15:
                self.rng.choice(nested)(depth + 1)
            else:
                self.rng.choice(simple)()

    # -- memory --------------------------------------------------------------------------------------------------------

    def offsets(self, shape: tuple[int, ...]) -> Value:
        """Offsets below 32768: rows and columns in some order, or wrapped around."""
        b, rng = self.b, self.rng
        strides, step = [0] * len(shape), rng.choice([1, 1, 1, 2])
        for axis in rng.sample(range(len(shape)), len(shape)) if rng.random() < 0.4 else reversed(range(len(shape))):
            strides[axis] = step
            step *= shape[axis]
        start = b.value("mul", self.pid, self.const(rng.choice([0, 1, 64]), t.int32))
        total = None
        for axis, (n, stride) in enumerate(zip(shape, strides, strict=True)):
            index = b.value("arange", start=0, end=n)
            if axis == 0:
                index = b.value("add", b.value("splat", start, shape=(n,)), index)
            if rng.random() < 0.15:
                index = b.value(
                    "rem", index, b.value("splat", b.value("add", self.n, self.const(1, t.int32)), shape=(n,))
                )
            index = b.value("mul", index, b.const(stride, Tile(t.int32, (n,))))
            for other in range(len(shape)):
                if other != axis:
                    index = b.value("expand_dims", index, axis=0 if other < axis else len(index.type.shape))
            index = b.value("broadcast", index, shape=shape)
            total = index if total is None else b.value("add", total, index)
        return total

    def mask(self, shape: tuple[int, ...]) -> Value | None:
        b, rng = self.b, self.rng
        if rng.random() < 0.3:
            return None
        axis = rng.randrange(len(shape))
        index = b.value("arange", start=0, end=shape[axis])
        limit = b.value(
            "splat",
            self.n if rng.random() < 0.5 else self.const(rng.randint(0, shape[axis]), t.int32),
            shape=(shape[axis],),
        )
        mask = b.value("cmp", index, limit, pred=rng.choice(["lt", "lt", "le", "ge", "ne"]))
        for other in range(len(shape)):
            if other != axis:
                mask = b.value("expand_dims", mask, axis=0 if other < axis else len(mask.type.shape))
        return b.value("broadcast", mask, shape=shape)

    def load(self) -> None:
        b, rng = self.b, self.rng
        dtype, shape = rng.choice(DTYPES), rng.choice(SHAPES)
        offsets = self.offsets(shape)
        gathered = (
            self.pick(lambda k: k.value.type.shape == shape and k.value.type.dtype == t.int32)
            if rng.random() < 0.3
            else None
        )
        if gathered is not None:
            offsets = b.value("and", gathered.value, b.const(INPUT - 1, Tile(t.int32, shape)))
        pointers = b.value("ptradd", b.value("splat", self.inputs[dtype], shape=shape), offsets)
        mask = self.mask(shape)
        args = [] if mask is None else [mask] if rng.random() < 0.5 else [mask, b.const(3, Tile(dtype, shape))]
        self.keep(b.value("load", pointers, *args), dtype.is_float, 6)

    def store_some(self) -> None:
        if (known := self.pick()) is not None:
            self.store(known)

    def store(self, known: Known) -> None:
        b, value = self.b, known.value
        if value.type.dtype.bits == 1:
            value = b.value("cast", value, dtype=t.int32)
        dtype, shape = value.type.dtype, value.type.shape
        region = self.stored[dtype]
        if region >= 40:
            return
        self.stored[dtype] += 1
        base = b.value(
            "add", b.value("mul", self.pid, self.const(OUTPUT // 4, t.int32)), self.const(region * 300, t.int32)
        )
        pointer = b.value("ptradd", self.outputs[dtype], base)
        if not shape:
            b.op("store", pointer, value)
            return
        n = int(np.prod(shape))
        flat = (
            b.value("reshape", b.value("arange", start=0, end=n), shape=shape)
            if self.rng.random() < 0.3
            else self._plain(shape)
        )
        if n > 300:
            return
        pointers = b.value("ptradd", b.value("splat", pointer, shape=shape), flat)
        mask = self.mask(shape)
        b.op("store", pointers, value, *([] if mask is None else [mask]))

    def _plain(self, shape: tuple[int, ...]) -> Value:
        b, step, total = self.b, 1, None
        for axis in reversed(range(len(shape))):
            index = b.value(
                "mul", b.value("arange", start=0, end=shape[axis]), b.const(step, Tile(t.int32, (shape[axis],)))
            )
            for other in range(len(shape)):
                if other != axis:
                    index = b.value("expand_dims", index, axis=0 if other < axis else len(index.type.shape))
            index = b.value("broadcast", index, shape=shape)
            total = index if total is None else b.value("add", total, index)
            step *= shape[axis]
        return total

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def partner(self, known: Known) -> Known:
        """Another value of the same type: an existing one, or a constant."""
        other = self.pick(lambda k: k.value.type == known.value.type)
        if other is None or self.rng.random() < 0.2:
            number = self.rng.randint(0, 5)
            return Known(self.b.const(number, known.value.type), known.value.type.dtype.is_float, number)
        return other

    def binary(self) -> None:
        if (x := self.pick(lambda k: k.value.type.dtype.bits > 1)) is None:
            return
        y, dtype, b = self.partner(x), x.value.type.dtype, self.b
        names = (
            ["add", "sub", "mul", "min", "max"]
            if dtype.is_float
            else ["add", "sub", "mul", "min", "max", "and", "or", "xor", "shl", "shr", "div", "rem"]
        )
        name = self.rng.choice(names)
        second = y.value
        if name in ("shl", "shr"):
            second = b.value("and", second, b.const(dtype.bits - 1, second.type))
        if name in ("div", "rem"):  # positive, or all ones, which is -1
            second = b.value("or", b.value("and", second, b.const(7, second.type)), b.const(1, second.type))
            if self.rng.random() < 0.3 and dtype.is_signed:
                second = b.value("neg", second)
        bound = {"add": x.bound + y.bound, "sub": x.bound + y.bound, "mul": x.bound * y.bound}.get(
            name, max(x.bound, y.bound)
        )
        whole = x.whole and y.whole and dtype.is_float and bound < 2 ** DIGITS[dtype.name]
        attrs = {"nan": self.rng.random() < 0.5} if name in ("min", "max") and dtype.is_float else {}
        self.keep(b.value(name, x.value, second, **attrs), whole, bound if whole else float("inf"))

    def unary(self) -> None:
        if (x := self.pick(lambda k: k.value.type.dtype.bits > 1)) is None:
            return
        names = ["neg", "abs", "floor", "ceil", "sqrt"] if x.value.type.dtype.is_float else ["neg", "not", "abs"]
        name = self.rng.choice(names)
        self.keep(self.b.value(name, x.value), x.whole and name != "sqrt", x.bound)

    def compare(self) -> None:
        if (x := self.pick(lambda k: k.value.type.dtype.bits > 1)) is not None:
            self.keep(
                self.b.value(
                    "cmp", x.value, self.partner(x).value, pred=self.rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])
                )
            )

    def select(self) -> None:
        x = self.pick(lambda k: k.value.type.dtype.bits > 1)
        if x is None:
            return
        y, shape = self.partner(x), x.value.type.shape
        condition = self.pick(lambda k: k.value.type == Tile(t.int1, shape))
        mask = condition.value if condition else self.mask(shape) if shape else None
        if mask is not None:
            self.keep(self.b.value("select", mask, x.value, y.value), x.whole and y.whole, max(x.bound, y.bound))

    def cast(self) -> None:
        if (x := self.pick()) is None:
            return
        source, target = x.value.type.dtype, self.rng.choice(DTYPES)
        if (
            source.is_float
            and target.is_integer
            and not (x.whole and x.bound < 2 ** (target.bits - 1) and target.is_signed)
        ):
            return
        bound = x.bound if source.is_float else 2.0**source.bits
        whole = target.is_float and (x.whole or source.is_integer) and bound < 2 ** DIGITS[target.name]
        self.keep(self.b.value("cast", x.value, dtype=target), whole, bound)

    def bitcast(self) -> None:
        """Whole floats as integers, and integers as any float; never a NaN as an integer, because its bits are unspecified."""
        x = self.pick(lambda k: k.whole or (k.value.type.dtype.is_integer and k.value.type.dtype.bits > 8))
        if x is not None:
            source = x.value.type.dtype
            kinds = [d for d in DTYPES if d.bits == source.bits and d.is_float != source.is_float]
            if kinds:
                self.keep(self.b.value("bitcast", x.value, dtype=self.rng.choice(kinds)))

    # -- shapes --------------------------------------------------------------------------------------------------------

    def view(self) -> None:
        x = self.pick(lambda k: len(k.value.type.shape) >= 1)
        if x is None:
            return
        shape = x.value.type.shape
        kind = self.rng.choice(["trans", "reshape", "expand_dims"])
        if kind == "trans":
            result = self.b.value("trans", x.value, perm=tuple(self.rng.sample(range(len(shape)), len(shape))))
        elif kind == "reshape":
            size = int(np.prod(shape))
            choices = [s for s in SHAPES if int(np.prod(s)) == size] + [(size,)]
            result = self.b.value("reshape", x.value, shape=self.rng.choice(choices))
        elif len(shape) < 3:
            result = self.b.value("expand_dims", x.value, axis=self.rng.randint(0, len(shape)))
        else:
            return
        self.keep(result, x.whole, x.bound)

    def broadcast(self) -> None:
        """A vector along one axis of a matrix."""
        x = self.pick(lambda k: len(k.value.type.shape) <= 1)
        if x is None:
            return
        b, shape = self.b, x.value.type.shape
        if not shape:
            result = b.value("splat", x.value, shape=self.rng.choice(SHAPES))
        else:
            (n,) = shape
            m, first = self.rng.choice([2, 4, 8]), self.rng.random() < 0.5
            if n * m > 256:
                return
            result = b.value(
                "broadcast", b.value("expand_dims", x.value, axis=0 if first else 1), shape=(m, n) if first else (n, m)
            )
        self.keep(result, x.whole, x.bound)

    def reduce(self) -> None:
        x = self.pick(lambda k: len(k.value.type.shape) >= 1 and k.value.type.dtype.bits > 1)
        if x is None:
            return
        dtype, axis = x.value.type.dtype, self.rng.randrange(len(x.value.type.shape))
        bound = x.bound * x.value.type.shape[axis]
        names = (
            ["max", "min"]
            + (["add"] if dtype.is_integer or (x.whole and bound < 2 ** DIGITS[dtype.name]) else [])
            + (["xor", "and"] if dtype.is_integer else [])
        )
        name = self.rng.choice(names)
        left, right = Value(Tile(dtype)), Value(Tile(dtype))
        with self.b.block((left, right)) as combine:
            self.b.op("yield", self.b.value(name, left, right))
        op = self.b.op("reduce", x.value, blocks=(combine.done,), axis=axis)
        self.keep(op.result, x.whole, bound if name == "add" else x.bound)

    def argmax(self) -> None:
        x = self.pick(
            lambda k: (
                len(k.value.type.shape) == 1
                and k.value.type.dtype.bits > 8
                and (k.whole or k.value.type.dtype.is_integer)
            )
        )
        if x is None:
            return
        b, dtype, (n,) = self.b, x.value.type.dtype, x.value.type.shape
        arguments = [Value(Tile(d)) for d in (dtype, t.int32, dtype, t.int32)]
        with b.block(arguments) as combine:
            v, i, w, j = arguments
            better = b.value("cmp", v, w, pred="gt")
            first = b.value("and", b.value("cmp", v, w, pred="eq"), b.value("cmp", i, j, pred="lt"))
            left = b.value("or", better, first)
            b.op("yield", b.value("select", left, v, w), b.value("select", left, i, j))
        op = b.op("reduce", x.value, b.value("arange", start=0, end=n), blocks=(combine.done,), axis=0)
        self.keep(op.results[0], x.whole, x.bound)
        self.keep(op.results[1])

    def dot(self) -> None:
        dtype = self.rng.choice([t.float32, t.float16, t.float64, t.bfloat16])
        a = self.pick(lambda k: len(k.value.type.shape) == 2 and k.value.type.dtype == dtype and k.whole)
        if a is None:
            return
        b = self.pick(lambda k: len(k.value.type.shape) == 2 and k.value.type.dtype == dtype and k.whole)
        assert b is not None
        right = b.value
        if a.value.type.shape[1] != right.type.shape[0]:
            right = self.b.value("trans", right, perm=(1, 0))
        if a.value.type.shape[1] != right.type.shape[0]:
            return
        accumulator = t.float64 if dtype == t.float64 else t.float32
        bound = a.bound * b.bound * right.type.shape[0] + 6
        if bound >= 2**24:
            return
        shape = (a.value.type.shape[0], right.type.shape[1])
        c = self.pick(lambda k: k.value.type == Tile(accumulator, shape) and k.whole and k.bound < 7)
        start = c.value if c else self.b.const(0.0, Tile(accumulator, shape))
        self.keep(self.b.value("dot", a.value, right, start, precision="ieee"), True, bound)

    # -- control -------------------------------------------------------------------------------------------------------

    def carried(self) -> list[Known]:
        found = [k for k in self.visible() if k.value.type.dtype.bits > 1]
        return self.rng.sample(found, min(len(found), self.rng.randint(1, 3)))

    def inside(self, depth: int, inits: list[Known], arguments: list[Value]) -> list[Value]:
        """Some steps in a nested block; values of the types carried, to be yielded."""
        self.pools.append([Known(a) for a in arguments])
        self.steps(self.rng.randint(1, 5), depth)
        chosen = []
        for k in inits:
            same = [c for c in self.pools[-1] if c.value.type == k.value.type] or [
                c for c in self.visible() if c.value.type == k.value.type
            ]
            chosen.append(self.rng.choice(same).value)
        self.pools.pop()
        return chosen

    def loop(self, depth: int) -> None:
        inits = self.carried()
        if not inits:
            return
        b = self.b
        counter, arguments = Value(Tile(t.int32)), [Value(k.value.type) for k in inits]
        down = self.rng.random() < 0.3
        bounds = [self.const(v, t.int32) for v in ((5, 0, -2) if down else (0, self.rng.randint(0, 4), 1))]
        with b.block((counter, *arguments)) as body:
            self.pools.append([Known(counter)])
            chosen = self.inside(depth, inits, arguments)
            self.pools.pop()
            b.op("yield", *chosen)
        for result in b.op("for", *bounds, *(k.value for k in inits), blocks=(body.done,)).results:
            self.keep(result)

    def branch(self, depth: int) -> None:
        inits = self.carried()
        if not inits:
            return
        b, blocks = self.b, []
        condition = b.value("cmp", self.pid, self.const(1, t.int32), pred=self.rng.choice(["lt", "eq"]))
        for _ in range(2):
            with b.block() as arm:
                b.op("yield", *self.inside(depth, inits, []))
            blocks.append(arm.done)
        for result in b.op("if", condition, blocks=tuple(blocks), types=tuple(k.value.type for k in inits)).results:
            self.keep(result)

    def repeat(self, depth: int) -> None:
        """A while loop that counts to three, with the count among the carried values."""
        inits = self.carried()
        b, types = self.b, [Tile(t.int32), *(k.value.type for k in inits)]
        tested, arguments = [Value(x) for x in types], [Value(x) for x in types]
        with b.block(tested) as test:
            b.op("condition", b.value("cmp", tested[0], self.const(3, t.int32), pred="lt"), *tested)
        with b.block(arguments) as body:
            chosen = self.inside(depth, inits, arguments[1:])
            b.op("yield", b.value("add", arguments[0], self.const(1, t.int32)), *chosen)
        op = b.op("while", self.const(0, t.int32), *(k.value for k in inits), blocks=(test.done, body.done))
        for result in op.results:
            self.keep(result)
