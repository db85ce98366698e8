"""Pointer canonicalization: a scalar base plus a tile of small offsets.

Kernels carry tiles of pointers through loops (`a_ptrs += BLOCK_K * stride`), which costs a 64-bit addition per element and iteration.
This pass splits every tile that leads to an address into a scalar and a rest, `x = splat(u) + v`. Sums add both parts, a product with a
uniform value multiplies both, and shape ops move the rest. If the increment of a carried tile has no rest, the loop carries the scalar
only. The parts stand next to the op that they belong to, and unused ones are removed at the end. The sum of the offsets within a tile is
assumed to fit its integer type. Triton's pass CanonicalizePointers does the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from blocknb.analysis.axis_info import PROMISES
from blocknb.errors import CompilerBug
from blocknb.ir.build import Rebuild
from blocknb.ir.core import Func, Op, Value, definitions
from blocknb.ir.traversal import reachable
from blocknb.language import types as t
from blocknb.language.ops import ACCESSES, LOOPS, named
from blocknb.language.types import Tile
from blocknb.passes.registry import tile_pass
from blocknb.passes.tile.simplify import tidy
from blocknb.target import Target
from blocknb.trace import Notes

WIDE = (t.int32, t.int64)
UNIFORM = named("uniform")
MOVES = named("view")
ARITHMETIC = named("ring") | {"cast"}
PARTED = MOVES | ARITHMETIC | {"ptradd"}


@tile_pass(optional=True)
def pointers(func: Func, target: Target, notes: Notes) -> Func:
    """Splits every address into a scalar base and an invariant tile of offsets

    When: a kernel computes tiles of pointers.

    What: the pass moves the common part of a tile of addresses to one scalar pointer. A loop carries that scalar instead of the tile, and
    the rest is a tile of integer offsets that is the same in every iteration.

    Why: a loop does one 64-bit addition per iteration instead of one per element, and `coalesce` can prove wider accesses.

    Limits: a tile of pointers stays as it is if its increment differs among the elements. It also stays if the pointers were loaded or
    selected element by element. The offsets within a tile are assumed not to overflow their integer type.

    Before:

        %end = for %k = 0 to %n step 1 iter(%p = %pointers) : tile<64xptr<f32>> {
          %v = load %p : tile<64xf32>
          %next = ptradd %p, %steps : tile<64xptr<f32>>
          yield %next
        }

    After:

        %end = for %k = 0 to %n step 1 iter(%base = %x) : ptr<f32> {
          %all = splat %base : tile<64xptr<f32>>
          %p = ptradd %all, %offsets : tile<64xptr<f32>>
          %v = load %p : tile<64xf32>
          %next = ptradd %base, %step : ptr<f32>
          yield %next
        }
    """
    splitter = AddressSplitter(func, notes)
    after = splitter.run()
    if after.body.ops != func.body.ops:
        func = tidy(after)
    explain(func, notes)
    return func


class AddressParts(NamedTuple):
    """A tile as splat(uniform) + rest; None is zero. Pointers always have a uniform part, a scalar pointer."""

    uniform: Value | None
    rest: Value | None


class AddressSplitter(Rebuild):
    """Rebuilds the function. `parts` holds the parts of new values that lead to addresses."""

    def __init__(self, func: Func, notes: Notes):
        super().__init__(func, lambda op, _: self.step(op))
        self.notes = notes
        self.original = definitions(func)
        self.parts: dict[Value, AddressParts] = {}
        self.wanted = self.slice()

    # -- the values that lead to addresses ---------------------------------------------------------------------------------

    def slice(self) -> set[Value]:
        """The tiles from which addresses are computed, and carried tiles of integers, through ops for which parts exist."""
        carried: dict[Value, tuple[Value, Value]] = {}
        work: list[Value] = []
        for op in self.func.ops():
            if op.name in ACCESSES:
                work.append(op.args[0])
            elif op.name == "for":
                body = op.blocks[0]
                for entry in zip(body.args[1:], op.results, op.args[3:], body.terminator.args, strict=True):
                    if has_parts(entry[0]):
                        carried[entry[0]] = carried[entry[1]] = entry[2:]
                        work.extend(entry)

        def made_of(value: Value) -> Iterable[Value]:
            maker = self.original.get(value)
            parts = carried.get(value, maker.args if maker is not None and maker.name in PARTED else ())
            return filter(has_parts, parts)

        return set(reachable(filter(has_parts, work), made_of))

    def uniform(self, value: Value) -> bool:
        """Whether a tile of the original function has no rest."""
        op = self.original.get(value)
        if op is None or promised(op):
            return False
        match op.name:
            case name if name in UNIFORM:
                return True
            case name if name in ARITHMETIC:
                return has_parts(value) and all(has_parts(a) and self.uniform(a) for a in op.args)
        return op.name in MOVES and self.uniform(op.args[0])

    def advances(self, value: Value, start: Value) -> bool:
        """Whether a tile is `start` plus a uniform value."""
        if value is start:
            return True
        op = self.original.get(value)
        if op is None or not op.args or promised(op):
            return False
        if op.name == "for":
            i, body = op.results.index(value), op.blocks[0]
            return self.advances(op.args[3 + i], start) and self.advances(body.terminator.args[i], body.args[1 + i])
        if op.name == "add" and self.uniform(op.args[0]):
            return self.advances(op.args[1], start)
        return op.name in ("add", "sub", "ptradd") and self.advances(op.args[0], start) and self.uniform(op.args[1])

    # -- the walk ----------------------------------------------------------------------------------------------------------

    def step(self, op: Op) -> Any:
        if op.name == "for":
            return self.loop(op)
        if op.name in ACCESSES and op.args[0].type.shape:
            return self.access(op)
        if len(op.results) != 1 or op.blocks or op.results[0] not in self.wanted:
            return NotImplemented
        self.keep(op)
        found = self.split(op)
        if found is not None:
            self.parts[op.result] = found
        return op.results

    def access(self, op: Op) -> Any:
        """Emits a load or store whose address is one scalar pointer plus offsets."""
        pointer = op.args[0]
        found = self.parts.get(pointer)
        if found is None or self.joined_already(pointer, found):
            return NotImplemented
        self.builder.append(op.replace(args=(self.join(found, pointer.type), *op.args[1:])))
        return op.results

    def joined_already(self, pointer: Value, parts: AddressParts) -> bool:
        op = self.original.get(pointer)
        if op is None:
            return False
        base = self.original.get(self.get(op.args[0])) if op.name == "ptradd" else op
        offset = self.get(op.args[1]) if op.name == "ptradd" else None
        return (
            base is not None
            and base.name == "splat"
            and self.get(base.args[0]) is parts.uniform
            and offset is parts.rest
        )

    def of(self, value: Value) -> AddressParts | None:
        """The parts of a new value. An integer without known parts is all rest; None for pointers without a common base."""
        if (found := self.parts.get(value)) is not None:
            return found
        op = self.original.get(value)
        if op is not None and op.name == "splat":
            return AddressParts(self.get(op.args[0]), None)
        if op is not None and op.name == "const":
            return AddressParts(self.builder.const(op.attrs["value"], value.type.dtype), None)
        return None if value.type.is_pointer else AddressParts(None, value)

    def split(self, op: Op) -> AddressParts | None:
        """Emits the parts of an op's result; None if they are the default (see `of`)."""
        emit, result = self.builder.value, op.result
        if promised(op):  # the split would lose the promise
            return None
        match op.name:
            case "arange" if op.attrs["start"]:
                rest = emit("arange", start=0, end=op.attrs["end"] - op.attrs["start"])
                return AddressParts(self.builder.const(op.attrs["start"], t.int32), rest)
            case "expand_dims" | "broadcast" | "trans" | "reshape" | "neg" | "cast" if has_parts(op.args[0]):
                return self.moved(op, self.of(op.args[0]))
            case "add" | "sub" | "mul" | "ptradd":
                a, b = self.of(op.args[0]), self.of(op.args[1])
                if a is None or b is None:
                    return None
                if op.name == "ptradd":
                    return AddressParts(
                        self.plus("ptradd", a.uniform, b.uniform), self.plus("add", *self.widened(a.rest, b.rest))
                    )
                return self.product(a, b, result.type) if op.name == "mul" else self.sum(op.name, a, b)
        return None

    def moved(self, op: Op, x: AddressParts | None) -> AddressParts | None:
        """Applies a shape op, negation or widening to both parts."""
        if x is None or x.uniform is None:
            return None
        uniform = x.uniform if op.name in MOVES else self.builder.value(op.name, x.uniform, **op.attrs)
        return AddressParts(uniform, None if x.rest is None else self.builder.value(op.name, x.rest, **op.attrs))

    def sum(self, name: str, a: AddressParts, b: AddressParts) -> AddressParts | None:
        if a.uniform is None and b.uniform is None:
            return None
        return AddressParts(self.plus(name, a.uniform, b.uniform), self.plus(name, a.rest, b.rest))

    def plus(self, name: str, a: Value | None, b: Value | None) -> Value | None:
        """a + b or a - b, as `name` says; None is zero."""
        if b is None:
            return a
        if a is None:
            return self.builder.value("neg", b) if name == "sub" else b
        return self.builder.value(name, a, b)

    def product(self, a: AddressParts, b: AddressParts, type: Tile) -> AddressParts | None:
        emit = self.builder.value
        if a.rest is None:
            a, b = b, a
        if b.rest is not None or b.uniform is None or a.uniform is None:
            return None
        uniform = emit("mul", a.uniform, b.uniform)
        factor = None if a.rest is None else emit("splat", b.uniform, shape=type.shape)
        return AddressParts(uniform, None if a.rest is None or factor is None else emit("mul", a.rest, factor))

    def widened(self, a: Value | None, b: Value | None) -> tuple[Value | None, Value | None]:
        """Two tiles of offsets, widened to a common integer type."""
        if a is None or b is None or a.type.dtype == b.type.dtype:
            return a, b
        a, b = (x if x.type.dtype == t.int64 else self.builder.value("cast", x, dtype=t.int64) for x in (a, b))
        return a, b

    def join(self, parts: AddressParts, type: Tile) -> Value:
        """The tile, computed from its parts."""
        whole = None if parts.uniform is None else self.builder.value("splat", parts.uniform, shape=type.shape)
        made = self.plus("ptradd" if type.is_pointer else "add", whole, parts.rest)
        assert made is not None, "a tile has one part at least"
        return made

    # -- loops -------------------------------------------------------------------------------------------------------------

    def loop(self, op: Op) -> Any:
        """Rebuilds a loop so that it carries only the scalar of each tile that advances by a uniform value."""
        scalars, rests = self.divided(op)
        if not scalars:
            return NotImplemented
        body = op.blocks[0]
        args = list(body.args)
        for i, scalar in scalars.items():
            args[1 + i] = Value(scalar.type, body.args[1 + i].name)
        with self.builder.block(args) as opened:
            for i in scalars:
                self.known(body.args[1 + i], AddressParts(args[1 + i], rests[i]))
            self.ops(body.ops[:-1])
            self.builder.append(self.yielding(body.terminator, rests))
        first = [scalars.get(i, a) for i, a in enumerate(op.args[3:])]
        results = [Value(scalars[i].type, r.name) if i in scalars else r for i, r in enumerate(op.results)]
        self.builder.append(op.replace(args=(*op.args[:3], *first), results=tuple(results), blocks=(opened.done,)))
        for i in scalars:
            self.known(op.results[i], AddressParts(results[i], rests[i]))
        names = ", ".join(body.args[1 + i].name or "a tile" for i in scalars)
        self.notes(op, f"the loop carries a scalar instead of the tile: {names}")
        return [self.get(r) for r in op.results]

    def divided(self, op: Op) -> tuple[dict[int, Value], dict[int, Value | None]]:
        """The pointers by index of the carried value: the initial scalars, and the invariant rests."""
        scalars: dict[int, Value] = {}
        rests: dict[int, Value | None] = {}
        body = op.blocks[0]
        for i, (arg, after) in enumerate(zip(body.args[1:], body.terminator.args, strict=True)):
            if not has_parts(arg):
                continue
            start = self.of(op.args[3 + i])
            if start is not None and self.advances(after, arg):
                scalars[i] = start.uniform or self.builder.const(0, arg.type.dtype)
                rests[i] = start.rest
            elif arg.type.is_pointer:
                why = "start at no common base" if start is None else "advance by different amounts"
                self.notes(
                    op,
                    f"the loop carries {arg.name or 'a value'} as a tile of pointers: its pointers {why}",
                    kind="missed",
                )
        return scalars, rests

    def yielding(self, op: Op, rests: dict[int, Value | None]) -> Op:
        """The loop's `yield` with scalars instead of the split tiles."""
        values = [self.get(a) for a in op.args]
        for i, rest in rests.items():
            found = self.of(values[i])
            if found is None or found.uniform is None or found.rest is not rest:
                raise CompilerBug("a carried tile was divided although its rest changes", op.loc)
            values[i] = found.uniform
        return op.replace(args=tuple(values))

    def known(self, old: Value, parts: AddressParts) -> None:
        """Records that the original tile `old` is now the join of these parts."""
        made = self.join(parts, old.type)
        self.mapping[old] = made
        self.parts[made] = parts


