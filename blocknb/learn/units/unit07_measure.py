"""Unit 7, measure: what a time says, which roof limits a kernel, and how to choose the configurations of a search.

No verdict of this unit depends on a time. The predictions follow from bytes, operations and the data sheet of a GPU. The exercise tune-1
checks the reasons of a choice, not its speed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from blocknb import cdiv
from blocknb.learn.code_rules import assembles
from blocknb.learn.exercise import Blank, Case, CheckFinding, Exercise, Mistake, Prediction, Rule, Unit
from blocknb.learn.rules import no_race, stored_once
from blocknb.learn.running import Attempt
from blocknb.tune.config import Config

UNIT = Unit(7, "Measure", minutes=30)

#: An H100 SXM5 by NVIDIA's data sheet: GB/s of its memory, and TFLOP/s of fp32 and of fp16 on tensor cores, dense.
H100 = {"GB/s": 3350.0, "fp32": 67.0, "tensor fp16": 989.0}

#: Kernels for roof-1: (description, floating-point operations, bytes, kind of arithmetic).
KERNELS = (
    ("a: the sum of two fp32 vectors of 10 million elements", 1e7, 12e7, "fp32"),
    ("b: the product of two fp16 matrices of 4096 x 4096", 2 * 4096**3, 3 * 4096**2 * 2, "tensor fp16"),
    (
        "c: the softmax of 4096 rows of 4096 fp32 numbers, with 5 operations per element",
        5 * 4096**2,
        2 * 4096**2 * 4,
        "fp32",
    ),
    ("d: an fp32 matrix of 4096 x 4096 times a vector", 2 * 4096**2, 4096**2 * 4, "fp32"),
    ("e: a polynomial of degree 200 of 10 million fp32 numbers, in place of each", 400 * 1e7, 8e7, "fp32"),
    ("f: the product of two fp16 matrices of 64 x 64", 2 * 64**3, 3 * 64**2 * 2, "tensor fp16"),
)


def balance(kind: str) -> float:
    """The operations that an H100 can do in the time in which its memory moves one byte."""
    return 1000 * H100[kind] / H100["GB/s"]


def _roofs() -> str:
    """One letter per kernel: m if memory limits it, c if computation does."""
    return "".join("c" if flops / size > balance(kind) else "m" for _, flops, size, kind in KERNELS)


def _wrong_roofs() -> Iterator[tuple[str, str]]:
    """Every wrong answer of six letters, with a sentence about the first letter that is wrong."""
    right = _roofs()
    for letters in itertools.product("mc", repeat=len(right)):
        wrong = [number for number, letter in enumerate(letters) if letter != right[number]]
        if wrong:
            text, flops, size, kind = KERNELS[wrong[0]]
            rate = f"{flops / size:.1f} operations per byte"
            yield "".join(letters), f"Look at {text[0]} again: it does {rate}, and the limit is {balance(kind):.0f}."


TIMES = (10.2, 10.0, 10.1, 14.9, 10.0)

PREDICTIONS = (
    Prediction(
        name="predict-median",
        title="Predict the time that describes a kernel",
        question=f"Five runs of a kernel took {', '.join(map(str, TIMES))} µs. During one of them, another process used the machine. "
        "How many µs would you report?",
        answer=lambda: float(np.median(TIMES)),
        unit="µs",
        accepts=0.012,
        wrong=(
            (
                lambda: round(float(np.mean(TIMES)), 2),
                "The mean contains the disturbed run. Sort the times and take the middle one.",
            ),
            (14.9, "14.9 µs is the run that another process disturbed."),
        ),
        hints=(
            "Which of the five times is not the kernel's own?",
            "Sort the times. One disturbed run moves the mean, but hardly the middle.",
            "Sorted: 10.0, 10.0, 10.1, 10.2, 14.9.",
        ),
    ),
    Prediction(
        name="predict-time",
        title="Predict the least time of a kernel",
        question="The memory of an H100 moves 3350 GB/s. A kernel adds two arrays of 100 million fp32 numbers, and stores the sum. "
        "How many microseconds does it take at least?",
        answer=lambda: 3 * 4 * 1e8 / (H100["GB/s"] * 1e9) * 1e6,
        unit="µs",
        accepts=0.05,
        wrong=(
            (
                lambda: round(2 * 4e8 / H100["GB/s"] / 1e3),
                "That is the time of two arrays. The third one is stored, and stores count, too.",
            ),
            (
                lambda: round(4e8 / H100["GB/s"] / 1e3),
                "That is the time of one array. Two are loaded, and one is stored.",
            ),
            (lambda: round(3e8 / H100["GB/s"] / 1e3), "An fp32 number has 4 bytes."),
        ),
        hints=(
            "How many bytes do the three arrays have?",
            "Three arrays of 100 million numbers of 4 bytes: 1.2 billion bytes.",
            "1.2e9 bytes / 3350e9 bytes per second, in millionths of a second.",
        ),
    ),
    Prediction(
        name="roof-1",
        title="Say which roof limits six kernels",
        question="An H100 moves 3350 GB/s. It computes 67 TFLOP/s in fp32, which is 20 operations per byte. "
        "It computes 989 TFLOP/s in fp16 on its tensor cores, which is 295 operations per byte. "
        "Which limits these kernels: memory (m) or computation (c)?\n\n"
        + "\n".join(f"- {text}" for text, _, _, _ in KERNELS)
        + "\n\nAnswer with six letters, such as `mmcmmc`.",
        answer=_roofs,
        accepts=(" ".join(_roofs()), ", ".join(_roofs())),
        wrong=tuple(_wrong_roofs()),
        hints=(
            "For each kernel, divide its operations by its bytes. Is that above or below 20, or 295 for fp16 products?",
            "a: 1 operation for 12 bytes. b: 2 * 4096**3 operations for 3 * 4096**2 * 2 bytes, which is 1365 per byte.",
            "e does 400 operations for 8 bytes. f does 2 * 64**3 operations for 3 * 64**2 * 2 bytes, which is 21 per byte.",
        ),
    ),
)

# ---- tune-1 --------------------------------------------------------------------------------------------------------------------

TUNE = """@blocknb.kernel
def weighted(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, 0.75 * tl.load(x + at, mask=inside) + 0.25 * tl.load(y + at, mask=inside), mask=inside)


