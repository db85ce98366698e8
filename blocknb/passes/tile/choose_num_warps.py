"""The choice of the number of warps where the user gives none (a heuristic, as in Triton's autotuner configurations).

A few warps suffice for a row: a reduction among them is cheap, and each thread has several loads in flight. A tile that does not fit into
the registers of a few warps needs more. The limits below come from measurements on an H200. They cover softmax and norms over all
`num_warps`, with rows of 256 to 32768 elements in fp32 and fp16. Other kernels get four warps, as in Triton.

For products the accumulators decide, which stay in registers for the whole loop. Four warps hold 128 x 128 of them, eight hold 128 x 256.
The results of many products in a block are not live together, so for these the liveness of tiles decides. On an H100, four gradient kernels
of flash-linear-attention ran 1.1 to 1.7 times as fast with the fewer warps.
In attention, one product's result is an operand of the next, so both accumulators are live at the same time. Such a kernel gets four
warps, a warpgroup on Hopper, for each 64 rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from blocknb.analysis import affine
from blocknb.analysis.liveness import Liveness
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.passes.registry import gpu_pass
from blocknb.passes.support.note_text import counted
from blocknb.passes.support.vector_obstacles import vector_limits
from blocknb.passes.tile.select_wgmma import made_of_dots
from blocknb.target import Target
from blocknb.trace import Notes

USUAL = 4
MOST = 16
LOADED = 512  # loaded elements per warp, for a small number of warps
LARGE = 2048  # the elements of a tile that one warp can hold, 64 per thread
#: Registers per thread for the results of products, besides addresses, fragments and other values; with 16 warps a thread has 128.
ACCUMULATORS = ((4, 160), (8, 160), (MOST, 80))
SINGLE = 96  # of four warps with fp32 operands, which need registers on their way to shared memory, or many addresses
LIVE = 245  # registers of a thread for all tiles that are live at a time; the others hold addresses
#: The same for four warps, which may spill a third. Eight warps would leave room for one CTA on an SM, and all of it would wait at each
#: barrier. Two CTAs of four warps take turns: on an H200 a gradient kernel of path attention took 0.75 of the time.
SPILLED = 384
ROWS = 64  # rows of chained products per four warps
#: Ops that the measurements for few warps did not include.
OTHERS = {"for": "a loop", "while": "a loop", "scan": "a scan", "flip": "elements that move", "gather": "elements that move",
          "atomic": "atomics", "atomic_cas": "atomics", "dot": "products", "asm": "inline assembly"}  # fmt: skip


def applies(func: Func, target: Target) -> bool:
    return "num_warps" not in func.attrs


@gpu_pass(applies=applies)
def choose_num_warps(func: Func, target: Target, notes: Notes) -> Func:
    """Chooses the number of warps if neither the launch nor the decorator sets it

    When: neither the launch nor the decorator names `num_warps`.

    What: a kernel that reduces rows gets one warp per 512 elements that a program loads. The limit is four warps, or eight if it loads
    several such rows. A tile of more than 8192 elements gets one warp per 2048 elements, up to 16. A kernel with products gets four warps
    if their results fit into the registers of four warps. It also does if all tiles that are live at a time fit or spill a little.
    Otherwise it gets eight or 16. Every other kernel gets four.

    Why: few warps reduce a row cheaply and keep several loads in flight per thread. Many warps are needed where a tile would not fit into
    registers.

    Limits: the numbers were measured on an H200 with softmax and norms. Kernels of other kinds keep the four warps that they have in
    Triton.

    Before:

        func @softmax(%x: ptr<f32>, %n: i32) tile {
          %v = load %p, %mask : tile<1024xf32>
          %m = reduce %v {axis=0} max : f32
        }

    After:

        func @softmax(%x: ptr<f32>, %n: i32) tile {num_warps=2} {
          %v = load %p, %mask : tile<1024xf32>
          %m = reduce %v {axis=0} max : f32
        }
    """
    count, why = choice(func)
    notes(None, f"num_warps: {count}, {why}; the compiler chose it")
    return func.replace(attrs=MappingProxyType({"num_warps": count, **func.attrs}))


def choice(func: Func) -> tuple[int, str]:
    """The number of warps, and the reason."""
    names = {op.name for op in func.ops()}
    if "dot" in names:
        return for_products(func)
    if "asm" in names:
        return USUAL, f"as usual with {OTHERS['asm']}"
    largest = max((v.type.size for op in func.ops() for v in op.results if v.type.shape), default=1)
    loads = [op for op in func.ops() if op.name == "load" and op.result.type.shape]
    loaded = sum(op.result.type.size for op in loads)
    enough = min(largest // LARGE, MOST)
    if "reduce" not in names or (others := OTHERS.keys() & names):
        why = f"as usual with {OTHERS[min(others)]}" if "reduce" in names else "as usual without a reduction"
        return (USUAL, why) if enough <= USUAL else (enough, f"{LARGE} elements of a tile each")
    return for_rows(func, loads, largest, loaded, enough)


def for_rows(func: Func, loads: Sequence[Op], largest: int, loaded: int, enough: int) -> tuple[int, str]:
    """The number of warps of a kernel that reduces rows, and the reason. `enough` warps hold the largest tile."""
    weighed = loaded > largest  # the kernel loads several such rows, for example weights
    few = 1 << min(max(loaded // LOADED, 1), USUAL).bit_length() - 1
    rows = min(largest // LOADED, 2 * USUAL) if weighed else 0
    if weighed and max(op.result.type.dtype.bits for op in loads) >= 32:
        enough = min(largest // (LARGE // 2), MOST)  # 32 registers per row, and room for two CTAs
    if max(enough, rows) > few:
        count = max(enough, rows)
        return count, f"{largest // count} elements of a tile each"
    if few < USUAL:
        facts = affine.analyze(func)
        if any(vector_limits(facts, op, 1).fact_width == 1 for op in loads):
            return USUAL, "as usual where elements are loaded one at a time"
    return few, f"{loaded} elements to load and to reduce"


# -- products


def for_products(func: Func) -> tuple[int, str]:
    """The number of warps of a kernel with products, and the reason."""
    made = made_of_dots(func)
    dots = [op for op in func.ops() if op.name == "dot"]
    rows = max((op.result.type.shape[0] for op in dots if op.args[0] in made), default=0)
    needed = max(results(func.body, made))
    single = any(op.args[0].type.dtype.bits == 32 for op in dots)
    limits = ((few, min(most, SINGLE) if single and few == USUAL else most) for few, most in ACCUMULATORS)
    count = min((few for few, most in limits if needed <= most * 32 * few), default=MOST)
    if count == USUAL and rows > ROWS:
        return 2 * USUAL, f"{USUAL} for each {ROWS} of the {rows} rows of a product that is multiplied again"
    if count > USUAL and rows <= ROWS and (found := for_live_tiles(func, needed, count)):
        return found
    each = f"their results take {counted(needed // (32 * count), 'register')} of a thread"
    if count == USUAL:
        return count, f"as usual with products: {each}"
    return count, f"for products: {each}, and {needed // (32 * (count // 2))} with half as many warps"


def for_live_tiles(func: Func, needed: int, count: int) -> tuple[int, str] | None:
    """Fewer warps than `count` and the reason, if the tiles that are live at a time take less than the `needed` words of all results."""
    live = Liveness(func, 32 * USUAL).most()  # registers per thread of four warps
    fewer = next((few for few, _ in ACCUMULATORS if live * USUAL <= (SPILLED if few == USUAL else LIVE) * few), MOST)
    if live * 32 * USUAL >= needed or fewer >= count:
        return None
    each = f"{counted(live * USUAL // fewer, 'register')} of a thread hold all tiles that are live at a time"
    return fewer, f"as usual with products: {each}" if fewer == USUAL else f"for products: {each}"


def results(block: Block, made: set[Value]) -> Iterator[int]:
    """The 32-bit words of the products' results in each block with products, and of the operands that are computed from them."""
    dots = [op for op in block.ops if op.name == "dot"]
    added_to = {op.args[2] for op in dots}
    dots = [op for op in dots if op.result not in added_to]
    if dots:
        tiles = [op.result.type for op in dots] + [op.args[0].type for op in dots if op.args[0] in made]
        yield sum(x.size * max(x.dtype.bits, 8) // 32 for x in tiles)
    for op in block.ops:
        for inner in op.blocks:
            yield from results(inner, made)
