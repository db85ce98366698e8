"""How many warps a program has, where neither the launch nor the decorator says.

Few warps have a row to themselves or nearly so: a reduction among them costs little, and each thread has several loads in flight. Many
are needed where a tile would not fit into the registers of few. The numbers below were read off an H200's times of softmax and norms
over all `num_warps` (rows of 256 to 32768 elements, fp32 and fp16); what was not measured has the four warps that it has in Triton.
"""

from __future__ import annotations

from types import MappingProxyType

from blocknb.analysis import affine
from blocknb.ir.core import Func
from blocknb.passes.coalesce import widest
from blocknb.target import Target
from blocknb.trace import Notes

USUAL = 4
MOST = 16
LOADED = 512  # elements loaded that are worth a warp, as long as these are few
LARGE = 2048  # elements of the largest tile that a warp keeps, 64 a thread
#: What the rule for few warps was not measured with.
OTHERS = {"for": "a loop", "while": "a loop", "scan": "a scan", "flip": "elements that move", "gather": "elements that move",
          "atomic": "atomics", "atomic_cas": "atomics", "dot": "products", "asm": "inline assembly"}  # fmt: skip


def applies(func: Func, target: Target) -> bool:
    return "num_warps" not in func.attrs


def warps(func: Func, target: Target, notes: Notes) -> Func:
    """Chooses the number of warps where nobody names one (num_warps): by what is loaded, and by the largest tile.

    Kernels that reduce rows get a warp for 512 elements that a program loads, up to four, if a load takes several at once; with several
    loads of such rows up to eight for 512 of the row. Tiles of more than 8192 elements get a warp for 2048, up to sixteen, and with several
    loads of 32-bit rows one for 1024. All others have four.
    """
    count, why = choice(func)
    notes(None, f"num_warps: {count}, {why}; nobody named it")
    return func.replace(attrs=MappingProxyType({"num_warps": count, **func.attrs}))


def choice(func: Func) -> tuple[int, str]:
    """The number of warps, and why."""
    names = {op.name for op in func.ops()}
    if found := {"dot", "asm"} & names:
        return USUAL, f"as usual with {OTHERS[min(found)]}"
    largest = max((v.type.size for op in func.ops() for v in op.results if v.type.shape), default=1)
    loads = [op for op in func.ops() if op.name == "load" and op.result.type.shape]
    loaded = sum(op.result.type.size for op in loads)
    enough = min(largest // LARGE, MOST)
    weighed = loaded > largest  # several loads of such rows: weights, say
    if "reduce" not in names or (others := OTHERS.keys() & names):
        why = f"as usual with {OTHERS[min(others)]}" if "reduce" in names else "as usual without a reduction"
        return (USUAL, why) if enough <= USUAL else (enough, f"{LARGE} elements of a tile each")
    few = 1 << min(max(loaded // LOADED, 1), USUAL).bit_length() - 1
    rows = min(largest // LOADED, 2 * USUAL) if weighed else 0
    if weighed and max(op.result.type.dtype.bits for op in loads) >= 32:
        enough = min(largest // (LARGE // 2), MOST)  # 32 registers for a row, and room for two programs
    if max(enough, rows) > few:
        count = max(enough, rows)
        return count, f"{largest // count} elements of a tile each"
    if few < USUAL:
        facts = affine.analyze(func)
        if any(widest(facts, op, 1)[0] == 1 for op in loads):
            return USUAL, "as usual where elements are loaded one at a time"
    return few, f"{loaded} elements to load and to reduce"
