"""Tests with PyTorch: skipped where it is not installed. The count of generated kernels is compared with that of compiled ones."""

from __future__ import annotations

import collections
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

# Inductor times the configurations of a kernel for an eighth of a second each. Which one wins does not matter here.
os.environ["TORCHINDUCTOR_DEFAULT_AUTOTUNE_WARMUP"] = os.environ["TORCHINDUCTOR_DEFAULT_AUTOTUNE_REP"] = "1"  # ms
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of processes in each process of the tests
MISSING = importlib.util.find_spec("torch") is None
collect_ignore_glob = ["test_*.py"] if MISSING else []
if not MISSING:
    import torch

#: The kernels that Inductor generated, and those of them that blocknb compiled, in this process. Equal sources count once.
COUNTS: collections.Counter[str] = collections.Counter()
#: The sources of kernels that Inductor's generated graphs have asked to compile.
SOURCES: set[str] = set()


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
def _default_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Makes the DEVICE of a module the default device of its tests."""
    device = getattr(request.module, "DEVICE", "cpu")
    if device != "cpu":
        torch.set_default_device(device)
    yield
    if device != "cpu":
        torch.set_default_device(None)


@pytest.fixture(autouse=True)
def _counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compares the kernels that Inductor generated with those that blocknb compiled, test by test."""
    from torch._inductor.async_compile import AsyncCompile

    import blocknb.torch

    asked, inherited = set(), AsyncCompile.triton

    def triton(self: Any, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
        asked.add(source)
        return inherited(self, name, source, *args, **kwargs)

    monkeypatch.setattr(AsyncCompile, "triton", triton)
    torch.manual_seed(0)
    torch._dynamo.reset()
    before = set(map(_identity, blocknb.torch.kernels()))
    yield
    new = asked - SOURCES
    SOURCES.update(asked)
    if request.node.get_closest_marker("own_count"):
        return
    compiled = len(set(map(_identity, blocknb.torch.kernels())) - before)
    COUNTS.update(generated=len(new), compiled=compiled)
    assert compiled == len(new)


@pytest.fixture
def cuda_count() -> Callable[[Any], None]:
    """Adds kernels that were generated for CUDA, and what blocknb compiled of them, to the counts that the end of the run prints."""

    def add(found: Any) -> None:
        compiled = [kernel for kernel in found.kernels if kernel.compiled]
        configurations = sum(len(kernel.compiled) for kernel in compiled)
        COUNTS.update(
            cuda_generated=len(found.kernels), cuda_compiled=len(compiled), cuda_configurations=configurations
        )

    return add


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
    """Prints the counts, or why there are none."""
    if MISSING:
        skipped = "tests/pytorch: SKIPPED, because torch is not installed; `make test-torch` runs them"
        terminalreporter.write_line(skipped, yellow=True)
    if COUNTS["cuda_generated"]:
        generated, compiled, configurations = (
            COUNTS[f"cuda_{name}"] for name in ("generated", "compiled", "configurations")
        )
        terminalreporter.write_line(
            f"for CUDA, without a GPU: Inductor generated {generated} kernels, blocknb compiled {compiled} for sm_90a, in "
            f"{configurations} configurations"
        )
    if COUNTS["generated"]:
        terminalreporter.write_line(
            f"torch.compile: Inductor generated {COUNTS['generated']} kernels, blocknb compiled {COUNTS['compiled']}"
        )
