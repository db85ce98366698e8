"""Tests with PyTorch: skipped where it is not installed. The count of generated kernels is compared with that of compiled ones."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterator
from typing import Any

import pytest

collect_ignore_glob: list[str] = []
try:
    import torch
except ImportError:
    collect_ignore_glob = ["test_*.py"]

#: The kernels that Inductor generated, and those of them that blocknb compiled, in this process.
COUNTS: collections.Counter[str] = collections.Counter()


@pytest.fixture(autouse=True, scope="session")
def _own_inductor_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    yield
    if before is None:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


@pytest.fixture(autouse=True)
def _counted(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compares Inductor's own count of generated kernels with the kernels that blocknb compiled, test by test."""
    from torch._inductor import metrics

    import blocknb.torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    metrics.reset()
    before = set(map(_identity, blocknb.torch.kernels()))
    yield
    if request.node.get_closest_marker("own_count"):
        return
    compiled = len(set(map(_identity, blocknb.torch.kernels())) - before)
    COUNTS.update(generated=metrics.generated_kernel_count, compiled=compiled)
    assert compiled == metrics.generated_kernel_count


def _identity(kernel: Any) -> int:
    return id(kernel.autotuner)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_count: the test counts generated kernels itself")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands the counts of a worker of xdist to the process that prints them."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["torch_kernels"] = dict(COUNTS)


def pytest_testnodedown(node: Any, error: Any) -> None:
    """Adds the counts of a worker."""
    COUNTS.update(getattr(node, "workeroutput", {}).get("torch_kernels", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the counts."""
    if COUNTS:
        terminalreporter.write_line(
            f"torch.compile: Inductor generated {COUNTS['generated']} kernels, blocknb compiled {COUNTS['compiled']}"
        )
