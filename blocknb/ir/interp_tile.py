"""Interprets tile IR, where a tile is a NumPy array of its shape. The interpreters of the other levels derive from this one.

The op table defines the meaning of elementwise ops. One walk serves all levels. It is a generator that stops at barriers, which only
the memory level has. `dot` multiplies exactly, adds in float64 and rounds once to the accumulator. With precision "tf32" it first
rounds the operands to 10 bits of mantissa, to nearest even. A reduction combines neighbours in pairs, so an associative combine need
not be commutative.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Generator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from blocknb.errors import CompilerBug, KernelError, no_assembly
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Block, Func, Op, Value
from blocknb.ir.interp_shadow import shadow_step
from blocknb.ir.provenance import follow, moved
from blocknb.ir.report import NO_ARGUMENT, REPORTS, Access, Printed, access_error, assertion, assertion_error, prints
from blocknb.ir.shadow import SHADOWS
from blocknb.language import semantics
from blocknb.language import types as t
from blocknb.language.ops import OPS, TERMINATORS, named
from blocknb.language.types import Pointer, Tile

Program = tuple[int, int, int]
MEMORY_ACCESS = named("access", "exchanges")
STEPS = named("interleaves")  # ops between which warps switch


def numpy_dtype(dtype: Any) -> np.dtype:
    """The NumPy dtype of an element. Pointers are int64 addresses in bytes."""
    return np.dtype(np.int64) if isinstance(dtype, Pointer) else dtype.numpy


def elementwise(op: Op, args: Sequence[np.ndarray]) -> np.ndarray:
    """The op table's meaning of an elementwise op, on arrays of any one shape."""
    dtype = op.results[0].type.dtype
    if op.name == "ptradd":
        return moved(args[0], args[1], op.args[0].type.dtype.element.bytes)
    spec = OPS[op.name]
    assert spec.numpy is not None
    return spec.numpy(op.attrs, t.int64 if isinstance(dtype, Pointer) and op.name != "bitcast" else dtype, *args)


