"""The type rules of the op table: `(operand types, attrs) -> result types`. They raise TypeRule for invalid operands."""

from __future__ import annotations

import math
from collections.abc import Callable

from blocknb.language import types as t
from blocknb.language.meaning import PREDICATES
from blocknb.language.types import Buffer, Pointer, Tile


class TypeRule(Exception):
    """Raised for operands that an op does not accept. The front end and the verifier add the place."""


def need(condition: bool, message: str) -> None:
    if not condition:
        raise TypeRule(message)


def same(kinds: str) -> Callable:
    """The rule that all operands and the result have the same type. `kinds` lists the allowed dtype kinds."""

    def rule(types, attrs):
        first = types[0]
        need(all(x == first for x in types), "operands differ: " + " and ".join(map(str, types)))
        need(first.dtype.kind in kinds.split(), f"takes {kinds.replace(' ', ', ')}, not {first.dtype}")
        need(not first.dtype.is_fp8(), f"computes on floats of at least 16 bits, not on {first.dtype}")
        return (first,)

    return rule


def compare(types, attrs):
    need(types[0] == types[1], f"operands differ: {types[0]} and {types[1]}")
    need(attrs["pred"] in PREDICATES, f"unknown predicate {attrs['pred']}")
    need(not types[0].dtype.is_fp8(), f"compares floats of at least 16 bits, not {types[0].dtype}")
    return (types[0].with_dtype(t.int1),)


def select(types, attrs):
    condition, a, b = types
    need(a == b, f"arms differ: {a} and {b}")
    need(condition == a.with_dtype(t.int1), f"condition is {condition} for arms {a}")
    return (a,)


def promise(types, attrs):
    return (types[0],)


def to_dtype(types, attrs):
    return (types[0].with_dtype(attrs["dtype"]),)


def cast(types, attrs):
    need(
        not isinstance(attrs["dtype"], Pointer) and not types[0].is_pointer,
        "a cast does not take pointers; bitcast does",
    )
    e4b15 = t.float8e4b15 in (types[0].dtype, attrs["dtype"])
    need(not e4b15, f"a cast does not support {t.float8e4b15}; the front end converts it by bit arithmetic")
    return to_dtype(types, attrs)


def bitcast(types, attrs):
    need(types[0].dtype.bits == attrs["dtype"].bits, f"bitcast of {types[0].dtype} to {attrs['dtype']}: widths differ")
    return to_dtype(types, attrs)


def ptradd(types, attrs):
    pointer, offset = types
    need(pointer.is_pointer, f"{pointer} is not a pointer")
    need(
        offset.dtype.is_integer and offset.dtype.bits >= 8,
        f"the offset of a pointer must be an integer, not {offset.dtype}",
    )
    need((pointer.shape, pointer.layout) == (offset.shape, offset.layout), f"{pointer} against {offset}")
    return (pointer,)


def power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def arange(types, attrs):
    n = attrs["end"] - attrs["start"]
    need(power_of_two(n), f"arange needs a power of two elements, not {n}")
    return (Tile(t.int32, (n,), attrs.get("layout")),)


def const(types, attrs):
    return (attrs["type"],)


def splat(types, attrs):
    need(types[0].is_scalar, f"splat takes a scalar, not {types[0]}")
    return (Tile(types[0].dtype, tuple(attrs["shape"]), attrs.get("layout")),)


def broadcast(types, attrs):
    (x,), shape = types, tuple(attrs["shape"])
    need(len(x.shape) == len(shape), f"broadcast keeps the rank: {x.shape} to {shape}")
    need(all(n in (1, m) for n, m in zip(x.shape, shape, strict=True)), f"cannot broadcast {x.shape} to {shape}")
    return (Tile(x.dtype, shape, attrs.get("layout")),)


def expand_dims(types, attrs):
    (x,), axis = types, attrs["axis"]
    need(0 <= axis <= len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    layout = None if x.layout is None else x.layout.expand_dims(axis)
    return (Tile(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]), layout),)


def reshape(types, attrs):
    (x,), shape = types, tuple(attrs["shape"])
    need(
        math.prod(shape) == x.size, f"cannot reshape {x.shape} to {shape}: {x.size} against {math.prod(shape)} elements"
    )
    return (Tile(x.dtype, shape, None if x.layout is None else x.layout.reshape(shape)),)


