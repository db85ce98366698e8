"""Generates kernels from the table: many entries per kernel, each on its own regions of a few shared arrays.

An entry on operands of given dtypes and shapes becomes a function of pointers (a *site*), which the kernel calls once for each region;
scalars are a loop over such calls. The results of a site at rank 1 are compared with the reference. The same operands as scalars and at
other ranks must give the same bits. Results start as poison, and elements that no site writes must still be poison afterwards.
"""

from __future__ import annotations

import itertools
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kernels.base import Case as KernelCase
from kernels.base import poison

import blocknb
import blocknb.language as tl
from blocknb.frontend.promotion import spelled
from blocknb.language import libdevice, standard
from blocknb.language import types as t
from blocknb.language.types import DType
from matrix.entry import DTYPES, ENTRIES, Case, Entry, anything, errors, widened

SIZE = 128
#: The tile shapes of an entry without cases: every rank, and an axis of size one.
FORMS = ((SIZE,), (16, 8), (2, 1, 64), (2, 4, 2, 8))
COLUMNS = ((16, 1), (1, 8))  # operands that are broadcast
SCALARS = 24
OPERANDS = "abcd"
GLOBALS = {"tl": tl, "libdevice": libdevice, "standard": standard, "blocknb": blocknb}


@dataclass(frozen=True)
class Region:
    """The expected contents of a part of an output: `expected` (masked: poison), or the bits of `like`, another region."""

    label: str
    dtype: DType
    start: int
    expected: np.ndarray
    entry: Entry
    like: Region | None = None

    @property
    def end(self) -> int:
        return self.start + self.expected.size


