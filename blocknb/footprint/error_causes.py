"""Possible causes of a wrong result, as questions with their lines: `error_causes(launch, program)`. Only a result that is wrong asks for
them.

One program runs on copies, in the interpreter of tile IR, and each of its ops is watched with its values. Causes are conversions that
change a value, integers that wrap around, and divisions by zero. Another cause is a masked lane of a load that enters a sum or a maximum.
It is followed from the load through the ops of one lane. Other causes are patterns of the IR. One is an accumulator that the loop
overwrites, starts at zero, or keeps in half precision. Another is a dot whose result nothing uses.
"""

from __future__ import annotations

import contextlib
import linecache
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from blocknb.errors import KernelError, Loc
from blocknb.footprint.access_log import BudgetExceeded
from blocknb.footprint.launch import MemoryLaunch
from blocknb.footprint.recorded import ProgramReplay
from blocknb.footprint.value import Footprint, FootprintFinding
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import LOOPS, OPS

SECONDS = 1.0
MOST_BYTES = 1 << 28  # of the arrays that are copied for the run
#: Ops that move the lanes of a tile and compute nothing.
MOVES = frozenset({"splat", "broadcast", "expand_dims", "reshape", "trans", "permute", "convert_layout"})
ORDER = (
    "zero",
    "dropped",
    "overwritten",
    "masked",
    "range",
    "overflow",
    "wraps",
    "start",
    "half",
    "fraction",
    "view",
    "held",
    "wide",
)
SMALL = frozenset({"fp16", "bf16", "int8", "uint8", "int16", "uint16"})


def error_causes(seen: Footprint, programs: Sequence[int], late: bool = False) -> list[FootprintFinding]:
    """The possible causes in a launch whose result is wrong, the most likely one first. `programs` made wrong elements. `late`: the
    arrays are known only as the launch left them."""
    launch = seen.log.launch
    found = [*_patterns(launch.func), *_views(launch), *_of_runs(launch, programs), *([] if late else _held(seen))]
    return sorted(found, key=lambda finding: ORDER.index(finding.kind))


def _of_runs(launch: MemoryLaunch, programs: Sequence[int]) -> list[FootprintFinding]:
    if sum(region.high - region.low for region in launch.regions) > MOST_BYTES:
        return []
    watch, deadline = _Watch(launch), time.monotonic() + SECONDS
    for program in programs:
        with contextlib.suppress(KernelError, BudgetExceeded):  # what the program did until then is known
            ProgramReplay(launch, deadline).run(program, watch=watch)
    return list(watch.found.values())


def _question(kind: str, text: str, loc: Loc | None, other: Loc | None = None) -> FootprintFinding:
    return FootprintFinding("remark", kind, text, loc, other)


def source(loc: Loc | None) -> str:
    """The text of a span of one line; empty if the source is not available."""
    if loc is None or loc.end_line not in (0, loc.line):
        return ""
    return linecache.getline(loc.file, loc.line).encode()[loc.column : loc.end_column].decode(errors="ignore")


