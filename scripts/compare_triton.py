"""Compares the language with Triton's: `names`, `record` and `check`.

    python scripts/compare_triton.py names           # what the installed Triton has and blocknb lacks
    python scripts/compare_triton.py record          # writes tests/language/triton_pairs.json.gz with the installed Triton
    python scripts/compare_triton.py check           # compares blocknb with that file; needs no Triton

`check` computes every operator for all pairs of dtypes, and compares result dtype and values. It prints a table, and exits with status 1
if a case differs. `names` and `record` need Triton and ml_dtypes in the environment that runs them.
"""

# ruff: noqa: E402 (paths and the environment are set before the imports)
from __future__ import annotations

import argparse
import ast
import gzip
import importlib
import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

import numpy as np
import triton_pairs as pairs

import blocknb.language as tl
from blocknb.errors import KernelError
from blocknb.frontend import parse  # noqa: F401 (it registers the visitors)
from blocknb.frontend.emitter import Emitter
from blocknb.frontend.parse import parameter_type
from blocknb.frontend.scope import Frame
from blocknb.frontend.source import Source
from blocknb.ir.core import Block, Func, Value
from blocknb.ir.interp import run
from blocknb.language.refused import REFUSED
from blocknb.language.types import Pointer, Tile

TABLE = Path(__file__).parent.parent / "tests" / "language" / "triton_pairs.json.gz"
BLOCKNB = {name: getattr(tl, name) for name in pairs.DTYPES}
NAMES = {dtype: name for name, dtype in BLOCKNB.items()}


def kernel(X, Y, C):  # type: ignore[no-untyped-def]
    """The function in whose scope the cases are evaluated."""
    tl.load(X), tl.load(Y), tl.load(C)


SOURCE = Source(kernel)


def outcome(op: str, left: str, right: str) -> dict[str, Any]:
    """{"type", "bits"} of a case in blocknb, computed by the interpreter of the IR, or {"error"}."""
    x, y = pairs.operands(op, left, right)
    arrays = [x, y, pairs.condition()]
    emit = Emitter()
    frame = Frame(SOURCE, emit)
    params = []
    for name, array in zip("XYC", arrays, strict=True):
        dtype = BLOCKNB[next(n for n, kind in pairs.NUMPY.items() if kind == array.dtype)]
        params.append(Value(parameter_type(Tile(Pointer(dtype))), name))
        frame.names[name] = params[-1]
        frame.names[name.lower()] = visit(frame, f"tl.load({name} + tl.arange(0, {pairs.LANES}))")
    try:
        found = visit(frame, pairs.expression(op, left, right))
    except KernelError as error:
        return {"error": error.message if hasattr(error, "message") else str(error)}
    found = emit.runtime(found)
    dtype, shape = found.type.dtype, found.type.shape
    result = np.zeros(shape or (1,), pairs.NUMPY[NAMES[dtype]])
    params.append(Value(parameter_type(Tile(Pointer(dtype))), "O"))
    frame.names.update(O=params[-1], z=found)
    visit(frame, f"tl.store(O + tl.arange(0, {pairs.LANES}), z)" if shape else "tl.store(O, z)")
    func = Func("kernel", tuple(params), Block((), emit.finish()), "tile")
    with np.errstate(all="ignore"):
        run(func, [*arrays, result], 1)
    return {"type": NAMES[dtype], "bits": pairs.bits(result)}


def visit(frame: Frame, text: str) -> Any:
    return frame.expr(ast.parse(text, mode="eval").body)


def read(path: Path = TABLE) -> dict[str, Any]:
    with gzip.open(path, "rt") as file:
        return json.load(file)


def differs(case: tuple[str, str, str], theirs: dict[str, Any]) -> str | None:
    """How blocknb differs from Triton in a case; None if it does not, or if Triton has no result."""
    if "error" in theirs or unlowered(case):
        return None
    ours = outcome(*case)
    if "error" in ours:
        return f"refused: {ours['error']}"
    if ours["type"] != theirs["type"]:
        return f"{ours['type']}, not {theirs['type']}"
    if "bits" in theirs and not equal(case[0], theirs["type"], ours["bits"], theirs["bits"]):
        return f"{ours['bits']}, not {theirs['bits']}"
    return None