class Machine:
    """Runs one program at the tile level. The other levels override the ops that differ."""

    implicit_barriers = False
    event = 0  # number of reports of the program

    def __init__(self, func: Func, space: AddressSpace, sizes: Program, program: Program):
        self.func, self.space, self.sizes, self.program = func, space, sizes, program
        self.env: Mapping[Value, Any] = {}  # values by Value; combine blocks may use scalars from outside

    # -- control flow

    def execute(self, block: Block, env: MutableMapping[Value, Any]) -> Generator[Op, None, tuple]:
        """Runs a block, and stops at each barrier. Returns the operands of its terminator."""
        self.env = env
        for op in block.ops:
            args = [env[a] for a in op.args]
            if op.name in TERMINATORS:
                return tuple(args)
            if op.name == "barrier":
                yield op
                continue
            if self.implicit_barriers and op.name in MEMORY_ACCESS:
                yield op
            if op.name in STEPS or (op.blocks and OPS[op.name].kind != "reduce"):
                results = yield from self.control(op, args, env)
            else:
                results = self.guarded(op, args)
            env.update(zip(op.results, results, strict=True))
        return ()

    def guarded(self, op: Op, args: list) -> tuple:
        try:
            return self.step(op, args)
        except KernelError:
            raise
        except Exception as error:
            from blocknb.ir.text import print_op

            error.add_note(f"while interpreting: {print_op(self.func, op) if op in self.func.ops() else op.name}")
            raise

    def control(self, op: Op, args: list, env: MutableMapping[Value, Any]) -> Generator[Op, None, tuple]:
        match op.name:
            case "if":
                return (yield from self.execute(op.blocks[0 if bool(args[0]) else 1], env))
            case "for":
                (block,), carried = op.blocks, tuple(args[3:])
                dtype = args[0].dtype
                for i in range(*(int(bound) for bound in args[:3])):
                    env.update(zip(block.args, (np.asarray(i, dtype), *carried), strict=True))
                    carried = yield from self.execute(block, env)
                return carried
            case "while":
                before, after = op.blocks
                carried = tuple(args)
                while True:
                    env.update(zip(before.args, carried, strict=True))
                    go_on, *rest = yield from self.execute(before, env)
                    if not bool(go_on):
                        return tuple(rest)
                    env.update(zip(after.args, rest, strict=True))
                    carried = yield from self.execute(after, env)
        raise self.compiler_bug(op, f"the interpreter does not know the op {op.name}")

    def compiler_bug(self, op: Op, message: str) -> CompilerBug:
        from blocknb.ir.text import print_op

        return CompilerBug(f"{message} (program {self.program})\n    {print_op(self.func, op)}", op.loc)

    # -- ops

    def step(self, op: Op, args: list) -> tuple:
        """The results of an op without control flow."""
        results = self.plain_step(op, args)
        return follow(self.space.owners, op, args, results, self.move) if self.func.level == "tile" else results

    def plain_step(self, op: Op, args: list) -> tuple:
        """The results of an op, without the provenance of pointers."""
        if op.name == "inside":
            return (self.space.holds(op.attrs["argument"], args[0], op.args[0].type.dtype.element.bytes),)
        if OPS[op.name].kind == "elementwise":
            return (elementwise(op, args),)
        match op.name:
            case name if name in REPORTS:
                self.report(op, [self.whole(op, x, arg.type) for x, arg in zip(args, op.args, strict=True)])
                return ()
            case "const":
                kind = op.attrs["type"]
                return (self.full(op, kind, semantics.constant(op.attrs["value"], kind.dtype)),)
            case "program_id":
                return (np.asarray(self.program[op.attrs["axis"]], np.int32),)
            case "num_programs":
                return (np.asarray(self.sizes[op.attrs["axis"]], np.int32),)
            case "load":
                mask, other = (*args[1:], None, None)[:2]
                dtype = op.results[0].type.dtype.numpy
                return (self.space.load(op, self.program, args[0], dtype, mask, other),)
            case "store":
                self.store(op, args)
                return ()
            case "atomic" | "atomic_cas":
                return self.atomic(op, args)
            case "splat":
                return (self.full(op, op.results[0].type, args[0]),)
            case "arange":
                return (self.arange(op),)
            case "dot":
                return (self.dot(op, args),)
            case "reduce":
                return self.reduce(op, args)
            case "scan":
                return self.scan(op, args)
            case "asm":
                raise no_assembly("the interpreter", op.loc)
        return self.move(op, args)

    def full(self, op: Op, type: Tile, value: np.ndarray) -> np.ndarray:
        return np.full(type.shape, value)

    def store(self, op: Op, args: list) -> None:
        self.space.store(op, self.program, args[0], args[1], args[2] if len(args) > 2 else None)

    def atomic(self, op: Op, args: list) -> tuple:
        return (self.update(op, args),)

    def update(self, op: Op, args: list) -> np.ndarray:
        """An atomic on arrays of one shape: pointers, values and an optional mask."""
        count = 2 if op.name == "atomic" else 3
        mask = args[count] if len(args) > count else None
        return self.space.update(op, self.program, args[0], args[1:count], mask)

    def whole(self, op: Op, values: np.ndarray, type: Tile) -> tuple[np.ndarray, np.ndarray]:
        """A tile, and the mask of the elements that this machine reports."""
        return np.asarray(values), np.ones(type.shape, bool)

    def report(self, op: Op, tiles: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Executes a print or an assertion. Prints are collected until the end; a failed assertion raises at once."""
        self.event += 1
        if op.name in SHADOWS:
            shadow_step(self.space, op, self.program, tiles)
            return
        if op.name == "print":
            for i, site in enumerate(prints(op)):
                values, reported = tiles[i] if tiles else (np.zeros(()), np.asarray(self.first))
                for index in np.flatnonzero(reported).tolist():
                    value = values.reshape(-1)[index]
                    self.space.printed.append(Printed(site, self.program, self.event, index, value))
            return
        flags, reported = tiles[0 if op.name == "assert" else -1]
        bad = np.flatnonzero((~flags if op.name == "assert" else flags) & reported)
        if bad.size and op.name == "assert":
            value = int(tiles[1][0].reshape(-1)[bad[0]]) if len(tiles) > 1 else 0
            raise assertion_error(assertion(op), self.program, int(bad[0]), bad.size, value)
        if bad.size:
            size, argument = op.args[0].type.dtype.element.bytes, op.attrs["argument"]
            address = int(tiles[0][0].reshape(-1)[bad[0]])
            index, reach, name = address // size, (0, -1), ""
            if argument != NO_ARGUMENT:
                index, reach, name = self.space.element(argument, address, size)
            raise access_error(
                Access(op.loc, op.attrs["action"], argument, size), name, self.program, index, reach, bad.size
            )

    @property
    def first(self) -> bool:
        """Whether this machine reports scalar prints and assertions of the program, which all warps share."""
        return True

    def arange(self, op: Op) -> np.ndarray:
        return np.arange(op.attrs["start"], op.attrs["end"], dtype=np.int32)

    def dot(self, op: Op, args: list) -> np.ndarray:
        return dot(op, *args)

    def reduce(self, op: Op, args: list) -> tuple:
        return self.combine_axis(op, args, op.attrs["axis"])

    def scan(self, op: Op, args: list) -> tuple:
        return self.scan_axis(op, args, op.attrs["axis"])

    def move(self, op: Op, args: list) -> tuple:
        """Ops that move or reshape elements."""
        x, shape = args[0], op.results[0].type.shape
        match op.name:
            case "broadcast":
                return (np.broadcast_to(x, shape),)
            case "reshape" | "expand_dims":
                return (x.reshape(shape),)
            case "trans":
                return (x.transpose(op.attrs["perm"]),)
            case "flip" | "gather":
                return (along_axis(op, *args),)
            case "part":
                axis, index = op.attrs["axis"], op.attrs["index"]
                return (np.split(x, op.attrs["count"], axis)[index],)
        raise self.compiler_bug(op, f"the op {op.name} does not belong to the {self.func.level} level")

    def combine_axis(self, op: Op, arrays: Sequence[np.ndarray], axis: int) -> tuple:
        """Reduces the arrays along `axis` by the block, neighbours first."""
        values = [np.moveaxis(x, axis, -1) for x in arrays]
        while values[0].shape[-1] > 1:
            pairs = [x[..., side::2] for side in (0, 1) for x in values]
            values = self.combine(op.blocks[0], pairs)
        return tuple(x[..., 0] for x in values)

    def scan_axis(self, op: Op, arrays: Sequence[np.ndarray], axis: int) -> tuple:
        """Scans along an axis by doubling: after step d each element combines the last 2d elements up to it."""
        step = -1 if op.attrs.get("reverse") else 1
        values, distance = [np.moveaxis(x, axis, -1)[..., ::step] for x in arrays], 1
        while distance < values[0].shape[-1]:
            before = [x[..., :-distance] for x in values]
            later = self.combine(op.blocks[0], before + [x[..., distance:] for x in values])
            values = [np.concatenate([x[..., :distance], y], -1) for x, y in zip(values, later, strict=True)]
            distance *= 2
        return tuple(np.moveaxis(x[..., ::step], -1, axis) for x in values)

    def combine(self, block: Block, values: list[np.ndarray]) -> list[np.ndarray]:
        """Runs a block of scalar ops on whole arrays, or per element if it has branches."""
        shape = values[0].shape
        if any(op.blocks for op in block.ops):
            results = [np.empty(shape, v.dtype) for v in values[: len(values) // 2]]
            for index in np.ndindex(shape):
                for result, value in zip(results, self._scalars(block, [v[index] for v in values]), strict=True):
                    result[index] = value
            return results
        return [np.broadcast_to(v, shape) for v in self._scalars(block, values)]

    def _scalars(self, block: Block, values: list) -> tuple:
        env = ChainMap(dict(zip(block.args, map(np.asarray, values), strict=True)), self.env)  # type: ignore[arg-type]
        scalar = Machine(self.func, self.space, self.sizes, self.program)
        for op in block.ops:
            if op.name in TERMINATORS:
                return tuple(env[a] for a in op.args)
            if op.blocks:
                walk = scalar.control(op, [env[a] for a in op.args], env)
                results = _drain(walk)
            else:
                results = scalar.step(op, [env[a] for a in op.args])
            env.update(zip(op.results, results, strict=True))
        raise ValueError("a combine without a yield")


def along_axis(op: Op, x: np.ndarray, index: np.ndarray | None = None) -> np.ndarray:
    """The elements that `flip` and `gather` take from x, by an index or a mask."""
    axis = op.attrs["axis"]
    if index is None:
        return np.take(x, np.arange(x.shape[axis]) ^ op.attrs["mask"], axis)
    return np.take_along_axis(x, index.astype(np.int64) & (x.shape[axis] - 1), axis)


def _drain(walk: Generator[Op, None, tuple]) -> tuple:
    """The result of a walk without barriers."""
    try:
        while True:
            next(walk)
    except StopIteration as stop:
        return stop.value


def dot(op: Op, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a @ b + c on whole tiles; see the head of this file for how it rounds."""
    if stacked := op.attrs.get("stacked"):
        a, b, c = (x.reshape(stacked, -1, x.shape[1]) for x in (a, b, c))
    with np.errstate(all="ignore"):
        if op.attrs.get("precision") == "tf32" and a.dtype == np.float32:
            a, b = round_to_tf32(a), round_to_tf32(b)
        if c.dtype.kind in "iu" and a.dtype.itemsize > 1:
            return (a.astype(np.int64) @ b.astype(np.int64) + c).astype(c.dtype).reshape(op.result.type.shape)
        product = a.astype(np.float64) @ b.astype(np.float64)  # exact for 8-bit integers
        if c.dtype.kind in "iu":
            return (product.astype(np.int64) + c).astype(c.dtype).reshape(op.result.type.shape)
        return (product + c.astype(np.float64)).astype(c.dtype).reshape(op.result.type.shape)


def round_to_tf32(x: np.ndarray) -> np.ndarray:
    """fp32 rounded to the 10 bits of mantissa that tf32 keeps, to nearest even; infinities and NaN stay."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded.view(np.float32), x)
