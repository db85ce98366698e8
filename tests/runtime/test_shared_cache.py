"""A shared cache of an administrator is read after the private one, is never written, and is refused if others could have written it."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_cache_trust import ANOTHER_USER, fifo, folder, huge, link_out, link_to_zeros, owned

import blocknb
from blocknb.notebook import shared_cache_command
from blocknb.notebook.shared_cache_command import build, check, publish
from blocknb.runtime import cache, private_files, shared_cache
from blocknb.runtime.cache import Cache, key
from blocknb.tune.config import Config
from blocknb.tune.store import StorePlace
from blocknb.tune.tuning import Trial, Tuning

KEY, OTHER = key("a kernel"), key("another kernel")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs owners and modes of files")


@pytest.fixture(autouse=True)
def no_warning_before(monkeypatch):
    monkeypatch.setattr(private_files, "_warned", set())


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder that all users can reach, unlike pytest's own, which is private."""
    made = Path(tempfile.mkdtemp(prefix="blocknb-shared-", dir="/tmp")).resolve()
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A shared cache with one entry, named in the environment; the private cache is empty."""
    filled = Cache(tmp_path / "filled")
    filled.put(KEY, {"x": 1}, {"object": b"code"})
    publish(filled.root, str(tmp_path / "shared"))
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "private"))
    monkeypatch.setenv("BLOCKNB_SHARED_CACHE", str(tmp_path / "shared"))
    return tmp_path / "shared"


def entry(shared: Path) -> Path:
    return Cache(shared).path(KEY)


def state(place: Path) -> list[tuple]:
    """All that a write would change: names, sizes, times and modes."""
    found = [(path, path.lstat()) for path in sorted([place, *place.rglob("*")])]
    return [(path, s.st_size, s.st_mtime_ns, s.st_atime_ns, s.st_mode) for path, s in found]


def refused(shared: Path, match: str) -> None:
    """A launch finds nothing, says why in one line, compiles into the private cache, and leaves the folder alone."""
    before, cache = sorted(shared.rglob("*")), Cache()
    with pytest.warns(RuntimeWarning, match=match) as said:  # noqa: PT031 (one warning for all of it)
        assert cache.get(KEY) is None
        assert cache.get(KEY) is None
        cache.put(KEY, {"x": 2}, {})
        assert Cache().get(KEY).meta == {"x": 2}
    (message,) = (str(one.message) for one in said if one.category is RuntimeWarning)
    assert "\n" not in message and "blocknb cache check" in message
    assert sorted(shared.rglob("*")) == before


def test_a_published_folder_is_readable_by_all_with_any_umask(tmp_path):
    Cache(tmp_path / "filled").put(KEY, {}, {"object": b"code"})
    place = tmp_path / "opt" / "class" / "shared"
    before = os.umask(0o077)
    try:
        assert publish(str(tmp_path / "filled"), str(place)) == 1
    finally:
        os.umask(before)
    made = [tmp_path / "opt", tmp_path / "opt" / "class", place, entry(place).parent, entry(place)]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o755] * 4 + [0o644]
    assert check(str(place)) == 0


def test_the_choices_of_an_autotuner_are_not_published(tmp_path, monkeypatch):
    """They hold for the administrator's CPUs and load; a user's process measures for itself."""
    filled = Cache(tmp_path / "filled")
    filled.put(KEY, {}, {"object": b"code"})
    monkeypatch.setattr(cache, "shared", lambda: filled)
    config = Config({"BLOCK": 64})
    StorePlace(OTHER, (config,)).write(Tuning("k", {}, (Trial(config, 1.0, 1),), config))
    assert filled.get(OTHER).meta["best"] == 0
    assert publish(filled.root, str(tmp_path / "shared")) == 1
    assert list(Cache(tmp_path / "shared").names()) == [f"{KEY[:2]}/{KEY[2:]}.bnb"]


def test_a_miss_of_the_private_cache_reads_the_shared_one_and_writes_nothing(shared, tmp_path):
    os.utime(entry(shared), (1, 1))
    before = state(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache().get(KEY).blobs == {"object": b"code"}
    after = state(shared)
    assert [row[:3] + row[4:] for row in after] == [row[:3] + row[4:] for row in before]
    assert not (tmp_path / "private").exists()


def test_a_miss_of_both_is_stored_in_the_private_cache_only(shared, tmp_path):
    before, cache = sorted(shared.rglob("*")), Cache()
    assert cache.get(OTHER) is None
    cache.put(OTHER, {"x": 3}, {})
    cache.limit = 0
    assert Cache().get(OTHER).meta == {"x": 3} and sorted(shared.rglob("*")) == before
    cache.shrink()
    cache.clear()
    assert cache.get(OTHER) is None and Cache().get(KEY).meta == {"x": 1} and sorted(shared.rglob("*")) == before


def test_the_private_cache_comes_first(shared):
    Cache().put(KEY, {"x": 2}, {})
    assert Cache().get(KEY).meta == {"x": 2}


def test_a_dropped_entry_is_not_found_again_by_this_process(shared):
    """Otherwise code that cannot be started would be found after each attempt to compile it again."""
    cache = Cache()
    cache.drop(KEY)
    assert cache.get(KEY) is None and entry(shared).exists()
    cache.put(KEY, {"x": 2}, {})
    assert cache.get(KEY).meta == {"x": 2}


def test_several_folders_are_read_in_their_order(shared, tmp_path, monkeypatch):
    Cache(tmp_path / "more").put(KEY, {"x": 7}, {})
    Cache(tmp_path / "more").put(OTHER, {"x": 8}, {})
    monkeypatch.setenv("BLOCKNB_SHARED_CACHE", f" {shared}/ {os.pathsep}{os.pathsep}{tmp_path / 'more'}")
    assert Cache().get(KEY).meta == {"x": 1} and Cache().get(OTHER).meta == {"x": 8}


def test_a_cache_of_a_given_folder_has_no_second_level(shared, tmp_path):
    assert Cache(tmp_path / "mine").get(KEY) is None


# ---- what is refused


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["root", "inner"])
def test_a_folder_that_others_may_write_to_is_refused(shared, mode, place):
    os.chmod(shared if place == "root" else entry(shared).parent, mode)
    refused(shared, r"does not use the shared cache .*can be changed by (its group|all users) \(mode [0-7]+\)")


@pytest.mark.parametrize("place", ["root", "inner"])
def test_a_folder_of_another_user_is_refused(shared, monkeypatch, place):
    owned(monkeypatch, shared if place == "root" else entry(shared).parent, ANOTHER_USER)
    refused(shared, rf"belongs to another user \(uid {ANOTHER_USER}\); its owner must be root, you or the user who has")


@pytest.mark.parametrize(("owner", "used"), [(0, True), (ANOTHER_USER, True), (ANOTHER_USER + 1, False)])
def test_folders_of_root_and_of_the_installer_are_used(shared, monkeypatch, owner, used):
    """The user who has installed blocknb can change all code of it, which this process runs."""
    monkeypatch.setattr(shared_cache, "administrators", lambda: (ANOTHER_USER,))
    monkeypatch.setattr(private_files, "_user", lambda: ANOTHER_USER + 2)
    for path in (shared, entry(shared).parent, entry(shared)):
        owned(monkeypatch, path, owner)
    with warnings.catch_warnings():
        warnings.simplefilter("error" if used else "ignore")
        assert (Cache().get(KEY) is not None) == used


@pytest.mark.parametrize(("owner", "known"), [(0, (0,)), (ANOTHER_USER, (ANOTHER_USER,)), (65534, ())])
def test_the_installer_is_the_owner_of_the_sources_unless_that_id_stands_for_many_users(monkeypatch, owner, known):
    shared_cache.administrators.cache_clear()
    real = os.stat

    def seen(path, *given, **named):
        found = real(path, *given, **named)
        return os.stat_result([*found[:4], owner, *found[5:]]) if path == shared_cache.__file__ else found

    monkeypatch.setattr(os, "stat", seen)
    assert shared_cache.administrators() == known
    shared_cache.administrators.cache_clear()


@pytest.mark.parametrize("how", ["owner", "mode"])
def test_a_file_that_others_could_have_written_is_refused(shared, monkeypatch, how):
    if how == "owner":
        owned(monkeypatch, entry(shared), ANOTHER_USER)
    else:
        entry(shared).chmod(0o664)
    refused(shared, "ignores a file in the shared cache")


@pytest.mark.parametrize("at", [3, 20, 60, -1])
def test_a_tampered_file_is_refused(shared, at):
    data = bytearray(entry(shared).read_bytes())
    data[at] ^= 1
    entry(shared).write_bytes(data)
    refused(shared, "is damaged")


def test_the_file_of_another_kernel_is_refused(shared, tmp_path):
    Cache(tmp_path / "filled").put(OTHER, {"x": 9}, {})
    entry(shared).write_bytes(Cache(tmp_path / "filled").path(OTHER).read_bytes())
    refused(shared, "is damaged")


@pytest.mark.parametrize("make", [fifo, link_out, link_to_zeros, folder, huge])
def test_what_is_no_regular_file_is_refused_at_once(shared, tmp_path, make):
    entry(shared).rename(tmp_path / "elsewhere")  # a whole entry with a valid digest
    make(entry(shared), tmp_path / "elsewhere")
    refused(shared, "ignores a file in the shared cache")


def test_a_link_in_place_of_an_inner_folder_is_not_followed(shared, tmp_path):
    inner = entry(shared).parent
    inner.rename(tmp_path / "elsewhere")
    inner.symlink_to(tmp_path / "elsewhere")
    assert Cache().get(KEY) is None


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_link_to_the_folder_is_followed_unless_another_user_made_it(shared, tmp_path, monkeypatch, slash):
    link = tmp_path / "link"
    link.symlink_to(shared)
    monkeypatch.setenv("BLOCKNB_SHARED_CACHE", f"{link}{slash}")
    assert Cache().get(KEY) is not None
    owned(monkeypatch, link, ANOTHER_USER)
    refused(shared, "is a symbolic link of another user")


@pytest.mark.parametrize(
    ("value", "why"), [("shared", "absolute path"), ("/no/such/folder", "there is no such folder")]
)
def test_a_wrong_name_is_reported_once(shared, monkeypatch, value, why):
    monkeypatch.chdir(shared.parent)
    monkeypatch.setenv("BLOCKNB_SHARED_CACHE", value)
    with pytest.warns(RuntimeWarning, match=why) as said:
        assert Cache().get(KEY) is None and Cache().get(OTHER) is None
    assert [one.category for one in said].count(RuntimeWarning) == 1


# ---- processes

KERNEL = """
import json, os, warnings
import numpy as np
import blocknb, blocknb.language as tl
warnings.simplefilter("error")

