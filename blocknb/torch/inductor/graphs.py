"""Runs the generated file of a graph, and keeps what its comments say about the origins of each kernel."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from blocknb.errors import KernelError
from blocknb.torch.inductor import fragments, fusion_graph, origins, sources
from blocknb.torch.inductor.fusion_graph import GraphOperator, OperatorGraph
from blocknb.torch.inductor.graph_breaks import GraphBreak


@dataclass(frozen=True)
class Origin:
    """The origins of a kernel: its name in the graph, the ATen operators, the user's lines as (file, line, text), the graph's file."""

    kernel: str
    operators: tuple[str, ...] = ()
    lines: tuple[tuple[str, int, str], ...] = ()
    graph: str = field(default="", compare=False)

    def __str__(self) -> str:
        where = "; ".join(f"{file}:{line}: {text}" for file, line, text in self.lines) or "no line known"
        return f"the kernel {self.kernel}, which fuses {', '.join(self.operators) or 'no known operators'}, of {where}"


@dataclass(frozen=True)
class GraphFile:
    """A generated file of a graph. `groups` maps the line of a kernel's call to the index of its group in `graph`. `graph_break` is the
    break that ends the graph, if one does."""

    path: str
    graph: OperatorGraph
    groups: dict[int, int]
    graph_break: GraphBreak | None


@dataclass(frozen=True)
class CallSite:
    """The call of a kernel in a graph: the graph's file and the index of the kernel's group in it (-1: unknown)."""

    file: GraphFile
    group: int

    @property
    def members(self) -> list[GraphOperator]:
        """The operators of the group."""
        graph = self.file.graph
        return [graph.operators[i] for i in graph.groups[self.group].operators] if self.group >= 0 else []


#: The graphs that this process has loaded, by path.
_files: dict[str, GraphFile] = {}
#: The break after the graph that is being compiled.
_breaks: list[GraphBreak | None] = [None]
_CALL = re.compile(r"\s*(\w+)\.run\(")


@contextlib.contextmanager
def ended_by(found: GraphBreak | None) -> Iterator[None]:
    """Inside, graphs are compiled that this break ends."""
    _breaks.append(found)
    try:
        yield
    finally:
        _breaks.pop()


def call_site() -> CallSite | None:
    """The place in a generated graph that calls the running function; None if no graph is on the stack."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _files:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return None
    file = _files[frame.f_code.co_filename]
    return CallSite(file, file.groups.get(frame.f_lineno, -1))


#: The origins of the kernels that Inductor has loaded, by their autotuner.
_of: weakref.WeakKeyDictionary[Any, Origin] = weakref.WeakKeyDictionary()


def origin_of(autotuner: Any) -> Origin:
    """The origins of a kernel; only its name if no graph recorded them."""
    return _of.get(autotuner) or Origin(str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__))


def adopt(autotuner: Any, generated: Any) -> None:
    """Gives a kernel in place of a generated one its origins."""
    origin = origin_of(generated)
    _of[autotuner] = replace(origin, kernel=f"{autotuner.fn.__name__} in place of {origin.kernel}")


def _parsed(text: str, path: str) -> dict[str, Origin]:
    """The origins by kernel. A kernel that equal parts of a graph share has the origins of all of them."""
    found: dict[str, Origin] = {}
    for told in _comments(text, origins.COMMENT):
        old = found.get(told["kernel"], Origin(told["kernel"]))
        lines = tuple((file, number, text) for file, number, text in told["lines"])
        found[told["kernel"]] = Origin(
            told["kernel"],
            tuple(dict.fromkeys((*old.operators, *told["operators"]))),
            tuple(sorted({*old.lines, *lines})),
            path,
        )
    return found


def _comments(text: str, head: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(head)) for line in text.splitlines() if line.startswith(head)]


def _graph_file(text: str, path: str) -> GraphFile | None:
    """The graph of a generated file; None for the file of a single kernel."""
    graph = _comments(text, fusion_graph.COMMENT)
    if not graph:
        return None
    groups: dict[str, list[int]] = {}
    for told in _comments(text, origins.COMMENT):
        groups.setdefault(told["kernel"], []).append(told.get("group", -1))
    calls: dict[str, list[int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if (call := _CALL.match(line)) and call[1] in groups:
            calls.setdefault(call[1], []).append(number)
    names = {group: kernel for kernel, found in groups.items() for group in found}
    by_line = {
        line: found[i] if len(found) == len(lines) else found[0]
        for kernel, lines in calls.items()
        for i, line in enumerate(lines)
        for found in (groups[kernel],)
    }
    return GraphFile(path, OperatorGraph.parsed(graph[0], names), by_line, _breaks[-1])


def run_file(key: str, path: str, text: str) -> types.ModuleType:
    """Runs a generated file, of a graph or of one kernel. An error of the compiler names the origins of its kernel."""
    known = _parsed(text, path)
    if (file := _graph_file(text, path)) is not None:
        _files[path] = file
    try:
        module = sources.load(key, path, text)
    except KernelError as error:
        raise explained(error, known) from error
    for name, origin in known.items():
        if (autotuner := getattr(module, name, None)) is not None:
            _of[autotuner] = origin
    fragments.remember(text, module)
    return module


def explained(error: KernelError, known: dict[str, Origin]) -> KernelError:
    """Adds the origins of the kernel to the message of an error, once they are known."""
    name = getattr(error, "generated_kernel", None)
    if name in known and not getattr(error, "explained", False):
        error.message = f"{error.message}\n  in {known[name]}"
        error.args = (error.message,)
        error.explained = True  # type: ignore[attr-defined]
    return error
