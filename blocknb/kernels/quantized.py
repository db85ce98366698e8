"""Products of few rows by quantized weights (weight-only quantization): int8 with a scale per column, and int4 with scales per group.

Decoding with a language model is such a product. It reads all weights for a few rows of activations, so memory bandwidth limits it. The
kernels compute the transposed result, weights @ activations.T. For up to 16 rows, the weights are the first operand of mma.sync. Each
thread loads 16 bytes of them into its fragments and converts them there. The warps of a program split K, and add their sums in shared
memory. A register of a fragment holds two weights. For 4 bits, they are weights i and i + 4 of a 32-bit word, 16 bits apart. One
instruction extracts both (Frantar et al., "MARLIN", 2024). More rows use wgmma. If there are few tiles, programs split K, too, so that
every SM reads. The last program of a tile adds the partial sums in the order of K.

Weights are stored as most checkpoints store them: row by row of (N, K), K contiguous. A byte holds two weights of 4 bits, the lower one
first, as in the int32 words (N, K / 8) of compressed-tensors' "pack-quantized" format. Scales and zero points are (N, K / group) in any
order of storage: pass `scales.T` for GPTQ's and AWQ's (K / group, N).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import blocknb
import blocknb.language as bl
from blocknb.kernels.strides import Device, address, device, dtype_name, empty, on_host, stream, strides, table
from blocknb.kernels.tiling import STREAMED

ROWS = 64  # the most rows of x per program
GROUP = 128  # the default number of weights per scale
#: The plans by rows of a program: columns, steps ahead, warps, stages, and the most registers. The last number is the warps of a
#: multiprocessor that read at the same time. Fitted to an H200. WHOLE replaces plans where its columns fill half a wave or a whole one. K
#: then needs no splits, whose sums would take up to a tenth of the time. For more than FEW_WEIGHTS of 4 bits, reading x for every 16
#: columns takes longer. For 16 rows and 4 bits, few warps suffice, because each converts many weights: twice as many programs took 1.2
#: times as long.
PLANS: dict[int, tuple[int, int, int, int, int | None, int]] = {
    8: (32, 1, 4, 1, 128, 16),
    16: (64, 1, 4, 1, None, 16),
    32: (64, 0, 4, 4, None, 8),
    ROWS: (64, 0, 4, 4, None, 8),
}
WHOLE = {8: (16, 1, 8, 1, 80, 16), 16: (16, 1, 8, 1, 128, 16)}
PLANS_4_BITS = {16: (64, 1, 4, 1, None, 8)}
FEW_WEIGHTS = 1 << 25
LEAST_SPLIT, MOST_SPLITS = 256, 16  # the fewest elements of K per split, and the most splits
ACTIVATIONS = ("float16", "bfloat16")


class QuantizedTile(NamedTuple):
    """How a program computes its tile of the transposed result: `rows` of x, `columns` of the result, and `depth` elements of K per step.
    `ahead` is the number of steps by which a program loads weights into registers early, and `splits` the number of programs that share K.
    With `num_stages` above 1, copies to shared memory run ahead. If weights are loaded into registers, each warp has all columns and a part
    of K."""

    rows: int
    columns: int
    depth: int
    ahead: int
    splits: int
    num_warps: int
    num_stages: int
    most_registers: int | None = None

    @property
    def parts(self) -> int:
        """The parts along K of a program."""
        return self.num_warps if self.ahead else 1

    @property
    def constants(self) -> dict[str, int]:
        """The constants of the kernel that this tile is for."""
        found = {"BM": self.rows, "BN": self.columns, "BK": self.depth}
        return found | ({"AHEAD": self.ahead, "WARPS": self.num_warps} if self.ahead else {})

    @property
    def options(self) -> dict[str, int]:
        """The launch options."""
        found = {"num_warps": self.num_warps, "num_stages": self.num_stages, "maxnreg": self.most_registers}
        return {name: value for name, value in found.items() if value is not None}


@blocknb.kernel
def finish_split(
    total, scale, out, parts, tickets, m, n, out_row, tile, BM: bl.constexpr, BN: bl.constexpr, SPLITS: bl.constexpr
):
    """Stores a tile of the transposed result. The last one of SPLITS programs adds all partial sums; it finds out by a ticket."""
    columns, rows = tile * BN + bl.arange(0, BN), bl.arange(0, BM) + bl.program_id(2) * BM
    inside = (rows[None, :] < m) & (columns[:, None] < n)
    to = out + rows[None, :].to(bl.int64) * out_row + columns[:, None]
    factor = 1.0
    if scale is not None:
        factor = bl.load(scale + columns, mask=columns < n, other=0.0).to(bl.float32)[:, None]
    if SPLITS == 1:
        bl.store(to, (total * factor).to(out.dtype.element_ty), mask=inside)
    else:
        place = tile + bl.program_id(2) * bl.num_programs(0)
        here = parts + place * (SPLITS * BN * BM) + bl.arange(0, BN)[:, None] * BM + bl.arange(0, BM)[None, :]
        bl.store(here + bl.program_id(1) * (BN * BM), total)
        ticket = bl.atomic_add(tickets + place, 1, sem="acq_rel", scope="gpu")
        if ticket == SPLITS - 1:
            whole = bl.zeros((BN, BM), bl.float32)
            for split in bl.static_range(SPLITS):
                whole += bl.load(here + split * (BN * BM), cache_modifier=".cg")
            bl.store(tickets + place, 0)  # for the next launch
            bl.store(to, (whole * factor).to(out.dtype.element_ty), mask=inside)


@blocknb.kernel
def activations(x, rows, at, inside, m, k, x_row):
    """Loads the tile of x at the indices `at` along K where `inside` holds."""
    there = (rows[:, None] < m) & (inside & (at < k))[None, :]
    return bl.load(x + rows[:, None] * x_row + at[None, :], mask=there, other=0.0)


@blocknb.kernel
def parts_of_warps(tile, length, BN: bl.constexpr, BK: bl.constexpr, WARPS: bl.constexpr):
    """The indices of what the warps of a program multiply. For the WARPS * BN rows of weights, these are the columns of the result and the
    first steps along K. For the WARPS * BK columns of x, they are the first indices along K.

    Each warp has all BN columns, and every WARPS-th step of the program.
    """
    row, column = bl.arange(0, WARPS * BN), bl.arange(0, WARPS * BK)
    before = bl.program_id(1) * length * WARPS
    return tile * BN + row % BN, before + row // BN, before * BK + column


@blocknb.kernel
def product_of_warps(total, w, a, BN: bl.constexpr, WARPS: bl.constexpr):
    """Adds w @ a.T of each warp to its sums: w is (WARPS * BN, BK), a is (BM, WARPS * BK)."""
    BM: bl.constexpr = a.shape[0]
    y = a.T.reshape(WARPS, a.shape[1] // WARPS, BM)
    product = bl.dot(w.reshape(WARPS, BN, w.shape[1]), y, total.reshape(WARPS, BN, BM))
    return product.reshape(WARPS * BN, BM)


@blocknb.kernel
def int8_step(
    w, columns, first, step, length, n, k, w_row, BK: bl.constexpr, WARPS: bl.constexpr, KEEP: bl.constexpr
):  # fmt: skip
    """Loads the weights of all warps for their steps with this number, nothing from `length` on. KEEP is the weights' eviction policy."""
    at = (first * BK)[:, None] + step * (WARPS * BK) + bl.arange(0, BK)[None, :]
    inside = (columns < n)[:, None] & (at < k) & (step < length)
    return bl.load(w + columns[:, None].to(bl.int64) * w_row + at, mask=inside, other=0, eviction_policy=KEEP)


