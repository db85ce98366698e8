"""The op table: every operation of the IR, once.

A row gives an op its operands, attributes, type rule, effect, doc and, for elementwise ops, its meaning in NumPy. The builder
infers result types from it, the verifier checks with it, the interpreter computes with it, the language reference is printed
from it, and the code generators are tested against it. An elementwise row computes on any array, so the same meaning serves a
scalar, a tile and a tile spread over warps, lanes and registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.language import types as t
from blocknb.language.types import Buffer, Pointer, Tile

PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


class TypeRule(Exception):
    """Operands that an op does not take; the message says what is wrong. The front end and the verifier add the place."""


@dataclass(frozen=True)
class OpSpec:
    """One row. `kind`: source, shape, elementwise, memory, dot, reduce, control, laid, shared.

    `infer(types, attrs)` gives the result types, `numpy(attrs, result dtype, *arrays)` the meaning of an elementwise op;
    `levels` are those at which the op may stand; `reads` and `writes` name the memory touched: "global", "shared" or "".
    """

    name: str
    kind: str
    infer: Callable[[tuple, dict], tuple]
    doc: str
    operands: str = ""
    attrs: tuple[str, ...] = ()
    numpy: Callable | None = None
    reads: str = ""
    writes: str = ""
    levels: tuple[str, ...] = ("tile", "laid", "memory")
    blocks: int = 0

    @property
    def pure(self) -> bool:
        """No effect and no blocks: may be removed, copied and moved freely."""
        return not (self.reads or self.writes or self.blocks or self.kind == "control" or self.name in ("barrier", "alloc"))


OPS: dict[str, OpSpec] = {}


def row(name: str, kind: str, infer: Callable, doc: str, **rest: Any) -> None:
    OPS[name] = OpSpec(name, kind, infer, doc, **rest)


def need(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRule(message)


# -- type rules: (operand types, attrs) -> result types ------------------------------------------------------------------


def _same(kinds: str) -> Callable:
    """All operands have one type, which is the result's; `kinds` lists the dtype kinds allowed."""

    def rule(types, attrs):
        first = types[0]
        need(all(x == first for x in types), "operands differ: " + " and ".join(map(str, types)))
        need(first.dtype.kind in kinds.split(), f"takes {kinds.replace(' ', ', ')}, not {first.dtype}")
        return (first,)

    return rule


def _compare(types, attrs):
    need(types[0] == types[1], f"operands differ: {types[0]} and {types[1]}")
    need(attrs["pred"] in PREDICATES, f"unknown predicate {attrs['pred']}")
    return (types[0].with_dtype(t.int1),)


def _select(types, attrs):
    condition, a, b = types
    need(a == b, f"arms differ: {a} and {b}")
    need(condition == a.with_dtype(t.int1), f"condition is {condition} for arms {a}")
    return (a,)


def _to_dtype(types, attrs):
    return (types[0].with_dtype(attrs["dtype"]),)


def _cast(types, attrs):
    need(not isinstance(attrs["dtype"], Pointer) and not types[0].is_pointer, "a cast does not take pointers; bitcast does")
    return _to_dtype(types, attrs)


def _bitcast(types, attrs):
    need(types[0].dtype.bits == attrs["dtype"].bits, f"bitcast of {types[0].dtype} to {attrs['dtype']}: widths differ")
    return _to_dtype(types, attrs)


def _ptradd(types, attrs):
    pointer, offset = types
    need(pointer.is_pointer, f"{pointer} is not a pointer")
    need(offset.dtype.is_integer and offset.dtype.bits >= 8, f"a pointer moves by integers, not {offset.dtype}")
    need((pointer.shape, pointer.layout) == (offset.shape, offset.layout), f"{pointer} against {offset}")
    return (pointer,)


def _power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def _arange(types, attrs):
    n = attrs["end"] - attrs["start"]
    need(_power_of_two(n), f"arange needs a power of two elements, not {n}")
    return (Tile(t.int32, (n,), attrs.get("layout")),)


