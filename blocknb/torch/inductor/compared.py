"""Compares a kernel with the generated kernel that it replaces, on the arguments of a recorded launch and on random ones.

Arrays that a kernel writes and does not read are poisoned first. So a missing store is a difference, and so is a store at another place.
Floating-point results are compared with the generated kernel in float64, if that can be compiled: its text with all types of floating-point
numbers replaced. A result passes if it is within torch's tolerance for its type, or as near to float64 as the generated kernel is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from blocknb.errors import LaunchError, Loc
from blocknb.runtime.kernel import Kernel
from blocknb.torch.inductor.kept import KeptArguments, flat, poison

Run = Callable[[Mapping[str, Any]], None]
#: Relative and absolute tolerances, those of torch.testing.assert_close.
TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}
_FLOATS = re.compile(r"\btl\.(float32|float16|bfloat16)\b")
#: A result in float64 is a reference only if the generated kernel is within this many tolerances of it. A kernel that looks at the bits of
#: numbers has another meaning in float64.
_USABLE = 100


@dataclass(frozen=True)
class OutputDifference:
    """Where the results of two kernels differ: the parameter, the count of elements, the first index, both values, the largest error.

    `outside` means elements of its storage that do not belong to the tensor; the index then counts in the storage."""

    name: str
    count: int
    size: int
    index: tuple[int, ...]
    found: Any
    expected: Any
    largest: float
    outside: bool = False

    def __str__(self) -> str:
        where = f"[{', '.join(map(str, self.index))}]"
        what = f"the storage of `{self.name}`" if self.outside else f"`{self.name}`"
        return (
            f"{self.count} of {self.size} elements of {what} differ, by at most {self.largest:.3g}; "
            f"the first is {where}, with {self.found} instead of {self.expected}"
        )


def in_float64(kernel: Kernel) -> Kernel:
    """A generated kernel that computes in float64. It may not compile."""
    wide = Kernel(kernel.fn)
    wide.src = _FLOATS.sub("tl.float64", kernel.src)
    return wide


def widened(signature: Mapping[str, str]) -> dict[str, str]:
    """The signature of a kernel in float64."""
    return {name: re.sub(r"^(\*?)(fp32|fp16|bf16)\b", r"\1fp64", text) for name, text in signature.items()}


def wide_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in float64. Tensors that share a storage share one in the copy, too."""
    storages: dict[tuple[int, Any], Any] = {}

    def wide(value: Any) -> Any:
        if not hasattr(value, "untyped_storage") or not value.is_floating_point():
            return value
        key = value.untyped_storage().data_ptr(), value.dtype
        if key not in storages:
            storages[key] = flat(value).double()
        return storages[key].as_strided(value.shape, value.stride(), value.storage_offset())

    return {name: wide(value) for name, value in values.items()}


def difference(
    old: Run, new: Run, wide: Run | None, written: Any, read: Any, kept: KeptArguments
) -> tuple[OutputDifference, str] | None:
    """The first difference, and which arguments show it; None if the kernels agree. `written` and `read` are the parameters that the
    generated kernel stores to and loads from."""
    cases = (
        ("the recorded arguments", kept.restored),
        *((f"random arguments {i}", lambda i=i: kept.drawn(i)) for i in (1, 2)),
    )
    for number, (told, make) in enumerate(cases):

        def result(run: Run, prepare: Callable[[Any], Any] = dict, make: Any = make, number: int = number) -> Any:
            values = make()
            poison(values, written, read, flag=number % 2 == 0)
            values = prepare(values)
            run(values)
            return values

        results = result(old), result(new), None if wide is None else result(wide, wide_values)
        for name in written:
            reference = None if results[2] is None else results[2][name]
            if (found := _output(name, results[0][name], results[1][name], reference)) is not None:
                return found, told
    return None


def _output(name: str, old: Any, new: Any, wide: Any) -> OutputDifference | None:
    """Compares the tensor, and then the rest of its storage, where both must leave the same bits."""
    wrong = wrong_elements(old, new, wide)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        expected = old if wide is None or not _usable(old, wide) else wide
        errors = (new.double() - expected.double()).abs()[wrong]
        largest = errors.nan_to_num(float("inf")).max().item()
        return OutputDifference(name, int(wrong.sum()), wrong.numel(), at, new[at].item(), expected[at].item(), largest)
    rest = torch.ones_like(flat(old), dtype=torch.bool)
    rest.as_strided(old.shape, old.stride(), old.storage_offset()).fill_(False)
    old, new = flat(old), flat(new)
    wrong = rest & (old != new) & ~(old.isnan() & new.isnan())
    if wrong.any():
        (at,) = wrong.nonzero()[0].tolist()
        largest = (new.double() - old.double()).abs()[wrong].nan_to_num(float("inf")).max().item()
        values = new[at].item(), old[at].item()
        return OutputDifference(name, int(wrong.sum()), int(rest.sum()), (at,), *values, largest, outside=True)
    return None


def _tolerance(value: Any, dtype: Any) -> Any:
    relative, absolute = TOLERANCES.get(dtype, (0.25, 1e-2))  # the types of 8 bits
    return absolute + relative * value.abs()


def _usable(old: Any, wide: Any) -> bool:
    if not old.is_floating_point():
        return False
    error = (old.double() - wide).abs()
    same = (error <= _USABLE * _tolerance(wide, old.dtype)) | (old == wide) | (old.isnan() & wide.isnan())
    return bool(same.all())


def wrong_elements(old: Any, new: Any, wide: Any) -> Any:
    """A mask of the elements of `new` that differ from `old`, by the tolerance of its type, or twice the error of `old` against `wide`."""
    if not old.is_floating_point():
        return old != new
    reference, allowed = old.double(), 0.0
    if wide is not None and _usable(old, wide):
        reference = wide
        allowed = 2 * (old.double() - wide).abs().nan_to_num(0.0, 0.0, 0.0).max().item() if old.numel() else 0.0
    error = (new.double() - reference).abs()
    limit = _tolerance(reference, old.dtype).clamp_min(allowed)
    return ~((error <= limit) | (new.double() == reference) | (new.isnan() & reference.isnan()))


def store_of(kernel: Kernel, name: str) -> Loc:
    """The place of the last statement of a kernel that stores to a parameter; the `def` line if none names it."""
    found: ast.AST = kernel.source.node
    for node in ast.walk(kernel.source.node):
        match node:
            case ast.Call(ast.Attribute(_, function), [place, *_]) if re.search("store|atomic", function):
                if name in {n.id for n in ast.walk(place) if isinstance(n, ast.Name)}:
                    found = node
    return kernel.source.loc(found)


def refuse(kernel: Kernel, found: OutputDifference, told: str, where: str) -> LaunchError:
    """The error for a kernel that computes something else."""
    return LaunchError(
        f"{kernel.__name__} does not compute what the generated kernel computes, on {told}: {found}\n  in {where}",
        store_of(kernel, found.name),
        "the generated kernel stays in its place; change the cell and run it again",
    )