class _Watch:
    """Receives each op of a program with the values of its operands and results. `found` has one finding per op; `off` has, for values
    that come from a masked load, the lanes that were off, and the load."""

    def __init__(self, launch: MemoryLaunch) -> None:
        self.launch = launch
        self.found: dict[int, FootprintFinding] = {}
        self.off: dict[Value, tuple[np.ndarray, Op]] = {}

    def __call__(self, op: Op, args: list[Any], results: tuple[Any, ...]) -> None:
        for result in op.results:
            self.off.pop(result, None)
        match op.name:
            case "load" if len(args) > 1:
                self._loaded(op, args)
            case "cast":
                self._cast(op, args[0], results[0])
            case "reduce":
                self._reduced(op, args)
            case "div" | "rem" | "mod" | "floordiv":
                self._divided(op, args)
            case "add" | "sub" | "mul":
                self._wrapped(op, args, results[0])
            case "exp" | "exp2":
                self._exponential(op, args, results[0])
        if op.name in MOVES or (OPS[op.name].kind == "elementwise" and op.name != "ptradd"):
            self._follow(op, args)

    def _report(self, op: Op, kind: str, text: str, other: Loc | None = None) -> None:
        self.found.setdefault(op.id, _question(kind, text, op.loc, other))

    def _loaded(self, op: Op, args: list[Any]) -> None:
        off = ~np.broadcast_to(args[1], op.result.type.shape)
        if off.any():
            self.off[op.result] = off, op

    def _follow(self, op: Op, args: list[Any]) -> None:
        """The lanes that are off in the result of an op, if an operand has some."""
        known = [self.off.get(value) for value in op.args]
        sources = [k for k in known if k is not None]
        if not sources:
            return
        shape, load = op.result.type.shape, sources[0][1]
        if op.name in MOVES:
            flags = _moved(op, sources[0][0])
        elif op.name == "select":
            yes, no = (k[0] if k is not None else np.zeros(shape, bool) for k in known[1:3])
            flags = np.where(args[0], yes, no)
        else:
            flags = np.any([np.broadcast_to(flags, shape) for flags, _ in sources], axis=0)
        if flags is not None and flags.shape == tuple(shape) and flags.any():
            self.off[op.result] = flags, load

    def _reduced(self, op: Op, args: list[Any]) -> None:
        """Finds a reduction whose result depends on lanes that a mask turned off."""
        how = op.blocks[0].ops[0].name if len(op.blocks[0].ops) == 2 else ""
        if len(args) != 1 or how not in ("add", "max", "min") or op.args[0] not in self.off:
            return
        off, load = self.off[op.args[0]]
        values = np.asarray(args[0]).astype(np.float64)
        neutral = {"add": 0.0, "max": -np.inf, "min": np.inf}[how]
        reduce: Any = {"add": np.sum, "max": np.max, "min": np.min}[how]
        axis = op.attrs["axis"]
        with np.errstate(all="ignore"):
            alone = reduce(np.where(off, neutral, values), axis=axis)
            all_lanes = reduce(values, axis=axis)
        changed = np.isfinite(alone) & ~np.isclose(alone, all_lanes, rtol=1e-6, atol=0)
        if not changed.any():
            return
        value, name = f"{values[off][0]:.6g}", {"add": "sum", "max": "maximum", "min": "minimum"}[how]
        mask = _origin(self.launch.func, load.args[1])
        if how == "add":
            fix = f"tl.where({source(mask.loc) if mask else 'mask'}, ..., 0)"
        else:
            fix = "other=" + ("-" * (how == "max") + 'float("inf")')
            if not load.result.type.dtype.is_float:
                fix = "other= the " + ("smallest" if how == "max" else "largest") + f" {load.result.type.dtype}"
        self._report(op, "masked", f"lanes that the load masks off count as {value} in the {name}: {fix}?", load.loc)

    def _cast(self, op: Op, before: Any, after: Any) -> None:
        old, new = op.args[0].type.dtype, op.result.type.dtype
        if op.loc is None or "bool" in (old.kind, new.kind) or old.bits == 0:
            return
        x = np.asarray(before)
        with np.errstate(all="ignore"):
            wide, narrow = x.astype(np.float64), np.asarray(after).astype(np.float64)
        finite = np.isfinite(wide)
        if new.is_float:
            lost = finite & np.isinf(narrow)
            if lost.any():
                text = f"{_count(lost)} exceed the largest {new} and become inf, such as {wide[lost].flat[0]:.6g}"
                self._report(op, "overflow", f"{text}: a wider dtype?")
            return
        bits = new.bits - new.is_signed
        low, high = (-(2.0**bits) if new.is_signed else 0.0), 2.0**bits
        lost = (wide >= high) | (wide < low)
        if lost.any():
            text = f"{_count(lost)} lie outside of {new}, such as {wide[lost].flat[0]:.6g}: a wider or signed dtype?"
            self._report(op, "range", text)
        elif old.is_float and (cut := finite & (np.trunc(wide) != wide)).any():
            text = f"{_count(cut)} have a fraction, which {new} drops, such as {wide[cut].flat[0]:.6g}: a float dtype?"
            self._report(op, "fraction", text)

    def _divided(self, op: Op, args: list[Any]) -> None:
        if op.result.type.dtype.is_float:
            return
        zero = np.broadcast_to(np.asarray(args[1]) == 0, op.result.type.shape)
        if zero.any():
            text = f"`{source(op.loc)}` divides by zero in {_count(zero, 'lane')}"
            if any(other.name == "select" for other in self.launch.func.ops()):
                text += "; tl.where discards no division"
            self._report(op, "zero", f"{text}: a divisor of 1 there?")

    def _overflown(self, op: Op, args: list[Any], result: Any) -> None:
        dtype = op.result.type.dtype
        infinite = np.isinf(np.asarray(result).astype(np.float64))
        for x in args:
            infinite = infinite & np.isfinite(np.asarray(x).astype(np.float64))
        if infinite.any():
            text = f"`{source(op.loc)}` exceeds the largest {dtype} in {_count(infinite, 'lane')} and becomes inf"
            self._report(op, "overflow", f"{text}: .to(tl.float32)?")

    def _exponential(self, op: Op, args: list[Any], result: Any) -> None:
        """Powers of finite numbers that are too large."""
        x = np.asarray(args[0]).astype(np.float64)
        infinite = np.isfinite(x) & np.isinf(np.asarray(result).astype(np.float64))
        if infinite.any():
            which = f"of {x[infinite].flat[0]:.6g} is too large for {op.result.type.dtype}, and becomes inf"
            text = f"`{source(op.loc)}` {which} ({_count(infinite, 'lane')})"
            self._report(op, "overflow", text)

    def _wrapped(self, op: Op, args: list[Any], result: Any) -> None:
        """Signed or small integers that wrap around."""
        dtype = op.result.type.dtype
        if dtype.is_float and dtype.bits < 32:
            self._overflown(op, args, result)
        if dtype.is_float or dtype.kind == "bool" or dtype.bits > 32 or not (dtype.is_signed or dtype.bits < 32):
            return
        a, b = (np.asarray(x).astype(np.int64) for x in args)
        exact = a + b if op.name == "add" else a - b if op.name == "sub" else a * b
        wrong = np.broadcast_to(exact != np.asarray(result).astype(np.int64), op.result.type.shape)
        if wrong.any():
            wider = "int64" if dtype.bits == 32 else "int32"
            text = f"`{source(op.loc)}` wraps around in {dtype} in {_count(wrong, 'lane')}: .to(tl.{wider})?"
            self._report(op, "wraps", text)