configs = [
    blocknb.Config({"BLOCK": 512}, num_warps=4),
    blocknb.Config({"BLOCK": 1024}, num_warps=4),
    blocknb.Config({"BLOCK": 2048}, num_warps=4),
    blocknb.Config({"BLOCK": 1024}, num_warps=8),
    blocknb.Config({"BLOCK": 2048}, num_warps=8),
    blocknb.Config({"BLOCK": 4096}, num_warps=8),
]
"""

_LIST = TUNE[TUNE.index("configs") :]
NO_LIST = "the cell defines no list `configs`"
NO_CONFIG = "an entry of `configs` is no blocknb.Config: write blocknb.Config({'BLOCK': 1024}, num_warps=4)"
NO_BLOCK = "a configuration sets other constants than BLOCK, which is the only one of the kernel"
NO_POWER = "BLOCK and num_warps must be powers of two"
TOO_FEW = "there are fewer than six different configurations"
ONE_BLOCK = "all configurations have the same BLOCK"
ONE_WARPS = "all configurations have the same num_warps"
TOO_SMALL = "a configuration has fewer than 4 elements per thread, so a lane cannot load 16 bytes at a time"
TOO_MANY = "a configuration has more than 32 warps, and a program may have 1024 threads at most"
TOO_LARGE = "a configuration has more than 64 elements per thread, which may spill registers"


def _broken(configs: Any) -> str:
    """The fault of a list of configurations, or ""."""
    if not isinstance(configs, list | tuple):
        return NO_LIST
    if not all(isinstance(config, Config) for config in configs):
        return NO_CONFIG
    if any(set(config.kwargs) != {"BLOCK"} for config in configs):
        return NO_BLOCK
    chosen = {(config.kwargs["BLOCK"], config.num_warps or 4) for config in configs}
    if any(not isinstance(n, int) or n <= 0 or n & (n - 1) for pair in chosen for n in pair):
        return NO_POWER
    if len(chosen) < 6:
        return TOO_FEW
    per_thread = [block / (32 * warps) for block, warps in chosen]
    for broken, text in (
        (len({block for block, _ in chosen}) == 1, ONE_BLOCK),
        (len({warps for _, warps in chosen}) == 1, ONE_WARPS),
        (max(warps for _, warps in chosen) > 32, TOO_MANY),
        (min(per_thread) < 4, TOO_SMALL),
        (max(per_thread) > 64, TOO_LARGE),
    ):
        if broken:
            return text
    return ""


def _six_configurations(made: Attempt) -> Iterator[CheckFinding]:
    if text := _broken(made.answer.names.get("configs")):
        yield CheckFinding(text, "rule", True)


def _case(n: int) -> Case:
    def make(rng: np.random.Generator) -> dict[str, Any]:
        x, y = rng.standard_normal((2, n)).astype(np.float32)
        return {"x": x, "y": y, "out": np.empty(n, np.float32), "n": n, "BLOCK": 1024}

    return Case(str(n), make)


def _swapped(new: str) -> str:
    return TUNE.replace(_LIST, new)


def _listed(pairs: list[tuple[Any, int]]) -> str:
    return _swapped(
        "configs = [" + ", ".join(f'blocknb.Config({{"BLOCK": {b}}}, num_warps={w})' for b, w in pairs) + "]\n"
    )


tune_1 = Exercise(
    name="tune-1",
    title="Choose six configurations with a reason",
    task="""The kernel is given. Write the list `configs` of at least six different configurations such as
