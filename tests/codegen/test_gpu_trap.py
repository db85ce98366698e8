"""`debug="trap"`: a failed assertion on a GPU calls CUDA's `__assertfail`, so a launch has no report that the host would wait for."""

from __future__ import annotations

import pytest

import blocknb
import blocknb.language as bl
from blocknb import LaunchError


@blocknb.kernel
def looked_up(table, index, out, BLOCK: bl.constexpr):
    i = bl.arange(0, BLOCK)
    at = bl.load(index + i)
    bl.device_assert((at >= 0) & (at < 100), "index out of the table")
    bl.device_assert(at != 7, "no sevens")
    bl.store(out + i, bl.load(table + at))


def traced(**options):
    return looked_up.trace("*fp32:16", "*i32:16", "*fp32:16", BLOCK=128, **options)


def test_a_trap_has_the_message_and_needs_no_report():
    trapping, reporting = traced(debug="trap"), traced(debug=True)
    names = [line for line in trapping.llvm.splitlines() if "constant [" in line]
    assert len(names) == 4  # two messages, the file, the kernel
    assert any('c"' + "".join(f"\\{byte:02X}" for byte in b"no sevens\0") + '"' in line for line in names)
    assert trapping.ptx.count("call.uni") >= 2 and ".extern .func __assertfail" in trapping.ptx
    assert "atom" not in trapping.ptx and "atom" in reporting.ptx and "__assertfail" not in reporting.ptx
    assert "%report" in reporting.llvm and "%report" not in trapping.llvm


def test_checked_mode_reports_as_ever():
    assert "__assertfail" not in traced(debug="trap", checked=True).ptx


def test_the_cpu_tests_the_assertion_as_with_true():
    import numpy as np

    table, index, out = np.arange(100, dtype=np.float32), np.full(128, 3, np.int32), np.zeros(128, np.float32)
    index[5] = 7
    with pytest.raises(blocknb.KernelError, match="no sevens"):
        looked_up[1,](table, index, out, BLOCK=128, debug="trap")


def test_another_value_is_refused():
    with pytest.raises(LaunchError, match="debug is 'halt'") as caught:
        traced(debug="halt")
    assert '"trap"' in caught.value.hint
