"""Generates random elementwise expressions of a given dtype and shape.

Other modules register further productions: ops on whole tiles, loads and calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blocknb.fuzz import dtypes
from blocknb.fuzz.dtypes import FLOATS, INTEGERS, bits, is_float, promote
from blocknb.fuzz.state import State
from blocknb.fuzz.tree import Scalar, SyntaxNode, literal, number, op, var

Shape = tuple[int, ...]
#: Weights of the ops.
EITHER = {"+": 4, "-": 3, "weak": 3, "minmax": 2, "where": 3, "cast": 3, "ternary": 0.5, "call": 0.6}
FLOAT_OPS = EITHER | {"*": 4, "/": 1, "%": 0.3, "negative": 1, "abs": 1}
FLOAT_OPS |= {"function": 2.5, "fma": 1, "clamp": 0.6, "condition": 0.4, "float8": 0.4}
INTEGER_OPS = EITHER | {"*": 3, "bits": 3, "shift": 2, "divide": 1.5, "negative": 0.7}
INTEGER_OPS |= {"invert": 0.7, "abs": 0.6, "condition": 1.5, "bitcast": 0.4}
#: Productions that other modules define, by name: ops on whole tiles, loads, calls of helpers.
PRODUCTIONS: dict[str, Callable[..., Any]] = {}
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def production(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function that generates parts of expressions. `generate` imports the modules that define such functions."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PRODUCTIONS[name] = function
        return function

    return register


def expression(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    """An expression of exactly this type."""
    g.budget -= 1
    if depth <= 0 or g.budget <= 0:
        return leaf(g, dtype, shape)
    if shape and g.chance(0.36):
        found = PRODUCTIONS["tile op"](g, dtype, shape, depth)
        if found is not None:
            return maybe_named(g, convert(g, found, dtype))
    if dtype == "i1":
        return maybe_named(g, condition(g, shape, depth))
    if dtype in dtypes.FLOAT8:
        return cast(expression(g, g.dtype(FLOATS), shape, depth - 1), dtype)
    make = _float if is_float(dtype) else _integer
    return maybe_named(g, make(g, dtype, shape, depth))


def maybe_named(g: State, node: SyntaxNode) -> SyntaxNode:
    """The expression itself, or sometimes a name that is bound to it."""
    return g.let(node) if g.chance(0.15) else node


def _name_leaf(g: State, dtype: str, shape: Shape) -> SyntaxNode | None:
    """Sometimes a name in scope of this shape, converted if its dtype differs."""
    names = g.names_of(shape)
    same = [n for n in names if n.type.dtype == dtype]
    if same and g.chance(0.75):
        return g.pick(same)
    if names and g.chance(0.65):
        return convert(g, g.pick(names), dtype)
    return None


def leaf(g: State, dtype: str, shape: Shape) -> SyntaxNode:
    """An expression without operands: a name, a load, a scalar, a range or a constant."""
    if (name := _name_leaf(g, dtype, shape)) is not None:
        return name
    if not g.closed and g.loads > 0 and g.chance(0.7 if shape else 0.25):
        found = PRODUCTIONS["load"](g, dtype if dtype != "i1" or g.chance(0.4) else g.dtype(), shape)
        return convert(g, found, dtype)
    if not shape and not g.closed and g.chance(0.6):
        return convert(g, scalar_leaf(g), dtype)
    if len(shape) == 1 and shape[0] > 1 and g.chance(0.3):
        return convert(g, op("arange", "i32", shape, start=0, end=shape[0]), dtype)
    smaller = [n for n in _visible(g) if n.type.shape and _broadcasts(n.type.shape, shape)]
    if smaller and g.chance(0.6):
        return broadcast(convert(g, g.pick(smaller), dtype), shape)
    return number(constant(g, dtype), dtype, shape)


def _visible(g: State) -> list[SyntaxNode]:
    return [var(name, type) for name, type in g.visible() if not type.pointer]


def _broadcasts(shape: Shape, wanted: Shape) -> bool:
    return (
        len(shape) == len(wanted) and shape != wanted and all(a in (1, b) for a, b in zip(shape, wanted, strict=True))
    )


def broadcast(node: SyntaxNode, shape: Shape) -> SyntaxNode:
    return op("broadcast", node.type.dtype, shape, node)


def scalar_leaf(g: State) -> SyntaxNode:
    """A run-time scalar: a program id, an argument, a count of programs."""
    kind = g.weighted({"pid": 3, "old": 4, "new": 2, "programs": 1})
    old = [a for a in g.arguments if isinstance(a, Scalar) and a.name.startswith("s")]
    if kind == "pid":
        return op("pid", "i32", (), axis=g.r.randrange(3))
    if kind == "programs":
        return op("programs", "i32", (), axis=g.r.randrange(3))
    if kind == "old" and old:
        chosen = g.pick(old)
        return typed_argument(op("arg", chosen.dtype, (), name=chosen.name, constexpr=chosen.constexpr))
    dtype = g.pick(("i32", "i32", "f32", "i64", "i1"))
    if dtype == "f32":
        return g.scalar(dtype, [g.r.randrange(-40, 40) / 8 for _ in range(g.launches)])
    if dtype == "i1":
        return g.scalar(dtype, [g.chance(0.5) for _ in range(g.launches)])
    if dtype == "i64":
        return g.scalar(dtype, [g.r.randrange(2**31, 2**40) * g.pick((-2, 2)) for _ in range(g.launches)])
    constexpr = g.chance(0.25)
    values = [g.pick((-7, -3, 2, 3, 5, 16, 100, 64)) for _ in range(g.launches)]
    return typed_argument(g.scalar(dtype, values, constexpr=constexpr))


def typed_argument(node: SyntaxNode) -> SyntaxNode:
    """A constexpr argument converted to a run-time scalar of its dtype."""
    return SyntaxNode("splat", node.type, (node,)) if node.attrs["constexpr"] else node


def constant(g: State, dtype: str) -> Any:
    if dtype == "i1":
        return g.chance(0.5)
    if is_float(dtype):
        return g.pick((0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 0.125, 7.0, g.r.randrange(-64, 64) / 8))
    low, high = dtypes.limits(dtype)
    return g.pick((0, 1, 2, 3, 7, 10, high, low, high - 1, max(low, -1), max(low, -5)))


def weak(g: State, dtype: str) -> SyntaxNode:
    """A Python number that does not change the dtype of the other operand."""
    if is_float(dtype):
        return literal(g.pick((0.5, 2.0, -1.5, 1.0, 3, 2, -1, 0.25)))
    return literal(g.pick((1, 2, 3, 5, 7, 100) if dtypes.is_unsigned(dtype) else (1, 2, 3, -1, -3, 5, 100)))


def cast(node: SyntaxNode, dtype: str) -> SyntaxNode:
    return node if node.type.dtype == dtype else op("cast", dtype, node.type.shape, node)


def cast_always(node: SyntaxNode, dtype: str) -> SyntaxNode:
    """A cast even to the same dtype, since some ops leave 16-bit floats in fp32 and narrow integers in 32 bits."""
    return op("cast", dtype, node.type.shape, node) if bits(dtype) < 32 or node.type.dtype != dtype else node


def convert(g: State, node: SyntaxNode, dtype: str) -> SyntaxNode:
    """Converts to another dtype by a cast, a comparison or sometimes a bitcast."""
    have = node.type.dtype
    if have == dtype:
        return node
    if dtype == "i1":
        if have in dtypes.FLOAT8:
            node = cast(node, "f32")
        return compare(g.pick(COMPARISONS), node, weak(g, node.type.dtype))
    if have in dtypes.FLOAT8 and not is_float(dtype):
        node = cast(node, "f32")
    integers = have in INTEGERS and dtype in INTEGERS
    if integers and bits(have) == bits(dtype) and g.chance(0.2):
        return op("bitcast", dtype, node.type.shape, node)
    if dtype in dtypes.FLOAT8 and not is_float(have):
        node = cast(node, "f32")
    return cast(node, dtype)


def _promoted(a: SyntaxNode, b: SyntaxNode, divides: bool = False) -> str:
    """The dtype of two operands; a literal takes the other's dtype (a float literal and an integer give fp32)."""
    kinds = [x.type.dtype for x in (a, b) if x.op != "literal"]
    ct = promote(kinds[0], kinds[-1], divides)
    floats = any(isinstance(x.attrs.get("value"), float) for x in (a, b) if x.op == "literal")
    return "f32" if floats and not is_float(ct) else ct


