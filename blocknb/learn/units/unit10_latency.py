"""Unit 10, Hide latency: stages, copies that run ahead, tensor descriptors, waves, and the whole matrix product."""

from __future__ import annotations

from blocknb.learn.exercise import Prediction, Unit
from blocknb.learn.units.matrix_goal import GEMM_6
from blocknb.learn.units.matrix_pipeline import DESCRIPTOR_1, STAGES_1, WAVE_1

UNIT = Unit(10, "Hide latency", 45)


def ring(stages: int, tile_kib: int, operands: int) -> tuple[int, int]:
    """The KiB of shared memory of a circular buffer, and the iterations whose copies can run while another one multiplies."""
    return stages * tile_kib * operands, stages - 1


PREDICT_RING = Prediction(
    "predict-ring",
    "Count the stages of a circular buffer",
    question="""\
A loop multiplies a tile of `a` and a tile of `b` in each iteration. Each of the two has a circular buffer with 3 slots of 16 KB. While
one iteration multiplies what is in its slots, the copies of later iterations fill the other slots.

How many KB of shared memory do the buffers take together? And the copies of how many later iterations can be under way, or have arrived,
while one iteration multiplies? Answer with two numbers: `(KB, iterations)`.""",
    answer=lambda: ring(3, 16, 2),
    unit="KB",
    wrong=(
        ((48, 2), "Each of the two operands has a buffer of its own: 2 * 3 * 16 KB."),
        (
            (96, 3),
            "One of the three slots holds what is being multiplied, so the copies of two later iterations have room.",
        ),
        ((48, 3), "There are two buffers, and one of the three slots is being multiplied."),
        ((32, 2), "All three slots take memory, also while they wait to be filled."),
        ((96, 1), "Three slots, of which one is being multiplied: two are left."),
        ((96, 6), "A slot of `a` and a slot of `b` belong to one iteration."),
        ((96, 4), "A slot of `a` and a slot of `b` belong to one iteration."),
        ((2, 96), "The order of the answer is (KB, iterations)."),
    ),
    hints=(
        "How many slots are there in all, with those of both operands? What does a copy need before it can begin?",
        "2 operands with 3 slots of 16 KB each. One slot of each operand is being multiplied.",
        "2 * 3 * 16 KB, and 3 - 1 iterations.",
    ),
    reveals="Timeline",
)

EXERCISES = (PREDICT_RING, STAGES_1, DESCRIPTOR_1, WAVE_1, GEMM_6)