def trans(types, attrs):
    (x,), perm = types, tuple(attrs["perm"])
    need(sorted(perm) == list(range(len(x.shape))), f"{perm} does not permute the axes of {x.shape}")
    return (Tile(x.dtype, tuple(x.shape[i] for i in perm), None if x.layout is None else x.layout.trans(perm)),)


def check_mask(shape, layout, types):
    need(types[0] == Tile(t.int1, shape, layout), f"the mask is {types[0]} for an access of {shape}")


def load(types, attrs):
    pointer = types[0]
    need(pointer.is_pointer, f"loads from {pointer}, which is no pointer")
    value = pointer.with_dtype(pointer.dtype.element)
    if len(types) > 1:
        check_mask(pointer.shape, pointer.layout, types[1:])
    if len(types) > 2:
        need(types[2] == value, f"other is {types[2]} for a load of {value}")
    return (value,)


def store(types, attrs):
    pointer, value = types[:2]
    need(pointer.is_pointer, f"stores to {pointer}, which is no pointer")
    need(value == pointer.with_dtype(pointer.dtype.element), f"stores {value} to {pointer}")
    if len(types) > 2:
        check_mask(pointer.shape, pointer.layout, types[2:])
    return ()


WORDS = (t.int32, t.uint32, t.int64, t.uint64)
#: The dtypes of atomics by kind: those of the hardware, and those for which a compare-and-swap loop is efficient.
ATOMIC_DTYPES = {
    "add": (*WORDS, t.float16, t.bfloat16, t.float32, t.float64),
    **dict.fromkeys(("max", "min", "xchg"), (*WORDS, t.float32, t.float64)),
    "cas": (t.int16, t.uint16, *WORDS, t.float16, t.bfloat16, t.float32, t.float64),
    **dict.fromkeys(("and", "or", "xor"), WORDS),
}
SEMANTICS = ("relaxed", "acquire", "release", "acq_rel")
SCOPES = ("cta", "gpu", "sys")


def atomic(types, attrs):
    return _atomic(types, attrs, attrs["kind"], 2)


def atomic_cas(types, attrs):
    return _atomic(types, attrs, "cas", 3)


def _atomic(types, attrs, kind, count):
    """The rule of an atomic with an optional buffer for the result, `count` operands and a mask."""
    buffer, types = (types[0], types[1:]) if isinstance(types[0], Buffer) else (None, types)
    pointer, *values = types[:count]
    need(pointer.is_pointer, f"updates {pointer}, which is no pointer")
    need(pointer.dtype.element in ATOMIC_DTYPES[kind], f"no atomic {kind} of {pointer.dtype.element}")
    need(attrs["sem"] in SEMANTICS and attrs["scope"] in SCOPES, f"unknown order {attrs['sem']}, {attrs['scope']}")
    wanted = pointer.with_dtype(pointer.dtype.element)
    need(all(v == wanted for v in values), f"updates {pointer} with {' and '.join(map(str, values))}")
    if len(types) > count:
        check_mask(pointer.shape, pointer.layout, types[count:])
    if buffer is None:
        return (wanted,)
    need((buffer.dtype, buffer.shape) == (wanted.dtype, wanted.shape), f"old values {wanted} into {buffer}")
    return ()


def dot(types, attrs):
    a, b, c = types
    need(len(a.shape) == 2 == len(b.shape), f"dot takes matrices, not {a.shape} and {b.shape}")
    m, n = (x.shape[:: -1 if side in attrs.get("transposed", ()) else 1] for side, x in enumerate((a, b)))
    need(m[1] == n[0], f"dot of {m} and {n}: inner sizes differ")
    need(c.shape == (m[0], n[1]), f"the accumulator is {c.shape} for {m} times {n}")
    fp8 = all(x.dtype.is_fp8() and x.dtype != t.float8e4b15 for x in (a, b))
    need(fp8 or (a.dtype == b.dtype != t.float8e4b15), f"dot of {a.dtype} and {b.dtype}")
    return (c,)


def reduce(types, attrs):
    axis, results = attrs["axis"], []
    for x in types:
        need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
        keep = attrs.get("keep", 0)
        if keep:
            results.append(Tile(x.dtype, (*x.shape[:axis], keep, *x.shape[axis + 1 :]), attrs["layout"]))
        else:
            shape = x.shape[:axis] + x.shape[axis + 1 :]
            results.append(Tile(x.dtype, shape, None if x.layout is None or not shape else x.layout.slice(axis)))
    return tuple(results)