def some(cases: Sequence[Any], number: int, most: int) -> Sequence[Any]:
    """At most `most` of them, spread evenly; the choice depends on `number`."""
    if len(cases) <= most:
        return cases
    return [cases[(number + i * len(cases) // most) % len(cases)] for i in range(most)]


def index(shape: Sequence[int]) -> str:
    """The row-major offsets of a tile's elements."""
    if len(shape) < 2:
        return f"tl.arange(0, {shape[0]})" if shape else "0"
    terms, stride = [], 1
    for axis in reversed(range(len(shape))):
        brackets = ", ".join(":" if i == axis else "None" for i in range(len(shape)))
        terms.append(f"tl.arange(0, {shape[axis]})[{brackets}]" + (f" * {stride}" if stride > 1 else ""))
        stride *= shape[axis]
    return " + ".join(reversed(terms))


def memory(dtype: DType) -> DType:
    """The dtype of the output array that holds results of a dtype: conditions are bytes there, so that they can be poison."""
    return t.int8 if dtype == t.int1 else dtype


class Kernel:
    """The text of a kernel to which sites are added, with its inputs and expected outputs."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.number, self.most = 0, 1000  # how many cases of an entry to run; the choice depends on the number
        self.functions: dict[str, str] = {}  # text of a site -> its name
        self.calls: list[str] = []
        self.inputs: dict[DType, list[np.ndarray]] = {}
        self.sizes: dict[DType, int] = {}
        self.filled: dict[DType, int] = {}
        self.regions: list[Region] = []
        self.globals: dict[str, Any] = dict(GLOBALS)

    def add(self, entry: Entry, x: DType) -> None:
        self.globals.update(entry.names)
        if entry.cases:
            for case in some(entry.cases, self.number, self.most):
                self.one(entry, x, case, self.operands(entry, x, [int(np.prod(s)) for s in case.shapes]))
        else:
            self.pointwise(entry, x)

    def pointwise(self, entry: Entry, x: DType) -> None:
        """Adds sites with the same operands as scalars and at every rank, and with operands that broadcast."""
        count = len(entry.takes)
        places, arrays = self.operands(entry, x, [SIZE] * count)
        first: tuple[Region, ...] | None = None
        for shape in some(FORMS, self.number, self.most):
            made = self.one(entry, x, Case((shape,) * count), (places, arrays), like=first)
            first = first or made
        if self.most == 1 or first is None:
            return
        name, starts = self.site(entry, x, Case(((),) * count), [np.empty(())] * len(entry.gives)), []
        for region in first:
            starts.append(self.reserve(region.dtype, SCALARS))
            part = region.expected[:SCALARS]
            self.regions.append(Region(f"{region.label} as scalars", region.dtype, starts[-1], part, entry, region))
        self.call(name, entry, x, places, starts, f"    for j in range({SCALARS}):", " + j")
        if count == 2 and (self.most > 2 or self.number % 2):
            parts = [array[: int(np.prod(s))] for array, s in zip(arrays, COLUMNS, strict=True)]
            self.one(entry, x, Case(COLUMNS), (places, parts))

    def operands(self, entry: Entry, x: DType, sizes: Sequence[int]) -> tuple[list[int], list[np.ndarray]]:
        """Numbers of an entry's domain, and their offsets in the inputs."""
        dtypes = entry.operands(x)
        arrays = (entry.domain or anything)(self.rng, dtypes, sizes) if dtypes else []
        places = []
        for dtype, array in zip(dtypes, arrays, strict=True):
            places.append(self.filled.get(dtype, 0))
            self.inputs.setdefault(dtype, []).append(array)
            room = -array.size % 16  # so that every tile of an input begins at a multiple of 16 elements
            self.inputs[dtype].append(np.zeros(room, array.dtype))
            self.filled[dtype] = places[-1] + array.size + room
        return places, arrays

    def reserve(self, dtype: DType, size: int) -> int:
        start = self.sizes.get(memory(dtype), 0)
        self.sizes[memory(dtype)] = start + size + 1 + (-size - 1) % 16  # one element of poison at least in between
        return start

    def one(
        self, entry: Entry, x: DType, case: Case, given: tuple[list[int], list[np.ndarray]], like: Any = None
    ) -> tuple[Region, ...]:
        places, arrays = given
        shaped = [a.reshape(s) for a, s in zip(arrays, case.shapes, strict=True)]
        if not entry.raw:
            shaped = [widened(a, d) for a, d in zip(shaped, entry.operands(x), strict=True)]
        with np.errstate(all="ignore"):
            found = entry.reference(*shaped, **case.fields)
        results = [np.ma.asanyarray(r) for r in (found if isinstance(found, tuple) else (found,))]
        name = self.site(entry, x, case, results)
        fields = ", ".join(f"{k}={v}" for k, v in case.fields.items())
        label = f"{entry.name} of {x} {' '.join(map(str, case.shapes))} {fields}".strip()
        made = []
        for i, (dtype, result) in enumerate(zip(entry.results(x), results, strict=True)):
            start = self.reserve(dtype, result.size)
            made.append(Region(label, dtype, start, result.ravel(), entry, like[i] if like else None))
        self.regions += made
        self.call(name, entry, x, places, [region.start for region in made])
        return tuple(made)

    def site(self, entry: Entry, x: DType, case: Case, results: Sequence[np.ndarray]) -> str:
        """The name of the function for these dtypes and shapes."""
        text = site_text(entry, x, case, results)
        return self.functions.setdefault(text, f"site_{len(self.functions)}")

    def call(
        self,
        name: str,
        entry: Entry,
        x: DType,
        places: Sequence[int],
        starts: Sequence[int],
        loop: str = "",
        at: str = "",
    ) -> None:
        pointers = [f"in_{d.name} + {p}{at}" for d, p in zip(entry.operands(x), places, strict=True)]
        pointers += [f"out_{memory(d).name} + {s}{at}" for d, s in zip(entry.results(x), starts, strict=True)]
        if loop:
            self.calls.append(loop)
        self.calls.append(f"{'        ' if loop else '    '}{name}({', '.join(pointers)})")

    def finish(self) -> tuple[str, dict[str, Any], list[Region]]:
        """The source of the kernel, its arguments, and what to check."""
        outputs = {f"out_{d.name}": poison(size, d.numpy) for d, size in self.sizes.items()}
        arguments = {f"in_{d.name}": np.concatenate(arrays) for d, arrays in self.inputs.items()} | outputs
        sites = [text.replace("def site(", f"def {name}(") for text, name in self.functions.items()]
        lines = [*sites, "@blocknb.kernel", f"def whole({', '.join(arguments)}):", *self.calls]
        return "\n".join(lines) + "\n", arguments, self.regions


def site_text(entry: Entry, x: DType, case: Case, results: Sequence[np.ndarray] | None) -> str:
    """The function for one call of an entry. An entry without results is neither stored nor checked."""
    code = entry.code.replace("{X}", spelled(x))
    for key, value in case.fields.items():
        code = code.replace("{" + key + "}", str(value))
    used = set(re.findall(r"\w+", code))
    count = len(entry.takes)
    names = OPERANDS[:count]
    lines = []
    for letter, shape in zip(names, case.shapes, strict=True):
        if used & {letter, f"{letter}_at"}:
            lines.append(f"{letter}_at = {index(shape)}")
        if letter in used:
            lines.append(f"{letter} = tl.load({letter}_ptr + {letter}_at)")
    dtypes = entry.results(x)
    written = [i for i in range(len(dtypes)) if f"w{i}" in used]
    computed = [i for i in range(len(dtypes)) if i not in written]
    *body, last = code.strip("\n").split("\n")
    lines += body
    lines.append(f"{', '.join(f'r{i}' for i in computed)} = {last}" if computed else last)
    for i in computed if results is not None else ():
        kind, shape = dtypes[i], results[i].shape
        lines.append(f"r{i} = tl.to_tensor(r{i})")
        lines.append(f"tl.static_assert(r{i}.dtype == {spelled(kind)}, 'a result is {kind}, not ' + str(r{i}.dtype))")
        lines.append(f"tl.static_assert(r{i}.shape == {tuple(shape)}, 'the shape is {tuple(shape)}')")
        stored = f"r{i}.to(tl.int8)" if kind == t.int1 else f"r{i}"
        lines.append(f"tl.store(w{i} + {index(shape)}, {stored})")
    parameters = [*(f"{name}_ptr" for name in names), *(f"w{i}" for i in range(len(dtypes)))]
    return "\n".join(["@blocknb.kernel", f"def site({', '.join(parameters)}):", *("    " + line for line in lines)])


# -- kernels that can be run -----------------------------------------------------------------------------------------------------

_made: dict[str, Any] = {}
_numbers = itertools.count()


def compiled(source: str, names: Mapping[str, Any]) -> Any:
    """The kernel of a source; equal sources give the same kernel."""
    if source not in _made:
        file = f"<matrix {next(_numbers)}>"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        found = dict(names)
        exec(compile(source, file, "exec"), found)
        _made[source] = found["whole"]
    return _made[source]


@dataclass(frozen=True)
class Batch(KernelCase):
    """Entries in one kernel. `make` writes it with new numbers; its text is always the same."""

    members: tuple[tuple[Entry, DType], ...] = ()
    on_gpu: bool = False
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the entries."""
        return tuple(entry.name for entry, _ in self.members)

    def check(self, arguments: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        problems: list[str] = []
        covered = {name: np.zeros(a.size, bool) for name, a in got.items() if name.startswith("out_")}
        for region in self.state["regions"]:
            name = f"out_{memory(region.dtype).name}"
            covered[name][region.start : region.end] = True
            problems += checked(region, arguments, got, name, self.on_gpu)
        for name, mask in covered.items():
            if (~same_bits(got[name], arguments[name]) & ~mask).any():
                problems.append(f"{name} is written outside what the kernel was to write")
        assert not problems, f"{self.name}: " + "\n".join(problems[:20])


def same_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    kind = f"u{a.itemsize}"
    both_nan = np.isnan(a) & np.isnan(b) if a.dtype.kind not in "iub" else False
    return (np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind)) | both_nan


def checked(
    region: Region, arguments: Mapping[str, Any], got: Mapping[str, Any], name: str, on_gpu: bool
) -> Iterable[str]:
    """Describes the error of a region."""
    actual, entry = got[name][region.start : region.end], region.entry
    hidden = np.ma.getmaskarray(region.expected)
    poisoned = arguments[name][region.start : region.end]
    expected = np.ma.getdata(region.expected)
    ulps = max(entry.ulps, entry.on_gpu) if on_gpu else entry.ulps
    limit = max(ulps, 0.5001)
    if entry.ulps > 0.5 and region.dtype.is_float and region.dtype.bits < 32 and entry.ulps < 100:
        limit = 0.52  # computed in fp32 and rounded once
    found = errors(actual, expected, region.dtype, entry.zeros, entry.least)
    found = np.where(hidden, np.where(same_bits(actual, poisoned), 0.0, np.inf), found)
    bad = ~(found <= limit)
    if bad.any():
        at = int(np.argmax(found))
        yield (
            f"{region.label}: {int(bad.sum())} of {bad.size} wrong; element {at} is {actual[at]!r}, expected "
            f"{region.expected[at]!r} ({found[at]:.3g} ulp, {limit:.3g} allowed)"
        )
    elif region.like is not None:
        other = got[name][region.like.start : region.like.start + actual.size]
        same = same_bits(actual, other) | (not entry.zeros and actual == other)
        if not same.all():
            at = int(np.argmin(same))
            yield f"{region.label}: element {at} is {actual[at]!r}, and {other[at]!r} in {region.like.label}"


def batch(name: str, members: Iterable[tuple[Entry, DType]], most: int = 1000, on_gpu: bool = False) -> Batch:
    """One kernel of entries, each with its dtype; `most` cases of each, without scalars if `most` is one."""
    members, state = tuple(members), {}

    def make(rng: np.random.Generator) -> dict[str, Any]:
        writer = Kernel(rng)
        for entry, x in members:
            writer.number = ENTRIES.index(entry) + DTYPES.index(x)
            writer.most = (
                1 if most < 1000 and entry.name.startswith("libdevice.") else most
            )  # tested by a separate suite
            writer.add(entry, x)
        source, arguments, state["regions"] = writer.finish()
        object.__setattr__(made, "kernel", compiled(source, writer.globals))
        return arguments

    made = Batch(name, None, make, None, members=members, on_gpu=on_gpu, state=state)
    return made


def refusal(entry: Entry, x: DType) -> tuple[str, dict[str, Any]]:
    """A kernel that uses an entry with an unsupported dtype, on a tile and, if possible, on scalars; and its arguments."""
    case = entry.cases[0] if entry.cases else Case((FORMS[0],) * len(entry.takes))
    text = site_text(entry, x, case, None)
    dtypes = entry.operands(x)
    inputs = {f"in_{d.name}": np.zeros(1 << 12, d.numpy) for d in dtypes}
    outputs = {f"out{i}": np.zeros(1 << 12, memory(d).numpy) for i, d in enumerate(entry.results(x))}
    call = f"    site({', '.join([*(f'in_{d.name}' for d in dtypes), *outputs])})"
    arguments = inputs | outputs
    return "\n".join([text, "@blocknb.kernel", f"def whole({', '.join(arguments)}):", call]) + "\n", arguments
