"""Repeats the newest launch of a kernel on copies of what it writes, so that the card states a warm time with its spread.

The first paint of a card has the launches of the cell only, often a single cold one. The repetitions take at most SECONDS and at most
MOST_BYTES of copies. Where they are left out, the card says why.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from blocknb.errors import KernelError
from blocknb.ir.core import Func
from blocknb.notebook import numbers
from blocknb.notebook.observe import KernelRecord, Specialisation, without_recording
from blocknb.profile import noise, timing
from blocknb.runtime import cuda
from blocknb.runtime.grids import ArrayFreed
from blocknb.runtime.launch_snapshot import LaunchSnapshot
from blocknb.runtime.prepared_launch import prepare

SECONDS, ROUNDS = 0.2, 30
BEFORE_CELL = 0.05  # seconds before the next cell, if the page has not asked for the repetitions by then
MOST_BYTES, MOST_SHARE = 1 << 30, 0.25  # of the copies, and of the memory that is free


def repeat(record: KernelRecord, seconds: float = SECONDS) -> None:
    """Fills in `repeats` of the newest specialization, or `why` there are none. Does nothing if one of them is there.

    With fewer `seconds` than SECONDS, it leaves a launch for later that is too long for them."""
    made = record.latest
    if made is None or made.first is None or made.repeats is not None or made.why:
        return
    if seconds < SECONDS and made.first.median * 10 > seconds * 1e3:
        return
    try:
        with without_recording(record.kernel):
            made.repeats, made.why = _repeated(record.kernel, made)
            made.busy = noise.busy([made.repeats] if made.repeats is not None else [])
    except KernelError as error:
        made.why = numbers.complaint(error)
    except Exception as error:  # of the user's grid function, whose variables may have changed
        made.why = f"{type(error).__name__}: {error}"


def _repeated(kernel: Any, made: Specialisation) -> tuple[timing.Timing | None, str]:
    first, begin = made.first, time.perf_counter()
    if made.snapshot is None or made.snapshot.grid is None or first is None:
        return None, "the grid or an array of the launch cannot be stored"
    if first.median > SECONDS * 1e3:
        return None, f"one launch takes {numbers.time(first.median)}, more than {numbers.time(SECONDS * 1e3)}"
    if why := too_large(made.snapshot, made.compiled.stored, made.compiled.target.is_gpu):
        return None, why
    if why := may_hang(made):
        return None, why
    given = made.snapshot.arguments(made.compiled.stored)
    if given is None:
        return None, "an array of the launch no longer exists, or cannot be copied"
    try:
        options = {n: v for n, v in made.compiled.options.items() if n not in given}
        launch = prepare(kernel, made.snapshot.grid.given(), {**given, **options})
    except ArrayFreed:
        return None, "a value that the grid depends on no longer exists"
    gpu = made.compiled.target.is_gpu
    left = SECONDS - (time.perf_counter() - begin)
    found = timing.interleaved({"": launch}, gpu=gpu, rounds=ROUNDS, warmup=1, seconds=max(left, 0.0) / 2, cold=False)
    if "" not in found or found[""].runs < timing.LEAST_ROUNDS:
        return None, "the repetitions were interrupted"
    return found[""].on(numbers.place(made.compiled.target, made.device)), ""


def too_large(snapshot: LaunchSnapshot, stored: Any, gpu: bool, sets: int = 1) -> str:
    """Why copies of what a launch writes do not fit into memory; "" if they do. `sets` of copies exist at the same time."""
    needed, limit = sets * snapshot.copied_bytes(stored), copies_limit(gpu)
    if needed <= limit:
        return ""
    return f"copies of what the kernel writes take {numbers.size(needed)}, and the limit is {numbers.size(limit)}"


def copies_limit(gpu: bool) -> int:
    """The bytes that copies for a measurement may take."""
    return min(MOST_BYTES, int(MOST_SHARE * _free(gpu)))


def _free(gpu: bool) -> int:
    """Bytes of memory that are free, as far as the system tells."""
    if gpu:
        return int(cuda.api().runtime.memGetInfo()[0])
    try:
        found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(found["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError):  # not Linux
        return MOST_BYTES


def may_hang(made: Specialisation) -> str:
    """Why a launch on arrays that an earlier one wrote may never end (a lock that stays taken, for example); "" if it ends."""
    stages = made.compiled.trace.stages
    if not made.compiled.stored & made.compiled.loaded or not len(stages):
        return ""
    func: Func = stages[0].after
    loops = any(op.name == "while" for op in func.ops())
    return "the kernel has a `while` loop and reads what it writes, so a repetition may not end" if loops else ""
