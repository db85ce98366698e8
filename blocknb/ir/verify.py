"""The verifier checks the rules that every pass may assume and must preserve, for each of the three levels.

The results of an op must have exactly the types that the op table infers. The verifier also checks scoping, block arguments,
terminators and the rules of the levels. Some ops must not move data between threads or warps. That property is linear, so one check per
hardware bit proves it for all elements; see `_reaches`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from blocknb.errors import CompilerBug
from blocknb.ir import verify_roles
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.text import print_op
from blocknb.ir.traversal import reachable
from blocknb.language import ops as table
from blocknb.language import types as t
from blocknb.language.bulk import Barriers, TensorMap
from blocknb.language.op_spec import EMISSIONS, EMITTED
from blocknb.language.ops import LOOPS, OPS, REDUCTIONS, TERMINATORS
from blocknb.language.types import Buffer, Tile
from blocknb.layouts import gf2, wgmma
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout

COMBINES = ("elementwise", "source", "control")  # kinds of ops that the block of a reduction may contain


class InvalidIR(CompilerBug):
    """IR breaks a rule. `op` is the op that breaks it (None for the whole function), and `rule` the message without the op's text."""

    op: Op | None = None
    rule: str = ""


def verify(func: Func) -> None:
    """Raises InvalidIR, a CompilerBug, for the first broken rule, with the op, its line of IR and its place in the source."""
    _Verifier(func).run()


