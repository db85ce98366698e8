"""Prints a kernel's tree as Python source."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from blocknb.fuzz import tree as t
from blocknb.fuzz.dtypes import SPELLED

HEADER = "import blocknb\nimport blocknb.language as tl\n"


def spelled(value: Any) -> str:
    """A Python number as source text."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def module(kernels: list[t.KernelTree], target: str = "cpu") -> str:
    """A module of kernels and their helpers."""
    return HEADER + "".join(f"\n\n{one(kernel, target)}" for kernel in kernels)


def one(kernel: t.KernelTree, target: str = "cpu") -> str:
    """A kernel and its helpers."""
    parts = [_function(helper, target) for helper in kernel.helpers]
    names = [a.name + (": tl.constexpr" if isinstance(a, t.Scalar) and a.constexpr else "") for a in kernel.arguments]
    body = _body(kernel.body, 1, target)
    parts.append(f"@blocknb.kernel\ndef {kernel.name}({', '.join(names)}):\n{body}")
    return "\n\n".join(parts)


def _function(helper: t.Helper, target: str) -> str:
    plain = len(helper.params) - len(helper.defaults)
    names = [
        name + ("" if i < plain else f"={spelled(helper.defaults[i - plain])}")
        for i, (name, _) in enumerate(helper.params)
    ]
    body = _body(helper.body, 1, target) if helper.body else ""
    return f"@blocknb.kernel\ndef {helper.name}({', '.join(names)}):\n{body}    return {', '.join(map(text, helper.results))}\n"


def _body(body: tuple[Any, ...], depth: int, target: str) -> str:
    lines = [line for statement in body for line in _lines(statement, depth, target)]
    return "".join(f"{line}\n" for line in lines or [_indent(depth) + "pass"])


def _indent(depth: int) -> str:
    return "    " * depth


def _lines(s: Any, depth: int, target: str) -> list[str]:
    pad = _indent(depth)

    def inner(body: tuple[Any, ...]) -> list[str]:
        return _body(body, depth + 1, target).splitlines()

    match s:
        case t.Let(names, value):
            return [f"{pad}{', '.join(names)} = {text(value)}"]
        case t.StoreStatement():
            return [pad + _store(s)]
        case t.Atomic():
            mask = "" if s.mask is None else f", mask={text(s.mask)}"
            compare = "" if s.compare is None else f"{text(s.compare)}, "
            left = f"{s.result} = " if s.result else ""
            return [f"{pad}{left}tl.atomic_{s.op}({text(s.pointer)}, {compare}{text(s.value)}{mask})"]
        case t.If(condition, then, other):
            return [f"{pad}if {text(condition)}:", *inner(then), *([f"{pad}else:", *inner(other)] if other else [])]
        case t.For():
            bounds = ", ".join(text(n) for n in (s.low, s.high, s.step))
            options = "".join(f", {k}={v}" for k, v in s.options.items() if k != "dtype")
            return [f"{pad}for {s.name} in {s.flavour}({bounds}{options}):", *inner(s.body)]
        case t.While(condition, body):
            return [f"{pad}while {text(condition)}:", *inner(body)]
        case t.Return(values):
            return [f"{pad}return {', '.join(map(text, values))}".rstrip()]
        case t.Barrier(always):
            return [f"{pad}tl.debug_barrier()"] if always or target != "cpu" else []
    raise TypeError(f"no statement {s}")


def _store(s: t.StoreStatement) -> str:
    if "offsets" in s.attrs:
        return f"{text(s.pointer)}.store([{', '.join(map(text, s.attrs['offsets']))}], {text(s.value)})"
    mask = "" if s.mask is None else f", mask={text(s.mask)}"
    check = f", boundary_check={s.attrs['check']}" if s.attrs.get("check") else ""
    return f"tl.store({text(s.pointer)}, {text(s.value)}{mask}{check})"


def text(n: t.SyntaxNode) -> str:
    """The source of an expression, in parentheses if it needs them."""
    return TEXTS[n.op](n, [text(a) for a in n.args])


def _call(name: str, *keys: str) -> Callable[[t.SyntaxNode, list[str]], str]:
    """The printer of a function of the language: first the operands, then attributes by position."""
    return lambda n, a: f"tl.{name}({', '.join([*a, *(spelled(n.attrs[k]) for k in keys)])})"


def _tuple(args: list[str]) -> str:
    return args[0] if len(args) == 1 else f"({', '.join(args)})"


def _load(n: t.SyntaxNode, a: list[str]) -> str:
    parts = [a[0], *(f"mask={m}" for m in a[1:2]), *(f"other={o}" for o in a[2:3])]
    if n.attrs.get("check"):
        parts.append(f"boundary_check={n.attrs['check']}")
        parts += ['padding_option="zero"'] if n.attrs.get("padding") else []
    return f"tl.load({', '.join([*parts, *(f'{k}={v!r}' for k, v in n.attrs.get('hints', {}).items())])})"


def _block_pointer(n: t.SyntaxNode, a: list[str]) -> str:
    block, rank = n.attrs["block"], len(n.attrs["block"])
    shape, strides = a[1 : 1 + rank], a[1 + rank : 1 + 2 * rank]
    if n.attrs["descriptor"]:
        return f"tl.make_tensor_descriptor({a[0]}, [{', '.join(shape)}], [{', '.join(strides)}], {list(block)})"
    order = tuple(reversed(range(rank)))
    return (
        f"tl.make_block_ptr({a[0]}, ({', '.join(shape)},), ({', '.join(strides)},), ({', '.join(a[1 + 2 * rank :])},), "
        f"{block}, {order})"
    )