@blocknb.kernel(do_not_specialize=("length",))
def int8_by_warps(
    x, w, scale, out, parts, tickets, m, n, k, length, x_row, w_row, out_row,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, AHEAD: bl.constexpr, SPLITS: bl.constexpr, WARPS: bl.constexpr,
    KEEP: bl.constexpr,
):  # fmt: skip
    """Computes BN columns of out = x @ w.T * scale. Each warp multiplies `length` steps of BK elements of K, and the sums of the warps are
    added in shared memory. Weights are loaded AHEAD steps ahead into registers, and x one step ahead."""
    tile, rows = bl.program_id(0), bl.arange(0, BM) + bl.program_id(2) * BM
    columns, first, at = parts_of_warps(tile, length, BN, BK, WARPS)
    total = bl.zeros((WARPS * BN, BM), bl.float32)
    queue = ()
    for i in bl.static_range(AHEAD):
        queue += (int8_step(w, columns, first, i, length, n, k, w_row, BK, WARPS, KEEP),)
    a = activations(x, rows, at, True, m, k, x_row)
    for step in range(0, length, AHEAD):
        loaded = ()
        for i in bl.static_range(AHEAD):
            following = activations(x, rows, at + (step + i + 1) * (WARPS * BK), step + i + 1 < length, m, k, x_row)
            total = product_of_warps(total, queue[i].to(a.dtype), a, BN, WARPS)
            loaded += (int8_step(w, columns, first, step + i + AHEAD, length, n, k, w_row, BK, WARPS, KEEP),)
            a = following
        queue = loaded
    total = bl.sum(total.reshape(WARPS, BN, BM), 0)
    finish_split(total, scale, out, parts, tickets, m, n, out_row, tile, BM, BN, SPLITS)


