"""`make recorded`: runs the notebooks whose outputs docs/ keeps, on this machine's GPUs, and stores them with their cards.

    python scripts/record_notebooks.py                        # all notebooks that this machine can record
    python scripts/record_notebooks.py the_card               # some of them
    python scripts/record_notebooks.py --list                 # what is recorded where, and what is missing here
    python scripts/record_notebooks.py the_card --cpu FOLDER  # tries the script on the CPU; docs/ stays as it is

A notebook is stored only if every cell ran, and every result that it reports is right. A first cell names the device, and links to the
notebook without outputs. Without a GPU the script refuses in one line. The exit status is 1 if it refused, or if a notebook failed.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import os
import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from course_outputs import executed  # noqa: E402
from shown_names import gone, names_of, saved_documents  # noqa: E402

from blocknb.notebook.results import RESULT_MIME  # noqa: E402

MOST_BYTES = 2_000_000  # of a recorded notebook
REFUSAL = "make recorded runs notebooks on an NVIDIA GPU, and CuPy finds none on this machine."
#: Folders that differ between machines and runs: of installed packages, of the kernel's cells, and of Inductor's files.
PLACES = (
    (re.compile(r"(?<![\w/])/(?:[\w.-]+/)*site-packages/"), "site-packages/"),
    (re.compile(r"(?<![\w/])/(?:[\w.-]+/)*ipykernel_\d+/"), "ipykernel/"),
    (re.compile(r"(?<![\w/])/(?:[\w.-]+/)+(?=\w\w/c\w{51}\.py)"), "torchinductor/"),
)
#: The same in the packed texts of a card, where a mark stands for each number (see blocknb.notebook.blobs).
PACKED = re.compile(r"H4sI[A-Za-z0-9+/=]+( [0-9a-f]{16})?")
PACKED_PLACES = (
    (re.compile(r"(?<![\w/])/(?:[\w.-]+/)*(?=ipykernel_)"), ""),
    (re.compile(r'(?<=directory: ")/(?:[\w.-]+/)+'), "torchinductor/"),
)
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


@dataclass(frozen=True)
class Recording:
    """A notebook, and the file `to` which its run is written. It needs `packages`, and `gpus` GPUs whose names contain `device`.

    `changes` are texts of its code cells and what replaces them in the run: a notebook that starts CPU workers gets a worker per GPU.
    `prose` are those of its texts."""

    notebook: str
    to: str
    gpus: int = 1
    device: str = ""
    packages: tuple[str, ...] = ()
    changes: tuple[tuple[str, str], ...] = ()
    prose: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        return Path(self.notebook).stem


ON_GPUS = (
    ("from dask.distributed import Client, LocalCluster", "from dask.distributed import Client\nfrom dask_cuda import LocalCUDACluster"),
    ("LocalCluster(n_workers=2, threads_per_worker=1, ", "LocalCUDACluster(n_workers=2, threads_per_worker=4, "),
    ("import numpy as np\n", "import cupy\nimport numpy as np\n"),
    ("x = np.random.default_rng(0)", "x = cupy.random.default_rng(0)"),
    ("out = np.empty_like(x)", "out = cupy.empty_like(x)"),
    ('large, limit="2 MB")', 'large, limit="2 MB", device="cuda")'),
)  # fmt: skip
PROSE_ON_GPUS = (
    ("This notebook starts two CPU workers on this machine.", "This run has a worker for each of two GPUs."),
    (
        "On a machine with GPUs,\nstart `dask_cuda.LocalCUDACluster(threads_per_worker=4)` instead, make the arrays with CuPy, and "
        'stream blocks with `device="cuda"`. The page\n[large_arrays.md](../../docs/large_arrays.md) links to such a run.',
        "`dask_cuda`\nstarts them. The arrays are made with CuPy, and section 3 streams blocks of NumPy through the GPUs.",
    ),
    ("This cluster has one kind of device, this CPU.", "This cluster has one kind of device."),
    ('On GPU workers,\n`device="cuda"` streams', 'The argument\n`device="cuda"` streams'),
)
RECORDINGS = (
    Recording("notebooks/reference/the_card.ipynb", "docs/04_the_card_on_an_H200.ipynb", device="H200"),
    Recording(
        "notebooks/reference/pytorch_ops.ipynb", "docs/recorded/pytorch_ops.ipynb", packages=("torch", "matplotlib")
    ),
    Recording("notebooks/reference/pytorch_compile.ipynb", "docs/recorded/pytorch_compile.ipynb", packages=("torch",)),
    Recording(
        "notebooks/reference/13_many_gpus.ipynb",
        "docs/recorded/13_many_gpus.ipynb",
        gpus=2,
        packages=("distributed", "dask_cuda"),
        changes=ON_GPUS,
        prose=PROSE_ON_GPUS,
    ),
    Recording("notebooks/course/12_your_own.ipynb", "docs/recorded/12_your_own.ipynb"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Records the notebooks; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Runs notebooks on this machine's GPUs, and stores their outputs in docs/."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks, such as the_card; all by default")
    parser.add_argument("--list", action="store_true", help="print what is recorded where, and what is missing here")
    parser.add_argument(
        "--cpu", type=Path, metavar="FOLDER", help="run on the CPU, and write to FOLDER instead of docs/"
    )
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - {one.name for one in RECORDINGS}):
        parser.error(f"unknown notebooks: {', '.join(unknown)}; there are {', '.join(one.name for one in RECORDINGS)}")
    chosen = [one for one in RECORDINGS if one.name in options.names or not options.names]
    gpus = names_of_gpus()
    if options.list:
        for one in chosen:
            print(f"{one.notebook} -> {one.to}: {missing(one, gpus) or 'can be recorded here'}")
        return 0
    if options.cpu is None and not gpus:
        print(REFUSAL, file=sys.stderr)
        return 1
    return max(record(one, gpus, options.cpu) for one in chosen)


def record(one: Recording, gpus: Sequence[str], cpu: Path | None) -> int:
    """Runs one notebook and writes it, and prints a line about it. Returns 1 if it failed; a notebook that is left out has not failed."""
    import nbformat

    lacking = missing(one, gpus) if cpu is None else without_packages(one)
    if lacking:
        print(f"{one.name}: left out, {lacking}")
        return 0
    notebook = nbformat.read(ROOT / one.notebook, as_version=4)
    device = platform.machine() if cpu is not None else f"{one.gpus} x {gpus[0]}" if one.gpus > 1 else gpus[0]
    if cpu is None:
        change(notebook, one.changes)
        change(notebook, one.prose, "markdown")
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    print(f"{one.name}: running on {device} ...", flush=True)
    problem = executed(notebook, (ROOT / one.notebook).parent) or wrong(notebook)
    to = ROOT / one.to if cpu is None else cpu / Path(one.to).name
    if not problem:
        finish(notebook, one, to, device)
        text = nbformat.writes(notebook) + "\n"
        if (size := len(text.encode())) > MOST_BYTES:
            problem = f"the notebook has {size:,} bytes of at most {MOST_BYTES:,}"
    if problem:
        print(f"{one.name}: not recorded: {problem}")
        return 1
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, encoding="utf-8")
    print(f"{one.name}: {to}, {len(text.encode()):,} bytes")
    return 0


def names_of_gpus() -> list[str]:
    """The names of this machine's GPUs; none without CuPy or a driver."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
        return [cupy.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in range(count)]
    except Exception:  # no CuPy, no driver, or no GPU: each has its own exception
        return []


