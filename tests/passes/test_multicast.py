"""Multicast: which copies the two CTAs of a cluster do together, and the code for them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import blocknb.language as bl
from blocknb.kernels.descriptors import matmul_descriptor_kernel
from blocknb.kernels.wide_tiles import matmul_wide_kernel

SIZE = 1024
FIXED = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8, "SUM": bl.float32, "num_warps": 8, "num_stages": 4}


def compiled(kernel=matmul_descriptor_kernel, target="sm_90a", **options):
    a = np.zeros((SIZE, SIZE), np.float16)
    return kernel.compile(a, a, a, *(SIZE,) * 6, **{**FIXED, **options}, target=target)


def copies(found) -> tuple[int, int]:
    """The number of instructions that copy to both CTAs, and to one."""
    instructions = re.findall(r"cp\.async\.bulk\.tensor\.2d\.shared::cluster\S*", found.asm["ptx"])
    both = sum("multicast" in x for x in instructions)
    return both, len(instructions) - both


@pytest.mark.parametrize("transposed", [False, True])
def test_pairs_of_programs_copy_the_second_operand_together(transposed):
    found = compiled(CLUSTER=2, num_ctas=2, TRANS_B=transposed)
    assert copies(found) == (1, 1)  # half of b in one box, and all of a
    assert ".reqnctapercluster 2, 1, 1" in found.asm["ptx"]
    assert (
        found.asm["ptx"].count("barrier.cluster.arrive") == 2
    )  # before the first use of an mbarrier, and after the last
    assert "mapa.shared::cluster" in found.asm["ptx"], "consumers release stages in both CTAs"
    assert found.code.cluster == 2


def test_every_mbarrier_of_free_stages_waits_for_the_consumers_of_both_ctas():
    arrivals = [
        sorted({int(x) for x in re.findall(r"mbarrier\.init\.shared::cta\.b64 \[\S+\], (\d+)", found.asm["ptx"])})
        for found in (compiled(), compiled(CLUSTER=2, num_ctas=2))
    ]
    assert arrivals == [[1, 8], [1, 16]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "kernel"),
    [
        ({"num_ctas": 2}, matmul_descriptor_kernel),  # neighbours in the grid have different columns
        ({"CLUSTER": 2}, matmul_descriptor_kernel),  # the launch asks for no clusters
        ({"CLUSTER": 2, "num_ctas": 4}, matmul_descriptor_kernel),
        ({"WIDTH": 192, "num_ctas": 2}, matmul_wide_kernel),
    ],
)
def test_other_programs_have_no_clusters(options, kernel):
    found = compiled(kernel, **options)
    assert (
        copies(found)[0] == 0
        and "cluster.arrive" not in found.asm["ptx"]
        and found.code.persistent
        and found.code.cluster == 1
    )


@pytest.mark.full
def test_older_targets_ignore_clusters():
    assert compiled(target="sm_80", CLUSTER=2, num_ctas=2).code.cluster == 1


def test_the_same_kernel_compiles_without_clusters_for_odd_grids():
    found = compiled(CLUSTER=2, num_ctas=2)
    alone = found.with_options(num_ctas=None)
    assert alone.code.cluster == 1 and copies(alone)[0] == 0
    assert alone.parameters == found.parameters
