"""Random tiles and layouts for property tests: any surjective linear map, with replication and mixed bits."""

from hypothesis import strategies as st

from blocknb.layouts import gf2
from blocknb.layouts.linear import Layout


@st.composite
def shapes(draw, max_bits=8, max_rank=3):
    bits = draw(st.lists(st.integers(0, 4), min_size=0, max_size=max_rank))
    while sum(bits) > max_bits:
        bits[bits.index(max(bits))] -= 1
    return tuple(1 << b for b in bits)


def _independent(draw, num_bits):
    """A random basis of the index space: unit vectors mixed by random row operations when asked."""
    basis = draw(st.permutations([1 << bit for bit in range(num_bits)]))
    basis = list(basis)
    if num_bits > 1 and draw(st.booleans()):
        for _ in range(draw(st.integers(0, 6))):
            i, j = draw(st.integers(0, num_bits - 1)), draw(st.integers(0, num_bits - 1))
            if i != j:
                basis[i] ^= basis[j]
    return basis


@st.composite
def layouts(draw, shape=None, lane_bits=3, warp_bits=2, replicate=True):
    """A layout of the shape: a basis distributed to registers, lanes and warps, with replicas in the remaining bits."""
    shape = draw(shapes()) if shape is None else shape
    num_bits = sum(extent.bit_length() - 1 for extent in shape)
    basis = _independent(draw, num_bits)
    size = 1 << num_bits
    taken = {"lane": [], "warp": []}
    for kind, room in (("lane", lane_bits), ("warp", warp_bits)):
        for _ in range(room):
            own = basis and (not replicate or draw(st.integers(0, 3)))
            extra = draw(st.integers(0, size - 1)) if replicate and draw(st.integers(0, 3)) == 0 else 0
            taken[kind].append(basis.pop() if own else extra)
    reg = tuple(basis)
    extra = draw(st.integers(0, size - 1))  # a register that replicates elements of other threads
    if replicate and draw(st.booleans()) and gf2.rank([*reg, extra]) > len(reg):
        reg = (*reg, extra)
    return Layout(shape, reg, tuple(taken["lane"]), tuple(taken["warp"]))