@blocknb.kernel
def one(out):
    tl.store(out + tl.arange(0, 8), 1.0)

out = np.zeros(8, np.float32)
compiled = one[(1,)](out)
from blocknb.runtime import cache
print(json.dumps([float(out.sum()), compiled.trace.from_cache, len(list(cache.shared().names()))]))
"""


def launched(work: Path, private: Path, shared: str) -> subprocess.Popen:
    (work / "script.py").write_text(KERNEL)
    environment = {**os.environ, "BLOCKNB_CACHE_DIR": str(private), "BLOCKNB_SHARED_CACHE": shared}
    environment["PYTHONPATH"] = str(Path(blocknb.__file__).parent.parent)
    command = [sys.executable, str(work / "script.py")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen) -> list:
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(text)


@pytest.mark.full
def test_two_processes_run_what_a_third_has_compiled(tmp_path):
    assert said(launched(tmp_path, tmp_path / "filled", "")) == [8.0, False, 1]
    publish(str(tmp_path / "filled"), str(tmp_path / "shared"))
    before = sorted((tmp_path / "shared").rglob("*"))
    users = [launched(tmp_path, tmp_path / f"user {i}", str(tmp_path / "shared")) for i in range(2)]
    assert [said(user) for user in users] == [[8.0, True, 0]] * 2
    assert sorted((tmp_path / "shared").rglob("*")) == before


def as_user(user: int, act: Callable[[], bool]) -> bool:
    """What a function returns in a process of another user."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(user)
            os._exit(0 if act() else 1)
        finally:
            os._exit(2)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return status == 0


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can start processes of users")
def test_a_user_reads_what_root_has_compiled_and_refuses_what_another_user_has(monkeypatch):
    place = Path(tempfile.mkdtemp(prefix="blocknb-shared-", dir="/tmp"))  # the folders of pytest are root's alone
    try:
        place.chmod(0o755)
        Cache(place / "filled").put(KEY, {"x": 1}, {"object": b"code"})
        publish(str(place / "filled"), str(place / "shared"))
        monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(place / "private"))
        monkeypatch.setenv("BLOCKNB_SHARED_CACHE", str(place / "shared"))
        assert as_user(ANOTHER_USER, lambda: Cache().get(KEY) is not None)
        assert as_user(ANOTHER_USER, lambda: not os.access(entry(place / "shared"), os.W_OK))
        for path in (place / "shared", *(place / "shared").rglob("*")):
            os.chown(path, ANOTHER_USER + 1, -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert as_user(ANOTHER_USER, lambda: Cache().get(KEY) is None)
            assert as_user(ANOTHER_USER + 1, lambda: Cache().get(KEY) is not None)
    finally:
        shutil.rmtree(place)


# ---- the administrator's commands


def test_a_sound_folder_passes_the_check(shared, capsys):
    assert check(str(shared)) == 0
    assert capsys.readouterr().out.startswith(f"{shared}: 1 entries, 0.0 MB, 0 problems")


def test_the_check_names_what_is_refused_and_the_fix_removes_what_cannot_be_trusted(shared, tmp_path, capsys):
    filled = Cache(tmp_path / "filled")
    bad = {
        "writable": lambda path: path.chmod(0o666),
        "damaged": lambda path: path.write_bytes(b"x" * 100),
        "private": lambda path: path.chmod(0o600),
        "link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
        "folder": lambda path: (path.unlink(), path.mkdir()),
    }
    for name in bad:
        filled.put(key(name), {}, {"object": b"code"})
    publish(filled.root, str(shared))
    for name, spoil in bad.items():
        spoil(Cache(shared).path(key(name)))
    entry(shared).parent.chmod(0o777)
    assert check(str(shared)) == 1
    told = capsys.readouterr().out
    assert "6 problems" in told and told.rstrip().endswith(f"blocknb cache check --fix {shared}")
    assert all(str(Cache(shared).path(key(name))) in told for name in bad)
    assert check(str(shared), fix=True) == 0
    told = capsys.readouterr().out
    assert told.count(": removed") == 5 and "now has mode 0755" in told and "1 entries" in told
    assert Path("/etc/passwd").exists() and Cache().get(KEY).meta == {"x": 1}


def test_the_fix_mends_a_folder_of_the_cache_before_it_looks_inside(shared, capsys):
    """Names in a folder that others may change can become others between two looks."""
    entry(shared).write_bytes(b"damaged")
    shared.chmod(0o777)
    assert check(str(shared)) == 1 and "0 entries, 0.0 MB, 1 problem\n" in capsys.readouterr().out
    assert check(str(shared), fix=True) == 0
    told = capsys.readouterr().out
    assert f"{shared}: can be changed by all users (mode 0777): now has mode 0755\n" in told
    assert f"{entry(shared)}: is damaged: removed\n" in told


@pytest.mark.parametrize("place", ["root", "inner"])
def test_the_fix_follows_no_link_that_replaces_a_folder_after_it_was_looked_at(shared, tmp_path, monkeypatch, place):
    """CWE-367: the users who could write to the folder exchange it while root mends it."""
    secret, path = tmp_path / "secret", shared if place == "root" else entry(shared).parent
    secret.mkdir(mode=0o700)
    path.chmod(0o777)
    for name in ("chmod", "open"):

        def exchange(name, *given, real=getattr(os, name), **named):
            if name == str(path) and not path.is_symlink():
                path.rename(tmp_path / "old")
                path.symlink_to(secret)
            return real(name, *given, **named)

        monkeypatch.setattr(os, name, exchange)
    assert check(str(shared), fix=True) == (1 if place == "root" else 0)
    assert secret.stat().st_mode & 0o777 == 0o700


def test_the_check_does_not_wait_for_a_fifo_that_replaces_a_file_after_it_was_looked_at(shared, monkeypatch):
    path, real = entry(shared), os.lstat

    def exchange(name, **given):
        found = real(name, **given)
        if str(name) == str(path) and stat.S_ISREG(found.st_mode):
            path.unlink()
            os.mkfifo(path)
        return found

    monkeypatch.setattr(os, "lstat", exchange)
    checking = threading.Thread(target=check, args=(str(shared),), daemon=True)
    checking.start()
    checking.join(120)
    assert not checking.is_alive()


@pytest.mark.parametrize("fix", [False, True])
def test_a_folder_that_is_no_cache_is_refused_in_one_line_and_stays_as_it_is(shared, capsys, fix):
    (shared / ".bashrc").touch()
    shared.chmod(0o700)
    assert check(str(shared), fix) == 1 and build(str(shared), ["none.ipynb"]) == 1
    told, errors = capsys.readouterr()
    line = f"{shared}: is not the folder of a cache, since it contains '.bashrc'; name a new folder\n"
    assert (told, errors) == ("", line * 2)
    assert shared.stat().st_mode & 0o777 == 0o700


def test_a_file_is_refused_as_a_folder_before_notebooks_run(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert build(str(tmp_path / "file"), ["none.ipynb"]) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'file'}: Not a directory\n"


def test_a_parent_that_users_cannot_search_fails_the_check_and_keeps_its_mode(shared, tmp_path, capsys):
    tmp_path.chmod(0o700)
    for fix in (False, True):
        assert check(str(shared), fix) == 1
        told = capsys.readouterr().out
        assert f"{tmp_path}: cannot be searched by all users" in told and f"chmod o+x {tmp_path}" in told
        assert "1 entries" in told and told.endswith("1 problem\n")
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_windows_has_no_shared_cache(shared, monkeypatch, capsys):
    monkeypatch.delattr(os, "geteuid")
    assert build(str(shared), ["none.ipynb"]) == 1 and check(str(shared)) == 1
    assert [line.partition(": ")[2][:7] for line in capsys.readouterr().err.splitlines()] == ["Windows"] * 2


def test_root_publishes_into_a_folder_of_the_installer(tmp_path, shared, monkeypatch):
    filled = Cache(tmp_path / "filled")
    filled.put(OTHER, {"x": 2}, {"object": b"code"})
    for path in (shared, entry(shared).parent):
        owned(monkeypatch, path, ANOTHER_USER)
    with pytest.raises(private_files.UntrustedFolder, match="belongs to another user"):
        publish(filled.root, str(shared))
    monkeypatch.setattr(shared_cache_command, "administrators", lambda: (ANOTHER_USER,))
    assert publish(filled.root, str(shared)) == 2


def test_the_fix_gives_away_no_secret_to_which_another_user_has_made_a_hard_link(shared, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    os.link(secret, shared / KEY[:2] / "00.bnb")
    assert check(str(shared), fix=True) == 0
    assert secret.stat().st_mode & 0o777 == 0o600 and secret.read_text() == "secret"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_a_folder_that_belongs_to_a_user_is_not_declared_sound(shared, capsys):
    os.chown(shared, ANOTHER_USER, -1)
    assert check(str(shared), fix=True) == 1
    assert "build it again" in capsys.readouterr().out


def test_a_missing_folder_fails_the_check(tmp_path):
    assert check(str(tmp_path / "none")) == 1


@pytest.mark.full
def test_the_kernels_of_a_notebook_are_built_and_an_unreadable_notebook_fails(tmp_path, capsys, monkeypatch):
    import nbformat

    monkeypatch.setenv("PYTHONPATH", str(Path(blocknb.__file__).parent.parent))
    source = KERNEL.split("from blocknb.runtime")[0].replace('warnings.simplefilter("error")', "")
    (tmp_path / "module_with_a_kernel.py").write_text(source)
    cells = [nbformat.v4.new_code_cell(text) for text in ("1 / 0", "%load_ext blocknb\nimport module_with_a_kernel")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "class.ipynb")
    assert build(str(tmp_path / "shared"), [str(tmp_path / "class.ipynb")]) == 0
    assert "1 cells raised an error" in capsys.readouterr().out
    assert len(list(Cache(tmp_path / "shared").names())) == 1
    assert build(str(tmp_path / "shared"), [str(tmp_path / "class.ipynb")]) == 0
    assert "0 new entries" in capsys.readouterr().out
    assert build(str(tmp_path / "shared"), [str(tmp_path / "none.ipynb")]) == 1