def missing(one: Recording, gpus: Sequence[str]) -> str:
    """Why a notebook cannot be recorded on a machine with these GPUs; "" if it can."""
    if len(gpus) < one.gpus:
        return f"it needs {one.gpus} GPU{'s' * (one.gpus > 1)}, and this machine has {len(gpus)}"
    if one.device not in gpus[0]:
        return f"{one.to} is the run of an {one.device}, and this machine has an {gpus[0]}"
    return without_packages(one)


def without_packages(one: Recording) -> str:
    """The packages of a notebook that are not installed; "" if all are."""
    lost = [name for name in one.packages if find_spec(name) is None]
    return f"not installed: {', '.join(lost)}" if lost else ""


def change(notebook: Any, changes: Sequence[tuple[str, str]], kind: str = "code") -> None:
    """Replaces texts in the cells of a kind. Raises ValueError for a text that no cell contains."""
    cells = [cell for cell in notebook.cells if cell.cell_type == kind]
    for old, new in changes:
        found = [cell for cell in cells if old in cell.source]
        if not found:
            raise ValueError(f"no cell contains {old!r}")
        found[0].source = found[0].source.replace(old, new)


def wrong(notebook: Any) -> str:
    """The first result of an executed notebook that is wrong, or the names of passes that no longer exist; "" if there is none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            result = output.get("data", {}).get(RESULT_MIME)
            if result is not None and result["ok"] is not True:  # None: not run
                return f"{result['what']}: {result['detail']}"
    lost = [name for document in saved_documents(notebook) for name in gone(names_of(document))]
    return f"its cards show {', '.join(sorted(set(lost)))}, which no longer exist" if lost else ""


def finish(notebook: Any, one: Recording, to: Path, device: str) -> None:
    """Adds the cell that names the device, and rewrites relative links for the new folder. Removes times and names of this machine."""
    import nbformat

    import blocknb

    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(lambda found: moved(found, ROOT / one.notebook, to), cell.source)
        else:
            cell.outputs = [cleaned(output) for output in cell.outputs]
    origin = os.path.relpath(ROOT / one.notebook, to.parent)
    head = f"*A recorded run of [{one.name}]({origin}) on {device}, with blocknb {blocknb.__version__}. `make recorded` runs it again.*"
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(head, id="recorded"))
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}


def moved(found: re.Match[str], origin: Path, to: Path) -> str:
    """A link of a text, as the folder of the recorded notebook needs it. Attachments and addresses on the web stay."""
    target = origin.parent / found[2]
    return f"{found[1]}{os.path.relpath(target, to.parent)}{found[3]}" if target.exists() else found[0]


def cleaned(value: Any, places: Sequence[tuple[re.Pattern[str], str]] = PLACES) -> Any:
    """An output without the folders and the name of this machine. A packed text keeps the name under which it is stored."""
    if isinstance(value, dict):
        return type(value)({key: cleaned(inner, places) for key, inner in value.items()})
    if isinstance(value, list):
        return [cleaned(inner, places) for inner in value]
    if isinstance(value, str) and PACKED.fullmatch(value):
        packed, space, base = value.partition(" ")
        content = json.loads(gzip.decompress(base64.b64decode(packed)))
        clean = json.dumps(cleaned(content, PACKED_PLACES), separators=(",", ":"), ensure_ascii=False)
        return base64.b64encode(gzip.compress(clean.encode(), 6, mtime=0)).decode() + space + base
    if isinstance(value, str):
        for text, instead in ((str(ROOT), "blocknb"), (str(Path.home()), "~"), (platform.node(), "host")):
            value = re.sub(rf"(?<![\w/]){re.escape(text)}(?!\w)", instead, value) if len(text) > 3 else value
        for place, instead in places:
            value = place.sub(instead, value)
    return value


if __name__ == "__main__":
    sys.exit(main())
