"""All small terms that the peephole rules may match: every elementwise op on unknowns, constants, and results of another op.

`terms` gives each as a function of one store, so that `simplify` rewrites it and the solver compares both. Rules inspect constants, so
these cannot be unknowns. They are those that rules distinguish (0, 1, all ones, powers of two), the ends of the dtype, and random ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Value
from blocknb.language import types as t
from blocknb.language.ops import PREDICATES, TypeRule
from blocknb.language.types import Pointer, Tile

INTEGERS = tuple(getattr(t, f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u"))
FLOATS = (t.float16, t.bfloat16, t.float32, t.float64)
ARITHMETIC = ("add", "sub", "mul", "div", "rem", "min", "max")
BITS = ("and", "or", "xor")
BINARY = (*ARITHMETIC, "mulhi", *BITS, "shl", "shr")
FLOAT_BINARY = ("add", "sub", "mul", "div", "min", "max")
UNARY = ("neg", "not", "abs")

Emit = Callable[[Builder, list[Value]], Value]
Named = tuple[str, Func]


def constants(dtype: Any, more: int = 0) -> list[Any]:
    """The constants that rules distinguish, the ends of the dtype, and `more` random ones (seeded by the dtype's name)."""
    if dtype.kind == "bool":
        return [False, True]
    if dtype.is_float:
        special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -4.0, 3.0, 2.0**-14, 2.0**14, 2.0**15, 2.0**-15]
        return [*special, float("inf"), float("-inf"), float("nan")]
    signed = dtype.kind == "int"
    low, high = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if signed else (0, (1 << dtype.bits) - 1)
    numbers = [0, 1, 2, 3, high, high - 1, low, dtype.bits - 1, dtype.bits, 1 << dtype.bits - 2]
    numbers += [-1, -2, low + 1] if signed else [1 << dtype.bits - 1]
    draw = random.Random(f"constants {dtype}")
    numbers += [draw.randint(low, high) for _ in range(more)]
    return list(dict.fromkeys(numbers))


def stored(name: str, dtypes: list[Any], emit: Emit) -> Named | None:
    """A function of scalar parameters that stores a term; None if the op table refuses it."""
    b, params = Builder("test"), [Value(Tile(d), f"x{i}") for i, d in enumerate(dtypes)]
    try:
        value = emit(b, params)
    except TypeRule:
        return None
    pointer = Value(Tile(Pointer(value.type.dtype)), "p")
    b.op("store", pointer, value)
    return name, Func("f", (*params, pointer), Block((), b.finish()))


def binaries(dtype: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """The ops of two operands of a dtype: text, name, attributes."""
    names = FLOAT_BINARY if dtype.is_float else BITS if dtype.kind == "bool" else BINARY
    found: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in names]
    if dtype.is_float:
        found += [(f"{name} nan", name, {"nan": True}) for name in ("min", "max")]
    return found + [(f"cmp {pred}", "cmp", {"pred": pred}) for pred in PREDICATES]


def flat(dtype: Any, more: int = 0) -> Iterator[Named | None]:
    """Each op on two unknowns, an unknown twice, and an unknown and a constant on either side."""
    for text, name, attrs in binaries(dtype):
        yield stored(f"{text} {dtype} x, y", [dtype, dtype], lambda b, x: b.value(name, x[0], x[1], **attrs))
        yield stored(f"{text} {dtype} x, x", [dtype], lambda b, x: b.value(name, x[0], x[0], **attrs))
        for c in constants(dtype, more):
            yield stored(
                f"{text} {dtype} x, {c}", [dtype], lambda b, x: b.value(name, x[0], b.const(c, dtype), **attrs)
            )
            yield stored(
                f"{text} {dtype} {c}, x", [dtype], lambda b, x: b.value(name, b.const(c, dtype), x[0], **attrs)
            )


def saturating_casts() -> Iterator[Named | None]:
    """Casts to fp8 of clamped numbers. The translator has no fp8: tests/passes/test_simplify.py compares the values."""
    for nan in ({}, {"nan": True}):

        def emit(b: Builder, x: list[Value]) -> Value:
            above = b.value("max", x[0], b.const(-448.0, t.float32), **nan)
            return b.value("cast", b.value("min", above, b.const(448.0, t.float32), **nan), dtype=t.float8e4nv)

        yield stored(f"cast fp8 clamp {nan}", [t.float32], emit)


