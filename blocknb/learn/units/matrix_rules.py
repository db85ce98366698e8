"""Rules of the exercises on matrix products: tiles that programs share, resources of GPU code, the modelled timeline, and waves.

Nothing here needs a GPU or measures a time. Rules about code compile the answer for a GPU at the size of a real product, because small
matrices end before a pipeline is full.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.account import Budget
from blocknb.learn.cell import WrongCell, matched
from blocknb.learn.exercise import CheckFinding
from blocknb.learn.rules import Rule
from blocknb.learn.running import Attempt, grid_of
from blocknb.profile.occupancy import Occupancy, occupancy
from blocknb.profile.timeline import timeline
from blocknb.profile.timeline_spans import Timeline
from blocknb.runtime.kernel import Kernel
from blocknb.trace import Trace

#: The multiprocessors of an H100 SXM and of an H200 (NVIDIA's data sheets).
MULTIPROCESSORS = 132
#: What the rules about code compile for, and the size of the product.
TARGET, SIZE = "sm_90a", 4096
STEPS = 6000  # ops of the timeline, as on the card


def _finding(text: str) -> CheckFinding:
    return CheckFinding(text, "rule", True)


def arguments_at(made: Attempt, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The case's constants with other sizes, and empty arrays of those sizes."""
    found = {name: value for name, value in made.given.items() if not isinstance(value, np.ndarray)} | dict(sizes)
    shapes = {"a": ("M", "K"), "b": ("K", "N"), "c": ("M", "N"), "bias": ("N",)}
    arrays = {
        name: np.zeros([found[axis] for axis in shapes[name]], value.dtype)
        for name, value in made.given.items()
        if isinstance(value, np.ndarray)
    }
    return {name: arrays.get(name, found.get(name)) for name in made.given}


def constants_of(made: Attempt) -> dict[str, Any]:
    """The constants of a launch: those of the case, and the default values that the answer gives to its parameters."""
    passed = matched(made.answer, made.given)
    names = {parameter.name for parameter in made.answer.base.source.parameters if parameter.constexpr}
    return {name: value for name, value in {**made.answer.defaults(), **passed}.items() if name in names}


def compiled_at(made: Attempt, size: int = SIZE, target: str = TARGET) -> Trace:
    """The GPU code of an answer for square matrices whose addresses and sizes are multiples of 16. Raises KernelError."""
    parameters = {parameter.name: parameter for parameter in made.answer.base.source.parameters}
    types = {"float16": "*fp16:16", "float32": "*fp32:16"}
    shown = {
        name: types[str(made.given[name].dtype)] if isinstance(made.given[name], np.ndarray) else size if name in "MNK" else value
        for name, value in made.given.items()
    }
    found = matched(made.answer, shown)
    given = {n: f"i32:{math.gcd(v, 16)}" if isinstance(v, int) and not parameters[n].constexpr else v for n, v in found.items()}
    return made.answer.base.trace(target=target, **given)


def scalars_at(made: Attempt, size: int) -> dict[str, int]:
    """M, N and K by the names that the answer gives them."""
    return {name: value for name, value in matched(made.answer, {**made.given, "M": size, "N": size, "K": size}).items() if isinstance(value, int)}


def timeline_at(made: Attempt, size: int = SIZE, target: str = TARGET) -> tuple[Trace, Timeline]:
    """The GPU code and its modelled timeline for square matrices. Raises KernelError."""
    trace = compiled_at(made, size, target)
    grid = grid_of(made.exercise, made.answer, {**made.given, "M": size, "N": size, "K": size})
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    shape = (*grid, 1, 1)[:3]
    return trace, timeline(trace.stages[-1].after, scalars_at(made, size), shape, ctas=ctas, most=STEPS)


