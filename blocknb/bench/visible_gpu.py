"""`blocknb bench --device 1`: makes one GPU the only one that this process and its children see."""

from __future__ import annotations

import argparse
import itertools
import os

DEVICES = ("cpu", "gpu", "")


def device(text: str) -> str:
    """The value of the option `--device`: cpu, gpu, or the number of a GPU."""
    if text not in DEVICES and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no device; write cpu, gpu, or the number of a GPU, such as 1")
    return text


def select(wanted: str) -> str:
    """Hides all GPUs but the one of a number, before CUDA starts. Returns the kind of device: "cpu", "gpu" or "".

    The number counts the GPUs of CUDA_VISIBLE_DEVICES, if it is set. As in CUDA, the list ends before -1, and an empty one hides all GPUs.
    Raises ValueError for a number that it does not have.
    """
    if not wanted.isdecimal():
        return wanted
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        os.environ["CUDA_VISIBLE_DEVICES"] = wanted
        return "gpu"
    visible = list(itertools.takewhile(lambda name: name not in ("", "-1"), map(str.strip, named.split(","))))
    if int(wanted) >= len(visible):
        has = f"has GPUs 0 to {len(visible) - 1}" if visible else "hides all GPUs"
        raise ValueError(f"--device {wanted}: CUDA_VISIBLE_DEVICES={','.join(visible)} {has}")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(wanted)]
    return "gpu"