def nested(dtype: Any, more: int = 0) -> Iterator[Named | None]:
    """Each op with a constant on the result of each op with a constant: (x a c) b d, and unary ops on both sides."""
    some = constants(dtype, more)
    some = some if dtype.is_float or dtype.kind == "bool" else [*some[:2], 3, some[4], some[-1]]
    for (text, one, attrs), (outer, two, others) in product(binaries(dtype), binaries(dtype)):
        if one == "cmp" and two in BITS:
            continue  # of bools, and a case of `flat`
        for c, d in zip(some, some[1:] + some[:1], strict=True):

            def emit(b: Builder, x: list[Value]) -> Value:
                inner = b.value(one, x[0], b.const(c, dtype), **attrs)
                known = bool(d) if inner.type.dtype == t.int1 else d
                return b.value(two, inner, b.const(known, inner.type.dtype), **others)

            yield stored(f"{outer} {dtype} ({text} x, {c}), {d}", [dtype], emit)
    for outer, inner in product(UNARY, UNARY):
        yield stored(f"{outer} {inner} {dtype}", [dtype], lambda b, x: b.value(outer, b.value(inner, x[0])))
    for pred in PREDICATES:
        yield stored(
            f"not cmp {pred} {dtype}", [dtype, dtype], lambda b, x: b.value("not", b.value("cmp", *x, pred=pred))
        )


def selections(dtype: Any) -> Iterator[Named | None]:
    """Selects by unknown, constant and inverted conditions, of different and of equal values."""
    for same in (False, True):
        yield stored(f"select {dtype} {same}", [t.int1, dtype, dtype], lambda b, x: b.value("select", *_arms(x, same)))
        yield stored(
            f"select not {dtype} {same}",
            [t.int1, dtype, dtype],
            lambda b, x: b.value("select", b.value("not", x[0]), *_arms(x, same)[1:]),
        )
    for known in (False, True):
        yield stored(
            f"select {known} {dtype}",
            [dtype, dtype],
            lambda b, x: b.value("select", b.const(known, t.int1), *x),
        )


def _arms(x: list[Value], same: bool) -> list[Value]:
    return [x[0], x[1], x[1] if same else x[2]]


def casts(source: Any, between: Any) -> Iterator[Named | None]:
    """A cast there and back, a cast to the same dtype, a cast of a constant, and comparisons of a cast with zero."""
    yield stored(
        f"cast {source} {between} {source}",
        [source],
        lambda b, x: b.value("cast", b.value("cast", x[0], dtype=between), dtype=source),
    )
    yield stored(f"cast {source} {between}", [source], lambda b, x: b.value("cast", x[0], dtype=between))
    for c in constants(source):
        yield stored(
            f"cast {c} {source} {between}", [], lambda b, x: b.value("cast", b.const(c, source), dtype=between)
        )
    for pred in PREDICATES:

        def emit(b: Builder, x: list[Value]) -> Value:
            return b.value("cmp", b.value("cast", x[0], dtype=between), b.const(0, between), pred=pred)

        yield stored(f"cmp {pred} (cast {source} {between}), 0", [source], emit)
    yield stored(f"bitcast {source} {between}", [source], lambda b, x: b.value("bitcast", x[0], dtype=between))


def pointers() -> Iterator[Named | None]:
    """Pointers moved by unknowns and constants of every integer dtype."""
    for offset, element in product(INTEGERS, (t.int8, t.float64)):
        pointer = Pointer(element)
        yield stored(f"ptradd {element} {offset} x", [pointer, offset], lambda b, x: b.value("ptradd", *x))
        for c in (0, 1):
            yield stored(
                f"ptradd {element} {offset} {c}",
                [pointer],
                lambda b, x: b.value("ptradd", x[0], b.const(c, offset)),
            )


# -- shapes


def tile(b: Builder, dtype: Any, shape: tuple[int, ...]) -> Value:
    """A tile of unknowns: a load."""
    pointer = b.const(0, Tile(Pointer(dtype)))
    return b.value("load", b.value("splat", pointer, shape=shape))


