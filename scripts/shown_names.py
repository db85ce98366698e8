"""The names that pictures and saved cards show (tabs, passes, labels of tables), and those that exist in this tree.

`docs/pictures.json` is the manifest. For each picture it has the names that the picture showed, the script that takes it, and the hash of
its file. `tests/test_shown_names.py` compares the names with the present ones, so a picture cannot outlive a tab, a pass or a column.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = ROOT / "docs" / "pictures.json"
SOURCES = ROOT / "labextension" / "src"
DOCUMENT = re.compile(r"application/vnd\.blocknb\.v\d+\+json")
#: Stages of a card that are not passes.
AROUND = ("parse", "codegen")

Names = dict[str, list[str]]


@cache
def present_tabs() -> frozenset[str]:
    """The titles of all tabs, from the sources of the lab extension."""
    views = (text for text in _sources().values() if ": ViewSpec = {" in text)
    return frozenset(title for text in views for title in re.findall(r"^  title: '(.*)',$", text, re.MULTILINE))


@cache
def present_passes() -> frozenset[str]:
    """The names of all stages that a card may list."""
    from blocknb.passes import ORDER

    return frozenset({entry.split(".")[1] for entry in ORDER} | set(AROUND))


@cache
def present_labels() -> frozenset[str]:
    """The texts in quotes in the sources of the lab extension, of more than one letter; among them are the labels of its tables."""
    texts = (text for source in _sources().values() for text in re.findall(r"'([^'\n]*)'", source))
    return frozenset(text for text in texts if re.search(r"[a-zA-Z]{2}", text))


@cache
def present_keys() -> frozenset[str]:
    """The keys of a card's document, from the interfaces `Document` and `Parts` of the lab extension."""
    found: set[str] = set()
    for file, start in (("schema.ts", "Document extends Parts"), ("parts.ts", "Parts")):
        text = (SOURCES / "core" / file).read_text(encoding="utf-8")
        (body,) = re.findall(rf"^export interface {start} \{{\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
        found.update(re.findall(r"^  (\w+)\??:", body, re.MULTILINE))
    return frozenset(found)


@cache
def _sources() -> Mapping[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.ts"))}


def shown(tabs: Iterable[str], texts: Iterable[str], labels: Iterable[str]) -> Names:
    """The entry of a picture. `texts` are those that may name passes, such as "IR after coalesce"; `labels` those of table heads.

    A label that is not a text of the sources comes from the data, and is left out."""
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    return {
        "tabs": list(dict.fromkeys(tabs)),
        "passes": sorted(words & present_passes()),
        "labels": sorted(set(labels) & present_labels()),
    }


def gone(names: Mapping[str, Iterable[str]]) -> list[str]:
    """The names of an entry that no longer exist, such as "pass scans"."""
    present = {"tabs": present_tabs(), "passes": present_passes(), "labels": present_labels(), "keys": present_keys()}
    kinds = {"tabs": "tab", "passes": "pass", "labels": "label", "keys": "key"}
    return [f"{kinds[kind]} {name}" for kind in kinds for name in names.get(kind, ()) if name not in present[kind]]


def names_of(document: Mapping[str, Any]) -> Names:
    """The names that a saved card shows: its passes, and the parts of its document, each of which is the content of a tab."""
    passes = {stage["name"] for view in document.get("views", ()) for stage in view.get("stages", ())}
    passes |= {one["name"] for one in document.get("knobs", {}).get("passes", ())}
    for row in document.get("bench", {}).get("rows", ()):
        if row["kind"] == "without":
            passes |= set(re.findall(r"\w+", row["label"].removeprefix("without ")))
    return {"passes": sorted(passes), "keys": sorted(document)}


def saved_documents(notebook: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The documents of all cards in the outputs of a notebook."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            yield from (found for mime, found in output.get("data", {}).items() if DOCUMENT.fullmatch(mime))


def tabs_in(text: str) -> list[str]:
    """The tabs that a text names, such as "the tab **Bench**"."""
    return re.findall(r"\b(?:[Tt]ab|[Vv]iew) \*\*(\w+)\*\*", text)


def read_manifest() -> dict[str, dict[str, Any]]:
    """The entries of the manifest by picture: a path, or the path of a notebook and an attachment (`a.ipynb:b.png`)."""
    return json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}


def write_manifest(entries: Mapping[str, Mapping[str, Any]], script: str, whole: bool = True) -> None:
    """Writes the entries of the pictures that a script took. If these are the `whole` of its pictures, its other entries are removed."""
    kept = {name: entry for name, entry in read_manifest().items() if not (whole and entry["script"] == script)}
    found = kept | {name: {"script": script, **entry} for name, entry in entries.items()}
    lines = [f"  {json.dumps(name)}: {json.dumps(found[name], ensure_ascii=False)}" for name in sorted(found)]
    MANIFEST.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def hash_of(data: bytes) -> str:
    """The hash of a picture in the manifest."""
    return hashlib.sha256(data).hexdigest()[:16]
