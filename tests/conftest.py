"""Fixtures and marks for all tests: golden files, and when and where a test runs.

`golden(path, text)` compares a text with tests/golden/<path>, and `--update-golden` writes it. So the diff of the golden files shows the
effect of a change of a pass. `@pytest.mark.full` tests run with `--full` only. Of the tests of a function under `@pytest.mark.sampled(n)`,
a quick run has one in n, chosen by a stable hash of their names; `sampled(n, each=["dtype"])` adds tests until each value of that
parameter is there. `@pytest.mark.gpu` tests, and all in tests/gpu, are skipped if CuPy finds no GPU.
"""

from __future__ import annotations

import difflib
import faulthandler
import gc
import os
import runpy
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from sampling import sample

pytest_plugins = ["seeds"]

HERE = Path(__file__).parent
NO_BROWSER = "browser tests skipped"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing with them"
    )
    parser.addoption("--full", action="store_true", help="run the slow tests, too")


def pytest_configure(config: pytest.Config) -> None:
    os.environ["BLOCKNB_STRICT"] = "1"  # an optimization that fails is an error here, not one that is left out
    os.environ["BLOCKNB_HISTORY"] = "0"  # the histories of this user are not for tests
    os.environ["BLOCKNB_PROGRESS"] = "0"  # nor is the progress in the course
    # The user's limits and caches would change what tests count.
    for name in ("BLOCKNB_SHARED_CACHE", "BLOCKNB_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ["BLOCKNB_LLC_BYTES"] = str(1 << 20)  # timed calls flush the cache, which may have half a gigabyte
    # jsonschema checks international addresses by it, which no test needs, and building its grammars takes a second in each process.
    sys.modules.setdefault("rfc3987_syntax", None)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job, where no interrupt would arrive
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if find_spec("hypothesis"):  # a GPU machine may lack it, and tests/gpu does without
        from hypothesis import HealthCheck, settings

        # How long an example takes, or is in the making, says more about what else the machine does than about the property.
        settings.register_profile("blocknb", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("blocknb")


def without_gpu() -> str:
    """Why GPU tests cannot run here; "" when they can."""
    try:
        import cupy
    except ImportError as error:
        return f"needs CuPy ({error})"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"needs a GPU ({error})"
    return "" if count else "needs a GPU"


def quick(items: list[pytest.Item]) -> set[pytest.Item]:
    """What a run without `--full` has: no slow test, and the samples of functions. `-k` selects from all samples."""
    found, functions = set(), defaultdict(dict)
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if item.get_closest_marker("full"):
            continue
        if sampled is None or item.config.getoption("keyword"):
            found.add(item)
        else:
            functions[item.nodeid.partition("[")[0], sampled.args][item.name] = item, sampled
    for cases in functions.values():
        values = {name: getattr(item, "callspec", None) for name, (item, _) in cases.items()}
        (_, sampled), *_ = cases.values()
        names = sample(
            {name: spec.params if spec else {} for name, spec in values.items()}, *sampled.args, **sampled.kwargs
        )
        found |= {cases[name][0] for name in names}
    return found


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in item.iter_markers("entries"):
        item.extra_keyword_matches.update(mark.args)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        kept = quick(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]
    for item in items:
        if HERE / "gpu" in item.path.parents:
            item.add_marker("gpu")
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and (reason := without_gpu()):
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=reason))


class Watchdog(threading.Thread):
    """Says where a test hangs: writes the stacks of all threads once a test has run for `HANGS` seconds.

    pytest's option faulthandler_timeout does the same with a new thread for each test, which takes longer than most tests.
    """

    HANGS, LOOKS = 300.0, 10.0  # seconds: when a test hangs, and between two looks

    def __init__(self) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.began: float | None = None  # of the running test; None between tests and after its stacks were written
        self.file = os.fdopen(os.dup(2), "w")  # before pytest captures standard error

    def run(self) -> None:
        while True:
            time.sleep(self.LOOKS)
            if self.began is not None and time.monotonic() - self.began > self.HANGS:
                self.began = None
                faulthandler.dump_traceback(self.file, all_threads=True)


_watchdog: Watchdog | None = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[object]:
    global _watchdog
    if _watchdog is None or not _watchdog.is_alive():  # a forked child has no such thread
        _watchdog = Watchdog()
        _watchdog.start()
    _watchdog.began = time.monotonic()
    try:
        return (yield)
    finally:
        _watchdog.began = None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """What modules and tests hold stays to the end: the garbage collector need not walk over it again and again, nor look so often."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Python's end would walk several times over all objects, for seconds in each process of a run. No test is left that needs it."""
    gc.freeze()
    gc.disable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Reports at the end that no test has opened the card in a browser, also if this run left those tests out."""
    yield
    skipped = any(NO_BROWSER in str(report.longrepr) for report in terminalreporter.stats.get("skipped", []))
    apart = any(Path(path).resolve() == HERE / "browser" for path in config.getoption("ignore") or ())
    if skipped or (apart and runpy.run_path(str(HERE / "browser" / "browser.py"))["find"]() is None):
        terminalreporter.write_line(f"{NO_BROWSER}: no Chromium or Chrome found", yellow=True, bold=True)


@pytest.fixture
def collect() -> Callable[[], int]:
    """`gc.collect` of what the test makes. What earlier tests left stays frozen: later collections skip it."""
    gc.collect(1)
    gc.freeze()
    return gc.collect


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("coalesce/ragged_add.ir", text)`: fails with a diff unless the golden file holds exactly this text."""
    update = request.config.getoption("--update-golden")

    def check(path: str, text: str) -> None:
        __tracebackhide__ = True
        file, text = HERE / "golden" / path, text.rstrip("\n") + "\n"
        if update:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        elif not file.exists():
            pytest.fail(
                f"there is no golden file {path}: run with --update-golden and read what it writes", pytrace=False
            )
        elif (expected := file.read_text()) != text:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), f"golden/{path}", "now", lineterm="")
            pytest.fail("\n".join(diff), pytrace=False)

    return check


@pytest.fixture
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The disk cache is a new folder, and nothing is compiled in memory."""
    from blocknb.runtime import cache
    from blocknb.runtime import compile as compiler

    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    cache.shared.cache_clear()
    compiler.forget()
    yield
    cache.shared.cache_clear()
