"""`blocknb bench plan_check`: how close the plans of `blocknb.kernels.matmul` come to an exhaustive search over their candidates.

The benchmark draws random shapes and measures every candidate of `blocknb.kernels.plans` for them. It compares the candidate that the cost
model chooses with the fastest one. Before that it compares the result of each candidate with the product in float64. A candidate with a
wrong result is reported and not measured.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocknb.bench.rows import Row, show
from blocknb.bench.suite.definition import Make, MakeTorch
from blocknb.bench.suite.products import TOLERANCE
from blocknb.bench.suite.runner import BenchOptions
from blocknb.errors import Unsupported
from blocknb.kernels import gemm, plans
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.shapes import Plan
from blocknb.kernels.strides import device
from blocknb.profile.timing import interleaved

CLOSE = 1.05  # a choice counts as good up to this multiple of the best time
FIRST_ROUNDS = 4  # after these rounds, only candidates near the best one are measured
NEAR = 1.15
RTOL, ATOL = TOLERANCE["fp16"]  # for each element
NORM = 5e-4  # of the difference, relative to the norm of the product: an fp16 result, rounded once, has 2e-4
LEAST, MOST = 65, 6000  # rows, columns and depth of the shapes; fewer rows have candidates of their own
STEPS = (
    1,
    8,
    64,
)  # sizes are multiples of these: 64 makes rows begin at lines of 128 bytes, 8 at multiples of 16 bytes


def drawn(seed: int, count: int) -> list[tuple[int, int, int]]:
    """`count` random shapes (M, N, K)."""
    draw, found = random.Random(seed), []
    for i in range(count):
        step = STEPS[i % len(STEPS)]
        m, n, k = (step * draw.randint(-(-LEAST // step), MOST // step) for _ in range(3))
        found.append((m, n, k))
    return found


def check(make: Make, m: int, n: int, k: int, rounds: int) -> Row:
    """Measures all candidates for a product of fp16 matrices; the row has the chosen one, the fastest one, and the ratio of their times.

    `problems` names the candidates with wrong results, if there are any. If the chosen one is among them, the ratio is infinite.
    """
    a, b, out = make.normal(m, k), make.normal(k, n), make.poison(m, n)
    p = MatmulProblem.of(a, b, out)
    found = plans.candidates(p.m, p.n, p.k, device(a), p.operand_rows, p.aligned, p.along_k)
    chosen = str(min(found)[1])
    calls = {str(one): functools.partial(_compute, a, b, out, one) for _, one in found}
    wrong = wrong_results(make, make.wide(a) @ make.wide(b), out, calls)
    calls = {name: call for name, call in calls.items() if name not in wrong}
    row: Row = {"shape": f"{m}x{n}x{k}", "candidates": len(found), "chosen": chosen}
    row |= {"problems": dict.fromkeys(wrong, "wrong result")} if wrong else {}
    if chosen in wrong:
        return row | {"fastest": "", "us": math.inf, "ratio": math.inf}

    def near(times: Mapping[str, Sequence[float]]) -> list[str]:
        if min(map(len, times.values())) < FIRST_ROUNDS:
            return list(times)
        medians = {name: statistics.median(values) for name, values in times.items()}
        limit = NEAR * min(medians.values())
        return [name for name, median in medians.items() if name == chosen or median <= limit]

    times = interleaved(calls, gpu=True, rounds=rounds, warmup=1, going=near).complete()
    best = min(times, key=lambda name: times[name].median)
    return row | {
        "fastest": best,
        "us": 1e3 * times[best].median,
        "ratio": times[chosen].median / times[best].median,
    }


def wrong_results(make: Make, exact: Any, out: Any, calls: Mapping[str, Callable[[], Any]]) -> list[str]:
    """The names of the calls that do not write the product to `out`.

    Their result has NaN, or an element that differs by more than ATOL + RTOL times itself, or its differences exceed NORM in total."""
    xp, found = make.xp, []
    norm = float(xp.sqrt(xp.sum(exact * exact)))
    for name, call in calls.items():
        make.spoil(out)
        call()
        off = xp.abs(make.wide(out) - exact)
        near = bool((off <= ATOL + RTOL * xp.abs(exact)).all())
        if not near or not float(xp.sqrt(xp.sum(off * off))) <= NORM * norm:
            found.append(name)
    return found


def _compute(a: Any, b: Any, out: Any, chosen: Plan) -> Any:
    return gemm.carry_out(MatmulProblem.of(a, b, out), chosen)


def run(options: BenchOptions) -> list[Row]:
    """The plans of matrix products against an exhaustive search, for `--shapes-count` random shapes. Needs a GPU.

    Raises Unsupported without a GPU.
    """
    from blocknb.runtime import machine

    if options.device == "cpu" or not machine.has_gpu():
        raise Unsupported(
            "plan_check measures products on a GPU, and CuPy found none", hint="blocknb bench gemm --device cpu"
        )
    make, seed = MakeTorch("cuda", "fp16"), options.seed or 1
    rows: list[Row] = []
    ended: list[Row] = []
    try:
        for shape in drawn(seed, options.shapes_count):
            rows.append(check(make, *shape, options.rounds))
            print(".", end="", flush=True)
    except KeyboardInterrupt:
        ended = [{"interrupted": True}]
    if not rows:
        return ended
    ratios = sorted(row["ratio"] for row in rows)
    close = sum(ratio <= CLOSE for ratio in ratios) / len(ratios)
    show(f"Plans of fp16 products against an exhaustive search, seed {seed}", rows)
    print(
        f"within {CLOSE - 1:.0%} of the fastest candidate: {close:.1%} of {len(ratios)} shapes; geometric mean of the ratios "
        f"{statistics.geometric_mean(ratios):.3f}, largest {ratios[-1]:.3f}"
    )
    wrong = sum(len(row.get("problems", ())) for row in rows)
    print(f"wrong results: {wrong} of {sum(row['candidates'] for row in rows)}")
    return rows + ended
