"""Generates kernel functions that a kernel calls: random ones, and combine functions for reductions and scans."""

from __future__ import annotations

from blocknb.fuzz import tree as t
from blocknb.fuzz.expressions import Shape, binary, both, cast, compare, expression, production
from blocknb.fuzz.state import State
from blocknb.fuzz.tree import SyntaxNode, Type, literal, op, var


@production("call")
def call(g: State, dtype: str, shape: Shape, depth: int) -> SyntaxNode:
    """A call of a helper with one or two parameters that returns one value."""
    if g.closed:
        return expression(g, dtype, shape, depth - 1)
    kinds = [g.dtype() for _ in range(g.r.randrange(1, 3))]
    params = tuple((f"a{i}", Type(kind, shape)) for i, kind in enumerate(kinds))
    inner = g.inside_helper(params)
    result = expression(inner, dtype, shape, 2)
    helper = _kept(g, t.Helper(g.name(f"helper{g.tag}_"), params, tuple(inner.bodies[0]), (result,)))
    args = tuple(expression(g, kind, shape, depth - 1) for kind in kinds)
    return op("call", dtype, shape, *args, helper=helper.name)


def _pick(sym: str, dtype: str, a: SyntaxNode, b: SyntaxNode) -> SyntaxNode:
    if sym in ("maximum", "minimum"):
        return op(sym, dtype, (), a, b, ct=dtype)
    return cast(binary(sym, a, b), dtype)


def combiner(g: State, dtype: str, commutes: bool) -> t.Helper:
    """A helper that combines two elements of an integer dtype; `commutes` excludes non-commutative ones."""
    kinds = ["+", "*", "^", "&", "|", "maximum", "minimum", "branch"] + ([] if commutes else ["second"])
    kind = g.pick(kinds)
    a, b = var("a", Type(dtype)), var("b", Type(dtype))
    if kind == "second":
        result = b
    elif kind == "branch":
        result = op("where", dtype, (), compare(">", a, b), a, b, ct=dtype)
    else:
        result = _pick(kind, dtype, a, b)
    return _kept(g, t.Helper(g.name(f"combine{g.tag}_"), (("a", Type(dtype)), ("b", Type(dtype))), (), (result,)))


def pair_combiner(g: State, dtype: str, other: str, commutes: bool) -> t.Helper:
    """A helper that combines two pairs: argmax, two reductions at once, or (for scans) the composition of affine maps."""
    a, i, b, j = (var(n, Type(d)) for n, d in (("a", dtype), ("i", other), ("b", dtype), ("j", other)))
    kind = g.pick(("index", "both") if commutes or dtype != other else ("index", "both", "affine"))
    if kind == "affine":
        results = cast(binary("*", a, b), dtype), cast(binary("+", binary("*", i, b), j), dtype)
    elif kind == "both":
        results = (_pick(g.pick(("+", "maximum", "^")), dtype, a, b), _pick(g.pick(("+", "minimum", "|")), other, i, j))
    else:
        tie = both(compare("==", a, b), compare("<", i, j))
        first = op("binary", "i1", (), compare(">", a, b), tie, sym="|", ct="i1")
        results = op("where", dtype, (), first, a, b, ct=dtype), op("where", other, (), first, i, j, ct=other)
    params = (("a", Type(dtype)), ("i", Type(other)), ("b", Type(dtype)), ("j", Type(other)))
    return _kept(g, t.Helper(g.name(f"combine{g.tag}_"), params, (), results))


def _kept(g: State, helper: t.Helper) -> t.Helper:
    g.helpers.append(helper)
    return helper


def several(g: State, first: str, second: str, shape: Shape) -> None:
    """Calls a helper that returns two values, or one early, with a default for its last parameter."""
    params = (("a", Type(first, shape)), ("b", Type(second, shape)), ("c", Type("i32")))
    inner = g.inside_helper(params)
    types: tuple[Type, ...] = (Type(first, shape), Type(second, shape))
    if g.chance(0.5):
        with inner.block() as early:
            inner.emit(t.Return(tuple(expression(inner, x.dtype, shape, 1) for x in types)))
        test = compare(g.pick(("<", ">", "==")), var("c", Type("i32")), literal(g.r.randrange(-3, 4)))
        inner.emit(t.If(test, tuple(early)))
    results = tuple(expression(inner, x.dtype, shape, 2) for x in types)
    default = g.r.randrange(-3, 4)
    helper = _kept(g, t.Helper(g.name(f"helper{g.tag}_"), params, tuple(inner.bodies[0]), results, (default,)))
    args = [expression(g, x.dtype, shape, 1) for x in types]
    if g.chance(0.7):
        args.append(expression(g, "i32", (), 1))
    g.lets(SyntaxNode("call", types, tuple(args), {"helper": helper.name}))