class _Verifier:
    def __init__(self, func: Func):
        self.func = func
        self.ids: set[int] = set()
        self.defined: set[Value] = set()
        self.used = {value for op in func.ops() for value in op.args}
        self.in_pieces = {op.result for op in func.ops() if op.attrs.get("emit") == "in_pieces"}

    def run(self) -> None:
        func = self.func
        if func.hints and len(func.hints) != len(func.params):
            self.fail(None, f"{len(func.hints)} hints for {len(func.params)} parameters")
        if func.body.args not in ((), func.params):
            self.fail(None, "the block arguments of a function's body are neither none nor its parameters")
        for param in func.params:
            self.define(None, param)
            if not isinstance(param.type, Tile) or not param.type.is_scalar:
                self.fail(None, f"the parameter {param.name} is {param.type}; parameters are scalars")
        self.ops(func.body, set(func.params), nested=False)
        self.in_flight()
        if func.level == "memory":
            verify_roles.check(func, self.require)

    def fail(self, op: Op | None, message: str) -> NoReturn:
        where = f"\n    {print_op(self.func, op)}" if op is not None else ""
        text = f"invalid IR in {self.func.name} ({self.func.level} level): {message}{where}"
        error = InvalidIR(text, op.loc if op is not None else self.func.loc)
        error.op, error.rule = op, message
        raise error

    def require(self, condition: bool, op: Op, message: str) -> None:
        if not condition:
            self.fail(op, message)

    # -- structure

    def define(self, op: Op | None, value: Value) -> None:
        if value in self.defined:
            self.fail(op, f"%{value.name} is defined twice")
        self.defined.add(value)

    def ops(self, block: Block, scope: set[Value], nested: bool) -> None:
        """Checks a block. `scope` has the values that are defined before it; the check adds those of the block."""
        last = block.ops[-1] if block.ops else None
        if nested and (last is None or last.name not in TERMINATORS):
            self.fail(last, "a nested block must end with yield or condition")
        for op in block.ops:
            self.op(op, scope)
            if op.name in TERMINATORS:
                self.require(nested and op is last, op, f"{op.name} must be the last op of a nested block")
            scope.update(op.results)

    def op(self, op: Op, scope: set[Value]) -> None:
        self.require(op.name in OPS, op, f"no op is called {op.name}")
        self.require(op.id >= 0 and op.id not in self.ids, op, f"the id {op.id} is not unique")
        self.ids.add(op.id)
        for value in op.args:
            self.require(value in scope, op, f"the operand %{value.name} is not defined here")
        spec, level = OPS[op.name], self.func.level
        self.require(level in spec.levels, op, f"{op.name} does not belong to the {level} level")
        self.require(len(op.blocks) == spec.blocks, op, f"{len(op.blocks)} blocks instead of {spec.blocks}")
        self.types(op)
        for value in op.results:
            self.define(op, value)
        for block in op.blocks:
            for value in block.args:
                self.define(op, value)
                self.leveled(op, value.type)
            self.ops(block, scope | set(block.args), nested=True)
        self.blocks(op)
        if level != "tile":
            self.distributed(op)
        self.emission(op)
        if level == "memory":
            self.memory(op)

    def types(self, op: Op) -> None:
        types = tuple(a.type for a in op.args)
        try:
            expected = table.infer(op.name, types, dict(op.attrs))
        except table.TypeRule as error:
            self.fail(op, str(error))
        except (KeyError, ValueError, IndexError) as error:
            self.fail(op, f"operands or attributes are missing or wrong: {error!r}")
        actual = tuple(r.type for r in op.results)
        self.require(
            actual == expected, op, f"the results are {_list(actual)} where the op table has {_list(expected)}"
        )
        for type in actual:
            self.leveled(op, type)

    def leveled(self, op: Op, type: Any) -> None:
        """Checks that a type is allowed at this level."""
        if isinstance(type, Buffer):
            self.require(self.func.level == "memory", op, f"a buffer at the {self.func.level} level")
            fits = isinstance(type.layout, SharedLayout) and type.layout.shape == type.shape
            self.require(fits, op, f"the layout of {type} does not fit the buffer")
            return
        if isinstance(type, (TensorMap, Barriers)):
            return  # for ops of the memory level only
        self.require(type.size <= t.MAX_TILE_ELEMENTS, op, f"a tile of {type.size} elements")
        if self.func.level == "tile":
            self.require(type.layout is None, op, f"{type} has a layout before layouts are assigned")
        elif type.shape:
            layout = type.layout
            self.require(
                isinstance(layout, Layout) and layout.shape == type.shape, op, f"{type} has no layout that fits"
            )
            warps = self.func.attrs.get("num_warps", layout.num_warps)
            self.require(
                layout.num_warps == warps, op, f"a layout for {layout.num_warps} warps in a program of {warps}"
            )
            self.require(layout.num_lanes == 32, op, f"a layout for warps of {layout.num_lanes} lanes")

    def blocks(self, op: Op) -> None:
        """Checks block arguments and the operands of terminators."""
        args, results = _types(op.args), _types(op.results)
        match op.name:
            case "for":
                (block,) = op.blocks
                self.agree(op, "block arguments", _types(block.args), args[2:3] + args[3:])
                self.ends(op, block, "yield", results)
            case "while":
                before, after = op.blocks
                self.agree(op, "block arguments", _types(before.args), args)
                self.ends(op, before, "condition", (Tile(t.int1), *results))
                self.agree(op, "arguments of the second block", _types(after.args), results)
                self.ends(op, after, "yield", args)
            case "if" | "roles":
                for block in op.blocks:
                    self.agree(op, "block arguments", _types(block.args), ())
                    self.ends(op, block, "yield", results)
            case name if name in REDUCTIONS:
                (block,) = op.blocks
                args = args[: len(results)]  # a scan's totals of warps follow
                scalars = tuple(Tile(type.dtype) for type in args)
                self.require(len({x.shape for x in args}) == 1, op, f"operands of different shapes: {_list(args)}")
                self.require(len({x.layout for x in args}) == 1, op, f"operands in different layouts: {_list(args)}")
                self.agree(op, "block arguments", _types(block.args), scalars * 2)
                self.ends(op, block, "yield", scalars)
                for inner in block.ops:
                    scalar = all(value.type.shape == () for value in (*inner.args, *inner.results))
                    allowed = OPS[inner.name].kind in COMBINES and inner.name not in (*LOOPS, "barrier")
                    self.require(
                        scalar and allowed,
                        inner,
                        "the block of a reduction or scan computes with scalars and has no effects",
                    )

    def agree(self, op: Op, what: str, actual: tuple, expected: tuple) -> None:
        self.require(actual == expected, op, f"{what} are {_list(actual)} instead of {_list(expected)}")

    def ends(self, op: Op, block: Block, name: str, expected: tuple) -> None:
        end = block.terminator
        self.require(end.name == name, end, f"a block of {op.name} ends with {name}")
        self.agree(end, f"the values that end a block of {op.name}", _types(end.args), expected)

    # -- levels

    def distributed(self, op: Op) -> None:
        """Checks that ops without data movement stay within their thread, and that partial reductions have one result per warp."""
        match op.name:
            case "broadcast" if op.args[0].type.shape and op.results[0].type.shape:
                source, target = op.args[0].type, op.result.type
                wanted = target.layout.broadcast_inverse(source.shape)
                near = _reaches(source.layout.reg, source.layout, wanted)
                self.require(near, op, "the operand's layout makes a broadcast move data between threads")
            case "reduce" if op.attrs.get("keep"):
                axis, source = op.attrs["axis"], op.args[0].type.layout
                count = sum(1 for basis in source.warp if basis & source.dim_mask(axis))
                message = f"keep={op.attrs['keep']} with {1 << count} warps along the axis"
                self.require(op.attrs["keep"] == 1 << count, op, message)
            case "scan":
                source = op.args[0].type.layout
                message = "a scan along an axis of which warps do not hold consecutive parts"
                self.require(source.parts_by_warp(op.attrs["axis"]) is not None, op, message)

    def memory(self, op: Op) -> None:
        """Checks that data between warps goes through shared memory, and that buffers lie within it."""
        match op.name:
            case "convert":
                source = op.args[0].type.layout
                near = _reaches((*source.reg, *source.lane), source, op.result.type.layout)
                self.require(near, op, "a conversion between warps is left at the memory level")
            case "reduce" if not op.attrs.get("keep"):
                source = op.args[0].type.layout
                axis = source.dim_mask(op.attrs["axis"])
                self.require(
                    not any(b & axis for b in source.warp), op, "a reduction across warps is left at the memory level"
                )
            case "scan":
                count = op.args[0].type.layout.parts_by_warp(op.attrs["axis"])
                message = f"keep={op.attrs.get('keep', 1)} with {count} warps along the axis of a scan"
                self.require(op.attrs.get("keep", 1) == count, op, message)
            case "atomic" | "atomic_cas" if op.results and op.result in self.used:
                kind = op.args[0].type
                single = kind.shape and not kind.layout.is_replicated
                self.require(single, op, "an atomic's result is used by threads that do not own it")
            case "flip" if not isinstance(op.args[0].type, Buffer):
                source = op.args[0].type.layout
                mask = op.attrs["mask"] << source.dim_bits(op.attrs["axis"]).start
                near = mask in gf2.Span((*source.reg, *source.lane))
                self.require(near, op, "a flip between warps is left at the memory level")
            case "gather":
                self.require(isinstance(op.args[0].type, Buffer), op, "a gather is from a shared buffer")
            case "dot" if wgmma.is_name(op.attrs.get("instr", "")):
                self.warpgroup(op)
            case "alloc":
                total, offset, type = self.func.attrs.get("shared_bytes"), op.attrs.get("offset"), op.attrs["type"]
                if total is None and offset is None:
                    return  # before the pass `shared_memory_allocation`
                self.require(isinstance(offset, int) and offset >= 0, op, "a buffer without an offset")
                self.require(offset % type.dtype.bytes == 0, op, f"the offset {offset} is not aligned to {type.dtype}")
                align = op.attrs.get("align", 1)
                self.require(offset % align == 0, op, f"the offset {offset} is not a multiple of {align}")
                self.require(isinstance(total, int), op, "the function has no attribute shared_bytes")
                inside = offset + type.bytes <= total
                self.require(inside, op, f"bytes {offset} to {offset + type.bytes} of {total} of shared memory")

    def emission(self, op: Op) -> None:
        """Checks the attributes that say where the code of an op stands: those of the passes at the end of the memory level."""
        where, piece, name = op.attrs.get("emit"), op.attrs.get("piece"), op.name
        if (least := op.attrs.get("nontemporal")) is not None:
            fits = isinstance(least, int) and least > 0 and self.func.level == "tile"
            self.require(fits, op, f"nontemporal is {least!r}, which is no number of bytes, or not at the tile level")
        if where is None and piece is None and not self.in_pieces:
            return
        allowed = OPS[name].kind in EMITTED or name == "convert" or (name == "load" and where != "at_use")
        self.require(where is None or where in EMISSIONS, op, f"emit is {where!r}, not one of {', '.join(EMISSIONS)}")
        self.require(
            where is None or (allowed and self.func.level == "memory"), op, f"{name} has an attribute emit={where!r}"
        )
        taken = not self.in_pieces.isdisjoint(op.args)
        if name in ("store", "reduce"):
            fits = isinstance(piece, int) and piece > 0 if taken else piece is None
            self.require(fits, op, f"piece is {piece!r} where {'an' if taken else 'no'} operand is emitted in pieces")
        else:
            takes = not taken or where == "in_pieces" or name == "load"
            self.require(takes, op, f"{name} takes an operand that is emitted in pieces")

    def warpgroup(self, op: Op) -> None:
        """Checks the operands of wgmma: B is a buffer, and a matrix descriptor can describe all buffers."""
        for side, value in enumerate(op.args[:2]):
            type = value.type
            if not isinstance(type, Buffer):
                self.require(side == 0 and op.attrs["registers"], op, "an operand of wgmma is not in a shared buffer")
                continue
            storage_side = wgmma.storage_side(side, op.attrs.get("transposed", ()))
            part = wgmma.part(type.shape[storage_side], side, op.attrs["warps"])
            found = wgmma.describe(type.layout, type.dtype.bits, storage_side, part)
            self.require(found is not None, op, f"no matrix descriptor for operand {'ab'[side]}, {type}")

    def in_flight(self) -> None:
        """Checks that only loops and further wgmma use the result of a wgmma before its wait."""
        products = [op.result for op in self.func.ops() if op.name == "dot" and op.attrs.get("in_flight")]
        if not products:
            return
        carried: dict[Value, list[Value]] = {}  # by the value that a loop yields: its names in the loop and after it
        for op in self.func.ops():
            if op.name == "for":
                (block,) = op.blocks
                for value, *names in zip(block.terminator.args, block.args[1:], op.results, strict=True):
                    carried.setdefault(value, []).extend(names)
        pending = set(reachable(products, lambda value: carried.get(value, ())))
        for op in self.func.ops():
            for i, value in enumerate(op.args):
                adds = op.name == "dot" and i == 2 and wgmma.is_name(op.attrs.get("instr", ""))
                fine = value not in pending or adds or op.name in ("yield", "for", "dot_wait")
                self.require(fine, op, f"%{value.name} is the result of a product that may be in flight")


def _reaches(own: Iterable[int], source: Layout, target: Layout) -> bool:
    """Whether every place of `target` finds its element in `source` at a place that differs only in `own` bits.

    At a (warp, lane), the needed element and the held one differ by an XOR of the columns below. So it suffices that each column is in the
    span of the contributions of the `own` bits.
    """
    span = gf2.Span(own)
    threads = zip((*source.lane, *source.warp), (*target.lane, *target.warp), strict=True)
    return all(a ^ b in span for a, b in threads) and all(basis in span for basis in target.reg)


def _types(values: Iterable[Value]) -> tuple:
    return tuple(value.type for value in values)


def _list(types: Iterable[Any]) -> str:
    return ", ".join(map(str, types)) or "none"
