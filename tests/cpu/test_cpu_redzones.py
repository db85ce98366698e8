"""The build with redzones detects writes next to a scratch buffer and reads of lanes that were never written."""

import itertools

import numpy as np
import pytest
from ml_dtypes import bfloat16
from test_cpu_mask_bounds import above, wrong_lengths

import blocknb
from blocknb.codegen.cpu import mask_bounds, redzones
from blocknb.errors import CompilerBug


@pytest.fixture(autouse=True)
def with_redzones(monkeypatch):
    monkeypatch.setenv("BLOCKNB_REDZONES", "1")


def test_padding_overrun_is_reported_with_the_line_of_the_buffer(own_cache, monkeypatch):
    """An error of the past: padding was written in steps of the reader's wider vectors, beginning at the end of the written row."""
    right = mask_bounds.MaskBounds.fill

    def wide(bounds, buffer, tail, stop, poison=False):
        right(bounds, buffer, tail._replace(width=64), stop, poison)

    monkeypatch.setattr(mask_bounds.MaskBounds, "fill", wide)
    fresh = blocknb.kernel(above.source.function)
    x, out = (np.arange(64) % 7).astype(np.float32), np.zeros(64, np.int8)
    with pytest.raises(
        CompilerBug, match=r"program \(0, 0, 0\) wrote outside of the scratch buffer of `cast`"
    ) as raised:
        fresh[(1,)](x, out, 17, BLOCK=64)
    assert raised.value.loc.file.endswith("test_cpu_mask_bounds.py")
    assert "codes = tl.load" in open(raised.value.loc.file).read().splitlines()[raised.value.loc.line - 1]


def test_unwritten_padding_reads_as_poison(own_cache, monkeypatch):
    right = mask_bounds.MaskBounds.fill

    def poisons_only(bounds, buffer, tail, stop, poison=False):
        if poison:
            right(bounds, buffer, tail, stop, True)

    monkeypatch.setattr(mask_bounds.MaskBounds, "fill", poisons_only)
    assert wrong_lengths("float32", 64, [1, 17, 40], blocknb.kernel(above.source.function)) == [1, 17, 40]


def test_poison_is_nan_in_every_float_dtype():
    for dtype in ("float16", "float32", "float64"):
        assert np.isnan(np.frombuffer(bytes(redzones.POISON) * 4, dtype)).all()
    assert np.isnan(np.frombuffer(bytes(redzones.POISON) * 4, bfloat16).astype(np.float32)).all()


def test_scratch_with_redzones_shares_no_byte_between_buffers():
    scratch = redzones.GuardedScratch()
    sizes = [1, 64, 65, 4096, 7]
    taken = [(start := scratch.allocate(size), start + size) for size in sizes]
    for start, _ in taken:
        scratch.free(start)
    taken += [(zone.start, zone.end) for zone in scratch.zones]
    ends = sorted(taken)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert sum(end - start for start, end in taken) == scratch.bytes
    assert all(zone.end - zone.start >= 64 for zone in scratch.zones)


def test_redzones_exist_only_on_request(own_cache, monkeypatch):
    def text():
        out = np.zeros(64, np.int8)
        return blocknb.kernel(above.source.function)[(1,)](np.zeros(64, np.float32), out, 17, BLOCK=64).trace.llvm

    assert "call void @run.verify(" in text()
    monkeypatch.delenv("BLOCKNB_REDZONES")
    assert ".verify" not in text()
