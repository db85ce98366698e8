"""Measures what an eager call of a `@blocknb.torch_op` costs, compared with torch's `Library.define` and `impl` for the same function.

`python scripts/operator_overhead.py [--rounds N] [--calls N] [--device cuda]` calls three candidates in turns. They are the function alone,
the operator of `define` and `impl`, and the `torch_op`. It prints the smallest mean time per call in microseconds. Then it repeats this
with a gradient, where the peer is `torch.library.register_autograd`. The function launches one kernel on 64 elements.
`blocknb bench torch_overheads` has the medians on a GPU.
"""

from __future__ import annotations

import argparse
import time

import torch

from blocknb.bench.torch_layers.operator_calls import operator_calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases = operator_calls(given.device)
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(given.rounds):
        for name, call in cases.items():
            begin = time.process_time()
            for _ in range(given.calls):
                call()
            best[name] = min(best[name], (time.process_time() - begin) / given.calls * 1e6)
    for name, microseconds in best.items():
        print(f"{name:36} {microseconds:6.1f} us")


if __name__ == "__main__":
    main()
