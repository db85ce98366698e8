"""Counter-based random numbers: `rand(seed, offsets)` depends only on its arguments, and programs share no state.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Ten rounds multiply and mix a
counter of four words under a key of two words, the halves of the seed. The offset is in the first two words of the counter. The numbers
are bit for bit those of Triton. For a float in [0, 1), a negative word x becomes -x - 1, and the word is then scaled.
"""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.library import inline
from blocknb.language.types import int32, int64, uint32, uint64

ROUNDS: constexpr = 10

# (round multipliers, key increments) for words of 32 and 64 bits: the paper's constants.
MULTIPLIERS_32 = (0xD2511F53, 0xCD9E8D57)
WEYL_32 = (0x9E3779B9, 0xBB67AE85)
MULTIPLIERS_64 = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL_64 = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


@inline
def philox_impl(c0, c1, c2, c3, k0, k1, n_rounds: constexpr = ROUNDS):
    """Runs rounds of Philox on a counter of four words with a key of two, all uint32 or all uint64, and returns four words.

    Example:
        k = tl.full((1,), 0, tl.uint32)
        a, b, c, d = tl.philox_impl(k, k, k, k, k, k)
        a.to(tl.int64)  # [1713891541]
    """
    tl.static_assert(c0.dtype == uint32 or c0.dtype == uint64, "the words of philox_impl are uint32 or uint64")
    multipliers = MULTIPLIERS_32 if c0.dtype == uint32 else MULTIPLIERS_64
    weyl = WEYL_32 if c0.dtype == uint32 else WEYL_64
    for _ in tl.static_range(n_rounds):
        first, third = c0, c2
        c0 = tl.umulhi(third, multipliers[1]) ^ c1 ^ k0
        c1 = third * multipliers[1]
        c2 = tl.umulhi(first, multipliers[0]) ^ c3 ^ k1
        c3 = first * multipliers[0]
        k0 = k0 + weyl[0]
        k1 = k1 + weyl[1]
    return c0, c1, c2, c3


@inline
def philox(seed, c0, c1, c2, c3, n_rounds: constexpr = ROUNDS):
    """Returns four words of random bits for a seed, whose halves are the key, and a counter of four words of 32 or 64 bits.

    The words of the counter have one dtype, of 32 or 64 bits.

    Example:
        a, b, c, d = tl.philox(0, tl.arange(0, 1), 0, 0, 0)
        a.to(tl.int64)  # [1713891541]
    """
    seed = tl.to_tensor(seed)
    tl.static_assert(not seed.dtype.is_ptr(), "the seed is a pointer; load it first: tl.load(seed_ptr)")
    tl.static_assert(seed.dtype.is_int(), "the seed must be an integer")
    seed = seed.to(uint64)
    c0 = tl.to_tensor(c0)
    c1 = tl.to_tensor(c1)
    c2 = tl.to_tensor(c2)
    c3 = tl.to_tensor(c3)
    if c0.dtype.primitive_bitwidth == 32:
        words = philox_impl(
            c0.to(uint32),
            c1.to(uint32),
            c2.to(uint32),
            c3.to(uint32),
            seed.to(uint32),
            (seed >> 32).to(uint32),
            n_rounds,
        )
    else:
        tl.static_assert(c0.dtype.primitive_bitwidth == 64, "the words of philox have 32 or 64 bits")
        words = philox_impl(
            c0.to(uint64), c1.to(uint64), c2.to(uint64), c3.to(uint64), seed, tl.full((), 0, uint64), n_rounds
        )
    return words


@inline
def randint4x(seed, offset, n_rounds: constexpr = ROUNDS):
    """Returns four tiles of random uint32 from one run of Philox, which is the cheapest way to get many.

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        a, b, c, d = tl.randint4x(0, tl.arange(0, 1))
        a.to(tl.int64)  # [1713891541]
    """
    offset = tl.to_tensor(offset)
    low = offset.to(uint32)
    zero = low * 0
    high = (offset >> 32).to(uint32) if offset.dtype.primitive_bitwidth > 32 else zero
    return philox(seed, low, high, zero, zero, n_rounds)


