"""Runs a notebook in many Jupyter kernels at once, as a class on one machine does: `python scripts/classroom.py --kernels 30`.

Every kernel has a private cache, history and temporary folder of its own, as each user of a JupyterHub has. The script starts all kernels,
waits until the last one is ready, and runs the notebook in all of them. Then it sends SIGKILL to the kernels alone, and prints

- the memory of kernels, compiler workers and their tools, at its peak and at the end;
- the average kernel's RSS, PSS and private memory;
- the wall time, and the CPU time of all these processes;
- the median and the slowest time of each cell, as the learners wait for it;
- the processes that are left two seconds (`--grace`) after the kill;
- the files that are left: temporary ones of the learners, and new ones in /dev/shm and in the temporary folder of the system;
- with `--shared`, how many compiled kernels of the shared cache a learner had to compile anyway.

Memory is the sum of proportional set sizes (PSS). In it, a page that n processes share counts 1/n for each of them. `--shared` first builds
a shared cache of the notebook (`blocknb cache build`), which all kernels read. The exit status is 1 if a kernel did not run all cells, or
if something is left. It is also 1 if the shared cache was not used or was changed. Linux only.

Other programs may make files in /dev/shm and in the temporary folder meanwhile. `--memory` and TMPDIR name other folders.

The script is the "child subreaper" of its processes (prctl(2)): the kernel of Linux makes it the parent of each process whose parent has
ended. So it finds all of them, also those that leave their process group or clear their environment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parent.parent
PR_SET_CHILD_SUBREAPER = 36
MARK = "BLOCKNB_CLASSROOM"  # an environment variable by which the script recognises the processes of a run
INTERVAL_S = 2.0  # between two samples of memory
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Sample:
    """The processes of a run at one time: bytes by process id, CPU seconds (with those of children that have ended), and threads."""

    pss: dict[int, int] = field(default_factory=dict)
    rss: dict[int, int] = field(default_factory=dict)
    private: dict[int, int] = field(default_factory=dict)
    cpu: float = 0.0
    threads: int = 0

    @property
    def total(self) -> int:
        return sum(self.pss.values())


class Observer:
    """Finds the processes of a run, and samples them from time to time in a thread."""

    def __init__(self, mark: str):
        self.mark, self._mark = mark, f"{MARK}={mark}".encode()
        self._known: set[int] = set()
        self._ended = threading.Event()
        self.error = ""
        self.peak, self.most_processes, self.most_threads = Sample(), 0, 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def processes(self) -> set[int]:
        """The running processes below this one, and those with the mark in their environment. A zombie has ended."""
        parents = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # it has ended
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(name)] = int(parent)
        known = (self._known & parents.keys()) | below(os.getpid(), parents)
        for pid in parents.keys() - known - {os.getpid()}:
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    known.add(pid)
        self._known = known
        return set(known)

    def sample(self) -> Sample:
        made = Sample()
        for pid in self.processes():
            try:
                rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (OSError, ValueError):
                continue  # it has ended meanwhile
            sizes = {row.split()[0]: int(row.split()[1]) << 10 for row in rows}
            if not sizes:  # it has ended, and its parent does not know yet
                continue
            made.pss[pid], made.rss[pid] = sizes["Pss:"], sizes["Rss:"]
            made.private[pid] = sizes["Private_Clean:"] + sizes["Private_Dirty:"]
            made.cpu += sum(map(int, stat[11:15])) / TICKS
            made.threads += int(stat[17])
        return made

    def shared_memory(self, folder: Path) -> set[str]:
        """The files in `folder`, as /dev/shm, that the processes have open or mapped."""
        found = set()
        for pid in self.processes():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                rows = Path(f"/proc/{pid}/maps").read_text().splitlines()
                found.update(row.split(maxsplit=5)[5] for row in rows if f"{folder}/" in row)
                for link in Path(f"/proc/{pid}/fd").iterdir():
                    with contextlib.suppress(OSError):  # it has closed the file
                        found.add(os.readlink(link))
        return {name for name in found if name.startswith(f"{folder}/")}

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                now = self.sample()
            except Exception as error:  # reported, because a thread would end without a message
                self.error = f"{type(error).__name__}: {error}"
                return
            self.most_processes = max(self.most_processes, len(now.pss))
            self.most_threads = max(self.most_threads, now.threads)
            if now.total > self.peak.total:
                self.peak = now

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def below(root: int, parents: dict[int, int]) -> set[int]:
    """The descendants of a process, by the parents of all processes."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, open_ = set[int](), list(children.get(root, ()))
    while open_:
        pid = open_.pop()
        found.add(pid)
        open_ += children.get(pid, ())
    return found


