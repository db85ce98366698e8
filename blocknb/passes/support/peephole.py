"""Peephole rules: an op whose value is known, is one of its operands, or is cheaper in another form.

`simplify` calls `identity` with operands that are already simplified. A rule returns the Value that replaces the result, or None. It
makes new ops with `rewriter.make`, which simplifies them in turn. All rules are exact: integers wrap as before, and floats keep every
bit. So `x + 0.0` stays (it turns -0.0 into 0.0), and `x * 1.0` goes.
"""

from __future__ import annotations

import math
from typing import Any

from blocknb.analysis.axis_info import PROMISES
from blocknb.ir.core import Op, Value
from blocknb.language.float8 import FORMATS
from blocknb.language.ops import OPS, named
from blocknb.language.types import Tile
from blocknb.passes.support.rewriting import RewriteContext
from blocknb.passes.support.tile_modulo import whole_tile

COMMUTATIVE = named("associative")
OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt"}


def identity(op: Op, rewriter: RewriteContext) -> Value | None:
    """The value that replaces an op without blocks, by the first rule that matches; None if no rule does."""
    if op.name == "rem" and op.result.type.shape and (value := whole_tile(op, rewriter)) is not None:
        return value
    if any(name in op.attrs for name in PROMISES):
        return None
    if OPS[op.name].kind == "shape":
        return _shape(op, rewriter)
    if OPS[op.name].kind == "elementwise":
        return _algebra(op, rewriter) or _before_repeating(op, rewriter)
    return None


# -- shapes --------------------------------------------------------------------------------------------------------------


def _shape(op: Op, rewriter: RewriteContext) -> Value | None:
    (x,), kind, type = op.args, op.name, op.result.type
    if x.type == type and (kind != "trans" or tuple(op.attrs["perm"]) == tuple(range(len(type.shape)))):
        return x
    if (constant := rewriter.constant(x)) is not None:
        return rewriter.const(constant, type)
    inner = rewriter.definition.get(x)
    if inner is None or any(name in inner.attrs for name in PROMISES):
        return None
    match inner.name, kind:
        case "splat", _:
            return rewriter.make("splat", inner.args[0], **_form(type))
        case "reshape", "reshape":
            return rewriter.make(kind, inner.args[0], shape=type.shape)
        case "broadcast", "broadcast":
            return rewriter.make(kind, inner.args[0], **_form(type))
        case "trans", "trans":
            perm = tuple(inner.attrs["perm"][i] for i in op.attrs["perm"])
            return rewriter.make("trans", inner.args[0], perm=perm)
    return None


def _form(type: Tile) -> dict[str, Any]:
    """The attributes of a splat or broadcast to a type."""
    return {"shape": type.shape} if type.layout is None else {"shape": type.shape, "layout": type.layout}


def _before_repeating(op: Op, rewriter: RewriteContext) -> Value | None:
    """Moves an op before a repetition: an op on splats, or on broadcasts or expansions of one kind, is applied to their operands."""
    if op.result.type.is_scalar:
        return None
    makers = [rewriter.definition.get(a) for a in op.args]
    lead = next((m for m in makers if m is not None and m.name in ("broadcast", "expand_dims")), None)
    if lead is not None and any(name in lead.attrs for name in PROMISES):
        return None
    repeated = Tile(op.result.type.dtype) if lead is None else lead.args[0].type
    inner = []
    for arg, maker in zip(op.args, makers, strict=True):
        if maker is None:
            return None
        if (
            lead is not None
            and maker.name == lead.name
            and maker.attrs == lead.attrs
            and maker.args[0].type == repeated.with_dtype(arg.type.dtype)
        ):
            inner.append(maker.args[0])
        elif maker.name == "splat":
            inner.append(rewriter.make("splat", maker.args[0], **_form(repeated)) if repeated.shape else maker.args[0])
        elif maker.name == "const":
            inner.append(rewriter.const(maker.attrs["value"], repeated.with_dtype(arg.type.dtype)))
        else:
            return None
    value = rewriter.make(op.name, *inner, **op.attrs)
    rewriter.count("before", op.name)
    if lead is None:
        return rewriter.make("splat", value, **_form(op.result.type))
    return rewriter.make(lead.name, value, **lead.attrs)


