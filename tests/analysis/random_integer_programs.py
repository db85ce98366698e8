"""Random integer kernels, and an evaluator that observes every value when it is computed.

A program is a list of small tuples of numbers, so that hypothesis shrinks it well. Each tuple selects an op and its operands among the
existing values. The evaluator runs the NumPy meanings of the op table, reports signed overflow and undefined divisions, and calls
`look(value, environment, iterations)` after each definition.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.ops import OPS, TypeRule
from blocknb.language.types import Pointer, Tile

BINARY = ("add", "sub", "mul", "add", "mul", "div", "rem", "rem", "div", "min", "max", "and", "or", "xor")
PREDICATES = ("lt", "le", "gt", "ge", "eq", "ne")
CONSTANTS = (0, 1, 2, 4, 8, 16, 3, -1, -4, 7, 15, -8, 5, 32)
CASTS = (t.int64, t.int32, t.int8, t.uint32, t.uint8, t.uint64, t.int16)
OTHERS = ("compare", "select", "cast", "splat", "expand", "broadcast", "trans", "reshape", "arange", "const", "shift")
OTHERS += ("wrap", "mask", "mask", "negate", "pointer", "program", "cast")
CHOICES = BINARY + OTHERS

number = st.integers(0, 63)
plain = st.tuples(st.sampled_from(CHOICES), number, number, number)
loop = st.tuples(st.just("for"), number, number, st.lists(plain, max_size=4))
choice = st.tuples(st.just("if"), number, number, st.lists(plain, max_size=3))
programs = st.lists(st.one_of(plain, plain, plain, plain, loop, choice), min_size=5, max_size=14)


class Maker:
    """Builds the Func of a program."""

    def __init__(self, hints: tuple[int, int]):
        self.builder = Builder("test")
        self.params = (Value(Tile(t.int32), "n"), Value(Tile(t.int32), "m"), Value(Tile(Pointer(t.float32)), "p"))
        self.hints = (Hint("n", hints[0]), Hint("m", hints[1]), Hint("p", 16))
        self.pool: list[Value] = list(self.params)
        self.prelude()

    def prelude(self) -> None:
        """The first ops of every program: tiles with contiguous, repeated and aligned values, so that short programs use them."""
        emit = self.builder.value
        n, m, p = self.params
        start = emit("mul", emit("program_id", axis=0), self.builder.const(16, Tile(t.int32)))
        for size in (16, 8):
            count = emit("arange", start=0, end=size)
            index = emit("add", emit("splat", start, shape=(size,)), count)
            address = emit("ptradd", emit("splat", p, shape=(size,)), index)
            back = emit("sub", index, emit("splat", n, shape=(size,)))
            odd = emit("add", index, self.builder.const(5, index.type))
            self.pool += [
                odd,
                emit("splat", m, shape=(size,)),
                emit("splat", n, shape=(size,)),
                address,
                count,
                back,
                index,
            ]
        rows = emit("expand_dims", emit("arange", start=0, end=4), axis=1)
        rows = emit("broadcast", emit("mul", rows, emit("splat", n, shape=(4, 1))), shape=(4, 8))
        columns = emit("broadcast", emit("expand_dims", index, axis=0), shape=(4, 8))
        address = emit("ptradd", emit("splat", p, shape=(4, 8)), emit("add", rows, columns))
        self.pool += [start, rows, columns, address]

    def func(self, program, stores: int = 0) -> Func:
        """The Func of a program. With `stores`, it stores that many of the last values and pointers, so that they are used."""
        self.steps(program)
        for value in self.pool[3:][-stores:] if stores else ():
            self.store(value)
        return Func("random", self.params, Block((), self.builder.finish()), hints=self.hints)

    def store(self, value: Value) -> None:
        emit, shape = self.builder.value, value.type.shape
        if value.type.is_pointer:
            self.builder.op("store", value, self.builder.const(0.0, Tile(t.float32, shape)))
            return
        number = emit("cast", emit("cast", value, dtype=t.int16), dtype=t.float32)
        pointer = emit("splat", self.params[2], shape=shape) if shape else self.params[2]
        self.builder.op("store", pointer, number)

    def steps(self, program) -> None:
        for step in program:
            try:
                made = (
                    self.loop(*step[1:])
                    if step[0] == "for"
                    else self.branch(*step[1:])
                    if step[0] == "if"
                    else self.step(*step)
                )
            except TypeRule:
                continue
            self.pool += made

    def pick(self, i: int, accept=lambda value: True) -> Value:
        found = [v for v in reversed(self.pool) if accept(v)]
        return found[i % len(found)] if found else self.params[0]

    def same(self, i: int, like: Value) -> Value:
        found = [v for v in reversed(self.pool) if v.type == like.type]
        if i % 3 == 0 and like.type.dtype.is_integer and like.type.dtype.kind != "bool":
            limits = np.iinfo(like.type.dtype.numpy)
            return self.builder.const(int(np.clip(CONSTANTS[i % len(CONSTANTS)], limits.min, limits.max)), like.type)
        return found[i % len(found)]

    def integer(self, i: int) -> Value:
        return self.pick(i, lambda v: v.type.dtype.is_integer and v.type.dtype.kind != "bool")

    def step(self, name: str, i: int, j: int, k: int) -> list[Value]:
        emit = self.builder.value
        if name in BINARY:
            a = self.integer(i)
            return [emit(name, a, self.same(j, a))]
        match name:
            case "compare":
                a = self.integer(i)
                return [emit("cmp", a, self.same(j, a), pred=PREDICATES[k % 6])]
            case "wrap" | "mask":
                a = self.pick(i, lambda v: v.type.dtype is t.int32 and v.type.shape)
                b = self.pick(j, lambda v: v.type == Tile(t.int32)) if j % 4 else self.builder.const(8, Tile(t.int32))
                b = emit("splat", b, shape=a.type.shape)
                if name == "wrap":
                    return [emit(("rem", "div")[k % 2], a, b)]
                a, b = (a, b) if k % 3 else (b, a)
                return [emit("cmp", a, b, pred=PREDICATES[k % 4])]
            case "select":
                c = self.pick(i, lambda v: v.type.dtype is t.int1)
                a = self.pick(j, lambda v: v.type.shape == c.type.shape)
                return [emit("select", c, a, self.same(k, a))]
            case "cast":
                return [emit("cast", self.integer(i), dtype=CASTS[j % len(CASTS)])]
            case "splat":
                return [
                    emit("splat", self.pick(i, lambda v: v.type.is_scalar), shape=((8,), (4, 8), (16,), (4, 1))[j % 4])
                ]
            case "expand":
                return [emit("expand_dims", self.pick(i, lambda v: len(v.type.shape) == 1), axis=j % 2)]
            case "broadcast":
                x = self.pick(i, lambda v: 1 in v.type.shape and len(v.type.shape) == 2)
                other = self.pick(j, lambda v: len(v.type.shape) == 2)
                shape = tuple(max(a, b) for a, b in zip(x.type.shape, other.type.shape, strict=False))
                return [
                    emit(
                        "broadcast",
                        x,
                        shape=shape if len(shape) == 2 and j % 2 else tuple(4 if n == 1 else n for n in x.type.shape),
                    )
                ]
            case "trans":
                return [emit("trans", self.pick(i, lambda v: len(v.type.shape) == 2), perm=(1, 0))]
            case "reshape":
                x = self.pick(i, lambda v: not v.type.is_scalar)
                n = x.type.size
                return [
                    emit(
                        "reshape",
                        x,
                        shape=((n,), (n // 2, 2), (2, n // 2), (1, n), (n // 4, 4))[j % 5] if n >= 4 else (n, 1),
                    )
                ]
            case "arange":
                return [emit("arange", start=CONSTANTS[i % 6], end=CONSTANTS[i % 6] + (8, 16, 4, 1)[j % 4])]
            case "const":
                return [self.builder.const(CONSTANTS[i % len(CONSTANTS)], Tile(t.int32, ((), (8,), (4, 8))[j % 3]))]
            case "shift":
                a = self.integer(i)
                return [emit(("shl", "shr")[k % 2], a, self.builder.const(j % 5, a.type))]
            case "negate":
                a = self.integer(i)
                return [emit(("neg", "abs")[j % 2], a)]
            case "pointer":
                a = self.integer(i)
                base = self.pick(j, lambda v: v.type.is_pointer and v.type.shape == a.type.shape)
                if not base.type.is_pointer:
                    base = self.params[2]
                if base.type.shape != a.type.shape:
                    base = emit("splat", base, shape=a.type.shape)
                return [emit("ptradd", base, a)]
        return [emit("program_id", axis=i % 3)]

    def loop(self, i: int, j: int, body) -> list[Value]:
        b = self.builder
        bounds = [b.const(x, Tile(t.int32)) for x in ((0, 3, 1), (0, 5, 2), (2, 2, 1), (16, 20, 4), (6, -1, -3))[i % 5]]
        if i % 7 == 0:
            bounds[1] = self.pick(i, lambda v: v.type == Tile(t.int32))
        first = [self.pick(j), self.pick(j // 4)]
        args = (Value(Tile(t.int32), "i"), Value(first[0].type), Value(first[1].type))
        pool, self.pool = self.pool, self.pool + list(args)
        with b.block(args) as opened:
            self.steps(body)
            inner = len(self.pool) - len(pool)
            after = [next((v for v in reversed(self.pool[-inner:]) if v.type == a.type), a) for a in args[1:]]
            if i % 2:
                after[j % 2] = self.advanced(args[1 + j % 2], i + j)
            b.op("yield", *after)
        self.pool = pool
        return list(b.op("for", *bounds, *first, blocks=(opened.done,)).results)

    def advanced(self, value: Value, i: int) -> Value:
        """A carried value plus a step, which is uniform in most cases."""
        like = value.type.with_dtype(t.int32) if value.type.is_pointer else value.type
        if not like.dtype.is_integer or like.dtype.kind == "bool":
            return value
        found = [v for v in self.pool if v.type == (like if i % 4 == 0 else Tile(like.dtype))]
        by = found[i % len(found)] if found else self.builder.const(3, like)
        if by.type != like:
            by = self.builder.value("splat", by, shape=like.shape)
        return self.builder.value("ptradd" if value.type.is_pointer else ("add", "sub")[i % 3 == 0], value, by)

    def branch(self, i: int, j: int, body) -> list[Value]:
        b = self.builder
        condition = self.pick(i, lambda v: v.type == Tile(t.int1))
        if condition.type != Tile(t.int1):
            condition = b.value("cmp", self.params[0], self.params[1], pred="lt")
        pool, arms = self.pool, []
        with b.block() as first:
            self.pool = list(pool)
            self.steps(body)
            a = self.pool[-1]
            b.op("yield", a)
        arms.append(first.done)
        self.pool = pool
        with b.block() as second:
            like = [v for v in pool if v.type == a.type]
            b.op("yield", like[j % len(like)] if like else _zero(b, a.type, self.params[2]))
        arms.append(second.done)
        return list(b.op("if", condition, blocks=arms, types=(a.type,)).results)


def _zero(b: Builder, type: Tile, pointer: Value) -> Value:
    if not type.is_pointer:
        return b.const(0, type)
    return b.value("splat", pointer, shape=type.shape) if type.shape else pointer


def integers(array) -> np.ndarray:
    """An array as Python integers, which do not overflow (NumPy would unpack a scalar into a fixed width again)."""
    made = np.empty(np.shape(array), dtype=object)
    made[...] = np.asarray(array).tolist()
    return made


class Undefined(Exception):
    """The program divided by zero, or would loop for too long."""


class Evaluator:
    """Runs a Func on given parameters; pointers are element offsets. `speculative`: a division by zero is allowed if its result is unused.

    `assumed` tells whether the analysis' assumptions have held so far: no signed overflow, positive divisors."""

    def __init__(self, func: Func, arguments, program: tuple[int, int, int], look=None, speculative: bool = False):
        self.environment = dict(zip(func.params, arguments, strict=True))
        self.iterations: dict = {}
        self.stored: list = []
        self.speculative = speculative
        self.counts: dict = {}
        self.program, self.look, self.assumed = program, look, True
        self.block(func.body)

    def define(self, value: Value, array) -> None:
        self.environment[value] = array
        if self.look:
            self.look(self, value)

    def block(self, block: Block) -> list:
        for op in block.ops:
            if op.name == "yield":
                return [self.environment[a] for a in op.args]
            for value, array in zip(op.results, self.run(op), strict=True):
                self.define(value, array)
        return []

    def run(self, op) -> list:
        args = [self.environment[a] for a in op.args]
        match op.name:
            case "const":
                return [np.full(op.attrs["type"].shape, op.attrs["value"], op.attrs["type"].dtype.numpy)]
            case "arange":
                return [np.arange(op.attrs["start"], op.attrs["end"], dtype=np.int32)]
            case "program_id":
                return [np.int32(self.program[op.attrs["axis"]])]
            case "splat" | "broadcast":
                return [np.broadcast_to(args[0], op.attrs["shape"])]
            case "expand_dims":
                return [np.expand_dims(args[0], op.attrs["axis"])]
            case "trans":
                return [np.transpose(args[0], op.attrs["perm"])]
            case "reshape":
                return [np.reshape(args[0], op.attrs["shape"])]
            case "store":
                self.stored.append(np.broadcast_arrays(*args))
                return []
            case "ptradd":
                return [args[0] + args[1].astype(np.int64)]
            case "for":
                return self.loop(op, args)
            case "if":
                return self.block(op.blocks[0 if args[0] else 1])
        self.watch(op, args)
        dtype = op.result.type.dtype
        return [
            np.where(*args)
            if op.name == "select"
            else OPS[op.name].numpy(op.attrs, dtype, *(np.asarray(a) for a in args))
        ]

    def watch(self, op, args) -> None:
        if op.name in ("div", "rem"):
            if np.any(args[1] == 0) and not self.speculative:
                raise Undefined
            self.assumed &= bool(np.all(args[1] > 0))
        dtype = op.result.type.dtype
        wide = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "shl": np.left_shift, "neg": np.negative}.get(
            op.name
        )
        if wide and dtype.kind == "int" and dtype.bits >= 32:
            exact = integers(wide(*(x if x.ndim else int(x) for x in map(integers, args))))
            limits = np.iinfo(dtype.numpy)
            self.assumed &= bool(np.all(exact >= limits.min) and np.all(exact <= limits.max))

    def loop(self, op, args) -> list:
        body, carried = op.blocks[0], args[3:]
        span = range(int(args[0]), int(args[1]), int(args[2]))
        if len(span) > 20:
            raise Undefined
        self.counts[op] = len(span)
        for iteration, i in enumerate(span):
            self.iterations[op] = iteration
            self.define(body.args[0], np.int32(i))
            for value, array in zip(body.args[1:], carried, strict=True):
                self.define(value, array)
            carried = self.block(body)
        return carried
