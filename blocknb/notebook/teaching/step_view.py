"""The document's part for the Step view: the values of one or two programs, line by line, as `kernel.interpret(record=...)` gives them.

The programs run in the interpreter, on copies of the arrays that the kernel writes. An event is an assignment or a memory access, in the
kernel or in a helper that it calls. The part has the texts of these helpers (`helper_places.py`).
A tile is stored as its bytes, in base64, at most `corner` rows and columns of it (evenly spread; the part says the step). Equal values are
stored once. A part beyond its budget ends early, and says where.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blocknb.eager.record import Accessed, Run
from blocknb.errors import KernelError, LaunchError, Loc
from blocknb.frontend.source import Source
from blocknb.notebook.blobs import pack
from blocknb.notebook.check_compare import to_numpy
from blocknb.notebook.observe import Specialisation
from blocknb.notebook.teaching.arguments import arguments_of
from blocknb.notebook.teaching.helper_places import HelperPlaces
from blocknb.runtime import interpreted

MOST_EVENTS = 4000  # of one program
CORNERS = (64, 32, 16)  # the most rows and columns of a stored tile: the largest for which all events fit
MOST_RESULT = 1 << 22  # elements of an array that is shown as a result
REPR = 120  # characters of a Python object
WINDOW_BITS = 40  # of the interpreter's addresses: one window per array


@dataclass
class ValueTable:
    """The values of a part, each once. `corner` limits the rows and columns of a tile that are stored."""

    corner: int
    values: list[dict[str, Any]] = field(default_factory=list)
    known: dict[bytes, int] = field(default_factory=dict)
    bytes: int = 0

    def add(self, value: dict[str, Any], data: np.ndarray | None = None) -> int:
        """The index of a value with its elements. Adds it if it is new."""
        if data is not None:
            value |= self._stored(data)
        key = hashlib.sha256(repr(sorted(value.items())).encode()).digest()
        if key not in self.known:
            self.known[key] = len(self.values)
            self.values.append(value)
            self.bytes += len(value.get("data", "")) + 80
        return self.known[key]

    def _stored(self, data: np.ndarray) -> dict[str, Any]:
        """The elements of a tile: of several axes as a matrix whose columns are the last axis."""
        flat = data.reshape(-1, data.shape[-1]) if data.ndim > 1 else data.reshape(1, -1)
        rows, columns = (max(1, -(-n // self.corner)) for n in flat.shape)
        if data.ndim < 2:  # one axis: as many elements as a matrix would have
            columns = max(1, -(-flat.shape[1] // (self.corner * self.corner)))
        part = flat[::rows, ::columns]
        kind, stored = _plain(part)
        return {
            "kind": kind,
            "shown": list(part.shape),
            "every": [rows, columns],
            "data": base64.b64encode(np.ascontiguousarray(stored).tobytes()).decode(),
        }


def _plain(data: np.ndarray) -> tuple[str, np.ndarray]:
    """Elements in a format that a page reads: u1 for truth values, i4, f4, or f8, which holds integers up to 2**53."""
    if data.dtype == bool:
        return "u1", data.astype(np.uint8)
    if data.dtype.kind in "iu":
        small = not data.size or (int(data.min()) >= -(2**31) and int(data.max()) < 2**31)
        return ("i4", data.astype("<i4")) if small else ("f8", data.astype("<f8"))
    if data.dtype.itemsize > 4:
        return "f8", data.astype("<f8")
    return "f4", data.astype("<f4")


@dataclass(frozen=True)
class ArgumentArray:
    """An array argument of a recorded run: the address of element 0 in the interpreter, its shape, and its strides in elements."""

    name: str
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def last(self) -> int:
        """The distance of the last element from element 0, for positive strides."""
        return sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))

    def index(self, place: int) -> tuple[int, ...] | None:
        """The index of the element at a distance (in elements) from element 0; None if it does not follow from the strides."""
        if len(self.shape) < 2:
            return (place,) if not self.strides or self.strides[0] == 1 else None
        found, left = [0] * len(self.shape), place
        for axis in sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]):
            if self.strides[axis] <= 0:
                return None
            found[axis], left = divmod(left, self.strides[axis])
        return tuple(found) if left == 0 else None


def region(array: ArgumentArray, places: np.ndarray) -> str:
    """The elements at some distances from element 0 of an array, as text: `x[4:8]`, `a[16:32, 0:16]`, or their limits."""
    if not places.size:
        return f"{array.name}[nothing]"
    low, high = int(places.min()), int(places.max())
    first, last = array.index(low), array.index(high)
    if first is None or last is None:
        return f"{array.name} + {low} … {high}"
    slices = [(a, b + 1) for a, b in zip(first, last, strict=True)]
    boxed = all(b > a for a, b in slices) and math.prod(b - a for a, b in slices) == len(np.unique(places))
    if boxed:
        return f"{array.name}[{', '.join(str(a) if b == a + 1 else f'{a}:{b}' for a, b in slices)}]"
    if len(slices) == 1 and len(gaps := np.unique(np.diff(np.unique(places)))) == 1:
        return f"{array.name}[{low}:{high + 1}:{int(gaps[0])}]"
    of = [", ".join(map(str, x)) for x in (first, last)]
    return f"{array.name}[{of[0]}] … [{of[1]}]" if low != high else f"{array.name}[{of[0]}]"


class _RunWriter:
    """Writes the events of one recorded run."""

    def __init__(
        self, run: Run, arrays: Mapping[str, ArgumentArray], table: ValueTable, budget: int, places: HelperPlaces
    ):
        self.run, self.table, self.budget, self.cut = run, table, budget, ""
        self.windows = {array.address >> WINDOW_BITS: array for array in arrays.values()}
        self.places = places
        self.calls: list[list[int]] = []

    def events(self) -> list[list[Any]]:
        """Each [line, what, name, text, value, mask]: "set" assigns the value; "load", "store" and "atomic" access the array. A value or
        mask is an index of the table, or -1. `calls` gets, for each event, the lines of the calls that lead to it, outermost first."""
        found: list[list[Any]] = []
        accessed = iter(self.run.accessed)
        ahead = next(accessed, None)
        for number, one in enumerate([*self.run.assigned, None]):
            while ahead is not None and (one is None or ahead.after <= number):
                found.append([self._line(ahead.loc), *self._access(ahead)])
                ahead = next(accessed, None)
            if one is not None and one.loc is not None and self.places.number(one.loc) is not None:
                found.append([self._line(one.loc), "set", one.name, *self.value(one.value, one.type), -1])
            if self.table.bytes > self.budget:
                self.cut = "the values are larger than what a card holds"
                break
        if not self.cut and self.run.cut:
            self.cut = f"the record has {MOST_EVENTS} entries"
        return found

    def _line(self, loc: Loc | None) -> int:
        *calls, line = self.places.chain(loc)
        self.calls.append(calls)
        return line

    def _access(self, one: Accessed) -> list[Any]:
        what = one.op if one.op in ("load", "store") else "atomic"
        size = one.values.dtype.itemsize
        on = one.mask.reshape(-1)
        text, name = self._region(one.addresses.reshape(-1)[on], size)
        value = self._elements(one.values)
        mask = (
            -1
            if on.all() or not one.mask.shape
            else self.table.add({"dtype": "mask", "shape": list(one.mask.shape)}, one.mask)
        )
        if not on.all():
            text += f", {int(on.sum())} of {on.size} on"
        return [what, name, text, value, mask]

    def _elements(self, values: np.ndarray) -> int:
        """The index of loaded or stored elements, under the name that their dtype has in the language."""
        name = values.dtype.name
        name = name.replace("float", "fp") if values.dtype.kind == "f" else name
        if not values.ndim:
            return self.table.add({"dtype": name, "shape": [], "text": str(values.item())})
        return self.table.add({"dtype": name, "shape": list(values.shape), **_range(values)}, values)

    def _region(self, addresses: np.ndarray, size: int) -> tuple[str, str]:
        windows = np.unique(addresses >> WINDOW_BITS).tolist()
        if len(windows) != 1 or windows[0] not in self.windows:
            return ("nothing: every mask is off" if not len(windows) else "several arrays"), ""
        array = self.windows[windows[0]]
        places = (addresses - array.address) // size
        beyond = (places < 0) | (places > array.last)
        outside = "" if not beyond.any() else ", outside" if beyond.all() else ", partly outside"
        return region(array, places) + outside, array.name

    def value(self, value: Any, kind: Any) -> tuple[str, int]:
        """The text of a value and its index in the table. `kind` is its type in the language, None for a Python object."""
        if kind is not None and kind.is_pointer:
            text, _ = self._region(value.reshape(-1), kind.dtype.element.bytes)
            return text, self._pointers(value, kind)
        if not isinstance(value, np.ndarray):
            text = repr(value)[:REPR]
            return text, self.table.add({"dtype": type(value).__name__, "shape": [], "text": text})
        dtype = value.dtype.name if kind is None or value.dtype == bool else kind.dtype.name
        if not value.ndim:
            text = str(value.item()) if value.dtype.kind != "V" else str(value)
            return text, self.table.add({"dtype": dtype, "shape": [], "text": text})
        text = f"{dtype}[{', '.join(map(str, value.shape))}]"
        return text, self.table.add({"dtype": dtype, "shape": list(value.shape), **_range(value)}, np.asarray(value))

    def _pointers(self, value: np.ndarray, kind: Any) -> int:
        addresses = np.asarray(value)
        array = self.windows.get(int(addresses.reshape(-1)[0]) >> WINDOW_BITS) if addresses.size else None
        about = {"dtype": f"*{kind.dtype.element.name}", "shape": list(addresses.shape)}
        if array is None or not addresses.ndim:
            return self.table.add({**about, "text": self._region(addresses.reshape(-1), kind.dtype.element.bytes)[0]})
        return self.table.add(about, (addresses - array.address) // kind.dtype.element.bytes)


def _range(value: np.ndarray) -> dict[str, Any]:
    """The smallest and the largest number of a tile, and how many are not finite; for truth values how many are true."""
    if value.dtype == bool:
        return {"on": int(value.sum())}
    numbers = value.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    found: dict[str, Any] = {"low": float(finite.min()), "high": float(finite.max())} if finite.size else {}
    if finite.size < numbers.size:
        found["odd"] = int(numbers.size - finite.size)
    return found


def recorded(kernel: Any, made: Specialisation, program: Sequence[int], given: Mapping[str, Any]) -> Run:
    """Runs one program of a launch in the interpreter and records it. Raises KernelError and the exceptions of the kernel's Python."""
    binding, values = kernel.bound_call((), dict(given))
    kinds, raws = kernel.describe(binding, values)
    ids = tuple(program)  # muted, because the launch has printed already, and a cell may run in another thread
    return interpreted.run(
        kernel, binding, kinds, raws, values, made.grid, [ids], record=ids, most=MOST_EVENTS, muted=True
    )


