"""The memory of a cell: what it did to CuPy's pools, or to NumPy's arrays, as a part of the card's document.

A CellMemory runs from the first statement of a `%%blockkernel` cell to its end. On a GPU it watches CuPy's pools (`memory_pools`) and
copies between the host and the device (`device_copies`); both leave nothing behind. On the CPU it compares the arrays that names hold
before and after (`holders`), and `--memory` traces NumPy's allocations as well (`traced_memory`). The repetitions of a card and the options
that measure run after the end, so the figures are those of the user's code.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blocknb.notebook import holders, numbers
from blocknb.notebook.device_copies import CopyWatch
from blocknb.notebook.errors import file_name
from blocknb.notebook.memory_pools import Allocations, PoolWatch
from blocknb.notebook.sections import ListingLine, Section
from blocknb.notebook.traced_memory import TracedMemory
from blocknb.runtime import launch_context, machine
from blocknb.trace import Trace

SHOWN_ROWS, SHOWN_NAMES = 20, 8
Row = dict[str, Any]


@dataclass
class LaunchMemory:
    """The launches of one kernel: how many, the bytes and blocks that they allocated, and the highest peak of one of them."""

    device: int
    launches: int = 0
    bytes: int = 0
    blocks: int = 0
    peak: int = 0


@dataclass
class CellMemory:
    """Observes the memory of one cell. `wanted`: the cell asks for `--memory`.

    `before` and `after` are what the names of the namespace hold. `pools` and `copies` exist if the process uses CuPy on a GPU.
    """

    namespace: Mapping[str, Any]
    wanted: bool = False
    before: dict[tuple[int, int], holders.HeldMemory] = field(default_factory=dict)
    after: dict[tuple[int, int], holders.HeldMemory] = field(default_factory=dict)
    pools: PoolWatch | None = None
    copies: CopyWatch | None = None
    traced: TracedMemory = field(default_factory=TracedMemory)
    launches: dict[str, LaunchMemory] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _mark: int = 0

    def start(self) -> None:
        self.before = holders.held(self.namespace)
        self._watch_gpu(late=False)
        if self.wanted and self.pools is None:
            self.traced.start()
        launch_context.preludes.append(self._begins)  # after those that copy arrays for `--check`
        launch_context.observers.append(self._ended)

    def stop(self) -> None:
        launch_context.preludes.remove(self._begins)
        launch_context.observers.remove(self._ended)
        self.traced.stop()
        if self.pools is not None and self.copies is not None:
            self.copies.stop()
            try:
                self.pools.stop()
            except Exception as error:  # a fault of a kernel has broken the CUDA context
                self._unreadable(error)
        cut = set[str]()
        self.after = holders.held(self.namespace, cut)
        if cut:
            names = ", ".join(f"`{name}`" for name in sorted(cut)[:SHOWN_NAMES])
            self.notes.append(f"{names}: only {holders.MOST:,} of the objects inside were searched for arrays.")

    def _watch_gpu(self, late: bool) -> None:
        cupy = sys.modules.get("cupy")
        if cupy is None or not machine.has_gpu():
            return
        self.pools, self.copies = PoolWatch(cupy, late), CopyWatch(cupy)
        try:
            self.pools.start()
        except Exception as error:  # an earlier cell has broken the CUDA context
            self._unreadable(error)
        else:
            self.copies.start()

    def _unreadable(self, error: Exception) -> None:
        self.pools = self.copies = None
        self.notes.append(f"CuPy's pools cannot be read: {error}")

    def _begins(self, kernel: Any, compiled: Any, snapshot: Any) -> None:
        if self.pools is None and not self.notes and compiled.target.is_gpu:
            self._watch_gpu(late=True)
        if self.pools is not None and self.pools.thread == threading.get_ident():
            self.pools.launch = Allocations()
        self._mark = self.traced.mark()

    def _ended(self, launch: Any) -> None:
        row = self.launches.setdefault(launch.kernel.__name__, LaunchMemory(launch.device))
        row.launches += 1
        if self.pools is None:
            row.peak = max(row.peak, self.traced.since(self._mark))
        elif self.pools.launch is not None and self.pools.thread == threading.get_ident():
            made, self.pools.launch = self.pools.launch, None
            row.bytes, row.blocks = row.bytes + made.bytes, row.blocks + made.blocks
            row.peak = max(row.peak, made.peak)

    # ---- what the card shows ----

    def part(self, trace: Trace, shell: Any) -> Row:
        """The document's part; `trace` is that of the card, whose lines the copies are linked to."""
        lasting = self._lasting()
        new = {memory.key for memory in lasting}
        older = [memory for memory in self.after.values() if memory.key not in new]
        shown = [(holder, True) for holder in holders.grouped(lasting)] + [(h, False) for h in holders.grouped(older)]
        shown.sort(key=lambda row: -row[0].bytes)
        return {
            "pools": self._pool_rows(),
            "launches": self._launch_rows(),
            "copies": self._copy_rows(trace, shell),
            "arrays": [_array_row(*row) for row in shown[:SHOWN_ROWS]],
            "more_arrays": len(shown[SHOWN_ROWS:]),
            "kept": sum(memory.bytes for memory in lasting if memory.countable),
            "unnamed": self._unnamed(),
            "notes": self._notes(),
        }

    def _lasting(self) -> list[holders.HeldMemory]:
        """The memory that names hold after the cell and that did not exist before it."""
        return [memory for memory in self.after.values() if self._is_new(memory)]

    def _is_new(self, memory: holders.HeldMemory) -> bool:
        if self.pools is not None and memory.key in self.pools.made:
            return True
        known = self.before.get(memory.key)
        if known is None:
            # Without the pool's hook, or on the CPU: memory that no name held before.
            return (
                memory.device == holders.CPU or memory.kind == "torch" or (self.pools is not None and self.pools.late)
            )
        return known.owner is not None and known.owner() is None  # the address was used again

    def _unnamed(self) -> int:
        """Bytes that the cell allocated and that exist, although no name holds them."""
        if self.pools is not None:
            return sum(size for key, size in self.pools.made.items() if key not in self.after)
        named = sum(m.bytes for m in self._lasting() if m.device == holders.CPU and not m.kind)
        return max(self.traced.arrays - named, 0)

    def _pool_rows(self) -> list[Row]:
        rows: list[Row] = []
        for device, pool in self.pools.pools.items() if self.pools is not None else ():
            before, after = pool.before, pool.after or pool.before
            name = f"CuPy's pool on GPU {device}"
            rows += [
                {"name": f"{name}: used", "before": before.used, "after": after.used, "peak": pool.peak},
                {"name": f"{name}: held", "before": before.held, "after": after.held, "peak": pool.peak_held},
                {"name": f"GPU {device}: used by all processes", "before": before.total - before.free}
                | {"after": after.total - after.free, "peak": None},
            ]
        if self.traced.peak:
            rows.append(
                {"name": "Python and NumPy", "before": 0, "after": self.traced.arrays, "peak": self.traced.peak}
            )
        held = [sum(m.bytes for m in side.values() if _is_plain(m)) for side in (self.before, self.after)]
        if self.pools is None:
            rows.append({"name": "NumPy arrays with a name", "before": held[0], "after": held[1], "peak": None})
        return rows

    def _launch_rows(self) -> list[Row]:
        if self.pools is None and not self.traced.peak:
            return []  # nothing was measured
        rows = [{"kernel": name, **vars(row)} for name, row in list(self.launches.items())[:SHOWN_ROWS]]
        return rows if self.pools is not None else [{**row, "bytes": None, "blocks": None} for row in rows]

    def _copy_rows(self, trace: Trace, shell: Any) -> list[Row]:
        found = sorted(self.copies.lines.values(), key=lambda copy: -copy.bytes) if self.copies is not None else []
        return [
            {
                "direction": copy.direction,
                "bytes": copy.bytes,
                "times": copy.times,
                "line": copy.line if copy.file == trace.file else None,
                "place": f"{file_name(copy.file, shell)}, line {copy.line}" if copy.file else "",
                "code": copy.code[:200],
                "by": copy.by,
            }
            for copy in found[:SHOWN_ROWS]
        ]

    def _notes(self) -> list[str]:
        notes = list(self.notes)
        if self.pools is not None:
            notes += self.pools.notes
            if self.pools.late:
                notes.append("The cell imported CuPy, so peaks and copies count from its first launch on.")
            was, now = self.pools.pinned
            pinned = sum(m.bytes for m in self.after.values() if m.kind == "pinned")
            notes.append(
                f"CuPy's pool of pinned memory: {numbers.plural(now, 'free block')} ({was} before the cell), and "
                f"{numbers.size(pinned)} in arrays with a name. CuPy does not report its bytes."
            )
        elif self.wanted:
            compiled = "The peak includes the objects of blocknb's compiler, if the cell compiled a kernel."
            notes.append(self.traced.why or compiled)
        else:
            notes.append("`%%blockkernel --memory` also measures the peak, which makes Python code slower.")
        if self.copies is not None:
            notes += [self.copies.note] if self.copies.note else []
            more = len(self.copies.lines) - SHOWN_ROWS
            notes += [f"Copies by {numbers.plural(more, 'more line')} are left out."] if more > 0 else []
        return notes

    def facts(self, part: Row) -> list[tuple[str, str]]:
        """The line for the card's head: on a GPU always, on the CPU if the cell asks for `--memory`."""
        if self.pools is None and not self.wanted:
            return []
        peaks = [row for row in part["pools"] if row["peak"] is not None and not row["name"].endswith("held")]
        said = [f"{row['name'].removesuffix(': used')}: peak {numbers.size(row['peak'])}" for row in peaks]
        said.append(f"{numbers.size(part['kept'])} of new arrays outlive the cell")
        mine = [row for row in part["copies"] if not row["by"]]
        for direction in dict.fromkeys(row["direction"] for row in mine):
            rows = [row for row in mine if row["direction"] == direction]
            count = _count(sum(row["times"] for row in rows), "copy", "copies")
            said.append(f"{count} from {direction} ({numbers.size(sum(row['bytes'] for row in rows))})")
        return [("memory", ", ".join(said))]


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _is_plain(memory: holders.HeldMemory) -> bool:
    return memory.device == holders.CPU and not memory.kind


