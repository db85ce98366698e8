"""The number of threads follows the CPU quota of control groups (versions 1 and 2), the affinity mask and the environment."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

import blocknb
from blocknb import cpus
from blocknb.errors import LaunchError
from blocknb.runtime import host

V1 = Path("/sys/fs/cgroup/cpu")


class FakeMachine:
    """Files of /proc and /sys below a folder, as Linux writes them."""

    def __init__(self, folder: Path):
        self.process = folder / "proc"
        self.process.mkdir()
        self.groups: list[str] = []
        self.mounts = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"]
        self.top = folder / "sys fs cgroup"  # mountinfo escapes the blanks

    def mount(self, kind: str, options: str, root: str = "/") -> Path:
        """Mounts the hierarchy below `root`; returns the folder of the mount."""
        place = self.top / (options.replace(",", "+") or "unified")
        place.mkdir(parents=True)
        escaped = str(place).replace(" ", r"\040")
        self.mounts.append(f"31 22 0:27 {root} {escaped} rw,nosuid - {kind} cgroup rw{',' * bool(options)}{options}")
        return place

    def quota(self) -> float | None:
        for name, lines in (("cgroup", self.groups), ("mountinfo", self.mounts)):
            text = "".join(line + "\n" for line in lines)
            (self.process / name).write_bytes(text.encode("utf-8", "surrogateescape"))
        return cpus.cpu_quota(str(self.process))


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


def limit(folder: Path, quota: str, period: str = "100000", version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        (folder / "cpu.max").write_text(f"{quota} {period}\n")
    else:
        (folder / "cpu.cfs_quota_us").write_text(quota + "\n")
        (folder / "cpu.cfs_period_us").write_text(period + "\n")


def test_a_process_without_control_groups_has_no_quota(machine, tmp_path):
    assert machine.quota() is None
    assert cpus.cpu_quota(str(tmp_path / "no proc")) is None


@pytest.mark.parametrize(("text", "quota"), [("150000", 1.5), ("max", None), ("50000", 0.5)])
def test_the_quota_of_version_2_is_read(machine, text, quota):
    machine.groups.append("0::/jupyter-ada")
    limit(machine.mount("cgroup2", "") / "jupyter-ada", text)
    assert machine.quota() == quota


@pytest.mark.parametrize(("text", "quota"), [("150000", 1.5), ("-1", None)])
def test_the_quota_of_version_1_is_read_from_the_controller_of_cpus(machine, text, quota):
    machine.groups += ["5:memory:/other", "4:cpu,cpuacct:/jupyter-ada", "0::/"]
    machine.mount("cgroup", "memory")
    machine.mount("cgroup2", "")  # the hybrid set-up of systemd: version 2 has no controllers
    limit(machine.mount("cgroup", "cpu,cpuacct") / "jupyter-ada", text, version=1)
    assert machine.quota() == quota


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("outer", [True, False])
def test_the_smallest_quota_of_nested_groups_counts(machine, version, outer):
    machine.groups.append({1: "4:cpu:/users/ada/kernel", 2: "0::/users/ada/kernel"}[version])
    top = machine.mount(*{1: ("cgroup", "cpu"), 2: ("cgroup2", "")}[version])
    limit(top / "users/ada/kernel", "800000" if outer else "300000", version=version)
    limit(top / "users/ada", {1: "-1", 2: "max"}[version], version=version)
    limit(top / "users", "300000" if outer else "800000", version=version)
    limit(top / "users/bob", "100000", version=version)  # not around this process
    assert machine.quota() == 3


@pytest.mark.parametrize(("path", "root"), [("/docker/12ab", "/docker/12ab"), ("/", "/"), ("/../kernel", "/")])
def test_a_container_sees_its_own_group_at_the_top(machine, path, root):
    """With and without a namespace of its own, and after a move out of the group in which the namespace began."""
    machine.groups.append(f"0::{path}")
    limit(machine.mount("cgroup2", "", root), "200000")
    assert machine.quota() == 2


def test_a_path_below_the_group_of_a_container_is_found(machine):
    machine.groups.append("4:cpu:/docker/12ab/ada")
    top = machine.mount("cgroup", "cpu", "/docker/12ab")
    limit(top, "400000", version=1)
    limit(top / "ada", "200000", version=1)
    assert machine.quota() == 2


@pytest.mark.parametrize("content", ["", "100000", "none 100000", "100000 0", "100000 100000 100000"])
def test_a_file_of_another_shape_is_no_quota(machine, content):
    machine.groups.append("0::/")
    (machine.mount("cgroup2", "") / "cpu.max").write_text(content)
    assert machine.quota() is None


@pytest.mark.parametrize("name", ["caf\udce9", "line\x85separator", "carriage\rreturn"])
def test_paths_that_are_not_utf8_or_contain_other_line_ends_are_read(machine, name):
    """Linux escapes blanks and newlines only."""
    machine.groups.append(f"0::/{name}")
    machine.mounts.append(f"40 22 8:2 / /media/{name} rw - ext4 /dev/sdb1 rw")
    limit(machine.mount("cgroup2", "") / name, "200000")
    assert machine.quota() == 2


def test_lines_of_another_shape_are_skipped(machine):
    machine.groups += ["", "0::/", "garbage"]
    machine.mounts += ["", "17 22 0:3 / /proc", "18 22 0:4 / /x rw - "]
    limit(machine.mount("cgroup2", ""), "200000")
    assert machine.quota() == 2


@pytest.mark.parametrize(
    ("allowed", "quota", "count"), [(8, None, 8), (8, 2.0, 2), (8, 1.5, 2), (8, 0.2, 1), (2, 6.0, 2), (8, 8.5, 8)]
)
def test_the_count_is_the_smaller_of_the_mask_and_the_quota(monkeypatch, allowed, quota, count):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(allowed)), raising=False)
    monkeypatch.setattr(cpus, "_own_quota", lambda: quota)
    assert cpus.cpu_count() == count


@pytest.mark.parametrize(("own", "threads"), [("", 4), ("6", 6)])
def test_the_environment_sets_the_threads_of_a_launch(monkeypatch, own, threads):
    monkeypatch.setattr(host, "cpu_count", lambda: 4)
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", own)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in Dask's workers
    assert host.thread_count() == threads


def test_a_number_of_threads_that_is_none_is_an_error(monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "²")
    with pytest.raises(LaunchError, match="'²', which is not a positive integer"):
        host.thread_count()


COUNTS = """
import os
open(os.environ["GROUP"] + "/cgroup.procs", "w").write(str(os.getpid()))
from blocknb.codegen.llvm import Workers
from blocknb.cpus import cpu_count, cpu_quota
from blocknb.profile.noise import busy
from blocknb.runtime import host, machine
print(cpu_quota(), cpu_count(), host.thread_count(), Workers().count, machine.properties()["multiprocessor_count"])
"""


def removed(group: Path) -> None:
    """Removes a control group. The kernel refuses that for some time after the last process of the group has ended."""
    for _ in range(100):
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    group.rmdir()


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_a_process_in_a_real_group_uses_its_quota():
    outer = V1 / f"blocknb-{uuid.uuid4().hex}"
    inner = outer / "kernel"
    try:
        try:
            outer.mkdir()
            inner.mkdir()
            (outer / "cpu.cfs_quota_us").write_text("100000")
        except OSError as error:  # root may also lack the right
            pytest.skip(f"cannot make a control group of version 1: {error}")
        environment = {k: v for k, v in os.environ.items() if k != "BLOCKNB_NUM_THREADS"}
        environment |= {"GROUP": str(inner), "PYTHONPATH": str(Path(blocknb.__file__).parent.parent)}
        run = subprocess.run(
            [sys.executable, "-c", COUNTS], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.split() == ["1.0", "1", "1", "1", "1"]
    finally:
        removed(inner)
        removed(outer)
