"""LLVM functions that keep the account of accesses in shadow memory, for the CPU and the GPU, and the words of its context.

The context is a block of 64-bit words that the launch fills in: where the cells lie, and the arrays that have cells (regions). Without
vector clocks, a cell of a plane has the least and the greatest key of a program and site that noted the action there. Both only grow (the
least one as a complement), so the result does not depend on the order of the programs. With vector clocks, the plane of stores has the last
store, and each other plane has a row per program. That is the form of FastTrack (Flanagan and Freund, PLDI 2009).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from blocknb.codegen.shadow_functions import CHECK, FIND, INIT, JOIN, LOCK_TEXT, MARK, RECORD_TEXT
from blocknb.ir.shadow import ACTIONS, CONFLICTS

#: The words of the context. `RECORDS` records of RECORD words each follow the header, then the regions.
REGIONS, RACE_FOUND, COUNT, CELLS, CLOCKS, KEYS, ROWS, SLOTS, LOCK, PROGRAMS, BITS, FAULT, ARGUMENTS, FILLED = range(14)
PLANES = 14  # the address of the plane of each action
FIRST_RECORD, RECORD, RECORDS = 24, 4, 4096
FIRST_REGION, REGION = FIRST_RECORD + RECORD * RECORDS, 5  # lower address, bytes, shift, first cell, flags for `init`
FAULTS = {"clock": 1, "slots": 2}
CLOCK_BITS, SITE_BITS = 22, 10  # of an entry of 32 bits with vector clocks
KINDS = {**{action: i for i, action in enumerate(ACTIONS)}, "lanes": 8, "read": 9, "fill": 10, "undefined": 11}


@dataclass(frozen=True)
class Dialect:
    """How a target spells a pointer to the memory of arrays, and the scope of atomics."""

    pointer: str
    scope: str
    inlining: str
    constant: str


CPU = Dialect("ptr", "", "alwaysinline", ", !invariant.load !{}")
GPU = Dialect("ptr addrspace(1)", ' syncscope("device")', "noinline", "")

_NEEDS = {
    "mark": (FIND, MARK),
    "check": (FIND, RECORD_TEXT, CHECK),
    "lock": (LOCK_TEXT,),
    "join": (JOIN,),
    "init": (FIND, RECORD_TEXT, INIT),
    "record": (RECORD_TEXT,),
}


def has_cell(action: str) -> bool:
    """Whether an action is noted in a cell, which exists only for arrays that the launch stores to."""
    return action not in ("lanes", "undefined")


def argument_bits(arguments: Iterable[int]) -> int:
    """The bits of the word ARGUMENTS for these arguments, as a signed i64. All arguments from the 63rd on share a bit."""
    bits = sum(1 << argument for argument in {min(argument, 63) for argument in arguments})
    return bits - (bits >> 63 << 64)


def call_of(attrs: Mapping[str, Any], program: str, key: Callable[[], str]) -> tuple[str, str]:
    """The function that an op `shadow` calls, and its operands after the size: "" for `record`, which has others.

    `program` is the number of the program, an i64. `key()` emits the key of the program and the site, for accesses without clocks."""
    action, site = attrs["action"], attrs["site"]
    if action in ("read", "fill"):
        return "init", f"i64 {int(action == 'fill')}, i64 {program}, i64 {site}"
    if not has_cell(action):
        return "record", ""
    if attrs["clocked"]:
        return "check", f"i64 {KINDS[action]}, i64 {program}, i64 {site}"
    return "mark", f"i64 {KINDS[action]}, i64 {key()}"


def join_flags(sem: str) -> str:
    """The operands of `join` that say whether an atomic acquires and whether it releases."""
    acquires, releases = (str(sem in (one, "acq_rel")).lower() for one in ("acquire", "release"))
    return f"i1 {acquires}, i1 {releases}"


def conflict_bits() -> int:
    """Bit 4 * action + plane is set if the action races with that of the plane."""
    pairs = [(ACTIONS.index(a), ACTIONS.index(b)) for a, conflicting in CONFLICTS.items() for b in conflicting]
    return sum(1 << 4 * a + b for a, b in pairs)


def define(helpers: dict[str, str], dialect: Dialect, *names: str) -> None:
    """Adds the functions `@blocknb.shadow.NAME` and those that they call to the helper functions of a module."""
    values = {
        "FIRST_REGION": FIRST_REGION,
        "FIRST_RECORD": FIRST_RECORD,
        "CONFLICTS": conflict_bits(),
        "SITE_BITS": SITE_BITS,
        "MOST_CLOCK": (1 << CLOCK_BITS) - 2,
        "RECORDS": RECORDS,
        "PROGRAMS": PROGRAMS,
        "PLANES": PLANES,
        "CELLS": CELLS,
        "CLOCKS": CLOCKS,
        "COUNT": COUNT,
        "FAULT": FAULT,
        "SLOTS": SLOTS,
        "ROWS": ROWS,
        "KEYS": KEYS,
        "BITS": BITS,
        "RACE_FOUND": RACE_FOUND,
        "LOCK": LOCK,
    }
    for name in names:
        for text in _NEEDS[name]:
            key = text[: text.index("(")].strip()
            if key in helpers:
                continue
            for word, value in values.items():
                text = text.replace(f" {word}", f" {value}")
            text = text.replace(" SCOPE", dialect.scope).replace("P %", f"{dialect.pointer} %")
            text = text.replace("INLINING", dialect.inlining).replace(", !invariant.load !CONSTANT", dialect.constant)
            helpers[key] = text.replace(" to P\n", f" to {dialect.pointer}\n")
