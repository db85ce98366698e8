"""Semantics of the language: random numbers, against Philox in NumPy and against numbers that Triton 3.6 printed."""

from __future__ import annotations

import numpy as np
import pytest
from semantics import result

import blocknb.language as tl
from blocknb import kernel


@kernel
def draw(out, offsets, seed):
    i = tl.arange(0, 4)
    at = tl.load(offsets + i)
    tl.store(out + i, tl.randint(seed, at))
    x = tl.rand(seed, at)
    tl.static_assert(x.dtype == tl.float32)
    tl.store(out + 4 + i, x.to(tl.uint32, bitcast=True))
    _, _, c, _ = tl.rand4x(seed, at)
    tl.store(out + 8 + i, c.to(tl.uint32, bitcast=True))


def philox(seed: int, offsets: np.ndarray) -> list[np.ndarray]:
    """The four words of Philox 4x32-10 (Salmon et al., SC 2011) for each offset; the seed is split in two keys."""
    words = [offsets.astype(np.uint32).astype(np.uint64), *(np.zeros(len(offsets), np.uint64) for _ in range(3))]
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    keys = np.array([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF], np.uint64)
    for _ in range(10):
        p, q = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [q >> half ^ words[1] ^ keys[0], q & low, p >> half ^ words[3] ^ keys[1], p & low]
        keys = keys + np.array([0x9E3779B9, 0xBB67AE85], np.uint64) & low
    return [w.astype(np.uint32) for w in words]


def uniform(words: np.ndarray) -> np.ndarray:
    x = words.view(np.int32)
    return np.where(x < 0, -x - 1, x).astype(np.float32) * np.float32(4.6566127342e-10)


@pytest.mark.parametrize("seed", [0, 1, 42, -1, 2**31 - 1, 2**31 + 5, 2**40 + 3, -(2**40)])
def test_random_bits_and_uniforms_equal_philox_bit_for_bit(seed):
    offsets = np.random.default_rng(seed & 0xFF).integers(-(2**31), 2**31, 4, dtype=np.int32)
    got = result(draw, np.uint32, 12, offsets=offsets, seed=seed)
    words = philox(seed, offsets)
    np.testing.assert_array_equal(got[:4], words[0])
    np.testing.assert_array_equal(got[4:8], uniform(words[0]).view(np.uint32))
    np.testing.assert_array_equal(got[8:], uniform(words[2]).view(np.uint32))


#: The results of the interpreter of Triton 3.6 for four offsets: 0, 715827883, 2 x 715827883 and 3 x 715827883 - 2^32. A seed has (randint,
#: rand as hexadecimal floats, the bits of the third of rand4x, randn).
PRINTED = {
    0: (
        [1713891541, 3627936371, 1448270857, 2853579494],
        ["0x1.989fa20000000p-1", "0x1.3e10aa0000000p-2", "0x1.594b6e0000000p-1", "0x1.57a7520000000p-1"],
        [1057444006, 1062885792, 1048578082, 1059047261],
        [0.046551529318094254, 1.3236048221588135, -0.3301633894443512, -0.5760430693626404],
    ),
    42: (
        [2632642643, 2330002237, 356011638, 2235540720],
        ["0x1.8c543c0000000p-1", "0x1.d47bf20000000p-1", "0x1.5384e60000000p-3", "0x1.eb016a0000000p-1"],
        [1041627780, 1029394299, 1048268380, 1065056478],
        [0.6606133580207825, -0.4098166227340698, 1.8153584003448486, 0.26650485396385193],
    ),
    2**31 + 5: (
        [2146402009, 2879620224, 2818519123, 1948596398],
        ["0x1.ffbdfa0000000p-1", "0x1.5171ec0000000p-1", "0x1.60033c0000000p-1", "0x1.d094e00000000p-1"],
        [1055240456, 1059302926, 1057510823, 1056009149],
        [-0.029843350872397423, 0.7250924110412598, -0.7382671236991882, -0.0313083752989769],
    ),
    2**40 + 3: (
        [1440152241, 3541756090, 1265851614, 3127501111],
        ["0x1.575be80000000p-1", "0x1.6728b80000000p-2", "0x1.2dcd720000000p-1", "0x1.16587a0000000p-1"],
        [1058125002, 1059340912, 1045054417, 1052713844],
        [-0.669700562953949, 0.6135077476501465, 0.7638265490531921, 0.9894249439239502],
    ),
    -1: (
        [1923381001, 1980174659, 3578995970, 4093690030],
        ["0x1.ca91da0000000p-1", "0x1.d81c440000000p-1", "0x1.5566d60000000p-2", "0x1.7fe7e80000000p-4"],
        [1061256351, 1058642788, 1041405502, 1059552739],
        [0.23584187030792236, -0.22792071104049683, -1.4715579748153687, -2.069662094116211],
    ),
}


@kernel
def normal(out, seed):
    i = tl.arange(0, 4)
    tl.store(out + i, tl.randn(seed, i * 715827883))


@pytest.mark.parametrize("seed", sorted(PRINTED))
def test_random_numbers_equal_those_of_triton(seed):
    bits, uniforms, third, normals = PRINTED[seed]
    offsets = (np.arange(4, dtype=np.int64) * 715827883).astype(np.int32)
    got = result(draw, np.uint32, 12, offsets=offsets, seed=seed)
    assert got[:4].tolist() == bits
    assert got[4:8].view(np.float32).tolist() == [float.fromhex(text) for text in uniforms]
    assert got[8:].tolist() == third
    np.testing.assert_allclose(result(normal, np.float32, 4, seed=seed), normals, rtol=1e-5, atol=1e-6)
