"""Fixtures of the browser tests: one server, one browser and one page. Every test fails if the page logged an error.

Without Chromium or Chrome the tests are skipped, and tests/conftest.py reports it at the end. With BLOCKNB_REQUIRE_BROWSER=1 they fail
instead.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, find
from laboratory import ROOT, Lab, Notebook, complaints
from softmax import SETUP, Softmax

SCREENSHOTS = ROOT / "build" / "screenshots"
NONE_FOUND = "browser tests skipped: no Chromium or Chrome found"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find()
    if executable is None:
        if os.environ.get("BLOCKNB_REQUIRE_BROWSER") == "1":
            pytest.fail(
                "no Chromium or Chrome found, and BLOCKNB_REQUIRE_BROWSER=1: apt-get install chromium", pytrace=False
            )
        pytest.skip(NONE_FOUND)
    with Browser(executable) as found:
        yield found


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    server = Lab(tmp_path_factory.mktemp("lab"))
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def shared_page(browser: Browser, lab: Lab) -> Page:
    return lab.page(browser)


@pytest.fixture
def page(shared_page: Page, lab: Lab, browser: Browser) -> Iterator[Page]:
    """JupyterLab in the browser. A test fails if its page logs an error. The page loads again if an earlier test has crashed it."""
    try:
        shared_page.run("() => blocknb.dismiss()")
    except AssertionError as error:
        warnings.warn(f"the page is loaded again: {error}", stacklevel=1)
        shared_page.name = lab.page(browser).name
    shared_page.errors()
    yield shared_page
    assert complaints(shared_page) == []


@pytest.fixture(scope="session")
def softmax_notebook(lab: Lab, shared_page: Page) -> Softmax:
    """A notebook with three versions of a softmax, which has been run."""
    return Softmax(lab, shared_page)


@pytest.fixture
def softmax(softmax_notebook: Softmax, page: Page) -> Softmax:
    """The softmax notebook, as the active tab."""
    softmax_notebook.front()
    return softmax_notebook


@pytest.fixture
def notebook(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook with its own kernel, which has run only the imports."""
    opened = Notebook(page, lab.write(f"{request.node.name}.ipynb", [SETUP]))
    opened.run(0)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