def step_parts(
    kernel: Any, made: Specialisation, programs: Sequence[int], limits: Sequence[int]
) -> list[dict[str, Any]]:
    """The part for one or two programs (by number; axis 0 of the grid runs fastest), once for each of the `limits`: characters when packed.

    Raises LaunchError if the arrays are gone, and for a program that the grid does not have.
    """
    total = math.prod(made.grid)
    for program in programs:
        if not 0 <= program < total:
            hint = "programs are numbered from 0; axis 0 of the grid runs fastest"
            raise LaunchError(f"program {program} is out of range: the grid has {total} programs", hint=hint)
    runs: list[tuple[int, Run | None, str]] = []
    for program in programs:
        given = arguments_of(kernel, made, made.compiled.stored)
        x, y, _ = made.grid
        ids = (program % x, program // x % y, program // (x * y))
        try:
            runs.append((program, recorded(kernel, made, ids, given), ""))
        except KernelError as error:
            runs.append((program, None, error.message))
        except Exception as error:  # of the kernel's own Python: the view shows it
            runs.append((program, None, f"{type(error).__name__}: {error}"))
    results = _results(kernel, made)
    source = kernel.source
    return [_within(limit, lambda table, most: _part(made, source, runs, table, most, results)) for limit in limits]


def _within(limit: int, write: Callable[[ValueTable, int], dict[str, Any]]) -> dict[str, Any]:
    """The part with the largest tiles that fit into `limit` characters, and with fewer events if none does."""
    for corner in CORNERS:
        found = write(ValueTable(corner), 8 * limit)
        if len(pack(found)) <= limit and not any(run["cut"] for run in found["runs"]):
            return found
    budget = 4 * limit
    while len(pack(found)) > limit and budget > 256:
        found = write(ValueTable(CORNERS[-1]), budget)
        budget //= 2
    return found


def _results(kernel: Any, made: Specialisation) -> dict[str, np.ndarray]:
    """The arrays that the kernel stores to, as the launch left them, by name."""
    given = arguments_of(kernel, made)
    arrays = {name: given[name] for name in given if name in made.compiled.stored and _is_array(given[name])}
    return {name: to_numpy(a) for name, a in arrays.items() if 0 < math.prod(a.shape) <= MOST_RESULT}


def _is_array(value: Any) -> bool:
    """Whether an argument is an array of NumPy, CuPy or torch, and not a descriptor or a reinterpreted array."""
    return isinstance(value, np.ndarray) or any(hasattr(value, name) for name in ("__cuda_array_interface__", "detach"))


def _part(
    made: Specialisation,
    source: Source,
    runs: Sequence[tuple],
    table: ValueTable,
    budget: int,
    results: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    outputs, places = [], HelperPlaces(source)
    for name, data in results.items():
        dtype = made.arguments[name]["type"].lstrip("*").split(":")[0]
        outputs.append([name, table.add({"dtype": dtype, "shape": list(data.shape), **_range(data)}, data)])
    arrays = {n: a for n, a in made.arguments.items() if a["kind"] == "array"}
    written = []
    for program, run, error in runs:
        if run is None:
            written.append({"program": program, "events": [], "cut": "", "error": error})
            continue
        named = {n: _argument_array(n, run.addresses[n], a) for n, a in arrays.items() if n in run.addresses}
        writer = _RunWriter(run, named, table, table.bytes + budget // len(runs), places)
        events = writer.events()
        calls = {"calls": writer.calls} if any(writer.calls) else {}
        written.append({"program": program, "events": events, **calls, "cut": writer.cut, "error": ""})
    in_place = sorted(made.compiled.stored & made.compiled.loaded)
    note = (
        f"{', '.join(in_place)}: the kernel updates it, and the values are those after the launch." if in_place else ""
    )
    helpers = {"helpers": places.helpers} if places.helpers else {}
    found = {"grid": list(made.grid), "runs": written, "values": table.values, "results": outputs, "note": note}
    return {**found, **helpers}


def _argument_array(name: str, address: int, summary: Mapping[str, Any]) -> ArgumentArray:
    shape, strides = tuple(summary["shape"]), tuple(summary.get("strides", ()))
    if len(strides) != len(shape):
        strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return ArgumentArray(name, address, shape, strides)
