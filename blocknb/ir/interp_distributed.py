"""Interprets distributed IR: a tile is an array [warp, lane, register], in the order of its layout.

Elementwise ops work on these arrays directly. An op without data movement (broadcast, trans, reshape...) takes each element from a
register of the same thread. It is an error if the thread does not hold the element. Conversions, reductions, products and stores
assemble the tile first, and all replicas must be equal. One warp of the memory level is this machine on a slice of the places, with a
mask of the elements that the warp holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from blocknb.ir import interp_tile
from blocknb.ir.core import Op
from blocknb.language.ops import named
from blocknb.language.types import Tile
from blocknb.layouts.linear import Layout

VIEWS, MOVES = named("view"), named("move")


UNUSED = 77  # what the interpreter writes to the columns of a product that no op uses


class DistributedMachine(interp_tile.Machine):
    """Runs all warps of a program at once. `warps` selects the warps of this machine."""

    warps: slice = slice(None)

    # -- between places and tiles

    def places(self, op: Op, layout: Layout | None) -> np.ndarray:
        """The flat index of the element at each place, [warps, lanes, registers]."""
        if layout is None:
            raise self.compiler_bug(op, "a tile without a layout")
        return layout.indices()[self.warps]

    def gather(self, op: Op, values: np.ndarray, type: Tile) -> tuple[np.ndarray, np.ndarray]:
        """The tile that the places hold, and the mask of the elements that this machine holds. Replicas must agree in every bit."""
        if not type.shape:
            return np.asarray(values), np.ones((), bool)
        places = self.places(op, type.layout)
        if values.shape != places.shape:
            raise self.compiler_bug(op, f"values of shape {values.shape} for places of shape {places.shape}")
        flat: np.ndarray = np.zeros(type.size, values.dtype)
        held: np.ndarray = np.zeros(type.size, bool)
        flat[places], held[places] = values, True
        if type.layout is not None and type.layout.is_replicated:
            differ = _raw(flat[places]) != _raw(values)
            if differ.any():
                warp, lane, register = (int(i) for i in np.argwhere(differ)[0])
                element = np.unravel_index(int(places[warp, lane, register]), type.shape)
                raise self.compiler_bug(
                    op, f"replicas of element {tuple(map(int, element))} disagree (lane {lane}, register {register})"
                )
        return flat.reshape(type.shape), held.reshape(type.shape)

    def deal(self, op: Op, tile: np.ndarray, held: np.ndarray, type: Tile) -> np.ndarray:
        """The values of the places of `type`, from a tile whose elements in `held` are known."""
        if not type.shape:
            if not np.all(held):
                raise self.compiler_bug(op, "the result needs elements that the warp does not hold")
            return np.asarray(tile)
        places = self.places(op, type.layout)
        if not held.reshape(-1)[places].all():
            raise self.compiler_bug(op, "the result needs elements that the warp does not hold")
        return tile.reshape(-1)[places]

    # -- ops

    def full(self, op: Op, type: Tile, value: np.ndarray) -> np.ndarray:
        return np.full(self.places(op, type.layout).shape, value) if type.shape else np.asarray(value)

    def arange(self, op: Op) -> np.ndarray:
        return (self.places(op, op.result.type.layout) + op.attrs["start"]).astype(np.int32)

    def store(self, op: Op, args: list) -> None:
        tiles = [self.gather(op, x, arg.type) for x, arg in zip(args, op.args, strict=True)]
        held = tiles[0][1]
        pointers, values, *mask = (np.atleast_1d(tile[held]) for tile, _ in tiles)
        self.space.store(op, self.program, pointers, values, mask[0] if mask else None)

    def whole(self, op: Op, values: np.ndarray, type: Tile) -> tuple[np.ndarray, np.ndarray]:
        tile, held = self.gather(op, values, type)
        return tile, held & self.owns(type.layout if type.shape else None)

    def owns(self, layout: Layout | None) -> bool:
        """Whether this machine owns each element. If several warps hold the same element, one of them owns it."""
        return True

    def atomic(self, op: Op, args: list) -> tuple:
        """Executes the atomic once per element. All replicas get the old value."""
        tiles = [self.gather(op, x, arg.type) for x, arg in zip(args, op.args, strict=True)]
        held = tiles[0][1]
        old = np.zeros(held.shape, tiles[1][0].dtype)
        if self.owns(op.args[0].type.layout):
            old[held] = self.update(op, [np.atleast_1d(tile[held]) for tile, _ in tiles])
        return (self.deal(op, old, held, op.result.type),)

    def move(self, op: Op, args: list) -> tuple:
        source, target = op.args[0].type, op.results[0].type
        if op.name == "convert":
            return (self.deal(op, *self.gather(op, args[0], source), target),)
        if op.name == "part":
            layout, at = source.layout, op.attrs
            return (args[0][..., list(layout.part_registers(at["axis"], at["index"], at["count"]))],)
        if op.name in MOVES:
            return (self.along_axis(op, args),)
        if op.name not in VIEWS:
            return super().move(op, args)
        if not source.shape:
            return (self.full(op, target, args[0]),)
        if not target.shape:
            tile, held = self.gather(op, args[0], source)
            return (self.deal(op, tile.reshape(()), held, target),)
        perm = tuple(op.attrs["perm"]) if op.name == "trans" else None
        registers = _own_registers(op.name, source, target, perm)
        if registers is None:
            raise self.compiler_bug(op, "the op would move data between threads")
        return (np.take_along_axis(args[0], registers[self.warps], axis=2),)

    def dot(self, op: Op, args: list) -> np.ndarray:
        (a, has_a), (b, has_b), (c, has_c) = (self.operand(op, i, x) for i, x in enumerate(args))
        rows, columns = np.all(has_a, axis=1, keepdims=True), np.all(has_b, axis=0, keepdims=True)
        known, unused = has_c & rows & columns, slice(op.attrs.get("columns", columns.size), None)
        found = interp_tile.dot(op, a, b, c)
        found[:, unused], known[:, unused] = UNUSED, True
        return self.deal(op, found, known, op.result.type)

    def along_axis(self, op: Op, args: list) -> np.ndarray:
        """`flip` and `gather`. The warps of this machine must hold all source elements."""
        index, valid = self.gather(op, args[1], op.args[1].type) if len(args) > 1 else (None, np.True_)
        x, known = self.source(op, args[0], index, valid)
        moved = interp_tile.along_axis(op, x, index)
        return self.deal(op, moved, interp_tile.along_axis(op, known, index) & valid, op.result.type)

    def source(self, op: Op, value: Any, index: Any, valid: Any) -> tuple[np.ndarray, np.ndarray]:
        """The source tile of a move, and the mask of its available elements."""
        return self.gather(op, value, op.args[0].type)

    def scan(self, op: Op, args: list) -> tuple:
        axis, keep, count = op.attrs["axis"], op.attrs.get("keep", 1), len(op.results)
        tiles = [self.gather(op, x, arg.type) for x, arg in zip(args, op.args, strict=True)]
        shape = tiles[0][1].shape
        cut = (*shape[:axis], keep, shape[axis] // keep, *shape[axis + 1 :])
        held = tiles[0][1].reshape(cut).all(axis=axis + 1, keepdims=True)
        results = self.scan_axis(op, [tile.reshape(cut) for tile, _ in tiles[:count]], axis + 1)
        if keep > 1:
            held = held & np.expand_dims(tiles[count][1].all(axis=axis, keepdims=True), axis + 1)
            results = self.after_parts(op, results, [tile for tile, _ in tiles[count:]], axis)
        known = np.broadcast_to(held, cut).reshape(shape)
        return tuple(self.deal(op, x.reshape(shape), known, r.type) for x, r in zip(results, op.results, strict=True))

    def after_parts(self, op: Op, parts: Sequence[np.ndarray], totals: list[np.ndarray], axis: int) -> tuple:
        """Combines the elements of each part of `axis` with the total of all parts before it."""
        step = -1 if op.attrs.get("reverse") else 1
        own = [np.moveaxis(x, axis, 0)[::step] for x in parts]
        before = [np.moveaxis(x, axis, 0)[::step][:-1] for x in self.scan_axis(op, totals, axis)]
        carry = [np.broadcast_to(np.expand_dims(x, axis + 1), y[1:].shape) for x, y in zip(before, own, strict=True)]
        later = self.combine(op.blocks[0], [*carry, *(x[1:] for x in own)])
        whole = [np.concatenate([x[:1], y], 0)[::step] for x, y in zip(own, later, strict=True)]
        return tuple(np.moveaxis(x, 0, axis) for x in whole)

    def operand(self, op: Op, i: int, value: Any) -> tuple[np.ndarray, np.ndarray]:
        """An operand of a product, and the mask of its available elements."""
        return self.gather(op, value, op.args[i].type)

    def reduce(self, op: Op, args: list) -> tuple:
        axis, keep = op.attrs["axis"], op.attrs.get("keep", 0)
        tiles = [self.gather(op, x, arg.type) for x, arg in zip(args, op.args, strict=True)]
        parts, held = [tile for tile, _ in tiles], tiles[0][1]
        if keep:
            order = self.warp_order(op, op.args[0].type, axis, keep)
            shape = (*held.shape[:axis], keep, held.shape[axis] // keep, *held.shape[axis + 1 :])
            parts = [np.take(x, order, axis).reshape(shape) for x in parts]
            held = np.take(held, order, axis).reshape(shape)
            axis += 1
        if op.attrs.get("reverse"):
            parts = [np.flip(x, axis) for x in parts]
        results, known = self.combine_axis(op, parts, axis), held.all(axis=axis)
        return tuple(self.deal(op, x, known, r.type) for x, r in zip(results, op.results, strict=True))

    def warp_order(self, op: Op, type: Tile, axis: int, keep: int) -> np.ndarray:
        """The coordinates along `axis`, those of the first warp along it first, then those of the second, and so on.

        Warps along the axis are counted by the bits of the warp's number that lie on it, the lowest first.
        """
        layout = type.layout
        mask, low = layout.dim_mask(axis), layout.dim_bits(axis).start
        along = [bit for bit, basis in enumerate(layout.warp) if basis & mask]
        if keep != 1 << len(along):
            raise self.compiler_bug(op, f"keep={keep} with {1 << len(along)} warps along the axis")
        coordinates = (layout.indices() & mask) >> low
        part = np.zeros(layout.num_warps, np.int64)
        for position, bit in enumerate(along):
            part |= (np.arange(layout.num_warps) >> bit & 1) << position
        owner = np.full(type.shape[axis], -1)
        owner[coordinates] = part[:, None, None]
        if (owner[coordinates] != part[:, None, None]).any():
            raise self.compiler_bug(op, "two warps along the axis hold the same coordinates")
        return np.argsort(owner, kind="stable")


@lru_cache(maxsize=4096)
def _own_registers(name: str, source: Tile, target: Tile, perm: tuple[int, ...] | None) -> np.ndarray | None:
    """For each place of the result, the register of the same thread with its element. None if some place has no such register."""
    wanted = target.layout.indices()
    if name == "broadcast":
        coordinates = np.unravel_index(wanted, target.shape)
        kept = tuple(np.zeros_like(c) if n == 1 else c for c, n in zip(coordinates, source.shape, strict=True))
        wanted = np.ravel_multi_index(kept, source.shape)
    elif perm is not None:
        elements = np.arange(source.size).reshape(source.shape).transpose(perm).reshape(-1)
        wanted = elements[wanted]
    held = source.layout.indices()
    if held.shape[:2] != wanted.shape[:2]:
        return None
    register = np.full(source.size, -1)
    register[list(source.layout.register_indices)] = np.arange(source.layout.num_registers)
    found = register[wanted ^ held[:, :, :1]]
    return None if (found < 0).any() else found


def _raw(values: np.ndarray) -> np.ndarray:
    """The bits of each value, so that equal NaNs compare as equal."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")
