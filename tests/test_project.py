"""The files around the code agree with it: the workflows call targets that exist, and the version is the same everywhere."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
VERSION = json.loads((ROOT / "package.json").read_text("utf-8"))["version"]
dist = runpy.run_path(str(ROOT / "scripts" / "dist.py"))


def loaded(path: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_of_the_makefile_and_fixed_versions_of_actions(path: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    called = {name for step in steps(path) for name in re.findall(r"^make ([\w-]+)", step.get("run", ""), re.MULTILINE)}
    assert called
    assert called <= targets
    assert all(
        re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})", step["uses"]) for step in steps(path) if "uses" in step
    )
    assert loaded(path)["permissions"] == {"contents": "read"}


def test_make_builds_the_lab_extension_after_a_change_of_its_code_styles_and_settings() -> None:
    database = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    watched = set(re.findall(r"^LABEXTENSION := (.*)$", database, re.MULTILINE)[0].split())
    folder = ROOT / "labextension"
    sources = [file for name in ("src", "style") for file in (folder / name).rglob("*") if file.is_file()]
    assert {file.relative_to(ROOT).as_posix() for file in [*sources, folder / "viewer.config.mts"]} <= watched


def test_each_version_of_python_that_the_package_names_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert named == loaded(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", [path for path in FORMS if path.name != "config.yml"], ids=lambda path: path.name)
def test_a_form_asks_for_what_a_maintainer_needs(path: Path) -> None:
    form = loaded(path)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    names = [field["id"] for field in fields]
    assert len(names) == len(set(names))
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert "doctor" in names or path.name == "feature.yml"


def test_the_changelog_begins_with_what_is_unreleased_and_then_has_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    sections = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert sections[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d", sections[1])
    groups = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert groups <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_a_file_that_is_neither_committed_nor_built_is_stray() -> None:
    committed = {
        "blocknb/cli.py",
        "docs/card.md",
        "notebooks/course/01_blocks.ipynb",
        "labextension/install.json",
        "LICENSE",
    }
    names = [
        "blocknb/cli.py",
        "blocknb/learn/notebooks/01_blocks.ipynb",
        "blocknb/learn/notebooks/docs/card.md",
        "blocknb-1.0.data/data/share/jupyter/labextensions/blocknb/install.json",
        "blocknb-1.0.data/data/share/jupyter/labextensions/blocknb/static/1.ab.js",
        "blocknb-1.0.dist-info/licenses/LICENSE",
        "blocknb/notes.txt",
        "blocknb-1.0.data/data/share/jupyter/labextensions/blocknb/static/1.js.map",
    ]
    found = dist["stray"](map(dist["source_of"], names), committed)
    assert found == ["blocknb/notes.txt", "labextension/dist/static/1.js.map"]


def test_pytest_tests_the_checkout_in_which_it_runs() -> None:
    """The editable install may be that of another worktree."""
    import blocknb

    assert Path(blocknb.__file__).is_relative_to(ROOT)


@pytest.mark.parametrize("extra", ["toolchain", "cuda12", "cuda13"])
def test_the_lock_of_a_container_pins_all_that_its_extras_need(extra: str) -> None:
    """A package without a line in the lock would have any version, as ptxas of CUDA 13 for a driver of CUDA 12."""
    recipe = (ROOT / "containers" / "Containerfile").read_text()
    (named,) = re.findall(r"whl\)\[(.*?)\]", recipe)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "requirements/${EXTRA}.lock" in recipe and "${EXTRA}" in named
    wanted, names = list(project["dependencies"]), named.replace("${EXTRA}", extra).split(",")
    while names:
        for requirement in project["optional-dependencies"][names.pop()]:
            inner = re.match(r"blocknb\[(.*)\]", requirement)
            names += inner[1].split(",") if inner else []
            wanted += [] if inner else [requirement]
    found = {re.match(r"[\w.-]+", one)[0].lower().replace("_", "-") for one in wanted}
    lock = (ROOT / "requirements" / f"{extra}.lock").read_text()
    assert found <= {name.lower().replace("_", "-") for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