def equal(op: str, dtype: str, ours: list[str], theirs: list[str]) -> bool:
    """Whether two results agree: bit for bit, but for the last bit of functions that are approximations on hardware."""
    if op in ("minimum", "maximum", "minimum_nan", "maximum_nan", "clamp"):  # Triton leaves the sign of a zero open
        zero = "8" + "0" * (pairs.NUMPY[dtype].itemsize * 2 - 1)
        ours, theirs = ([bits.replace(zero, "0") if bits == zero else bits for bits in x] for x in (ours, theirs))
    if ours == theirs or op not in ("exp", "sqrt", "fdiv", "/", "%"):
        return ours == theirs
    return all(
        a == b or ("nan" not in (a, b) and abs(int(a, 16) - int(b, 16)) <= 1) for a, b in zip(ours, theirs, strict=True)
    )


def unlowered(case: tuple[str, str, str]) -> bool:
    """Whether Triton types a case but cannot compile it: arithmetic in an fp8 dtype, and fma of integers."""
    op, left, right = case
    if op == "fma" and not {left, right} & set(pairs.FLOATS):
        return True
    fp8 = [side for side in (left, right) if side.startswith("float8")]
    if fp8 and {left, right} & {n for n in pairs.NUMBERS if abs(float(n == "True" or n)) > 448}:
        return True  # the GPU saturates, and NumPy gives infinity or NaN
    if not fp8 or op in ("cast", "where", "==", "!=", "<", "<=", ">", ">=", "abs"):
        return False
    return op not in pairs.DIVISIONS


def compare(table: dict[str, Any], chosen: Iterable[str] | None = None) -> dict[str, str]:
    """The cases in which blocknb differs, with the difference."""
    found = {}
    for key in table["cases"] if chosen is None else chosen:
        how = differs(tuple(key.split(" ~ ")), table["cases"][key])  # type: ignore[arg-type]
        if how is not None:
            found[key] = how
    return found


def check() -> int:
    table = read()
    found = compare(table)
    compared, wrong = Counter(), Counter()
    for key, theirs in table["cases"].items():
        op, left, right = key.split(" ~ ")
        if "error" not in theirs and not unlowered((op, left, right)):
            compared[op] += 1
            wrong[op] += key in found
    print(f"Triton {table['triton']}: cases compared and differing, by operator")
    for op in compared:
        print(f"{op:12} {compared[op]:6} {wrong[op]:6}")
    print(f"{'all':12} {sum(compared.values()):6} {sum(wrong.values()):6}")
    for key, how in found.items():
        print(f"{key}: {how}")
    return int(bool(found))


MODULES = {
    "triton.language": "blocknb.language",
    "triton": "blocknb.compat",
    "triton.testing": "blocknb.testing",
    "triton.language.extra.libdevice": "blocknb.language.extra.libdevice",
}


def missing() -> dict[str, list[str]]:
    """The public names of the installed Triton that blocknb lacks, by module."""
    found = {}
    for theirs, ours in MODULES.items():
        module, mine = importlib.import_module(theirs), importlib.import_module(ours)
        if theirs == "triton":
            mine = mine.triton
        names = getattr(module, "__all__", None) or [n for n in dir(module) if owned(module, n)]
        found[theirs] = [n for n in names if not has(mine, n)]
    from triton.language import tensor

    from blocknb.language.declarations import MEMBERS

    known = MEMBERS | {"T", "dtype", "shape", "type", "numel", "handle", "data"}
    found["triton.language.tensor"] = [
        n for n in dir(tensor) if not n.startswith("_") and n not in known and n not in REFUSED
    ]
    return found


def owned(module: Any, name: str) -> bool:
    """Whether a public name is defined in the module, and not imported there."""
    found = getattr(module, name)
    return not name.startswith("_") and getattr(found, "__module__", None) == module.__name__


def has(module: Any, name: str) -> bool:
    """Whether a module has the name, or refuses it with a hint."""
    if name in REFUSED or name in getattr(module, "REFUSED", ()):
        return True
    try:
        return hasattr(module, name)
    except KernelError:
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("names", "record", "check"))
    what = parser.parse_args().what
    if what == "check":
        return check()
    if what == "record":
        import triton_oracle

        text = json.dumps(triton_oracle.record(), separators=(",", ":"))
        TABLE.write_bytes(gzip.compress(text.encode(), mtime=0))
        return 0
    found = missing()
    for module, names in found.items():
        print(f"{module}: {', '.join(names) or '-'}")
    return int(any(found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
