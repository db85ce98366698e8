"""Reduces a failing kernel (delta debugging: Zeller, Hildebrandt 2002).

It removes statements, branches, operands, arguments, launches and programs while the kernel still fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from blocknb.fuzz import tree as t
from blocknb.fuzz.dtypes import is_float
from blocknb.fuzz.tree import SyntaxNode, Type


def mapped(node: SyntaxNode, change: Callable[[SyntaxNode], SyntaxNode | None]) -> SyntaxNode:
    """A node with parts replaced; `change` returns the replacement of a node, or None."""
    if (found := change(node)) is not None:
        return found
    args = tuple(mapped(arg, change) for arg in node.args)
    return node if all(a is b for a, b in zip(args, node.args, strict=True)) else replace(node, args=args)


def _exchange(old: SyntaxNode, new: SyntaxNode) -> Callable[[SyntaxNode], SyntaxNode | None]:
    return lambda node: new if node is old else None


def _inline(name: str, value: SyntaxNode) -> Callable[[SyntaxNode], SyntaxNode | None]:
    return lambda node: value if node.op == "var" and node.attrs["name"] == name else None


def mapped_body(body: tuple[Any, ...], change: Callable[[SyntaxNode], SyntaxNode | None]) -> tuple[Any, ...]:
    """The statements of a body with parts of their expressions replaced."""
    return tuple(_mapped_statement(s, change) for s in body)


def _mapped_statement(s: Any, change: Callable[[SyntaxNode], SyntaxNode | None]) -> Any:
    fields: dict[str, Any] = {}
    for name, value in vars(s).items():
        if isinstance(value, SyntaxNode):
            fields[name] = mapped(value, change)
        elif name in ("body", "then", "other"):
            fields[name] = mapped_body(value, change)
        elif name == "values":
            fields[name] = tuple(mapped(n, change) for n in value)
        elif name == "attrs" and "offsets" in value:
            fields[name] = value | {"offsets": tuple(mapped(n, change) for n in value["offsets"])}
    return replace(s, **fields) if fields else s


def all_nodes(body: tuple[Any, ...]) -> Iterator[SyntaxNode]:
    """All expressions of a body."""
    for statement in t.statements(body):
        for node in t.nodes(statement):
            yield from node.walk()


def pruned(kernel: t.KernelTree) -> t.KernelTree:
    """The kernel without unused helpers and arguments."""
    bodies = [kernel.body]
    wanted: set[str] = set()
    while True:
        found = {n.attrs["helper"] for body in bodies for n in all_nodes(body) if "helper" in n.attrs} - wanted
        if not found:
            break
        wanted |= found
        for helper in kernel.helpers:
            if helper.name in found:
                bodies += [helper.body, tuple(t.Let(("_",), r) for r in helper.results)]
    used = {n.attrs["name"] for n in all_nodes(kernel.body) if n.op == "arg"}
    bases = {a.base for a in kernel.arrays if a.name in used}
    keep = tuple(a for a in kernel.arguments if a.name in used | bases)
    return replace(kernel, arguments=keep, helpers=tuple(h for h in kernel.helpers if h.name in wanted))


def well_formed(kernel: t.KernelTree) -> bool:
    """Whether every name is assigned before it is read."""
    return _defined(kernel.body, set())


def _defined(body: tuple[Any, ...], known: set[str]) -> bool:
    for s in body:
        if any(n.op == "var" and n.attrs["name"] not in known for node in t.nodes(s) for n in node.walk()):
            return False
        inner = set(known)
        if isinstance(s, t.For):
            inner.add(s.name)
        if not all(_defined(block, set(inner)) for _, block in t.blocks(s)):
            return False
        if isinstance(s, t.Let):
            known.update(s.names)
        elif isinstance(s, t.Atomic) and s.result:
            known.add(s.result)
    return True


def _bodies_without(body: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The body without some statements, larger pieces first, or with a branch or loop replaced by its body."""
    n = len(body)
    width = n
    while width:
        for start in range(0, n, width):
            yield body[:start] + body[start + width :]
        width //= 2
    for i, s in enumerate(body):
        for name, inner in t.blocks(s):
            if inner and not (isinstance(s, t.For) and s.flavour == "tl.static_range"):
                opened = inner
                if isinstance(s, t.For):
                    low = s.low if s.low.op != "literal" else t.number(s.low.attrs["value"])
                    opened = (t.Let((s.name,), low), *inner)
                yield (*body[:i], *opened, *body[i + 1 :])
            for smaller in _bodies_without(inner):
                if smaller or name == "other":
                    yield (*body[:i], replace(s, **{name: smaller}), *body[i + 1 :])