def shaped() -> Iterator[Named | None]:
    """Shape ops on unknowns, constants and each other, and elementwise ops on repeated values."""

    def made(name: str, emit: Callable[[Builder], Value]) -> Named | None:
        b = Builder("test")
        value = emit(b)
        target = b.value("splat", b.const(0, Tile(Pointer(value.type.dtype))), shape=value.type.shape)
        b.op("store", target, value)
        return name, Func("f", (), Block((), b.finish()))

    column = lambda b: b.value("expand_dims", tile(b, t.int32, (4,)), axis=1)  # noqa: E731
    yield made("reshape same", lambda b: b.value("reshape", tile(b, t.int32, (4, 2)), shape=(4, 2)))
    yield made(
        "reshape reshape",
        lambda b: b.value("reshape", b.value("reshape", tile(b, t.int32, (4, 2)), shape=(8,)), shape=(2, 4)),
    )
    yield made("trans identity", lambda b: b.value("trans", tile(b, t.int32, (4, 4)), perm=(0, 1)))
    yield made("trans", lambda b: b.value("trans", tile(b, t.int32, (4, 4)), perm=(1, 0)))
    for one, two in product([(0, 1, 2), (1, 2, 0), (2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1)], repeat=2):
        yield made(
            f"trans {one} trans {two}",
            lambda b: b.value("trans", b.value("trans", tile(b, t.int32, (2, 4, 8)), perm=one), perm=two),
        )
    yield made("broadcast const", lambda b: b.value("broadcast", b.const(3, Tile(t.int32, (4, 1))), shape=(4, 2)))
    yield made("broadcast same", lambda b: b.value("broadcast", tile(b, t.int32, (4, 2)), shape=(4, 2)))
    yield made(
        "broadcast broadcast",
        lambda b: b.value("broadcast", b.value("broadcast", tile(b, t.int32, (1, 1)), shape=(4, 1)), shape=(4, 2)),
    )
    scalar = lambda b: b.value("load", b.const(0, Tile(Pointer(t.int32))))  # noqa: E731
    for kind, attrs in (
        ("reshape", {"shape": (8,)}),
        ("trans", {"perm": (1, 0)}),
        ("expand_dims", {"axis": 1}),
    ):
        yield made(f"{kind} splat", lambda b: b.value(kind, b.value("splat", scalar(b), shape=(4, 2)), **attrs))
    for text, name, attrs in binaries(t.int32):
        spread = lambda b, x: b.value("broadcast", x, shape=(4, 2))  # noqa: E731
        yield made(
            f"{text} splat splat",
            lambda b: b.value(name, *(b.value("splat", scalar(b), shape=(4,)) for _ in "ab"), **attrs),
        )
        yield made(
            f"{text} broadcast const",
            lambda b: b.value(name, spread(b, column(b)), b.const(5, Tile(t.int32, (4, 2))), **attrs),
        )
        yield made(
            f"{text} broadcast splat",
            lambda b: b.value(name, b.value("splat", scalar(b), shape=(4, 2)), spread(b, column(b)), **attrs),
        )
        yield made(
            f"{text} expand expand",
            lambda b: b.value(name, column(b), column(b), **attrs),
        )
    yield made(
        "select of repeated",
        lambda b: b.value(
            "select",
            b.value("cmp", b.value("splat", scalar(b), shape=(4,)), b.const(0, Tile(t.int32, (4,))), pred="lt"),
            b.value("splat", scalar(b), shape=(4,)),
            b.const(7, Tile(t.int32, (4,))),
        ),
    )


def all_terms(dtypes: tuple[Any, ...], more: int = 0) -> Iterator[Named]:
    """Every term over some dtypes."""
    for dtype in dtypes:
        for found in (*flat(dtype, more), *nested(dtype, more), *selections(dtype)):
            if found is not None:
                yield found
    for source, between in product(dtypes, dtypes):
        yield from filter(None, casts(source, between))


def everything_else() -> Iterator[Named]:
    """Terms of pointers and shapes."""
    yield from filter(None, (*pointers(), *shaped()))
