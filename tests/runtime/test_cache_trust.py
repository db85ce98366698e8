"""The cache uses no folder and no file that another user can change, and nothing in its folder stops or delays a launch."""

import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path

import pytest

import blocknb
from blocknb.profile import ceilings
from blocknb.runtime import cache as module
from blocknb.runtime import failures, private_files
from blocknb.runtime.cache import Cache, key

KEY, ANOTHER_USER = key("a kernel"), 54321
NEIGHBOUR, THIRD = KEY[:2] + key("b")[2:], KEY[:2] + key("c")[2:]  # keys of the same inner folder
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs owners and modes of files")


@pytest.fixture(autouse=True)
def no_warning_before(monkeypatch):
    monkeypatch.setattr(private_files, "_warned", set())


@pytest.fixture
def cache(tmp_path):
    made = Cache(tmp_path / "cache")
    made.put(KEY, {"x": 1}, {"object": b"code"})
    return made


def owned(monkeypatch, path: Path, user: int) -> None:
    """Lets a file or folder seem to belong to another user; no test needs root for it."""
    identity = (os.lstat(path).st_dev, os.lstat(path).st_ino)
    for name in ("fstat", "lstat"):
        real = getattr(os, name)

        def seen(*given, real=real, **named):
            found = real(*given, **named)
            if (found.st_dev, found.st_ino) != identity:
                return found
            fields = list(found)
            fields[4] = user
            return os.stat_result(fields)

        monkeypatch.setattr(os, name, seen)


def refused(cache, match: str) -> None:
    """The cache neither returns nor changes what is in its folder. It says so once, and then works in memory."""
    before = sorted(Path(cache.root).rglob("*"))
    fresh = Cache(cache.root)
    with pytest.warns(RuntimeWarning, match=match) as said:  # noqa: PT031 (one warning for all of it)
        assert fresh.get(KEY) is None
        fresh.put(KEY, {"x": 2}, {})
        fresh.put(NEIGHBOUR, {"x": 3}, {})
        assert Cache(cache.root).get(KEY) is None
        fresh.drop(THIRD)
        fresh.shrink()
    assert len(said) == 1 and "set BLOCKNB_CACHE_DIR to a folder of your own" in str(said[0].message)
    assert fresh.get(KEY).meta == {"x": 2} and fresh.get(NEIGHBOUR).meta == {"x": 3}
    assert sorted(Path(cache.root).rglob("*")) == before


def test_folders_and_files_are_private_with_any_umask(tmp_path):
    before = os.umask(0)
    try:
        cache = Cache(tmp_path / "deep" / "cache")
        cache.put(KEY, {}, {})
    finally:
        os.umask(before)
    made = [tmp_path / "deep", Path(cache.root), cache.path(KEY).parent, cache.path(KEY)]
    assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700, 0o700, 0o600]


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o707, 0o702, 0o777, 0o1777])
@pytest.mark.parametrize("place", ["root", "inner"])
def test_a_folder_that_others_may_write_to_is_refused(cache, mode, place):
    os.chmod(cache.root if place == "root" else cache.path(KEY).parent, mode)
    refused(
        cache,
        r"can be changed by (its group|all users) \(mode [0-7]+\).*run `chmod go-w /.*` if no other user has written to it",
    )


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750, 0o500])
def test_a_folder_that_others_may_only_read_is_used(cache, mode):
    os.chmod(cache.root, mode)
    assert Cache(cache.root).get(KEY).meta == {"x": 1}


@pytest.mark.parametrize("place", ["root", "inner"])
def test_a_folder_of_another_user_is_refused_even_by_root(cache, monkeypatch, place):
    path = Path(cache.root) if place == "root" else cache.path(KEY).parent
    owned(monkeypatch, path, ANOTHER_USER)
    refused(cache, rf"belongs to another user \(uid {ANOTHER_USER}\)")


