"""Writes a finding as a self-contained script: the kernel, its inputs by seed, and the expected results.

The script exits with status 1 as long as the defect exists.
"""

from __future__ import annotations

import base64
import inspect
import zlib
from typing import Any

import numpy as np

from blocknb.fuzz import data, source
from blocknb.fuzz import tree as t
from blocknb.fuzz.compare import expected
from blocknb.fuzz.dtypes import held, is_float, limits
from blocknb.fuzz.evaluate import evaluate
from blocknb.fuzz.execute import LARGE, LINES, Outcome

_PROGRAM = '''"""{title}

{detail}

Found by `{command}`; went wrong: {blame}.
Exits 1 while the defect stands.
"""

import base64
import ctypes
import os
import sys
import tempfile
import zlib

os.environ["BLOCKNB_CACHE_DIR"] = tempfile.mkdtemp()  # the compiler of today, not what it made before

import ml_dtypes
import numpy as np

{kernel}

DTYPES = {dtypes}
TARGET = {target!r}
FEATURES = {features!r}


{fill}

def unpacked(text, dtype):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


# name, dtype, size, fill, elements from an aligned address, the array that it views, seed
ARRAYS = {arrays}
SCALARS = {scalars}
# name: the expected elements (floats as fp64) and how far each may be off (None: not at all), compressed
EXPECTED = {{
{expected}}}


def arrays():
    """The arguments by name, each between two guards of 64 bytes 0xA5."""
    owners, found = {{}}, {{}}
    for name, dtype, size, kind, offset, base, seed in ARRAYS:
        if base:
            found[name] = found[base][offset : offset + size]
            continue
        values = fill(dtype, size, kind, np.random.default_rng(seed))
        item = values.dtype.itemsize
        raw = np.full((size + offset) * item + 192, 0xA5, np.uint8)
        start = -raw.ctypes.data % 64 + 64 + offset * item
        owners[name] = raw, start, start + size * item
        found[name] = raw[start : start + size * item].view(values.dtype)
        found[name][:] = values
    return owners, found


def main():
    if FEATURES:
        from blocknb import target

        target.assume_host(FEATURES)
    if TARGET == "cpu":  # small arrays as large ones, short kernels as long ones, scratch that holds garbage
        from blocknb.codegen.cpu import outlining
        from blocknb.passes.tile import nontemporal_stores
        from blocknb.runtime import host

        nontemporal_stores.LARGE, outlining.LINES = {stress}
        plain = type(host._scratch).at_least
        byte = 0xFF

        def at_least(memory, size):
            address = plain(memory, size)
            ctypes.memset(address, byte, size)
            return address

        type(host._scratch).at_least = at_least
    if TARGET not in ("cpu", "cuda"):
        from blocknb.ir import interp
    failures = 0
    for byte in (0xFF, 0x7B):
        owners, given = arrays()
        arguments = dict(given)
        if TARGET == "cuda":
            import cupy
            from blocknb import language
            from blocknb.runtime.interface import reinterpret

            device = {{name: cupy.asarray(raw) for name, (raw, _, _) in owners.items()}}
            for name, dtype, size, _, offset, base, _ in ARRAYS:
                item = given[name].dtype.itemsize
                begin = owners[base or name][1] + (offset * item if base else 0)
                view = device[base or name][begin : begin + size * item]
                if dtype in ("bf16", "e4nv", "e5"):
                    names = {{"bf16": "bfloat16", "e4nv": "float8e4nv", "e5": "float8e5"}}
                    bits = view.view(cupy.uint16 if dtype == "bf16" else cupy.uint8)
                    arguments[name] = reinterpret(bits, getattr(language, names[dtype]))
                else:
                    arguments[name] = view.view(given[name].dtype)
        if TARGET in ("cpu", "cuda"):
            {name}[{grid}](**arguments, **SCALARS, **{options})
        else:
            func = {name}.compile(**arguments, **SCALARS, target=TARGET, **{options}).trace.stages[-1].after
            interp.run(func, [{{**arguments, **SCALARS}}[hint.name] for hint in func.hints], {grid})
        if TARGET == "cuda":
            for name, (raw, _, _) in owners.items():
                raw[:] = device[name].get()
        for name, (raw, start, stop) in owners.items():
            if (raw[:start] != 0xA5).any() or (raw[stop:] != 0xA5).any():
                failures += 1
                print(f"memory next to {{name}} has changed")
            want, err = (None if part is None else unpacked(*part) for part in EXPECTED[name])
            got = given[name].astype(want.dtype)
            with np.errstate(all="ignore"):
                near = (got == want) | ((got != got) & (want != want))
                if err is not None:
                    near |= (np.abs(got - want) <= err) | np.isinf(err)
            for i in np.flatnonzero(~near)[:5]:
                print(f"{{name}}[{{i}}] is {{got[i]!r}}, expected {{want[i]!r}}")
            failures += not near.all()
    print("the defect stands" if failures else "right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
'''


def _packed(array: np.ndarray) -> str:
    text = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()
    return f"({text!r}, {array.dtype.name!r})"


def script(kernel: t.KernelTree, outcome: Outcome, blamed: Any, command: str, device: str, features: str) -> str:
    """The script for one failing launch of a kernel."""
    number = outcome.launch
    inputs = data.inputs(kernel, number)
    memory = evaluate(kernel, inputs, number)
    lines = []
    for name, (want, err) in expected(kernel, memory).items():
        bound = _packed(err) if err.any() else "None"
        lines.append(f"    {name!r}: ({_packed(want)}, {bound}),\n")
    arrays = [
        (a.name, a.dtype, a.size, a.fill, a.offset, a.base, [kernel.seed, number, i])
        for i, a in enumerate(kernel.arrays)
    ]
    return _PROGRAM.format(
        title=f"{kernel.name}: {outcome.kind}",
        detail=outcome.detail.replace("\\", "\\\\").replace('"""', "'''")[:2000],
        command=command,
        blame=blamed,
        kernel=source.module([kernel], device),
        dtypes=_dtypes({a.dtype for a in kernel.arrays}),
        target=device,
        features=features,
        stress=(LARGE, LINES),
        fill=_fill(),
        arrays=_listed(arrays),
        scalars=repr({a.name: a.values[number % len(a.values)] for a in kernel.scalars}),
        expected="".join(lines),
        name=kernel.name,
        grid=kernel.grid,
        options=kernel.options,
    )


def _listed(rows: list[Any]) -> str:
    return "[\n" + "".join(f"    {row!r},\n" for row in rows) + "]"


def _dtypes(names: set[str]) -> str:
    """A table from dtype to its NumPy dtype, whether it is a float, and the limits of an integer."""
    spelled = {
        "bf16": "ml_dtypes.bfloat16",
        "e4nv": "ml_dtypes.float8_e4m3fn",
        "e5": "ml_dtypes.float8_e5m2",
        "i1": "np.bool_",
    }
    rows = []
    for name in sorted(names):
        kind = spelled.get(name) or f"np.{held(name).name}"
        if is_float(name) and name not in spelled:
            kind = {"f16": "np.float16", "f32": "np.float32", "f64": "np.float64"}[name]
        rows.append(f"{name!r}: (np.dtype({kind}), {is_float(name)}, {(0, 0) if is_float(name) else limits(name)})")
    return "{" + ", ".join(rows) + "}"


def _fill() -> str:
    """The source of the function in `data` that draws inputs; a table replaces the facts about dtypes."""
    return inspect.getsource(data.drawn).replace("def drawn(", "def fill(").replace("facts(dtype)", "DTYPES[dtype]")
