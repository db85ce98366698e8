"""A kernel may have any name that Python allows, including names that LLVM and PTX do not."""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.codegen.text import symbol
from blocknb.codegen.toolchain import find_ptxas
from blocknb.target import Target

NAMES = ["größe", "Δx", "_", "__", "shared", "llvm", "add", "ret", "main", "memcpy"]


def named(name: str) -> Any:
    source = f"@blocknb.kernel\ndef {name}(out):\n    tl.store(out, tl.sum(tl.arange(0, 512)))\n"
    file = f"<names {name}>"
    linecache.cache[file] = (0, None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"blocknb": blocknb, "tl": tl}
    exec(compile(source, file, "exec"), names)
    return names[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_of_any_name_runs(name):
    out = np.zeros(1, np.int32)
    assert named(name)[(1,)](out).metadata.name == name
    assert out[0] == 511 * 256


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_a_kernel_of_any_name_assembles(name, target):
    if find_ptxas(Target.parse(target)) is None:
        pytest.skip("there is no ptxas on this machine")
    compiled = named(name).compile("*i32", target=target)
    assert compiled.code.entry == symbol(name)
    assert f".entry {symbol(name)}(" in compiled.asm["ptx"]
    assert compiled.n_regs > 0


def test_different_names_get_different_symbols():
    assert len({symbol(name) for name in [*NAMES, "größen", "grosse"]}) == len(NAMES) + 2
