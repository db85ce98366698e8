"""Checks the links of the built documentation site: the files, and the anchors in them. Lists links to other sites.

    python scripts/docs_site/links.py [FOLDER]      # build/site by default

Sphinx checks the links of the pages' own Markdown. This checks the HTML that readers get, with the cards and the outputs of notebooks.
It opens no connection. The exit status is 1 if a link of the site leads nowhere.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
#: Elements whose attribute loads or opens another file.
ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "source": "src"}


class PageLinks(HTMLParser):
    """Collects the links and the anchors of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = {"", "top"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser for each element."""
        values = dict(attrs)
        self.anchors.update(value for key in ("id", "name") if (value := values.get(key)))
        if link := values.get(ATTRIBUTES.get(tag, "")):
            self.links.add(link)


def read(folder: Path) -> dict[Path, PageLinks]:
    """The links and anchors of each page of a site."""
    pages = {}
    for file in sorted(folder.rglob("*.html")):
        pages[file] = PageLinks()
        pages[file].feed(file.read_text(encoding="utf-8"))
    return pages


def check(folder: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The dead links of a site, one sentence each; and the addresses outside of it, with the pages that link to them."""
    pages = read(folder.resolve())
    dead, outside = [], defaultdict(list)
    for file, page in pages.items():
        name = file.relative_to(folder.resolve()).as_posix()
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme in ("http", "https", ""):
                    outside[link].append(name)
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                dead.append(f"{name}: there is no file {link}")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                dead.append(f"{name}: the page has no anchor {link}")
    return dead, outside


def main() -> int:
    """Prints dead links and links to other sites; returns the exit status."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"
    dead, outside = check(folder)
    for link, names in sorted(outside.items()):
        print(f"other site, not opened: {link} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})")
    print("\n".join(dead) or "no dead link")
    return int(bool(dead))


if __name__ == "__main__":
    sys.exit(main())
