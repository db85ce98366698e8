"""libdevice's functions of integers and of bits: counting, permuting, averaging, reinterpreting."""

from __future__ import annotations

from blocknb.language import surface as tl
from blocknb.language.constants import constexpr
from blocknb.language.libdevice.parts import device, helper
from blocknb.language.types import float32, float64, int32, int64, uint32, uint64

EVEN = {32: 0x55555555, 64: 0x5555555555555555}
PAIRS = {32: 0x33333333, 64: 0x3333333333333333}
NIBBLES = {32: 0x0F0F0F0F, 64: 0x0F0F0F0F0F0F0F0F}
BYTES = {32: 0x00FF00FF, 64: 0x00FF00FF00FF00FF}
ONES = {32: 0x01010101, 64: 0x0101010101010101}


@helper
def unsigned(x):
    """The bits of an integer as unsigned, at least 32 of them."""
    x = tl.to_tensor(x)
    return x.to(uint64) if x.dtype.primitive_bitwidth == 64 else x.to(uint32)


@helper
def bits_set(u):
    w: constexpr = u.dtype.primitive_bitwidth
    u = u - ((u >> 1) & EVEN[w])
    u = (u & PAIRS[w]) + ((u >> 2) & PAIRS[w])
    u = (u + (u >> 4)) & NIBBLES[w]
    return ((u * ONES[w]) >> (w - 8)).to(int32)


@device
def popc(x):
    """Counts the bits that are set. The result is int32.

    Example:
        libdevice.popc(40)  # 2
    """
    return bits_set(unsigned(x))


@device
def clz(x):
    """Counts the leading zero bits. The result is int32.

    Example:
        libdevice.clz(40)  # 26
    """
    u = unsigned(x)
    for distance in (1, 2, 4, 8, 16):
        u = u | (u >> distance)
    if u.dtype == uint64:
        u = u | (u >> 32)
    return bits_set(~u)


@device
def ffs(x):
    """Returns the position of the lowest set bit as int32, counted from one. It is 0 if no bit is set.

    Example:
        libdevice.ffs(40)  # 4
    """
    u = unsigned(x)
    return tl.where(u == 0, 0, bits_set(u ^ (u - 1)))


@device
def brev(x):
    """Reverses the order of the bits.

    Example:
        libdevice.brev(1)  # -2147483648
    """
    u = unsigned(x)
    w: constexpr = u.dtype.primitive_bitwidth
    u = ((u >> 1) & EVEN[w]) | ((u & EVEN[w]) << 1)
    u = ((u >> 2) & PAIRS[w]) | ((u & PAIRS[w]) << 2)
    u = ((u >> 4) & NIBBLES[w]) | ((u & NIBBLES[w]) << 4)
    u = ((u >> 8) & BYTES[w]) | ((u & BYTES[w]) << 8)
    if w == 64:
        u = ((u >> 16) & 0x0000FFFF0000FFFF) | ((u & 0x0000FFFF0000FFFF) << 16)
        u = (u >> 32) | (u << 32)
    else:
        u = (u >> 16) | (u << 16)
    return u.to(tl.to_tensor(x).dtype)


@device
def byte_perm(x, y, s):
    """Selects four of the bytes of x (0-3) and y (4-7) by the nibbles of s. Bit 8 of a nibble repeats the sign of its byte.

    Example:
        libdevice.byte_perm(50462976, 117835012, 21520)  # 84148480
    """
    both = unsigned(x).to(uint64) | (unsigned(y).to(uint64) << 32)
    selector = unsigned(s)
    result = selector * 0
    for i in tl.static_range(4):
        nibble = selector >> (4 * i)
        byte = (both >> ((nibble & 7) * 8).to(uint64)).to(uint32) & 0xFF
        sign = (byte >> 7) * 0xFF
        result = result | (tl.where((nibble & 8) != 0, sign, byte) << (8 * i))
    return result.to(int32)


@device
def mulhi(x, y):
    """Returns the upper half of the product.

    Example:
        libdevice.mulhi(1073741824, 8)  # 2
    """
    high = tl.umulhi(x, y)
    if high.dtype.is_int_signed():
        return high - tl.where(x < 0, y, 0) - tl.where(y < 0, x, 0)
    return high