def _const(types, attrs):
    return (attrs["type"],)


def _splat(types, attrs):
    need(types[0].is_scalar, f"splat takes a scalar, not {types[0]}")
    return (Tile(types[0].dtype, tuple(attrs["shape"]), attrs.get("layout")),)


def _broadcast(types, attrs):
    (x,), shape = types, tuple(attrs["shape"])
    need(len(x.shape) == len(shape), f"broadcast keeps the rank: {x.shape} to {shape}")
    need(all(n in (1, m) for n, m in zip(x.shape, shape, strict=True)), f"cannot broadcast {x.shape} to {shape}")
    return (Tile(x.dtype, shape, attrs.get("layout")),)


def _expand_dims(types, attrs):
    (x,), axis = types, attrs["axis"]
    need(0 <= axis <= len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    layout = None if x.layout is None else x.layout.expand_dims(axis)
    return (Tile(x.dtype, x.shape[:axis] + (1,) + x.shape[axis:], layout),)


def _reshape(types, attrs):
    (x,), shape = types, tuple(attrs["shape"])
    need(math.prod(shape) == x.size, f"cannot reshape {x.shape} to {shape}: {x.size} against {math.prod(shape)} elements")
    return (Tile(x.dtype, shape, None if x.layout is None else x.layout.reshape(shape)),)


def _trans(types, attrs):
    (x,), perm = types, tuple(attrs["perm"])
    need(sorted(perm) == list(range(len(x.shape))), f"{perm} does not permute the axes of {x.shape}")
    return (Tile(x.dtype, tuple(x.shape[i] for i in perm), None if x.layout is None else x.layout.trans(perm)),)


def _check_mask(shape, layout, types):
    need(types[0] == Tile(t.int1, shape, layout), f"the mask is {types[0]} for an access of {shape}")


def _load(types, attrs):
    pointer = types[0]
    need(pointer.is_pointer, f"loads from {pointer}, which is no pointer")
    value = pointer.with_dtype(pointer.dtype.element)
    if len(types) > 1:
        _check_mask(pointer.shape, pointer.layout, types[1:])
    if len(types) > 2:
        need(types[2] == value, f"other is {types[2]} for a load of {value}")
    return (value,)


def _store(types, attrs):
    pointer, value = types[:2]
    need(pointer.is_pointer, f"stores to {pointer}, which is no pointer")
    need(value == pointer.with_dtype(pointer.dtype.element), f"stores {value} to {pointer}")
    if len(types) > 2:
        _check_mask(pointer.shape, pointer.layout, types[2:])
    return ()


def _dot(types, attrs):
    a, b, c = types
    need(len(a.shape) == 2 == len(b.shape), f"dot takes matrices, not {a.shape} and {b.shape}")
    need(a.shape[1] == b.shape[0], f"dot of {a.shape} and {b.shape}: inner sizes differ")
    need(c.shape == (a.shape[0], b.shape[1]), f"the accumulator is {c.shape} for {a.shape} times {b.shape}")
    need(a.dtype == b.dtype, f"dot of {a.dtype} and {b.dtype}")
    return (c,)


def _reduce(types, attrs):
    axis, results = attrs["axis"], []
    for x in types:
        need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
        keep = attrs.get("keep", 0)
        if keep:
            results.append(Tile(x.dtype, x.shape[:axis] + (keep,) + x.shape[axis + 1 :], attrs["layout"]))
        else:
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            results.append(Tile(x.dtype, shape, None if x.layout is None or not shape else x.layout.slice(axis)))
    return tuple(results)


def _structured(types, attrs):
    return tuple(attrs["types"])


def _for(types, attrs):
    need(types[0] == types[1] == types[2] and types[0].is_scalar and types[0].dtype.is_integer, f"loop bounds are {types[:3]}")
    return tuple(types[3:])


def _if(types, attrs):
    need(types[0] == Tile(t.int1), f"the condition is {types[0]}")
    return _structured(types, attrs)


def _nothing(types, attrs):
    return ()


def _scalar_i32(types, attrs):
    return (Tile(t.int32),)


def _convert(types, attrs):
    return (types[0].with_layout(attrs["layout"]),)


def _alloc(types, attrs):
    return (attrs["type"],)


def _local_load(types, attrs):
    need(isinstance(types[0], Buffer), f"{types[0]} is no shared buffer")
    return (Tile(types[0].dtype, types[0].shape, attrs["layout"]),)


def _local_store(types, attrs):
    need(isinstance(types[0], Buffer), f"{types[0]} is no shared buffer")
    need((types[0].dtype, types[0].shape) == (types[1].dtype, types[1].shape), f"stores {types[1]} to {types[0]}")
    return ()


# -- meanings in NumPy ------------------------------------------------------------------------------------------------


def _quiet(f: Callable) -> Callable:
    """IEEE arithmetic has no warnings: overflow, invalid operations and division by zero give inf and NaN."""

    def run(attrs, dtype, *arrays):
        with np.errstate(all="ignore"):
            return np.asarray(f(attrs, dtype, *arrays)).astype(dtype.numpy, copy=False)

    return run


def _plain(f: Callable) -> Callable:
    return _quiet(lambda attrs, dtype, *arrays: f(*arrays))


def _wide(f: Callable) -> Callable:
    """A function computed in float64 and rounded once: the meaning of the transcendental functions."""
    return _quiet(lambda attrs, dtype, *arrays: f(*(a.astype(np.float64) for a in arrays)))


def _div(attrs, dtype, a, b):
    """Floats divide as IEEE has it, integers truncate as C does; an integer divided by zero is undefined (here: zero)."""
    if dtype.is_float:
        return a / b
    safe = np.where(b == 0, np.ones_like(b), b)
    quotient = a // safe
    fix = (a - quotient * safe != 0) & ((a < 0) != (safe < 0))
    return np.where(b == 0, np.zeros_like(a), quotient + fix.astype(a.dtype))


def _rem(attrs, dtype, a, b):
    """The remainder that belongs to `div`: the sign of the dividend."""
    if dtype.is_float:
        return np.fmod(a, b)
    return np.where(b == 0, np.zeros_like(a), np.fmod(a, np.where(b == 0, np.ones_like(b), b)))


def _minmax(plain: Callable, propagating: Callable) -> Callable:
    """Without `nan` a NaN loses against a number (IEEE maximumNumber), with it NaN wins."""
    return lambda attrs, dtype, a, b: (propagating if attrs.get("nan") or not dtype.is_float else plain)(a, b)


def _compare_numpy(attrs, dtype, a, b):
    functions = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
    return functions[PREDICATES.index(attrs["pred"])](a, b)


def _cast_numpy(attrs, dtype, x):
    """Float to bool tests against zero, float to integer truncates (out of range undefined), the rest is NumPy's astype."""
    if dtype.kind == "bool":
        return x != 0
    if dtype.is_integer and x.dtype.kind not in "iub":
        return np.trunc(x.astype(np.float64)).astype(np.int64 if dtype.kind == "int" else np.uint64).astype(dtype.numpy)
    if dtype.name == "bf16" and x.dtype != np.float32:
        return _to_bf16(x, dtype)
    return x.astype(dtype.numpy)


def _to_bf16(x, dtype):
    """One rounding: to odd in fp32 first, so that float64 and wide integers do not round twice."""
    wide = x.astype(np.float64)
    narrow = wide.astype(np.float32)
    back = narrow.astype(np.float64)
    bits = narrow.view(np.uint32) if narrow.ndim else narrow.reshape(1).view(np.uint32).reshape(())
    inexact = (back != wide) & np.isfinite(back)
    lower = np.where(inexact & (np.abs(back) > np.abs(wide)), bits - np.uint32(1), bits).astype(np.uint32)
    odd = np.where(inexact, lower | np.uint32(1), lower).astype(np.uint32)
    return odd.view(np.float32).astype(dtype.numpy)


def _bitcast_numpy(attrs, dtype, x):
    return np.ascontiguousarray(x).view(dtype.numpy if not isinstance(dtype, Pointer) else np.int64).reshape(x.shape)


def _shift(left: bool) -> Callable:
    def shift(attrs, dtype, a, b):
        return np.left_shift(a, b) if left else np.right_shift(a, b)

    return shift


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x)


