"""Conversions: how the elements of a tile get from one layout to another, and what that costs.

Both layouts are linear, so "where does my element come from?" has a linear answer: for each hardware bit of the
destination a set of hardware bits of the source, found by one elimination. Which bits it takes decides the kind:

* only register bits move: *rename*, which is free, a permutation of values known when compiling;
* lane bits move: *shuffle*, within each warp;
* warp bits move: *shared*, a store and a load of shared memory with a barrier in between (also where shuffling, though
  possible, costs more).

If replicas offer several sources, the nearest one counts: the own thread if possible, else the own warp. Linearity makes this choice exact:
all places have a source that near if and only if each bit has one.

A shuffle instruction lets a lane choose the source lane but not the source register: the source lane must publish the right register. So
each thread permutes its registers before and after the shuffle:

    1. every thread permutes its registers: published[k] = source[k ^ P(thread)]
    2. round by round: arrived[r] = published[source_r] of lane (F(thread) ^ flip_r)
    3. every thread permutes again: result[q] = arrived[q ^ T(lane)]

P, F and T are linear. If two lanes need different registers of one lane in the same round, T moves them to different rounds. P then makes
each lane publish the register that its reader needs.

Elements of 8 or 16 bits travel together if both layouts have them in one thread: the steps then move words of 32 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import numpy as np

from blocknb.layouts import gf2
from blocknb.layouts.linear import Layout, collect, distribute
from blocknb.layouts.shared import SharedLayout, keeps_sectors, matrix_cost, row_major, swizzled, vector_cost

# Rough cycles on an SM, whose warps share one shuffle and shared-memory pipe.
SELECT_CYCLES = 2  # of a warp: a partition of the SM selects 16 lanes per cycle
#: Of a shuffle in that pipe: a wavefront and an instruction, as `access_price` counts them. The CUDA C++ Programming Guide (arithmetic
#: instructions, throughput) has 32 results per cycle and SM. Eleven kernels of flash-linear-attention convert 64 x 64 floats. With 32
#: shuffles and 128 selects they took 0.76 to 0.97 of the time through shared memory on an H200.
SHUFFLE_CYCLES = 2
PARTITIONS = 4  # of an SM; a warp stays in one
SHUFFLE_LATENCY = 25
SHARED_LATENCY = 90  # a store and a load of 25 to 30 cycles each, and the barriers around them


@dataclass(frozen=True)
class Select:
    """Registers r and r ^ `flip` swap where an odd number of bits is set in `lane & lane_mask`, `warp & warp_mask`."""

    lane_mask: int
    warp_mask: int
    flip: int


@dataclass(frozen=True)
class Round:
    """Register number `source` travels; its lane is (the shuffle's linear part of the reader's thread) ^ `flip`.

    Not `moves`: each lane reads its own value, so no instruction is needed.
    """

    source: int
    flip: int
    moves: bool


@dataclass(frozen=True)
class Shuffle:
    """The three steps of a shuffle, in order (see the module's text): `before`, one round a register, `after`.

    A reader's source lane is the XOR of `lane` and `warp` over the set bits of its lane and warp, and the round's flip. `packed`: register
    bits of the source and of the target whose elements share a word of 32 bits. The steps then number words, by the other register bits.
    """

    before: tuple[Select, ...]
    rounds: tuple[Round, ...]
    after: tuple[Select, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]
    packed: tuple[tuple[int, int], ...] = ()

    @property
    def num_shuffles(self) -> int:
        """Shuffle instructions for elements of up to 32 bits."""
        return sum(step.moves for step in self.rounds)

    @property
    def num_selects(self) -> int:
        """Select instructions for elements of up to 32 bits. LLVM removes those whose results no round publishes."""
        count = len(self.after) * len(self.rounds)
        needed = {step.source for step in self.rounds}
        for stage in reversed(self.before):
            count += len(needed)
            needed |= {register ^ stage.flip for register in needed}
        return count

    def words(self, layout: Layout, target: bool) -> list[list[int]]:
        """The registers of each word, low bits first, in the layout of the source or of the target."""
        packed = [1 << pair[target] for pair in self.packed]
        others = [1 << bit for bit in range(len(layout.reg)) if 1 << bit not in packed]
        return [[word | part for part in gf2.combinations(packed)] for word in gf2.combinations(others)]

    @property
    def is_butterfly(self) -> bool:
        """Whether every reader's source lane is its own lane ^ the round's flip (`shfl.sync.bfly`)."""
        return self.lane == _identity(len(self.lane)) and not any(self.warp)


@dataclass(frozen=True)
class Conversion:
    """How the elements of a tile move from the layout `source` to the layout `target`.

    `kind`: "none" (equal), "rename", "shuffle" or "shared". `registers` (none, rename): for each register of the target
    the source's. `shuffle`: the steps. For "shared" ask `choose_shared`.
    """

    kind: str
    source: Layout
    target: Layout
    registers: tuple[int, ...] | None = None
    shuffle: Shuffle | None = None

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Converts an array of shape [warps, lanes, registers] in NumPy, as generated code does."""
        if self.registers is not None:
            return values[:, :, list(self.registers)]
        if self.shuffle is None:
            return distribute(collect(values, self.source), self.target)
        warps, lanes = np.arange(values.shape[0])[:, None], np.arange(values.shape[1])[None, :]
        from_lane = _linear(self.shuffle.lane, lanes) ^ _linear(self.shuffle.warp, warps)
        result = np.empty((*values.shape[:2], self.target.num_registers), values.dtype)
        sources, targets = self.shuffle.words(self.source, False), self.shuffle.words(self.target, True)
        for leaving, arriving in zip(zip(*sources, strict=True), zip(*targets, strict=True), strict=True):
            published = _swap(values[:, :, leaving], self.shuffle.before)
            arrived = [published[warps, from_lane ^ step.flip, step.source] for step in self.shuffle.rounds]
            result[:, :, arriving] = _swap(np.stack(arrived, axis=-1), self.shuffle.after)
        return result


def _swap(values: np.ndarray, stages: Sequence[Select]) -> np.ndarray:
    warps, lanes, registers = np.ogrid[tuple(map(slice, values.shape))]
    for stage in stages:
        lane_bits, warp_bits = _identity(lanes.size.bit_length() - 1), _identity(warps.size.bit_length() - 1)
        flip_by_lane = _linear([stage.flip if stage.lane_mask & bit else 0 for bit in lane_bits], lanes)
        flip_by_warp = _linear([stage.flip if stage.warp_mask & bit else 0 for bit in warp_bits], warps)
        values = values[warps, lanes, registers ^ flip_by_lane ^ flip_by_warp]
    return values


def _linear(columns: Sequence[int], vectors: np.ndarray) -> np.ndarray:
    result = np.zeros_like(vectors)
    for position, column in enumerate(columns):
        result = result ^ (vectors >> position & 1) * column
    return result


def _identity(size: int) -> tuple[int, ...]:
    return tuple(1 << position for position in range(size))


@cache
def plan(source: Layout, target: Layout, element_bits: int = 32) -> Conversion:
    """The cheapest conversion. Raises ValueError if the layouts differ in their tile or number of threads."""
    found = plan_in_warps(source, target, element_bits)
    if found.shuffle is None:
        return found
    cycles = _shuffle_price(source, target, found.shuffle, element_bits)
    if cycles > SHARED_LATENCY and cycles > _shared_price(source, target, element_bits):
        return Conversion("shared", source, target)
    return found


@cache
def plan_in_warps(source: Layout, target: Layout, element_bits: int = 32) -> Conversion:
    """The conversion without shared memory, if there is one. Raises ValueError as `plan` does."""
    same = [source.shape, len(source.lane), len(source.warp)] == [target.shape, len(target.lane), len(target.warp)]
    if not same:
        raise ValueError(f"no conversion between {source} and {target}: they differ in shape or in threads")
    if source == target:
        return Conversion("none", source, target, registers=tuple(range(source.num_registers)))
    origins = _Origins.find(source, target)
    if origins is None:
        return Conversion("shared", source, target)
    if origins.is_own_thread():
        registers = tuple(gf2.apply(origins.reg_reg, register) for register in range(target.num_registers))
        return Conversion("rename", source, target, registers=registers)
    shuffle = _cheapest_shuffle(source, target, origins, element_bits)
    return Conversion("shuffle" if shuffle else "shared", source, target, shuffle=shuffle)


@cache
def is_close(source: Layout, target: Layout, element_bits: int) -> bool:
    """Whether `plan` takes shared memory although shuffles have a lower price if their instructions count nothing."""
    steps = plan_in_warps(source, target, element_bits).shuffle
    if steps is None or plan(source, target, element_bits).kind != "shared":
        return False
    return _shuffle_price(source, target, steps, element_bits, 1) <= _shared_price(source, target, element_bits)


@cache
def within_warps(source: Layout, target: Layout) -> bool:
    """Whether each warp has the same elements in both layouts, and no other warp has them."""
    own = gf2.Span((*source.reg, *source.lane))
    same = gf2.rank((*source.reg, *source.lane)) == gf2.rank((*target.reg, *target.lane))
    bases = (*target.reg, *target.lane, *(a ^ b for a, b in zip(source.warp, target.warp, strict=True)))
    alone = not source.replicated_warp_bits and not target.replicated_warp_bits
    return same and alone and all(basis in own for basis in bases)


class _WordBits(NamedTuple):
    """The bits of a place, as in a Layout, without those register bits whose elements share a word."""

    reg: tuple[int, ...]
    lane: tuple[int, ...]
    warp: tuple[int, ...]


@dataclass
class _Origins:
    """For each bit of a place in the target, the lane bits and register bits of its origin; the warp is the own one.

    The first half of a name is the target's bit, the second the source's. `kernel`: (lanes, registers) that add nothing
    to an index in the source, the freedom that its replicas give.
    """

    lane_lane: list[int] = field(default_factory=list)
    lane_reg: list[int] = field(default_factory=list)
    warp_lane: list[int] = field(default_factory=list)
    warp_reg: list[int] = field(default_factory=list)
    reg_lane: list[int] = field(default_factory=list)
    reg_reg: list[int] = field(default_factory=list)
    kernel: list[tuple[int, int]] = field(default_factory=list)

    @staticmethod
    def find(source: Layout | _WordBits, target: Layout | _WordBits) -> _Origins | None:
        """Own thread where it can be, else own warp; None when some element is only in other warps."""
        bits = len(source.reg)
        in_thread = gf2.Span(source.reg)
        in_warp = gf2.Span((*source.reg, *source.lane))
        origins = _Origins(kernel=[(mask >> bits, mask & (1 << bits) - 1) for mask in in_warp.kernel])

        def locate(index: int, lanes: list[int], registers: list[int]) -> bool:
            mask = in_thread.solve(index)
            if mask is None:
                mask = in_warp.solve(index)
            if mask is None:
                return False
            lanes.append(mask >> bits)
            registers.append(mask & (1 << bits) - 1)
            return True

        for position, (index, own) in enumerate(zip(target.lane, source.lane, strict=True)):
            if index ^ own in in_thread:
                locate(index ^ own, origins.lane_lane, origins.lane_reg)
                origins.lane_lane[-1] ^= 1 << position
            elif not locate(index, origins.lane_lane, origins.lane_reg):
                return None
        for index, own in zip(target.warp, source.warp, strict=True):
            if not locate(index ^ own, origins.warp_lane, origins.warp_reg):
                return None
        for index in target.reg:
            if not locate(index, origins.reg_lane, origins.reg_reg):
                return None
        return origins

    def is_own_thread(self) -> bool:
        """Whether every register comes from the same thread, and from the same register in all threads."""
        still = (*self.lane_reg, *self.warp_lane, *self.warp_reg, *self.reg_lane)
        return tuple(self.lane_lane) == _identity(len(self.lane_lane)) and not any(still)


def _cheapest_shuffle(source: Layout, target: Layout, origins: _Origins, element_bits: int) -> Shuffle | None:
    """The steps for single elements or, if that costs less, for words of several elements; None if neither exists.

    Shuffles of words need more registers than buffers in shared memory, which they displace, and the price ignores that."""
    found = [_shuffle(origins)]
    # The number of warps stands in for the register pressure, which is unknown here: products have four warps or more, and their epilogues
    # spilled. A tf32 product on an H100 lost a third of its speed.
    if source.num_warps >= PARTITIONS:
        return found[0]
    common = [(source.reg.index(basis), target.reg.index(basis)) for basis in source.reg if basis in target.reg]
    common.sort(key=sum)  # loads and casts pair neighbouring registers
    for count in range(1, (32 // element_bits).bit_length() if element_bits < 32 else 0):
        packed = tuple(common[:count])
        words = _Origins.find(*(_unpacked(x, [pair[i] for pair in packed]) for i, x in enumerate((source, target))))
        if words is not None and (steps := _shuffle(words)) is not None:
            found.append(replace(steps, packed=packed))
    ways = [way for way in found if way is not None]
    return min(ways, key=lambda way: _shuffle_price(source, target, way, element_bits), default=None)


def _unpacked(layout: Layout, packed: Sequence[int]) -> _WordBits:
    registers = tuple(basis for position, basis in enumerate(layout.reg) if position not in packed)
    return _WordBits(registers, layout.lane, layout.warp)


def _shuffle(origins: _Origins) -> Shuffle | None:
    """The three steps, or None where lanes want more different registers of one lane than staggering can part."""
    staggered = _stagger(origins)
    if staggered is None:
        return None
    lane_lane, lane_reg, late = staggered
    # P: what a source lane must publish. Lanes that read it agree by now, so "reader's lane -> register" factors
    # through "reader's lane -> source lane"; on lanes without a reader it is 0.
    pairs = list(zip(lane_lane, lane_reg, strict=True)) + [(1 << position, 0) for position in range(len(lane_lane))]
    span, known = gf2.Span(), [registers for _, registers in pairs]
    for lanes, _ in pairs:
        span.add(lanes)
    publish = [gf2.apply(known, span.solve(1 << position) or 0) for position in range(len(lane_lane))]
    publish_warp = [
        gf2.apply(publish, lanes) ^ registers
        for lanes, registers in zip(origins.warp_lane, origins.warp_reg, strict=True)
    ]
    still = tuple(lane_lane) == _identity(len(lane_lane)) and not any(origins.warp_lane)
    rounds = []
    for register in range(1 << len(origins.reg_reg)):
        flip = gf2.apply(origins.reg_lane, register)
        source = gf2.apply(origins.reg_reg, register) ^ gf2.apply(publish, flip)
        rounds.append(Round(source, flip, moves=not still or flip != 0))
    after = _selects(late, [0] * len(origins.warp_lane))
    before = _selects(publish, publish_warp)
    return Shuffle(before, tuple(rounds), after, tuple(lane_lane), tuple(origins.warp_lane))


def _stagger(origins: _Origins) -> tuple[list[int], list[int], list[int]] | None:
    """Lane -> source lane, lane -> source register and T, such that readers of one lane want one register.

    A direction among lanes (a kernel vector of lane -> source lane) in which the source lane stays but its register changes is in conflict.
    There are two ways to resolve it. One walks through the rounds along it, in a register bit of the target that changes the source lane.
    The other turns to a replica in another lane. Each resolution uses up one independent direction of source lanes. Every kernel vector has
    a lane bit of its own, its highest, which carries the change.
    """
    lane_lane, lane_reg = list(origins.lane_lane), list(origins.lane_reg)
    late = [0] * len(lane_lane)
    lanes = gf2.Span(lane_lane)
    conflicting, resolved = gf2.Span(), []
    rounds = zip(origins.reg_lane, origins.reg_reg, (1 << bit for bit in range(len(origins.reg_reg))), strict=True)
    ways = iter([*rounds, *((replica, registers, 0) for replica, registers in origins.kernel)])
    for direction in list(lanes.kernel):
        registers = gf2.apply(origins.lane_reg, direction)
        mask = conflicting.solve(registers)
        if mask is None:
            way = next((way for way in ways if lanes.add(way[0])), None)
            if way is None:
                return None
            conflicting.add(registers)
            resolved.append(way)
            mask = 1 << len(resolved) - 1
        carrier = direction.bit_length() - 1
        for number, (lane, register, late_bit) in enumerate(resolved):
            if mask >> number & 1:
                lane_lane[carrier] ^= lane
                lane_reg[carrier] ^= register
                late[carrier] ^= late_bit
    return lane_lane, lane_reg, late


def _selects(lane: Sequence[int], warp: Sequence[int]) -> tuple[Select, ...]:
    """Stages that XOR a register number by a linear function of the thread: one for each independent flip."""
    columns = [*lane, *warp]
    span = gf2.Span()
    flips = [column for column in columns if span.add(column)]
    span = gf2.Span(flips)
    stages = []
    masks = [span.solve(column) or 0 for column in columns]
    for number, flip in enumerate(flips):
        thread = sum(1 << position for position, mask in enumerate(masks) if mask >> number & 1)
        stages.append(Select(thread & (1 << len(lane)) - 1, thread >> len(lane), flip))
    return tuple(stages)


# -- prices


def price(source: Layout, target: Layout, element_bits: int = 32) -> int:
    """The approximate cycles of the conversion for a CTA alone on a multiprocessor."""
    conversion = plan(source, target, element_bits)
    if conversion.shuffle is not None:
        return round(_shuffle_price(source, target, conversion.shuffle, element_bits))
    return round(_shared_price(source, target, element_bits)) if conversion.kind == "shared" else 0


def _shuffle_price(
    source: Layout, target: Layout, shuffle: Shuffle, element_bits: int, shuffle_cycles: int = SHUFFLE_CYCLES
) -> float:
    words = max(1, element_bits // 32)  # registers per element
    packed = len(shuffle.packed)  # log2 of the elements per register
    selects = shuffle.num_selects + (source.num_registers >> packed if packed else 0)
    latency = SHUFFLE_LATENCY if shuffle.num_shuffles else 0
    rounds = max(1, source.num_warps / PARTITIONS)
    shuffles = source.num_warps * shuffle.num_shuffles * shuffle_cycles
    return latency + words * (shuffles + rounds * SELECT_CYCLES * selects)


def _shared_price(source: Layout, target: Layout, element_bits: int) -> float:
    element_bits = max(8, element_bits)
    shared = choose_shared(source, target, element_bits)
    return SHARED_LATENCY + source.num_warps * (
        access_price(source, shared, element_bits) + access_price(target, shared, element_bits)
    )


def access_price(layout: Layout, shared: SharedLayout, element_bits: int, matrix: bool = False) -> int:
    """Wavefronts plus instructions of a warp that moves the layout to or from a buffer. `matrix`: by ldmatrix if possible."""
    cost = matrix_cost(layout, shared, element_bits) if matrix else None
    return sum(cost or vector_cost(layout, shared, element_bits))


# -- the shared-memory buffer


@cache
def choose_shared(
    source: Layout,
    target: Layout,
    element_bits: int,
    *,
    store_matrix: bool = False,
    load_matrix: bool = False,
    copied: bool = False,
) -> SharedLayout:
    """The layout of the buffer through which a conversion goes: the least wavefronts and instructions on both sides.

    `store_matrix`, `load_matrix`: the target has stmatrix (sm_90) and ldmatrix (sm_75), and they may be used. `copied`: asynchronous
    copies may fill the buffer. Of equal layouts, one that keeps the sectors of the L2 cache whole is then better (see `keeps_sectors`).
    Candidates are the plain and swizzled orders, and buffers made for the two layouts (see `_made_to_measure`).
    """
    element_bits = max(8, element_bits)
    candidates = _made_to_measure(source, target, element_bits)
    for axis in reversed(range(len(source.shape))):
        order = [axis, *(other for other in reversed(range(len(source.shape))) if other != axis)]
        candidates += [swizzled(source.shape, element_bits, order, limit) for limit in (128, 64, 32)]
        candidates.append(row_major(source.shape, order))

    def cost(shared: SharedLayout) -> tuple[int, bool]:
        store = access_price(source, shared, element_bits, store_matrix)
        split = copied and not keeps_sectors(source, shared, element_bits)
        return store + access_price(target, shared, element_bits, load_matrix), split

    return min(dict.fromkeys(candidates or [row_major(source.shape)]), key=cost)


def _made_to_measure(source: Layout, target: Layout, element_bits: int) -> list[SharedLayout]:
    """Buffers without conflicts for vectors of each length on either side, where every bit moves one index bit."""
    if any(basis & (basis - 1) for layout in (source, target) for _, _, basis in layout.bits()):
        return []
    candidates = []
    for one, other in ((source, target), (target, source)):
        for bits in range(len(one.reg) + 1):
            if element_bits << bits > 128:
                break
            common = 0
            while common < min(bits, len(other.reg)) and one.reg[common] == other.reg[common]:
                common += 1
            candidates.append(_spread(one, other, one.reg[:bits], common, element_bits))
    return candidates


def _spread(one: Layout, other: Layout, vector: Sequence[int], common: int, element_bits: int) -> SharedLayout:
    """A buffer in which `vector` of one layout, of which the other knows the first `common` bits, lies contiguously.

    The lanes that are served together on each side must differ in the low offset bits, those of one wavefront. Lane bits that both sides
    have get one each. A lane bit of one side alone gets a high offset bit of its own. In the low bits it shares one with a lane bit of the
    other side. This XOR is the swizzle.
    """
    low_bits = (1024 // element_bits).bit_length() - 1  # offset bits within the 128 bytes of a wavefront

    def together(layout: Layout, vector_bits: int) -> list[int]:
        lane_bytes = element_bits // 8 << vector_bits
        bits = 5 - max(0, lane_bytes.bit_length() - 3)
        return [basis for basis in dict.fromkeys(layout.lane[:bits]) if basis]

    lanes_one, lanes_other = together(one, len(vector)), together(other, common)
    first = [basis for basis in lanes_one if basis not in vector]
    second = [basis for basis in lanes_other if basis not in vector and basis not in first]
    low = [*vector, *[basis for basis in first if basis in lanes_other]]
    alone = [basis for basis in first if basis not in lanes_other]
    partners = dict(zip(second, alone, strict=False))
    low += alone
    unpaired = second[len(alone) :]
    low += unpaired[: max(0, low_bits - len(low))]
    rest = [1 << bit for bit in range(one.index_bits) if 1 << bit not in low]
    place = {basis: 1 << position for position, basis in enumerate([*low, *rest])}
    basis = [place[1 << bit] for bit in range(one.index_bits)]
    for own, partner in partners.items():
        basis[own.bit_length() - 1] ^= place[partner]
    return SharedLayout(one.shape, tuple(basis))
