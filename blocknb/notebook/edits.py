"""Edits of a stage in the card: the IR after a pass as text, and the card for the edited text.

An edit of the code that ran is measured like a change of a knob, on copies of the arrays that the kernel writes. An edit of a view, such
as GPU code on a machine without a GPU, is compiled only. The next change of a knob compiles the kernel itself again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from blocknb.errors import LaunchError
from blocknb.notebook import comparison, knobs
from blocknb.notebook.card import Card, View
from blocknb.notebook.observe import KernelRecord, Specialisation, without_recording
from blocknb.runtime.edited_kernel import EditedKernel
from blocknb.trace import Stage, Trace


def stage_text(card: Card, view: int, name: str) -> str:
    """The IR after a stage of the view of this number, with the ids of its ops. Raises LaunchError for an unknown view."""
    return _stage(card, view, name).text


def _stage(card: Card, view: int, name: str) -> Stage:
    trace = card.views[view].trace if 0 <= view < len(card.views) else None
    if trace is None:
        raise LaunchError(f"the card has no stages for target {view}", hint="run the cell again")
    return trace.stage(name)


def with_edit(card: Card, view: int, name: str, text: str) -> Card:
    """The card after the IR of a stage was replaced by a text. Raises EditError for a wrong text, and KernelError as a launch does."""
    edited = _stage(card, view, name).edit(text)
    if view != 0:
        return replace(card, views=_replaced(card, view, edited.trace))
    made, kernel = card.main, card.record.kernel
    edited.kernel = kernel  # a kernel that was defined again with the same text shares the code
    record = KernelRecord(kernel)
    record.latest = Specialisation(edited, -1, snapshot=made.snapshot)
    if why := knobs.why_not_compared(made):
        part = {"text": f"not measured: {why}"}
    else:
        with without_recording(kernel):
            prepared = lambda grid, given: edited.prepared(grid, **_arguments(edited, given))  # noqa: E731
            found, record.latest = comparison.compare(kernel, made, edited, prepared, wrong_too=True)
            record.specialisations[0] = record.latest
            part = found.part
    views = _replaced(card, 0, edited.trace, "ran" if record.latest.launches else "compiled")
    facts = tuple(fact for fact in card.more_facts if fact[0] != "edit")
    return replace(card, record=record, views=views, more_facts=(*facts, ("edit", part["text"])))


def _arguments(edited: EditedKernel, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a launch without constants and options. The constants and options of the edited code may be newer, from a knob."""
    return {name: value for name, value in given.items() if name in edited.kinds and not edited.kinds[name].constant}


def _replaced(card: Card, number: int, trace: Trace, role: str = "") -> tuple[View, ...]:
    views = list(card.views)
    views[number] = replace(views[number], trace=trace, role=role or views[number].role)
    return tuple(views)
