"""Rules of the exercises on matrix products: tiles that programs share, instructions, the modelled timeline, and rounds of tiles.

Nothing here needs a GPU or measures a time. Rules about code compile the answer for a GPU at the size of a real product, because small
matrices end before a pipeline is full.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from blocknb.errors import KernelError
from blocknb.footprint.access_log import Budget
from blocknb.learn.cell import matched
from blocknb.learn.code_rules import MULTIPROCESSORS, NO_PTXAS, TARGET, gpu_code
from blocknb.learn.exercise import CheckFinding, Rule
from blocknb.learn.running import Attempt, TimeUp, ToolMissing, Unchecked, grid_of
from blocknb.profile.occupancy import occupancy
from blocknb.profile.timeline import H200, timeline
from blocknb.profile.timeline_spans import Timeline
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.summary import scalars_of
from blocknb.trace import Trace

#: The size of the square product that rules about code compile for.
SIZE = 4096
STEPS = 6000  # ops of the timeline, as on the card
HALF_BYTES = 2


def _code_rule(name: str, says: str, find: Callable[[Attempt], Iterator[str]]) -> Rule:
    """A rule that the first case decides. A kernel that does not compile for the GPU breaks it."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        try:
            for text in find(made):
                yield CheckFinding(text, "rule", True)
        except KernelError as error:
            hint = f": {error.hint}" if error.hint else ""
            yield CheckFinding(f"the kernel does not compile for {TARGET}: {error.message}{hint}", "rule", True)
        except TimeUp:
            yield CheckFinding(f"the compilation for {TARGET} takes too long: use smaller tiles", "rule", True)

    return Rule(name, says, check, once=True)