def _count(flags: Any, what: str = "value") -> str:
    return f"{int(np.count_nonzero(flags))} of {flags.size} {what}s"


def _moved(op: Op, flags: np.ndarray) -> np.ndarray | None:
    shape = op.result.type.shape
    match op.name:
        case "splat" | "broadcast":
            return np.broadcast_to(flags, shape)
        case "expand_dims":
            return np.expand_dims(flags, op.attrs["axis"])
        case "reshape" | "convert_layout":
            return flags.reshape(shape)
    return None  # a transposition: its lanes are followed no further


def _origin(func: Func, value: Value) -> Op | None:
    """The op that made a value."""
    return next((op for op in func.ops() if value in op.results), None)


def _patterns(func: Func) -> Iterator[FootprintFinding]:
    users: dict[Value, int] = {}
    made = {value: op for op in func.ops() for value in op.results}
    for op in func.ops():
        for value in op.args:
            users[value] = users.get(value, 0) + 1
    for op in func.ops():
        if op.name == "dot" and op.result not in users:
            into = next((v.name for v in op.args[2:3] if v.name), "total")
            yield _question("dropped", f"nothing uses the result of the dot: {into} = {source(op.loc)}?", op.loc)
        elif op.name in LOOPS:
            yield from _loop(op, users, made)
        elif op.name == "store":
            yield from _wide_store(op, made)


