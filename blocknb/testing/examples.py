"""Runs the examples in the language's docstrings, and compares the results with the values that their comments claim.

An example is the body of a kernel. A line such as `tl.sum(x)  # 6`, an expression with a comment, claims a value. The generated kernel
stores the expression, and the result must equal the literal (floats within 1e-5). A claim about a dtype or a string is checked at compile
time. An example runs on each of the BACKENDS: the interpreter of the IR, the kernel's own Python (`kernel.interpret`), the CPU and a GPU.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.runtime.kernel import kernel

BACKENDS = ("interpreter", "python", "cpu", "gpu")
TITLES = ("Example:", "On a GPU:")
_numbers = itertools.count()


@kernel
def keep(to, value):  # type: ignore[no-untyped-def]
    """Stores a tile of any rank in row-major order."""
    value = tl.to_tensor(value)
    if len(value.shape) == 0:
        tl.store(to, value)
    else:
        tl.store(to + tl.arange(0, value.numel), tl.ravel(value))


@dataclass(frozen=True)
class Claim:
    """The expression on a line of the example, and the literal that it claims."""

    line: int
    expression: str
    literal: Any

    @property
    def parts(self) -> list[tuple[str, Any]]:
        """Each stored expression with its claimed value; empty for a claim about a dtype or a string."""
        if isinstance(self.literal, tuple):
            return [(f"({self.expression})[{i}]", part) for i, part in enumerate(self.literal)]
        return [(self.expression, self.literal)] if self.stored else []

    @property
    def stored(self) -> bool:
        return isinstance(self.literal, (bool, int, float, list, tuple))


@dataclass(frozen=True)
class Example:
    """The example of one name. `gpu_only` means that its heading is "On a GPU:"."""

    name: str
    text: str
    gpu_only: bool = False

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims of all lines. Raises ValueError for a comment that is not a literal."""
        lines, found = self.text.splitlines(), []
        for node in ast.parse(self.text).body:
            if not isinstance(node, ast.Expr) or node.end_lineno != node.lineno:
                continue
            comment = lines[node.lineno - 1][node.end_col_offset :].strip()
            if comment.startswith("#"):
                found.append(Claim(node.lineno, ast.unparse(node.value), _literal(self.name, comment[1:].strip())))
        return tuple(found)

    @cached_property
    def source(self) -> str:
        """The source of a module with the kernel `example`. It stores the claimed values to its last parameters."""
        lines, names = self.text.splitlines(), []
        for claim in reversed(self.claims):
            if not claim.stored:
                lines[claim.line - 1] = f"tl.static_assert({claim.expression} == {_source_text(claim.literal)})"
                continue
            stores = []
            for i, (expression, _) in enumerate(claim.parts):
                name = f"claim_{claim.line}_{i}"
                stores.append(f"keep({name}, {expression})")
                names.append(name)
            lines[claim.line - 1] = "; ".join(stores)
        body = textwrap.indent("\n".join(lines), "    ")
        parameters = ", ".join(["a_ptr", "i_ptr", "out_ptr", *sorted(names)])
        return f"@kernel\ndef example({parameters}):\n{body}\n"

    def made(self) -> Any:
        """The kernel, defined as in a notebook cell."""
        file = f"<example of {self.name} {next(_numbers)}>"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(keepends=True), file
        names = {"tl": tl, "libdevice": tl.libdevice, "kernel": kernel, "keep": keep, "__name__": __name__}
        exec(compile(self.source, file, "exec"), names)
        return names["example"]

    def arguments(self) -> dict[str, np.ndarray]:
        """New arguments: the arrays that an example may use, and arrays with invalid values for its claims."""
        found = {"a_ptr": np.arange(16, dtype=np.float32), "i_ptr": np.arange(16, dtype=np.int32)}
        found["out_ptr"] = np.zeros(16, np.float32)
        claimed = {}
        for claim in self.claims:
            for i, (_, part) in enumerate(claim.parts):
                wanted = np.asarray(part)
                fill, dtype = (np.nan, "f8") if wanted.dtype.kind == "f" else (-77, "i8")
                claimed[f"claim_{claim.line}_{i}"] = np.full(wanted.size, fill, dtype)
        return found | dict(sorted(claimed.items()))

    def run(self, backend: str) -> None:
        """Runs the example. Raises KernelError if the backend rejects it, AssertionError for a claim that does not hold."""
        found = RUN[backend](self.made(), self.arguments())
        for claim in self.claims:
            for i, (expression, part) in enumerate(claim.parts):
                wanted, actual = np.asarray(part), found[f"claim_{claim.line}_{i}"]
                rtol, atol = (1e-5, 1e-6) if wanted.dtype.kind == "f" else (0, 0)
                message = f"{self.name}: {expression} on the {backend}"
                np.testing.assert_allclose(actual.reshape(wanted.shape), wanted, rtol, atol, err_msg=message)


