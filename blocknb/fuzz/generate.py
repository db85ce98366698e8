"""Generates kernel number `index` of a seed: always the same one, independent of earlier calls."""

from __future__ import annotations

import random
from typing import Any

from blocknb.fuzz import accesses, helpers, regions, tiles  # noqa: F401 (some only register productions)
from blocknb.fuzz import tree as t
from blocknb.fuzz.accesses import shapes
from blocknb.fuzz.dtypes import FLOATS, INTEGERS
from blocknb.fuzz.expressions import binary, compare, expression
from blocknb.fuzz.state import GridAxis, State
from blocknb.fuzz.tree import SyntaxNode, arange, literal, op


def generate(seed: int, index: int) -> t.KernelTree:
    """Kernel `index` of a seed."""
    g = State(random.Random(f"blocknb fuzz {seed} {index}"), tag=str(index))
    large = g.chance(0.05)
    frame(g, large)
    values(g, g.pick((1, 1, 2)))
    for _ in range(0 if large else g.pick((0, 1, 1, 1, 2, 2))):
        regions.region(g)
    values(g, g.r.randrange(0, 2))
    for value in outputs(g):
        accesses.store(g, value)
    options: dict[str, Any] = {"num_warps": g.pick((1, 2, 4, 4, 8))} if g.chance(0.5) else {}
    body, seed = tuple(g.bodies[0]), g.r.getrandbits(32)
    return t.KernelTree(f"kernel{index}", tuple(g.arguments), body, g.grid, tuple(g.helpers), options, g.launches, seed)


def frame(g: State, large: bool = False) -> None:
    """The grid, and the axes of tiles: positions and masks of partial tiles."""
    kind = g.weighted({"one": 4, "rows": 3, "two": 2, "none": 1})
    if large:
        kind = g.pick(("one", "rows"))
    if kind == "none":
        g.grid = g.pick(((1,), (3,), (2, 2), (1, 2, 2)))
        return
    blocks = {"one": (g.pick((16, 32, 64, 64, 128, 128, 256, 512)),), "rows": (0, g.pick((16, 32, 64, 128, 256, 512)))}
    pair = g.pick(((16, 16), (32, 16), (8, 64), (16, 64), (4, 128), (32, 32), (1, 64), (64, 2)))
    sizes = blocks.get(kind, pair)
    if large:
        sizes = (*sizes[:-1], g.pick((1024, 2048, 4096)))
    g.grid = tuple(g.pick((1, 2, 3)) if n else g.pick((1, 3, 4)) for n in sizes)
    if g.chance(0.06):
        g.grid = (g.pick((7, 16, 33)), *(1 for _ in sizes[1:]))
    if kind == "rows":
        g.grid = (g.grid[0], 1) if g.chance(0.8) else g.grid
    for number, (block, count) in enumerate(zip(sizes, g.grid, strict=True)):
        _axis(g, number, block, count)


def _axis(g: State, number: int, block: int, count: int) -> None:
    program = op("pid", "i32", (), axis=number)
    if not block:
        index = g.let(program, "row", True)
        g.axes.append(GridAxis(index.attrs["name"], "", 0, count, count, ""))
        return
    most = (count - 1) * block + g.r.randrange(1, block + 1) if g.chance(0.8) else count * block
    sizes = [most] + [like(g, most) if g.chance(0.8) else g.r.randrange(1, most + 1) for _ in range(g.launches - 1)]
    constexpr = g.chance(0.15)
    size = g.scalar("i32", sizes[:1] if constexpr else sizes, prefix="n", constexpr=constexpr)
    lane = arange(block)
    start = binary("*", program, literal(block))
    i = g.let(binary("+", start, lane) if count > 1 or g.chance(0.5) else lane, "i", True)
    mask = g.let(compare("<", i, size), "m", True)
    g.axes.append(GridAxis(i.attrs["name"], mask.attrs["name"], block, most, count, size.attrs["name"]))


def like(g: State, most: int) -> int:
    """A size up to `most` in the same specialization: a multiple of 16 if `most` is one."""
    for _ in range(20):
        size = g.r.randrange(1, most + 1)
        if size != 1 and (size % 16 == 0) == (most % 16 == 0):
            return size
    return most


def values(g: State, count: int) -> None:
    """Binds random expressions to names."""
    for _ in range(count):
        g.budget = g.r.randrange(2, 11)
        dtype = g.dtype((*INTEGERS, *FLOATS))
        shape = () if g.chance(0.12) else g.pick(shapes(g))
        g.let(expression(g, dtype, shape, g.pick((1, 1, 2, 2, 3))))


def outputs(g: State) -> list[SyntaxNode]:
    """The values to store: the newest one, and some others."""
    names = [t.var(name, type) for name, type in g.visible() if not type.pointer and name not in g.fixed]
    last, rest = names[-1:], names[:-1]
    return last + g.r.sample(rest, min(len(rest), g.pick((0, 1, 1, 2))))