def compare(sym: str, a: SyntaxNode, b: SyntaxNode) -> SyntaxNode:
    return op("compare", "i1", _common(a, b), a, b, sym=sym, ct=_promoted(a, b))


def _common(*nodes: SyntaxNode) -> Shape:
    shapes = [n.type.shape for n in nodes if n.op != "literal"]
    rank = max(len(s) for s in shapes)
    padded = [s for s in shapes if len(s) == rank]
    return tuple(max(s[i] for s in padded) for i in range(rank))


def binary(sym: str, a: SyntaxNode, b: SyntaxNode) -> SyntaxNode:
    """`a sym b` with promotion."""
    ct = _promoted(a, b, sym in ("/", "%"))
    if sym == "/" and not is_float(ct):
        ct = "f32"
    return op("binary", ct, _common(a, b), a, b, sym=sym, ct=ct)


def both(a: SyntaxNode, b: SyntaxNode) -> SyntaxNode:
    """The conjunction of two conditions."""
    return op("binary", "i1", _common(a, b), a, b, sym="&", ct="i1")


def zeros(dtype: str, shape: Shape) -> SyntaxNode:
    return number(0.0 if is_float(dtype) else 0, dtype, shape)


def operand(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    """An operand that broadcasts to this shape: one of the shape, a scalar, or one with an axis of size one."""
    if shape and g.chance(0.15):
        return expression(g, dtype, (), depth - 1)
    if len(shape) > 1 and g.chance(0.2):
        axis = g.r.randrange(len(shape))
        return expression(g, dtype, (*shape[:axis], 1, *shape[axis + 1 :]), depth - 1)
    return expression(g, dtype, shape, depth - 1)


def pair(g: State, dtype: str, shape: Shape, depth: int) -> tuple[SyntaxNode, SyntaxNode]:
    """Two operands whose promoted dtype is `dtype` or narrower; the first one has the shape."""
    first = dtype
    if g.chance(0.25):
        narrower = [d for d in (*INTEGERS, *FLOATS) if promote(d, dtype) == dtype]
        first = g.pick(narrower) if narrower else dtype
    second = dtype if promote(first, dtype) == dtype else first
    a, b = expression(g, first, shape, depth - 1), operand(g, second, shape, depth)
    if a.type.shape != shape:
        a = broadcast(a, shape)
    return (a, b) if g.chance(0.7) or not b.type.shape else (b, a)


def _common_ops(g: State, kind: str, dtype: str, shape: Shape, depth: int) -> SyntaxNode | None:
    if kind == "minmax":
        a, b = pair(g, dtype, shape, depth)
        ct = promote(a.type.dtype, b.type.dtype)
        return cast_always(op(g.pick(("maximum", "minimum")), ct, shape, a, b, ct=ct), dtype)
    if kind == "where":
        a, b = pair(g, dtype, shape, depth)
        ct = promote(a.type.dtype, b.type.dtype)
        return op("where", ct, shape, condition(g, shape, depth - 1), a, b, ct=ct)
    if kind == "ternary":
        test, *arms = condition(g, (), 1), *(expression(g, dtype, shape, depth - 1) for _ in range(2))
        return op("ternary", dtype, shape, test, *arms)
    if kind in ("negative", "abs"):
        return op(kind, dtype, shape, expression(g, dtype, shape, depth - 1))
    if kind == "cast":
        return convert(g, expression(g, g.dtype(), shape, depth - 1), dtype)
    if kind == "condition":
        return cast(condition(g, shape, depth - 1), dtype)
    if kind == "call":
        return PRODUCTIONS["call"](g, dtype, shape, depth)
    return None


def _float(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    kind = g.weighted(FLOAT_OPS)
    if (found := _common_ops(g, kind, dtype, shape, depth)) is not None:
        return cast(found, dtype)
    if kind in ("+", "-", "*"):
        return cast(binary(kind, *pair(g, dtype, shape, depth)), dtype)
    if kind == "weak":
        a, b = expression(g, dtype, shape, depth - 1), weak(g, dtype)
        return cast(binary(g.pick("+-*"), *((a, b) if g.chance(0.7) else (b, a))), dtype)
    if kind in ("/", "%"):
        over = expression(g, dtype, shape, depth - 1)
        under = g.pick((literal(4.0), literal(3.0), None))
        if under is None:
            magnitude = op("abs", dtype, shape, expression(g, dtype, shape, depth - 1))
            under = binary("+", magnitude, literal(1.0))
        return cast(binary(kind, over, under), dtype)
    if kind == "float8":
        return cast(cast(expression(g, dtype, shape, depth - 1), g.pick(dtypes.FLOAT8)), dtype)
    if kind == "clamp":
        a = expression(g, dtype, shape, depth - 1)
        low, high = literal(g.pick((-2.0, 0.0))), literal(g.pick((1.0, 6.0)))
        return cast_always(op("clamp", dtype, shape, a, low, high, ct=dtype), dtype)
    if kind == "fma":
        wide = dtype if dtype in ("f32", "f64") else "f32"
        terms = [expression(g, wide, shape, depth - 1) for _ in range(3)]
        return cast(op("fma", wide, shape, *terms, ct=wide), dtype)
    return _function(g, dtype, shape, depth)


def _function(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    wide = dtype if dtype in ("f32", "f64") else "f32"
    name = g.pick((
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "floor", "ceil", "floor", "sigmoid", "tanh",
        "sqrt_rn",
    ))  # fmt: skip
    x = expression(g, wide, shape, depth - 1)
    if name in ("log", "log2", "sqrt", "rsqrt", "sqrt_rn"):
        x = binary("+", SyntaxNode("abs", x.type, (x,)), literal(0.125))
    elif name not in ("floor", "ceil"):
        low = SyntaxNode("maximum", x.type, (x, literal(-8.0)), {"ct": wide})
        x = SyntaxNode("minimum", x.type, (low, literal(8.0)), {"ct": wide})
    return cast(op("function", wide, shape, x, name=name), dtype)


def _integer(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    kind = g.weighted(INTEGER_OPS)
    if kind == "negative" and dtypes.is_unsigned(dtype):
        kind = "invert"
    if (found := _common_ops(g, kind, dtype, shape, depth)) is not None:
        return cast(found, dtype)
    if kind in ("+", "-", "*"):
        return cast(binary(kind, *pair(g, dtype, shape, depth)), dtype)
    if kind == "bits":
        return cast(binary(g.pick("&|^"), *pair(g, dtype, shape, depth)), dtype)
    if kind == "weak":
        a, b = expression(g, dtype, shape, depth - 1), weak(g, dtype)
        return cast(binary(g.pick("+-*&|^"), *((a, b) if g.chance(0.7) else (b, a))), dtype)
    if kind == "shift":
        a = expression(g, dtype, shape, depth - 1)
        amount = literal(g.r.randrange(bits(dtype)))
        if g.chance(0.5):
            amount = expression(g, dtype, shape, depth - 1)
            if g.chance(0.7):
                amount = binary("&", amount, literal(bits(dtype) - 1))
        return cast(binary(g.pick(("<<", ">>")), a, amount), dtype)
    if kind == "divide":
        over = expression(g, dtype, shape, depth - 1)
        under = literal(g.pick((2, 3, 7, 8, 10) if dtypes.is_unsigned(dtype) else (2, 3, 7, 8, 10, -3)))
        if g.chance(0.5):
            under = expression(g, dtype, shape, depth - 1)
            if g.chance(0.6):
                under = binary("+", binary("&", under, literal(15)), literal(1))
        return cast(binary(g.pick(("//", "%")), over, under), dtype)
    if kind == "bitcast":
        same = {8: ("e5",), 16: ("f16", "bf16"), 32: ("f32",), 64: ("f64",)}[bits(dtype)]
        source = g.pick(same)
        if source in dtypes.FLOAT8:
            inner = cast(expression(g, "f32", shape, depth - 1), source)
        else:
            inner = expression(g, source, shape, depth - 1)
        return op("bitcast", dtype, shape, inner)
    return op("invert", dtype, shape, expression(g, dtype, shape, depth - 1))


def condition(g: State, shape: Shape, depth: int) -> SyntaxNode:
    """A boolean tile or scalar."""
    kind = g.weighted({"compare": 6, "and": 1.5, "or": 1, "xor": 0.3, "not": 1, "name": 1.5})
    names = g.names_of(shape, "i1")
    if kind == "name" and names:
        return g.pick(names)
    if depth <= 0 or kind in ("compare", "name"):
        a = expression(g, g.dtype(), shape, depth - 1)
        if g.chance(0.5):
            return compare(g.pick(COMPARISONS), a, weak(g, a.type.dtype))
        b = operand(g, g.dtype() if g.chance(0.3) else a.type.dtype, shape, depth)
        return compare(g.pick(COMPARISONS), a, b)
    if kind == "not":
        return op("invert", "i1", shape, condition(g, shape, depth - 1))
    a, b = condition(g, shape, depth - 1), condition(g, shape, depth - 1)
    sym = {"and": "&", "or": "|", "xor": "^"}[kind]
    return op("binary", "i1", shape, a, b, sym=sym, ct="i1")
