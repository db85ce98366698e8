"""The form of a row of the op table: signature, type rule, meaning, cost and traits of an op.

A trait is a property that several passes query, as `MemoryEffects` and `Pure` in MLIR (https://mlir.llvm.org/docs/Traits). A pass calls
`OPS[name].has("atomic")`, or collects the names of all ops with a trait by `named("atomic")`. `TRAITS` explains each trait.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Kinds sort the ops. Each op has one, and it is a trait of the op, too.
KINDS: Mapping[str, str] = {
    "source": "The op makes a value from attributes and from the place of the program.",
    "shape": "The op gives elements another shape.",
    "elementwise": "Each element of the results depends on the same element of the operands.",
    "assembly": "The op runs inline assembly element by element.",
    "memory": "The op accesses the arrays of the user.",
    "dot": "The op multiplies matrices.",
    "reduce": "The op combines elements along an axis with its block.",
    "move": "The op exchanges elements along an axis.",
    "report": "The op tells the user something.",
    "control": "The op decides what runs, or ends a block.",
    "distributed": "The op has a meaning only where tiles have layouts.",
    "shared": "The op works on shared memory or synchronizes its users.",
}

TRAITS: Mapping[str, str] = {
    **KINDS,
    "pure": "The op has no effect and no blocks, so a pass may remove, copy and move it. `OpSpec` derives this trait.",
    # where elements come from
    "preserves_elements": "Every element of the result is an element of the operand; the shape or the layout tells which.",
    "moves_data": "The op puts the elements of its first operand, a tile, in other places and does not change them.",
    "permutes": "The op moves elements to other places of a tile, whose shape may stay the same.",
    "view": "The result is the operand under another shape, as NumPy's views are.",
    "reshapes": "A view that has every element of the operand once.",
    "replicates": "The result has elements of the operand several times.",
    "uniform": "All elements of the result are equal.",
    "rematerializable": "A thread computes any element of the result from its place or from a scalar, so no register has to keep the tile.",
    # arithmetic
    "associative": "The op is associative and commutative, but for the rounding of floats.",
    "ring": "The op is polynomial arithmetic: a polynomial in its operands describes the result.",
    "exponential": "The op raises 2 or e to a power.",
    "special_function": "A kernel calls the op by its name, with one operand, fp32 or fp64. The roofline counts it by name.",
    "special_unit": "A GPU computes the op with its special function unit (MUFU).",
    "host": "The host computes the op for tensor maps when it launches the kernel.",
    # place of a program
    "program_index": "The result is the index of the program, of its CTA or of its warpgroup.",
    "grid_size": "The result is the number of programs or of CTAs.",
    # memory
    "access": "The op accesses an array of the user with one address per element.",
    "atomic": "The op reads and writes memory in one step.",
    "box_copy": "The copy engine (TMA) moves a box of an array.",
    "async_copy": "The copy to shared memory is still in flight after the op.",
    "allocates": "The op reserves shared memory.",
    "reads_buffers": "The op reads those of its operands that are shared buffers.",
    "exchanges": "Threads exchange elements through shared memory, so a barrier must stand before or after the op.",
    "shadows": "The op keeps the account of accesses in shadow memory.",
    # control flow and synchronization
    "loop": "The op repeats its block.",
    "structured": "The op holds blocks of the program that a launch may skip or repeat.",
    "terminator": "The op ends a block.",
    "mbarrier": "The op arrives at an mbarrier or waits for one.",
    "interleaves": "Warps with other roles may run between this op and the next.",
    "producer": "The producer warp may run the op, besides scalars and control flow.",
    "producer_only": "Only the producer warp runs the op.",
    "consumer_only": "Only the consumer warps run the op.",
}

#: The values of the attribute `emit`: where a GPU's code of an op stands, if it does not stand where the op does. Passes set it on ops of
#: the kinds `EMITTED`, and on the ops that declare it.
EMISSIONS: Mapping[str, str] = {
    "in_pieces": "The consumers of the tile emit the op, each for one piece of registers at a time.",
    "at_use": "The op is emitted where its result is asked for first.",
    "rematerialized": "The op is emitted where its result is asked for first, and once more after each reduction with `rematerialize`.",
}
EMITTED = ("source", "shape", "elementwise")


@dataclass(frozen=True)
class Help:
    """The documentation of an op.

    `text` describes the op, and `details` gives shapes, dtypes and errors. Both mention only arguments that a kernel can pass. `example`
    is lines of a kernel; tests check the results in its comments, and `language.examples` names the arrays. `ir` explains the attributes
    and operands that only passes set.
    """

    text: str
    details: str = ""
    example: str = ""
    ir: str = ""

    @classmethod
    def parse(cls, docstring: str) -> Help:
        """Reads a docstring: a paragraph for `text`, those for `details`, and the sections `Example:` and `IR:`."""
        rest, _, ir = inspect.cleandoc(docstring).partition("\n\nIR:\n")
        rest, _, example = rest.partition("\n\nExample:\n")
        text, _, details = rest.partition("\n\n")
        return cls(_one_line(text), _one_line(details), textwrap.dedent(example), _one_line(ir))


def _one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Cost:
    """`flops` per float element of the result, and the time in one lane of a CPU (`cpu`), relative to an addition."""

    flops: int
    cpu: int = 1


@dataclass(frozen=True)
class OpSpec:
    """One row of the op table.

    `infer(types, attrs)` gives the result types. `numpy(attrs, result dtype, *arrays)` is the meaning of an elementwise op; it takes arrays
    of any shape. `levels` are those at which the op may stand. `reads` and `writes` name the memory that the op touches: "global",
    "shared", "report" (prints and assertions) or "". `cost` is None where the operands decide it. `traits` need not name the kind.
    """

    name: str
    kind: str
    infer: Callable[[tuple, dict], tuple]
    help: Help
    operands: str = ""
    attrs: tuple[str, ...] = ()
    numpy: Callable | None = None
    reads: str = ""
    writes: str = ""
    levels: tuple[str, ...] = ("tile", "distributed", "memory")
    blocks: int = 0
    traits: frozenset[str] = frozenset()
    cost: Cost | None = None
    pure: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        effects = self.reads or self.writes or self.blocks or "allocates" in self.traits
        pure = not effects and self.kind not in ("control", "assembly")
        found = self.traits | {self.kind} | ({"pure"} if pure else set())
        if unknown := found - TRAITS.keys():
            raise ValueError(f"the op {self.name} has traits that TRAITS does not name: {', '.join(sorted(unknown))}")
        object.__setattr__(self, "traits", found)
        object.__setattr__(self, "pure", pure)

    def has(self, trait: str) -> bool:
        """Whether the op has a trait of `TRAITS`."""
        return trait in self.traits


def declare(
    function: Callable,
    kind: str,
    infer: Callable,
    *,
    details: str = "",
    attrs: str = "",
    traits: str = "",
    **fields: Any,
) -> OpSpec:
    """The row with the name and the docstring of a function; `if_` declares the op `if`. Blanks separate `attrs` and `traits`."""
    help = Help.parse(function.__doc__ or "")
    return OpSpec(
        function.__name__.rstrip("_"),
        kind,
        infer,
        replace(help, details=help.details or details),
        attrs=(*attrs.split(), *(["emit"] if kind in EMITTED else ())),
        traits=frozenset(traits.split()),
        **fields,
    )


def op(kind: str, **fields: Any) -> Callable[[Callable], OpSpec]:
    """Makes a type rule `(types, attrs) -> result types` a row of the op table. Its docstring is the help of the op."""
    return lambda rule: declare(rule, kind, rule, **fields)