# -- the table -----------------------------------------------------------------------------------------------------------

row("const", "source", _const, "A compile-time constant, scalar or the same for every element.", attrs=("value", "type"))
row("program_id", "source", _scalar_i32, "The program's index along an axis of the grid.", attrs=("axis",))
row("num_programs", "source", _scalar_i32, "The number of programs along an axis of the grid.", attrs=("axis",))
row("arange", "source", _arange, "The integers from start to end (exclusive), a power of two of them.", attrs=("start", "end"))
row("splat", "shape", _splat, "A scalar repeated to a tile.", operands="x", attrs=("shape",))
row("broadcast", "shape", _broadcast, "Axes of size one repeated to the given shape.", operands="x", attrs=("shape",))
row("expand_dims", "shape", _expand_dims, "A new axis of size one.", operands="x", attrs=("axis",))
row("reshape", "shape", _reshape, "The same elements in row-major order under another shape.", operands="x", attrs=("shape",))
row("trans", "shape", _trans, "The axes permuted: axis i of the result is axis perm[i] of x.", operands="x", attrs=("perm",))

NUMBERS = "int uint float"
for _name, _kinds, _doc, _fn in (
    ("add", NUMBERS, "Sum; integers wrap.", _plain(np.add)),
    ("sub", NUMBERS, "Difference; integers wrap.", _plain(np.subtract)),
    ("mul", NUMBERS, "Product; integers wrap.", _plain(np.multiply)),
    ("div", NUMBERS, "Quotient: IEEE for floats, truncated for integers (by zero: undefined, but no trap).", _quiet(_div)),
    ("rem", NUMBERS, "Remainder with the dividend's sign.", _quiet(_rem)),
    ("min", NUMBERS, "The smaller operand; a NaN loses unless `nan` is set.", _quiet(_minmax(np.fmin, np.minimum))),
    ("max", NUMBERS, "The larger operand; a NaN loses unless `nan` is set.", _quiet(_minmax(np.fmax, np.maximum))),
    ("and", "bool int uint", "Bitwise and.", _plain(np.bitwise_and)),
    ("or", "bool int uint", "Bitwise or.", _plain(np.bitwise_or)),
    ("xor", "bool int uint", "Bitwise exclusive or.", _plain(np.bitwise_xor)),
    ("shl", "int uint", "Shift left; by the width or more: undefined.", _quiet(_shift(True))),
    ("shr", "int uint", "Shift right: arithmetic for signed operands, logical for unsigned.", _quiet(_shift(False))),
):
    row(_name, "elementwise", _same(_kinds), _doc, operands="a b", attrs=("nan",) if _name in ("min", "max") else (), numpy=_fn)