@dataclass
class Learner:
    """One kernel and its copy of the notebook."""

    manager: Any
    notebook: Any
    error: str = ""

    async def start(self, environment: dict[str, str]) -> None:
        await self.manager.start_kernel(env=environment)
        client = self.manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=600)
        client.stop_channels()

    async def run(self, folder: Path) -> None:
        place = {"metadata": {"path": str(folder)}}
        client = NotebookClient(
            self.notebook, km=self.manager, timeout=1200, resources=place, shutdown_kernel="graceful"
        )
        client.kc = self.manager.client()
        client.kc.start_channels()
        try:
            await client.kc.wait_for_ready(timeout=600)
            client.reset_execution_trackers()
            for number, cell in enumerate(self.notebook.cells):
                await client.async_execute_cell(cell, number)
        except Exception as error:  # reported in the table; the other kernels run on
            self.error = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        finally:
            client.kc.stop_channels()

    @property
    def pid(self) -> int | None:
        """The process of the kernel, as far as its manager knows one."""
        return getattr(self.manager.provisioner, "pid", None)

    def seconds(self, number: int) -> float | None:
        """How long the learner waited for a cell; None for a cell that did not run to its end."""
        times = self.notebook.cells[number].metadata.get("execution", {})
        if not {"iopub.execute_input", "shell.execute_reply"} <= times.keys():
            return None
        begin, end = (datetime.fromisoformat(times[name]) for name in ("iopub.execute_input", "shell.execute_reply"))
        return (end - begin).total_seconds()


def environment_of(folder: Path, mark: str, shared: str) -> dict[str, str]:
    """The environment of one learner: folders of their own below `folder`."""
    names = {"BLOCKNB_CACHE_DIR": "cache", "IPYTHONDIR": "ipython", "TMPDIR": "tmp"}
    for name in names.values():
        (folder / name).mkdir(parents=True, mode=0o700)
    own = {variable: str(folder / name) for variable, name in names.items()}
    own |= {"BLOCKNB_PROGRESS": str(folder / "progress.json"), "BLOCKNB_SHARED_CACHE": shared, MARK: mark}
    return {**os.environ, **own, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}


async def lesson(options: argparse.Namespace, work: Path, mark: str, shared: str) -> bool:
    """Starts the kernels, runs the notebook in all of them, kills them and prints the table. Returns whether all is well."""
    learners = []
    for number in range(options.kernels):
        notebook = nbformat.read(options.notebook, as_version=4)
        sockets = work / f"s{number}"  # Unix sockets, whose paths are short
        sockets.mkdir()
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=str(sockets / "k"))
        manager.connection_file = str(sockets / "connection.json")
        learners.append(Learner(manager, notebook))
    observer, before = Observer(mark), elsewhere(options.memory)
    try:
        return await observed(options, work, shared, learners, observer, before)
    finally:  # also if a kernel did not start
        for pid in observer.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for one in learners:
            if one.pid is not None:
                await one.manager.shutdown_kernel(now=True)


