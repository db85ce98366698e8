"""Type rules that rows of the op table share: `(operand types, attrs) -> result types`. They raise TypeRule for invalid operands."""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import types as t
from blocknb.language.semantics import PREDICATES
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


def cast(types, attrs):
    need(
        not isinstance(attrs["dtype"], Pointer) and not types[0].is_pointer,
        "a cast does not take pointers; bitcast does",
    )
    e4b15 = t.float8e4b15 in (types[0].dtype, attrs["dtype"])
    need(not e4b15, f"a cast does not support {t.float8e4b15}; the front end converts it by bit arithmetic")
    return (types[0].with_dtype(attrs["dtype"]),)


def bitcast(types, attrs):
    need(types[0].dtype.bits == attrs["dtype"].bits, f"bitcast of {types[0].dtype} to {attrs['dtype']}: widths differ")
    return (types[0].with_dtype(attrs["dtype"]),)


def check_mask(shape, layout, types):
    need(types[0] == Tile(t.int1, shape, layout), f"the mask is {types[0]} for an access of {shape}")


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


def check_atomic(types, attrs, kind, count):
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


def one_buffer(type):
    need(isinstance(type, Buffer), f"{type} is not a shared buffer")
    need(type.stages == 1, f"{type} is a circular buffer; select one of its stages first")


def in_flight(attrs):
    need(attrs["in_flight"] >= 0, f"waits until {attrs['in_flight']} groups are left")
    return ()
