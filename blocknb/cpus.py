"""The CPUs that this process may use: `cpu_count()`, the default for every pool of threads or processes.

Three limits apply: the CPUs of the machine, the affinity mask, and the CPU quota of control groups. `taskset` sets the mask, and Linux
writes the cpuset of a container into it. A container or a notebook server with a quota of two CPUs on a host of 64 sees 64 CPUs in its
mask. With 64 threads it would use up its quota in the first milliseconds of each period, and then stand still until the next period begins.
`os.process_cpu_count` of Python 3.13 reads the mask alone.

The quota is `cpu.max` of cgroup v2 and `cpu.cfs_quota_us` of v1: https://docs.kernel.org/admin-guide/cgroup-v2.html, section
"CPU Interface Files". The quotas of all enclosing groups hold, so the smallest one counts.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Iterator


def cpu_count() -> int:
    """The number of CPUs that this process may use, at least 1. A quota of 1.5 CPUs counts as two: two threads can use it up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _own_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


@functools.cache
def _own_quota() -> float | None:
    """The quota of this process, read once: a launch asks for the number of threads, and would read several files."""
    return cpu_quota()


def cpu_quota(process: str = "/proc/self") -> float | None:
    """The CPU quota of a process in CPUs (1.5: three CPUs half of the time), or None without one.

    `process` is its folder in /proc. The result is the smallest quota of its control group and of all groups around it that this
    process can see.
    """
    try:
        groups, mounts = _lines(f"{process}/cgroup"), _lines(f"{process}/mountinfo")
    except OSError:  # no Linux, or a container without /proc
        return None
    paths = {}  # "cpu" for version 1, "" for version 2, to the path of the group
    for line in groups:  # "4:cpu,cpuacct:/users/ada", or "0::/users/ada" of version 2
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if path:
            paths.update(dict.fromkeys(controllers.split(","), path))
    found = [quota for mount in mounts for folder in _folders(mount, paths) if (quota := _quota_of(folder)) is not None]
    return min(found, default=None)


def _folders(mount: str, paths: dict[str, str]) -> Iterator[str]:
    """The folders of the process's group and of the groups around it, if a line of mountinfo is a mount of the controller `cpu`."""
    place, _, system = mount.partition(" - ")
    kind, options = system.partition(" ")[0], system.rpartition(" ")[2].split(",")
    controller = {"cgroup2": "", "cgroup": "cpu"}.get(kind)
    if controller not in paths or (controller and controller not in options):
        return
    root, top = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), name) for name in place.split(" ")[3:5])
    # In a container the mount may begin at the container's own group, and the path may be one outside of it.
    inner = os.path.relpath(paths[controller], root)
    folder = top if inner == ".." or inner.startswith("../") else os.path.normpath(os.path.join(top, inner))
    while len(folder) > len(top):
        yield folder
        folder = os.path.dirname(folder)
    yield top


def _quota_of(folder: str) -> float | None:
    """The quota of one group. The files of the root group are missing or say that there is none."""
    try:
        if os.path.exists(f"{folder}/cpu.max"):
            quota, period = _words(f"{folder}/cpu.max")
        else:
            quota, period = *_words(f"{folder}/cpu.cfs_quota_us"), *_words(f"{folder}/cpu.cfs_period_us")
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _lines(path: str) -> list[str]:
    """The lines of a file that holds paths, which may be no text: each byte that is not UTF-8 becomes a surrogate, as in `os.fsdecode`."""
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return file.read().removesuffix("\n").split("\n")


def _words(path: str) -> list[str]:
    with open(path) as file:
        return file.read().split()
