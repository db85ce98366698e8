"""Keeps measurements short, and hides environment variables from the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blocknb.profile import timing


@pytest.fixture(autouse=True)
def quick_and_alone() -> Iterator[None]:
    """Simulates small CPU caches, since each timed call flushes them (up to half a gigabyte), and hides environment variables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "llc_bytes", lambda: 1 << 20)
        for name in ("CACHE_AUTOTUNING", "PRINT_AUTOTUNING"):
            patch.delenv(f"BLOCKNB_{name}", raising=False)
            patch.delenv(f"TRITON_{name}", raising=False)
        yield
