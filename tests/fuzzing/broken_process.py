"""A compiler whose process exits silently at the third launch."""

from __future__ import annotations

import itertools
import os

from blocknb.runtime.host import HostKernel

_right, _count = HostKernel.launch, itertools.count(1)


def wrong(self, *args):
    if next(_count) == 3:
        os._exit(3)
    return _right(self, *args)


HostKernel.launch = wrong