def _past_a_cast(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """The operands of a node's operands that have its type."""
    for arg in node.args:
        for inner in arg.args:
            if isinstance(inner.type, Type) and inner.type == node.type and inner.op != "literal":
                yield inner


def _simpler(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Replacements of a node: an operand of its type, or a constant."""
    if isinstance(node.type, tuple) or node.op in ("literal", "full", "var", "arg"):
        if node.op == "full" and node.attrs["value"] not in (0, 1):
            yield replace(node, attrs={"value": 1.0 if is_float(node.type.dtype) else 1})
        return
    for arg in node.args:
        if isinstance(arg.type, Type) and arg.type == node.type and arg.op != "literal":
            yield arg
    if node.op == "load" and len(node.args) > 1:
        yield replace(node, args=node.args[:2] if len(node.args) > 2 else node.args[:1])
    if node.type.pointer or node.op in ("block_pointer", "advance"):
        return
    yield from _past_a_cast(node)
    value: Any = 1.0 if is_float(node.type.dtype) else node.type.dtype != "i1" or True
    if node.type.dtype not in ("e4nv", "e5", "weak"):
        yield t.number(
            value if is_float(node.type.dtype) or node.type.dtype == "i1" else 1, node.type.dtype, node.type.shape
        )


def _with_one_launch(kernel: t.KernelTree, launch: int) -> t.KernelTree:
    """The kernel with the scalars of one of its launches."""
    arguments = tuple(
        replace(a, values=(a.values[launch % len(a.values)],)) if isinstance(a, t.Scalar) else a
        for a in kernel.arguments
    )
    return replace(kernel, launches=1, arguments=arguments)


def candidates(kernel: t.KernelTree, launch: int) -> Iterator[t.KernelTree]:
    """Smaller kernels, the largest reductions first."""
    if kernel.launches > 1:
        yield _with_one_launch(kernel, launch)
    for body in _bodies_without(kernel.body):
        yield replace(kernel, body=body)
    if any(n > 1 for n in kernel.grid):
        yield replace(kernel, grid=tuple(1 for _ in kernel.grid))
    if kernel.options:
        yield replace(kernel, options={})
    nodes = list({id(n): n for n in all_nodes(kernel.body)}.values())
    places = {
        id(n) for s in t.statements(kernel.body) if isinstance(s, t.StoreStatement | t.Atomic) for n in s.pointer.walk()
    }
    nodes = [n for n in nodes if id(n) not in places]  # two lanes must not store to the same element
    for node in sorted(nodes, key=lambda n: -sum(1 for _ in n.walk())):
        for simple in _simpler(node):
            yield replace(kernel, body=mapped_body(kernel.body, _exchange(node, simple)))
    for name, value in _single_use(kernel).items():
        yield replace(kernel, body=mapped_body(_without_let(kernel.body, name), _inline(name, value)))
    for i, a in enumerate(kernel.arguments):
        for smaller in _smaller_argument(a):
            yield replace(kernel, arguments=(*kernel.arguments[:i], smaller, *kernel.arguments[i + 1 :]))


def _single_use(kernel: t.KernelTree) -> dict[str, SyntaxNode]:
    """The names that are assigned once and read once, with their values."""
    reads: dict[str, int] = {}
    for n in all_nodes(kernel.body):
        if n.op == "var":
            reads[n.attrs["name"]] = reads.get(n.attrs["name"], 0) + 1
    writes: dict[str, list[SyntaxNode]] = {}
    for s in t.statements(kernel.body):
        if isinstance(s, t.Let) and len(s.names) == 1:
            writes.setdefault(s.names[0], []).append(s.value)
    return {name: values[0] for name, values in writes.items() if len(values) == 1 and reads.get(name) == 1}


def _without_let(body: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    found = []
    for s in body:
        if isinstance(s, t.Let) and s.names == (name,):
            continue
        for field, inner in t.blocks(s):
            s = replace(s, **{field: _without_let(inner, name)})
        found.append(s)
    return tuple(found)


def _smaller_argument(a: Any) -> Iterator[Any]:
    if isinstance(a, t.Array):
        if a.offset and not a.base:
            yield replace(a, offset=0)
        if a.fill not in ("small", "poison"):
            yield replace(a, fill="small")
    elif not a.constexpr and a.dtype == "i32" and a.name.startswith("n"):
        for value in (0, 1, a.values[0] // 2, a.values[0] - 1):
            if 0 <= value < a.values[0]:
                yield replace(a, values=(value,) * len(a.values))


def barriers(kernel: t.KernelTree) -> int:
    return sum(isinstance(s, t.Barrier) for s in t.statements(kernel.body))


def shrink(
    kernel: t.KernelTree,
    fails: Callable[[t.KernelTree], bool],
    launch: int = 0,
    seconds: float = 60.0,
    keep_barriers: bool = False,
) -> t.KernelTree:
    """The smallest kernel found in the given time for which `fails` still holds.

    `keep_barriers` keeps the number of barriers, without which lanes of a GPU would race.
    """
    end = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < end:
        improved = False
        for candidate in candidates(kernel, launch):
            if time.monotonic() > end:
                break
            candidate = pruned(candidate)
            if keep_barriers and barriers(candidate) < barriers(kernel):
                continue
            if not well_formed(candidate) or not candidate.body:
                continue
            if fails(candidate):
                kernel, launch, improved = candidate, 0, True
                break
    return kernel
