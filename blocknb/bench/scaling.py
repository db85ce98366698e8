"""Compile time as a function of kernel size: by number and kind of statements, by stage, and by tile size.

A family generates a kernel with any number of statements. `kernel(family, n)` defines it as a notebook cell does, and `stages` sums its
compile time by stage. The time of a stage grows as n to the power of its slope; 1 is linear. LLVM and ptxas are separate stages. The tile
kernels apply one operation to tiles of 2^10 to 2^16 elements.
"""

from __future__ import annotations

import gc
import linecache
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from blocknb.errors import KernelError

SIZES = (125, 250, 500, 1000, 2000)
KINDS = ("arithmetic", "memory", "reductions", "branches", "loops", "nested", "calls")
ROUNDS = 2
HEADER = """\
import blocknb
import blocknb.language as tl


@blocknb.kernel
def helper(x, y):
    return x * 0.5 + y


@blocknb.kernel
def kernel(x_ptr, out_ptr, n, COUNT: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * 128 + tl.arange(0, 128)
    x = tl.load(x_ptr + i, mask=i < n)
    y = x
    s = n
"""
FOOTER = "tl.store(out_ptr + i, x + y, mask=i < n)"

FAMILIES: dict[str, Callable[[int], Iterator[str]]] = {}


def family(write: Callable[[int], Iterator[str]]) -> Callable[[int], Iterator[str]]:
    """Registers the body of a kernel: a generator of the lines of n statements."""
    FAMILIES[write.__name__] = write
    return write


# -- the kernels


