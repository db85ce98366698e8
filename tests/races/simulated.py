"""Runs the GPU code of a kernel in the simulator, with shadow memory in Python: which thread notes which element with which key."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
from fuzz import simt, simt_calls

import blocknb
from blocknb.codegen import gpu, report, shadow
from blocknb.ir.interp_shadow import ShadowAccount
from blocknb.ir.shadow import ACTIONS, ShadowPlan, lanes_error, ordered_pair, plan_of, race_error
from blocknb.runtime.reports import hidden
from blocknb.runtime.shadow import HostShadow
from blocknb.target import Target
from races.corpus import RaceCase


class SimulatedShadow:
    """Takes the calls of the functions on shadow memory."""

    def __init__(self, plan: ShadowPlan, memory: HostShadow):
        self.plan, self.memory, self.account = plan, memory, ShadowAccount()
        self.error: blocknb.RaceError | None = None
        self.calls: Counter[str] = Counter()

    def call(self, env: Any, match: re.Match, *args: np.ndarray) -> None:
        """One call of all threads."""
        name, active = match[1], env["@"].active
        on = active & args[-1] if name not in ("lock", "record") else active
        for thread in np.flatnonzero(on):
            self.one(name, [int(x[thread]) for x in args])
        self.calls[name] += int(on.sum())

    def one(self, name: str, args: list[int]) -> None:
        if name == "join":
            _, address, program, acquires, releases, _ = args
            self.account.join([address], self.memory._program(program), bool(acquires), bool(releases))
        elif name == "check":
            _, address, _, action, program, site, _ = args
            self.note(ACTIONS[action], address, self.plan.sites[site], program)
        elif name == "mark":
            _, address, _, action, key, _ = args
            bits = self.plan.site_bits
            self.note(ACTIONS[action], address, self.plan.sites[key - 1 & (1 << bits) - 1], key - 1 >> bits)
        elif name == "record":
            _, address, mine, lane, kind = args
            assert kind == shadow.KINDS["lanes"]
            site, program = self.memory._plain(mine)
            if self.error is None:
                self.error = lanes_error(*self.memory._element(address, site), site, program, (lane,))

    def note(self, action: str, address: int, site: Any, number: int) -> None:
        if not any(region.lower <= address < region.upper for region in self.memory.regions):
            return
        program = self.memory._program(number)
        found = self.account.note(action, [address], site, program)
        if found is not None and (self.error is None or self.error.program == self.error.other_program):
            pair = ordered_pair(found[1], (site, program))
            self.error = race_error(*self.memory._element(address, pair[0][0]), pair, self.plan.clocked)


def simulate(kernel: Any, made: dict[str, Any], grid: tuple[int, ...], trace: Any, target: str) -> SimulatedShadow:
    """Runs the GPU code of a trace on NumPy arrays."""
    func = trace.stages[-1].after
    module, plan = gpu.generate(func, Target.parse(target)), plan_of(func)
    assert plan is not None
    values = [made[hint.name] for hint in func.hints]
    low = {i: np.lib.array_utils.byte_bounds(x) for i, x in enumerate(values) if isinstance(x, np.ndarray)}
    arrays = {i: (func.hints[i].name, values[i].ctypes.data, *low[i]) for i in low}
    memory = HostShadow(plan, arrays, (*grid, 1, 1)[:3])  # type: ignore[arg-type]
    words = np.zeros(report.WORDS, np.int64)
    bounds = [(*low[i], values[i].itemsize) for i in module.extents]
    extra = [words, *hidden(module, 0, bounds)[1:], memory.memory[memory.context - memory.memory.ctypes.data :]]
    found = SimulatedShadow(plan, memory)
    pattern = r"[\w.]+\.shadow\.(\w+)"
    simt_calls.INTRINSICS[pattern] = found.call
    try:
        simt.run(module, [*values, *extra], grid)
    finally:
        del simt_calls.INTRINSICS[pattern]
    return found


def simulated(case: RaceCase, trace: Any, target: str) -> SimulatedShadow:
    return simulate(case.kernel, dict(case.make()), case.grid, trace, target)
