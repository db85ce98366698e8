"""The bill of materials covers the lock files, and the wheel contains the licence of each package that it ships (`scripts/sbom.py`)."""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sbom = runpy.run_path(str(ROOT / "scripts" / "sbom.py"))


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return sbom["bill"]()


def properties(component: dict[str, Any], name: str) -> set[str]:
    return {p["value"] for p in component["properties"] if p["name"] == name}


def test_the_bill_is_cyclonedx_with_unique_references(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references)) > 500
    for component in bill["components"]:
        assert component["type"] == "library" and component["name"] and component["version"]
        assert re.fullmatch(r"pkg:(pypi|npm)/(%40[\w.-]+/)?[\w.%-]+@[\w.%+-]+", component["purl"]), component["purl"]
        assert all(re.fullmatch("[0-9a-f]{64}", one["content"]) for one in component.get("hashes", ()))


@pytest.mark.parametrize("path", sorted((ROOT / "requirements").iterdir()), ids=lambda path: path.name)
def test_the_bill_has_every_package_of_a_python_lock_file_with_all_hashes(bill: dict[str, Any], path: Path) -> None:
    text = path.read_text()
    listed = [c for c in bill["components"] if path.name in properties(c, "blocknb:lock")]
    pinned = {match.group(0) for match in re.finditer(r"^[\w.-]+==[^\s;]+", text, re.MULTILINE)}
    assert {f"{c['name']}=={c['version']}" for c in listed} == pinned
    hashes = {one["content"] for c in listed for one in c["hashes"]}
    assert set(re.findall("sha256:([0-9a-f]{64})", text)) <= hashes


def test_the_bill_has_every_package_of_yarn_lock(bill: dict[str, Any]) -> None:
    text = (ROOT / "yarn.lock").read_text()
    resolved = set(re.findall(r'^  resolution: "(.+)@npm:(.+)"$', text, re.MULTILINE))
    listed = [c for c in bill["components"] if "yarn.lock" in properties(c, "blocknb:lock")]
    assert {(c["name"], c["version"]) for c in listed} == resolved and len(resolved) > 300
    entries = [entry for entry in text.split("\n\n") if "@patch:" not in entry]  # yarn's own patch of a listed package
    checksums = {found[1] for entry in entries if (found := re.search(r"^  checksum: (\w+)$", entry, re.MULTILINE))}
    assert set().union(*(properties(c, "yarn:checksum") for c in listed)) == checksums


def test_two_runs_write_the_same_bill(bill: dict[str, Any]) -> None:
    assert sbom["bill"]() == bill
    assert "://" not in json.dumps(bill)  # neither hosts nor times


def test_the_wheel_has_the_licence_of_each_package_that_it_ships() -> None:
    """If it fails: `make licenses`."""
    shipped = sbom["bundled"](sbom["of_yarn"](ROOT / "yarn.lock"))
    assert {"@codemirror/view", "d3-scale", "d3-array", "internmap", "css-loader"} <= set(shipped)
    assert not [name for name in shipped if name.startswith(("@jupyterlab", "@lumino"))]
    listed = sbom["licenses"]()
    assert set(listed) == {(one.name, one.version) for one in shipped.values()}
    assert set(listed.values()) <= {"MIT", "ISC", "BSD-3-Clause", "Apache-2.0"}, (
        "a licence that this list does not allow"
    )
    _, *texts = re.split(r"^==== .*$", (ROOT / "THIRD_PARTY_LICENSES").read_text("utf-8"), flags=re.MULTILINE)
    assert len(texts) == len(listed)
    assert all("opyright" in text and "ermission" in text for text in texts)
    files = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    assert files == ["LICENSE", "THIRD_PARTY_LICENSES"] and all((ROOT / file).is_file() for file in files)


def test_the_bill_marks_the_packages_that_are_in_the_wheel(bill: dict[str, Any]) -> None:
    marked = [c for c in bill["components"] if properties(c, "blocknb:bundled")]
    assert {(c["name"], c["version"]) for c in marked} == set(sbom["licenses"]())
    assert all(c["licenses"][0]["license"]["id"] for c in marked)


def test_the_bundler_found_no_package_that_the_list_lacks() -> None:
    file = ROOT / "labextension" / "dist" / "static" / "third-party-licenses.json"
    if not file.exists():
        pytest.skip("the lab extension is not built")
    found = {(one["name"], one["versionInfo"]) for one in json.loads(file.read_text())["packages"]}
    assert found and found <= set(sbom["licenses"]())


def test_a_change_of_a_lock_file_changes_the_bill(bill: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "one.lock"
    file.write_text(
        f"a==1.0 \\\n    --hash=sha256:{'0' * 64}\nb.c==2 ; sys_platform == 'linux' \\\n    --hash=sha256:{'1' * 64}\n"
    )
    first, second = sbom["of_requirements"](file)
    assert (first.purl, first.hashes) == ("pkg:pypi/a@1.0", ["0" * 64])
    assert (second.purl, second.locks) == ("pkg:pypi/b.c@2", ["one.lock"])
