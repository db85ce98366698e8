"""The records of shadow memory about a launch, and the errors that they show: races between programs, and elements that nothing wrote.

The pass `race_checks` numbers the accesses (sites) and adds the op `shadow` after each. The machine code and the interpreters keep the
same account, and this module describes its sites and words its errors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from blocknb.errors import KernelError, Loc, RaceError, UninitializedError
from blocknb.ir.core import Func
from blocknb.language.ops import named

SHADOWS = named("shadows")
#: The classes of accesses for races, in the order of their planes: a store, a load, an atomic, a volatile load.
ACTIONS = ("store", "load", "update", "observe")
#: The actions with which each action races.
CONFLICTS = {
    "store": ("store", "load", "update", "observe"),
    "load": ("store", "update"),
    "update": ("store", "load"),
    "observe": ("store",),
}
NO_ARGUMENT = (-1,)  # of a site without notes
RANKS = {"store": 0, "load": 2}  # of atomics: 1
VERBS = {"load": "loads", "store": "stores to"}
Program = tuple[int, int, int]


@dataclass(frozen=True)
class ShadowSite:
    """An access: its `verb` (load, store, or the name of an atomic), the arguments that it may touch (none: any), bytes of an element."""

    loc: Loc | None
    verb: str
    arguments: tuple[int, ...]
    bytes: int


Noted = tuple[ShadowSite, Program]  # an access, and the program that made it


def ordered_pair(a: Noted, b: Noted) -> list[Noted]:
    """Two accesses: a store, an atomic, a load, in this order, and then by the programs."""
    return sorted([a, b], key=lambda access: (RANKS.get(access[0].verb, 1), access[1][::-1]))


@dataclass(frozen=True)
class ShadowPlan:
    """The sites of a kernel, the actions that its ops note, and whether vector clocks order accesses.

    `unshared` are the arguments whose loads have no notes, because the kernel does not store to them (the pass `unshared_loads`).
    """

    sites: tuple[ShadowSite, ...]
    actions: tuple[str, ...]
    clocked: bool
    unshared: tuple[int, ...] = ()

    @property
    def races(self) -> bool:
        """Whether the kernel looks for races."""
        return any(action in ACTIONS for action in self.actions)

    @property
    def site_bits(self) -> int:
        """The bits of a site's number in a cell."""
        return max(1, (len(self.sites) - 1).bit_length())


def plan_of(func: Func) -> ShadowPlan | None:
    """The records of the shadow ops of a function; None if it has none."""
    sites: dict[int, ShadowSite] = {}
    actions: dict[str, None] = {}
    clocked = False
    for op in func.ops():
        if op.name == "shadow":
            attrs, size = op.attrs, op.args[0].type.dtype.element.bytes
            action = attrs["action"]
            sites.setdefault(attrs["site"], ShadowSite(op.loc, attrs["verb"], attrs["arguments"], size))
            actions[action] = None
            clocked |= attrs["clocked"]
    if not sites:
        return None
    nothing = ShadowSite(None, "load", NO_ARGUMENT, 8)
    ordered = tuple(sites.get(i, nothing) for i in range(max(sites) + 1))
    return ShadowPlan(ordered, tuple(sorted(actions)), clocked, func.attrs.get("unshared", ()))


def race_error(array: str, index: int, pair: Iterable[Noted], clocked: bool, count: int = 1) -> RaceError:
    """The error for a pair of accesses of different programs to one element. `count`: how many elements have a race."""
    (a, p), (b, q) = pair
    if a.verb == b.verb:
        said = f"programs {p} and {q} both {_plural(a.verb)} element {index} of `{array}`"
    else:
        said = f"program {p} {_verb(a.verb)} element {index} of `{array}`, and program {q} {_verb(b.verb)} it"
    more = f"; {count} elements have races" if count > 1 else ""
    message = f"{said} without an order between them{more}"
    hint = _hint(a, b, clocked)
    return RaceError(
        message, a.loc, hint, program=p, index=index, array=array, other_program=q, other_loc=b.loc or a.loc
    )


def lanes_error(array: str, index: int, site: ShadowSite, program: Program, lanes: tuple[int, ...]) -> RaceError:
    """The error for lanes of one store that write different values to one element."""
    which = f"lanes {lanes[0]} and {lanes[1]}" if len(lanes) > 1 else f"lane {lanes[0]} and another lane"
    message = f"{which} of program {program} store different values to element {index} of `{array}` in one store"
    hint = "give each lane an address of its own, or combine the values first, by tl.sum or tl.atomic_add"
    return RaceError(
        message, site.loc, hint, program=program, index=index, array=array, other_program=program, other_loc=site.loc
    )


def uninitialized_error(
    array: str, index: int, site: ShadowSite, program: Program, count: int = 1
) -> UninitializedError:
    """The error for a load of an element that nothing has written."""
    more = f"; {count} such elements were loaded" if count > 1 else ""
    verb = "loads" if site.verb == "load" else "updates"
    message = f"program {program} {verb} element {index} of `{array}`, which nothing has written{more}"
    hint = f"fill the array before the launch, for example by zeros instead of empty, or store to `{array}` first"
    return UninitializedError(message, site.loc, hint, program=program, index=index)


def undefined_error(array: str, index: int, site: ShadowSite, program: Program) -> UninitializedError:
    """The error for a store of a value that a masked load without `other` left undefined."""
    message = f"program {program} stores to element {index} of `{array}` a value that no load gave: the mask of a load was off"
    hint = "give the load other=0.0, or the store the mask of the load (blocknb loads zero, Triton leaves it undefined)"
    return UninitializedError(message, site.loc, hint, program=program, index=index)


def first_of(errors: Iterable[KernelError]) -> KernelError | None:
    """The error to raise among several: the first race between programs, else the first error."""
    found = list(errors)
    between = [e for e in found if isinstance(e, RaceError) and e.program != e.other_program]
    return next(iter(between or found), None)


def _verb(verb: str) -> str:
    return VERBS.get(verb, "updates")


def _plural(verb: str) -> str:
    return {"load": "load", "store": "store to"}.get(verb, "update")


def _hint(a: ShadowSite, b: ShadowSite, clocked: bool) -> str:
    verbs = {a.verb, b.verb}
    if clocked:
        text = "an atomic orders accesses if one program releases (sem='release') after its access, and the other acquires before its own"
        return text + "; a plain load or store of a lock or flag orders nothing"
    if verbs == {"store"}:
        return "is tl.program_id in the address? use tl.atomic_add to combine values of several programs"
    if any(verb.startswith("atomic") for verb in verbs):
        return "use an atomic for every access to the element, or a second launch"
    return "programs run in any order: let each one load only what it stores, write to another array, or use a second launch"