`blocknb.Config({"BLOCK": 1024}, num_warps=4)`. Vary `BLOCK` and `num_warps`, both powers of two.

A thread should have 4 elements at least, so that it can load 16 bytes at a time.
It should have 64 at most, so that they fit into its registers.
A program has `32 * num_warps` threads.""",
    cases=(_case(100_000), _case(1000), _case(5)),
    outputs=("out",),
    grid=lambda n, BLOCK, **_: (cdiv(n, BLOCK),),
    reference=lambda x, y, **_: {"out": 0.75 * x.astype(np.float64) + 0.25 * y.astype(np.float64)},
    rules=(
        Rule("six_configurations", "There are six configurations, each with a reason.", _six_configurations, once=True),
        stored_once,
        no_race,
        assembles,
    ),
    solution=TUNE,
    blanks=(Blank(8, 15, "six configurations"),),
    hints=(
        "How many elements does a thread get if BLOCK is 1024 and a program has four warps?",
        "BLOCK / (32 * num_warps) must lie between 4 and 64. Which pairs of powers of two are that?",
        "With 4 warps: 512 to 8192. With 8 warps: 1024 to 16384. Choose three of each.",
    ),
    mistakes=(
        Mistake(NO_LIST, source=_swapped("")),
        Mistake(NO_CONFIG, source=_swapped("configs = [512, 1024, 2048, 4096, 8192, 16384]\n")),
        Mistake(NO_BLOCK, patch=('"BLOCK": 512', '"SIZE": 512')),
        Mistake(NO_POWER, source=_listed([(1000, 4), (1500, 4), (2000, 4), (1000, 8), (1500, 8), (2000, 8)])),
        Mistake(TOO_FEW, source=_listed([(512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 4)])),
        Mistake(TOO_FEW, source=_listed([(512, 4), (1024, 4), (1024, 8), (2048, 8), (2048, 4), (512, 4)])),
        Mistake(ONE_BLOCK, source=_listed([(4096, 1 << i) for i in range(1, 7)])),
        Mistake(ONE_WARPS, source=_listed([(512 << i, 4) for i in range(5)] + [(8192 * 2, 4)])),
        Mistake(TOO_SMALL, source=_listed([(128, 4), (256, 4), (512, 4), (1024, 4), (1024, 8), (2048, 8)])),
        Mistake(TOO_LARGE, source=_listed([(1024, 4), (2048, 4), (16384, 4), (32768, 4), (1024, 8), (2048, 8)])),
        Mistake(TOO_MANY, source=_listed([(512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8), (16384, 64)])),
        Mistake(NO_POWER, source=_listed([(1024, 3), (2048, 6), (2048, 4), (1024, 4), (1024, 8), (2048, 8)])),
        Mistake("the kernel is not yours to change: its weights are 0.75 and 0.25", patch=("0.25", "0.75")),
    ),
    alternatives=(
        _swapped("configs = [blocknb.Config({'BLOCK': b}, num_warps=w) for b in (1024, 2048, 4096) for w in (4, 8)]\n"),
        _listed([(128, 1), (256, 1), (256, 2), (512, 2), (1024, 4), (2048, 4)]),
        _listed([(512, 4), (1024, 4), (2048, 4), (4096, 4), (8192, 4), (16384, 8), (8192, 8)]),
        _swapped(
            'configs = (blocknb.Config({"BLOCK": 1024}, 4), *[blocknb.Config({"BLOCK": 1024 << i}, 8) for i in range(5)])\n'
        ),
        _listed([(2048, 2), (2048, 4), (2048, 8), (2048, 16), (4096, 4), (4096, 8), (4096, 16)]),
    ),
)

EXERCISES = (*PREDICTIONS, tune_1)
