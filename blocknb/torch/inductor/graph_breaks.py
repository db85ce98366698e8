"""Why a graph of torch.compile ended before the function did: Dynamo's reason, at the user's line.

Dynamo gives each graph the reason of its end. A graph that ends where its function returns has no break.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blocknb.torch.inductor import origins


@dataclass(frozen=True)
class GraphBreak:
    """A break: Dynamo's reason and the user's line as (file, line, text), or None."""

    reason: str
    line: tuple[str, int, str] | None

    @property
    def title(self) -> str:
        """The first line of the reason."""
        return self.reason.splitlines()[0] if self.reason else ""


def break_after(graph: Any) -> GraphBreak | None:
    """The break at the end of a graph that Dynamo hands to its backend; None if the function ends there."""
    found = getattr(graph, "compile_subgraph_reason", None)
    if found is None or not found.graph_break:
        return None
    frames = [(frame.filename, int(frame.lineno or 0), (frame.line or "").strip()) for frame in found.user_stack]
    return GraphBreak(str(found.reason).strip(), origins.innermost(frames))
