"""The findings of `--check` about a launch in addition to the condition: its footprint, other orders of its programs, and poisoned outputs.

`LaunchCheck.of(made)` examines the newest launch of a Specialisation on copies; the arrays of the cell do not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.errors import HintError, KernelError
from blocknb.footprint.access_log import Budget
from blocknb.footprint.error_causes import error_causes
from blocknb.footprint.follow import footprint
from blocknb.footprint.runs import as_slices, spans
from blocknb.footprint.value import LEVELS, Footprint
from blocknb.notebook.check_compare import spell
from blocknb.notebook.numbers import plural
from blocknb.notebook.observe import Specialisation
from blocknb.runtime.footprints import memory_launch
from blocknb.runtime.order_check import OrderCheck, check_orders, takes_turns

BUDGET = Budget(seconds=1.5)
ORDER_SECONDS = 1.5
MOST_FACTS = 6
MOST_CAUSES = 3


@dataclass(frozen=True)
class LaunchCheck:
    """The findings about one launch. `given` are its arguments by name. A part that could not be examined is None, and `why` gives the
    reason. `late`: the kernel updates arrays, and they were examined as the launch had left them. `kept` keeps the copies alive on which it
    was examined. `false_hint`: the error of a hint that the launch breaks."""

    given: Mapping[str, Any]
    footprint: Footprint | None = None
    orders: OrderCheck | None = None
    why: str = ""
    late: bool = False
    kept: Any = None
    false_hint: HintError | None = None

    @staticmethod
    def of(kernel: Any, made: Specialisation) -> LaunchCheck:
        """Examines the newest launch of a specialization."""
        given = made.snapshot.arguments(()) if made.snapshot is not None else None
        if given is None or made.snapshot is None:
            return LaunchCheck({}, why="an argument of the launch cannot be kept")
        before, made.before = made.before, None
        snapshot = made.snapshot if before is None else before.of_copies()
        late = before is None and bool(made.compiled.stored & made.compiled.loaded)
        try:
            arguments = given if before is None else before.arguments
            tested = {} if "checked" in kernel.arg_names else {"checked": True}  # so that hints are tested
            launch = memory_launch(kernel, made.grid, (), {**arguments, **tested})
            seen = footprint(launch, BUDGET)
        except KernelError as error:
            return LaunchCheck(given, why=error.message)
        try:
            orders = check_orders(kernel, made.grid, snapshot, launch, seconds=ORDER_SECONDS)
        except HintError as error:
            skipped = OrderCheck(skipped="a hint is false")
            return LaunchCheck(given, seen, skipped, late=late, kept=before, false_hint=error)
        except KernelError as error:  # inline PTX, which no CPU runs, or a program that fails alone
            orders = OrderCheck(skipped=error.message)
        return LaunchCheck(given, seen, orders, late=late, kept=before)

    @property
    def right(self) -> bool:
        """Whether nothing certain is wrong: no error in the footprint, and the same result in every order."""
        bad = self.false_hint is not None or (self.footprint is not None and bool(self.footprint.errors))
        return not bad and (self.orders is None or self.orders.difference is None or self.ordered)

    @property
    def ordered(self) -> bool:
        """Whether the kernel uses the results of atomics, so that its result may depend on the order of the programs."""
        return self.footprint is not None and takes_turns(self.footprint.log.launch)

    def facts(self) -> Iterator[tuple[str, str]]:
        """Lines for the card's head, the most severe one first."""
        if self.footprint is None:
            yield "footprint", f"not known: {self.why}"
            return
        shown = [
            (finding.level, finding.short + (f": {finding.hint}" if finding.hint else ""))
            for finding in self.footprint.findings
        ]
        shown += self._order_findings()
        if (broken := self.false_hint) is not None:
            where = f" (line {broken.loc.outermost.line})" if broken.loc is not None else ""
            shown.append(("error", f"the hint {broken.message}{where}: {broken.hint}"))
        shown.sort(key=lambda line: LEVELS.index(line[0]))
        for level, text in shown[:MOST_FACTS]:
            yield level, ("✗ " if level == "error" else "") + text
        if len(shown) > MOST_FACTS:
            yield (
                "remark",
                f"and {plural(len(shown) - MOST_FACTS, 'more finding')}: `kernel.footprint(grid)(...)` lists all",
            )
        yield "footprint", self.scope + ("" if shown else "; nothing is wrong")

    @property
    def scope(self) -> str:
        """Names the examined launches, with the number of programs."""
        assert self.footprint is not None
        text = self.footprint.scope.removeprefix("footprint of ")
        if self.late:
            text += ", from the arrays as the launch left them"
        if self.orders is None:
            return text
        if self.orders.skipped:
            return f"{text}; not run in other orders: {self.orders.skipped}"
        return f"{text}; run in {plural(len(self.orders.orders), 'order')} on copies"

    def _order_findings(self) -> Iterator[tuple[str, str]]:
        assert self.footprint is not None
        if self.orders is None:
            return
        if (found := self.orders.difference) is not None:
            array = self.footprint[found.name]
            where = spell(found.index, array.shape) if array.array.dense else f"[{found.index}]"
            text = (
                f"the result depends on the order of the programs: `{found.name}`{where} is {found.first:.6g} in "
                f"{found.orders[0]} and {found.second:.6g} in {found.orders[1]}"
            )
            more = f" ({found.count} elements differ)" if found.count > 1 else ""
            yield "remark" if self.ordered else "error", text + more + self.made_by(found.name, found.index, "; ")
        reported = {finding.text.split("`")[1] for finding in self.footprint.findings if finding.kind == "holes"}
        for name, flags in (self.orders.unstored or {}).items():
            if name not in reported:
                pieces = as_slices(spans(flags))
                yield "remark", f"`{name}`: {int(flags.sum())} of {flags.size} elements keep their old value: {pieces}"

    def made_by(self, name: str, index: int, before: str = "") -> str:
        """The program that stores an element, as text; empty if that is unknown."""
        seen = self.footprint
        if seen is None or name not in seen.arrays or not seen[name].array.dense:
            return ""
        if not seen[name].stores and not seen[name].atomics:
            return before + self._stored_instead(name)
        launch = seen.log.launch
        for verb, accesses in (("stores", seen[name].stores), ("updates", seen[name].atomics)):
            if not accesses or index >= accesses.owners.count.size:
                continue
            first, last = int(accesses.owners.first[index]), int(accesses.owners.last[index])
            if first < 0:
                continue
            line = next((a.op.loc.outermost.line for a in accesses.accesses if a.op.loc is not None), None)
            at = f" in line {line}" if line is not None and len(accesses.accesses) == 1 else ""
            if first == last:
                return f"{before}program {launch.spelled(first)} {verb} it{at}"
            return f"{before}programs {launch.spelled(first)} to {launch.spelled(last)} {verb.removesuffix('s')} it{at}"
        return f"{before}no program stores it" if not seen.sampled else ""

    def _stored_instead(self, name: str) -> str:
        assert self.footprint is not None
        stores = [
            f"`{found.name}` in line {found.stores.accesses[0].op.loc.outermost.line}"
            for found in self.footprint.arrays.values()
            if found.stores and found.stores.accesses[0].op.loc is not None
        ]
        instead = f": it stores to {' and '.join(stores)}" if stores else ""
        return f"it was passed as `{name}`, which the kernel does not store to{instead}"

    def causes(self, name: str | None, indices: Sequence[int]) -> list[tuple[str, str]]:
        """Possible causes of a wrong result, as facts. `indices` are wrong elements of the array `name`, if they are known."""
        seen = self.footprint
        if seen is None:
            return []
        programs = set()
        if name in seen.arrays and seen[name].array.dense:
            for accesses in (seen[name].stores, seen[name].atomics):
                if accesses and max(indices) < accesses.owners.first.size:
                    programs |= {int(accesses.owners.first[index]) for index in indices}
        found = error_causes(seen, sorted(programs - {-1}) or [0], self.late)
        return list(dict.fromkeys(("cause", finding.short) for finding in found))[:MOST_CAUSES]
