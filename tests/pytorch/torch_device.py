"""Where the tests of `blocknb.torch` put their tensors: a GPU if there is one, unless BLOCKNB_TORCH_DEVICE names another device."""

from __future__ import annotations

import os

import torch

DEVICE = os.environ.get("BLOCKNB_TORCH_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE != "cpu":
    torch.set_default_device(DEVICE)