row("cmp", "elementwise", _compare, "Comparison (pred: eq ne lt le gt ge); false with NaN but for ne.", operands="a b", attrs=("pred",), numpy=_quiet(_compare_numpy))
row("select", "elementwise", _select, "a where the condition holds, b elsewhere.", operands="condition a b", numpy=_plain(np.where))
row("cast", "elementwise", _cast, "The same number in another dtype: nearest even for floats, truncation to integers, wrapping among integers.", operands="x", attrs=("dtype",), numpy=_quiet(_cast_numpy))
row("bitcast", "elementwise", _bitcast, "The same bits as another type of equal width.", operands="x", attrs=("dtype",), numpy=_bitcast_numpy)
row("ptradd", "elementwise", _ptradd, "A pointer moved by a number of elements.", operands="pointer offset")
row("fma", "elementwise", _same("float"), "a * b + c, rounded once.", operands="a b c", numpy=_wide(lambda a, b, c: a * b + c))
row("neg", "elementwise", _same(NUMBERS), "Negation; integers wrap.", operands="x", numpy=_plain(np.negative))
row("not", "elementwise", _same("bool int uint"), "Bitwise complement.", operands="x", numpy=_plain(np.invert))
row("abs", "elementwise", _same(NUMBERS), "Absolute value.", operands="x", numpy=_plain(np.abs))
for _name, _doc, _fn in (
    ("exp", "e to the x.", np.exp),
    ("exp2", "2 to the x.", np.exp2),
    ("log", "Natural logarithm.", np.log),
    ("log2", "Logarithm to base 2.", np.log2),
    ("sqrt", "Square root.", np.sqrt),
    ("rsqrt", "Reciprocal square root.", lambda x: 1 / np.sqrt(x)),
    ("sin", "Sine of radians.", np.sin),
    ("cos", "Cosine of radians.", np.cos),
    ("tanh", "Hyperbolic tangent.", np.tanh),
    ("erf", "Error function.", _erf),
    ("floor", "Rounded down to an integer.", np.floor),
    ("ceil", "Rounded up to an integer.", np.ceil),
):
    row(_name, "elementwise", _same("float"), _doc, operands="x", numpy=_wide(_fn))

