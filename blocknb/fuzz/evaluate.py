"""Computes the memory that a kernel must produce: runs its tree program by program with NumPy, in the order of the grid.

The semantics are those of docs/language.md and of Triton, implemented independently. Operands are promoted, integers wrap, and run-time
division truncates. Casts from float to integer saturate, and a masked load without `other` gives zero. `evaluate` returns memory with an
error bound for every element (see `numbers`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.fuzz import blocks, dtypes, numbers
from blocknb.fuzz import tree as t
from blocknb.fuzz.memory import FuzzMemory
from blocknb.fuzz.numbers import Ambiguous, Val, cast, val

LIMIT = 40_000  # evaluated expressions per launch
SIGN = {"max": 1, "min": -1}


class _Returned(Exception):
    """Ends the program or a helper early, with the values that it returns."""

    def __init__(self, values: tuple[Any, ...] = ()):
        super().__init__()
        self.values = values


@dataclass(frozen=True)
class BlockPointerValue:
    """A block pointer or tensor descriptor: base address, and sizes, strides, offsets and block sizes by axis."""

    dtype: str
    base: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offsets: tuple[int, ...]
    block: tuple[int, ...]

    def access(self, offsets: tuple[int, ...], checked: tuple[int, ...]) -> tuple[Val, Val | None]:
        """The addresses of the block, and the mask of the in-bounds elements along the checked axes."""
        address, mask = np.full(self.block, self.base, np.int64), np.ones(self.block, bool)
        axes = zip(self.shape, self.strides, offsets, self.block, strict=True)
        for axis, (n, stride, offset, count) in enumerate(axes):
            at = (offset + np.arange(count)).reshape([-1 if a == axis else 1 for a in range(len(self.block))])
            address = address + at * stride
            if axis in checked:
                mask = mask & (at >= 0) & (at < n)
        return val("i64", address), val("i1", mask) if checked else None


def evaluate(kernel: t.KernelTree, arrays: Mapping[str, np.ndarray], launch: int) -> FuzzMemory:
    """The memory after a launch. `arrays` holds the inputs by argument name, except those that are views of another one."""
    memory, values = FuzzMemory(), {}
    for argument in kernel.arguments:
        if isinstance(argument, t.Array) and not argument.base:
            values[argument.name] = memory.add(argument.dtype, arrays[argument.name])
    for argument in kernel.arguments:
        if isinstance(argument, t.Array) and argument.base:
            values[argument.name] = values[argument.base] + argument.offset
        elif isinstance(argument, t.Scalar):
            values[argument.name] = argument.values[launch % len(argument.values)]
    grid = (*kernel.grid, 1, 1)[:3]
    helpers = {h.name: h for h in kernel.helpers}
    budget = [LIMIT]
    with np.errstate(all="ignore"):
        for z, y, x in itertools.product(*(range(n) for n in reversed(grid))):
            program = EvaluatedProgram(memory, values, helpers, (x, y, z), grid, budget)
            with contextlib.suppress(_Returned):
                program.run(kernel.body)
    return memory


class EvaluatedProgram:
    """The state of one program: the names that it has assigned, and memory."""

    def __init__(
        self, memory: FuzzMemory, arguments: Mapping[str, Any], helpers: Mapping[str, t.Helper], pid: Any, grid: Any,
        budget: list[int],
    ):  # fmt: skip
        self.memory, self.arguments, self.helpers = memory, arguments, helpers
        self.pid, self.grid, self.budget = pid, grid, budget
        self.env: dict[str, Any] = {}

    def run(self, body: tuple[Any, ...]) -> None:
        for statement in body:
            self.step(statement)

    def step(self, s: Any) -> None:
        match s:
            case t.Let(names, value):
                found = self.eval(value)
                self.env.update(zip(names, found, strict=True) if len(names) > 1 else [(names[0], found)])
            case t.StoreStatement():
                self._store(s)
            case t.Atomic():
                self._atomic(s)
            case t.If(condition, then, other):
                self.run(then if self.scalar(condition) else other)
            case t.For():
                self._for(s)
            case t.While(condition, body):
                while self.scalar(condition):
                    self.run(body)
            case t.Return(values):
                raise _Returned(tuple(self.eval(value) for value in values))
            case t.Barrier():
                pass
            case _:
                raise TypeError(f"no statement {s}")

    def _for(self, s: t.For) -> None:
        dtype = s.options.get("dtype", "i32")
        for i in range(*(int(self.scalar(n)) for n in (s.low, s.high, s.step))):
            self.env[s.name] = val(dtype, i)
            self.run(s.body)

    def _store(self, s: t.StoreStatement) -> None:
        pointer, mask = self.eval(s.pointer), None if s.mask is None else self.eval(s.mask)
        dtype = s.pointer.type.dtype
        if isinstance(pointer, BlockPointerValue):
            given = s.attrs.get("offsets")
            offsets = pointer.offsets if given is None else tuple(int(self.scalar(n)) for n in given)
            pointer, mask = pointer.access(offsets, s.attrs["check"])
        self.memory.store(dtype, pointer, self.eval(s.value), mask)

    def _atomic(self, s: t.Atomic) -> None:
        pointer, mask = self.eval(s.pointer), None if s.mask is None else self.eval(s.mask)
        compare = None if s.compare is None else self.eval(s.compare)
        old = self.memory.update(s.op, s.pointer.type.dtype, pointer, self.eval(s.value), mask, compare)
        if s.result:
            self.env[s.result] = old

    def scalar(self, node: t.SyntaxNode) -> Any:
        """A scalar that controls execution. Raises Ambiguous if rounding could change it."""
        value = self.eval(node)
        return value.exact().item() if isinstance(value, Val) else value

    def eval(self, node: t.SyntaxNode) -> Any:
        self.budget[0] -= 1
        if self.budget[0] < 0:
            raise Ambiguous
        return OPS[node.op](self, node)

    def call(self, helper: t.Helper, args: list[Val]) -> Any:
        """The results of a helper: one Val, or a tuple."""
        inner = EvaluatedProgram(self.memory, self.arguments, self.helpers, self.pid, self.grid, self.budget)
        missing = len(helper.params) - len(args)
        given = [*args, *helper.defaults[len(helper.defaults) - missing :]]
        for (name, type), value in zip(helper.params, given, strict=True):
            inner.env[name] = value if isinstance(value, Val) else val(type.dtype, value)
        try:
            inner.run(helper.body)
            found = tuple(inner.eval(result) for result in helper.results)
        except _Returned as early:
            found = early.values
        return found if len(found) > 1 else found[0]


def _operands(p: EvaluatedProgram, n: t.SyntaxNode) -> list[Val]:
    """The operands of an elementwise op, promoted and broadcast."""
    ct = n.attrs["ct"]
    return _broadcast([val(ct, a.attrs["value"]) if a.op == "literal" else cast(p.eval(a), ct) for a in n.args])


def _broadcast(values: list[Val]) -> list[Val]:
    shape = np.broadcast_shapes(*(v.shape for v in values))
    return [blocks.broadcast(v, shape) for v in values]


def _offset(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    pointer, offset = p.eval(n.args[0]), p.eval(n.args[1])
    return val("i64", pointer.exact() + offset.exact().astype(np.int64))


def _argument(p: EvaluatedProgram, n: t.SyntaxNode) -> Any:
    value = p.arguments[n.attrs["name"]]
    return val("i64", value) if n.type.pointer else _rounded(n.type.dtype, value)


def _rounded(dtype: str, value: Any) -> Val:
    return val(dtype, numbers.rounded(dtype, value) if dtypes.is_float(dtype) else value)


def _load(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    pointer = p.eval(n.args[0])
    mask = p.eval(n.args[1]) if len(n.args) > 1 else None
    other = cast(p.eval(n.args[2]), n.type.dtype) if len(n.args) > 2 else None
    if isinstance(pointer, BlockPointerValue):
        pointer, mask = pointer.access(pointer.offsets, n.attrs["check"])
    return p.memory.load(n.type.dtype, pointer, mask, other)


def _block_pointer(p: EvaluatedProgram, n: t.SyntaxNode) -> BlockPointerValue:
    rank = len(n.attrs["block"])
    base, *rest = (p.scalar(a) for a in n.args)
    shape, strides, offsets = rest[:rank], rest[rank : 2 * rank], rest[2 * rank :] or [0] * rank
    return BlockPointerValue(n.type.dtype, int(base), tuple(shape), tuple(strides), tuple(offsets), n.attrs["block"])


def _advance(p: EvaluatedProgram, n: t.SyntaxNode) -> BlockPointerValue:
    b = p.eval(n.args[0])
    moved = tuple(o + int(p.scalar(a)) for o, a in zip(b.offsets, n.args[1:], strict=True))
    return BlockPointerValue(b.dtype, b.base, b.shape, b.strides, moved, b.block)


def _descriptor_load(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    block = p.eval(n.args[0])
    pointer, mask = block.access(tuple(int(p.scalar(a)) for a in n.args[1:]), tuple(range(len(block.block))))
    return p.memory.load(n.type.dtype, pointer, mask, None)


def _reduce(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    at, v = n.attrs, cast(p.eval(n.args[0]), n.attrs["ct"])
    axis, keep = at["axis"], at.get("keep", False)
    if axis is None:
        v, axis = v.moved(lambda x: np.reshape(x, -1)), 0
    match at["name"]:
        case "sum":
            found = blocks.total(v, axis, keep)
        case "max" | "min" as name:
            found = blocks.extreme(v, axis, keep, SIGN[name])
        case "argmax" | "argmin" as name:
            found = blocks.where_extreme(v, axis, keep, SIGN[name.removeprefix("arg")])
        case name:
            f = {"xor_sum": np.bitwise_xor, "reduce_or": np.bitwise_or}[name]
            found = val(v.dtype, *blocks.integer_total(v, axis, keep, False, False, f))
    return found.moved(lambda x: np.reshape(x, n.type.shape))


def _extreme_and_index(p: EvaluatedProgram, n: t.SyntaxNode) -> tuple[Val, Val]:
    v, at = p.eval(n.args[0]), n.attrs
    sign = SIGN[at["name"]]
    found = blocks.extreme(v, at["axis"], False, sign)
    return cast(found, "f32" if v.dtype == "bf16" else v.dtype), blocks.where_extreme(v, at["axis"], False, sign)


def _scan(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    v, at = cast(p.eval(n.args[0]), n.attrs["ct"]), n.attrs
    if at["name"] == "cumsum":
        return blocks.total(v, at["axis"], True, True, at["reverse"])
    return blocks.running_product(v, at["axis"], at["reverse"])


def _combine(p: EvaluatedProgram, n: t.SyntaxNode, running: bool) -> Any:
    """reduce and associative_scan with a helper, from the first element on (from the last one for a reverse scan)."""
    values, at = [p.eval(a) for a in n.args], n.attrs
    helper, axis = p.helpers[at["helper"]], at["axis"]
    order = list(range(values[0].shape[axis]))
    if at.get("reverse"):
        order.reverse()

    def element(i: int) -> list[Val]:
        return [v.moved(lambda x: np.take(x, i, axis)) for v in values]

    def several(found: Any) -> list[Val]:
        return list(found) if isinstance(found, tuple) else [found]

    state = element(order[0])
    states = [state]
    for i in order[1:]:
        state = several(p.call(helper, [*state, *element(i)]))
        states.append(state)
    if not running:
        found = [v.moved(lambda x: np.expand_dims(x, axis)) if at.get("keep") else v for v in state]
    else:
        places = [states[order.index(i)] for i in range(len(order))]
        columns = list(zip(*places, strict=True))
        found = [
            val(c[0].dtype, np.stack([v.data for v in c], axis), np.stack([v.bound for v in c], axis)) for c in columns
        ]
    return tuple(found) if len(found) > 1 else found[0]


def _dot(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    a, b, *acc = (p.eval(x) for x in n.args)
    return blocks.dot(a, b, acc[0] if acc else None, n.type.dtype, n.attrs["precision"])


def _ternary(p: EvaluatedProgram, n: t.SyntaxNode) -> Any:
    return p.eval(n.args[1] if p.scalar(n.args[0]) else n.args[2])


def _where(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    c, a, b = p.eval(n.args[0]), *_operands(p, t.SyntaxNode("", None, n.args[1:], n.attrs))
    c, a, b = _broadcast([c, a, b])
    return numbers.select(c, a, b)


def _pointer_where(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    c, a, b = _broadcast([p.eval(arg) for arg in n.args])
    return val("i64", np.where(c.exact(), a.data, b.data))


def _split(p: EvaluatedProgram, n: t.SyntaxNode) -> tuple[Val, Val]:
    v = p.eval(n.args[0])
    return v.moved(lambda x: x[..., 0]), v.moved(lambda x: x[..., 1])


def _topk(p: EvaluatedProgram, n: t.SyntaxNode) -> Val:
    return blocks.ordered(p.eval(n.args[0]), n.attrs["axis"], True).moved(lambda x: x[..., : n.attrs["k"]])


def _unary(f: Callable[[Val], Val]) -> Callable[[EvaluatedProgram, t.SyntaxNode], Val]:
    return lambda p, n: f(p.eval(n.args[0]))


def _shape(name: str) -> Callable[[EvaluatedProgram, t.SyntaxNode], Val]:
    return lambda p, n: blocks.SHAPES[name](p.eval(n.args[0]), n.attrs)


def _pair(stack: Callable[..., np.ndarray]) -> Callable[[EvaluatedProgram, t.SyntaxNode], Val]:
    return lambda p, n: blocks.stacked(p.eval(n.args[0]), p.eval(n.args[1]), stack)


def _invert(v: Val) -> Val:
    return val(v.dtype, np.invert(v.data), v.err)


OPS: dict[str, Callable[[EvaluatedProgram, t.SyntaxNode], Any]] = {
    "var": lambda p, n: p.env[n.attrs["name"]],
    "arg": _argument,
    "full": lambda p, n: _rounded(n.type.dtype, np.full(n.type.shape, n.attrs["value"])),
    "literal": lambda p, n: val("f64" if isinstance(n.attrs["value"], float) else "i64", n.attrs["value"]),
    "splat": lambda p, n: blocks.broadcast(p.eval(n.args[0]), n.type.shape),
    "pid": lambda p, n: val("i32", p.pid[n.attrs["axis"]]),
    "programs": lambda p, n: val("i32", p.grid[n.attrs["axis"]]),
    "arange": lambda p, n: val("i32", np.arange(n.attrs["start"], n.attrs["end"])),
    "binary": lambda p, n: numbers.arithmetic(n.attrs["sym"], n.attrs["ct"], *_operands(p, n)),
    "compare": lambda p, n: numbers.compare(n.attrs["sym"], *_operands(p, n)),
    "maximum": lambda p, n: numbers.maximum(*_operands(p, n)),
    "minimum": lambda p, n: numbers.minimum(*_operands(p, n)),
    "clamp": lambda p, n: numbers.clamp(*_operands(p, n)),
    "fma": lambda p, n: numbers.fma(*_operands(p, n)),
    "negative": _unary(numbers.negate),
    "invert": _unary(_invert),
    "abs": _unary(numbers.absolute),
    "function": lambda p, n: numbers.function(n.attrs["name"], p.eval(n.args[0])),
    "cast": lambda p, n: cast(p.eval(n.args[0]), n.type.dtype),
    "bitcast": lambda p, n: numbers.bitcast(p.eval(n.args[0]), n.type.dtype),
    "where": _where,
    "ternary": _ternary,
    "broadcast": lambda p, n: blocks.broadcast(p.eval(n.args[0]), n.type.shape),
    **{name: _shape(name) for name in blocks.SHAPES},
    "split": _split,
    "join": _pair(lambda pair: np.stack(pair, -1)),
    "interleave": _pair(blocks.interleave),
    "cat": _pair(lambda pair: np.concatenate(pair, 0)),
    "reduce": _reduce,
    "extreme": _extreme_and_index,
    "scan": _scan,
    "combine": lambda p, n: _combine(p, n, False),
    "combine_scan": lambda p, n: _combine(p, n, True),
    "sort": lambda p, n: blocks.ordered(p.eval(n.args[0]), n.attrs["axis"], n.attrs["descending"]),
    "gather": lambda p, n: blocks.taken(p.eval(n.args[0]), p.eval(n.args[1]), n.attrs["axis"]),
    "histogram": lambda p, n: blocks.histogram(p.eval(n.args[0]), n.attrs["bins"]),
    "dot": _dot,
    "umulhi": lambda p, n: numbers.upper_half(*_operands(p, n)),
    "cdiv": lambda p, n: numbers.rounded_up(*_operands(p, n)),
    "randint": lambda p, n: numbers.philox(p.eval(n.args[0]), p.eval(n.args[1])),
    "topk": _topk,
    "not_none": lambda p, n: p.arguments.get(n.attrs["name"]) is not None,
    "is_set": lambda p, n: bool(p.arguments[n.attrs["name"]]),
    "promise": lambda p, n: p.eval(n.args[0]),
    "pointer_where": _pointer_where,
    "offset": _offset,
    "load": _load,
    "block_pointer": _block_pointer,
    "advance": _advance,
    "descriptor_load": _descriptor_load,
    "call": lambda p, n: p.call(p.helpers[n.attrs["helper"]], [p.eval(a) for a in n.args]),
}
