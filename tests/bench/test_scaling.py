"""The compiler's work grows at most linearly with the number of statements.

The measure is the number of executed Python lines of the compiler, which is the same on every machine. For a kernel of twice the size, no
line may run three times as often, unless its count is negligible.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from frontend_helpers import kind

import blocknb
from blocknb import passes
from blocknb.bench import scaling
from blocknb.codegen import cpu, gpu
from blocknb.codegen.cpu import outlining
from blocknb.errors import KernelError
from blocknb.frontend.parse import Constant, parse
from blocknb.target import Target

ROOT = str(Path(blocknb.__file__).parent)
ARGUMENTS = {"x_ptr": kind("*f32"), "out_ptr": kind("*f32"), "n": kind("i32")}


def generate(kernel: Any, count: int, target: str) -> None:
    """Front end, passes and code generation."""
    func = parse(kernel.source, {**ARGUMENTS, "COUNT": Constant(count)}, {"num_warps": 4, "num_stages": 3})
    parsed = Target.parse(target)
    func, _ = passes.run(func, parsed)
    (gpu.generate if parsed.is_gpu else cpu.generate)(func, parsed)


def work(name: str, n: int, target: str) -> Counter:
    """How often each line of the compiler runs, by file and line."""
    kernel = scaling.kernel(name, n)
    files: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))

    @cache
    def tracer(file: str) -> Any:
        if not file.startswith(ROOT):
            return None
        lines = files[file.removeprefix(ROOT)]

        def line(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines[frame.f_lineno] += 1
            return line

        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, _: tracer(frame.f_code.co_filename))
    try:
        generate(kernel, n, target)
    finally:
        sys.settrace(before)
    return Counter({(file, number): count for file, lines in files.items() for number, count in lines.items()})


def superlinear(small: Counter, large: Counter) -> dict[tuple[str, int], tuple[int, int]]:
    """Lines that ran more than three times as often, and in more than one of 300 steps."""
    total = large.total()
    return {k: (small[k], n) for k, n in large.items() if n > 3 * small[k] and n > total / 300}


@pytest.mark.sampled(10, each=["target"])
@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", scaling.FAMILIES)
def test_twice_the_statements_are_twice_the_work(name, target, monkeypatch):
    monkeypatch.setattr(outlining, "LINES", 100)  # so that both kernels are of many parts
    work(name, 12, target)  # what is computed once for all is computed here
    small, large = work(name, 60, target), work(name, 120, target)
    assert superlinear(small, large) == {}
    assert large.total() < 2.2 * small.total()


def test_the_instrument_notices_what_is_quadratic(monkeypatch):
    plain = parse.__globals__["Emitter"].append

    def slow(self, op):
        for _ in self._open[-1]:
            pass
        return plain(self, op)

    slow.__code__ = slow.__code__.replace(co_filename=f"{ROOT}/slow.py")
    monkeypatch.setattr(parse.__globals__["Emitter"], "append", slow)
    small, large = work("arithmetic", 60, "cpu"), work("arithmetic", 120, "cpu")
    assert {file for file, _ in superlinear(small, large)} == {"/slow.py"}


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
@pytest.mark.parametrize("name", scaling.FAMILIES)
def test_two_thousand_statements_are_compiled(name, target):
    generate(scaling.kernel(name, 2000), 2000, target)


def test_a_chain_of_statements_may_be_longer_than_pythons_stack():
    generate(scaling.kernel("unrolled", 20), 3 * sys.getrecursionlimit(), "sm_90a")


SQUARES = """
import blocknb
import blocknb.language as tl


@blocknb.kernel
def kernel(x, COUNT: tl.constexpr):
    rows, columns = tl.arange(0, 8)[:, None], tl.arange(0, 64)
    line = tl.load(x + columns)
    for _ in tl.static_range(COUNT):
        line = line * line
    tl.store(x + rows * 64 + columns[None, :], tl.load(x + rows * 64 + columns[None, :]) * line[None, :])
"""


def test_what_uses_a_value_twice_is_looked_at_once():
    kernel = scaling.made("squares", SQUARES)["kernel"]
    stages = kernel.trace("*fp32:16", COUNT=60, num_warps=4).stages  # 2^60 ways from the load to the store
    distributed = next(stage.after for stage in stages if stage.name == "layout_assignment")
    assert [op.name for op in distributed.ops()].count("mul") > 60
    assert "convert" not in [op.name for op in distributed.ops()]


RETURNS = """
import blocknb
import blocknb.language as tl


@blocknb.kernel
def kernel(x_ptr, out_ptr, n, COUNT: tl.constexpr):
{body}    tl.store(out_ptr, 1.0)
"""


@pytest.mark.parametrize(
    "line",
    ["    if n == {k}:\n        return\n", "    if n > {k}:\n        if n < 9:\n            return\n"],
    ids=["many", "in branches of branches"],
)
def test_code_grows_linearly_with_the_number_of_early_returns(line):
    def ops(count):
        text = RETURNS.format(body="".join(line.format(k=k) for k in range(count)))
        kernel = scaling.made(f"{count} returns {len(line)}", text)["kernel"]
        if count == 60:
            for target in ("sm_90a", "cpu"):
                generate(kernel, 1, target)
        return sum(1 for _ in parse(kernel.source, {**ARGUMENTS, "COUNT": Constant(1)}).ops())

    few, many, more = map(ops, (60, 120, 180))
    assert more - many == many - few


@pytest.mark.parametrize("target", ["sm_90a", "cpu"])
def test_a_tile_beyond_the_limit_says_what_the_limit_is(target):
    with pytest.raises(KernelError, match="has 2097152 elements; .* at most 1048576") as caught:
        scaling.tile("add", 1 << 21).trace(*scaling.TILE_ARGUMENTS, target=target)
    assert "make the block smaller" in str(caught.value)


def test_a_tile_that_does_not_fit_into_shared_memory_says_what_it_needs_and_has():
    with pytest.raises(KernelError, match=r"needs \d+ bytes of shared memory, sm_90a has 232448"):
        scaling.tile("dot", 1 << 16).trace(*scaling.TILE_ARGUMENTS, target="sm_90a")


def test_a_scan_of_a_large_tile_needs_shared_memory_for_the_totals_of_warps_alone():
    found = scaling.tile("scan", 1 << 16).trace(*scaling.TILE_ARGUMENTS, target="sm_90a").resources
    assert found.shared_bytes <= 16 * found.threads // 32