def arguments_at(made: Attempt, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The arguments of a case with other sizes and constants, and arrays of zeros."""
    found = {name: value for name, value in made.given.items() if not isinstance(value, np.ndarray)} | dict(sizes)
    shapes = {"a": ("M", "K"), "b": ("K", "N"), "c": ("M", "N"), "bias": ("N",)}
    arrays = {
        name: np.zeros([found[axis] for axis in shapes[name]], value.dtype)
        for name, value in made.given.items()
        if isinstance(value, np.ndarray)
    }
    return {name: arrays.get(name, found.get(name)) for name in made.given}


def tile_of(made: Attempt) -> tuple[int, int]:
    """BM and BN: of the case, or the default values that the answer gives them. Raises KernelError for an answer without them."""
    known = {**made.answer.defaults(), **matched(made.answer, made.given)}
    found = [known.get(name) for name in ("BM", "BN")]
    if not all(isinstance(value, int) and value > 0 for value in found):
        raise KernelError("BM and BN have no values", hint="write BM: tl.constexpr = 128 in the kernel's parameters")
    return found[0], found[1]  # type: ignore[return-value]


def square_code(made: Attempt, size: int = SIZE) -> Trace:
    """The code for sm_90a of a product of size x size x size. Raises KernelError."""
    return gpu_code(made, M=size, N=size, K=size).compiled.trace


def square_timeline(made: Attempt, size: int = SIZE) -> tuple[Trace, Timeline]:
    """The code of a square product for sm_90a, and its modelled timeline. Raises KernelError."""
    launch = gpu_code(made, M=size, N=size, K=size)
    trace = launch.compiled.trace
    held = occupancy(trace.target, trace.resources)
    ctas = MULTIPROCESSORS * (held.blocks_per_sm if held else 1)
    return trace, timeline(trace.stages[-1].after, scalars_of(launch.arguments), launch.grid, ctas=ctas, most=STEPS)


def tiles_fetched(share: float, programs: int = MULTIPROCESSORS, across: int = 96, tile: int = 16) -> Rule:
    """The first `programs` programs load at most `share` of the tiles that they would load in row-major order, for a square of `across`
    tiles."""

    def find(made: Attempt) -> Iterator[str]:
        side = across * tile
        sizes = {"M": side, "N": side, "K": tile, "BM": tile, "BN": tile, "BK": tile, "GROUP": 8}
        arguments = arguments_at(made, sizes)
        grid = grid_of(made.exercise, made.answer, arguments)
        seen = made.answer.base.footprint(grid, Budget(seconds=5.0))(**matched(made.answer, arguments))
        if seen.sampled:
            raise Unchecked("the footprint of the first tiles takes too long")
        firsts = [seen[made.parameter(name)].loads.owners.first for name in ("a", "b")]
        rows, columns = (int(np.count_nonzero((x >= 0) & (x < programs))) // tile**2 for x in firsts)
        by_rows = -(-programs // across) + min(programs, across)
        if rows + columns > share * by_rows:
            yield (
                f"{_order(rows, columns, across)}. The first {programs} programs load {rows} tiles of `a` and {columns} of `b`; together "
                f"at most {int(share * by_rows)} are allowed"
            )

    text = f"The first {programs} programs load at most {share:.0%} of the tiles that they load row by row."
    return _code_rule("tiles_fetched", text, find)


def _order(rows: int, columns: int, across: int) -> str:
    """The order of the tiles, from the rows and columns of tiles that the first programs touch."""
    if columns == across:
        return "tiles are in order row by row: within a group, go down a column first"
    if rows == across:
        return "tiles are in order column by column: a group has GROUP rows of tiles"
    return "programs with near numbers share too few rows and columns of tiles"


def mma_utilization_at_least(share: float) -> Rule:
    """In the timeline's model, products are under way for at least `share` of the time of a square product."""

    def find(made: Attempt) -> Iterator[str]:
        trace, found = square_timeline(made)
        if found.busy < share:
            why = _shortage(made, trace)
            yield f"products are under way for {found.busy:.0%} of the modelled time, and {share:.0%} are asked for: {why}"

    text = f"Products are under way for at least {share:.0%} of the time in the timeline for {SIZE} x {SIZE} x {SIZE}."
    return _code_rule("mma_utilization_at_least", text, find)


def _shortage(made: Attempt, trace: Trace) -> str:
    """Why products wait: the instruction, the stages in the compiler's notes, or the bytes of a tile."""
    if not re.search(r"wgmma\.mma|mma\.sync", trace.ptx or ""):
        return "no tensor core multiplies"
    stages = [int(n) for note in trace.notes for n in re.findall(r"(\d+) stages? of", note.text)]
    if not stages:
        return "no copy runs ahead of the products"
    if max(stages) == 1:
        return "with one stage, copies and products take turns (num_stages)"
    bm, bn = tile_of(made)
    copied, multiplied = (bm + bn) * HALF_BYTES / H200.memory, bm * bn / H200.product
    if copied > multiplied:
        clocks = f"{copied:.0f} clocks to be copied and {multiplied:.0f} to be multiplied"
        return f"for each k, a tile of {bm} x {bn} needs {clocks}: use a larger tile"
    return f"{max(stages)} stages of copies do not cover the latency: use more stages (num_stages), or a larger BK"


def multiplies_with(instruction: str) -> Rule:
    """The PTX for sm_90a multiplies with an instruction, given as the beginning of its name, in which `*` stands for any
    shape: "wgmma.mma_async.sync.aligned.m64n256k16"."""
    short = instruction.replace(".mma_async.sync.aligned", "").replace(".*k16.f32.f16.f16", " of fp16 tiles")
    pattern = re.escape(instruction).replace(r"\*", r"\w*")

    def find(made: Attempt) -> Iterator[str]:
        trace = square_code(made)
        if re.search(pattern, trace.ptx or ""):
            return
        passes = ("select_wgmma", "select_mma")
        notes = [note.text for note in trace.notes if note.origin in passes and note.text.startswith("dot")]
        noted = f" The compiler's notes: {'; '.join(notes)}" if notes else ""
        yield f"`tl.dot` does not become {short} for {TARGET}: {_other_instruction(trace.ptx or '', notes)}.{noted}"

    return _code_rule("multiplies_with", f"`tl.dot` becomes {short} for {TARGET}.", find)


def _other_instruction(ptx: str, notes: list[str]) -> str:
    """Why the code has another instruction than the wanted one, from the notes or from the instruction's name."""
    for note in notes:
        if "not wgmma: " in note:
            return note.split("not wgmma: ")[1]
    found = re.search(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.\w+\.(\w+)", ptx)
    if found is None:
        return "there is no product on tensor cores"
    columns, depth, dtype = found.groups()
    if depth != "16" or dtype != "f16":
        return f"the tiles that tl.dot gets are {dtype} (k{depth}), so multiply the fp16 tiles as they are"
    return (
        f"one instruction covers {columns} columns (n{columns}): BN is too small, or too many warps share the columns"
    )


def room_for(programs: int) -> Rule:
    """A multiprocessor of sm_90a holds at least so many programs at once."""

    def find(made: Attempt) -> Iterator[str]:
        trace = square_code(made)
        held, needs = occupancy(trace.target, trace.resources), trace.resources
        if held is None:
            raise ToolMissing(NO_PTXAS)
        if held.blocks_per_sm >= programs:
            return
        full = {
            "registers": f"the registers are full: {needs.registers} for each of {needs.threads} threads, mostly for sums",
            "shared memory": f"the shared memory is full: {needs.shared_bytes or 0:,} bytes for the stages of a program",
        }
        room = f"a multiprocessor holds {held.blocks_per_sm} of these programs, and {programs} are asked for"
        yield f"{room}: {full.get(held.limiter, held.limiter)}"

    return _code_rule("room_for", f"A multiprocessor of {TARGET} holds at least {programs} programs.", find)


def warps_among(*allowed: int) -> Rule:
    """The rule that the kernel uses one of these values of num_warps."""
    listed = " or ".join(map(str, allowed))

    def find(made: Attempt) -> Iterator[str]:
        found = square_code(made).options["num_warps"]
        if found not in allowed:
            yield f"the kernel has num_warps={found}, and {listed} is asked for"

    return _code_rule("warps_among", f"A program has {listed} warps.", find)


def loaded_once_per_program(name: str, axis: int) -> Rule:
    """Each program loads the elements of an array at most once. Programs that differ only along `axis` of the grid share them."""

    def check(made: Attempt) -> Iterator[CheckFinding]:
        seen = made.whole_footprint
        array = made.parameter(name)
        if array not in seen.arrays or not seen[array].loads:
            return
        times = int(seen[array].loads.count.max()) / made.grid[axis]
        if times > 1:
            text = f"a program loads each element of `{array}` {times:g} times: load it once, before or after the loop"
            yield CheckFinding(text, "rule", True)

    return Rule("loaded_once_per_program", f"A program loads `{name}` once.", check)


def work_per_element(least: float) -> Rule:
    """A tile does at least `least` multiply-adds per loaded element: BM * BN / (BM + BN)."""

    def find(made: Attempt) -> Iterator[str]:
        bm, bn = tile_of(made)
        if bm * bn < least * (bm + bn):
            yield (
                f"a tile of {bm} x {bn} does {bm * bn / (bm + bn):.1f} multiply-adds per loaded element, and {least:g} are asked for: "
                "use a larger tile"
            )

    text = f"A tile does at least {least:g} multiply-adds per loaded element: BM * BN / (BM + BN)."
    return _code_rule("work_per_element", text, find)


def busy_share(size: int, bm: int, bn: int, multiprocessors: int = MULTIPROCESSORS) -> float:
    """The share of the time in which the multiprocessors have a tile, if each tile takes the same time."""
    tiles = -(-size // bm) * -(-size // bn)
    return tiles / (-(-tiles // multiprocessors) * multiprocessors)


def rounds_busy(least: float, size: int) -> Rule:
    """The rounds of tiles keep the multiprocessors busy for at least `least` of the time."""

    def find(made: Attempt) -> Iterator[str]:
        bm, bn = tile_of(made)
        share, tiles = busy_share(size, bm, bn), -(-size // bm) * -(-size // bn)
        if share < least:
            rounds = -(-tiles // MULTIPROCESSORS)
            yield (
                f"{tiles} tiles of {bm} x {bn} are {rounds} for the busiest of {MULTIPROCESSORS} multiprocessors, which are busy for "
                f"{share:.0%} of the time; {least:.0%} are asked for"
            )

    text = f"For {size} x {size}, {MULTIPROCESSORS} multiprocessors are busy for at least {least:.0%} of the time."
    return _code_rule("rounds_busy", text, find)


def _descriptors(made: Attempt) -> Iterator[str]:
    calls = [
        node.func for kernel in _kernels(made) for node in ast.walk(kernel.source.node) if isinstance(node, ast.Call)
    ]
    called = [ast.unparse(call) for call in calls]
    described = sum(name.endswith("make_tensor_descriptor") for name in called)
    if described < 3:
        yield f"the kernel makes {described} tensor descriptors: `a`, `b` and `c` need one each"
    elif "tl.store" in called:
        yield "`c` is stored by tl.store: call `store` of its descriptor"
    elif called.count("tl.load") > 1:
        yield "a matrix is loaded by tl.load: only the bias needs pointers; call `load` of the descriptor"
    elif "cp.async.bulk.tensor" not in (square_code(made).ptx or ""):
        yield "the PTX holds no bulk copy (cp.async.bulk.tensor)"


def _kernels(made: Attempt) -> list[Kernel]:
    """The kernels of the answer's cell, helpers included."""
    own = made.answer.base
    file = own.fn.__code__.co_filename
    found = [k for k in made.answer.names.values() if isinstance(k, Kernel) and k.fn.__code__.co_filename == file]
    return [own, *(kernel for kernel in found if kernel.fn is not own.fn)]


uses_descriptors = _code_rule(
    "uses_descriptors", "Tensor descriptors load the matrices, so the PTX holds bulk copies.", _descriptors
)
