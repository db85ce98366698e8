"""Results do not depend on how a kernel is compiled and launched; they agree with NumPy to the bit.

The tests vary lengths, vector widths, alignment, threads, CPU features, optimizations, passes, constants against run-time arguments, and
the order of programs. The quick run takes a seeded sample; `--full` takes every kernel in every way at every length, and random
combinations of ways.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from frontend_helpers import argument
from host_cpus import OLDER
from native import launch_native
from varied_kernels import KERNELS, PROGRAMS

from blocknb import passes
from blocknb.codegen import cpu, llvm
from blocknb.codegen.cpu import OPTIMIZATIONS
from blocknb.codegen.cpu.redzones import wanted
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.frontend.parse import ArgType, Constant, parse
from blocknb.passes.tile import nontemporal_stores
from blocknb.runtime import host
from blocknb.runtime.extents import extent
from blocknb.runtime.host import HostKernel
from blocknb.target import Target

CPU = Target.parse("cpu")
PASSES = tuple(p.name for p in passes.pipeline(CPU) if p.optional)


@dataclass(frozen=True)
class Way:
    """One way to compile and run a kernel. `vector`: the width of vectors in bytes (None: the machine's). `start`: the offset of arrays
    from a cache line, in elements. `constant`: n is a constant. `hinted`: the compiler knows if n is a multiple of 16. `order`: the seed of
    an order of programs."""

    target: str = "cpu"
    vector: int | None = None
    start: int = 0
    threads: int = 2
    without: tuple[str, ...] = ()
    off: tuple[str, ...] = ()
    constant: bool = False
    hinted: bool = False
    order: int | None = None
    checked: bool = True
    opt: int = 2

    def __str__(self) -> str:
        return (
            ",".join(f"{name}={value}" for name, value in vars(self).items() if value != getattr(Way(), name))
            or "plain"
        )


def here(target: Target) -> bool:
    """Whether this machine has all features of a CPU."""
    return all(CPU.has(feature.removeprefix("+")) for feature in target.features.split(","))


TARGETS = [name for name in (*OLDER, "cpu:x86-64-v4") if here(Target.parse(name))]
ALTERNATIVES: dict[str, list[Any]] = {
    "target": TARGETS,
    "vector": [8, 16, 32, 64, 128],  # 2 to 32 lanes of 32 bits
    "start": [1, 3, 4],
    "threads": [1, 5],
    "without": [(name,) for name in PASSES] + [PASSES],
    "off": [(name,) for name in OPTIMIZATIONS] + [OPTIMIZATIONS],
    "constant": [True],
    "hinted": [True],
    "order": [1, 2],
    "checked": [False],
    "opt": [0],
}
WAYS = [Way(), *(replace(Way(), **{name: value}) for name, values in ALTERNATIVES.items() for value in values)]


def combined(seed: int) -> Way:
    """A way that combines several variations."""
    rng = random.Random(seed)
    chosen = rng.sample(sorted(ALTERNATIVES), rng.randint(2, 5))
    return Way(**{name: rng.choice(ALTERNATIVES[name]) for name in chosen})


def compiled(name: str, way: Way, x: np.ndarray, y: np.ndarray, n: int, block: int) -> HostKernel:
    k = KERNELS[name].kernel
    arguments = {p: argument(k, p, value) for p, value in (("x", x), ("y", y), ("n", n), ("BLOCK", block))}
    for p, array in (("x", x), ("y", y)):
        arguments[p] = ArgType(arguments[p].type, 16 if array.ctypes.data % 16 == 0 else array.itemsize)
    if way.constant:
        arguments["n"] = Constant(n)
    elif way.hinted and n % 16 == 0:
        arguments["n"] = ArgType(arguments["n"].type, 16)
    target = Target.parse(way.target)
    func, _ = passes.run(parse(k.source, arguments, {}), target, way.without)
    module = cpu.generate(func, target, way.checked, way.off, wanted())
    made = llvm.compile_cpu(module.text, target, opt=way.opt).result()
    parameters = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    return HostKernel(made.object, module.entry, parameters, module.sites, module.scratch_bytes, module.may_loop)


def placed(count: int, dtype: str, start: int) -> tuple[np.ndarray, np.ndarray]:
    """An array that begins `start` elements after a cache line, within a larger one that is returned first."""
    size = np.dtype(dtype).itemsize
    whole = np.full(count + 256, 99, dtype)
    first = -(whole.ctypes.data // size) % (64 // size) + 64 + start
    return whole, whole[first : first + count]


def launch_in_order(kernel: HostKernel, args: list[Any], order: list[int]) -> None:
    """Runs one program after another, in this order."""
    packed: list[Any] = [(v.ctypes.data, *extent(v, v.ctypes.data)) if isinstance(v, np.ndarray) else v for v in args]
    block = np.zeros(kernel._layout.size // 8 + 16, np.int64)
    at = -block.ctypes.data % 64
    buffer = (host.ctypes.c_char * block.nbytes).from_buffer(block)
    status = block.ctypes.data + at
    for program in order:
        kernel._pack(buffer, at, (len(order), 1, 1), packed, 0)
        block[at // 8 + host.NEXT] = program
        places = (status + 8 * host.STATUS_WORDS, status + 8 * (host.STATUS_WORDS + 3))
        kernel._function(1, program + 1, len(order), *places, host._scratch.at_least(kernel.scratch_bytes), status)
        assert block[at // 8 + host.STOP] == 0


def wrong_lengths(name: str, dtype: str, way: Way, block: int, lengths: list[int], monkeypatch: Any) -> list[int]:
    """The lengths at which a kernel, compiled and run in this way, differs from NumPy in any bit."""
    case, wrong, made = KERNELS[name], [], {}
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", str(way.threads))
    if way.vector:
        machine = replace(TargetFeatures.of(Target.parse(way.target)), vector_bytes=way.vector)
        monkeypatch.setattr(TargetFeatures, "of", staticmethod(lambda target: machine))
    rng = np.random.default_rng(block)
    for n in lengths:
        size = case.size(n, block)
        _, x = placed(size, dtype, way.start)
        x[:] = rng.integers(0, 4, size)
        whole, y = placed(size, dtype, way.start)
        with np.errstate(over="ignore"):
            expected = y.copy()
            case.meaning(x, expected, n, block)
        key = n if way.constant else n % 16 == 0 if way.hinted else None
        if key not in made:
            made[key] = compiled(name, way, x, y, n, block)
        kernel = made[key]
        args = [{"x": x, "y": y, "n": n}[p] for p, _ in kernel.parameters]
        if way.order is None:
            launch_native(kernel, args, PROGRAMS)
        else:
            launch_in_order(kernel, args, random.Random(way.order).sample(range(PROGRAMS), PROGRAMS))
        if y.tobytes() != expected.tobytes():
            wrong.append(n)
        y[:] = 99
        assert (whole == 99).all(), f"n = {n}: it wrote outside of the result"
    return wrong


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    monkeypatch.setattr(nontemporal_stores, "LARGE", 1)


LENGTHS = [1, 2, 5, 15, 16, 17, 31, 33, 48, 63, 64]
rng = random.Random(14)
QUICK = [(name, rng.choice(KERNELS[name].dtypes), way) for way in WAYS for name in rng.sample(sorted(KERNELS), 2)]
EVERY = [(name, dtype, way) for name, case in KERNELS.items() for dtype in case.dtypes for way in WAYS]


@pytest.mark.parametrize(("name", "dtype", "way"), QUICK, ids=str)
def test_results_do_not_depend_on_one_variation(name, dtype, way, monkeypatch):
    lengths = LENGTHS[::3] if way.constant else LENGTHS
    assert wrong_lengths(name, dtype, way, 64, lengths, monkeypatch) == []


@pytest.mark.full
@pytest.mark.parametrize(("name", "dtype", "way"), EVERY, ids=str)
def test_results_do_not_depend_on_one_variation_at_any_length(name, dtype, way, monkeypatch):
    lengths = range(1, 65, 5) if way.constant else range(1, 65)
    assert wrong_lengths(name, dtype, way, 64, lengths, monkeypatch) == []


@pytest.mark.full
@pytest.mark.parametrize("seed", range(300))
def test_results_do_not_depend_on_combined_variations(seed, monkeypatch):
    rng = random.Random(seed)
    name, block = rng.choice(sorted(KERNELS)), rng.choice([32, 128, 256])
    dtype = rng.choice(KERNELS[name].dtypes)
    way = combined(seed)
    lengths = sorted(rng.sample(range(1, block + 1), 4 if way.constant else 24))
    assert wrong_lengths(name, dtype, way, block, lengths, monkeypatch) == [], str((name, dtype, block, way))