@inline
def randint(seed, offset, n_rounds: constexpr = ROUNDS):
    """Returns a tile of random uint32, one per offset.

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        tl.randint(0, tl.arange(0, 1)).to(tl.int64)  # [1713891541]
    """
    words = randint4x(seed, offset, n_rounds)
    return words[0]


@inline
def uint_to_uniform_float(x):
    """Converts random words of 32 or 64 bits to fp32 in [0, 1). A negative word x counts as -x - 1.

    Example:
        tl.uint_to_uniform_float(tl.full((), 2**30, tl.uint32))  # 0.5
    """
    tl.static_assert(
        x.dtype.is_int() and x.dtype.primitive_bitwidth >= 32,
        f"it takes integers of 32 or 64 bits, not {x.dtype}; tl.randint makes such words",
    )
    x = x.to(int32) if x.dtype.primitive_bitwidth == 32 else x.to(int64)
    scale = 4.6566127342e-10 if x.dtype == int32 else 1.0842020432385337e-19
    return tl.where(x < 0, -x - 1, x) * scale


@inline
def rand(seed, offset, n_rounds: constexpr = ROUNDS):
    """Returns a tile of fp32, uniform in [0, 1), one per offset.

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        x = tl.rand(0, tl.arange(0, 2))
        tl.min(x) >= 0  # True
    """
    return uint_to_uniform_float(randint(seed, offset, n_rounds))


@inline
def rand4x(seed, offsets, n_rounds: constexpr = ROUNDS):
    """Returns four tiles of fp32, uniform in [0, 1).

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        a, b, c, d = tl.rand4x(0, tl.arange(0, 2))
        tl.max(d) < 1  # True
    """
    i1, i2, i3, i4 = randint4x(seed, offsets, n_rounds)
    return uint_to_uniform_float(i1), uint_to_uniform_float(i2), uint_to_uniform_float(i3), uint_to_uniform_float(i4)


@inline
def pair_uniform_to_normal(u1, u2):
    """Converts two uniform numbers to two independent normal numbers by the Box-Muller transform.

    The arguments are fp32 tiles of one shape.

    Example:
        a, b = tl.pair_uniform_to_normal(tl.full((), 0.5, tl.float32), tl.full((), 0.25, tl.float32))
        b  # 1.17741
    """
    radius = tl.sqrt(-2.0 * tl.log(tl.maximum(1.0e-7, u1)))
    angle = 6.283185307179586 * u2
    return radius * tl.cos(angle), radius * tl.sin(angle)


@inline
def randn(seed, offset, n_rounds: constexpr = ROUNDS):
    """Returns a tile of fp32 from the normal distribution with mean 0 and variance 1, one per offset.

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        x = tl.randn(0, tl.arange(0, 2))
        tl.sum(x * x) < 60  # True
    """
    i1, i2, _, _ = randint4x(seed, offset, n_rounds)
    n1, _ = pair_uniform_to_normal(uint_to_uniform_float(i1), uint_to_uniform_float(i2))
    return n1


@inline
def randn4x(seed, offset, n_rounds: constexpr = ROUNDS):
    """Returns four tiles of fp32 from the normal distribution with mean 0 and variance 1.

    `offset` is an integer tile or scalar and gives the shape. `seed` is an integer scalar. Equal seeds and offsets give equal numbers.

    Example:
        a, b, c, d = tl.randn4x(0, tl.arange(0, 2))
        tl.sum(a * a) < 60  # True
    """
    u1, u2, u3, u4 = rand4x(seed, offset, n_rounds)
    n1, n2 = pair_uniform_to_normal(u1, u2)
    n3, n4 = pair_uniform_to_normal(u3, u4)
    return n1, n2, n3, n4
