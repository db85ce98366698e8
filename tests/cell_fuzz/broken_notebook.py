"""A notebook with a seeded fault, which the fuzzer of cells must find; a worker imports this module before it runs cells."""

from __future__ import annotations

import os

from blocknb.cell_fuzz import requests  # noqa: F401 (adds the requests to the worker)
from blocknb.notebook import document, magics
from blocknb.runtime.host import HostKernel

_launch, _build = HostKernel.launch, document.build


def launch_one_program(self, grid, *args):
    return _launch(self, (1, 1, 1), *args)


def leave(self, grid, *args):
    os._exit(3)


def build_without_list(*args, **kwargs):
    return {**_build(*args, **kwargs), "launches": "none"}


match os.environ["CELL_FUZZ_FAULT"]:
    case "wrong":
        HostKernel.launch = launch_one_program
    case "crashed":
        HostKernel.launch = leave
    case "document":
        document.build = build_without_list
    case "traceback":
        magics.unquoted = None
    case "leaked":
        magics.BlockMagics._stop = lambda self, session: None