async def observed(
    options: argparse.Namespace, work: Path, shared: str, learners: list[Learner], observer: Observer, before: set[str]
) -> bool:
    """The lesson, between the observer's first and last sample. `before` are the files that were elsewhere."""
    folder, mark = options.notebook.parent, observer.mark
    with observer:
        begin = time.perf_counter()
        environments = [environment_of(work / f"user{i}", mark, shared) for i in range(options.kernels)]
        await asyncio.gather(*(one.start(own) for one, own in zip(learners, environments, strict=True)))
        ready = time.perf_counter()
        idle = observer.sample()
        start = resource.getrusage(resource.RUSAGE_SELF)
        await asyncio.gather(*(one.run(folder) for one in learners))
        finished = time.perf_counter()
        after = resource.getrusage(resource.RUSAGE_SELF)
        last = await asyncio.to_thread(observer.sample)
        opened = observer.shared_memory(options.memory)
    kernels, killed = kill(learners), time.perf_counter()
    # Not manager.shutdown_kernel: it kills the whole process group, and so the compiler workers, which have to end by themselves.
    while (left := sorted(observer.processes())) and time.perf_counter() < killed + options.grace:
        await asyncio.sleep(0.05)
    seconds = time.perf_counter() - killed
    report_memory(observer, idle, last, kernels)
    client = after.ru_utime + after.ru_stime - start.ru_utime - start.ru_stime
    print(
        f"time: {ready - begin:.1f} s until all kernels are ready, then {finished - ready:.1f} s for the notebook; CPU time of the kernels "
        f"and their workers {idle.cpu:.1f} s and {last.cpu - idle.cpu:.1f} s (and {client:.1f} s of this script)"
    )
    report_cells(learners)
    nothing = report_left(left, left_files(work, elsewhere(options.memory) - before, opened), seconds)
    used = report_shared(work, Path(shared)) if shared else True
    if observer.error:
        print(f"memory was not sampled to the end: {observer.error}")
    return nothing and used and not observer.error and not any(one.error for one in learners)


def kill(learners: list[Learner]) -> list[int]:
    """Kills the kernels, except those that have died in the lesson. Returns the process ids of all."""
    kernels = [pid for one in learners if (pid := one.pid) is not None]
    for pid in kernels:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return kernels


def report_memory(observer: Observer, idle: Sample, last: Sample, kernels: list[int]) -> None:
    others = [pid for pid in last.pss if pid not in kernels]

    def mean(sizes: dict[int, int], pids: list[int]) -> str:
        return f"{statistics.fmean(sizes.get(pid, 0) for pid in pids) / 2**20:.0f}" if pids else "0"

    peak = max(observer.peak.total, last.total)
    print(
        f"memory (sum of PSS): {idle.total / 2**20:.0f} MiB before the first cell, {peak / 2**20:.0f} MiB at the peak, "
        f"{last.total / 2**20:.0f} MiB at the end"
    )
    for name, pids in (("a kernel", kernels), ("a worker or tool", others)):
        sizes = (mean(last.rss, pids), mean(last.pss, pids), mean(last.private, pids))
        print("  {} at the end, of {}: RSS {} MiB, PSS {} MiB, private {} MiB".format(name, len(pids), *sizes))
    print(f"processes: at most {observer.most_processes}, with {observer.most_threads} threads")


def report_cells(learners: list[Learner]) -> None:
    print(f"{'cell':>4}  {'median':>8}  {'slowest':>8}")
    whole = [0.0] * len(learners)
    for number, cell in enumerate(learners[0].notebook.cells):
        if cell.cell_type != "code":
            continue
        found = [one.seconds(number) for one in learners]
        whole = [total + (time or 0.0) for total, time in zip(whole, found, strict=True)]
        if times := [time for time in found if time is not None]:
            first = next((line for line in cell.source.splitlines() if line.strip()), "")
            print(f"{number:>4}  {statistics.median(times):>6.2f} s  {max(times):>6.2f} s  {first[:70]}")
    # A kernel that failed has no sum of all cells.
    if complete := [total for total, one in zip(whole, learners, strict=True) if not one.error]:
        print(f" all  {statistics.median(complete):>6.2f} s  {max(complete):>6.2f} s")
    for number, one in enumerate(learners):
        if one.error:
            print(f"kernel {number}: {one.error}")
    print(f"{sum(not one.error for one in learners)} of {len(learners)} kernels ran all cells")


