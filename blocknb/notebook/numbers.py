"""Formats numbers for people: three significant digits, a suitable unit, and words for counts and devices.

The HTML card, its text form and the plots get the wording of every figure from here. So all of them describe a launch in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.errors import KernelError
from blocknb.notebook.observe import Specialisation
from blocknb.passes.support.carried_bounds import COUNTED
from blocknb.profile import noise
from blocknb.profile.noise import TimeRatio
from blocknb.profile.occupancy import occupancy
from blocknb.profile.replay import work_of
from blocknb.profile.timing import Timing
from blocknb.profile.work import argument_bytes
from blocknb.runtime.compile import Compiled
from blocknb.runtime.host import thread_count
from blocknb.runtime.summary import scalars_of
from blocknb.target import Target
from blocknb.trace import Resources, Trace


def digits(value: float) -> str:
    """Three significant digits, and all digits of larger whole parts: 0.0123, 1.23, 123, 1234."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def time(milliseconds: float) -> str:
    """A time with the unit that suits it."""
    if milliseconds < 1e-3:
        return f"{digits(milliseconds * 1e6)} ns"
    if milliseconds < 1:
        return f"{digits(milliseconds * 1e3)} µs"
    return f"{digits(milliseconds)} ms" if milliseconds < 1e4 else f"{digits(milliseconds / 1e3)} s"


def timing(found: Timing) -> str:
    """ "25.1 µs (median of 30, warm, 24.8 µs to 25.6 µs, CPU)", or "985 µs (1 launch, cold, CPU)": a time with what it is."""
    count = "1 launch" if found.runs == 1 else f"median of {found.runs}"
    spread = [f"{time(found.low)} to {time(found.high)}"] if found.runs > 1 else []
    return f"{time(found.median)} ({', '.join([count, 'cold' if found.cold else 'warm', *spread, *filter(None, [found.device])])})"


def ratio(found: TimeRatio, base: str) -> str:
    """ "1.30 times as fast as `base` (1.22 to 1.41)", or that the difference is within noise."""
    if found.pairs < noise.LEAST_PAIRS:
        return f"{plural(found.pairs, 'pair')} of runs: too few to compare with {base}"
    if found.verdict == "noise":
        return f"{found.value:.2f} times the time of {base} ({found.low:.2f} to {found.high:.2f}), within noise"
    if found.verdict == "slower":
        return f"{found.value:.2f} times the time of {base} ({found.low:.2f} to {found.high:.2f})"
    return f"{1 / found.value:.2f} times as fast as {base} ({1 / found.high:.2f} to {1 / found.low:.2f})"


def rate_text(value: float, unit: str) -> str:
    """A rate in a unit that fits: 30.5 GFLOP/s for 0.0305 TFLOP/s."""
    return f"{digits(value * 1e3)} GFLOP/s" if unit == "TFLOP/s" and value < 1 else f"{digits(value)} {unit}"


