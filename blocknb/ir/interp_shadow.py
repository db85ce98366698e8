"""The account of accesses in the interpreters, by vector clocks (Fidge and Mattern, 1988), for each byte of the arrays.

The interpreters run programs one after another. Two accesses of different programs have a race all the same, if no atomic orders them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from blocknb.ir.core import Op
from blocknb.ir.report import action_of
from blocknb.ir.shadow import (
    ACTIONS,
    CONFLICTS,
    Program,
    ShadowSite,
    lanes_error,
    ordered_pair,
    race_error,
    undefined_error,
)

Clock = dict[Program, int]


class ShadowAccount:
    """The accesses of a launch to each byte, and the clocks of its programs."""

    def __init__(self) -> None:
        #: The log by address, action and program: the clock of the last access and its site.
        self.accesses: dict[int, dict[str, dict[Program, tuple[int, ShadowSite]]]] = defaultdict(dict)
        self.known: dict[Program, Clock] = defaultdict(dict)
        self.released: dict[int, Clock] = defaultdict(dict)

    def note(
        self, action: str, addresses: Sequence[int], site: ShadowSite, program: Program
    ) -> tuple[int, tuple[ShadowSite, Program]] | None:
        """Notes an access to elements. Returns the address of the first race and the other access, or None."""
        now, known = self._now(program), self.known[program]
        for address in addresses:
            for byte in range(address, address + site.bytes):
                noted = self.accesses[byte]
                for other in CONFLICTS[action]:
                    for whose, (clock, where) in noted.get(other, {}).items():
                        if whose != program and clock > known.get(whose, 0):
                            return address, (where, whose)
                noted.setdefault(action, {})[program] = now, site
        return None

    def join(self, addresses: Sequence[int], program: Program, acquires: bool, releases: bool) -> None:
        """An atomic that orders accesses: the clocks of its addresses and of the program learn from each other."""
        now, known = self._now(program), self.known[program]
        for address in addresses:
            released = self.released[address]
            if acquires:
                _learn(known, released)
            if releases:
                _learn(released, known | {program: now})
        if releases:
            known[program] = now + 1

    def _now(self, program: Program) -> int:
        return self.known[program].setdefault(program, 1)


def _learn(clock: Clock, other: Clock) -> None:
    for program, moment in other.items():
        clock[program] = max(clock.get(program, 0), moment)


Race = tuple[int, list[tuple[ShadowSite, Program]]]


def note_access(
    account: ShadowAccount, op: Op, program: Program, addresses: Sequence[int], size: int, writes: bool
) -> Race | None:
    """Notes an access that no shadow op notes. Returns the address of a race and its two accesses, or None.

    `writes` is false for a compare-and-swap that does not swap, which only reads.

    The pass `memory_order` has not run, so every atomic and volatile load may wait for another program, and acquires.
    """
    atomic = "sem" in op.attrs and op.name != "load"
    volatile = bool(op.attrs.get("volatile"))
    action = op.name if not atomic else "update"
    if atomic and op.attrs.get("scope") == "cta":
        atomic, action = False, "store"
    site = ShadowSite(op.loc, action_of(op), (), size)
    found = account.note("observe" if volatile or not writes else action, addresses, site, program)
    if atomic or volatile:
        account.join(addresses, program, True, atomic and writes and op.attrs["sem"] in ("release", "acq_rel"))
    return None if found is None else (found[0], ordered_pair(found[1], (site, program)))


def shadow_step(space: Any, op: Op, program: Program, tiles: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    """Executes a shadow op in an AddressSpace on (elements, which of them this machine reports) of its operands. Raises RaceError."""
    if op.name == "clock_lock":  # programs run one after another
        return
    pointers, on = tiles[0]
    if len(tiles) > 1:
        on = on & tiles[1][0]
    lanes = np.flatnonzero(on)
    addresses = space.host_addresses(np.asarray(pointers).reshape(-1)[lanes]).tolist()
    if op.name == "clock_join":
        sem = op.attrs["sem"]
        space.account.join(addresses, program, sem in ("acquire", "acq_rel"), sem in ("release", "acq_rel"))
        return
    attrs, size = op.attrs, op.args[0].type.dtype.element.bytes
    action, site = attrs["action"], ShadowSite(op.loc, attrs["verb"], attrs["arguments"], size)
    mine = site, program
    if action in ACTIONS:
        if found := space.account.note(action, addresses, site, program):
            name, index = space.place(found[0], size)
            raise race_error(name, index, ordered_pair(found[1], mine), attrs["clocked"])
    elif addresses and action in ("lanes", "undefined"):
        name, index = space.place(addresses[0], size)
        if action == "undefined":
            raise undefined_error(name, index, site, program)
        raise lanes_error(name, index, site, program, (int(lanes[0]),))
