"""The exported page: one file with everything, in which all text of the kernel is escaped."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.errors import LaunchError
from blocknb.notebook import extension
from blocknb.notebook.blobs import read

HOSTILE = "</script><!-- <script> --></style></noscript><img src=x onerror=alert(1)>"


@blocknb.kernel
def hostile(x, out, BLOCK: tl.constexpr, TEXT: tl.constexpr = HOSTILE):
    """</script><!-- <script>alert(1)</script> --> <img src=x onerror=alert(2)> ]]> &amp; \u2028"""
    at = tl.arange(0, BLOCK)  # </noscript><script>alert(3)</script>
    tl.static_assert(TEXT == TEXT, "</style><script>alert(4)</script>")
    tl.store(out + at, tl.load(x + at) + 1)


@pytest.fixture
def viewer(tmp_path, monkeypatch):
    """An installed extension whose script contains strings that look like tags."""
    folder = tmp_path / "blocknb"
    (folder / "viewer").mkdir(parents=True)
    (folder / "viewer" / "viewer.js").write_text('const a = "</script><!--<script", b = 1 < 2, c = /<\\/script>/;')
    (folder / "viewer" / "blocknb.css").write_text(".bnb-card { color: #111 }")
    monkeypatch.setattr(extension, "installed", lambda: ("0.1.0", folder))


class Page(HTMLParser):
    """The page as a browser parses it: the tags outside of scripts, and the texts of the scripts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.stack = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in ("meta", "img"):
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack and self.stack[-1] == "script":
            self.scripts[-1] += data


def exported(tmp_path):
    x = np.arange(64, dtype=np.float32)
    hostile[1,](x, np.empty_like(x), BLOCK=64)
    file = hostile.export_html(tmp_path / "card.html")
    return file.read_text(encoding="utf-8")


def test_the_file_has_the_whole_document_the_viewer_and_the_static_page(tmp_path, viewer):
    page = Page(exported(tmp_path))
    data, script = page.scripts
    made = json.loads(data)
    assert made["left_out"] == [] and made["kernel"] == "hostile" and "model" not in made
    assert HOSTILE in made["views"][0]["constants"]["TEXT"]
    assert "alert(3)" in made["source"]["text"]
    for stage in made["views"][1]["stages"]:
        assert read(made["blobs"], stage["text"])["text"]
    assert script == 'const a = "\\x3c/script>\\x3c!--\\x3cscript", b = 1 < 2, c = /<\\/script>/;'


def test_no_text_of_the_kernel_is_markup(tmp_path, viewer):
    text = exported(tmp_path)
    page = Page(text)
    assert page.stack == []
    tags = [tag for tag, _ in page.tags]
    assert tags.count("script") == 2 and tags.count("noscript") == 1 and tags.count("style") == 2 and "img" not in tags
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    data = re.search(r'<script type="application[^>]*>(.*?)</script>', text, re.S)[1]
    assert "<" not in data


def test_the_page_loads_nothing_from_anywhere(tmp_path, viewer):
    text = exported(tmp_path)
    assert "default-src 'none'" in text
    assert not any("src" in attrs or "href" in attrs for _, attrs in Page(text).tags)


def test_without_the_extension_the_error_names_the_package_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(extension, "installed", lambda: None)
    with pytest.raises(LaunchError, match="viewer") as caught:
        exported(tmp_path)
    assert "pip install blocknb" in caught.value.hint and not (tmp_path / "card.html").exists()


def test_a_kernel_never_launched_cannot_be_exported(tmp_path, viewer):
    @blocknb.kernel
    def never(x):
        tl.store(x, 1.0)

    with pytest.raises(LaunchError, match="has not been launched"):
        blocknb.export_html(never, tmp_path / "card.html")