def test_a_folder_of_root_is_used(cache, monkeypatch):
    """An image of a container may bring a cache that root filled. Root can change all code that this user runs anyway."""
    monkeypatch.setattr(private_files, "_user", lambda: ANOTHER_USER)
    for path in (Path(cache.root), *Path(cache.root).rglob("*")):
        owned(monkeypatch, path, 0)
    assert Cache(cache.root).get(KEY).meta == {"x": 1}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_files_that_really_belong_to_another_user_are_refused(cache):
    os.chown(cache.path(KEY), ANOTHER_USER, -1)
    with pytest.warns(RuntimeWarning, match=f"belongs to another user .uid {ANOTHER_USER}"):
        assert Cache(cache.root).get(KEY) is None
    assert not cache.path(KEY).exists()
    os.chown(cache.root, ANOTHER_USER, -1)
    private_files._warned.clear()
    refused(cache, "belongs to another user")


@pytest.mark.parametrize("how", ["owner", "mode"])
def test_an_entry_that_another_user_can_change_is_dropped_with_one_warning(cache, monkeypatch, how):
    if how == "owner":
        owned(monkeypatch, cache.path(KEY), ANOTHER_USER)
    else:
        cache.path(KEY).chmod(0o664)
    fresh = Cache(cache.root)
    with pytest.warns(RuntimeWarning, match="ignores a file in its cache") as said:
        assert fresh.get(KEY) is None
    assert len(said) == 1 and not cache.path(KEY).exists()
    monkeypatch.undo()  # the next file may get the same number
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh.put(KEY, {"x": 2}, {})
        assert Cache(cache.root).get(KEY).meta == {"x": 2}


