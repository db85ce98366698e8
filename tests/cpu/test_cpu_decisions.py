"""What the code generator decides for a CPU, kernel by kernel: golden files that a change of the rules has to change.

The other tests hold for any decision, since all of them lead to right results. Here stand the decisions themselves: which loop
nests there are, with which vectors; where tiles lie in scratch and when their places are free again; which rows end early, which
padding is written, which stores go past the cache, and which rows are fetched ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from front import ir, kernel
from varied_kernels import KERNELS

import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu, cpu_loops, cpu_padding, cpu_stream
from blocknb.codegen.cpu_ahead import Ahead
from blocknb.codegen.cpu_memory import Scratch
from blocknb.target import Target

TARGETS = ("cpu:x86-64-v4", "cpu:x86-64-v2")


def softmax(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + tl.program_id(0) * n + i, e / tl.sum(e, axis=0), mask=i < n)


def streams(x, y, z, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """As many stores as COUNT, which change little."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    for k in tl.static_range(COUNT):
        tl.store(y + k * n + i, v, mask=i < n)


def strided(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i * 2, tl.load(x + i), mask=i < n)


def either(x, y, z, n, BLOCK: tl.constexpr):
    """A pointer that comes from one of two arguments."""
    i = tl.arange(0, BLOCK)
    p = tl.where(n > 3, y, z)
    tl.store(p + i, tl.load(x + i))


def costly(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.exp(tl.sin(tl.load(x + i, mask=i < n))), mask=i < n)


