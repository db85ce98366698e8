"""Occupancy: the numbers of CUDA's own calculation, the name of the limiter, and advice that helps when followed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocknb.profile.occupancy import occupancy
from blocknb.target import Target, known
from blocknb.trace import Resources

GPUS = [name for name in known() if name.startswith("sm_")]


def of(target, registers, shared, warps):
    return occupancy(Target.parse(target), Resources(registers, 0, 0, shared, 32 * warps))


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "blocks", "limiter"),
    [
        ("sm_90a", 32, 0, 4, 16, "registers"),  # 64 warps; registers and threads give out together
        ("sm_90a", 33, 0, 4, 12, "registers"),  # 40 registers: 12 warps a scheduler, 48 in all
        ("sm_90a", 255, 0, 8, 1, "registers"),
        ("sm_90a", 168, 0, 12, 1, "registers"),  # 3 warps a scheduler
        ("sm_80", 64, 48 * 1024, 4, 3, "shared memory"),  # 49 KiB with what is reserved, of 164
        ("sm_70", 64, 48 * 1024, 4, 2, "shared memory"),  # nothing is reserved: 48 of 96
        ("sm_90a", 128, 227 * 1024, 4, 1, "shared memory"),
        ("sm_86", 16, 0, 4, 12, "threads"),  # 48 warps
        ("sm_75", 32, 0, 16, 2, "threads"),
        ("sm_90a", 16, 0, 1, 32, "blocks"),
    ],
)
def test_programs_of_an_sm_and_what_limits_them(target, registers, shared, warps, blocks, limiter):
    found = of(target, registers, shared, warps)
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    assert found.warps_per_sm == blocks * warps


# For each target what CUDA 13.0's own cuda_occupancy.h gives: programs of 1 warp and 16 registers a thread; of 4 warps, 32 registers and
# 16393 bytes; of 8 warps, 40 registers and 20492 bytes. (It was compared on 176 220 programs of these twelve targets, all alike.)
BY_CUDA = {
    "sm_70": (32, 5, 4),
    "sm_75": (16, 3, 3),
    "sm_80": (32, 9, 6),
    "sm_86": (16, 5, 4),
    "sm_87": (16, 9, 6),
    "sm_89": (24, 5, 4),
    "sm_90": (32, 13, 6),
    "sm_90a": (32, 13, 6),
    "sm_100": (32, 13, 6),
    "sm_100a": (32, 13, 6),
    "sm_120": (24, 5, 4),
    "sm_120a": (24, 5, 4),
}


@pytest.mark.parametrize("target", GPUS)
def test_every_target_holds_as_many_programs_as_cudas_own_calculation_says(target):
    shapes = ((16, 0, 1), (32, 16393, 4), (40, 20492, 8))
    assert tuple(of(target, *shape).blocks_per_sm for shape in shapes) == BY_CUDA[target]


def test_a_full_sm_needs_no_advice():
    found = of("sm_90a", 32, 0, 4)
    assert found.percent == 100 and found.advice == ()


def test_a_cpu_and_a_missing_report_have_no_occupancy():
    assert occupancy(Target.parse("cpu"), Resources(16, 0, 0, 0, 1)) is None
    assert occupancy(Target.parse("sm_90a"), Resources(shared_bytes=0, threads=128)) is None


@given(st.sampled_from(GPUS), st.integers(8, 255), st.integers(0, 232 * 1024), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_advice_is_true_when_it_is_followed_and_no_less_would_do(target, registers, shared, warps):
    parsed = Target.parse(target)
    resources = Resources(registers, 0, 0, min(shared, parsed.max_shared), 32 * warps)
    found = occupancy(parsed, resources)
    assert 0 <= found.warps_per_sm <= found.max_warps
    match found.advice:
        case (text,) if (promised := re.search(r"-> (\d+) programs", text)) and "num_warps" not in text:
            fewer = re.search(r"(\d+) register", text)
            less = re.search(r"(\d+) bytes", text)
            changed = replace(
                resources,
                registers=registers - int(fewer[1] if fewer else 0),
                shared_bytes=resources.shared_bytes - int(less[1] if less else 0),
            )
            assert occupancy(parsed, changed).blocks_per_sm == int(promised[1]) > found.blocks_per_sm
            more = {"registers": changed.registers + 1} if fewer else {"shared_bytes": changed.shared_bytes + 1}
            changed = replace(changed, **more)
            assert occupancy(parsed, changed).blocks_per_sm == found.blocks_per_sm


@given(st.sampled_from(GPUS), st.integers(8, 254), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_more_registers_never_let_more_programs_in(target, registers, warps):
    assert of(target, registers + 1, 0, warps).blocks_per_sm <= of(target, registers, 0, warps).blocks_per_sm