@family
def arithmetic(n: int) -> Iterator[str]:
    """Elementwise statements, each on the results of the previous two."""
    for k in range(n // 2):
        yield f"x = x * {1 + k % 7 / 8} + y"
        yield f"y = tl.where(x > {k % 5}.0, y - x, x)"


@family
def names(n: int) -> Iterator[str]:
    """One variable per two statements, all live to the end."""
    for k in range(n // 2):
        yield f"a{k} = x + {k}.0"
    for k in range(n // 2):
        yield f"y = y * a{k}"


@family
def memory(n: int) -> Iterator[str]:
    """Loads and stores, which must keep their order."""
    for k in range(n // 2):
        yield f"y = tl.load(x_ptr + i + {k}, mask=i < n)"
        yield f"tl.store(out_ptr + i + {k}, y, mask=i < n)"


@family
def calls(n: int) -> Iterator[str]:
    """Calls of a helper, each inlined."""
    for _ in range(n):
        yield "x = helper(x, y)"


@family
def branches(n: int) -> Iterator[str]:
    """One run-time `if` per two statements."""
    for k in range(n // 2):
        yield f"if s > {k}:"
        yield f"    x = x + {k}.0"


@family
def returns(n: int) -> Iterator[str]:
    """Up to 16 early returns; each nests the rest of the kernel one level deeper."""
    for k in range(min(n // 2, 16)):
        yield f"if s == {k}:"
        yield "    return"
    for k in range(n // 2 - 16):
        yield f"x = x + {k}.0"
    yield "x = x + 1.0"


@family
def loops(n: int) -> Iterator[str]:
    """Loops of three statements, one after another."""
    for k in range(n // 3):
        yield f"for k in range({2 + k % 3}):"
        yield "    x = x * 0.5 + y"
        yield "    y = y + x"


@family
def carried(n: int) -> Iterator[str]:
    """One loop with as many loop-carried values as statements."""
    for k in range(n // 2):
        yield f"a{k} = s + {k}"
    yield "for k in range(s):"
    for k in range(n // 2):
        yield f"    a{k} = a{k} + k"
    yield "x = x + a0"
    for k in range(0, n // 2, 100):
        yield f"x = x + a{k}"


@family
def nested(n: int) -> Iterator[str]:
    """Three nested loops, with five statements in the innermost one."""
    for _ in range(n // 8):
        yield "for a in range(s):"
        yield "    for b in range(s):"
        yield "        for c in range(s):"
        yield "            x = x * 0.5 + a"
        yield "            y = y * 0.5 + b"
        yield "            s = s + c"
        yield "            x = x + y"
        yield "            y = y - x"


@family
def reductions(n: int) -> Iterator[str]:
    """Reductions across warps, each through shared memory."""
    for k in range(n // 2):
        yield f"m = tl.{('sum', 'max')[k % 2]}(x, 0)"
        yield "x = x * 0.5 + m"


@family
def blocks(n: int) -> Iterator[str]:
    """Many variables that branches and loops assign."""
    for k in range(n // 3):
        yield f"a{k} = s + {k}"
    for k in range(n // 6):
        yield f"if s > {k}:"
        yield f"    a{k} = a{k} * 2"
        yield "for k in range(s):"
        yield f"    a{k} = a{k} + k"
    for k in range(0, n // 3, 50):
        yield f"x = x + a{k}"


@family
def unrolled(n: int) -> Iterator[str]:
    """One statement, unrolled at compile time."""
    yield "for k in tl.static_range(COUNT):"
    yield "    x = x * 0.5 + k"


def source(name: str, n: int) -> str:
    """The source of a kernel of a family, with about n statements."""
    return HEADER + "".join(f"    {line}\n" for line in (*FAMILIES[name](n), FOOTER))


def kernel(name: str, n: int) -> Any:
    """The kernel of a family with about n statements."""
    return made(f"{name} {n}", source(name, n))["kernel"]


def made(title: str, text: str) -> dict[str, Any]:
    """Executes a source as a notebook executes a cell, with its lines in linecache. Returns its globals."""
    file = f"<scaling {title}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(text, file, "exec"), names)
    return names


# -- tiles

TILE = """\
import blocknb
import blocknb.language as tl


@blocknb.kernel
def kernel(x_ptr, y_ptr, out_ptr, n):
    i = tl.arange(0, {size})
    x = tl.load(x_ptr + i, mask=i < n)
{body}
"""
TILE_ARGUMENTS = ("*fp32:16", "*fp32:16", "*fp32:16", "i32")
STORE = "tl.store(out_ptr + i, y, mask=i < n)"
TILES: dict[str, tuple[str, ...]] = {
    "add": ("y = x + tl.load(y_ptr + i, mask=i < n)", STORE),
    "softmax": ("y = tl.exp(x - tl.max(x, 0))", "y = y / tl.sum(y, 0)", STORE),
    "reduce": ("tl.store(out_ptr, tl.sum(x, 0))",),
    "transpose": ("y = tl.ravel(tl.trans(tl.reshape(x, ({rows}, {columns}))))", STORE),
    "scan": ("y = tl.cumsum(x, 0)", STORE),
    "sort": ("y = tl.sort(x)", STORE),
    "dot": (
        "y = tl.load(y_ptr + tl.arange(0, {columns})[:, None] * 64 + tl.arange(0, 64)[None, :])",
        "y = tl.dot(tl.reshape(x, ({rows}, {columns})), y)",
        "tl.store(out_ptr + tl.arange(0, {rows})[:, None] * 64 + tl.arange(0, 64)[None, :], y)",
    ),
}


def tile(operation: str, size: int) -> Any:
    """A kernel of one operation on a tile of `size` elements."""
    rows = 1 << size.bit_length() // 2
    body = "\n".join(f"    {line.format(rows=rows, columns=size // rows)}" for line in TILES[operation])
    return made(f"{operation} {size}", TILE.format(size=size, body=body))["kernel"]


# -- the measurement


@contextmanager
def own_cache() -> Iterator[None]:
    """Replaces the shared compilation cache by an empty, temporary one."""
    from blocknb.runtime import cache

    with tempfile.TemporaryDirectory() as folder:
        own = cache.Cache(folder)
        with mock.patch.object(cache, "shared", return_value=own):
            yield


def stages(trace: Any) -> dict[str, float]:
    """Milliseconds by stage: front end, passes, code generation, LLVM and ptxas."""
    groups = {"front": 0.0, "passes": 0.0, "codegen": 0.0, "LLVM": 0.0, "ptxas": 0.0}
    for stage, elapsed in trace.milliseconds.items():
        if stage == "worker":
            continue
        group = {"parse": "front", "codegen": "codegen", "ptxas": "ptxas"}.get(stage)
        groups[group or ("LLVM" if stage.startswith("llvm") else "passes")] += elapsed
    return groups


def slope(times: dict[int, float]) -> float:
    """The exponent of growth over the larger half of the sizes, by least squares on logarithms; nan without two positive times."""
    points = [(math.log(n), math.log(times[n])) for n in sorted(times)[len(times) // 2 :] if times[n] > 0]
    if len(points) < 2:
        return math.nan
    x, y = (sum(axis) / len(points) for axis in zip(*points, strict=True))
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def statements(
    names: Sequence[str] = KINDS,
    targets: Sequence[str] = ("sm_90a", "cpu"),
    sizes: Sequence[int] = SIZES,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """A row per family, target and size, in milliseconds; the last row of each family and target has the slopes. A time is the minimum of
    `rounds` compilations with an empty cache, because other load on the machine only adds time."""
    rows: list[dict[str, Any]] = []
    for target in targets:
        cold("arithmetic", 20, target)  # starts the workers
        for name in names:
            found: dict[str, dict[int, float]] = {}
            for n in sizes:
                runs = [cold(name, n, target) for _ in range(rounds)]
                times = {stage: min(run[stage] for run in runs) for stage in runs[0]}
                times["all"] = sum(times.values())
                for stage, elapsed in times.items():
                    found.setdefault(stage, {})[n] = elapsed
                rows.append({"kernel": name, "target": target, "statements": n, **times})
            rows.append({"kernel": "", "target": "", "statements": "slope"} | {s: slope(t) for s, t in found.items()})
    return rows


def cold(name: str, n: int, target: str) -> dict[str, float]:
    """Milliseconds by stage of one compilation with empty caches."""
    from blocknb.runtime import compile as compiler

    made = kernel(name, n)
    compiler.forget()
    gc.collect()
    with own_cache():
        return stages(made.trace("*fp32:16", "*fp32:16", "i32", COUNT=n, target=target))


def tiles(
    names: Sequence[str] = tuple(TILES), targets: Sequence[str] = ("sm_90a", "cpu"), size: int = 1 << 16
) -> list[dict[str, Any]]:
    """A row per operation, target and number of warps (4 to 32 on a GPU). It has the milliseconds by stage on a tile of `size` elements, or
    the error message."""
    rows: list[dict[str, Any]] = []
    with own_cache():
        for target in targets:
            tile("add", 1024).trace(*TILE_ARGUMENTS, target=target)  # starts the workers
            for name in names:
                for warps in (4, 8, 16, 32) if target.startswith("sm") else (4,):
                    begin = time.perf_counter()
                    times: dict[str, float] = {}
                    said = ""
                    try:
                        times = stages(tile(name, size).trace(*TILE_ARGUMENTS, target=target, num_warps=warps))
                    except KernelError as error:
                        said = f"{error.message}; {error.hint}" if error.hint else error.message
                    elapsed = (time.perf_counter() - begin) * 1e3
                    rows.append(
                        {
                            "tile": f"{name} {size}",
                            "target": target,
                            "warps": warps,
                            "ms": elapsed,
                            **times,
                            "says": said,
                        }
                    )
    return rows
