"""The hardware as data: blocked layouts, and the fragments of the tensor-core instructions.

A layout assigns index bits to hardware bits. `_BitAssignment` keeps, for every axis, the index bits that are still free. A list of steps
(where, axis, how many) takes them, low bit first. An example is "two register bits from axis 1, three lane bits from axis 1, two from axis
0, ...". A blocked layout is such a list. So is an mma.sync fragment. Its steps are a row of the table below (PTX ISA, "Matrix fragments for
mma.m16n8k..."), and then steps that repeat the fragment over the tile.

Order of the repetitions. The low register bits of a thread are the registers of one fragment in the order in which the instruction names
them (a0, a1, ...). Above them come the repetitions along the fragment's own inner axis, which is K for both operands and N for the
accumulator. Those along the other axis (M or N) follow. An accumulator then has its registers in the order of operand A of a following
product, so attention's P needs no conversion. Warps split a tile into contiguous parts: first M, then N; operands are replicated over the
warps that split the other axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blocknb.layouts.linear import Layout, format_shape

LEAST_SCANNED = 64  # elements per warp for which an exchange between the warps pays
Step = tuple[str, int, int]  # (where: "reg" | "lane" | "warp", axis, bits to take; fewer are taken when fewer are left)


def log2(value: int) -> int:
    """The exponent of a power of two. Raises ValueError for any other int."""
    if value < 1 or value & (value - 1):
        raise ValueError(f"{value} is not a power of two")
    return value.bit_length() - 1


class _BitAssignment:
    """Assigns the index bits of a tile to hardware bits, one step after another."""

    def __init__(self, shape: Sequence[int]):
        self.shape = tuple(shape)
        self.assigned: dict[str, list[int]] = {"reg": [], "lane": [], "warp": []}
        self.free: list[list[int]] = []
        low = sum(map(log2, shape))
        for extent in shape:
            low -= log2(extent)
            self.free.append([1 << bit for bit in range(low, low + log2(extent))])

    def assign(self, where: str, axis: int, count: int, *, high: bool = False) -> int:
        """Gives up to `count` of the axis's lowest (or highest) free bits to a kind; returns how many there were."""
        left = self.free[axis]
        count = min(count, len(left))
        taken = left[len(left) - count :] if high else left[:count]
        del left[len(left) - count if high else 0 : len(left) if high else count]
        self.assigned[where] += taken
        return count

    def fill(self, where: str, axes: Iterable[int], total: int) -> None:
        """Takes bits from the axes in turn until the kind has `total`; replicates (zeros) if the tile runs out."""
        for axis in axes:
            self.assign(where, axis, max(0, total - len(self.assigned[where])))
        self.assigned[where] += [0] * (total - len(self.assigned[where]))

    def layout(self, axes: Iterable[int]) -> Layout:
        """Gives the remaining bits to the registers, axis after axis."""
        for axis in axes:
            self.assign("reg", axis, len(self.free[axis]))
        return Layout(
            self.shape, tuple(self.assigned["reg"]), tuple(self.assigned["lane"]), tuple(self.assigned["warp"])
        )


def blocked(
    shape: Sequence[int], order: Sequence[int], vec: int, num_warps: int, lanes: int = 32, warps: Sequence[int] = ()
) -> Layout:
    """The layout for memory: neighbouring threads hold neighbouring vectors.

    `order` lists the axes, fastest first. A thread holds `vec` consecutive elements along `order[0]`. Lanes, then warps continue along it
    and then along the next axes; `warps` gives another order for warps. Registers repeat this block over the rest of the tile. A tile
    smaller than the block has shorter vectors, or is replicated over the remaining lanes and warps.
    """
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"order {tuple(order)} does not list the axes of {format_shape(shape)}")
    bits = _BitAssignment(shape)
    if order:
        bits.assign("reg", order[0], log2(vec))
    bits.fill("lane", order, log2(lanes))
    bits.fill("warp", warps or order, log2(num_warps))
    return bits.layout(order)


