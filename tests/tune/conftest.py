"""Hides environment variables from the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Hides environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CACHE_AUTOTUNING", "PRINT_AUTOTUNING"):
            patch.delenv(f"BLOCKNB_{name}", raising=False)
            patch.delenv(f"TRITON_{name}", raising=False)
        yield