def elsewhere(memory: Path) -> set[str]:
    """The files in `memory`, as /dev/shm, and those of blocknb in the temporary folder of the system."""
    found = {str(path) for path in memory.iterdir()} if memory.is_dir() else set()
    return found | {str(path) for path in Path(tempfile.gettempdir()).iterdir() if "blocknb" in path.name}


def left_files(work: Path, new: set[str], opened: set[str]) -> list[str]:
    """The remains of the kernels: temporary files, files of the caches that were not renamed, and `new` files elsewhere."""
    own = list(work.glob("user*/tmp/**/*"))
    own += [
        path for path in work.glob("user*/**/.*") if ".new" in path.name and "tmp" not in path.relative_to(work).parts
    ]
    return [str(path.relative_to(work)) for path in own] + sorted(
        new | {name for name in opened if os.path.exists(name)}
    )


def report_left(left: list[int], files: list[str], seconds: float) -> bool:
    """Prints which processes and files still exist `seconds` after the kill. Returns whether there is none."""
    print(f"left {seconds:.2f} s after SIGKILL: {len(left)} processes, {len(files)} files")
    for pid in left:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            print(f"  {pid}: {' '.join(command.split())[:200]}")
    for name in files:
        print(f"  {name}")
    return not left and not files


def entries(folder: Path) -> set[str]:
    """The compiled kernels of a cache, by their keys."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*.bnb")}


def state(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file of a folder."""
    return {str(path): (found.st_size, found.st_mtime_ns) for path in folder.rglob("*") if (found := path.stat())}


def report_shared(work: Path, shared: Path) -> bool:
    """Prints how many kernels came from the shared cache. Returns whether it has some, and no learner compiled one of them."""
    offered = entries(shared)
    again = sorted({name for cache in work.glob("user*/cache") for name in entries(cache) & offered})
    print(f"shared cache: {len(offered)} kernels, {len(again)} of which a learner compiled anyway")
    for name in again:
        print(f"  {name}")
    return bool(offered) and not again


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kernels", type=int, default=30, metavar="N", help="the number of kernels (30)")
    parser.add_argument("--notebook", type=Path, default=ROOT / "notebooks" / "course" / "01_blocks.ipynb")
    parser.add_argument("--shared", action="store_true", help="build a shared cache first")
    parser.add_argument(
        "--grace", type=float, default=2.0, metavar="S", help="seconds until all processes must have ended (2)"
    )
    parser.add_argument(
        "--memory", type=Path, default=Path("/dev/shm"), metavar="FOLDER", help="where files of shared memory are"
    )
    options = parser.parse_args()
    if options.kernels < 1 or not options.notebook.is_file():
        parser.error("--kernels is 1 or more" if options.kernels < 1 else f"there is no file {options.notebook}")
    options.notebook = options.notebook.absolute()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="class-") as name, tempfile.TemporaryDirectory(dir="/tmp") as cache:
        work, shared = Path(name), ""
        if options.shared:
            os.chmod(cache, 0o755)  # `cache build` fails for a folder that other users cannot reach
            shared = cache
            command = [sys.executable, "-m", "blocknb", "cache", "build", shared, str(options.notebook)]
            paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths})
        print(
            f"{options.kernels} kernels, {os.cpu_count()} CPUs, {'a shared cache' if shared else 'no shared cache'}",
            flush=True,
        )
        built = state(Path(shared)) if shared else {}
        good = asyncio.run(lesson(options, work, uuid.uuid4().hex, shared))
        if shared and state(Path(shared)) != built:
            print("the lesson has changed the shared cache")
            good = False
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
