"""Unit 3, The machine: multiprocessor, warp, lane, register, request, sector and latency. No new syntax."""

from __future__ import annotations

import numpy as np

from blocknb.analysis.residency import by_registers
from blocknb.learn.exercise import Prediction, Unit
from blocknb.learn.units.neighbouring_lanes import column_sum, pairs_1, stripes_1
from blocknb.learn.units.wide_accesses import pad_1, tail_1
from blocknb.target import Target

UNIT = Unit(3, "The machine", minutes=35)

#: Bytes of a sector, the unit in which a GPU reads and writes memory, and the lanes of a warp.
SECTOR, LANES = 32, 32


def sectors(step: int = 1, offset: int = 0, size: int = 4) -> int:
    """The sectors that a warp touches if lane i accesses element `offset + step * i`, of `size` bytes each."""
    return len(np.unique((offset + step * np.arange(LANES)) * size // SECTOR))


predict_lane = Prediction(
    name="predict-lane",
    title="Which lane holds element 37?",
    question="""\
A program loads a block of fp32 numbers. The 32 lanes of its first warp share the first elements, and each lane loads four adjacent
elements at once: 16 bytes. Lane 0 holds elements 0, 1, 2 and 3. Which lane holds element 37?
""",
    answer=lambda: 37 // 4 % LANES,
    wrong=(
        (37, "there are 32 lanes, numbered from 0 to 31"),
        (5, "37 % 32 is the lane if each lane loads one element. Here each lane loads four"),
        (10, "lane 10 begins at element 40"),
        (1, "37 % 4 is the place within the lane's four elements"),
    ),
    hints=("Which elements does lane 1 hold? And lane 2?", "Lane i begins at element 4 * i.", "37 // 4"),
    reveals="Tiles",
)


def _sectors(
    name: str, title: str, access: str, step: int, offset: int, wrong: tuple[tuple[int, str], ...]
) -> Prediction:
    return Prediction(
        name=name,
        title=title,
        question=f"""\
{access} The numbers are fp32, and the array begins at the start of a sector. How many sectors of 32 bytes does the request of the 32 lanes
touch?
""",
        answer=lambda: sectors(step, offset),
        wrong=wrong,
        hints=(
            "How many bytes lie between the first and the last element? Does every sector in between hold an element?",
            "A sector holds 8 numbers of 4 bytes. Element e lies in sector e // 8.",
            f"The elements are {offset}, {offset + step}, {offset + 2 * step}, ... up to {offset + 31 * step}.",
        ),
        reveals="Tiles",
    )


predict_sectors_1 = _sectors(
    "predict-sectors-1",
    "Neighbouring elements",
    "Lane i of a warp loads element i.",
    1,
    0,
    (
        (32, "neighbours share a sector: 8 numbers of 4 bytes fit into 32 bytes"),
        (1, "32 numbers of 4 bytes are 128 bytes, and a sector has 32"),
        (8, "8 is the number of elements per sector"),
    ),
)
predict_sectors_2 = _sectors(
    "predict-sectors-2",
    "Every second element",
    "Lane i of a warp loads element 2 * i.",
    2,
    0,
    (
        (4, "the elements spread over twice as many bytes: the skipped ones come along"),
        (16, "4 elements of each sector are used, so a sector serves 4 lanes"),
        (32, "a sector still holds 4 of the elements"),
    ),
)
predict_sectors_8 = _sectors(
    "predict-sectors-8",
    "Every eighth element",
    "Lane i of a warp loads element 8 * i.",
    8,
    0,
    (
        (4, "only one of the 8 elements of a sector is used now"),
        (16, "a sector has 8 elements, so every lane needs a sector of its own"),
        (256, "that counts elements; a request of 32 lanes touches at most 32 sectors"),
    ),
)
predict_sectors_offset = _sectors(
    "predict-sectors-offset",
    "Neighbours, one element further",
    "Lane i of a warp loads element i + 1.",
    1,
    1,
    (
        (4, "the 128 bytes begin inside of a sector and end inside of another one"),
        (8, "only the two ends share their sectors with other elements"),
        (32, "neighbours still share their sectors"),
    ),
)
predict_sectors_column = _sectors(
    "predict-sectors-column",
    "A row stored as a column",
    "A warp stores a row of 32 elements as a column: lane i stores element (i, 0) of a matrix with 64 columns.",
    64,
    0,
    (
        (4, "the elements of a column are 64 elements apart: they share no sector"),
        (8, "a step of 64 elements is 256 bytes, or 8 sectors: each lane needs a sector of its own"),
        (64, "a request of 32 lanes touches at most 32 sectors"),
    ),
)

predict_occupancy = Prediction(
    name="predict-occupancy",
    title="How many programs fit on a multiprocessor?",
    question="""\
A program has 4 warps of 32 threads, and each thread needs 124 registers. A multiprocessor of an H100 has 65,536 registers and room for
64 warps. How many of these programs does it hold at once?
""",
    answer=lambda: by_registers(Target.parse("sm_90a"), 4, 124),
    wrong=(
        (16, "64 / 4 = 16 programs have enough warps, but not enough registers: 16 * 128 * 124 is more than 65,536"),
        (528, "65,536 / 124 is the number of threads, not of programs"),
        (1, "one program needs 4 * 32 * 124 registers, a fourth of those that there are"),
        (5, "5 * 4 * 32 * 124 is more than 65,536"),
        (132, "132 is the number of multiprocessors of an H100"),
    ),
    hints=(
        "How many registers does one program need?",
        "4 warps * 32 threads * 124 registers. How often does that fit into 65,536?",
        "65,536 / 15,872, rounded down",
    ),
    reveals="Resources",
)

predict_in_flight = Prediction(
    name="predict-in-flight",
    title="How many bytes must be on their way?",
    question="""\
A load takes 600 ns until its data arrive. The memory of an H200 delivers 4.8 TB/s, that is 4800 bytes per nanosecond. How many bytes must
be on their way at any time to keep the memory busy?
""",
    answer=lambda: 600 * 4800,
    unit="B",
    accepts=0.02,
    wrong=(
        (
            4800,
            "after one nanosecond the first data are still on their way: 599 more nanoseconds of requests must follow",
        ),
        (8, "4800 / 600 has the wrong unit: bytes are rate times time"),
        (4.8e12 * 600, "600 ns are 600e-9 seconds"),
    ),
    hints=(
        "How many bytes does the memory deliver between the request of an element and its arrival?",
        "Rate times time: bytes per nanosecond, times nanoseconds.",
        "4800 * 600",
    ),
)

EXERCISES = (
    predict_lane,
    predict_sectors_1,
    predict_sectors_2,
    predict_sectors_8,
    predict_sectors_offset,
    stripes_1,
    predict_sectors_column,
    pairs_1,
    column_sum,
    pad_1,
    tail_1,
    predict_occupancy,
    predict_in_flight,
)