def _literal(name: str, text: str) -> Any:
    try:
        return eval(text, {"tl": tl, "inf": float("inf"), "nan": float("nan")})
    except Exception as error:
        raise ValueError(f"the example of {name} claims {text!r}, which is not a literal") from error


def _source_text(value: Any) -> str:
    dtypes = [name for name in tl.__all__ if getattr(tl, name) is value]
    return f"tl.{dtypes[0]}" if dtypes else repr(value)


# -- the backends


def _interpreted(made: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    from blocknb.ir import interp

    func = made.compile(*arguments.values(), target="cpu").trace.stages[0].after
    interp.run(func, [arguments[hint.name] for hint in func.hints], (1, 1, 1))
    return arguments


def _on_cpu(made: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    made[1,](*arguments.values())
    return arguments


def _on_gpu(made: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    from blocknb.runtime.cuda import cupy as load_cupy

    cupy = load_cupy()
    there = {name: cupy.asarray(array) for name, array in arguments.items()}
    made[1,](*there.values())
    return {name: array.get() for name, array in there.items()}


def _by_python(made: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    made.interpret((1,))(*arguments.values())
    return arguments


RUN: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {
    "interpreter": _interpreted,
    "cpu": _on_cpu,
    "gpu": _on_gpu,
    "python": _by_python,
}

# -- the names of the language

#: Names in the namespace that are not functions of the language: modules, and types and constants that Triton's host code uses.
MODULES = {"core", "extra", "libdevice", "math", "standard", "target_info"}
TYPES = {
    "PropagateNan",
    "TRITON_MAX_TENSOR_NUMEL",
    "tensor_descriptor",
    "tensor_descriptor_base",
    "block_type",
    "const",
}
TYPES |= {"constexpr", "dtype", "pi32_t", "pointer_type", "slice", "str_to_ty", "tensor", "tuple", "void"}


def documented() -> Iterator[tuple[str, Any]]:
    """Every name with a docstring, as a kernel writes it (tl.load, tensor.to, libdevice.acos), and its function."""
    from blocknb.language.declarations import BUILTINS, MEMBERS

    for name in tl.__all__:
        found = getattr(tl, name)
        if name not in MODULES | TYPES and not isinstance(found, tl.dtype):
            yield f"tl.{name}", found
    for name in sorted(MEMBERS - set(tl.__all__)):
        yield f"tensor.{name}", BUILTINS[name]
    for module, path in ((tl.target_info, "tl.target_info"), (tl.extra.cuda, "tl.extra.cuda")):
        for name, found in sorted(vars(module).items()):
            if isinstance(getattr(found, "builtin", None), str):
                yield f"{path}.{name}", found
    for name in tl.libdevice.__all__:
        yield f"libdevice.{name}", getattr(tl.libdevice, name)


def dtypes() -> list[str]:
    return [name for name in tl.__all__ if isinstance(getattr(tl, name), tl.dtype) and name != "void"]


def example(name: str, found: Any) -> Example | None:
    """The example at the end of a docstring; None if there is none."""
    doc = inspect.getdoc(found) or ""
    for title in TITLES:
        if f"\n{title}\n" in doc:
            text = textwrap.dedent(doc.split(f"\n{title}\n")[1])
            return Example(name, text.strip("\n"), title == "On a GPU:")
    return None


def examples() -> dict[str, Example | None]:
    """The example of each name. Examples of dtypes are generated."""
    found = {name: example(name, function) for name, function in documented()}
    made = {f"tl.{name}": Example(f"tl.{name}", f"tl.full((2,), 1, tl.{name})  # [1, 1]") for name in dtypes()}
    return found | made


def outcome(found: Example, backend: str) -> str:
    """ "yes", or the message of the error with which the backend rejects the example. Raises AssertionError for a wrong claim."""
    try:
        found.run(backend)
    except KernelError as error:
        return error.message
    return "yes"