@blocknb.kernel
def int8_kernel(
    x, w, scale, out, parts, tickets, m, n, k, length, x_row, w_row, out_row,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, SPLITS: bl.constexpr, KEEP: bl.constexpr,
):  # fmt: skip
    """Computes BN columns of out = x @ w.T * scale from `length` steps of BK elements of K. The compiler copies the operands to shared
    memory ahead."""
    tile, first = bl.program_id(0), bl.program_id(1) * length
    columns, rows, inner = tile * BN + bl.arange(0, BN), bl.arange(0, BM) + bl.program_id(2) * BM, bl.arange(0, BK)
    total = bl.zeros((BN, BM), bl.float32)
    for step in range(first, min(first + length, bl.cdiv(k, BK))):
        at = step * BK + inner
        inside = (columns[:, None] < n) & (at[None, :] < k)
        y = w + columns[:, None].to(bl.int64) * w_row + at[None, :]
        y = bl.load(y, mask=inside, other=0, eviction_policy=KEEP).to(x.dtype.element_ty)
        total = bl.dot(y, activations(x, rows, at, True, m, k, x_row).T, total)
    finish_split(total, scale, out, parts, tickets, m, n, out_row, tile, BM, BN, SPLITS)


@blocknb.kernel
def int4_step(
    arrays, columns, first, step, sizes, steps, BK: bl.constexpr, WARPS: bl.constexpr, GROUP: bl.constexpr, KEEP: bl.constexpr
):  # fmt: skip
    """Loads the words of eight weights, scales and zero points of all warps for their steps with this number, nothing from `length` on.

    `arrays`: w, scale, zero; `sizes`: length, n, words; `steps`: the distances of neighbours in the arrays. KEEP: see `int8_step`.
    """
    w, scale, zero = arrays
    length, n, words = sizes
    w_row, s_row, s_group, z_row, z_group = steps
    at = (first * (BK // 8))[:, None] + step * (WARPS * BK // 8) + bl.arange(0, BK // 8)[None, :]
    inside = (columns < n)[:, None] & (at < bl.multiple_of(words // 4, 4)) & (step < length)
    w32 = w.to(bl.pointer_type(bl.int32)) + columns[:, None].to(bl.int64) * bl.multiple_of(w_row // 4, 4)
    y = bl.load(w32 + at, mask=inside, other=0, eviction_policy=KEEP)
    here = first + step * WARPS
    scaled, group = (columns < n) & (here * (BK // 2) < words) & (step < length), here // (GROUP // BK)
    s = bl.load(scale + columns.to(bl.int64) * s_row + group * s_group, mask=scaled, other=0.0)
    z = s
    if zero is not None:
        z = bl.load(zero + columns.to(bl.int64) * z_row + group * z_group, mask=scaled, other=0.0)
    return y, s, z


@blocknb.kernel
def weights_in_pairs(y, z, dtype: bl.constexpr, WITH_ZEROS: bl.constexpr):
    """The weights minus their zero points in a tile of words (columns, BK / 8); the integers are exact.

    The eight weights of a word are in the order 0, 4, 1, 5, 2, 6, 3, 7. Neighbours are 16 bits apart, so one mask extracts both."""
    y = bl.join(y, y >> 8)
    y = bl.join(y, y >> 4)
    y = bl.join(y, y >> 16)
    w = (y & 15).reshape(y.shape[0], 8 * y.shape[1]).to(dtype)
    if WITH_ZEROS:
        w = w - z.to(dtype)[:, None]
    else:
        w = w - 8.0
    return w


@blocknb.kernel
def activations_in_pairs(a):
    """The columns of a tile in the order of `weights_in_pairs`."""
    return a.reshape(a.shape[0], a.shape[1] // 8, 2, 4).permute(0, 1, 3, 2).reshape(a.shape[0], a.shape[1])


@blocknb.kernel
def int4_weights(y, z, dtype: bl.constexpr, WITH_ZEROS: bl.constexpr):
    """The weights minus their zero points in a byte tile of (columns, BK / 2); the integers are exact."""
    w = bl.join(y & 15, y >> 4).reshape(y.shape[0], 2 * y.shape[1]).to(dtype)
    if WITH_ZEROS:
        w = w - z.to(dtype)[:, None]
    else:
        w = w - 8.0
    return w


@blocknb.kernel(do_not_specialize=("length",))
def int4_by_warps(
    x, w, scale, zero, out, parts, tickets, m, n, k, words, length, x_row, w_row, s_row, s_group, z_row, z_group, out_row,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, AHEAD: bl.constexpr, SPLITS: bl.constexpr, WARPS: bl.constexpr,
    GROUP: bl.constexpr, KEEP: bl.constexpr,
):  # fmt: skip
    """Computes BN columns of out = x @ ((w - zero) * scale).T as `int8_by_warps`. BK divides GROUP. The sums of a step are multiplied by
    the scale of its group. Without AHEAD, copies to shared memory run ahead."""
    tile, rows = bl.program_id(0), bl.arange(0, BM) + bl.program_id(2) * BM
    columns, first, at = parts_of_warps(tile, length, BN, BK, WARPS)
    total, dtype, zeros = bl.zeros((WARPS * BN, BM), bl.float32), x.dtype.element_ty, zero is not None
    arrays, sizes, steps = (w, scale, zero), (length, n, words), (w_row, s_row, s_group, z_row, z_group)
    queue = ()
    for i in bl.static_range(AHEAD):
        queue += (int4_step(arrays, columns, first, i, sizes, steps, BK, WARPS, GROUP, KEEP),)
    a = activations(x, rows, at, True, m, k, x_row)
    for step in range(0, length, AHEAD or 1):
        loaded = ()
        for i in bl.static_range(AHEAD or 1):
            following = activations(x, rows, at + (step + i + 1) * (WARPS * BK), step + i + 1 < length, m, k, x_row)
            if AHEAD:
                y, s, z = queue[i]
            else:
                y, s, z = int4_step(arrays, columns, first, step, sizes, steps, BK, WARPS, GROUP, KEEP)
            zero_sums = bl.zeros((WARPS * BN, BM), bl.float32)
            product = product_of_warps(
                zero_sums, weights_in_pairs(y, z, dtype, zeros), activations_in_pairs(a), BN, WARPS
            )
            total += product * s.to(bl.float32)[:, None]
            if AHEAD:
                loaded += (int4_step(arrays, columns, first, step + i + AHEAD, sizes, steps, BK, WARPS, GROUP, KEEP),)
            a = following
        queue = loaded
    total = bl.sum(total.reshape(WARPS, BN, BM), 0)
    finish_split(total, None, out, parts, tickets, m, n, out_row, tile, BM, BN, SPLITS)


@blocknb.kernel
def int4_kernel(
    x, w, scale, zero, out, parts, tickets, m, n, k, words, length, x_row, w_row, s_row, s_group, z_row, z_group, out_row,
    BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, SPLITS: bl.constexpr, GROUP: bl.constexpr, KEEP: bl.constexpr,
):  # fmt: skip
    """Computes BN columns of out = x @ ((w - zero) * scale).T as `int8_kernel`. BK divides GROUP."""
    tile, first = bl.program_id(0), bl.program_id(1) * length
    columns, rows, inner = tile * BN + bl.arange(0, BN), bl.arange(0, BM) + bl.program_id(2) * BM, bl.arange(0, BK)
    total, zeros = bl.zeros((BN, BM), bl.float32), zero is not None
    for step in range(first, min(first + length, bl.cdiv(k, BK))):
        packed, group = step * (BK // 2) + bl.arange(0, BK // 2), step // (GROUP // BK)
        y = w + columns[:, None].to(bl.int64) * w_row + packed[None, :]
        y = bl.load(y, mask=(columns[:, None] < n) & (packed[None, :] < words), other=0, eviction_policy=KEEP)
        s = bl.load(scale + columns.to(bl.int64) * s_row + group * s_group, mask=columns < n, other=0.0)
        z = s
        if zero is not None:
            z = bl.load(zero + columns.to(bl.int64) * z_row + group * z_group, mask=columns < n, other=0.0)
        a = activations(x, rows, step * BK + inner, True, m, k, x_row)
        total += bl.dot(int4_weights(y, z, a.dtype, zeros), a.T) * s.to(bl.float32)[:, None]
    finish_split(total, None, out, parts, tickets, m, n, out_row, tile, BM, BN, SPLITS)


def choose_quantized(m: int, n: int, k: int, on: Device, bits: int = 8) -> QuantizedTile:
    """The tile for a product of m rows by n columns of weights, by the bits of a weight."""
    depth, rows = 128, next((rows for rows in (8, 16, 32) if m <= rows), ROWS)
    if on.capability == 0:
        return QuantizedTile(max(16, rows), 64, depth, 0, 1, 4, 1)
    by_warps = rows if on.capability >= 80 else ROWS  # a part of K per warp takes mma.sync of bf16
    plan, fixed = PLANS[by_warps], bits == 4 and by_warps in PLANS_4_BITS
    if fixed:
        plan = PLANS_4_BITS[by_warps]
    elif by_warps in WHOLE and (bits == 8 or n * k <= FEW_WEIGHTS):
        columns, _, num_warps, *_, reading = WHOLE[by_warps]
        wave = reading // num_warps * on.processors
        plan = WHOLE[by_warps] if wave // 2 <= blocknb.cdiv(n, columns) <= wave else plan
    columns, ahead, num_warps, stages, registers, reading = plan
    tiles = blocknb.cdiv(n, columns) * blocknb.cdiv(m, rows)
    most = k // (depth * num_warps * ahead) if ahead else k // LEAST_SPLIT
    splits = max(1, min(round(reading * on.processors / (tiles * num_warps)), most, MOST_SPLITS))
    return QuantizedTile(rows, columns, depth, ahead, splits, num_warps, stages, registers)


#: The tickets of split products, by device, library and stream, all zero between two launches.
_tickets: dict[tuple[Any, ...], Any] = {}
TICKETS = 1 << 14


def matmul_int8(x: Any, w: Any, scales: Any, out: Any = None, *, tile: QuantizedTile | None = None) -> Any:
    """Computes out = x @ (w * scales[:, None]).T for x (M, K) in fp16 or bf16 and w (N, K) in int8; returns `out`, a new array for None.

    K is contiguous in x and w, and a multiple of 16. `scales` is a contiguous vector of N floats, of any float dtype. Sums are fp32. Raises
    ValueError for arrays that do not fit each other.
    """
    m, n, k, out = _checked(x, w, out, 1, "int8")
    if tuple(scales.shape) != (n,):
        raise ValueError(
            f"scales must be a vector of {n} elements, one per row of w, not of shape {tuple(scales.shape)}"
        )
    if 0 in (m, n):
        return out
    t = tile or choose_quantized(m, n, k, device(x))
    grid, length, parts, tickets = _splits(x, m, n, k, t)
    keep = STREAMED if grid[2] == 1 else ""
    kernel = int8_by_warps if t.ahead else int8_kernel
    kernel[grid](
        x, w, scales, out, parts, tickets, m, n, k, length, strides(x)[0], strides(w)[0], strides(out)[0],
        SPLITS=grid[1], KEEP=keep, **t.constants, **t.options,
    )  # fmt: skip
    return out


def matmul_int4(
    x: Any,
    w: Any,
    scales: Any,
    zeros: Any = None,
    out: Any = None,
    *,
    group: int = GROUP,
    tile: QuantizedTile | None = None,
) -> Any:
    """Computes out = x @ ((w - zeros) * scales).T for x (M, K) in fp16 or bf16 and weights of 4 bits; returns `out`, a new array for None.

    w is (N, K / 2) uint8: a byte holds two weights of 0 to 15, the lower four bits first. `scales` and `zeros` are (N, K / group); a zero
    point is 8 by default. `group` is a multiple of 128 and K a multiple of 32; K is contiguous in x and w. Sums are fp32. Raises ValueError
    for arrays that do not fit each other.
    """
    m, n, k, out = _checked(x, w, out, 2, "uint8")
    if group % 128 or k % 32:
        raise ValueError(f"a group of {group} and K = {k}: groups are multiples of 128, and K is a multiple of 32")
    for name, array in (("scales", scales), ("zeros", zeros)):
        if array is not None and tuple(array.shape) != (n, blocknb.cdiv(k, group)):
            raise ValueError(f"{name} must have the shape {(n, blocknb.cdiv(k, group))}, not {tuple(array.shape)}")
    if 0 in (m, n):
        return out
    t = tile or choose_quantized(m, n, k, device(x), 4)
    grid, length, parts, tickets = _splits(x, m, n, k, t)
    keep = STREAMED if grid[2] == 1 else ""
    z = (0, 0) if zeros is None else strides(zeros)
    kernel = int4_by_warps if t.ahead else int4_kernel
    staged = {"AHEAD": 0} if t.ahead and t.num_stages > 1 else {}  # copies to shared memory run ahead
    kernel[grid](
        x, w, scales, zeros, out, parts, tickets, m, n, k, k // 2, length, strides(x)[0], strides(w)[0], *strides(scales), *z,
        strides(out)[0], SPLITS=grid[1], GROUP=group, KEEP=keep, **t.constants | staged, **t.options,
    )  # fmt: skip
    return out


def _checked(x: Any, w: Any, out: Any, packed: int, kind: str) -> tuple[int, int, int, Any]:
    """The sizes M, N and K, and the result. Raises ValueError if the arrays do not fit."""
    if len(x.shape) != 2 or len(w.shape) != 2 or x.shape[1] != w.shape[1] * packed:
        raise ValueError(
            f"cannot multiply {tuple(x.shape)} by weights {tuple(w.shape)}: pass (M, K) and (N, K / {packed})"
        )
    if dtype_name(x) not in ACTIVATIONS or dtype_name(w) != kind:
        raise ValueError(f"x is {dtype_name(x)} and w is {dtype_name(w)}: x must be float16 or bfloat16, and w {kind}")
    (m, k), n = x.shape, w.shape[0]
    for name, array in (("x", x), ("w", w)):
        steps = strides(array)
        if steps[1] != 1 or steps[0] * array.dtype.itemsize % 16 or address(array) % 16:
            raise ValueError(
                f"the rows of {name} must be contiguous, and begin at multiples of 16 bytes; its strides are {steps}"
            )
    if out is None:
        out = empty(x, (m, n), dtype_name(x))
    elif tuple(out.shape) != (m, n) or strides(out)[1] != 1:
        raise ValueError(
            f"out must have the shape {(m, n)} and contiguous rows, not {tuple(out.shape)} with strides {strides(out)}"
        )
    return m, n, k, out


def _splits(x: Any, m: int, n: int, k: int, t: QuantizedTile) -> tuple[tuple[int, int, int], int, Any, Any]:
    """The grid, the steps along K per part of a split, the array of partial sums, and the tickets."""
    steps = max(1, blocknb.cdiv(k, t.depth))
    length = blocknb.cdiv(steps, t.splits * t.parts)
    splits = blocknb.cdiv(steps, length * t.parts)
    grid = blocknb.cdiv(n, t.columns), splits, blocknb.cdiv(m, t.rows)
    if splits == 1:
        return grid, length, None, None
    places = grid[0] * grid[2]
    parts = empty(x, (places * splits * t.columns * t.rows,), "float32")
    return grid, length, parts, _tickets_of(x, places)


def _tickets_of(x: Any, places: int) -> Any:
    """Tickets on the device of x. Launches of one stream follow each other, so they share them."""
    key = (type(x), str(getattr(x, "device", "")), None if on_host(x) else stream(x), max(places, TICKETS))
    if key not in _tickets:
        _tickets[key] = table(x, [0] * max(places, TICKETS), "int32")
    return _tickets[key]
