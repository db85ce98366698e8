"""The registry of the GPU code generator and the op table agree."""

from __future__ import annotations

from collections import Counter

import pytest

from blocknb.codegen.gpu import generator
from blocknb.codegen.gpu.registry import OpLowering
from blocknb.language.ops import OPS

LOWERED = Counter(name for group in OpLowering.__subclasses__() for name in group.methods)


@pytest.mark.parametrize("name", OPS)
def test_each_op_has_exactly_one_lowering_or_is_lazy(name):
    """A pure op without a lowering is lazy: its registers are computed at the first use."""
    assert LOWERED[name] == 1 or (OPS[name].pure and LOWERED[name] == 0)


def test_every_lowering_belongs_to_an_op_of_the_table():
    assert LOWERED.keys() <= OPS.keys()


def test_the_generator_instantiates_every_group_of_lowerings():
    """The ops of a group that `KernelGenerator` omits would have no code."""
    assert {group.__name__ for group in OpLowering.__subclasses__()} <= vars(generator).keys()