def tiles_fetched(share: float, programs: int = MULTIPROCESSORS, across: int = 96, tile: int = 16) -> Rule:
    """The first `programs` programs load at most `share` of the tiles that they load in the order row by row, for a square of `across`
    tiles."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        side = across * tile
        sizes = {"M": side, "N": side, "K": tile, "BM": tile, "BN": tile, "BK": tile, "GROUP": 8}
        arguments = arguments_at(made, sizes)
        grid = grid_of(made.exercise, made.answer, arguments)
        seen = made.answer.base.footprint(grid, Budget(seconds=5.0))(**matched(made.answer, arguments))
        loaded = 0
        for name in ("a", "b"):
            first = seen[_own_name(made, arguments, name)].loads.owners.first
            loaded += int(np.count_nonzero((first >= 0) & (first < programs))) // tile**2
        most = -(-programs // across) + min(programs, across)
        if loaded > share * most:
            yield _finding(
                f"the first {programs} programs load {loaded} tiles of `a` and `b`; row by row it is {most}, and at most "
                f"{int(share * most)} are allowed: programs with near numbers must share rows and columns"
            )

    text = f"The first {programs} programs load at most {share:.0%} of the tiles that they load row by row."
    return Rule("tiles_fetched", text, check, once=True)


def _own_name(made: Attempt, arguments: Mapping[str, Any], name: str) -> str:
    """The answer's own name of an argument."""
    return next(own for own, value in matched(made.answer, arguments).items() if value is arguments[name])


def _spilled(trace: Trace) -> Iterator[CheckFinding]:
    if trace.resources.spill_bytes:
        yield _finding(f"the code spills {trace.resources.spill_bytes} bytes of registers to memory: use a smaller tile or more warps")


def products_under_way(share: float, size: int = SIZE, target: str = TARGET) -> Rule:
    """In the timeline's model, a product is in flight for at least `share` of the time, and nothing spills."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        try:
            trace, found = timeline_at(made, size, target)
        except KernelError as error:
            yield _finding(f"there is no timeline for {target}: {error.message}")
            return
        yield from _spilled(trace)
        if found.busy < share:
            yield _finding(
                f"products are under way for {found.busy:.0%} of the modelled time, and {share:.0%} are asked for: {_shortage(trace)}"
            )

    text = f"Products are under way for at least {share:.0%} of the time in the timeline of {target}, for {size} x {size} x {size}."
    return Rule("products_under_way", text, check, once=True)


def _shortage(trace: Trace) -> str:
    """Why products wait, as the compiler's notes tell it."""
    if not re.search(r"wgmma\.mma|mma\.sync", trace.ptx or ""):
        return "no tensor core multiplies"
    stages = [int(n) for note in trace.notes for n in re.findall(r"(\d+) stages? of", note.text)]
    if not stages:
        return "no copy runs ahead of the products"
    if max(stages) == 1:
        return "one stage holds one iteration, so copies and products take turns (num_stages)"
    return f"{max(stages)} stages of copies do not cover the latency of these tiles (num_stages, BK, BM, BN)"


def multiplies_with(instruction: str, target: str = TARGET) -> Rule:
    """The code multiplies with this instruction: the beginning of its name in PTX, such as "wgmma.mma_async.sync.aligned.m64n256k16"."""
    short = re.sub(r"\.mma_async\.sync\.aligned", "", instruction)

    def check(made: Attempt) -> Iterator[CheckFinding]:
        trace = compiled_at(made, target=target)
        if instruction in (trace.ptx or ""):
            return
        notes = [note.text for note in trace.notes if note.origin in ("select_wgmma", "select_mma") and note.text.startswith("dot")]
        yield _finding(f"`tl.dot` does not become {short} for {target}. The compiler's notes: {'; '.join(notes) or 'none'}")

    return Rule("multiplies_with", f"`tl.dot` becomes {short} for {target}.", check, once=True)


def _held(made: Attempt) -> tuple[Trace, Occupancy | None]:
    trace = compiled_at(made)
    return trace, occupancy(trace.target, trace.resources)