@device
def mul24(x, y):
    """Multiplies the low 24 bits of the operands. Returns the low 32 bits of the product.

    Example:
        libdevice.mul24(5, 8)  # 40
    """
    x = tl.to_tensor(x)
    y = tl.to_tensor(y)
    return ((x << 8) >> 8) * ((y << 8) >> 8)


@device
def sad(x, y, z):
    """Computes |x - y| + z.

    Example:
        libdevice.sad(3, 7, 1)  # 5
    """
    return tl.where(x < y, y - x, x - y).to(uint32).to(tl.to_tensor(x).dtype) + tl.to_tensor(z).to(
        tl.to_tensor(x).dtype
    )


@device
def hadd(x, y):
    """Computes (x + y) / 2, rounded down, without overflow.

    Example:
        libdevice.hadd(5, 8)  # 6
    """
    return (x & y) + ((x ^ y) >> 1)


@device
def rhadd(x, y):
    """Computes (x + y) / 2, rounded up, without overflow.

    Example:
        libdevice.rhadd(5, 8)  # 7
    """
    return (x | y) - ((x ^ y) >> 1)


# -- the same bits as another type -----------------------------------------------------------------------------------------


@device
def float_as_int(x):
    """Returns the bits of an fp32 number as int32.

    Example:
        libdevice.float_as_int(1.0)  # 1065353216
    """
    return tl.cast(x, float32).to(int32, bitcast=True)


@device
def float_as_uint(x):
    """Returns the bits of an fp32 number as int32, the dtype that libdevice declares.

    Example:
        libdevice.float_as_uint(1.0)  # 1065353216
    """
    return tl.cast(x, float32).to(int32, bitcast=True)


@device
def int_as_float(x):
    """Returns the fp32 number that has the 32 bits of x.

    Example:
        libdevice.int_as_float(1065353216)  # 1.0
    """
    return tl.cast(x, int32).to(float32, bitcast=True)


@device
def uint_as_float(x):
    """Returns the fp32 number that has the 32 bits of x.

    Example:
        libdevice.uint_as_float(tl.full((), 1065353216, tl.uint32))  # 1.0
    """
    return tl.cast(x, uint32).to(float32, bitcast=True)


@device
def double_as_longlong(x):
    """Returns the bits of an fp64 number as int64.

    Example:
        libdevice.double_as_longlong(tl.full((), 1.5, tl.float64))  # 4609434218613702656
    """
    return tl.cast(x, float64).to(int64, bitcast=True)


@device
def longlong_as_double(x):
    """Returns the fp64 number that has the 64 bits of x.

    Example:
        libdevice.longlong_as_double(tl.full((), 4609434218613702656, tl.int64))  # 1.5
    """
    return tl.cast(x, int64).to(float64, bitcast=True)


@device
def double2hiint(x):
    """Returns the upper 32 bits of an fp64 number as int32.

    Example:
        libdevice.double2hiint(tl.full((), 1.5, tl.float64))  # 1073217536
    """
    return (tl.cast(x, float64).to(int64, bitcast=True) >> 32).to(int32)


@device
def double2loint(x):
    """Returns the lower 32 bits of an fp64 number as int32.

    Example:
        libdevice.double2loint(tl.full((), 1.5, tl.float64))  # 0
    """
    return tl.cast(x, float64).to(int64, bitcast=True).to(int32)


@device
def hiloint2double(high, low):
    """Returns the fp64 number with the given upper and lower 32 bits.

    Example:
        libdevice.hiloint2double(1073217536, 0)  # 1.5
    """
    bits = (unsigned(high).to(uint64) << 32) | unsigned(low).to(uint64)
    return bits.to(float64, bitcast=True)


@device
def rcp64h(x):
    """Returns the reciprocal of an fp64 number with its lower 32 bits set to zero, as the start of a Newton iteration.

    Example:
        libdevice.rcp64h(tl.full((), 4.0, tl.float64))  # 0.25
    """
    bits = (1.0 / tl.cast(x, float64)).to(int64, bitcast=True)
    return (bits & -0x100000000).to(float64, bitcast=True)
