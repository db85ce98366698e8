"""Helpers of the attention wrappers: checked shapes of queries, keys and values, and tiles by the width of a head."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import blocknb
from blocknb.kernels.strides import contiguous, dtype_name, need_arrays, on_host, strides
from blocknb.runtime import machine

Tile = dict[str, int]
DTYPES = ("float16", "bfloat16", "float32")
SHORTEST, LONGEST = 8, 256  # elements per head: a vector of 16 bytes, and as many as registers hold
LEAST = 16  # the smallest extent of an MMA
PRECISIONS = ("tf32", "ieee")  # of products of fp32
HOST = (64, 64, 4, 1)  # tile of a program on a CPU
ENOUGH = 264  # programs: two per multiprocessor of an H200


@dataclass(frozen=True)
class Heads:
    """The sizes of an attention. `group` heads of q share one head of k and v; `block` is the power of two that holds a head's `width`."""

    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    width: int
    dtype: str

    @property
    def block(self) -> int:
        """The smallest supported power of two that holds a head's `width`."""
        return max(LEAST, blocknb.next_power_of_2(self.width))

    @property
    def empty(self) -> bool:
        """Whether there is no head, no query or no key, so that nothing is launched."""
        return not self.batch * self.heads * self.queries * self.keys

    def scale(self, given: float | None) -> float:
        """The factor of the scores. Raises ValueError unless it is positive and finite."""
        scale = 1 / math.sqrt(self.width) if given is None else float(given)
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive, not {scale}")
        return scale

    def precision(self, given: str) -> str:
        """The precision of products for the `input_precision` that a caller gave. 16 bits have one, so the same code serves both.

        Raises ValueError for another word than "tf32" and "ieee".
        """
        if given not in PRECISIONS:
            raise ValueError(f'input_precision must be "tf32" or "ieee", not {given!r}')
        return given if self.dtype == "float32" else PRECISIONS[0]

    def steps(self, *arrays: Any) -> tuple[tuple[int, ...], ...]:
        """The strides of batches, heads and rows of each array; a single row may have any stride."""
        found = [(strides(array)[:3], array.shape[2]) for array in arrays]
        return tuple((*steps[:2], steps[2] if rows > 1 else self.block) for steps, rows in found)


