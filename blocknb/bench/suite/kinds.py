"""The benchmarks of other people's kernels, `blocknb bench kinds`: Triton source of a kind that public projects have, compiled by both.

`Twin` loads a file of `triton_kinds` twice: `import triton` means blocknb in one copy, and Triton in the other. Both run with the same
tiles, warps and stages, which the authors chose for Triton. Results are compared with float64.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from blocknb.bench.suite.definition import Arrays, Make, Shape, SuiteBenchmark, Variant

KINDS = "kinds"  # the first word of the names of these benchmarks
FOLDER = Path(__file__).with_name("triton_kinds")
SMS = 132  # multiprocessors of an H100 or H200: the programs of stream-K
HALF = {"fp16": (5e-3, 5e-2)}


@functools.cache
def loaded(name: str, language: str) -> ModuleType:
    """The module triton_kinds/<name>.py for "blocknb" or for "triton". Raises ImportError without Triton."""
    path = FOLDER / f"{name}.py"
    if language == "blocknb":
        import blocknb

        return blocknb.load(path)
    importlib.import_module("triton")
    spec = importlib.util.spec_from_file_location(f"triton_kinds_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kind(
    name: str,
    file: str,
    call: Callable[[ModuleType, Arrays], Any],
    arrays: Callable[..., tuple[Arrays, Arrays]],
    exact: Callable[..., Any],
    gpu: dict[str, tuple[Shape, ...]],
    cpu: Shape,
    **more: Any,
) -> SuiteBenchmark:
    """A benchmark whose only peer is Triton. `call(module, arrays)` runs the wrapper of a file in one of its two languages."""
    return SuiteBenchmark(
        f"{KINDS}_{name}", "", arrays, lambda kernels, a: call(loaded(file, "blocknb"), a), exact, gpu, (cpu,), lambda shape: (),
        variants={"Triton": Variant("triton", lambda kernels, a: call(loaded(file, "triton"), a), "")}, peers=("Triton",), **more,
    )  # fmt: skip


# -- stream-K


def _flops(m: int, n: int, k: int) -> int:
    return 2 * m * n * k


def _shared_arrays(make: Make, m: int, n: int, k: int) -> tuple[Arrays, Arrays]:
    inputs = {"a": make.normal(m, k), "b": make.normal(k, n)}
    scratch = {
        "locks": _zeros(make, 1 << 16),
        "counts": _zeros(make, 1 << 16),
        "parts": _zeros(make, SMS * 4096, "float32"),
    }
    return inputs | scratch, {"c": make.poison(m, n, dtype="float32")}


def _zeros(make: Make, n: int, dtype: str = "int32") -> Any:
    found = make.poison(n, dtype=dtype)
    found[...] = 0
    return found


def programs(a: Any) -> int:
    """The programs of stream-K: one per multiprocessor. On a CPU, a program that waits must not keep the awaited one from starting."""
    return SMS if type(a).__module__.startswith("cupy") or getattr(a, "is_cuda", False) else 1


def _product(xp: Any, a: Any, b: Any, *_: Any) -> Any:
    return a @ b


# -- block-sparse


def _sparse_arrays(make: Make, m: int, n: int, k: int, side: int) -> tuple[Arrays, Arrays]:
    """A quarter of the blocks, at random places; each row of blocks has at least one."""
    rng = np.random.default_rng()
    present = rng.random((m // side, k // side)) < 0.25
    present[np.arange(m // side), rng.integers(0, k // side, m // side)] = True
    starts = np.concatenate([[0], present.sum(1).cumsum()])
    columns = present.nonzero()[1]
    inputs = {
        "values": make.normal(len(columns), side, side), "b": make.normal(k, n), "starts": _placed(make, starts),
        "columns": _placed(make, columns),
    }  # fmt: skip
    return inputs, {"c": make.poison(m, n)}


def _placed(make: Make, numbers: Any) -> Any:
    """Integers as int32, where the other arrays are."""
    to = make.poison(len(numbers), dtype="int32")
    to[...] = make.xp.asarray(np.asarray(numbers, np.int32)).to(to.device) if hasattr(to, "is_cuda") else numbers
    return to


def _sparse(xp: Any, values: Any, b: Any, starts: Any, columns: Any) -> Any:
    side, starts, columns = values.shape[1], starts.tolist(), columns.tolist()
    rows = []
    for first, last in itertools.pairwise(starts):
        rows.append(sum(values[i] @ b[side * int(columns[i]) :][:side] for i in range(int(first), int(last))))
    return xp.concatenate(rows)


# -- triangles


def _triangle_arrays(make: Make, batch: int, tokens: int, heads: int, side: int, inverse: int) -> tuple[Arrays, Arrays]:
    a = make.normal(batch, tokens, heads, side) * 0.1
    return {"a": a}, {"inverse": make.poison(batch, tokens, heads, inverse)}


def inverses(a: np.ndarray, side: int) -> np.ndarray:
    """The inverses of 1 + the strictly lower blocks on the diagonals, (batch, tokens, heads, side)."""
    batch, tokens, heads, chunk = a.shape
    found = np.empty((batch, tokens, heads, side))
    for first in range(0, tokens, side):
        at = first % chunk
        block = a[:, first : first + side, :, at : at + side].transpose(0, 2, 1, 3)
        found[:, first : first + side] = np.linalg.inv(np.eye(side) + np.tril(block, -1)).transpose(0, 2, 1, 3)
    return found


def _triangles(xp: Any, a: Any, side: int) -> Any:
    if hasattr(a, "is_cuda"):
        return xp.from_numpy(inverses(a.cpu().numpy(), side)).to(a.device)
    return inverses(a, side)


def _merged(module: ModuleType, arrays: Arrays, **options: Any) -> None:
    arrays["inverse"][...] = 0
    module.merged(arrays["a"], arrays["inverse"], **options)


# -- the largest element

BLOCK = 1024  # elements of a program that finds the largest one


def _parts_arrays(make: Make, n: int) -> tuple[Arrays, Arrays]:
    parts = -(-n // BLOCK)
    return {"x": make.normal(n)}, {"best": make.poison(parts), "where": make.poison(parts, dtype="int64")}


def _parts(xp: Any, x: Any) -> tuple[Any, Any]:
    parts = -(-len(x) // BLOCK)
    padded = xp.zeros(parts * BLOCK, **_like(x)) - np.inf
    padded[: len(x)] = x
    rows = padded.reshape(parts, BLOCK)
    return xp.amax(rows, axis=1), xp.argmax(rows, axis=1) + xp.arange(parts, **_like(x)) * BLOCK


def _like(x: Any) -> dict[str, Any]:
    return {"dtype": x.dtype, "device": x.device} if hasattr(x, "is_cuda") else {"dtype": x.dtype}


def _all_arrays(make: Make, parts: int) -> tuple[Arrays, Arrays]:
    places = make.integers_below(1 << 20, parts)
    return {"best": make.normal(parts), "where": places}, {"out": make.poison(1, dtype="int64")}


def _rows_arrays(make: Make, m: int, n: int) -> tuple[Arrays, Arrays]:
    outputs = {"values": make.poison(m, dtype="float32"), "where": make.poison(m, dtype="int32")}
    return {"x": make.normal(m, n)}, outputs


EXACT = {"fp32": (0.0, 0.0), "fp16": (0.0, 0.0)}
TRIANGLE = {"fp32": (1e-4, 1e-5)}
BENCHMARKS = (
    kind(
        "stream_k", "locks", lambda module, a: module.stream_k(a["a"], a["b"], a["c"], a["locks"], programs(a["a"])),
        _shared_arrays, _product, {"fp16": ((4096, 4096, 4096), (1536, 1536, 8192), (1024, 1024, 1024))}, (256, 128, 64),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)}, flops=_flops,
    ),
    kind(
        "stream_k_one_loop", "locks", lambda module, a: module.one_loop(a["a"], a["b"], a["c"], a["locks"], programs(a["a"])),
        _shared_arrays, _product, {"fp16": ((1536, 1536, 8192), (1024, 1024, 1024))}, (256, 128, 64),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)}, flops=_flops,
    ),
    kind(
        "split_k_in_turn", "locks", lambda module, a: module.in_turn(a["a"], a["b"], a["c"], a["locks"], a["counts"], 4),
        _shared_arrays, _product, {"fp16": ((1024, 1024, 4096), (512, 512, 8192))}, (256, 128, 128),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)}, flops=_flops,
    ),
    kind(
        "handed_on", "locks",
        lambda module, a: module.handed_on(a["a"], a["b"], a["c"], a["parts"], a["locks"], programs(a["a"])),
        _shared_arrays, _product, {"fp16": ((2048, 2048, 2048), (1000, 1000, 1000), (512, 512, 4096))}, (100, 70, 60),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)}, flops=_flops,
    ),
    kind(
        "block_sparse", "blocks", lambda module, a: module.block_sparse(*a.values()), _sparse_arrays, _sparse,
        {"fp16": ((4096, 4096, 4096, 64), (4096, 4096, 4096, 32), (2048, 1000, 2048, 64))}, (64, 48, 96, 16),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)},
    ),
    kind(
        "block_rows", "blocks", lambda module, a: module.block_rows(*a.values()), _sparse_arrays, _sparse,
        {"fp16": ((4096, 4096, 4096, 64), (4096, 4096, 4096, 32)), "fp32": ((2048, 2048, 2048, 32),)}, (64, 64, 96, 16),
        tolerance=HALF | {"fp32": (1e-4, 1e-3)},
    ),
    kind(
        "triangles_16", "triangles", lambda module, a: module.solve_16(a["a"], a["inverse"]),
        lambda make, b, t, h, side: _triangle_arrays(make, b, t, h, side, 16), functools.partial(_triangles, side=16),
        {"fp32": ((2, 8192, 16, 64), (8, 2048, 32, 32))}, (1, 96, 2, 32), tolerance=TRIANGLE,
    ),
    kind(
        "triangles_32", "triangles", lambda module, a: _merged(module, a, num_warps=1),
        lambda make, b, t, h, side: _triangle_arrays(make, b, t, h, side, side), functools.partial(_triangles, side=32),
        {"fp32": ((2, 8192, 16, 32),)}, (1, 96, 2, 32), tolerance=TRIANGLE,
    ),
    kind(
        "triangles_64", "triangles", lambda module, a: _merged(module, a, num_warps=4),
        lambda make, b, t, h, side: _triangle_arrays(make, b, t, h, side, side), functools.partial(_triangles, side=64),
        {"fp32": ((2, 8192, 16, 64), (1, 4096, 32, 64))}, (1, 128, 2, 64), tolerance=TRIANGLE,
    ),
    kind(
        "argmax_parts", "partials", lambda module, a: module.argmax_parts(a["x"], a["best"], a["where"], BLOCK),
        _parts_arrays, _parts, {"fp32": ((1 << 24,), (1 << 18,)), "fp16": ((1 << 24,),)}, (10_000,), tolerance=EXACT,
    ),
    kind(
        "argmax_all", "partials", lambda module, a: module.argmax_all(a["best"], a["where"], a["out"]),
        _all_arrays, lambda xp, best, where: where[xp.argmax(best, axis=0)].reshape(1), {"fp32": ((16384,), (1000,))}, (700,),
        tolerance=EXACT,
    ),
    kind(
        "argmax_rows", "partials", lambda module, a: module.argmax_rows(a["x"], a["values"], a["where"]), _rows_arrays,
        lambda xp, x: (xp.amax(x, axis=1), xp.argmax(x, axis=1)),
        {"fp32": ((4096, 4096), (64, 128256)), "fp16": ((4096, 32000),)}, (45, 24), tolerance=EXACT,
    ),
)  # fmt: skip
