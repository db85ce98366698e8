"""The kernels of `blocknb bench kinds` on small arrays: stream-K with locks, block-sparse products, inverses of triangles, argmax."""

import itertools

import numpy as np
import triton
from zoo.arrays import empty, zeros
from zoo.registry import integers, normal, specimen

from blocknb.bench.suite.kinds import inverses, loaded, programs

HALF = np.float16


def locked(name):
    """A stream-K wrapper with tiles of 32 x 32 x 32. It uses one program where programs run one after another."""

    def call(a, b):
        c, locks = empty(a, (a.shape[0], b.shape[1]), "float32"), zeros(a, 64, "int32")
        used = min(programs(a), 7)
        getattr(loaded("locks", "blocknb"), name)(a, b, c, locks, used, tile=(32, 32, 32), num_warps=4)
        return c

    return call


for _name in ("stream_k", "one_loop"):  # `fused` has stream-K by atomics
    specimen(
        f"{_name}_locks", locked(_name), lambda a, b: a @ b, 1e-2, 1e-3,
        even=lambda rng: {"a": normal(rng, 96, 160, dtype=HALF), "b": normal(rng, 160, 64, dtype=HALF)},
    )  # fmt: skip


def in_turn(a, b, split):
    c, locks, counts = empty(a, (a.shape[0], b.shape[1]), "float32"), zeros(a, 64, "int32"), zeros(a, 64, "int32")
    loaded("locks", "blocknb").in_turn(a, b, c, locks, counts, split, tile=(32, 32, 32), num_warps=4)
    return c


specimen(
    "in_turn", in_turn, lambda a, b, split: a @ b, 1e-2, 1e-3,
    four=lambda rng: {"a": normal(rng, 64, 256, dtype=HALF), "b": normal(rng, 256, 64, dtype=HALF), "split": 4},
)  # fmt: skip


def handed_on(a, b, used):
    c, flags = empty(a, (a.shape[0], b.shape[1]), "float32"), zeros(a, used, "int32")
    parts = empty(a, (used, 32 * 32), "float32")
    loaded("locks", "blocknb").handed_on(a, b, c, parts, flags, used, tile=(32, 32, 32))
    return c


specimen(
    "handed_on", handed_on, lambda a, b, used: a @ b, 1e-2, 1e-3,
    ragged=lambda rng: {"a": normal(rng, 70, 200, dtype=HALF), "b": normal(rng, 200, 60, dtype=HALF), "used": 6},
)  # fmt: skip


def block_rows(values, b, starts, columns):
    c = empty(b, (values.shape[1] * (len(starts) - 1), b.shape[1]))
    loaded("blocks", "blocknb").block_rows(values, b, starts, columns, c, 32)
    return c


def block_rows_reference(values, b, starts, columns):
    side = values.shape[1]
    parts = [values[i] @ b[side * columns[i] :][:side] for i in range(len(columns))]
    return np.concatenate([sum(parts[first:last]) for first, last in itertools.pairwise(starts)])


def block_inputs(rng, side, dtype):
    return {
        "values": normal(rng, 5, side, side, dtype=dtype), "b": normal(rng, 3 * side, 64, dtype=dtype),
        "starts": np.array([0, 1, 5], np.int32), "columns": np.array([2, 0, 1, 2, 0], np.int32),
    }  # fmt: skip


specimen(
    "block_rows", block_rows, block_rows_reference, 1e-2, 2e-3,
    half=lambda rng: block_inputs(rng, 16, HALF), single=lambda rng: block_inputs(rng, 32, np.float32),
)  # fmt: skip


def triangles(a, side):
    inverse = zeros(a, (*a.shape[:3], side))
    module = loaded("triangles", "blocknb")
    if side == 16:
        module.solve_16(a, inverse)
    else:
        module.merged(a, inverse)
    return inverse


specimen(
    "triangles", triangles, lambda a, side: inverses(a, side), 1e-4, 1e-5,
    sixteen=lambda rng: {"a": normal(rng, 1, 96, 2, 32) * np.float32(0.1), "side": 16},
    thirty_two=lambda rng: {"a": normal(rng, 2, 64, 1, 32) * np.float32(0.1), "side": 32},
    sixty_four=lambda rng: {"a": normal(rng, 1, 64, 2, 64) * np.float32(0.1), "side": 64},
)  # fmt: skip


def argmax(x):
    """Returns the first index of the largest element."""
    parts, module = triton.cdiv(x.shape[0], 128), loaded("partials", "blocknb")
    best, where, out = empty(x, parts), empty(x, parts, "int64"), empty(x, 1, "int64")
    module.argmax_parts(x, best, where, 128)
    module.argmax_all(best, where, out)
    return out


specimen(
    "argmax", argmax, lambda x: np.array([np.argmax(x)]),
    ties=lambda rng: {"x": integers(rng, 0, 5, 1000).astype(np.float32)},
    floats=lambda rng: {"x": normal(rng, 700)},
)  # fmt: skip


def argmax_rows(x):
    values, where = empty(x, x.shape[0], "float32"), empty(x, x.shape[0], "int32")
    loaded("partials", "blocknb").argmax_rows(x, values, where, block=128)
    return values, where


specimen(
    "argmax_rows", argmax_rows, lambda x: (x.max(1), x.argmax(1).astype(np.int32)),
    ties=lambda rng: {"x": rng.integers(0, 9, (5, 300)).astype(np.float32)},
    floats=lambda rng: {"x": normal(rng, 3, 257)},
)  # fmt: skip
