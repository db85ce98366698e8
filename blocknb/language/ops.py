"""The op table: every operation of the IR, once.

A row gives an op its operands, attributes, type rule, effect, doc and, for elementwise ops, its meaning in NumPy. The builder
infers result types from it, the verifier checks with it, the interpreter computes with it, the language reference is printed
from it, and the code generators are tested against it. An elementwise row computes on any array, so the same meaning serves a
scalar, a tile and a tile spread over warps, lanes and registers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from blocknb.language import assembly, bulk, meaning, rules, shared_memory
from blocknb.language.meaning import PREDICATES
from blocknb.language.rules import TypeRule, need

__all__ = ["ACCESSES", "ATOMICS", "OPS", "PREDICATES", "TERMINATORS", "OpSpec", "TypeRule", "infer", "need", "row"]


@dataclass(frozen=True)
class OpSpec:
    """One row. `kind`: source, shape, elementwise, assembly, memory, dot, reduce, move, report, control, distributed, shared.

    `infer(types, attrs)` gives the result types, `numpy(attrs, result dtype, *arrays)` the meaning of an elementwise op;
    `levels` are those at which the op may stand; `reads` and `writes` name the memory touched: "global", "shared", "report"
    (what a kernel says to its user) or "".
    """

    name: str
    kind: str
    infer: Callable[[tuple, dict], tuple]
    doc: str
    operands: str = ""
    attrs: tuple[str, ...] = ()
    numpy: Callable | None = None
    reads: str = ""
    writes: str = ""
    levels: tuple[str, ...] = ("tile", "distributed", "memory")
    blocks: int = 0

    @property
    def pure(self) -> bool:
        """No effect and no blocks: may be removed, copied and moved freely."""
        return not (
            self.reads or self.writes or self.blocks or self.kind in ("control", "assembly") or self.name == "alloc"
        )


OPS: dict[str, OpSpec] = {}


def row(name: str, kind: str, infer: Callable, doc: str, **rest: Any) -> None:
    OPS[name] = OpSpec(name, kind, infer, doc, **rest)


# -- the table -----------------------------------------------------------------------------------------------------------

row(
    "const",
    "source",
    rules.const,
    "A compile-time constant, scalar or the same for every element.",
    attrs=("value", "type"),
)
row("program_id", "source", rules.scalar_i32, "The program's index along an axis of the grid.", attrs=("axis",))
row("num_programs", "source", rules.scalar_i32, "The number of programs along an axis of the grid.", attrs=("axis",))
row(
    "arange",
    "source",
    rules.arange,
    "The integers from start to end (exclusive), a power of two of them.",
    attrs=("start", "end"),
)
row("splat", "shape", rules.splat, "A scalar repeated to a tile.", operands="x", attrs=("shape",))
row(
    "broadcast",
    "shape",
    rules.broadcast,
    "Axes of size one repeated to the given shape.",
    operands="x",
    attrs=("shape",),
)
row("expand_dims", "shape", rules.expand_dims, "A new axis of size one.", operands="x", attrs=("axis",))
row(
    "reshape",
    "shape",
    rules.reshape,
    "The same elements in row-major order under another shape.",
    operands="x",
    attrs=("shape",),
)
row(
    "trans",
    "shape",
    rules.trans,
    "The axes permuted: axis i of the result is axis perm[i] of x.",
    operands="x",
    attrs=("perm",),
)

NUMBERS = "int uint float"
for _name, _kinds, _doc, _fn in (
    ("add", NUMBERS, "Sum; integers wrap.", meaning.plain(np.add)),
    ("sub", NUMBERS, "Difference; integers wrap.", meaning.plain(np.subtract)),
    ("mul", NUMBERS, "Product; integers wrap.", meaning.plain(np.multiply)),
    (
        "div",
        NUMBERS,
        "Quotient: for floats within 2 ulp (`nearest`: as IEEE rounds; `normal`: the divisor and its reciprocal are normal numbers), "
        "for integers truncated (by zero: 0; the least by -1: itself).",
        meaning.quiet(meaning.divide),
    ),
    ("rem", NUMBERS, "Remainder with the dividend's sign; of an integer by zero: 0.", meaning.quiet(meaning.remainder)),
    (
        "min",
        NUMBERS,
        "The smaller operand; a NaN loses unless `nan` is set; -0 is below +0.",
        meaning.quiet(meaning.minmax(largest=False)),
    ),
    (
        "max",
        NUMBERS,
        "The larger operand; a NaN loses unless `nan` is set; -0 is below +0.",
        meaning.quiet(meaning.minmax(largest=True)),
    ),
    ("mulhi", "int uint", "The upper half of the product of twice the width.", meaning.plain(meaning.multiply_high)),
    ("and", "bool int uint", "Bitwise and.", meaning.plain(np.bitwise_and)),
    ("or", "bool int uint", "Bitwise or.", meaning.plain(np.bitwise_or)),
    ("xor", "bool int uint", "Bitwise exclusive or.", meaning.plain(np.bitwise_xor)),
    (
        "shl",
        "int uint",
        "Shift left; by the width or more, or a negative number: 0.",
        meaning.quiet(meaning.shift(True)),
    ),
    (
        "shr",
        "int uint",
        "Shift right: arithmetic for signed operands, logical for unsigned; by the width or more, or a negative number, every bit is the "
        "sign, or 0.",
        meaning.quiet(meaning.shift(False)),
    ),
):
    row(
        _name,
        "elementwise",
        rules.same(_kinds),
        _doc,
        operands="a b",
        attrs={"min": ("nan",), "max": ("nan",), "div": ("nearest", "normal")}.get(_name, ()),
        numpy=_fn,
    )

row(
    "cmp",
    "elementwise",
    rules.compare,
    "Comparison (pred: eq ne lt le gt ge); false with NaN but for ne.",
    operands="a b",
    attrs=("pred",),
    numpy=meaning.quiet(meaning.compare),
)
row(
    "select",
    "elementwise",
    rules.select,
    "a where the condition holds, b elsewhere.",
    operands="condition a b",
    numpy=meaning.plain(np.where),
)
row(
    "cast",
    "elementwise",
    rules.cast,
    "The same number in another dtype: nearest even for floats (an fp8 no larger than its largest number), wrapping among integers. "
    "From a float to an integer: truncated, the nearest integer of the dtype where it is out of range, 0 where it is NaN (LLVM's "
    "fptosi.sat and fptoui.sat); one instruction of a GPU, two or three more from fp64 or to 64 bits. To a truth value: != 0.",
    operands="x",
    attrs=("dtype",),
    numpy=meaning.quiet(meaning.cast),
)
row(
    "bitcast",
    "elementwise",
    rules.bitcast,
    "The same bits as another type of equal width.",
    operands="x",
    attrs=("dtype",),
    numpy=meaning.bitcast,
)
row(
    "promise",
    "elementwise",
    rules.promise,
    "x itself, of which the author promises more than is known where it was made.",
    operands="x",
    attrs=("multiple_of", "max_contiguous", "max_constancy"),
    numpy=lambda attrs, dtype, x: x,
)
row(
    "ptradd",
    "elementwise",
    rules.ptradd,
    "A pointer moved by a number of elements. `saturate`: by at most 2^62 bytes either way, so that none comes back to where it was.",
    operands="pointer offset",
    attrs=("saturate",),
)
row(
    "fma",
    "elementwise",
    rules.same("float"),
    "a * b + c, rounded once.",
    operands="a b c",
    numpy=meaning.quiet(meaning.fma),
)
row(
    "neg",
    "elementwise",
    rules.same(NUMBERS),
    "Negation; integers wrap.",
    operands="x",
    numpy=meaning.plain(np.negative),
)
row(
    "not",
    "elementwise",
    rules.same("bool int uint"),
    "Bitwise complement.",
    operands="x",
    numpy=meaning.plain(np.invert),
)
row("abs", "elementwise", rules.same(NUMBERS), "Absolute value.", operands="x", numpy=meaning.plain(np.abs))
for _name, _doc, _fn in (
    (
        "exp",
        "e to the x. In fp32 a GPU's error grows with |x|, to 50 ulp at its ends (it computes 2 to the x log2 e).",
        np.exp,
    ),
    ("exp2", "2 to the x.", np.exp2),
    ("log", "Natural logarithm.", np.log),
    ("log2", "Logarithm to base 2.", np.log2),
    ("sqrt", "Square root.", np.sqrt),
    ("rsqrt", "Reciprocal square root.", lambda x: 1 / np.sqrt(x)),
    ("sin", "Sine of radians.", np.sin),
    ("cos", "Cosine of radians.", np.cos),
    ("tanh", "Hyperbolic tangent.", np.tanh),
    ("erf", "Error function.", meaning.erf),
    ("floor", "Rounded down to an integer.", np.floor),
    ("ceil", "Rounded up to an integer.", np.ceil),
):
    row(
        _name,
        "elementwise",
        rules.same("float"),
        _doc + " With `flush`, results that are subnormal in fp32 are zero." * (_name in ("exp", "exp2")),
        operands="x",
        attrs=("flush",) if _name in ("exp", "exp2") else (),
        numpy=meaning.flushing(_fn) if _name in ("exp", "exp2") else meaning.wide(_fn),
    )

row(
    "load",
    "memory",
    rules.load,
    "Elements from memory; where the mask is off, `other` (zero when absent, which Triton leaves undefined). `ahead`: this is for a later "
    'trip of the loop, and the last such load, so that machine code issues it before what follows. `sem`: "acquire" for a volatile '
    "load that a loop waits for.",
    operands="pointer [mask [other]]",
    attrs=("cache", "evict", "volatile", "sem", "ahead", "layout", "vec"),
    reads="global",
)
row(
    "store",
    "memory",
    rules.store,
    "Elements to memory where the mask is on. Stores with one number as `part_of` are parts of one store, in no order among themselves.",
    operands="pointer value [mask]",
    attrs=("cache", "evict", "layout", "vec", "part_of"),
    writes="global",
)
row(
    "atomic",
    "memory",
    rules.atomic,
    "Combines each element with memory in one step (kind: add max min and or xor xchg) and returns what was there before; zero "
    "where the mask is off. Each element is one such step, in no fixed order; a float's max and min put -0 below 0 and a NaN beyond "
    "the infinity of its sign; a GPU's sums of fp32 take what is below 2^-126 as zero. `sem` orders other accesses (relaxed, acquire, "
    "release, acq_rel) as seen within `scope` (cta, gpu, sys). With a buffer the old values go there: how replicas get them.",
    operands="[buffer] pointer value [mask]",
    attrs=("kind", "sem", "scope", "layout"),
    reads="global",
    writes="global",
)
row(
    "atomic_cas",
    "memory",
    rules.atomic_cas,
    "Compare and swap: where memory holds the bits of `compare`, stores `value`, in one step; returns what was there before.",
    operands="[buffer] pointer compare value [mask]",
    attrs=("sem", "scope", "layout"),
    reads="global",
    writes="global",
)
row(
    "dot",
    "dot",
    rules.dot,
    "a @ b + c. `precision` (fp32 operands): tf32, tf32x3 or ieee; `instr` the tensor-core instruction, chosen by a pass, `warps` how many "
    "split the rows and columns of the result; `registers`: a wgmma whose A is in registers, not in a shared buffer. `pending`: so many "
    "wgmma, this one included, may still be under way behind it; its result is for other products to add to until a `dot_wait`. "
    "`turned`: operands (0: a, 1: b) whose buffers hold their transposes. `crossed`: rows of A are taken in another order (see "
    "`layouts.wgmma.crossed`).",
    operands="a b c",
    attrs=("precision", "instr", "layout", "warps", "registers", "pending", "turned", "crossed"),
)
row(
    "reduce",
    "reduce",
    rules.reduce,
    "Combines along an axis with the block (2n scalars to n). `keep`: partial results, one for each warp along the axis.",
    operands="x...",
    attrs=("axis", "keep", "layout"),
    blocks=1,
)
row(
    "scan",
    "reduce",
    rules.scan,
    "Along an axis, each element combined with all before it by the block (2n scalars to n); `reverse`: with all after it.",
    operands="x...",
    attrs=("axis", "reverse"),
    blocks=1,
)
row(
    "asm",
    "assembly",
    assembly.infer,
    "PTX applied to `pack` elements at a time; its results are of `dtypes`. Unless `pure` it keeps its place among other effects. "
    "Each thread runs it for the elements that it holds, so where several hold one, several run it.",
    operands="x...",
    attrs=("text", "constraints", "dtypes", "pure", "pack"),
)
row(
    "flip",
    "move",
    rules.flip,
    "Element i along the axis is element i ^ mask of x: the size less one reverses the axis, a single bit swaps neighbours.",
    operands="x",
    attrs=("axis", "mask", "layout"),
)
row(
    "gather",
    "move",
    rules.gather,
    "Element i along the axis is element index[i] of x along it; an index is taken modulo the size.",
    operands="x index",
    attrs=("axis",),
)

row(
    "print",
    "report",
    rules.nothing,
    "Says each element of each operand, on a line that begins with the program, the element and the prefix.",
    operands="[x...]",
    attrs=("prefix", "hex"),
    writes="report",
)
row(
    "assert",
    "report",
    rules.asserted,
    "Says where the condition does not hold.",
    operands="condition",
    attrs=("message",),
    writes="report",
)
row(
    "inside",
    "elementwise",
    rules.inside,
    "Whether an element lies within the array that was passed as the argument of that number.",
    operands="pointer",
    attrs=("argument",),
)
row(
    "outside",
    "report",
    rules.outside,
    "Says where an access (`action`) to the array of an argument, which is not made there, would lie outside of it.",
    operands="pointer bad",
    attrs=("argument", "action"),
    writes="report",
)

row(
    "for",
    "control",
    rules.for_loop,
    "for i in range(lower, upper, step) with carried values; block: (i, carried...) -> yield.",
    operands="lower upper step init...",
    blocks=1,
)
row(
    "if",
    "control",
    rules.branch,
    "Two blocks without arguments; both yield the results.",
    operands="condition",
    attrs=("types",),
    blocks=2,
)
row(
    "while",
    "control",
    lambda types, attrs: tuple(types),
    "Blocks (carried...) -> condition(c, carried...) and (carried...) -> yield.",
    operands="init...",
    blocks=2,
)
row("yield", "control", rules.nothing, "Ends a block with its values.", operands="values...")
row(
    "condition",
    "control",
    rules.nothing,
    "Ends the first block of a while: go on if c, with the values.",
    operands="c values...",
)
row(
    "barrier",
    "control",
    rules.nothing,
    "All warps of the program meet here; their memory accesses before it are seen after it.",
)

row(
    "convert",
    "distributed",
    rules.convert,
    "The same tile in another layout.",
    operands="x",
    attrs=("layout",),
    levels=("distributed", "memory"),
)
row(
    "part",
    "distributed",
    rules.part,
    "One of so many equal parts of a tile along an axis; each thread keeps what it has of it.",
    operands="x",
    attrs=("axis", "index", "count"),
    levels=("distributed", "memory"),
)
shared_memory.rows(row)
bulk.rows(row)

TERMINATORS = ("yield", "condition")
ATOMICS = ("atomic", "atomic_cas")
ACCESSES = ("load", "store", "copy_async", *ATOMICS)  # what touches the arrays of the user


def infer(name: str, types: tuple, attrs: dict) -> tuple:
    """The result types of an op. Raises TypeRule with what is wrong, KeyError for an unknown op."""
    return tuple(OPS[name].infer(types, attrs))
