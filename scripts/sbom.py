"""Writes the software bill of materials, and the licences of the JavaScript packages that the wheel ships.

    python scripts/sbom.py [FILE]          the packages of all lock files, as CycloneDX 1.6 JSON (default: build/sbom.cdx.json)
    python scripts/sbom.py --licenses      rewrites THIRD_PARTY_LICENSES, from the packages in node_modules

The lock files determine the bill completely: requirements/* with the SHA-256 of each distribution file, and yarn.lock. Two runs on the same
lock files write the same bytes. A component has the property `blocknb:lock` for each file that fixes its version. It has `blocknb:bundled`
if its code is in the lab extension, and so in the wheel. These are the packages that the TypeScript sources import, with what they depend
on, except those that JupyterLab provides to its extensions.

Specification: CycloneDX 1.6 (ECMA-424); package URLs: the purl specification.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
LICENSES = ROOT / "THIRD_PARTY_LICENSES"
#: Packages whose helpers the bundler puts next to every style sheet.
LOADERS = ("css-loader", "style-loader")
#: Scopes of packages that JupyterLab shares with its extensions. They are in no bundle.
SHARED = ("@jupyterlab/", "@lumino/")
_HEADING = re.compile(r"^==== (\S+) (\S+) \((.+)\)$", re.MULTILINE)
_INTRODUCTION = """\
The lab extension of blocknb (share/jupyter/labextensions/blocknb) contains code of the following JavaScript packages.
`python scripts/sbom.py --licenses` writes this file.
"""


@dataclass
class Component:
    """A package of one version: where it is fixed, and the SHA-256 of its distribution files."""

    kind: str  # pypi or npm
    name: str
    version: str
    locks: list[str] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    checksum: str = ""  # by yarn, of the archive that it makes
    dependencies: tuple[str, ...] = ()  # "name@range" in yarn.lock

    @property
    def purl(self) -> str:
        scope, _, name = self.name.rpartition("/")
        return f"pkg:{self.kind}/{quote(scope, safe='') + '/' if scope else ''}{quote(name)}@{quote(self.version, safe='')}"


def of_requirements(path: Path) -> Iterator[Component]:
    """The packages of a requirements file with hashes."""
    for block in re.split(r"\n(?=\S)", path.read_text()):
        if found := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block):
            hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
            yield Component("pypi", found[1], found[2], [path.name], hashes)


def of_yarn(path: Path) -> dict[str, Component]:
    """The packages of yarn.lock, by each "name@range" that they serve. The workspace itself is not among them."""
    found: dict[str, Component] = {}
    for block in path.read_text().split("\n\n"):
        head, *lines = block.strip().split("\n")
        resolution = next((line for line in lines if line.startswith("  resolution: ")), "")
        match = re.search(r'"(@?[^@"]+)@npm:([^"]+)"', resolution)
        if match is None:
            continue
        checksum = next((line.split()[1] for line in lines if line.startswith("  checksum: ")), "")
        made = Component("npm", match[1], match[2], [path.name], checksum=checksum, dependencies=tuple(_needs(lines)))
        for key in head.rstrip(":").strip('"').split(", "):
            found[key.replace("@npm:", "@")] = made
    return found


def _needs(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if not line.startswith("    "):
            inside = line == "  dependencies:"
        elif inside and (found := re.match(r'    "?(@?[^":]+)"?: "?([^"]+)"?$', line)):
            yield f"{found[1]}@{found[2].removeprefix('npm:')}"


def bundled(yarn: dict[str, Component]) -> dict[str, Component]:
    """The packages whose code is in the lab extension, by name."""
    sources = [path.read_text() for path in (ROOT / "labextension" / "src").rglob("*.ts")]
    imported = {name for text in sources for name in re.findall(r"(?:from|import) '((?:@[\w-]+/)?[\w-]+)[^']*'", text)}
    wanted = json.loads((ROOT / "package.json").read_text())["dependencies"]
    todo = [f"{name}@{wanted[name]}" for name in sorted(imported) if name in wanted]
    todo += [key for key in yarn if key.rpartition("@")[0] in LOADERS]
    found: dict[str, Component] = {}
    while todo:
        key = todo.pop()
        if key.startswith(SHARED) or key not in yarn or yarn[key].name in found:
            continue
        component = found[yarn[key].name] = yarn[key]
        todo += () if component.name in LOADERS else component.dependencies
    return dict(sorted(found.items()))


def components() -> list[Component]:
    """All packages of the lock files, each once, in order."""
    found: dict[str, Component] = {}
    listed = [c for path in sorted((ROOT / "requirements").iterdir()) for c in of_requirements(path)]
    for one in (*listed, *of_yarn(ROOT / "yarn.lock").values()):
        known = found.setdefault(one.purl, one)
        if known is not one:
            known.locks = sorted({*known.locks, *one.locks})
            known.hashes = sorted({*known.hashes, *one.hashes})
    return sorted(found.values(), key=lambda one: one.purl)


def licenses() -> dict[tuple[str, str], str]:
    """The licences in THIRD_PARTY_LICENSES by (name, version)."""
    return {(name, version): license for name, version, license in _HEADING.findall(LICENSES.read_text())}


def bill() -> dict[str, Any]:
    """The bill of materials as CycloneDX."""
    in_wheel = {one.purl for one in bundled(of_yarn(ROOT / "yarn.lock")).values()}
    known = licenses()
    made = []
    for one in components():
        properties = [{"name": "blocknb:lock", "value": lock} for lock in one.locks]
        if one.checksum:
            properties.append({"name": "yarn:checksum", "value": one.checksum})
        if one.purl in in_wheel:
            properties.append({"name": "blocknb:bundled", "value": "true"})
        item: dict[str, Any] = {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "purl": one.purl,
            "properties": properties,
        }
        if one.hashes:
            item["hashes"] = [{"alg": "SHA-256", "content": content} for content in one.hashes]
        if license := known.get((one.name, one.version)):
            item["licenses"] = [{"license": {"id": license}}]
        made.append(item)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    version = json.loads((ROOT / "package.json").read_text())["version"]
    root = {
        "type": "application",
        "bom-ref": f"pkg:pypi/{project['name']}@{version}",
        "name": project["name"],
        "version": version,
        "description": project["description"],
        "licenses": [{"license": {"id": project["license"]}}],
        "purl": f"pkg:pypi/{project['name']}@{version}",
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, made]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": root},
        "components": made,
    }


def third_party() -> str:
    """The text of THIRD_PARTY_LICENSES. Raises SystemExit for a package without a licence."""
    parts = [_INTRODUCTION]
    for one in bundled(of_yarn(ROOT / "yarn.lock")).values():
        folder, described = _installed(one)
        files = sorted(path for path in folder.iterdir() if re.match(r"(?i)licen[cs]e|copying|notice", path.name))
        if not files or not isinstance(described.get("license"), str):
            raise SystemExit(
                f"{one.name} {one.version} names no licence: read its README, and leave it out if it has none"
            )
        parts.append(f"==== {one.name} {one.version} ({described['license']})\n")
        parts += [path.read_text("utf-8").strip() + "\n" for path in files]
    return "\n".join(parts)


def _installed(component: Component) -> tuple[Path, dict[str, Any]]:
    """The folder and the package.json of a package. Packages of other versions may have their own copy of it."""
    top = ROOT / "node_modules"
    for pattern in ("", "*/node_modules", "@*/*/node_modules"):
        for folder in (above / component.name for above in ([top] if not pattern else sorted(top.glob(pattern)))):
            if (file := folder / "package.json").is_file():
                described = json.loads(file.read_text())
                if described.get("version") == component.version:
                    return folder, described
    raise SystemExit(f"node_modules does not hold {component.name} {component.version}: run jlpm install")


def main(arguments: list[str]) -> None:
    if arguments == ["--licenses"]:
        LICENSES.write_text(third_party(), "utf-8")
        print(f"{LICENSES.name}: {len(licenses())} packages")
        return
    file = Path(arguments[0]) if arguments else ROOT / "build" / "sbom.cdx.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    made = bill()
    file.write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    print(f"{file}: {len(made['components'])} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
