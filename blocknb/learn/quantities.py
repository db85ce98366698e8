"""Numbers with units in answers to predictions: "360 µs", "0.36 ms", "2.88 MB", "50 %"."""

from __future__ import annotations

import re

#: Units by dimension, without upper case, and their sizes. A KB has 1000 bytes.
SCALES: tuple[dict[str, float], ...] = (
    {"ns": 1e-9, "us": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0},
    {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9},
    {"%": 1.0},
)


def without_units(text: str, unit: str) -> str:
    """The text with each number in the unit of the answer: "0.36 ms" becomes "360.0" if that is "µs". Numbers without a unit stay as they
    are, and so do numbers with a unit of another dimension. Without a unit, it is the text itself."""
    if not unit:
        return text
    wanted = unit.casefold()
    scale = next((scale for scale in SCALES if wanted in scale), {wanted: 1.0})
    units = "|".join(re.escape(name) for name in sorted(scale, key=len, reverse=True))

    def number(found: re.Match[str]) -> str:
        factor = scale[found[2].casefold()] / scale[wanted]
        return found[1] if factor == 1 else repr(float(found[1].replace("_", "")) * factor)

    return re.sub(rf"((?:\d[\d_]*\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*({units})(?!\w)", number, text, flags=re.IGNORECASE)
