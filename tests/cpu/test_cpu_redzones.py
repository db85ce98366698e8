"""Kernels in the build with redzones: no program writes next to a scratch buffer or depends on a lane that was never written.

The quick run takes a sample of the shared kernels, the zoo, and random programs; `--full` takes all.
"""

import itertools
import random

import numpy as np
import pytest
from fuzz.generator import generate
from fuzz.program import check_native, checked
from kernels import CASES
from kernels.base import copied, host_address, parameters
from ml_dtypes import bfloat16
from native import TARGETS, run_native
from random_programs import Generator
from test_cpu_padding import above, wrong_lengths
from test_cpu_programs import agrees
from zoo import ZOO
from zoo.launches import launched
from zoo.test_zoo import ON_CPU, QUICK

import blocknb
from blocknb.codegen import cpu_padding, cpu_redzones
from blocknb.errors import CompilerBug


@pytest.fixture(autouse=True)
def with_redzones(monkeypatch):
    monkeypatch.setenv("BLOCKNB_REDZONES", "1")


def sampled(names, step):
    """All of them, of which every `step`-th is quick."""
    return [name if at % step == 0 else pytest.param(name, marks=pytest.mark.full) for at, name in enumerate(names)]


@pytest.mark.parametrize("target", ["cpu", pytest.param("cpu:haswell", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", sampled(CASES, 24))
def test_the_kernels_stay_inside_their_buffers(name, target):
    case = CASES[name]
    arguments = case.make(np.random.default_rng(17))
    func, _ = case.lower(arguments, "cpu")
    got = {n: copied(value) for n, value in arguments.items()}
    case.link(got, host_address)
    run_native(func, parameters(func, got), case.grid, target)
    case.check(arguments, got)


@pytest.mark.parametrize("name", sampled([name for name in ON_CPU if name in QUICK], 16))
def test_the_zoo_stays_inside_its_buffers(name):
    inputs = ZOO[name].make(np.random.default_rng(18))
    with launched() as found:
        ZOO[name].check(inputs, ZOO[name].run(inputs, "numpy", "cpu"))
    assert all(".verify(" in compiled.trace.llvm for compiled in found)


@pytest.mark.parametrize("seed", sampled(range(400), 80))
def test_random_programs_stay_inside_their_buffers(seed):
    generator = Generator(random.Random(seed))
    agrees(generator.function(), generator.arguments(seed), TARGETS[seed % 3])


@pytest.mark.parametrize("seed", sampled(range(7000, 7400), 80))
def test_random_kernels_stay_inside_their_buffers(seed):
    checked(generate(seed), check_native)


# -- the instrument itself -------------------------------------------------------------------------------------------------


def test_the_overrun_of_padding_into_the_next_tile_is_reported_with_the_line_of_the_buffer(own_cache, monkeypatch):
    """The fault that once was: padding written from the writer's end on in steps of the reader's, wider vectors."""
    right = cpu_padding.fill

    def wide(e, value, stop, poison=False):
        rest = e.rests[value]
        e.rests[value] = rest._replace(width=64)
        right(e, value, stop, poison)
        e.rests[value] = rest

    monkeypatch.setattr(cpu_padding, "fill", wide)
    fresh = blocknb.kernel(above.source.function)
    x, out = (np.arange(64) % 7).astype(np.float32), np.zeros(64, np.int8)
    with pytest.raises(
        CompilerBug, match=r"program \(0, 0, 0\) wrote outside of the scratch buffer of `cast`"
    ) as raised:
        fresh[(1,)](x, out, 17, BLOCK=64)
    assert raised.value.loc.file.endswith("test_cpu_padding.py")
    assert "codes = tl.load" in open(raised.value.loc.file).read().splitlines()[raised.value.loc.line - 1]


def test_whoever_reads_padding_that_was_not_written_gets_poison(own_cache, monkeypatch):
    right = cpu_padding.fill
    monkeypatch.setattr(
        cpu_padding, "fill", lambda e, value, stop, poison=False: poison and right(e, value, stop, True)
    )
    assert wrong_lengths("float32", 64, [1, 17, 40], blocknb.kernel(above.source.function)) == [1, 17, 40]


def test_the_poison_is_no_number_in_any_float():
    for dtype in ("float16", "float32", "float64"):
        assert np.isnan(np.frombuffer(bytes(cpu_redzones.POISON) * 4, dtype)).all()
    assert np.isnan(np.frombuffer(bytes(cpu_redzones.POISON) * 4, bfloat16).astype(np.float32)).all()


def test_scratch_with_redzones_shares_no_byte_between_buffers():
    scratch = cpu_redzones.GuardedScratch()
    sizes = [1, 64, 65, 4096, 7]
    taken = [(start := scratch.allocate(size), start + size) for size in sizes]
    for start, _ in taken:
        scratch.free(start)
    taken += [(zone.start, zone.end) for zone in scratch.zones]
    ends = sorted(taken)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert sum(end - start for start, end in taken) == scratch.bytes
    assert all(zone.end - zone.start >= 64 for zone in scratch.zones)


def test_only_who_asks_for_redzones_gets_them(own_cache, monkeypatch):
    def text():
        out = np.zeros(64, np.int8)
        return blocknb.kernel(above.source.function)[(1,)](np.zeros(64, np.float32), out, 17, BLOCK=64).trace.llvm

    assert "call void @run.verify(" in text()
    monkeypatch.delenv("BLOCKNB_REDZONES")
    assert ".verify" not in text()
