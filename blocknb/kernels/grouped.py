"""Many products in one launch: grouped products, as in a mixture of experts, and lists of products of any sizes.

`grouped_matmul` takes consecutive groups of rows, each with a matrix of its own, as torch's grouped products do. The sizes of the groups
can stay on the GPU. `matmul_many` takes lists of arrays; its kernel reads a table of addresses, as Triton's tutorial on grouped GEMM
does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import blocknb
import blocknb.language as bl
from blocknb.kernels.operands import ALIGNMENT, SUMS, MatmulProblem
from blocknb.kernels.shapes import TileShape, choose, without_ping_pong
from blocknb.kernels.strides import address, contiguous, device, dtype_name, empty, strides, table
from blocknb.kernels.tiling import place

#: Groups whose ends one iteration reads. More would take more registers than a producer warp has.
GROUPS_PER_STEP = bl.constexpr(2)
#: The language's names of dtypes, where they are not the arrays'.
TYPES = {"float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}


@blocknb.kernel
def keep(c, total, row, column, m, n, c_row, c_column, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr):
    """Stores a tile, masked to the first m rows and n columns of c."""
    rows, columns = row + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N)
    to = c + rows[:, None].to(bl.int64) * c_row + columns[None, :] * c_column
    bl.store(to, total, mask=(rows[:, None] >= 0) & (rows[:, None] < m) & (columns[None, :] < n))


@blocknb.kernel
def grouped_kernel(
    a, b, c, ends, groups, m, n, k, a_row, a_column, b_group, b_row, b_column, c_row, c_column,
    BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, GROUP: bl.constexpr, SUM: bl.constexpr,
):  # fmt: skip
    """Computes the rows of c from ends[g - 1] up to ends[g] as a @ b[g].

    Each group has tiles of its own. The grid is an upper bound on their number, and programs beyond the last tile return.
    """
    program, across = bl.program_id(0), bl.cdiv(n, BLOCK_N)
    group, first, last, offset, begin, before = -1, 0, 0, 0, 0, 0
    # scalars instead of tiles, so that a producer warp can find the group, too
    for some in range(0, groups, GROUPS_PER_STEP):
        for i in bl.static_range(GROUPS_PER_STEP):  # their ends are loaded together
            g = some + i
            end = bl.where(g < groups, bl.load(ends + g, mask=g < groups, other=0), begin)
            programs = bl.cdiv(end - begin, BLOCK_M) * across
            here = (program >= before) & (program < before + programs)
            group = bl.where(here, g, group)
            first = bl.where(here, begin, first)
            last = bl.where(here, end, last)
            offset = bl.where(here, program - before, offset)
            before += programs
            begin = end
    if group >= 0:
        tile_m, tile_n = place(offset, last - first, n, BLOCK_M, BLOCK_N, GROUP)
        start, column = first + tile_m * BLOCK_M, max(tile_n, 0) * BLOCK_N
        rows, columns, inner = start + bl.arange(0, BLOCK_M), column + bl.arange(0, BLOCK_N), bl.arange(0, BLOCK_K)
        far = rows[:, None].to(bl.int64)
        matrix = b + group.to(bl.int64) * b_group
        total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
        for step in range(0, k, BLOCK_K):
            at = step + inner
            x_mask = (rows[:, None] >= 0) & (rows[:, None] < m) & (at[None, :] < k)
            x = bl.load(a + far * a_row + at[None, :] * a_column, mask=x_mask, other=0.0)
            y_mask = (group >= 0) & (group < groups) & (at[:, None] < k) & (columns[None, :] < n)
            y = bl.load(matrix + at[:, None] * b_row + columns[None, :] * b_column, mask=y_mask, other=0.0)
            total = bl.dot(x, y, total, out_dtype=SUM)
        if start + BLOCK_M <= last:  # all rows belong to the group, so the bounds of the array are mask enough
            keep(c, total, start, column, m, n, c_row, c_column, BLOCK_M, BLOCK_N)
        else:
            keep(c, total, start, column, last, n, c_row, c_column, BLOCK_M, BLOCK_N)


@blocknb.kernel
def problems_kernel(
    addresses, sizes, count, BLOCK_M: bl.constexpr, BLOCK_N: bl.constexpr, BLOCK_K: bl.constexpr, A: bl.constexpr, B: bl.constexpr,
    C: bl.constexpr, SUM: bl.constexpr, EVEN: bl.constexpr,
):  # fmt: skip
    """Computes a list of products; the programs share the tiles of all of them.

    For problem p, `addresses` holds the addresses of a, b and c, and `sizes` holds m, n, k and the row strides. A, B and C are element
    types. All strides, n and k are multiples of EVEN; if EVEN is more than 1, addresses are multiples of 16.
    """
    ALIGNED: bl.constexpr = 16 if EVEN > 1 else 1  # bytes
    programs, done = bl.num_programs(0), 0
    for p in range(count):
        m = bl.load(sizes + 6 * p)
        n = bl.multiple_of(bl.load(sizes + 6 * p + 1), EVEN)
        k = bl.multiple_of(bl.load(sizes + 6 * p + 2), EVEN)
        a = bl.multiple_of(bl.load(addresses + 3 * p).to(bl.pointer_type(A)), ALIGNED)
        b = bl.multiple_of(bl.load(addresses + 3 * p + 1).to(bl.pointer_type(B)), ALIGNED)
        c = bl.multiple_of(bl.load(addresses + 3 * p + 2).to(bl.pointer_type(C)), ALIGNED)
        a_row = bl.multiple_of(bl.load(sizes + 6 * p + 3), EVEN)
        b_row = bl.multiple_of(bl.load(sizes + 6 * p + 4), EVEN)
        c_row = bl.multiple_of(bl.load(sizes + 6 * p + 5), EVEN)
        across = bl.cdiv(n, BLOCK_N)
        tiles = bl.cdiv(m, BLOCK_M) * across
        # the first of its tiles; programs take tiles in turn
        mine = (bl.program_id(0) + programs - done % programs) % programs
        for tile in range(mine, tiles, programs):
            rows = tile // across * BLOCK_M + bl.arange(0, BLOCK_M)
            columns = tile % across * BLOCK_N + bl.arange(0, BLOCK_N)
            inner = bl.arange(0, BLOCK_K)
            total = bl.zeros((BLOCK_M, BLOCK_N), SUM)
            for first in range(0, k, BLOCK_K):
                at = first + inner
                x_mask, y_mask = (rows[:, None] < m) & (at[None, :] < k), (at[:, None] < k) & (columns[None, :] < n)
                x = bl.load(a + rows[:, None] * a_row + at[None, :], mask=x_mask, other=0.0)
                y = bl.load(b + at[:, None] * b_row + columns[None, :], mask=y_mask, other=0.0)
                total = bl.dot(x, y, total, out_dtype=SUM)
            inside = (rows[:, None] < m) & (columns[None, :] < n)
            bl.store(c + rows[:, None] * c_row + columns[None, :], total.to(C), mask=inside)
        done += tiles


def grouped_matmul(
    a: Any, b: Any, ends: Any, out: Any = None, *, tile: tuple[int, int, int] | None = None, **options: Any
) -> Any:
    """Computes out[r] = a[r] @ b[g] for the rows r of group g, which are ends[g - 1] <= r < ends[g]. Returns `out`.

    a is (M, K), b is (G, K, N), and ends holds G non-decreasing int32 on the device of the others. out is (M, N), a new array for None.
    Rows from the last end on are not written. `options` are num_warps and num_stages. Raises ValueError for other shapes and dtypes.
    """
    if len(a.shape) != 2 or len(b.shape) != 3 or a.shape[1] != b.shape[1]:
        raise ValueError(
            f"cannot multiply groups of rows of {tuple(a.shape)} by {tuple(b.shape)}: a is (M, K) and b (G, K, N)"
        )
    groups, (m, k), n = b.shape[0], a.shape, b.shape[2]
    if tuple(ends.shape) != (groups,) or dtype_name(ends) != "int32" or not contiguous(ends):
        raise ValueError(f"ends must be {groups} contiguous int32, not {dtype_name(ends)} of shape {tuple(ends.shape)}")
    if out is None:
        out = empty(a, (m, n), SUMS.get(dtype_name(a), ("", dtype_name(a)))[1])
    if groups == 0:
        return out
    p = MatmulProblem.of(a, b[0], out)  # checks the other requirements
    if p.empty:
        return out
    if tile:
        t = p.tile(tile, **options)
    else:  # the number of stages leaves room for the TMA stores
        t = choose(max(1, m // groups), n, k, p.itemsize, device(a), groups)
        t = without_ping_pong(t, p.itemsize, device(a), most=3)
    grid = ((blocknb.cdiv(m, t.m) + groups) * blocknb.cdiv(n, t.n),)
    given = {"num_warps": t.num_warps, "num_stages": t.num_stages, **options}
    grouped_kernel[grid](
        a, b, out, ends, groups, m, n, k, *strides(a), *strides(b), *strides(out),
        BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=t.k, GROUP=8, SUM=getattr(bl, p.sum),
        **{x: v for x, v in given.items() if v is not None},
    )  # fmt: skip
    return out


def _check_list(name: str, arrays: Sequence[Any]) -> None:
    """Raises ValueError for a list of matrices that differ in dtype, or whose rows are not contiguous."""
    if len({dtype_name(array) for array in arrays}) > 1 or any(len(array.shape) != 2 for array in arrays):
        raise ValueError(f"the matrices of {name} must have one dtype and two axes")
    if any(0 not in array.shape and array.shape[1] > 1 and strides(array)[1] != 1 for array in arrays):
        raise ValueError(f"the matrices of {name} must have contiguous rows; copy those that are transposed")


def _problems(a: Sequence[Any], b: Sequence[Any], out: Sequence[Any]) -> list[MatmulProblem]:
    """The products of two lists of matrices. Raises ValueError for lists that do not match, and for matrices that are too large."""
    if not len(a) == len(b) == len(out):
        raise ValueError(f"the lists have {len(a)}, {len(b)} and {len(out)} matrices")
    problems = [MatmulProblem.of(*arrays) for arrays in zip(a, b, out, strict=True)]
    for name, arrays in (("a", a), ("b", b), ("out", [p.out for p in problems])):
        _check_list(name, arrays)
    if any(p.far for p in problems if not p.empty):
        raise ValueError("a matrix has more than 2^31 elements; multiply it alone, with matmul")
    return problems


def _common_alignment(work: Sequence[MatmulProblem], places: Sequence[int], rows: Sequence[int]) -> int:
    """The common divisor of all sizes and strides, up to ALIGNMENT; 1 if an address is not a multiple of ALIGNMENT."""
    if any(place % ALIGNMENT for place in places):
        return 1
    return math.gcd(ALIGNMENT, *rows, *(size for p in work for size in (p.n, p.k)))


def _tile_of(largest: MatmulProblem, count: int) -> TileShape:
    """The tile for a list of problems, chosen for the largest one."""
    t = choose(largest.m, largest.n, largest.k, largest.itemsize, device(largest.a), count)
    if t.m * t.n > 64 * 32 * t.num_warps:  # addresses that are known only at run time take registers, too
        t = t._replace(num_warps=2 * t.num_warps)
    return t


def matmul_many(
    a: Sequence[Any], b: Sequence[Any], out: Sequence[Any] | None = None, *, tile: tuple[int, int, int] | None = None,
    **options: Any,
) -> Sequence[Any]:  # fmt: skip
    """Computes out[i] = a[i] @ b[i] for lists of matrices of any sizes; each list has one dtype and contiguous rows. Returns `out`.

    New arrays are made if `out` is None; `options` are num_warps and num_stages. Raises ValueError where arrays do not fit each other.
    """
    out = [None] * len(a) if out is None else out
    problems = _problems(a, b, out)
    out = [p.out for p in problems]
    work = [p for p in problems if not p.empty]
    if not work:
        return out
    first = work[0]
    largest = max(work, key=lambda p: p.m * p.n)
    t = largest.tile(tile) if tile else _tile_of(largest, len(work))
    tiles = sum(blocknb.cdiv(p.m, t.m) * blocknb.cdiv(p.n, t.n) for p in work)
    rows = [strides(array)[0] for p in work for array in (p.a, p.b, p.out)]
    places = [address(array) for p in work for array in (p.a, p.b, p.out)]
    even = _common_alignment(work, places, rows)
    sizes = [x for i, p in enumerate(work) for x in (p.m, p.n, p.k, *rows[3 * i : 3 * i + 3])]
    kinds = (getattr(bl, TYPES.get(name, name)) for name in map(dtype_name, (first.a, first.b, first.out)))
    given = {"num_warps": t.num_warps, "num_stages": t.num_stages, **options}
    problems_kernel[min(tiles, 4 * device(first.a).processors),](
        table(first.a, places, "int64"), table(first.a, sizes, "int32"), len(work), BLOCK_M=t.m, BLOCK_N=t.n, BLOCK_K=t.k,
        **dict(zip("ABC", kinds, strict=True)), SUM=getattr(bl, first.sum), EVEN=even,
        **{x: v for x, v in given.items() if v is not None},
    )  # fmt: skip
    return out
