"""Tests that need torch: `make test` skips them where torch is missing, and the summary says so; `make test-torch` runs them."""

from __future__ import annotations

import importlib.util

import pytest

MISSING = importlib.util.find_spec("torch") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if MISSING:
        terminalreporter.write_line(
            "tests/torch: SKIPPED, because torch is not installed; `make test-torch` runs them", yellow=True
        )
