"""Hints for names that the language does not have but NumPy, torch, CUDA or Python does.

The hints come from a table, because the name with the closest spelling is often wrong (`astype` resembles `type`).
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

from blocknb.language.declarations import BUILTINS
from blocknb.language.library import LIBRARY

_DEVICE = "import it: from blocknb.language.extra import libdevice"
INSTEAD = {
    "all": "tl.min(condition.to(tl.int32), axis)",
    "amax": "tl.max(x, axis)",
    "amin": "tl.min(x, axis)",
    "any": "tl.max(condition.to(tl.int32), axis)",
    "append": "lists are immutable tuples in a kernel: use parts + (value,)",
    "arccos": f"libdevice.acos(x); {_DEVICE}",
    "arcsin": f"libdevice.asin(x); {_DEVICE}",
    "arctan": f"libdevice.atan(x); {_DEVICE}",
    "arctan2": f"libdevice.atan2(y, x); {_DEVICE}",
    "astype": "x.to(dtype)",
    "bfloat16": "tl.bfloat16 is a dtype: x.to(tl.bfloat16)",
    "blockDim": "a program works on whole tiles: tl.arange(0, BLOCK)",
    "blockIdx": "tl.program_id(axis)",
    "clip": "tl.clamp(x, low, high)",
    "concat": "tl.cat(a, b) for one axis, tl.join(a, b) makes a new one",
    "concatenate": "tl.cat(a, b) for one axis, tl.join(a, b) makes a new one",
    "copy": "values are immutable, so they need no copies",
    "double": "x.to(tl.float64)",
    "einsum": "tl.dot(a, b) for matrices, tl.sum(a * b, axis) for the rest",
    "empty": "tl.zeros(shape, dtype)",
    "extend": "lists are immutable tuples in a kernel: use parts + more",
    "flatten": "tl.ravel(x)",
    "float": "x.to(tl.float32)",
    "full_like": "tl.full(x.shape, value, x.dtype)",
    "gelu": "0.5 * x * (1 + tl.erf(x * 0.7071067811865476))",
    "half": "x.to(tl.float16)",
    "int": "x.to(tl.int32)",
    "isfinite": f"libdevice.finitef(x); {_DEVICE}",
    "isinf": f"libdevice.isinf(x); {_DEVICE}",
    "isnan": "x != x",
    "item": "a scalar needs no conversion; tl.sum(x) reduces a tile to a scalar",
    "linspace": "start + tl.arange(0, N) * step",
    "log10": f"libdevice.log10(x); {_DEVICE}",
    "log1p": f"libdevice.log1p(x); {_DEVICE}",
    "long": "x.to(tl.int64)",
    "matmul": "tl.dot(a, b)",
    "mean": "tl.sum(x, axis) / n",
    "mm": "tl.dot(a, b)",
    "ndim": "len(x.shape)",
    "norm": "tl.sqrt(tl.sum(x * x, axis))",
    "ones": "tl.full(shape, 1, dtype)",
    "ones_like": "tl.full(x.shape, 1, x.dtype)",
    "pow": f"x * x, or libdevice.pow(x, y); {_DEVICE}",
    "power": f"x * x, or libdevice.pow(x, y); {_DEVICE}",
    "prod": "tl.reduce(x, axis, multiply), where multiply is a kernel of two values",
    "range": "tl.range or Python's range in a `for`, tl.arange for a tile",
    "relu": "tl.maximum(x, 0.0)",
    "round": f"libdevice.rint(x); {_DEVICE}",
    "sign": "tl.where(x > 0, 1.0, tl.where(x < 0, -1.0, 0.0))",
    "silu": "x * tl.sigmoid(x)",
    "size": "x.numel",
    "square": "x * x",
    "squeeze": "tl.squeeze(x, dim)",
    "stack": "tl.join(a, b)",
    "std": "tl.sqrt(tl.sum((x - mean) * (x - mean), axis) / n)",
    "syncthreads": "tl.debug_barrier(); loads and stores of one program are in order without it",
    "tan": f"libdevice.tan(x); {_DEVICE}",
    "threadIdx": "a program works on whole tiles: tl.arange(0, BLOCK)",
    "tril": "tl.where(rows[:, None] >= columns[None, :], x, 0)",
    "triu": "tl.where(rows[:, None] <= columns[None, :], x, 0)",
    "transpose": "tl.trans(x)",
    "unsqueeze": "x[:, None], or tl.expand_dims(x, axis)",
    "var": "tl.sum((x - mean) * (x - mean), axis) / n",
}
#: Names in other libraries for functions that the language has under another name.
SYNONYMS = {
    "absolute": "abs", "fabs": "abs", "fmax": "maximum", "fmin": "minimum", "divide": "fdiv", "where": "where", "clamp": "clamp",
    "prod": "reduce", "amax": "max", "amin": "min", "matmul": "dot", "transpose": "trans", "concatenate": "cat",
}  # fmt: skip


def instead_of(name: str) -> str | None:
    """The hint for a name that the language does not have."""
    return INSTEAD.get(name)


def instead_of_function(name: str) -> str:
    """The hint for a call of a host function of that name."""
    known = SYNONYMS.get(name, name)
    if known in BUILTINS or known in LIBRARY:
        return f"tl.{known} works on run-time values"
    return INSTEAD.get(name) or "use the function of the same meaning in blocknb.language"


#: Names of dtypes in NumPy, ml_dtypes and torch that differ from those of the language.
FOREIGN_DTYPES = {
    "bool": "int1", "bool_": "int1", "half": "float16", "double": "float64", "single": "float32",
    "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5", "float8_e4m3fnuz": "float8e4b8", "float8_e5m2fnuz": "float8e5b16",
}  # fmt: skip


def literal_dtype_name(x: Any, names: Iterable[str]) -> str | None:
    """The name in the language of a NumPy or torch dtype such as np.float32, or None for any other object."""
    name = str(getattr(x, "__name__", x)).removeprefix("torch.")
    name = FOREIGN_DTYPES.get(name, name)
    return name if name in names else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    known = dict.fromkeys(c for c in candidates if not c.startswith("_"))
    import difflib

    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    if len(close) == 2:  # show the second guess only if it is nearly as close
        first, second = (difflib.SequenceMatcher(None, c, name).ratio() for c in close)
        close = close[: 1 if first - second > 0.1 else 2]
    return f"did you mean {' or '.join(f'`{c}`' for c in close)}?" if close else None


#: Builtins of Python that a kernel can call; no other one is a guess for a misspelled name.
USABLE = frozenset(
    (
        "abs",
        "bool",
        "float",
        "getattr",
        "hasattr",
        "int",
        "isinstance",
        "len",
        "max",
        "min",
        "print",
        "range",
        "str",
        "tuple",
        "zip",
    )
)


def hint_for_unknown_name(visible: Iterable[str], name: str) -> str | None:
    """The hint for an unknown name: a name of the language without its module, or the closest name that the kernel can use."""
    if name in BUILTINS or name in LIBRARY:
        return f"write tl.{name}, after `import blocknb.language as tl`"
    known = (c for c in visible if not hasattr(builtins, c) or c in USABLE)
    return did_you_mean(name, known) or did_you_mean(name, (f"tl.{c}" for c in (*BUILTINS, *LIBRARY)))


def instead_of_array(name: str, result: Any) -> str:
    """The function of the language that makes a tile, instead of NumPy's function that made this array; empty for other results."""
    made = type(result).__module__ == "numpy" and type(result).__name__ == "ndarray"
    if not made or name not in ("zeros", "ones", "full", "empty"):
        return ""
    return "tl.zeros((BLOCK,), dtype=tl.float32) and tl.full((BLOCK,), value, dtype=tl.float32) make tiles"
