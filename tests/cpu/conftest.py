"""Isolates tests that change the compiler: their code stays out of the caches of other tests."""

import pytest

from blocknb.runtime import cache
from blocknb.runtime import compile as compiler


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    cache.shared.cache_clear()
    compiler.forget()
    yield
    cache.shared.cache_clear()
    compiler.forget()
