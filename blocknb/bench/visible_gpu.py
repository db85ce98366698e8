"""`blocknb bench --device 1`: makes one GPU the only one that this process and its children see."""

from __future__ import annotations

import argparse
import os

DEVICES = ("cpu", "gpu", "")


def device(text: str) -> str:
    """The value of the option `--device`: cpu, gpu, or the number of a GPU."""
    if text not in DEVICES and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no device; write cpu, gpu, or the number of a GPU, such as 1")
    return text


def select(wanted: str) -> str:
    """Hides all GPUs but the one of a number, before CUDA starts. Returns the kind of device: "cpu", "gpu" or "".

    The number counts the GPUs of CUDA_VISIBLE_DEVICES, if it is set. Raises ValueError for a number that it does not have.
    """
    if not wanted.isdecimal():
        return wanted
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if visible and int(wanted) >= len(visible):
        raise ValueError(
            f"--device {wanted}: CUDA_VISIBLE_DEVICES={','.join(visible)} has GPUs 0 to {len(visible) - 1}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(wanted)] if visible else wanted
    return "gpu"