def promised(op: Op) -> bool:
    """Whether the author promised something about the op's result as a whole."""
    return any(name in op.attrs for name in PROMISES)


def has_parts(value: Value) -> bool:
    """Whether a value is a tile of pointers or of 32- or 64-bit signed integers."""
    return (
        isinstance(value.type, Tile) and bool(value.type.shape) and (value.type.is_pointer or value.type.dtype in WIDE)
    )


# -- notes -----------------------------------------------------------------------------------------------------------------


def explain(func: Func, notes: Notes) -> None:
    """Adds a note to each load and store of a tile that describes its address."""
    makers = definitions(func)
    home: dict[Value, int] = {}

    def walk(ops: Sequence[Op], loops: int) -> None:
        for op in ops:
            home.update(dict.fromkeys(op.results, loops))
            if op.name in ACCESSES and op.args[0].type.shape:
                describe(op, loops)
            for block in op.blocks:
                walk(block.ops, loops + (op.name in LOOPS))

    def describe(op: Op, loops: int) -> None:
        pointer = makers.get(op.args[0])
        if pointer is None:
            notes(op, "address = a tile of pointers that a loop carries", kind="missed")
        elif pointer.name == "splat":
            notes(op, "address = one scalar pointer for all elements")
        elif pointer.name == "ptradd" and (base := makers.get(pointer.args[0])) is not None and base.name == "splat":
            offsets = pointer.args[1]
            kind = f"{offsets.type.dtype.name} offsets"
            if loops:
                kind = f"loop-invariant {kind}" if home.get(offsets, 0) < loops else f"{kind} that change in the loop"
            notes(op, f"address = scalar base + {kind}")
        else:
            notes(op, f"address = a tile of pointers from {pointer.name}, which have no common base", kind="missed")

    walk(func.body.ops, 0)