def _reduce(n: t.SyntaxNode, a: list[str]) -> str:
    keep = ", keep_dims=True" if n.attrs.get("keep") else ""
    axis = "" if n.attrs["axis"] is None else f", {n.attrs['axis']}"
    if n.attrs.get("method"):
        return f"{a[0]}.{n.attrs['name']}({axis[2:]}{keep if axis else keep[2:]})"
    return f"tl.{n.attrs['name']}({a[0]}{axis}{keep})"


def _full(n: t.SyntaxNode, a: list[str]) -> str:
    value, dtype = n.attrs["value"], SPELLED[n.type.dtype]
    if value == 0 and n.type.shape and not (isinstance(value, float) and math.copysign(1, value) < 0):
        return f"tl.zeros({n.type.shape}, {dtype})"
    return f"tl.full({n.type.shape}, {spelled(value)}, {dtype})"


def _expand(n: t.SyntaxNode, a: list[str]) -> str:
    rank, axis = len(n.type.shape), n.attrs["axis"]
    if n.attrs.get("call"):
        return f"tl.expand_dims({a[0]}, {axis})"
    return f"{a[0]}[{', '.join('None' if i == axis else ':' for i in range(rank))}]"


def _dot(n: t.SyntaxNode, a: list[str]) -> str:
    precision = f', input_precision="{n.attrs["precision"]}"' if n.attrs["precision"] else ""
    return f"tl.dot({', '.join(a)}{precision})"


def _flagged(name: str, flag: str, *keys: str) -> Callable[[t.SyntaxNode, list[str]], str]:
    def print_call(n: t.SyntaxNode, a: list[str]) -> str:
        helper = [n.attrs["helper"]] if "helper" in n.attrs else []
        fixed = [spelled(n.attrs[k]) for k in keys]
        flags = [f"{flag}=True"] if n.attrs.get("keep" if flag == "keep_dims" else flag) else []
        return f"tl.{n.attrs.get('name', name)}({', '.join([_tuple(a), *fixed, *helper, *flags])})"

    return print_call


TEXTS: dict[str, Callable[[t.SyntaxNode, list[str]], str]] = {
    "var": lambda n, a: n.attrs["name"],
    "arg": lambda n, a: n.attrs["name"],
    "full": _full,
    "literal": lambda n, a: spelled(n.attrs["value"]) if n.attrs["value"] >= 0 else f"({spelled(n.attrs['value'])})",
    "splat": lambda n, a: f"tl.full({n.type.shape}, {a[0]}, {SPELLED[n.type.dtype]})",
    "pid": _call("program_id", "axis"),
    "programs": _call("num_programs", "axis"),
    "arange": _call("arange", "start", "end"),
    "binary": lambda n, a: f"({a[0]} {n.attrs['sym']} {a[1]})",
    "compare": lambda n, a: f"({a[0]} {n.attrs['sym']} {a[1]})",
    "maximum": _call("maximum"),
    "minimum": _call("minimum"),
    "clamp": _call("clamp"),
    "fma": _call("fma"),
    "negative": lambda n, a: f"(-{a[0]})",
    "invert": lambda n, a: f"(~{a[0]})",
    "abs": _call("abs"),
    "function": lambda n, a: f"tl.{n.attrs['name']}({a[0]})",
    "cast": lambda n, a: f"{a[0]}.to({SPELLED[n.type.dtype]})",
    "bitcast": lambda n, a: f"{a[0]}.to({SPELLED[n.type.dtype]}, bitcast=True)",
    "where": _call("where"),
    "ternary": lambda n, a: f"({a[1]} if {a[0]} else {a[2]})",
    "broadcast": lambda n, a: f"tl.broadcast_to({a[0]}, {n.type.shape})",
    "reshape": _call("reshape", "shape"),
    "trans": lambda n, a: f"tl.{n.attrs.get('name', 'permute')}({a[0]}, {n.attrs['perm']})",
    "expand": _expand,
    "flip": _call("flip", "axis"),
    "xor_shuffle": _call("xor_shuffle", "axis", "mask"),
    "split": _call("split"),
    "join": _call("join"),
    "interleave": _call("interleave"),
    "cat": _call("cat"),
    "reduce": _reduce,
    "extreme": lambda n, a: f"tl.{n.attrs['name']}({a[0]}, {n.attrs['axis']}, return_indices=True)",
    "scan": _flagged("cumsum", "reverse", "axis"),
    "combine": _flagged("reduce", "keep_dims", "axis"),
    "combine_scan": _flagged("associative_scan", "reverse", "axis"),
    "sort": lambda n, a: f"tl.sort({a[0]}, {n.attrs['axis']}{', descending=True' if n.attrs['descending'] else ''})",
    "gather": _call("gather", "axis"),
    "histogram": _call("histogram", "bins"),
    "dot": _dot,
    "umulhi": _call("umulhi"),
    "cdiv": _call("cdiv"),
    "randint": _call("randint"),
    "topk": lambda n, a: f"tl.topk({a[0]}, {n.attrs['k']}, {n.attrs['axis']})",
    "not_none": lambda n, a: f"{n.attrs['name']} is not None",
    "is_set": lambda n, a: n.attrs["name"],
    "promise": lambda n, a: f"tl.{n.attrs['name']}({a[0]}, {n.attrs['value']})",
    "pointer_where": _call("where"),
    "offset": lambda n, a: f"({a[0]} + {a[1]})",
    "load": _load,
    "block_pointer": _block_pointer,
    "advance": lambda n, a: f"tl.advance({a[0]}, ({', '.join(a[1:])},))",
    "descriptor_load": lambda n, a: f"{a[0]}.load([{', '.join(a[1:])}])",
    "call": lambda n, a: f"{n.attrs['helper']}({', '.join(a)})",
}