row("load", "memory", _load, "Elements from memory; where the mask is off, `other` (zero when absent).", operands="pointer [mask [other]]", attrs=("cache", "evict", "volatile", "layout", "vec"), reads="global")
row("store", "memory", _store, "Elements to memory where the mask is on.", operands="pointer value [mask]", attrs=("cache", "evict", "layout", "vec"), writes="global")
row("dot", "dot", _dot, "a @ b + c. `precision` (fp32 operands): tf32 or ieee; `instr` the tensor-core instruction, chosen by a pass.", operands="a b c", attrs=("precision", "instr", "layout"))
row("reduce", "reduce", _reduce, "Combines along an axis with the block (2n scalars to n). `keep`: partial results, one for each warp along the axis.", operands="x...", attrs=("axis", "keep", "layout"), blocks=1)

row("for", "control", _for, "for i in range(lower, upper, step) with carried values; block: (i, carried...) -> yield.", operands="lower upper step init...", blocks=1)
row("if", "control", _if, "Two blocks without arguments; both yield the results.", operands="condition", attrs=("types",), blocks=2)
row("while", "control", lambda types, attrs: tuple(types), "Blocks (carried...) -> condition(c, carried...) and (carried...) -> yield.", operands="init...", blocks=2)
row("yield", "control", _nothing, "Ends a block with its values.", operands="values...")
row("condition", "control", _nothing, "Ends the first block of a while: go on if c, with the values.", operands="c values...")
row("barrier", "control", _nothing, "All warps of the program meet here; their memory accesses before it are seen after it.")

row("convert", "laid", _convert, "The same tile in another layout.", operands="x", attrs=("layout",), levels=("laid", "memory"))
row("alloc", "shared", _alloc, "A buffer in shared memory; `offset` (bytes) is set by the pass `shared`.", attrs=("type", "offset"), levels=("memory",))
row("local_store", "shared", _local_store, "Writes a tile to a shared buffer.", operands="buffer x", writes="shared", levels=("memory",))
row("local_load", "shared", _local_load, "Reads a tile from a shared buffer.", operands="buffer", attrs=("layout",), reads="shared", levels=("memory",))

TERMINATORS = ("yield", "condition")


def infer(name: str, types: tuple, attrs: dict) -> tuple:
    """The result types of an op. Raises TypeRule with what is wrong, KeyError for an unknown op."""
    return tuple(OPS[name].infer(types, attrs))
