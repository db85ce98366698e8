"""Runs the generated file of a graph, and keeps what its comments say about the origins of each kernel."""

from __future__ import annotations

import json
import types
import weakref
from dataclasses import dataclass, field, replace
from typing import Any

from blocknb.errors import KernelError
from blocknb.torch.inductor import fragments, origins, sources


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


#: The origins of the kernels that Inductor has loaded, by their autotuner.
_of: weakref.WeakKeyDictionary[Any, Origin] = weakref.WeakKeyDictionary()


def origin_of(autotuner: Any) -> Origin:
    """The origins of a kernel; only its name if no graph has told them."""
    return _of.get(autotuner) or Origin(str(autotuner.inductor_meta.get("kernel_name") or autotuner.fn.__name__))


def adopt(autotuner: Any, generated: Any) -> None:
    """Gives a kernel in place of a generated one its origins."""
    origin = origin_of(generated)
    _of[autotuner] = replace(origin, kernel=f"{autotuner.fn.__name__} in place of {origin.kernel}")


def _parsed(text: str, path: str) -> dict[str, Origin]:
    found = {}
    for line in text.splitlines():
        if line.startswith(origins.COMMENT):
            told = json.loads(line.removeprefix(origins.COMMENT))
            lines = tuple((file, number, text) for file, number, text in told["lines"])
            found[told["kernel"]] = Origin(told["kernel"], tuple(told["operators"]), lines, path)
    return found


def run_file(key: str, path: str, text: str) -> types.ModuleType:
    """Runs a generated file, of a graph or of one kernel. An error of the compiler names the origins of its kernel."""
    known = _parsed(text, path)
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