# -- algebra -------------------------------------------------------------------------------------------------------------


def _algebra(op: Op, rewriter: RewriteContext) -> Value | None:
    args, dtype = op.args, op.result.type.dtype
    constants = [rewriter.constant(a) for a in args]
    if (value := rewriter.fold(op, constants)) is not None:
        return rewriter.const(value, op.result.type)
    match op.name:
        case "select":
            return _select(op, constants[0], rewriter)
        case "cast":
            return _cast(op, rewriter)
        case "bitcast":
            return args[0] if args[0].type == op.result.type else None
        case "ptradd":
            return args[0] if constants[1] == 0 else None
        case "cmp":
            return _compare(op, constants, rewriter)
        case "not" | "neg":
            return _inverted(op, rewriter)
    if len(args) != 2:
        return None
    if dtype.is_float:
        return _float(op, constants[1], rewriter) or (
            _float(op, constants[0], rewriter, 1) if op.name == "mul" else _product_sum(op, rewriter)
        )
    return _integer(op, constants, rewriter) or (_product_sum(op, rewriter) if op.name == "add" else None)


def _inverted(op: Op, rewriter: RewriteContext) -> Value | None:
    """`not not x`, `--x`, and the opposite of a comparison of integers."""
    inner = rewriter.definition.get(op.args[0])
    if inner is None:
        return None
    if inner.name == op.name:
        return inner.args[0]
    if op.name == "not" and inner.name == "cmp" and not inner.args[0].type.dtype.is_float:
        return rewriter.make("cmp", *inner.args, pred=OPPOSITE[inner.attrs["pred"]])
    return None


def _select(op: Op, condition: Any, rewriter: RewriteContext) -> Value | None:
    mask, a, b = op.args
    if a is b or condition is not None:
        return a if a is b or condition else b
    inner = rewriter.definition.get(mask)
    if inner is not None and inner.name == "not":
        return rewriter.make("select", inner.args[0], b, a)
    return None


def _cast(op: Op, rewriter: RewriteContext) -> Value | None:
    """Removes a cast to the same type, and a lossless cast with its inverse."""
    (x,) = op.args
    if x.type == op.result.type:
        return x
    inner = rewriter.definition.get(x)
    if op.result.type.dtype.is_fp8() and inner is not None and inner.name in ("min", "max"):
        return _saturated(op, inner, rewriter)
    if inner is None or inner.name != "cast" or inner.args[0].type != op.result.type:
        return None
    near, far = inner.args[0].type.dtype, x.type.dtype
    if near.is_float != far.is_float or near.is_fp8():  # an fp8's infinity does not survive the round trip
        return None
    wider = far.bits >= near.bits if not near.is_float else (near.bits < far.bits)
    return inner.args[0] if wider and near.kind != "bool" else None


def _saturated(op: Op, bound: Op, rewriter: RewriteContext) -> Value | None:
    """Removes an upper or lower bound before a cast to fp8 that saturates there anyway: half of a clamp.

    A NaN becomes the bound, unless `bound` passes NaNs on, as the cast does. So the other operand must not be a NaN."""
    x, limit = _bounded(bound, rewriter)
    if limit is None or not limit * (1 if bound.name == "min" else -1) >= FORMATS[op.result.type.dtype.name].maximum:
        return None
    inner = rewriter.definition.get(x)
    if not bound.attrs.get("nan"):
        if inner is None or inner.name not in ("min", "max") or inner.attrs.get("nan"):
            return None
        number = _bounded(inner, rewriter)[1]
        if number is None or number != number:
            return None
    return rewriter.make("cast", x, **op.attrs)