def scan(types, attrs):
    for x in types:
        need(0 <= attrs["axis"] < len(x.shape), f"axis {attrs['axis']} of rank {len(x.shape)}")
    return tuple(types)


def flip(types, attrs):
    x, axis, mask = types[0], attrs["axis"], attrs["mask"]
    need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    need(0 <= mask < x.shape[axis], f"the mask {mask} of an axis of {x.shape[axis]}")
    return (Tile(x.dtype, x.shape, attrs["layout"]),) if isinstance(x, Buffer) else (x,)


def gather(types, attrs):
    (x, index), axis = types, attrs["axis"]
    need(0 <= axis < len(x.shape), f"axis {axis} of rank {len(x.shape)}")
    need(index.dtype.is_integer and index.dtype.bits > 1, f"indices are integers, not {index.dtype}")
    others = [(a, b) for i, (a, b) in enumerate(zip(x.shape, index.shape, strict=False)) if i != axis]
    fits = len(x.shape) == len(index.shape) and all(a == b for a, b in others)
    need(fits, f"an index of {index.shape} along axis {axis} of {x.shape}")
    return (index.with_dtype(x.dtype),)


def asserted(types, attrs):
    need(types[0].dtype == t.int1, f"asserts {types[0]}, which is not a condition")
    return ()


def inside(types, attrs):
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    return (types[0].with_dtype(t.int1),)


def outside(types, attrs):
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    check_mask(types[0].shape, types[0].layout, types[1:])
    return ()


def structured(types, attrs):
    return tuple(attrs["types"])


def for_loop(types, attrs):
    need(
        types[0] == types[1] == types[2] and types[0].is_scalar and types[0].dtype.is_integer,
        f"loop bounds are {types[:3]}",
    )
    return tuple(types[3:])


def branch(types, attrs):
    need(types[0] == Tile(t.int1), f"the condition is {types[0]}")
    return structured(types, attrs)


def each(types, attrs):
    return tuple(types)


def nothing(types, attrs):
    return ()


def scalar_i32(types, attrs):
    return (Tile(t.int32),)


def convert(types, attrs):
    return (types[0].with_layout(attrs["layout"]),)


def part(types, attrs):
    x, axis, index, count = types[0], attrs["axis"], attrs["index"], attrs["count"]
    need(isinstance(x, Tile) and 0 <= axis < len(x.shape), f"axis {axis} of {x}")
    need(0 <= index < count and not x.shape[axis] % count, f"part {index} of {count} along axis {axis} of {x}")
    need(x.layout is not None, f"parts are of tiles with layouts, not of {x}")
    try:
        layout = x.layout.part(axis, count)
    except ValueError as error:
        raise TypeRule(str(error)) from None
    return (Tile(x.dtype, layout.shape, layout),)


def alloc(types, attrs):
    return (attrs["type"],)


def one_buffer(type):
    need(isinstance(type, Buffer), f"{type} is not a shared buffer")
    need(type.stages == 1, f"{type} is a circular buffer; select one of its stages first")


def stage(types, attrs):
    buffer, index = types
    need(isinstance(buffer, Buffer), f"{buffer} is not a shared buffer")
    need(index == Tile(t.int32), f"the index of a stage must be an int32, not {index}")
    return (buffer.stage,)


def copy_async(types, attrs):
    buffer, pointer = types[:2]
    one_buffer(buffer)
    need(pointer.is_pointer and pointer.shape != (), f"copies from {pointer}, which is no tile of pointers")
    wanted = (pointer.dtype.element, pointer.shape)
    need((buffer.dtype, buffer.shape) == wanted, f"copies elements of {pointer} to {buffer}")
    need(attrs["vec"] * buffer.dtype.bytes in (4, 8, 16), f"copies {attrs['vec']} x {buffer.dtype} at once")
    if len(types) > 2:
        check_mask(pointer.shape, pointer.layout, types[2:])
    return ()


def wait(types, attrs):
    need(attrs["in_flight"] >= 0, f"waits until {attrs['in_flight']} groups are left")
    return ()


def local_load(types, attrs):
    one_buffer(types[0])
    return (Tile(types[0].dtype, types[0].shape, attrs["layout"]),)


def local_store(types, attrs):
    one_buffer(types[0])
    need((types[0].dtype, types[0].shape) == (types[1].dtype, types[1].shape), f"stores {types[1]} to {types[0]}")
    return ()