def heads_of(q: Any, k: Any, v: Any, dtypes: tuple[str, ...] = DTYPES) -> Heads:
    """The sizes of q (batch, heads, queries, head), and k and v (batch, kv heads, keys, head). Raises ValueError where they do not fit, and
    for another dtype than `dtypes`."""
    need_arrays(q=q, k=k, v=v)
    shapes = {"q": tuple(q.shape), "k": tuple(k.shape), "v": tuple(v.shape)}
    for name, shape in shapes.items():
        if len(shape) != 4:
            raise ValueError(f"{name} must have the shape (batch, heads, rows, head), not {shape}")
    (batch, heads, queries, width), (batches, shared, keys, depth) = shapes["q"], shapes["k"]
    if shapes["v"] != shapes["k"]:
        raise ValueError(f"v must have the shape of k, {shapes['k']}, not {shapes['v']}")
    if (batches, depth) != (batch, width):
        raise ValueError(
            f"k has the shape {shapes['k']} and q {shapes['q']}, but both need the same batch size and the same size of a head"
        )
    if heads and (not shared or heads % shared):
        raise ValueError(f"q has {heads} heads, which is not a multiple of the {shared} heads of k and v")
    if not SHORTEST <= width <= LONGEST:
        raise ValueError(f"a head must have {SHORTEST} to {LONGEST} elements, not {width}")
    found = Heads(batch, heads, heads // shared if shared else 1, queries, keys, width, dtype_name(q))
    if found.dtype not in dtypes:
        raise ValueError(f"q is {found.dtype}, and attention takes {', '.join(dtypes)}")
    check_arrays(found, q=q, k=k, v=v)
    return found


def check_arrays(found: Heads, **arrays: Any) -> None:
    """Raises ValueError unless each array has the shape, dtype and strides that the kernels need for its name; None is skipped."""
    of_queries = (found.batch, found.heads, found.queries)
    of_keys = (found.batch, found.heads // found.group, found.keys)
    for name, array in arrays.items():
        if array is None:
            continue
        need_arrays(**{name: array})
        if name in ("logsumexp", "deltas"):
            if tuple(array.shape) != of_queries or dtype_name(array) != "float32" or not contiguous(array):
                raise ValueError(
                    f"{name} must be contiguous, float32, of shape {of_queries}; it is {dtype_name(array)}, {tuple(array.shape)}"
                )
            continue
        shape = (*(of_keys if name in ("k", "v", "dk", "dv") else of_queries), found.width)
        if tuple(array.shape) != shape:
            raise ValueError(f"{name} must have the shape {shape}, not {tuple(array.shape)}")
        if dtype_name(array) != found.dtype:
            raise ValueError(f"{name} must be {found.dtype}, as q is, not {dtype_name(array)}")
        if found.width > 1 and math.prod(shape) and strides(array)[-1] != 1:
            raise ValueError(f"the last axis of {name} must be contiguous; its strides are {strides(array)}")


def check_options(found: Heads, window: int | None, slopes: Any, soft_cap: float | None) -> None:
    """Raises ValueError for a window, ALiBi slopes or a soft cap that do not fit; None is skipped."""
    if window is not None and (not hasattr(window, "__index__") or window < 1):
        raise ValueError(
            f"window must be the number of keys that a query sees, 1 or more, not {window!r}; None is no window"
        )
    if slopes is not None:
        need_arrays(alibi_slopes=slopes)
        wrong = tuple(slopes.shape) != (found.heads,) or dtype_name(slopes) != "float32" or not contiguous(slopes)
        if wrong:
            raise ValueError(
                f"alibi_slopes must be contiguous, float32, of shape {(found.heads,)}; it is {dtype_name(slopes)}, "
                f"{tuple(slopes.shape)}"
            )
    if soft_cap is not None and not 0 < soft_cap < math.inf:
        raise ValueError(f"soft_cap must be positive, not {soft_cap}; None is no cap")


@dataclass(frozen=True)
class HeadTiles:
    """(ROWS, COLUMNS, num_warps, num_stages) by the width of a head, for wgmma and for mma.sync; no entry spills registers.

    wgmma needs few registers apart from the accumulators; mma.sync keeps its operands in registers, too.
    """

    hopper: Mapping[int, tuple[int, int, int, int]]
    others: Mapping[int, tuple[int, int, int, int]]
    many: Mapping[int, tuple[int, int, int, int]] = field(default_factory=dict)
    exact: Mapping[int, tuple[int, int, int, int]] = field(default_factory=dict)

    def choose(self, q: Any, block: int, precision: str = PRECISIONS[0]) -> Tile:
        """The tile for the smallest width that is at least `block`; fp32 halves everything.

        `many` holds the tiles that Hopper uses for 16 bits as long as there are enough programs. `exact` holds those of fp32 without tensor
        cores ("ieee"), on every GPU.
        """
        if precision == "ieee" and not on_host(q):
            found = self.exact[min(size for size in self.exact if size >= block)]
            return dict(zip(("ROWS", "COLUMNS", "num_warps", "num_stages"), found, strict=True))
        table = self.hopper if capability(q) == 90 else self.others
        rows, columns, warps, stages = HOST if on_host(q) else table[min(size for size in table if size >= block)]
        if table is self.hopper and (more := self.many.get(block)) and dtype_name(q) != "float32":
            batch, heads, queries, _ = q.shape
            if batch * heads * blocknb.cdiv(queries, more[0]) >= ENOUGH:
                rows, columns, warps, stages = more
        if dtype_name(q) == "float32" and not on_host(q):
            rows, columns = max(rows // 2, 16), max(columns // 2, 16)
        return {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}


def capability(array: Any) -> int:
    """The compute capability of the GPU that kernels on this array use: 90 for Hopper, 0 for a CPU."""
    return 0 if on_host(array) else machine.current_target().arch