def _loop(loop: Op, users: Mapping[Value, int], made: Mapping[Value, Op]) -> Iterator[FootprintFinding]:
    """Accumulators of a loop."""
    if loop.name != "for":
        return
    (block,) = loop.blocks
    for start, inside, left, after in zip(
        loop.args[3:], block.args[1:], block.terminator.args, loop.results, strict=True
    ):
        name, update, begin = inside.name or left.name or "total", made.get(left), made.get(start)
        dtype = inside.type.dtype
        if inside not in users and after in users and update is not None and update.name != "const":
            text = (
                f"`{name}` keeps only the value of the last iteration, because each one overwrites it: {name} += ...?"
            )
            yield _question("overwritten", text, update.loc)
        elif update is None or inside not in update.args:
            continue
        elif update.name in ("max", "min", "maximum", "minimum") and _is_zero(begin):
            assert begin is not None
            inf = ("-" if update.name.startswith("max") else "") + 'float("inf")'
            text = f"`{name}` starts at 0, which takes part in the {update.name[:3]}imum: start at {inf}?"
            yield _question("start", text, begin.loc, update.loc)
        elif update.name in ("add", "dot") and str(dtype) in SMALL:
            wide = "float32" if dtype.is_float else "int32"
            text = f"`{name}` is accumulated in {dtype}, and each addition rounds or wraps around: tl.{wide}?"
            yield _question("half", text, update.loc, begin.loc if begin is not None else None)


def _is_zero(op: Op | None) -> bool:
    return op is not None and op.name == "const" and op.attrs["value"] == 0


def _wide_store(op: Op, made: Mapping[Value, Op]) -> Iterator[FootprintFinding]:
    cast = made.get(op.args[1])
    if cast is None or cast.name != "cast":
        return
    old, new = cast.args[0].type.dtype, cast.result.type.dtype
    if old.is_float and new.is_float and old.bits < new.bits and new.bits == 64:
        text = f"the array of the store is {new}, and the kernel computes in {old}: .to(tl.float64) after the load?"
        yield _question("wide", text, op.loc)


def _views(launch: MemoryLaunch) -> Iterator[FootprintFinding]:
    """Transposed arrays whose strides are not among the arguments of the kernel."""
    known = {int(x) for x in launch.scalars.values() if isinstance(x, (int, np.integer))}
    for array in launch.arrays:
        steps = {s for n, s in zip(array.shape, array.strides, strict=True) if n > 1}
        if (
            len(steps) < 2
            or array.dense
            or array.gaps is not None
            or min(steps) < 0
            or steps - {1} <= known - set(array.shape)
        ):
            continue
        op = next(
            (op for op in launch.func.ops() if op.name in ("load", "store") and _leads_to(launch, op, array.parameter)),
            None,
        )
        if op is not None:
            text = (
                f"`{array.name}` has the strides {array.strides}, and is read as contiguous: pass its strides, or a "
                "contiguous copy?"
            )
            yield _question("view", text, op.loc)


def _held(seen: Footprint) -> Iterator[FootprintFinding]:
    """Arrays that the kernel updates and that were not zero before."""
    launch = seen.log.launch
    for array in launch.arrays:
        found = seen[array.name]
        reads = found.atomics.accesses or (found.stores and found.loads.accesses)
        if not reads:
            continue
        held = launch.contents(array, array.low, array.high).reshape(-1, array.size).any(1)
        if held.any():
            text = (
                f"`{array.name}` held other values than 0 before the launch ({_count(held, 'element')}), and the kernel "
                "reads them: np.zeros instead of np.empty?"
            )
            yield _question("held", text, reads[0].op.loc)


def _leads_to(launch: MemoryLaunch, op: Op, parameter: int) -> bool:
    from blocknb.analysis.provenance import Provenance

    return parameter in Provenance(launch.func).of(op.args[0])
