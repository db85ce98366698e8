"""The threads of a CTA for `simt`: they run in lockstep until a branch separates the roles, and then each role by itself."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import numpy as np

from blocknb.codegen.gpu import GpuModule
from blocknb.runtime.cta import programs_of_cta
from fuzz import simt_bulk, simt_wgmma
from fuzz.simt_memory import Memory

Env = dict[str, Any]


class Function:
    """A function: parameters as (type, name), and for each label (phis, straight code, terminator)."""

    def __init__(self, name: str, parameters: list[tuple[str, str]], threads: int):
        self.name, self.parameters, self.threads = name, parameters, threads
        self.blocks: dict[str, tuple[list, list, tuple]] = {}


@functools.lru_cache(4)
def constants_of(text: str) -> dict[str, str]:
    """The values of the numbers in constant memory that a module defines, each with its type, by name."""
    return dict(re.findall(r"^(@\S+) = .*\baddrspace\(4\) .*\bconstant (\w+ -?\d+)", text, re.MULTILINE))


class Machine:
    """Threads of one CTA: its shared memory and its place in the grid. When threads diverge, those of a role continue in a machine of
    their own, and share the rest."""

    def __init__(
        self,
        variants: Callable,
        memory: Memory,
        module: GpuModule,
        program: tuple,
        sizes: tuple,
        engine: simt_bulk.Engine,
    ):
        self.variants, self.memory, self.threads, self.all = variants, memory, module.threads, module.threads
        self.program, self.sizes, self.engine = program, sizes, engine
        self.functions, self.ids, self.text = variants(self.threads), np.arange(self.threads), module.text
        self.agents: list[Iterator[bool]] = []
        self.products = simt_wgmma.Products()
        self.together = programs_of_cta(sizes, module.programs, sms=0)  # they do not communicate
        whole = np.full(module.shared_bytes + 1024, 0xA5, np.uint8)
        self.buffer = whole[-whole.ctypes.data % 1024 :][: module.shared_bytes]
        self.shared, self.base = Memory([self.buffer]), self.buffer.ctypes.data
        self.shared.unseen = np.zeros(module.shared_bytes, bool)
        self.active = np.ones(self.threads, bool)  # the threads that access memory now
        self.copies: list[list[tuple]] = [[]]  # the groups of copies in flight; the last one is not committed yet

    def constant(self, kind: str, name: str) -> np.ndarray:
        """A number in constant memory, in each thread."""
        defined, number = constants_of(self.text)[name].split()
        if defined != kind:
            raise ValueError(f"a load of {kind} from {name}, which is {defined}")
        bits = int(kind[1:])
        return np.full(self.threads, int(number) % (1 << bits), f"u{bits // 8}").view(f"i{bits // 8}")

    def barrier(self, count: int = 0) -> None:
        if self.threads != (count or self.all):
            raise ValueError(f"a barrier of {count or self.all} threads, and {self.threads} are here")
        self.memory.watch.barrier()
        self.shared.watch.barrier()

    def start(self, function: Function, values: Sequence[Any]) -> list[Iterator[bool]]:
        """The generators that run a kernel: one, until threads diverge."""
        self.agents.append(self.walk(function, self.environment(function, values), "entry", ""))
        return self.agents

    def environment(self, function: Function, values: Sequence[Any]) -> Env:
        return {name: v for (_, name), v in zip(function.parameters, values, strict=True)} | {"@": self}

    def call(self, function: Function, values: Sequence[Any]) -> Any:
        walk = self.walk(function, self.environment(function, values), "entry", "")
        try:
            next(walk)
        except StopIteration as end:
            return end.value
        raise ValueError(f"{function.name} waits")

    def walk(self, function: Function, env: Env, label: str, before: str) -> Generator[bool, None, Any]:
        """Runs from a block to the end of the function. Yields True when it waits, False when other threads may run."""
        while True:
            phis, body, end = function.blocks[label]
            env.update({name: arms[before](env) for name, arms in phis})  # all at once
            for name, step in body:
                value = step(env)
                if name:
                    env[name] = value
                elif isinstance(value, simt_bulk.Wait):
                    while not value.over():
                        yield True
                elif value is simt_bulk.SWITCH:
                    yield False
            if end[0] == "ret":
                return end[1](env) if end[1] else None
            before = label
            if len(end) < 4:
                label = end[2]
            elif not (chosen := self.choose(function, env, end)):
                self.part(function, env, end, label)
                return None
            else:
                label = chosen

    def choose(self, function: Function, env: Env, branch: tuple) -> str:
        """The label at which all threads continue ("": they diverge). A short branch of only some threads runs here."""
        _, condition, yes, no = branch
        taken = condition(env)
        if (taken == taken[0]).all():
            return yes if taken[0] else no
        phis, body, end = function.blocks[yes]
        if phis or end != ("br", None, no) or function.blocks[no][0]:
            return ""
        self.active = taken
        for name, step in body:
            env[name or "-"] = step(env)
        self.active = np.ones(self.threads, bool)
        return no

    def part(self, function: Function, env: Env, branch: tuple, label: str) -> None:
        """Threads take different branches, each to the end of the kernel; consumer groups run separately."""
        if not self.engine.barriers:
            raise ValueError("threads of a program take different branches")
        _, condition, *targets = branch
        taken = condition(env)
        team = self.ids // (env["%tid"].max() + 1)  # threads are numbered within their consumer group
        for target, there in zip(targets, (taken, ~taken), strict=True):
            for number in np.unique(team[there]):
                who = there & (team == number)
                role = copy.copy(self)
                role.threads, role.ids, role.copies = int(who.sum()), self.ids[who], [[]]
                role.products = simt_wgmma.Products()
                role.active, role.functions = np.ones(role.threads, bool), self.variants(role.threads)
                own = {name: simt_bulk.part(value, who) for name, value in env.items()} | {"@": role}
                self.agents.append(role.walk(role.functions[function.name], own, target, label))
