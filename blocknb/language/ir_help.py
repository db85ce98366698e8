"""The help on the IR that the card shows at the pointer: one table of ops, attributes and types.

The ops are those of the op table. `scripts/ir_help.py` writes the table for the page; a test compares both with the op table.
"""

from __future__ import annotations

from typing import Any

from blocknb.language.op_spec import EMISSIONS
from blocknb.language.ops import OPS

#: The attributes of ops, each in one sentence.
ATTRIBUTES = {
    "action": "What the access does.",
    "adds": "The copy engine adds to the array instead of overwriting it.",
    "align": "The buffer begins at a multiple of this number of bytes.",
    "argument": "The number of the array among the arguments.",
    "arguments": "The numbers of the arrays among the arguments.",
    "arrivals": "So many arrivals end a phase of the mbarrier.",
    "axes": "For each axis of the buffer, the axis of the array.",
    "axis": "The axis that the op works on; of a program or a grid, 0 is the fastest.",
    "bytes": "The phase of the mbarrier also waits for this number of copied bytes.",
    "cache": "The cache modifier of the access (.ca, .cg, .cs, .cv, ...).",
    "cluster": "The consumers of this number of CTAs of a cluster release a stage.",
    "columns": "The wgmma computes this number of columns, the first ones. No op uses the others.",
    "clocked": "The account of accesses has vector clocks.",
    "constraints": "The operands of the inline assembly, in LLVM's form.",
    "consumer_groups": "The consumer warps form this number of groups, each with its own programs.",
    "count": "The tile is cut into this number of parts.",
    "dtype": "The element type of the result.",
    "dtypes": "The element types of the results.",
    "emit": "Where the code of the op stands: " + " ".join(f"{name}: {text}" for name, text in EMISSIONS.items()),
    "end": "The end of the range, which is not part of it.",
    "extents": "Along each axis of the buffer, only this number of elements is copied, the first ones.",
    "evict": "How long the L2 cache keeps the line.",
    "flush_denormals": "Subnormal results become zero.",
    "hex": "Prints the bits as a hexadecimal number.",
    "in_flight": "So many of the newest products, copies or stores may still be in flight after the op.",
    "index": "The number of the part.",
    "instr": "The instruction of the tensor core.",
    "keep": "The result has one partial result for each warp along the axis.",
    "kind": "The operation in memory: add, max, min, and, or, xor or xchg.",
    "layout": "The layout of the tile that the op reads or makes.",
    "mask": "Element i of the result is element i ^ mask of the operand.",
    "max_constancy": "The author promises that this number of neighbors are equal.",
    "max_contiguous": "The author promises that this number of neighbors are successive numbers.",
    "message": "The text of the report.",
    "multicast": "The copy engine writes the tile to the shared memory of every CTA of the cluster.",
    "multiple_of": "The author promises that the values are multiples of this number.",
    "nan": "A NaN wins over a number.",
    "nearest": "The quotient is rounded as IEEE 754 does.",
    "nontemporal": "The stores bypass the caches of the CPU.",
    "normal": "The divisor and its reciprocal are normal numbers, so a faster instruction suffices.",
    "offset": "The place in shared memory, in bytes.",
    "pack": "The assembly works on this number of elements at a time.",
    "permuted_rows": "The rows of the product stand in the order in which the tensor core leaves them.",
    "perm": "Axis i of the result is axis perm[i] of the operand.",
    "piece": "The op works on this number of registers of a thread at a time.",
    "precision": "How fp32 operands are multiplied: tf32, tf32x3 or ieee.",
    "pred": "The comparison: eq, ne, lt, le, gt or ge.",
    "prefix": "The text in front of the value.",
    "pure": "The assembly has no effects, so that a pass may move, copy or remove it.",
    "registers": "Of a dot: the left operand comes from registers. Of roles: registers per thread of each role.",
    "rematerialize": "The operand is computed again after the reduction instead of being kept in registers.",
    "reverse": "The scan begins at the end of the axis.",
    "saturate": "The pointer moves by at most 2^62 bytes, so that it cannot wrap around.",
    "scan": "The number of the scan that the op is a part of.",
    "scheduling_barrier": "Machine code issues the load before the ops that follow: True, clock where branches are nested, or straight "
    "after a product outside of loops.",
    "scope": "The threads that see the order: cta, gpu or sys.",
    "sem": "The order of other accesses: relaxed, acquire, release or acq_rel.",
    "shape": "The shape of the result.",
    "site": "The number of the access in reports.",
    "split_of": "The store is a part of the store with this id.",
    "stacked": "So many matrices lie below each other in each operand, and are multiplied in pairs.",
    "stages": "The number of stages of the circular buffer, or of mbarriers.",
    "start": "The first number of the range.",
    "take": "Takes the lock; otherwise releases it.",
    "text": "The inline assembly.",
    "tf32": "The elements are rounded to tf32.",
    "transposed": "The operand is read transposed from shared memory.",
    "type": "The type of the result.",
    "types": "The types of the results.",
    "value": "The number.",
    "vec": "One instruction accesses this number of successive elements per thread.",
    "verb": "The access in the words of a report.",
    "volatile": "The access is neither merged nor moved.",
    "warps": "Of a dot: warps along the rows and the columns. Of roles: consumer and producer warps.",
}

#: The attributes of the function.
FUNCTION = {
    "num_warps": "The number of warps of a CTA.",
    "num_stages": "The number of stages of software pipelining.",
    "shared_bytes": "The bytes of shared memory of a CTA.",
    "fast_math": "Floats may be rounded differently, for speed.",
    "without": "The passes that are switched off.",
    "persistent": "A CTA computes several programs in turn.",
    "programs": "A CTA computes this number of programs at a time.",
    "min_ctas": "Machine code may take the registers with which this number of CTAs is resident on an SM.",
}

#: Words of types and of the notation.
TYPES = {
    "tile": "A block of elements in registers, spread over the threads of the CTA by its layout.",
    "buffer": "A tile in shared memory. 3*64x32 is a circular buffer of three stages.",
    "ptr": "A pointer to elements in global memory.",
    "map": "A tensor map: how the copy engine (TMA) finds a box of an array.",
    "mbarriers": "Barriers in shared memory that count arrivals and copied bytes, one per stage.",
    "div": "The argument is a multiple of this number; of a pointer, in bytes.",
    "iter": "The values that the loop carries from one iteration to the next, with their initial values.",
    "was": "The ids of the ops that this op replaces or copies.",
    "i1": "A truth value.",
    "bf16": "A 16-bit float with 8 bits of mantissa precision and the exponent of fp32.",
    "f8e4nv": "An 8-bit float with 4 bits of exponent and 3 of mantissa.",
    "f8e5": "An 8-bit float with 5 bits of exponent and 2 of mantissa.",
}


def table() -> dict[str, dict[str, Any]]:
    """The help by kind of word: "ops" (text, operands, notes on the IR), "attributes", "function" and "types"."""
    ops = {name: {"text": row.help.text, "operands": row.operands, "ir": row.help.ir} for name, row in OPS.items()}
    return {"ops": ops, "attributes": ATTRIBUTES, "function": FUNCTION, "types": TYPES}
