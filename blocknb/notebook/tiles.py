"""The document's part for the Tiles view: the elements that each program, warp and lane accesses, for every access of the GPU code.

The page evaluates layouts from their basis vectors. The addresses of a tile are stored as a start with one step per axis, as one table per
axis, or as a list. A mask is stored as a box or as bits. So a program takes some hundred bytes. The document holds a few programs, and a
page can request others from a running kernel (`TileView.program`). Scalars, the grid, and the shapes and strides of arrays determine all
of it; no array is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from blocknb.analysis import affine
from blocknb.analysis.effects import global_operands
from blocknb.analysis.partial_evaluation.evaluator import box_operands
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import ATOMICS
from blocknb.language.types import Buffer
from blocknb.layouts.linear import Layout
from blocknb.notebook import numbers
from blocknb.notebook.blobs import pack
from blocknb.notebook.observe import Specialisation
from blocknb.notebook.sections import line_of
from blocknb.passes.support import program_order
from blocknb.passes.support.vector_obstacles import final_obstacles
from blocknb.profile import tiles
from blocknb.profile.addresses import Addresses, TracedAccess, is_access, is_bulk, program_at
from blocknb.trace import Trace

SAVED = 3  # the first programs; the last one is saved as well
LIST = 4096  # addresses of a saved tile without a regular pattern
MAPPED = 1024  # programs on the map
BUDGET = 16_000  # characters of the packed part

NO_GPU = "The Tiles view needs GPU code. Compile for a GPU, for example with %%blockkernel --target sm_90a."
NO_LAUNCH = "The kernel was compiled but not launched. Its accesses depend on the grid and the arguments."
NO_PROGRAMS = "The launch has an empty grid."
TOO_MANY = "The kernel has too many accesses for the Tiles view."


class TileView:
    """The accesses of one GPU trace, launched as `made` was."""

    def __init__(self, trace: Trace, made: Specialisation):
        self.trace, self.made = trace, made
        self.func: Func = trace.stages[-1].after
        self.warps = self.func.attrs.get("num_warps", 4)
        self.facts = affine.analyze(self.func)
        self.addresses = Addresses(self.func, numbers.scalars(made), made.grid)
        self.layouts: dict[Layout, int] = {}

    @property
    def programs_launched(self) -> int:
        return math.prod(self.made.grid)

    @property
    def width(self) -> int | None:
        """The group width of the program swizzle (see that pass); None if programs run in the order of the grid."""
        alone = not self.func.attrs.get("persistent")
        return None if alone and self.made.grid[0] > program_order.MOST_ALONG_X else self.func.attrs.get("order")

    def place(self, number: int) -> tuple[int, int, int]:
        """The program ids of the program that is launched with that number. Persistent code computes the swizzle itself."""
        return program_at(number, self.made.grid, None if self.func.attrs.get("persistent") else self.width)

    def part(self) -> dict[str, Any]:
        """The part as it is saved: ops, layouts, arrays, a few programs, and the map of all programs."""
        last = self.programs_launched - 1
        saved = sorted({*range(min(SAVED, last + 1)), last})
        programs = {str(number): self.program(number, most=LIST) for number in saved}
        found = {
            "grid": list(self.made.grid),
            **({} if self.width is None else {"order": self.width}),
            "warps": self.warps,
            **({"addresses": True} if self.on_gpu else {}),
            "arrays": self.arrays,
            "ops": [self.op(op) for op in self.listed],
            "programs": programs,
            "map": self.map(programs["0"]),
        }
        return {**found, "layouts": [_layout(layout) for layout in self.layouts]}

    @cached_property
    def arrays(self) -> dict[str, dict[str, Any]]:
        """The shape, the strides in elements, and the bytes from the last cache line, of each array argument, by parameter name."""
        given = {n: a for n, a in self.made.arguments.items() if a["kind"] == "array"}
        found = {n: {"shape": list(a["shape"]), "strides": list(a.get("strides", ()))} for n, a in given.items()}
        return {n: f | ({"start": start} if (start := given[n].get("start")) else {}) for n, f in found.items()}

    def start(self, array: str) -> int:
        """The bytes between the start of an array and the last cache line, 0 if unknown (see `runtime.summary.start_of`)."""
        return self.made.arguments.get(array, {}).get("start", 0)

    @property
    def on_gpu(self) -> bool:
        """Whether the launch ran on a GPU, so that the arrays have the addresses of the figures."""
        devices = [a.get("device") for a in self.made.arguments.values() if a["kind"] == "array"]
        return any(device is not None and device >= 0 for device in devices)

    @cached_property
    def listed(self) -> list[Op]:
        """Loads, stores, atomics, dots and accesses to shared memory, in program order.

        TMA copies come first, since they belong to the producer warp.
        """
        moves = ("dot", "local_store", "local_load")
        found = [op for op in self.func.ops() if is_access(op) or is_bulk(op) or op.name in moves]
        return sorted(found, key=lambda op: op.name != "copy_bulk")

    @cached_property
    def buffers(self) -> dict[Value, str]:
        """Names of buffers and their stages: their own, otherwise that of the array that TMA copies into them."""
        stages = {op.result: op.args[0] for op in self.func.ops() if op.name == "stage"}
        found: dict[Value, str] = {}
        for op in self.func.ops():
            if op.name == "copy_bulk":
                parts = box_operands(op)
                found[stages.get(parts.buffer, parts.buffer)] = _short(parts.map)
        named = {stage: _short(buffer) or found.get(buffer, "") for stage, buffer in stages.items()}
        return {**found, **named}

    def title(self, value: Value) -> str:
        return _short(value) or self.buffers.get(value, "")

    # -- one op, independent of the program

    def op(self, op: Op) -> dict[str, Any]:
        head = {"op": op.id, "line": line_of(op.loc, self.trace.file) or 0, "name": op.name}
        if op.name == "dot":
            return {**head, **self._dot(op)}
        if is_bulk(op):
            return {**head, **self._bulk(op)}
        if not is_access(op):
            return {**head, **self._shared(op)}
        pointer = global_operands(op)[0]
        root, element, layout = self.facts.root(pointer), pointer.type.dtype.element, tiles.layout_of(op, self.warps)
        groups = tiles.instructions(self.facts, op, layout)
        found = final_obstacles(self.facts, op, len(groups[0]), self.func, 32 * self.warps)
        limits = [obstacle.text for obstacle in found]
        return {
            **head,
            "what": "" if root is None else self._name(root),
            "dtype": element.name,
            "bytes": element.bytes,
            "shape": list(pointer.type.shape),
            "layout": self._layout(layout),
            "vector": len(groups[0]),
            **({"limits": limits} if limits else {}),
            **({"kind": op.attrs["kind"]} if "kind" in op.attrs else {}),
        }

    def _name(self, param: Any) -> str:
        return self.addresses.names[self.func.params.index(param)]

    def _layout(self, layout: Layout | None) -> int:
        layout = layout or Layout((), (), (0,) * 5, (0,) * (self.warps.bit_length() - 1))
        return self.layouts.setdefault(layout, len(self.layouts))

    def _shared(self, op: Op) -> dict[str, Any]:
        buffer = op.args[0].type
        layout = op.args[1].type.layout if op.name == "local_store" else op.attrs["layout"]
        found = tiles.shared_traffic(op, self.trace.target)
        return {
            "what": self.title(op.args[1] if op.name == "local_store" else op.result) or self.title(op.args[0]),
            "dtype": "pointer" if buffer.dtype.kind == "pointer" else buffer.dtype.name,
            "bytes": buffer.dtype.bytes,
            "shape": list(buffer.shape),
            "layout": self._layout(layout),
            "vector": found.elements,
            "shared": {
                "basis": list(buffer.layout.basis),
                "how": found.how,
                "instructions": found.instructions,
                "wavefronts": found.wavefronts,
                "ideal": found.ideal,
                "ways": found.ways,
            },
        }

    def _bulk(self, op: Op) -> dict[str, Any]:
        """A box that TMA copies: `tile` is the part of the buffer's shape that one instruction copies."""
        parts = box_operands(op)
        buffer, kind = parts.buffer.type, parts.map.type
        root = self.facts.root(self.addresses.maps[parts.map].args[0])
        return {
            "what": parts.map.name.split(".")[0] if root is None else self._name(root),
            "dtype": buffer.dtype.name,
            "bytes": buffer.dtype.bytes,
            "shape": list(buffer.shape),
            "layout": -1,
            "vector": 1,
            "bulk": {
                "tile": [kind.box[axis] for axis in op.attrs["axes"]],
                "swizzle": kind.swizzle,
                "basis": list(buffer.layout.basis),
            },
        }

    def _tile(self, op: Op) -> tuple[tuple[int, ...], int]:
        """The shape of an op's tile of an array, and the bytes per element."""
        if is_bulk(op):
            buffer = box_operands(op).buffer.type
            return buffer.shape, buffer.dtype.bytes
        pointer = global_operands(op)[0].type
        return pointer.shape, pointer.dtype.element.bytes

    def _dot(self, op: Op) -> dict[str, Any]:
        a, b, _ = op.args
        result = op.result.type
        sides = []
        for number, value in enumerate((a, b)):
            side: dict[str, Any] = {"shape": list(value.type.shape), "dtype": value.type.dtype.name}
            if not isinstance(value.type, Buffer):
                side["layout"] = self._layout(value.type.layout)
            elif (found := tiles.operand_wavefronts(op, number)) is not None:
                side["wavefronts"], side["ideal"] = found
            sides.append(side)
        return {
            "what": " × ".join(self.title(value) or "…" for value in (a, b)),
            "dtype": result.dtype.name,
            "bytes": result.dtype.bytes,
            "shape": list(result.shape),
            "layout": self._layout(result.layout),
            "vector": 1,
            "dot": {"instr": op.attrs.get("instr", ""), "operands": sides},
        }

    # -- one program

    def program(self, number: int, iteration: int = 0, most: int | None = None) -> dict[str, Any]:
        """The accesses of a program by op id, in one iteration of its loops; lists up to `most` elements of an irregular tile.

        Raises KeyError for a program that the grid does not have.
        """
        if not 0 <= number < self.programs_launched:
            raise KeyError(f"program {number} is out of range: the grid has {self.programs_launched} programs")
        found = self.addresses.of(self.place(number), max(0, iteration))
        return {str(op): self._access(access, most) for op, access in found.items()}

    def _access(self, access: TracedAccess, most: int | None) -> dict[str, Any]:
        mask = _mask(access.on)
        repeats = {} if access.iterations == 1 else {"iterations": access.iterations}
        guessed = {"guessed": True} if access.guessed else {}
        if access.offsets is None:
            return {"why": access.why, **mask, **repeats, **guessed}
        size = self._tile(access.op)[1]
        where = _where(access.offsets, size, most)
        if is_bulk(access.op):
            return {"array": access.array, **where, **mask, **repeats}
        layout = tiles.layout_of(access.op, self.warps)
        groups = tiles.instructions(self.facts, access.op, layout)
        seen = tiles.traffic(access, layout, groups, size, self.start(access.array))
        traffic = [seen.requests, seen.sectors, seen.ideal, seen.lines, seen.most, seen.least, seen.together]
        return {"array": access.array, **where, **mask, **repeats, **guessed, "traffic": traffic}

    # -- all programs

    def map(self, first: Mapping[str, Any]) -> dict[str, Any] | None:
        """The start of each program, in launch order, in the array that the kernel writes; None if no store's address is known."""
        wanted = [
            op
            for kind in (("store", "store_bulk"), ATOMICS, ("load", "copy_async", "copy_bulk"))
            for op in self.listed
            if op.name in kind
        ]
        launched = min(self.programs_launched, MAPPED)
        programs = [self.place(number) for number in range(launched)]
        for op in wanted:
            access = first.get(str(op.id))
            if access is None or access.get("array") not in self.arrays:
                continue
            shape, size = self._tile(op)
            found = self.addresses.origins(op.id, programs)
            if all(offset is None for offset in found):
                continue
            array = _seen_as(self.arrays[access["array"]], access, shape)
            origins = [None if offset is None else offset // size for offset in found]
            extent = self._reach(op, first, array["strides"])
            return {"op": op.id, "array": access["array"], **array, "extent": extent, "origins": origins}
        return None

    def _reach(self, op: Op, first: Mapping[str, Any], strides: Sequence[int]) -> list[int]:
        """The extent of an op's tile along each axis of its array, including its other parts if the tile is moved in parts."""
        access = first[str(op.id)]
        extent = _extent(strides, access, self._tile(op)[0])
        for other in self.listed:
            part = first.get(str(other.id), {})
            same = other is not op and other.name == op.name and part.get("array") == access["array"]
            if same and "base" in part and "base" in access:
                reach = _extent(strides, part, self._tile(other)[0])
                extent = _joined(strides, extent, part["base"] - access["base"], reach)
        return extent


def offered(made: Specialisation, traces: Sequence[Trace | None]) -> tuple[dict[str, Any], TileView | None]:
    """The document's part for the first GPU trace, and the TileView that serves more programs; otherwise the reason why there is none."""
    view, trace = next(((i, t) for i, t in enumerate(traces) if t is not None and t.target.is_gpu), (0, None))
    if trace is None or not len(trace.stages) or trace.stages[-1].after.level != "memory":
        return {"why": NO_GPU}, None
    if not made.launches:
        return {"why": NO_LAUNCH}, None
    if not math.prod(made.grid):
        return {"why": NO_PROGRAMS}, None
    found = TileView(trace, made)
    part = found.part()
    text = pack(part)
    for name in ("map", "programs"):  # a running kernel can provide these again, so they go first
        if len(text) > BUDGET:
            part[name] = None if name == "map" else {"0": part["programs"]["0"]}
            text = pack(part)
    if len(text) > BUDGET:
        return {"why": TOO_MANY}, None
    return {"view": view, "packed": text}, found


def _short(value: Value) -> str:
    """The source name of a value; "" if it has only a number."""
    name = value.name.split(".")[0]
    return "" if name.isdigit() else name


# -- the short forms -----------------------------------------------------------------------------------------------------------


def _layout(layout: Layout) -> list[list[int]]:
    return [list(layout.shape), list(layout.reg), list(layout.lane), list(layout.warp)]


def _where(offsets: np.ndarray, size: int, most: int | None) -> dict[str, Any]:
    """The element offsets of a tile. The keys are "base" and "steps" if the offsets are affine, and "base" and "tables" if they are a sum
    of one table per axis. Otherwise the key is "list"."""
    elements = offsets // size
    base = int(elements.reshape(-1)[0])
    tables = []
    for axis in range(elements.ndim):
        at: list[Any] = [0] * elements.ndim
        at[axis] = slice(None)
        tables.append(elements[tuple(at)] - base)
    total = np.full(elements.shape, base)
    for axis, table in enumerate(tables):
        total = total + table.reshape([-1 if a == axis else 1 for a in range(elements.ndim)])
    if (total != elements).any():
        if most is not None and elements.size > most:
            return {"base": base, "omitted": True}
        return {"list": elements.reshape(-1).tolist()}
    steps = [int(table[1]) if len(table) > 1 else 0 for table in tables]
    if all((table == np.arange(len(table)) * step).all() for table, step in zip(tables, steps, strict=True)):
        return {"base": base, "steps": steps}
    return {"base": base, "tables": [table.tolist() for table in tables]}


def _mask(on: np.ndarray) -> dict[str, Any]:
    """An empty mask if all elements are on, {"box": [[low, high], ...]} of coordinates, or {"bits": hexadecimal, low bit first}."""
    if on.all():
        return {}
    if not on.any():
        return {"box": [[0, 0]] * on.ndim}
    box = []
    for axis in range(on.ndim):
        along = np.flatnonzero(on.any(axis=tuple(a for a in range(on.ndim) if a != axis)))
        box.append([int(along[0]), int(along[-1]) + 1])
    if on[tuple(slice(low, high) for low, high in box)].all():
        return {"box": box}
    return {"bits": np.packbits(on.reshape(-1), bitorder="little").tobytes().hex()}


def _steps(access: Mapping[str, Any], rank: int) -> list[int]:
    if "steps" in access:
        return list(access["steps"])
    tables = access.get("tables") or [[0]] * rank
    return [table[1] if len(table) > 1 else 0 for table in tables]


def _seen_as(array: Mapping[str, Any], access: Mapping[str, Any], shape: Sequence[int]) -> dict[str, list[int]]:
    """The array as the map draws it: a flat array that the kernel accesses in rows is drawn with rows."""
    steps = _steps(access, len(shape))
    rows = max((abs(step) for step in steps), default=0)
    if len(array["shape"]) == 1 and len(shape) == 2 and min(map(abs, steps)) == 1 and 1 < rows < array["shape"][0]:
        return {"shape": [-(-array["shape"][0] // rows), rows], "strides": [rows, 1]}
    return {"shape": list(array["shape"]), "strides": list(array["strides"])}


def _extent(strides: Sequence[int], access: Mapping[str, Any], shape: Sequence[int]) -> list[int]:
    """The extent of a tile along each axis of the array, taken from the tile's axis with the same step."""
    steps = _steps(access, len(shape))
    return [
        next((n for n, step in zip(shape, steps, strict=True) if step == stride and n > 1), 1) for stride in strides
    ]


def _joined(strides: Sequence[int], extent: Sequence[int], ahead: int, reach: Sequence[int]) -> list[int]:
    """The extent of a tile joined with another part of it, which begins `ahead` elements after the first."""
    found, left = list(extent), ahead
    for axis in sorted(range(len(strides)), key=lambda axis: -strides[axis]):
        if strides[axis] > 0 and left >= 0:
            steps, left = divmod(left, strides[axis])
            found[axis] = max(found[axis], steps + reach[axis])
    return found if left == 0 else list(extent)
