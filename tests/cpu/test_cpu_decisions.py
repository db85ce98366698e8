"""The decisions of the CPU code generator for each kernel, as golden files that change with the rules.

Other tests pass for any decision, since all of them give right results. The files list the loop nests and their vectors, and the places and
lifetimes of tiles in scratch memory. They also list rows with mask bounds, written padding, non-temporal stores, and prefetched rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from decision_kernels import CASES
from frontend_helpers import ir, kernel
from native import prepared

from blocknb import passes
from blocknb.codegen import cpu
from blocknb.codegen.cpu import OPTIMIZATIONS, loop_nests, mask_bounds, nontemporal_stores, outlining
from blocknb.codegen.cpu.buffers import Scratch
from blocknb.codegen.cpu.outlining import Outliner
from blocknb.codegen.cpu.redzones import GuardedScratch
from blocknb.codegen.cpu.row_prefetch import RowPrefetch
from blocknb.ir.report import Overrun
from blocknb.target import Target

TARGETS = ("cpu:x86-64-v4", "cpu:x86-64-v2")


class Record:
    """Records the decisions of the code generator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.lines: list[str] = []
        self._listen(monkeypatch, loop_nests.LoopNestEmitter, "emit", nest)
        self._listen(monkeypatch, mask_bounds.MaskBounds, "find", ends_early)
        self._listen(monkeypatch, mask_bounds.MaskBounds, "fill", fills)
        self._listen(monkeypatch, nontemporal_stores.NontemporalStores, "stores", stores)
        self._listen(monkeypatch, RowPrefetch, "prepare", prefetch)
        self._listen(monkeypatch, Scratch, "allocate", scratch)
        self._listen(monkeypatch, GuardedScratch, "allocate", scratch)
        self._listen(monkeypatch, Outliner, "_define", part)
        self._listen(monkeypatch, Scratch, "free", lambda _, scratch, at: f"scratch free at {at}")

    def _listen(self, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, tell: Callable) -> None:
        right = getattr(place, name)

        def listening(*args: Any, **named: Any) -> Any:
            result = right(*args, **named)
            if line := tell(result, *args, **named):
                self.lines.append(line)
            return result

        monkeypatch.setattr(place, name, listening)


def scratch(at: int, _: Any, size: int, maker: Any) -> str:
    return f"scratch {size} at {at} for {maker.name if maker else 'nothing'}"


def part(name: str, _: Any, text: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    return f"{name} from {' '.join(inputs.values())} to {' '.join(outputs.values())}"


def nest(_: Any, emitter: Any, made: Any, prefetches: Any = ()) -> str:
    places = [(*b.strides, b.offset, b.panel) for _, b in made.outputs]
    vectors = f"along {made.axis}, {made.width} x {made.unroll}"
    return f"nest {made.shape} {vectors}: {' '.join(op.name for op in made.ops)}; results {places}"


def ends_early(found: bool, bounds: Any) -> str:
    return f"    ends early, masks: {len(set(bounds.counts))}" if found else ""


def fills(_: Any, bounds: Any, buffer: Any, tail: Any, stop: str, poison: bool = False) -> str:
    return f"    fills {buffer.dtype} {buffer.shape} to the end, {tail.width} at a time{' (poison)' if poison else ''}"


def stores(found: Any, *_: Any) -> str:
    return f"    past the cache: {len(found)}, of {found[0].attrs['nontemporal']} bytes at least" if found else ""


def prefetch(_: Any, made: Any, forms: Any) -> str:
    return f"    fetched ahead: {len(made.steps)}" if made.steps else ""


@pytest.mark.parametrize("name", CASES)
def test_decisions_for_a_kernel_equal_the_golden_file(name, golden, monkeypatch):
    made, arguments = CASES[name]
    func = ir(made if isinstance(made, kernel) else kernel(made), **arguments)
    record = Record(monkeypatch)
    for target in map(Target.parse, TARGETS):
        record.lines.append(f"== {target}")
        module = cpu.generate(passes.run(func, target)[0], target)
        record.lines += [f"scratch in all: {module.scratch_bytes}", *(note.text for note in module.notes)]
    golden(f"cpu/{name}.txt", "\n".join(record.lines))


@pytest.mark.parametrize("name", ["ends", "twice", "product", "mirrored", "branches", "carried", "exchanged"])
def test_outlined_functions_and_redzones_equal_the_golden_file(name, golden, monkeypatch):
    """Each node is a function with its inputs and outputs. Redzones: the line that allocates each buffer, and the poisoned buffers."""
    monkeypatch.setattr(outlining, "LINES", 1)
    made, arguments = CASES[name]
    record, target = Record(monkeypatch), Target.parse(TARGETS[0])
    func = passes.run(ir(made if isinstance(made, kernel) else kernel(made), **arguments), target)[0]
    module = cpu.generate(func, target, redzones=True)
    record.lines += [f"site {at}: {described(site)}" for at, site in enumerate(module.sites)]
    record.lines += re.findall(r"%site = .*", module.text)
    golden(f"cpu/guarded/{name}.txt", "\n".join(record.lines))


def described(site: Any) -> str:
    made = f" round {site.bytes} bytes of {site.maker}" if isinstance(site, Overrun) else ""
    return f"{type(site).__name__}{made}"


#: Text in the record of a kernel, or in its code, that exists only with an optimization.
TRACES = {
    "row_prefetch": "fetched ahead",
    "nontemporal_stores": "past the cache",
    "mask_bounds": "ends early",
    "loop_versioning": "straight.",
    "fusion": "load reduce",
}


@pytest.mark.parametrize("name", [*TRACES, "unroll"])
def test_an_optimization_that_is_off_leaves_no_trace(name, monkeypatch):
    record, target = Record(monkeypatch), Target.parse(TARGETS[0])
    for made, arguments in (CASES["softmax"], CASES["wrapped"]):
        func = prepared(ir(made if isinstance(made, kernel) else kernel(made), **arguments), target)
        with_all = len(record.lines)
        record.lines.append(cpu.generate(func, target).text)
        without = len(record.lines)
        record.lines.append(cpu.generate(func, target, without=[name]).text)
        if name == "unroll":
            nests = [line for line in record.lines[without:] if line.startswith("nest")]
            assert nests
            assert all(" x 1:" in line for line in nests)
        else:
            assert TRACES[name] not in "\n".join(record.lines[without:])
        record.lines[with_all:] = record.lines[with_all:without]
    assert name == "unroll" or TRACES[name] in "\n".join(record.lines)


def test_every_optimization_has_a_test():
    assert {*TRACES, "unroll"} == set(OPTIMIZATIONS)
