"""Random numbers, against a NumPy implementation of Philox 4x32-10 in this file."""

import numpy as np
import pytest
from frontend_helpers import kernel, launch

import blocknb.language as tl

OFFSETS = np.array([0, 1, 2, 77, 12345, 2**31 - 1, -1, -(2**31)], np.int32)
SEEDS = [0, 1, 42, -1, 2**31 + 5, 2**40 + 3, 2**63 - 1]


def philox(counter, key, bits=32, rounds=10):
    """Salmon et al. (SC 2011), on Python integers."""
    m, w = {
        32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
        64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
    }[bits]
    mask, (k0, k1) = (1 << bits) - 1, key
    for _ in range(rounds):
        p, q = m[0] * counter[0], m[1] * counter[2]
        counter = ((q >> bits) ^ counter[1] ^ k0, q & mask, (p >> bits) ^ counter[3] ^ k1, p & mask)
        k0, k1 = (k0 + w[0]) & mask, (k1 + w[1]) & mask
    return counter


def words(seed, offsets, rounds=10):
    key = (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF)
    rows = [
        philox(
            (int(o) & 0xFFFFFFFF, int(o) >> 32 & 0xFFFFFFFF if offsets.itemsize == 8 else 0, 0, 0), key, rounds=rounds
        )
        for o in offsets
    ]
    return np.array(rows, np.uint64).astype(np.uint32).T


def uniform(x):
    x = x.view(np.int32)
    return np.where(x < 0, -x - 1, x).astype(np.float32) * np.float32(4.6566127342e-10)


def normal(u1, u2):
    radius = np.sqrt(-2 * np.log(np.maximum(np.float64(np.float32(1e-7)), u1)))
    angle = (np.float32(6.283185307179586) * u2).astype(np.float64)
    return radius * np.cos(angle), radius * np.sin(angle)


def test_philox_reference_gives_the_known_answers_of_its_authors():
    """From the kat_vectors file of Random123."""
    assert philox((0, 0, 0, 0), (0, 0)) == (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)
    assert philox((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2) == (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("offsets", [OFFSETS, OFFSETS.astype(np.int64) * 3_000_000_019], ids=["i32", "i64"])
def test_randint4x_equals_philox_bit_for_bit(seed, offsets):
    @kernel
    def k(out, offsets, seed):
        i = tl.arange(0, 8)
        a, b, c, d = tl.randint4x(seed, tl.load(offsets + i))
        tl.static_assert(a.dtype == tl.uint32)
        tl.store(out + i, a)
        tl.store(out + 8 + i, b)
        tl.store(out + 16 + i, c)
        tl.store(out + 24 + i, d)

    out = np.zeros(32, np.uint32)
    launch(k, 1, out=out, offsets=offsets, seed=seed)
    np.testing.assert_array_equal(out.reshape(4, 8), words(seed, offsets))


def test_rand_maps_negative_bits_and_stays_below_one():
    @kernel
    def k(out, offsets, seed):
        i = tl.arange(0, 8)
        o = tl.load(offsets + i)
        tl.store(out + i, tl.rand(seed, o))
        a, b, c, d = tl.rand4x(seed, o, 7)
        tl.store(out + 8 + i, a)
        tl.store(out + 16 + i, b)
        tl.store(out + 24 + i, c)
        tl.store(out + 32 + i, d)
        tl.store(out + 40 + i, tl.uint_to_uniform_float(tl.full((8,), 0x80000000, tl.uint32)))

    out = np.zeros((6, 8), np.float32)
    launch(k, 1, out=out.reshape(-1), offsets=OFFSETS, seed=1234)
    np.testing.assert_array_equal(out[0], uniform(words(1234, OFFSETS)[0]))
    np.testing.assert_array_equal(out[1:5], uniform(words(1234, OFFSETS, rounds=7)))
    assert (out[5] == np.nextafter(np.float32(1), np.float32(0))).all()


def test_randn_is_box_muller_of_the_first_two_words():
    @kernel
    def k(out, seed):
        i = tl.arange(0, 1024)
        tl.store(out + i, tl.randn(seed, i))
        a, b, c, d = tl.randn4x(seed, i)
        tl.store(out + 1024 + i, a)
        tl.store(out + 2048 + i, b)
        tl.store(out + 3072 + i, c)
        tl.store(out + 4096 + i, d)

    out = np.zeros((5, 1024), np.float32)
    launch(k, 1, out=out.reshape(-1), seed=9)
    u = uniform(words(9, np.arange(1024, dtype=np.int32)))
    expected = [*normal(u[0], u[1]), *normal(u[2], u[3])]
    np.testing.assert_allclose(out[1:], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out[0], out[1])


def test_philox_accepts_64_bit_counters():
    @kernel
    def k(out, seed):
        c = tl.arange(0, 4).to(tl.int64) * 0x123456789ABCDEF
        a, b, c, d = tl.philox(seed, c, c + 1, c + 2, c + 3, 5)
        i = tl.arange(0, 4)
        tl.store(out + i, a)
        tl.store(out + 4 + i, b)
        tl.store(out + 8 + i, c)
        tl.store(out + 12 + i, d)
        tl.store(out + 16 + i, tl.uint_to_uniform_float(a).to(tl.float64).to(tl.uint64, bitcast=True))

    out = np.zeros((5, 4), np.uint64)
    launch(k, 1, out=out.reshape(-1), seed=77)
    counters = [[(i * 0x123456789ABCDEF + j) & (2**64 - 1) for j in range(4)] for i in range(4)]
    expected = np.array([philox(c, (77, 0), 64, 5) for c in counters], np.uint64).T
    np.testing.assert_array_equal(out[:4], expected)
    x = expected[0].view(np.int64)
    folded = np.where(x < 0, -x - 1, x).astype(np.float32) * np.float32(1.0842020432385337e-19)
    np.testing.assert_array_equal(out[4].view(np.float64), folded.astype(np.float64))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_umulhi_is_the_upper_half_of_the_unsigned_product(dtype):
    @kernel
    def k(out, x, y):
        i = tl.arange(0, 8)
        tl.store(out + i, tl.umulhi(tl.load(x + i), tl.load(y + i)))

    rng, info = np.random.default_rng(0), np.iinfo(dtype)
    x, y = (rng.integers(info.min, info.max, 8, dtype, endpoint=True) for _ in range(2))
    x[:2], y[:2] = info.max, [info.max, info.min]
    out = np.zeros(8, dtype)
    launch(k, 1, out=out, x=x, y=y)
    mask = 2**info.bits - 1
    expected = [((int(a) & mask) * (int(b) & mask)) >> info.bits for a, b in zip(x, y, strict=True)]
    assert [int(v) & mask for v in out] == expected