def _bounded(op: Op, rewriter: RewriteContext) -> tuple[Value, Any]:
    """The operand of a minimum or maximum with a constant, and the constant; None if there is none."""
    a, b = op.args
    constants = rewriter.constant(a), rewriter.constant(b)
    return (a, constants[1]) if constants[0] is None else (b, constants[0])


def _compare(op: Op, constants: list, rewriter: RewriteContext) -> Value | None:
    a, b = op.args
    inner = rewriter.definition.get(a)
    if constants[1] == 0 and op.attrs["pred"] in ("ne", "eq") and inner is not None and inner.name == "cast":
        (x,) = inner.args
        if x.type.dtype.kind == "bool":
            return x if op.attrs["pred"] == "ne" else rewriter.make("not", x)
    if a is b and not a.type.dtype.is_float:
        return rewriter.const(op.attrs["pred"] in ("eq", "le", "ge"), op.result.type)
    return None


def _float(op: Op, constant: Any, rewriter: RewriteContext, at: int = 0) -> Value | None:
    """Rules for `operand op constant`, where the operand is number `at`."""
    if constant is None:
        return None
    x, negative = op.args[at], math.copysign(1.0, constant) < 0
    match op.name:
        case "mul" | "div" if constant == 1.0:
            return x
        case "sub" if constant == 0.0 and not negative:
            return x
        case "add" if constant == 0.0 and negative:
            return x
        case "div" if math.isfinite(constant) and constant and abs(math.frexp(constant)[0]) == 0.5:
            # A product with the reciprocal of a power of two gives the same rounded number, and is cheaper. It must not be subnormal.
            if 2.0**-14 <= abs(1 / constant) <= 2.0**14:
                return rewriter.make("mul", x, rewriter.const(1 / constant, op.result.type))
    return None


def _integer(op: Op, constants: list, rewriter: RewriteContext) -> Value | None:
    (a, b), dtype, type = op.args, op.result.type.dtype, op.result.type
    left, right = constants
    if left is not None and right is None and op.name in COMMUTATIVE:
        return rewriter.make(op.name, b, a, **op.attrs)
    ones = 1 if dtype.kind == "bool" else (1 << dtype.bits) - 1 if dtype.kind == "uint" else -1
    match op.name:
        case "add" | "sub" | "or" | "xor" | "shl" | "shr" if right == 0:
            return a
        case "mul" | "div" if right == 1:
            return a
        case "mul" | "and" if right == 0:
            return b
        case "rem" if right == 1:
            return rewriter.const(0, type)
        case "and" if right == ones:
            return a
        case "or" if right == ones:
            return b
        case "sub" | "xor" if a is b:
            return rewriter.const(False if dtype.kind == "bool" else 0, type)
        case "min" | "max" | "and" | "or" if a is b:
            return a
        case "add" | "mul" if right is not None:
            return _regroup(op, a, b, rewriter)
    return None


def _regroup(op: Op, a: Value, b: Value, rewriter: RewriteContext) -> Value | None:
    """`(x + 1) + 2` is `x + 3`: wrapping arithmetic is associative."""
    inner = rewriter.definition.get(a)
    if inner is None or inner.name != op.name or rewriter.constant(inner.args[1]) is None:
        return None
    return rewriter.make(op.name, inner.args[0], rewriter.make(op.name, inner.args[1], b))


def _product_sum(op: Op, rewriter: RewriteContext) -> Value | None:
    """`c + dot(a, b, 0)` becomes `dot(a, b, c)`, which is one instruction. This is the only sum that the rules reassociate."""
    if op.name != "add":
        return None
    for product, other in (op.args, op.args[::-1]):
        inner = rewriter.definition.get(product)
        if (
            inner is not None
            and inner.name == "dot"
            and rewriter.constant(inner.args[2]) == 0
            and rewriter.used_here_only(product)
        ):
            made = rewriter.make("dot", *inner.args[:2], other, **inner.attrs)
            rewriter.note(rewriter.definition[made], "the sum is the accumulator: dot(a, b) + c becomes dot(a, b, c)")
            return made
    return None