def programs_resident(count: int) -> Rule:
    """A multiprocessor holds at least `count` programs at once, and nothing spills."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        trace, held = _held(made)
        yield from _spilled(trace)
        if held is not None and held.blocks_per_sm < count:
            needs = trace.resources
            advice = f": {held.advice[0]}" if held.advice else ""
            yield _finding(
                f"a multiprocessor holds {held.blocks_per_sm} program of {needs.threads} threads, {needs.registers} registers per thread "
                f"and {needs.shared_bytes:,} bytes of shared memory; {held.limiter} are the limit{advice}"
            )

    return Rule("programs_resident", f"A multiprocessor of {TARGET} holds at least {count} programs.", check, once=True)


def work_per_element(least: float) -> Rule:
    """A tile does at least `least` multiply-adds per loaded element: BM * BN / (BM + BN)."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        found = constants_of(made)
        bm, bn = found["BM"], found["BN"]
        if bm * bn < least * (bm + bn):
            yield _finding(
                f"a tile of {bm} x {bn} does {bm * bn / (bm + bn):.1f} multiply-adds per loaded element, and {least:g} are asked for: "
                f"use a larger tile"
            )

    text = f"A tile does at least {least:g} multiply-adds per loaded element: BM * BN / (BM + BN)."
    return Rule("work_per_element", text, check, once=True)


def busy_share(size: int, bm: int, bn: int, multiprocessors: int = MULTIPROCESSORS) -> float:
    """The share of the time in which the multiprocessors have a tile, if each tile takes the same time."""
    tiles = -(-size // bm) * -(-size // bn)
    return tiles / (-(-tiles // multiprocessors) * multiprocessors)


def busy_waves(least: float, size: int) -> Rule:
    """The waves of tiles keep the multiprocessors busy for at least `least` of the time."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        found = constants_of(made)
        bm, bn = found["BM"], found["BN"]
        share, tiles = busy_share(size, bm, bn), -(-size // bm) * -(-size // bn)
        if share < least:
            rounds = -(-tiles // MULTIPROCESSORS)
            yield _finding(
                f"tiles of {bm} x {bn} make {tiles} tiles: {rounds} for the busiest of {MULTIPROCESSORS} multiprocessors, which are busy "
                f"for {share:.0%} of the time; {least:.0%} are asked for"
            )

    text = f"For {size} x {size}, {MULTIPROCESSORS} multiprocessors are busy for at least {least:.0%} of the time."
    return Rule("busy_waves", text, check, once=True)


def _descriptors(made: Attempt) -> Iterator[CheckFinding]:
    calls = [node.func for kernel in _kernels(made) for node in ast.walk(kernel.source.node) if isinstance(node, ast.Call)]
    names = [call.attr for call in calls if isinstance(call, ast.Attribute)]
    pointers = sum(isinstance(call, ast.Attribute) and call.attr == "load" and ast.unparse(call.value) == "tl" for call in calls)
    described = names.count("make_tensor_descriptor")
    if described < 3:
        yield _finding(f"the kernel makes {described} tensor descriptors: `a`, `b` and `c` need one each")
    elif pointers > 1:
        yield _finding("a matrix is loaded by tl.load: only the bias needs pointers; call `load` of the descriptor")
    elif "cp.async.bulk.tensor" not in (compiled_at(made).ptx or ""):
        yield _finding("the PTX holds no bulk copy (cp.async.bulk.tensor)")


def _kernels(made: Attempt) -> list[Kernel]:
    """The kernels of the answer's cell, helpers included."""
    own = made.answer.base
    file = own.fn.__code__.co_filename
    found = [k for k in made.answer.names.values() if isinstance(k, Kernel) and k.fn.__code__.co_filename == file]
    return [own, *(kernel for kernel in found if kernel.fn is not own.fn)]


uses_descriptors = Rule(
    "uses_descriptors", "Tensor descriptors load the matrices, so the PTX holds bulk copies.", _descriptors, once=True
)