def test_the_sticky_folder_of_all_users_is_no_cache_but_may_hold_one(tmp_path):
    """/tmp: everybody may create files there, also under the names of entries that this user will look for."""
    os.chmod(tmp_path, 0o1777)
    cache = Cache(tmp_path / "mine")
    cache.put(KEY, {"x": 1}, {})
    assert Cache(cache.root).get(KEY).meta == {"x": 1}
    with pytest.warns(RuntimeWarning, match="can be changed by all users"):
        Cache(tmp_path).put(KEY, {}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_link_to_the_folder_is_followed_if_it_is_the_users_own(cache, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(cache.root)
    assert Cache(link).get(KEY).meta == {"x": 1}
    owned(monkeypatch, link, ANOTHER_USER)
    with pytest.warns(RuntimeWarning, match="is a symbolic link of another user"):
        assert Cache(link).get(KEY) is None


# ---- what may stand in the place of an entry


def fifo(path, elsewhere):
    os.mkfifo(path, 0o600)


def listening(path, elsewhere):
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def link_out(path, elsewhere):
    path.symlink_to(elsewhere)


def link_to_nothing(path, elsewhere):
    path.symlink_to(elsewhere.parent / "nothing")


def link_to_itself(path, elsewhere):
    path.symlink_to(path.name)


def link_to_zeros(path, elsewhere):
    path.symlink_to("/dev/zero")


def folder(path, elsewhere):
    path.mkdir()


def full_folder(path, elsewhere):
    path.mkdir()
    (path / "file").write_text("x")


def empty(path, elsewhere):
    path.write_bytes(b"")


def huge(path, elsewhere):
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file


@pytest.mark.parametrize(
    "make",
    [fifo, listening, link_out, link_to_nothing, link_to_itself, link_to_zeros, folder, full_folder, empty, huge],
)
def test_what_is_no_private_file_is_dropped_at_once(cache, make, monkeypatch):
    monkeypatch.chdir(cache.root)
    elsewhere = Path(cache.root).parent / "elsewhere"
    cache.path(KEY).rename(elsewhere)  # a whole entry with a valid digest
    make(cache.path(KEY), elsewhere)
    begin = time.thread_time()  # a busy machine does not change it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Cache(cache.root).get(KEY) is None
        assert not os.path.lexists(cache.path(KEY)) and elsewhere.exists()
        cache.put(KEY, {"x": 3}, {})
        assert Cache(cache.root).get(KEY).meta == {"x": 3}
    assert time.thread_time() - begin < 5


def test_a_link_in_place_of_an_inner_folder_is_not_followed(cache, tmp_path):
    inner, elsewhere = cache.path(KEY).parent, tmp_path / "elsewhere"
    inner.rename(elsewhere)
    inner.symlink_to(elsewhere)
    fresh = Cache(cache.root)
    assert fresh.get(KEY) is None
    with pytest.warns(RuntimeWarning, match="cannot be stored"):
        fresh.put(KEY, {"x": 2}, {})
    fresh.clear()
    assert fresh.get(KEY) is None and [path.name for path in elsewhere.iterdir()] == [cache.path(KEY).name]


def test_a_file_exchanged_after_it_was_opened_has_no_effect(cache, tmp_path, monkeypatch):
    """TOCTOU: the descriptor that passed the checks is the one that is read."""
    real, bad = os.fstat, tmp_path / "bad"
    bad.write_bytes(b"bad")

    def exchanged(descriptor):
        found = real(descriptor)
        if stat.S_ISREG(found.st_mode) and bad.exists():
            bad.replace(cache.path(KEY))
        return found

    monkeypatch.setattr(os, "fstat", exchanged)
    assert Cache(cache.root).get(KEY).blobs == {"object": b"code"}
    assert cache.path(KEY).read_bytes() == b"bad"


def test_a_folder_exchanged_after_it_was_checked_has_no_effect(cache, tmp_path, monkeypatch):
    real, inner, bad = private_files._check, cache.path(KEY).parent, tmp_path / "bad"
    bad.mkdir(mode=0o777)

    def exchanged(path, found, owners):
        real(path, found, owners)
        if path == str(inner) and bad.exists():
            inner.rename(tmp_path / "checked")
            bad.rename(inner)

    monkeypatch.setattr(private_files, "_check", exchanged)
    cache.put(KEY, {"x": 2}, {})
    assert list(inner.iterdir()) == [] and len(list((tmp_path / "checked").iterdir())) == 1


def test_a_file_that_grows_while_it_is_read_is_dropped(cache, monkeypatch):
    monkeypatch.setattr(module, "ENTRY_LIMIT", 1 << 20)
    real = os.fstat

    def grown(descriptor):
        found = real(descriptor)
        if stat.S_ISREG(found.st_mode) and cache.path(KEY).exists():
            os.truncate(cache.path(KEY), 1 << 30)
        return found

    monkeypatch.setattr(os, "fstat", grown)
    assert Cache(cache.root).get(KEY) is None and not cache.path(KEY).exists()


def test_an_entry_above_the_limit_stays_in_memory(cache, monkeypatch):
    monkeypatch.setattr(module, "ENTRY_LIMIT", 100)
    cache.put(key("large"), {}, {"object": bytes(200)})
    assert cache.get(key("large")).blobs == {"object": bytes(200)} and not cache.path(key("large")).exists()


def test_other_files_of_the_root_are_not_the_caches(cache):
    """BLOCKNB_CACHE_DIR may name a folder with other contents."""
    others = [Path(cache.root, name) for name in ("photos/a.bnb", "x.bnb", "zz/y.bnb")]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    cache.limit = 0
    cache.shrink()
    cache.clear()
    assert all(path.exists() for path in others) and not cache.path(KEY).exists()


# ---- where the folder is


@pytest.mark.parametrize("value", ["here/cache", " here/cache "])
def test_a_relative_path_means_the_same_folder_after_a_change_of_directory(tmp_path, monkeypatch, value):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", value)
    monkeypatch.chdir(tmp_path)
    cache = Cache()
    monkeypatch.chdir("/")
    assert cache.root == str(tmp_path / "here" / "cache")


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", "~/cache")
    assert module.default_root() == str(tmp_path / "cache")


def test_a_tilde_without_a_home_folder_is_no_folder_of_that_name(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", "~/cache")
    assert module.default_root() == ""


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is for Linux")
def test_a_relative_xdg_folder_is_ignored(tmp_path, monkeypatch):
    monkeypatch.delenv("BLOCKNB_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert module.default_root() == str(tmp_path / ".cache" / "blocknb")


HOMELESS = """
import os, pwd, warnings
import numpy as np
def unknown(user): raise KeyError(user)
pwd.getpwuid = unknown  # a user without a line in /etc/passwd, as in some containers
import blocknb, blocknb.language as tl
from blocknb.profile import ceilings
from blocknb.runtime import cache, failures

@blocknb.kernel
def one(out):
    tl.store(out + tl.arange(0, 8), 1.0)

out = np.zeros(8, np.float32)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    one[(1,)](out)
    one[(1,)](out)
    one.trace("*fp32", target="cpu:x86-64-v3")
    assert ceilings.known() is None and failures.recorded() == []
print(out.sum(), repr(cache.shared().root), [str(w.message) for w in said], os.listdir())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="XDG is for Linux")
def test_a_process_without_a_home_folder_has_no_disk_cache_and_says_so_once(tmp_path):
    work = tmp_path / "notebooks"
    work.mkdir()
    (tmp_path / "script.py").write_text(textwrap.dedent(HOMELESS))
    names = ("HOME", "BLOCKNB_CACHE_DIR", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment["PYTHONPATH"] = str(Path(blocknb.__file__).parent.parent)
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py"], cwd=work, env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith("8.0 '' ['blocknb finds no folder for its cache: neither HOME nor BLOCKNB_CACHE_DIR")
    assert run.stdout.count("blocknb finds") == 1 and run.stdout.endswith("[]\n")


# ---- the other files of the folder


@pytest.mark.parametrize("make", [fifo, link_out, folder, huge, empty])
def test_other_files_of_the_folder_are_private_too(cache, make, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", cache.root)
    monkeypatch.setattr(module, "shared", lambda: cache)
    monkeypatch.setattr(ceilings, "_memory", {})
    made = ceilings.Ceilings("a CPU", "today", (ceilings.Ceiling("memory", "GB/s", 1.0, 1.0, 1.0, "a copy"),))
    elsewhere = Path(cache.root).parent / "elsewhere"
    elsewhere.write_text("1\n")
    for name in (failures.FILE, ceilings._file(ceilings.HOST)):
        path = Path(cache.root, name)
        path.parent.mkdir(exist_ok=True, mode=0o700)
        make(path, elsewhere)
    assert failures.recorded() == [] and ceilings.known() is None
    cache.write(failures.FILE, b"one\ntwo\n")
    ceilings._write(ceilings._file(ceilings.HOST), made)
    ceilings._memory.clear()
    assert failures.recorded() == ["one", "two"] and ceilings.known() == made
    assert elsewhere.read_text() == "1\n"


NO_NUMBERS = {"name": 1, "unit": 2, "value": "x", "low": 0, "high": 0, "how": ""}
REST = {"device": "", "measured": "", "missing": []}


@pytest.mark.parametrize(
    "text", ["[]", "3", '{"items": 3}', "[" * 100_000, *(json.dumps({"items": [x], **REST}) for x in (3, NO_NUMBERS))]
)
def test_a_file_of_limits_of_another_shape_is_measured_again(tmp_path, monkeypatch, text):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(ceilings, "_memory", {})
    Cache(tmp_path).write(ceilings._file(ceilings.HOST), text.encode())
    assert ceilings.known() is None


def test_threads_that_meet_a_refused_folder_at_once_work_on(cache):
    os.chmod(cache.root, 0o777)
    failed = []

    def use(number):
        try:
            mine = Cache(cache.root)
            mine.put(key(number), {"x": number}, {})
            assert mine.get(key(number)).meta == {"x": number}
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
