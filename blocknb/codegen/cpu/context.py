"""The objects of one version of a kernel that its lowerings share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from blocknb.codegen.cpu.buffers import Scratch
from blocknb.codegen.cpu.builder import KernelBuilder, ScalarNames
from blocknb.codegen.cpu.checks import BoundsChecks
from blocknb.codegen.cpu.dataflow import Dataflow
from blocknb.codegen.cpu.options import CpuOptions
from blocknb.codegen.cpu.redzones import GuardedScratch
from blocknb.codegen.cpu.tiles import TileBuffers
from blocknb.codegen.cpu.uniformity import AddressAnalysis
from blocknb.codegen.text import DebugInfo
from blocknb.trace import Notes

Method = TypeVar("Method", bound=Callable[..., Any])


class VersionContext:
    """The facts about a version (`program`, `options`) and its state: text, names of scalars, buffers of tiles, checks and notes."""

    def __init__(
        self, program: Dataflow, options: CpuOptions, helpers: dict[str, str], debug: DebugInfo | None, first_site: int
    ):
        self.program, self.options, self.notes = program, options, Notes("codegen")
        self.code = KernelBuilder(options.machine, helpers, debug)
        self.scalars = ScalarNames(program.definition)
        self.checks = BoundsChecks(self.code, program.guards, self.scalars, first_site)
        self.tiles = TileBuffers(program, self.code, GuardedScratch() if options.redzones else Scratch())
        speculate = options.uses("loop_versioning")
        self.addresses = AddressAnalysis(program, options.machine, self.scalars.known, speculate)


class VersionPart:
    """The base of the classes that emit a part of a kernel: each has the objects of the context as attributes."""

    def __init__(self, context: VersionContext):
        self.context, self.program, self.options, self.notes = context, context.program, context.options, context.notes
        self.code, self.scalars, self.checks = context.code, context.scalars, context.checks
        self.tiles, self.addresses = context.tiles, context.addresses


def lowers(*names: str) -> Callable[[Method], Method]:
    """Registers a method as the lowering of the ops with these names."""

    def register(method: Method) -> Method:
        method.__dict__["lowers"] = names
        return method

    return register


def lowering_table(*objects: object) -> dict[str, Callable[..., Any]]:
    """The lowerings of some objects, as bound methods by op name."""
    found: dict[str, Callable[..., Any]] = {}
    for one in objects:
        for attribute, method in vars(type(one)).items():
            for name in getattr(method, "lowers", ()):
                assert name not in found, f"{name} has two lowerings"
                found[name] = getattr(one, attribute)
    return found