def age(seconds: float) -> str:
    """A span of time in its largest unit: "40 s", "3 h", "12 days"."""
    for unit, length in (("day", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            count = int(seconds // length)
            return plural(count, unit) if unit == "day" else f"{count} {unit}"
    return f"{max(seconds, 0):.0f} s"


def size(count: int) -> str:
    """A number of bytes, in binary units."""
    amount, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{digits(amount)} {unit}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def place(target: Target, device: int = -1) -> str:
    """The device that ran the code: "CPU", "NVIDIA H200 (sm_90a)"; only the target if `device` is negative."""
    if not target.is_gpu:
        return "CPU"
    if device < 0:
        return str(target)
    from blocknb.runtime import cuda

    return f"{cuda.api().runtime.getDeviceProperties(device)['name'].decode()} ({target})"


def width(compiled: Compiled) -> str:
    """The parallel width: "4 warps per CTA", on the CPU "2 threads (znver4)"."""
    if compiled.target.is_gpu:
        return f"{plural(int(compiled.trace.options['num_warps']), 'warp')} per CTA"
    return f"{plural(thread_count(), 'thread')} ({compiled.target.arch})"


def grid(sizes: tuple[int, int, int]) -> str:
    """1024, 32 x 8, 32 x 8 x 2: without the axes of size one at the end."""
    kept = list(sizes)
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " × ".join(map(str, kept))


@dataclass(frozen=True)
class Rate:
    """The speed of a launch: `short` for people, `about` for what was counted; `value` in `unit` for programs."""

    value: float
    unit: str
    short: str
    about: str = ""

    @property
    def text(self) -> str:
        return f"{self.short} {self.about}".strip()


def scalars(made: Specialisation) -> dict[str, Any]:
    """The run-time scalars of the newest launch, by the names of the IR's parameters."""
    return scalars_of(made.arguments)


def rate(made: Specialisation) -> Rate | None:
    """TFLOP/s for kernels with dots, else GB/s of unique bytes; None without a time. Both are those of the roofline (`work_of`).

    If the bytes depend on loaded data, they are estimated: each array argument counts once if it is read and once if it is written.
    """
    found = made.timing
    if found is None or not found.median:
        return None
    milliseconds = found.median
    work = work_of(made.compiled, made.arguments, made.grid, quick=True)
    about = "" if work.exact else "about "
    if work.flops and work.dot_flops:
        value = work.flops / milliseconds / 1e9
        return Rate(value, "TFLOP/s", f"{about}{rate_text(value, 'TFLOP/s')}")
    moved, said = work.unique_bytes, "of unique bytes"
    if moved is None:
        about, said = "about ", "of bytes in the arguments"
        moved = argument_bytes(made.arguments, made.compiled.loaded, made.compiled.stored)
    if not moved:
        return None
    value = moved / milliseconds / 1e6
    return Rate(value, "GB/s", f"{about}{digits(value)} GB/s", f"{said} ({size(moved)})")


def times(made: Specialisation) -> list[tuple[str, str]]:
    """The facts on the time of the launches: the time with the rate, the first launch if it differs, and why nothing was repeated."""
    found, first = made.timing, made.first
    if found is None:
        return [("time", "not measured" if made.launches else "not launched")]
    here = place(made.compiled.target, made.device)
    speed = rate(made)
    facts = [("time", timing(found.on(here)) + (f", {speed.text}" if speed else ""))]
    if first is not None and (found.runs > 1 or made.repeats is not None):
        facts.append(("first launch", timing(first.on(here))))
    if made.why:
        facts.append(("not repeated", made.why))
    if made.busy:
        facts.append(("warning", made.busy))
    return facts


def resources(found: Resources) -> str:
    """ "32 registers per thread, 512 B shared memory, no spills": the figures that the assembler reported."""
    parts = []
    if found.registers is not None:
        parts.append(f"{plural(found.registers, 'register')} per thread")
    if found.shared_bytes is not None:
        parts.append(f"{size(found.shared_bytes)} shared memory" if found.shared_bytes else "no shared memory")
    if found.spill_bytes is not None:
        parts.append(f"{size(found.spill_bytes)} of spills" if found.spill_bytes else "no spills")
    return ", ".join(parts)


def occupied(target: Target, found: Resources) -> str:
    """ "occupancy 75 % (12 programs per SM; limited by registers)"; "" where there is none to state."""
    held = occupancy(target, found)
    if held is None:
        return ""
    limit = "" if held.warps_per_sm == held.max_warps else f"; {_LIMITS[held.limiter]}"
    return f"occupancy {held.percent:.0f} % ({plural(held.blocks_per_sm, 'program')} per SM{limit})"


_LIMITS = {
    "registers": "limited by registers",
    "shared memory": "limited by shared memory",
    "threads": "limited by threads per SM",
    "blocks": "limited by CTAs per SM",
}


def compile_groups(trace: Trace) -> dict[str, float]:
    """The compile times of a trace in milliseconds, by group: front end, passes, code generation, LLVM, ptxas and the rest."""
    passes = {stage for stage in trace.milliseconds if stage not in _GROUPS and not stage.startswith("llvm ")}
    groups: dict[str, float] = {}
    for stage, milliseconds in trace.milliseconds.items():
        group = "passes" if stage in passes else "LLVM" if stage.startswith("llvm ") else _GROUPS[stage]
        groups[group] = groups.get(group, 0.0) + milliseconds
    return groups


_GROUPS = {
    "parse": "front end",
    "codegen": "code generation",
    "ptxas": "ptxas",
    "worker": "worker start",
    "load": "load",
}


def compile_time(trace: Trace) -> str:
    """ "84 ms: front end 2.1, passes 20, code generation 8, LLVM 30, ptxas 23"."""
    groups = compile_groups(trace)
    parts = ", ".join(f"{group} {digits(ms)}" for group, ms in groups.items() if ms >= 0.05)
    origin = "from the cache; originally " if trace.from_cache else ""
    return f"{origin}{time(sum(groups.values()))}: {parts}"


def checked(trace: Trace, arguments: Mapping[str, Mapping[str, Any]]) -> str:
    """ "12 of 12 accesses checked", and the arguments whose bounds are unknown; "" if no access is checked."""
    counts = [note.text for note in trace.notes if note.op < 0 and note.text.endswith(COUNTED)]
    if not counts:
        return ""
    unknown = [f"`{name}`" for name, found in arguments.items() if found.get("extent") == "unknown"]
    doubt = f"; no bounds are known for {' and '.join(unknown)}" if unknown else ""
    return f"{counts[0].removesuffix(COUNTED)}checked{doubt}"


def differing(rows: list[Specialisation]) -> list[str]:
    """The differences between the specializations of a kernel, as one text per row: the types and constants that differ."""
    described = [_described(row) for row in rows]
    names = list(dict.fromkeys(name for row in described for name in row))
    shown = [name for name in names if len({row.get(name) for row in described}) > 1]
    return [", ".join(f"{name}={row[name]}" for name in shown if name in row) or "identical" for row in described]


def _described(row: Specialisation) -> dict[str, str]:
    trace = row.compiled.trace
    constants: Mapping[str, Any] = {**trace.constants, "num_warps": trace.options.get("num_warps")}
    return {**trace.signature, **{name: repr(value) for name, value in constants.items()}, "target": str(trace.target)}


def complaint(error: KernelError) -> str:
    """A KernelError in one line, for a card that continues without the failed part."""
    return f"{error.title}: {error.message}" + (f" ({error.hint})" if error.hint else "")
