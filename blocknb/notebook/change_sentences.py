"""The sentences on what each pass changed, for the card: those of successive stages are saved, those of any two come on request.

The first document of a card has none, so that the card is painted first. The page gets them with the other postponed parts.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from blocknb.ir.core import Func
from blocknb.ir_diff.matching import match_stages
from blocknb.ir_diff.sentences import ChangeSentence, sentences
from blocknb.notebook.blobs import pack
from blocknb.trace import Trace

BUDGET = 16_000  # characters of the packed part
MOST_SENTENCES = 24  # per pass
MOST_OPS = 200  # per sentence and side; the page highlights them


@functools.lru_cache(maxsize=128)  # a card's document is made several times
def _between(before: Func, after: Func) -> tuple[ChangeSentence, ...]:
    return tuple(sentences(match_stages(before, after)))


def between(trace: Trace, a: int, b: int) -> list[dict[str, Any]]:
    """The changes from the IR after one stage of a compilation to that after another one, by number."""
    first, last = sorted((a, b))
    return [entry(found) for found in _between(trace.stages[first].after, trace.stages[last].after)]


def entry(sentence: ChangeSentence) -> dict[str, Any]:
    """A sentence as a document holds it."""
    return {
        "text": sentence.text,
        "weight": sentence.weight,
        "before": list(sentence.before[:MOST_OPS]),
        "after": list(sentence.after[:MOST_OPS]),
        "lines": list(sentence.lines),
    }


def part(traces: Sequence[Trace | None]) -> dict[str, Any]:
    """The document's part "changes": by view and pass, the sentences on the passes that changed something.

    If all do not fit, those on index arithmetic and order are left out first, then more."""
    found = {
        str(view): {
            stage.name: [entry(s) for s in _between(stage.before, stage.after)[:MOST_SENTENCES]]
            for stage in trace.stages
            if stage.after is not stage.before
        }
        for view, trace in enumerate(traces)
        if trace is not None
    }
    for least in (0, 20, 50, 70):
        kept = {
            view: {name: [s for s in listed if s["weight"] >= least] for name, listed in stages.items()}
            for view, stages in found.items()
        }
        packed = pack(
            {view: {name: listed for name, listed in stages.items() if listed} for view, stages in kept.items()}
        )
        if len(packed) <= BUDGET:
            return {"packed": packed}
    return {"why": "The sentences on the passes are too long for a saved card."}
