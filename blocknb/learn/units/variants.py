"""Sources of exercises made from other sources by exact replacements.

Most right answers to an exercise differ from its solution in one line. `variant` writes such an answer as the lines that differ. It fails
if a replacement no longer applies. So an edit of a solution cannot leave an outdated variant behind.
"""

from __future__ import annotations


def variant(source: str, *patches: tuple[str, str]) -> str:
    """Returns `source` with the first element of each pair replaced by the second, one after the other, at every place where it stands.

    Raises ValueError if the text of a pair does not stand in the source.
    """
    for old, new in patches:
        if old not in source:
            raise ValueError(f"the text {old!r} does not stand in the source:\n{source}")
        source = source.replace(old, new)
    return source