def loads(x, y, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Several rows, each of which is needed before and behind a reduction."""
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(COUNT):
        v = tl.load(x + (tl.program_id(0) * COUNT + k) * BLOCK + i)
        total += tl.exp(v - tl.max(v, axis=0))
    tl.store(y + tl.program_id(0) * BLOCK + i, total)


def same_row(x, y, n, BLOCK: tl.constexpr):
    """Every program loads the same row, so there is nothing to fetch ahead."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.exp(v - tl.max(v, axis=0)))


def results(x, y, n, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """COUNT reductions of a row that ends early."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0)
    for k in tl.static_range(COUNT):
        tl.store(y + k, tl.sum(v * k, axis=0))


def ends(x, y, n, m, BLOCK: tl.constexpr):
    """Two masks, and a reduction that cannot take the padding at once."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=1) + tl.load(x + BLOCK + i, mask=i < m, other=0)
    tl.store(y, tl.sum(v, axis=0))
    tl.store(y + 1 + i, v * 2 - tl.max(v, axis=0), mask=i < n)
    tl.store(y + BLOCK + 1 + i, tl.flip(v) + tl.min(v * i, axis=0))


def whole(x, y, n, BLOCK: tl.constexpr):
    """A mask that holds everywhere ends nothing early."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < BLOCK, other=0)
    tl.store(y + i, v - tl.max(v, axis=0))


def uneven(x, y, n, BLOCK: tl.constexpr):
    """A mask that is no prefix, and an `other` that differs from lane to lane."""
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i % 3 != 0, other=0)
    w = tl.load(x + i, mask=i < n, other=i)
    tl.store(y + i, v - tl.max(v, axis=0))
    tl.store(y + BLOCK + i, w - tl.max(w, axis=0))


def product(x, y, n, BLOCK: tl.constexpr):
    m, k = tl.arange(0, 32), tl.arange(0, 16)
    total = tl.zeros((32, 32), tl.float32)
    for step in range(0, n, 16):
        a = tl.load(x + m[:, None] * n + step + k[None, :])
        b = tl.load(x + (step + k[:, None]) * 32 + m[None, :])
        total += tl.dot(a, b)
    total = tl.where(total > 0, total, total * 2)
    tl.store(y + m[:, None] * 32 + m[None, :], total)


def twice(x, y, n, BLOCK: tl.constexpr):
    """Tiles that are needed once, twice, and behind a branch."""
    i, j = tl.arange(0, 16), tl.arange(0, 32)
    v = tl.load(x + i[:, None] * 32 + j[None, :])
    w = v - tl.sum(v, axis=1)[:, None]
    u = w * tl.max(w, axis=0)[None, :]
    if n > 3:
        u = u + tl.trans(tl.reshape(v, (32, 16)))
    tl.store(y + j[None, :] * 16 + i[:, None], u + w)


F32, I8 = {"x": "*f32", "y": "*f32", "n": "i32"}, {"x": "*i8", "y": "*i8", "n": "i32"}
CASES: dict[str, tuple[Callable, dict[str, Any]]] = {
    "softmax": (softmax, F32 | {"BLOCK": 512}),
    "softmax_short": (softmax, F32 | {"BLOCK": 64}),
    "streams_4": (streams, F32 | {"z": "*f32", "COUNT": 4, "BLOCK": 256}),
    "streams_5": (streams, F32 | {"z": "*f32", "COUNT": 5, "BLOCK": 256}),
    "streams_short": (streams, F32 | {"z": "*f32", "COUNT": 1, "BLOCK": 4}),
    "streams_shorter": (streams, F32 | {"z": "*f32", "COUNT": 1, "BLOCK": 2}),
    "streams_one": (streams, F32 | {"z": "*f32", "COUNT": 1, "BLOCK": 1}),
    "streams_bool": (streams, {"x": "*i1", "y": "*i1", "z": "*i1", "n": "i32", "COUNT": 1, "BLOCK": 64}),
    "strided": (strided, F32 | {"BLOCK": 256}),
    "either": (either, F32 | {"z": "*f32", "BLOCK": 256}),
    "costly": (costly, F32 | {"BLOCK": 256}),
    "loads_2": (loads, F32 | {"COUNT": 2, "BLOCK": 128}),
    "loads_5": (loads, F32 | {"COUNT": 5, "BLOCK": 256}),
    "loads_too_short": (loads, F32 | {"COUNT": 1, "BLOCK": 64}),
    "loads_longest": (loads, F32 | {"COUNT": 1, "BLOCK": 1 << 15}),
    "loads_too_long": (loads, F32 | {"COUNT": 1, "BLOCK": 1 << 16}),
    "same_row": (same_row, F32 | {"BLOCK": 512}),
    "results_8": (results, F32 | {"COUNT": 8, "BLOCK": 256}),
    "results_9": (results, F32 | {"COUNT": 9, "BLOCK": 256}),
    "ends": (ends, F32 | {"m": "i32", "BLOCK": 256}),
    "whole": (whole, F32 | {"BLOCK": 256}),
    "uneven": (uneven, F32 | {"BLOCK": 256}),
    "product": (product, F32 | {"BLOCK": 256}),
    "twice": (twice, F32 | {"BLOCK": 256}),
    "twice_bytes": (twice, I8 | {"BLOCK": 256}),
    **{name: (case.kernel, F32 | {"BLOCK": 128}) for name, case in KERNELS.items()},
}


class Record:
    """Listens to the code generator and writes down what it decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.lines: list[str] = []
        self._listen(monkeypatch, cpu_loops.Group, "emit", self._nest)
        self._listen(
            monkeypatch, cpu_padding, "fill", lambda _, e, value, stop, **more: f"    fills {value.type} to the end"
        )
        self._listen(monkeypatch, cpu_loops.Padding, "find", self._padding)
        self._listen(
            monkeypatch,
            cpu_stream,
            "stores",
            lambda found, row: (
                f"    past the cache: {len(found)}, of {cpu_stream.LARGE} bytes at least" if found else ""
            ),
        )
        self._listen(
            monkeypatch,
            Ahead,
            "prepare",
            lambda _, ahead: f"    fetched ahead: {len(ahead.steps)}" if ahead.steps else "",
        )
        self._listen(monkeypatch, Scratch, "allocate", lambda at, scratch, size, *_: f"scratch {size} at {at}")
        self._listen(monkeypatch, Scratch, "free", lambda _, scratch, at: f"scratch free at {at}")

    def _listen(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, tell: Callable) -> None:
        right = getattr(place, name)

        def listening(*args: Any, **kwargs: Any) -> Any:
            result = right(*args, **kwargs)
            if line := tell(result, *args, **kwargs):
                self.lines.append(line)
            return result

        monkeypatch.setattr(place, name, staticmethod(listening) if name == "find" else listening)

    def _nest(self, _: Any, group: Any) -> str:
        places = [(*b.strides, b.offset, b.panel) for _, b in group.outputs]
        vectors = f"along {group.axis}, {group.width} x {group.unroll}"
        return f"nest {group.shape} {vectors}: {' '.join(op.name for op in group.ops)}; results {places}"

    def _padding(self, found: Any, row: Any) -> str:
        return f"    ends early, masks: {len(set(found.counts))}" if found else ""


@pytest.mark.parametrize("name", CASES)
def test_the_decisions_for_a_kernel_are_these(name, golden, monkeypatch):
    made, arguments = CASES[name]
    func = ir(made if isinstance(made, kernel) else kernel(made), **arguments)
    record = Record(monkeypatch)
    for target in map(Target.parse, TARGETS):
        record.lines.append(f"== {target}")
        module = cpu.generate(passes.run(func, target)[0], target)
        record.lines += [f"scratch in all: {module.scratch_bytes}", *(note.text for note in module.notes)]
    golden(f"cpu/{name}.txt", "\n".join(record.lines))