def _array_row(holder: holders.Holder, new: bool) -> Row:
    names = [*holder.names[:SHOWN_NAMES], *(["…"] if len(holder.names) > SHOWN_NAMES else [])]
    return {
        "names": names,
        "bytes": holder.bytes,
        "arrays": holder.arrays,
        "what": holder.what,
        "place": holder.place,
        "new": new,
    }


def is_measured(part: Row) -> bool:
    """Whether a part has more than the arrays with a name: the pools of a GPU, or traced memory."""
    return any(row["peak"] is not None for row in part["pools"])


def section(part: Row) -> Section:
    """The part as a listing, for pages without scripts and terminals."""
    texts = [f"{'':44}{'before':>12}{'after':>12}{'peak':>12}"]
    for row in part["pools"]:
        sizes = ("–" if row[key] is None else numbers.size(row[key]) for key in ("before", "after", "peak"))
        texts.append(f"{row['name']:44}" + "".join(f"{size:>12}" for size in sizes))
    for row in part["launches"]:
        count = _count(row["launches"], "launch", "launches")
        took = (
            ""
            if row["bytes"] is None
            else f"{numbers.size(row['bytes'])} in {numbers.plural(row['blocks'], 'block')}, "
        )
        texts.append(f"{row['kernel']}: {count} allocated {took}at most {numbers.size(row['peak'])} at a time")
    for row in part["copies"]:
        by = f", by {row['by']}" if row["by"] else ""
        texts.append(
            f"{row['direction']}: {numbers.size(row['bytes'])}, {row['times']} times, {row['place']}{by}: {row['code']}"
        )
    for row in part["arrays"]:
        new = "new " if row["new"] else "    "
        texts.append(f"{new}{numbers.size(row['bytes']):>9}  {', '.join(row['names'])}: {row['what']} ({row['place']})")
    if part["more_arrays"]:
        texts.append(f"and {part['more_arrays']} more")
    if part["unnamed"]:
        texts.append(f"{numbers.size(part['unnamed'])} of new arrays without a name")
    lines = tuple(ListingLine(text) for text in [*texts, *part["notes"]])
    detail = f"{numbers.size(part['kept'])} outlive the cell"
    return Section(
        "memory", "memory", "", lines, "%%blockkernel --memory", "Pools, copies and arrays of the cell", detail
    )
