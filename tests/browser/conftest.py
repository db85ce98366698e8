"""One server, one browser and one page for all journeys; every journey ends with a look at what the page's console was told.

Without a Chromium or Chrome on this machine the journeys are skipped, and tests/conftest.py says so in the last lines; with
BLOCKNB_REQUIRE_BROWSER=1 that is a failure.
"""

from __future__ import annotations

import os
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
def page(shared_page: Page) -> Iterator[Page]:
    """JupyterLab in the browser. A journey fails when it made the page complain."""
    shared_page.errors()
    yield shared_page
    assert complaints(shared_page) == []


@pytest.fixture(scope="session")
def softmax_notebook(lab: Lab, shared_page: Page) -> Softmax:
    """A notebook with three versions of a softmax that were run and checked."""
    return Softmax(lab, shared_page)


@pytest.fixture
def softmax(softmax_notebook: Softmax, page: Page) -> Softmax:
    """That notebook, in front."""
    softmax_notebook.front()
    return softmax_notebook


@pytest.fixture
def notebook(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook with a kernel of its own, in which nothing but the imports was run."""
    opened = Notebook(page, lab.write(f"{request.node.name}.ipynb", [SETUP]))
    opened.run(0)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS
