"""Pictures and saved cards show only tabs, passes and labels that exist: `make pictures` and `make recorded` make them again."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def script(name: str) -> ModuleType:
    """A module of scripts/."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
        assert spec and spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


shown_names = script("shown_names")
MANIFEST = shown_names.read_manifest()
IMAGE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)")


def notebooks() -> list[str]:
    """The notebooks of the repository."""
    found = sorted(path for folder in ("docs", "notebooks") for path in (ROOT / folder).rglob("[!.]*.ipynb"))
    return [path.relative_to(ROOT).as_posix() for path in found]


def attachments() -> dict[str, bytes]:
    """The pictures in the texts of notebooks, by the name of their entry in the manifest."""
    found = {}
    for path in sorted((ROOT / "notebooks").rglob("[!.]*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for name, data in cell.get("attachments", {}).items():
                found[f"{path.relative_to(ROOT).as_posix()}:{name}"] = base64.b64decode(data["image/png"])
    return found


# ---- the present names


def test_the_present_names_are_found_in_the_sources() -> None:
    assert {"Code", "Passes", "Workers", "Kernels", "Graph"} <= shown_names.present_tabs()
    assert {"parse", "coalesce", "sinking", "codegen"} <= shown_names.present_passes()
    assert {"registers per thread", "median", "device"} <= shown_names.present_labels()
    assert {"views", "history", "workers", "torch"} <= shown_names.present_keys()


def test_a_name_that_is_gone_is_told_and_others_are_not() -> None:
    old = {
        "tabs": ["Code", "Layouts"],
        "passes": ["scans", "coalesce"],
        "labels": ["median", "middle half"],
        "keys": ["views"],
    }
    assert shown_names.gone(old) == ["tab Layouts", "pass scans", "label middle half"]
    taken = shown_names.shown(["Code"], ["IR after coalesce", "without scans, pointers"], ["median", "softmax, GB/s"])
    assert taken == {"tabs": ["Code"], "passes": ["coalesce", "pointers"], "labels": ["median"]}


# ---- pictures


@pytest.mark.parametrize("name", sorted(MANIFEST))
def test_a_picture_shows_only_what_exists(name: str) -> None:
    assert not (lost := shown_names.gone(MANIFEST[name])), f"{name} shows {', '.join(lost)}: run make pictures"
    assert MANIFEST[name]["tabs"]
    assert (ROOT / MANIFEST[name]["script"]).is_file()


def test_every_picture_is_the_one_that_the_manifest_describes() -> None:
    stored = {
        path.relative_to(ROOT).as_posix(): path.read_bytes() for path in (ROOT / "docs").rglob("*.png")
    } | attachments()
    taken = {name: entry["hash"] for name, entry in MANIFEST.items()}
    assert {name: shown_names.hash_of(data) for name, data in stored.items()} == taken


def test_every_picture_of_the_docs_is_on_a_page() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    used = {
        (page.parent / link).resolve() for page in pages for link in IMAGE.findall(page.read_text(encoding="utf-8"))
    }
    kept = {path for kind in ("png", "svg") for path in (ROOT / "docs").rglob(f"*.{kind}")}
    assert kept and not {str(path.relative_to(ROOT)) for path in kept - used}


# ---- saved cards


@pytest.mark.parametrize("name", notebooks())
def test_a_saved_notebook_shows_only_what_exists(name: str) -> None:
    notebook = json.loads((ROOT / name).read_text(encoding="utf-8"))
    lost = [
        one
        for document in shown_names.saved_documents(notebook)
        for one in shown_names.gone(shown_names.names_of(document))
    ]
    texts = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    lost += shown_names.gone({"tabs": shown_names.tabs_in(texts)})
    assert not lost, f"{name} shows {', '.join(sorted(set(lost)))}"


def test_the_documents_of_tests_show_only_what_exists() -> None:
    paths = (ROOT / "labextension" / "tests" / "fixtures").glob("*.json")
    found = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in paths}
    found["card.json.gz"] = json.loads(gzip.decompress((ROOT / "tests/browser/pictures/card.json.gz").read_bytes()))
    cards = {name: document for name, document in found.items() if isinstance(document, dict) and "views" in document}
    assert len(cards) >= 5
    assert not {name: lost for name, card in cards.items() if (lost := shown_names.gone(shown_names.names_of(card)))}
