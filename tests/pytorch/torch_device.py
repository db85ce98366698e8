"""Where the tests of operators and layers put their tensors: a GPU if there is one, unless BLOCKNB_TORCH_DEVICE names another device.

A module that imports DEVICE has it as its default device, by a fixture of conftest.py.
"""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("BLOCKNB_TORCH_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