def crosswise(shape: Sequence[int], fast: int, num_warps: int, together: int = 4) -> Layout:
    """The layout for a matrix that is contiguous along `fast` in memory and is stored along the other axis. Neighbouring lanes are
    neighbours along `fast`, and each thread holds `together` neighbours along the other axis."""
    bits = _BitAssignment(shape)
    bits.assign("reg", 1 - fast, log2(together))
    bits.fill("lane", (fast, 1 - fast), 5)
    bits.fill("warp", (fast, 1 - fast), log2(num_warps))
    return bits.layout((1 - fast, fast))


def stored_by_warp(layout: Layout, fast: int, vec: int, row: int) -> Layout | None:
    """The layout for memory in which every warp keeps its elements. A thread holds `vec` neighbours along `fast`; lanes follow along it
    up to `row` elements, and then along the other axes. A thread's highest registers hold its other elements along `fast`.

    None if warps share elements, or hold fewer than `vec` neighbours.
    """
    bits = _BitAssignment(layout.shape)
    if layout.is_replicated or any(basis & (basis - 1) for basis in layout.warp):
        return None
    bits.free = [[basis for basis in left if basis not in layout.warp] for left in bits.free]
    low = 1 << layout.dim_bits(fast).start
    if bits.free[fast][: log2(vec)] != [low << bit for bit in range(log2(vec))]:
        return None
    others = [axis for axis in reversed(range(len(layout.shape))) if axis != fast]
    bits.assign("reg", fast, log2(vec))
    bits.assign("lane", fast, min(5, log2(max(1, row // vec))))
    bits.fill("lane", (*others, fast), 5)
    bits.assigned["warp"] = list(layout.warp)
    return bits.layout((*others, fast))


def slices_within_warps(layout: Layout, axis: int) -> Layout:
    """The layout in which no slice along `axis` is spread over warps, or the same one if that takes replicas. The warps take the highest
    bits of another axis, so that each thread keeps its neighbours and each warp a block of slices."""
    mask = layout.dim_mask(axis)
    reg, lane, warp = list(layout.reg), list(layout.lane), list(layout.warp)
    for position, basis in enumerate(warp):
        if not basis & mask:
            continue
        for bits in (lane, reg):
            others = [i for i, other in enumerate(bits) if other and not other & mask]
            if others:
                i = max(others, key=lambda i: bits[i])
                warp[position], bits[i] = bits[i], basis
                break
        else:
            return layout
    return Layout(layout.shape, tuple(reg), tuple(lane), tuple(warp))


def for_scan(layout: Layout, axis: int) -> Layout:
    """The most similar layout for a scan along `axis`: a line is within one warp, or each warp has a consecutive part of it.

    Bits on the axis move along it alone, and no two by the same distance. A warp bit on the axis changes places with an idle lane bit, or
    with a register bit of another axis. The register bits of the vectors that a thread loads keep their place. If warp bits are left, they
    become the highest bits of the axis, and the others keep their order. Warps repeat the work on a tile of so few elements that an
    exchange between them would take longer.
    """
    mask = layout.dim_mask(axis)
    layout = _untangled(layout, axis)
    reg, lane, warp = list(layout.reg), list(layout.lane), list(layout.warp)
    fast = next(
        (other for other in range(len(layout.shape)) if lane[0] & layout.dim_mask(other)), len(layout.shape) - 1
    )
    vector = layout.contiguous_registers(fast).bit_length() - 1
    for position, basis in enumerate(warp):
        if not basis & mask:
            continue
        places = [(lane, i) for i, other in enumerate(lane) if not other]
        places += [(reg, i) for i, other in enumerate(reg) if i >= vector and not other & mask]
        if places:
            bits, i = places[0]
            warp[position], bits[i] = bits[i], basis
    across = [position for position, basis in enumerate(warp) if basis & mask]
    while across and layout.size >> len(across) < LEAST_SCANNED:
        reg.append(warp[across[-1]])
        warp[across.pop()] = 0
    return _warps_last(Layout(layout.shape, tuple(reg), tuple(lane), tuple(warp)), mask)


def _untangled(layout: Layout, axis: int) -> Layout:
    """The layout, or a plain one if its bits on the axis move along other axes, too, or two of them by the same distance."""
    on_axis = [basis for _, _, basis in layout.bits() if basis & layout.dim_mask(axis)]
    if len(set(on_axis)) == len(on_axis) and not any(basis & (basis - 1) for basis in on_axis):
        return layout
    order = [axis, *(other for other in reversed(range(len(layout.shape))) if other != axis)]
    return blocked(layout.shape, order, 1, layout.num_warps)


def _warps_last(layout: Layout, mask: int) -> Layout:
    """The layout with its bits in the mask dealt again: warp bits get the highest of them."""
    across = [basis for basis in layout.warp if basis & mask]
    inside = sorted(basis for basis in (*layout.reg, *layout.lane) if basis & mask)
    place = dict(zip([*inside, *across], sorted([*inside, *across]), strict=True))
    moved = (tuple(place.get(basis, basis) for basis in bases) for bases in (layout.reg, layout.lane, layout.warp))
    return Layout(layout.shape, *moved)


# -- tensor cores


@dataclass(frozen=True)
class MmaInstruction:
    """A row of the table: D[m, n] = A[m, k] B[k, n] + C[m, n] by one warp, or by as many as `warps` says.

    `operands`, `accumulators`: element types of A and B, and of C and D. `a`, `b`, `c`: the steps that assign a fragment,
    axes 0 and 1 being (M, K), (K, N) and (M, N). `arch`: the lowest compute capability, as in sm_80.
    """

    name: str
    m: int
    n: int
    k: int
    operands: tuple[str, ...]
    accumulators: tuple[str, ...]
    arch: int
    a: tuple[Step, ...]
    b: tuple[Step, ...]
    c: tuple[Step, ...]
    warps: int = 1

    def fragment_registers(self, operand: str) -> int:
        """The number of elements of a fragment of "a", "b" or "c" per thread."""
        count: int = 1 << sum(bits for where, _, bits in getattr(self, operand) if where == "reg")
        return count

    def instructions(self, m: int, n: int, k: int) -> int:
        """The number of instructions for the product of two tiles, over all warps."""
        return (m // self.m) * (n // self.n) * (k // self.k)


R, L = "reg", "lane"
_C = ((R, 1, 1), (L, 1, 2), (L, 0, 3), (R, 0, 1))  # c0 c1: neighbouring columns; c2 c3: eight rows below

MMA_TABLE = (
    MmaInstruction(
        name="m16n8k16", m=16, n=8, k=16, operands=("fp16", "bf16"), accumulators=("fp32",), arch=80,
        a=((R, 1, 1), (L, 1, 2), (L, 0, 3), (R, 0, 1), (R, 1, 1)),
        b=((R, 0, 1), (L, 0, 2), (L, 1, 3), (R, 0, 1)),
        c=_C,
    ),
    MmaInstruction(
        name="m16n8k8", m=16, n=8, k=8, operands=("fp16",), accumulators=("fp32",), arch=75,
        a=((R, 1, 1), (L, 1, 2), (L, 0, 3), (R, 0, 1)),
        b=((R, 0, 1), (L, 0, 2), (L, 1, 3)),
        c=_C,
    ),
    MmaInstruction(
        name="m16n8k8.tf32", m=16, n=8, k=8, operands=("tf32",), accumulators=("fp32",), arch=80,
        a=((L, 1, 2), (L, 0, 3), (R, 0, 1), (R, 1, 1)),
        b=((L, 0, 2), (L, 1, 3), (R, 0, 1)),
        c=_C,
    ),
    MmaInstruction(
        name="m16n8k32.s8", m=16, n=8, k=32, operands=("int8",), accumulators=("int32",), arch=80,
        a=((R, 1, 2), (L, 1, 2), (L, 0, 3), (R, 0, 1), (R, 1, 1)),
        b=((R, 0, 2), (L, 0, 2), (L, 1, 3), (R, 0, 1)),
        c=_C,
    ),
)  # fmt: skip
MMA_BY_NAME = {row.name: row for row in MMA_TABLE}


def find_mma(operand: str, accumulator: str, arch: int) -> MmaInstruction | None:
    """The widest instruction for these element types ("tf32": fp32 operands, rounded) that `arch` (80: sm_80) has."""
    rows = (row for row in MMA_TABLE if operand in row.operands and accumulator in row.accumulators)
    return max((row for row in rows if row.arch <= arch), key=lambda row: row.k, default=None)


def mma_refusal(instruction: MmaInstruction, m: int, n: int, k: int) -> str | None:
    """Why tiles of M x K and K x N cannot use the instruction, as a phrase for a note; None when they can."""
    for name, extent, least in (("M", m, instruction.m), ("N", n, instruction.n), ("K", k, instruction.k)):
        if extent < least:
            return f"{name} = {extent} is smaller than the {least} of {instruction.name}"
    return None


def choose_warps(
    shape: Sequence[int], num_warps: int, instruction: MmaInstruction | None = None, *, rows_only: bool = False
) -> tuple[int, int]:
    """How many warps split M and how many N of an accumulator tile; their product is `num_warps`.

    Minimises the rows plus columns that a warp reads from shared memory for each k. Warps share no work while there are enough fragments.
    On a tie more warps go along M. `rows_only` puts as many warps as possible along M. That suits a product whose rows are reduced, or
    whose result is operand A of another product.
    """
    least_m, least_n = (instruction.m, instruction.n) if instruction else (1, 1)
    m, n = shape
    splits = [(num_warps >> bits, 1 << bits) for bits in range(log2(num_warps) + 1)]

    def cost(split: tuple[int, int]) -> tuple[int, int, int]:
        rows, columns = max(least_m, m // split[0]), max(least_n, n // split[1])
        work = rows * columns  # grows when a split leaves warps without a part of their own
        return work, split[1] if rows_only else rows + columns, -split[0]

    return min(splits, key=cost)


def accumulator(shape: Sequence[int], instruction: MmaInstruction, warps_per_cta: tuple[int, int]) -> Layout | None:
    """The layout of the M x N accumulator, or None when the tile is smaller than the instruction."""
    return _fragments(shape, instruction.c, (instruction.m, instruction.n), warps_per_cta, inner=1)


def operand_a(shape: Sequence[int], instruction: MmaInstruction, warps_per_cta: tuple[int, int]) -> Layout | None:
    """The layout of the M x K operand, replicated over the warps that split N, or None (see `accumulator`)."""
    return _fragments(shape, instruction.a, (instruction.m, instruction.k), warps_per_cta, inner=1, shared_axis=1)


def operand_b(shape: Sequence[int], instruction: MmaInstruction, warps_per_cta: tuple[int, int]) -> Layout | None:
    """The layout of the K x N operand, replicated over the warps that split M, or None (see `accumulator`)."""
    return _fragments(shape, instruction.b, (instruction.k, instruction.n), warps_per_cta, inner=0, shared_axis=0)


def stacked_operand_b(shape: Sequence[int], instruction: MmaInstruction, stacked: int) -> Layout | None:
    """The layout of K x N operands below each other, one per warp; `shape` is that of all of them."""
    one = operand_b((shape[0] // stacked, shape[1]), instruction, (1, 1))
    if one is None:
        return None
    return Layout(tuple(shape), one.reg, one.lane, tuple(one.size << bit for bit in range(log2(stacked))))


def neighbours_along_k(layout: Layout, axis: int, run: int) -> Layout:
    """The layout of an operand of m16n8k16 whose K is renumbered, so that each thread holds `run` neighbours along it.

    A product adds up along K in any order, as long as both operands have the same one. Bits 0 and 3 of the instruction's K are registers,
    bits 1 and 2 are lanes, and repetitions are registers again. So the lowest bits of the new K are registers.
    """
    return _renumbered(layout, axis, _new_places(len(layout.dim_bits(axis)), log2(run)))


def original_k(layout: Layout, axis: int, run: int) -> Layout:
    """The inverse of `neighbours_along_k`."""
    places = _new_places(len(layout.dim_bits(axis)), log2(run))
    return _renumbered(layout, axis, [places.index(bit) for bit in range(len(places))])


def _new_places(width: int, registers: int) -> list[int]:
    """For each bit of the instruction's K the bit of the renumbered K."""
    if width < registers + 2 or registers < 2:
        raise ValueError(f"{1 << registers} neighbours do not fit {1 << width} elements along K")
    return [0, registers, registers + 1, *range(1, registers), *range(registers + 2, width)]


def _renumbered(layout: Layout, axis: int, places: Sequence[int]) -> Layout:
    """The layout with the bits of an axis moved to other places."""
    low, others = layout.dim_bits(axis).start, ~layout.dim_mask(axis)

    def moved(bases: Iterable[int]) -> tuple[int, ...]:
        return tuple(
            (basis & others) | sum(1 << low + place for bit, place in enumerate(places) if basis >> low + bit & 1)
            for basis in bases
        )

    return Layout(layout.shape, moved(layout.reg), moved(layout.lane), moved(layout.warp))


def _fragments(
    shape: Sequence[int],
    steps: tuple[Step, ...],
    least: tuple[int, int],
    warps_per_cta: tuple[int, int],
    *,
    inner: int,
    shared_axis: int | None = None,
) -> Layout | None:
    """Assigns the bits of one fragment, then those of the warps' parts, then the repetitions, the `inner` axis first.

    `shared_axis` is the K of an operand: warps do not split it, and those that split the accumulator there replicate.
    """
    if any(extent < needed for extent, needed in zip(shape, least, strict=True)):
        return None
    bits = _BitAssignment(shape)
    for where, axis, count in steps:
        bits.assign(where, axis, count)
    warp = list(bits.assigned["warp"])
    for axis, warps in enumerate(warps_per_cta):
        bits.assigned["warp"] = []
        if axis != shared_axis:
            bits.assign("warp", axis, log2(warps), high=True)
        warp += bits.assigned["warp"] + [0] * (log2(warps) - len(bits.assigned["warp"]))
    bits.assigned["warp"] = warp
    return bits.layout((inner, 1 - inner))


# -- products without tensor cores


STEPS, UNROLLED = 4, 512  # steps along K in one iteration; multiply-adds of a thread that are written without a loop


def steps_at_once(accumulators: int, k: int) -> int:
    """The steps along K that a product by plain FMAs takes per iteration: all of them, if a thread has few accumulators."""
    return k if accumulators * k <= UNROLLED else min(STEPS, k)


def fma_accumulator(shape: Sequence[int], num_warps: int) -> Layout:
    """The accumulator of a product by plain FMAs: up to 4 x 4 elements per thread, 4 x 8 threads per warp.

    With r rows and c columns a thread does r * c FMAs on r + c operands, so the block is square. Eight lanes along N read 32 neighbouring
    columns of B. The other lanes read neighbouring rows of A, which a swizzle keeps in different banks. A small tile has smaller blocks, so
    that no two threads compute the same element.
    """
    bits = _BitAssignment(shape)
    each = max(0, log2(shape[0] * shape[1]) - 5 - log2(num_warps))  # index bits for the registers of a thread
    columns = bits.assign("reg", 1, min(2, -(-each // 2)))
    bits.assign("lane", 1, 3)
    bits.assign("lane", 0, 2)
    bits.assign("reg", 0, min(2, each - columns))
    bits.fill("lane", (1, 0), 5)
    along_m, along_n = choose_warps([1 << len(left) for left in bits.free], num_warps)
    bits.assign("warp", 0, log2(along_m))
    bits.assign("warp", 1, log2(along_n))
    bits.fill("warp", (0, 1), log2(num_warps))
    return bits.layout((1, 0))
