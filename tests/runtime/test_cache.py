"""The disk cache with damaged files, concurrent writers, other versions and read-only folders."""

import multiprocessing
import os
import shutil
import struct
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocknb.runtime import cache as module
from blocknb.runtime.cache import Cache, environment_parts, key
from blocknb.target import Target

KEY = key("a kernel")


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


def test_another_cache_on_the_same_folder_finds_an_entry(cache):
    meta, blobs = (
        {"registers": 32, "names": ["k"], "note": "ä"},
        {"ptx": b"text", "cubin": bytes(range(256)), "empty": b""},
    )
    cache.put(KEY, meta, blobs)
    entry = Cache(cache.root).get(KEY)
    assert entry.meta == meta and entry.blobs == blobs


def test_get_returns_none_for_an_unknown_key(cache):
    assert cache.get(KEY) is None


def test_a_truncated_entry_is_dropped_and_can_be_put_again(cache):
    cache.put(KEY, {"x": 1}, {"ptx": b"text" * 10})
    whole = cache.path(KEY).read_bytes()
    for length in range(len(whole)):
        cache.path(KEY).write_bytes(whole[:length])
        assert cache.get(KEY) is None
        assert not cache.path(KEY).exists()
    cache.put(KEY, {"x": 1}, {"ptx": b"text" * 10})
    assert cache.get(KEY).blobs == {"ptx": b"text" * 10}


def test_an_entry_with_any_byte_changed_is_dropped(cache):
    cache.put(KEY, {"x": 1}, {"ptx": b"text" * 10})
    whole = cache.path(KEY).read_bytes()
    for at in range(len(whole)):
        cache.path(KEY).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert cache.get(KEY) is None, at


def test_an_entry_with_trailing_bytes_is_dropped(cache):
    cache.put(KEY, {}, {"ptx": b"text"})
    cache.path(KEY).write_bytes(cache.path(KEY).read_bytes() + b"\0")
    assert cache.get(KEY) is None


def write_and_read(root, number, failed):
    mine = Cache(root)
    for i in range(60):
        name = key(i % 7)
        mine.put(name, {"who": number}, {"data": name.encode() * 500})
        entry = mine.get(name)
        if entry is None or entry.blobs["data"] != name.encode() * 500:
            failed.set()


def test_many_processes_may_write_and_read_the_same_keys(tmp_path):
    context = multiprocessing.get_context("fork")
    failed = context.Event()
    crowd = [context.Process(target=write_and_read, args=(tmp_path, n, failed)) for n in range(8)]
    for process in crowd:
        process.start()
    for process in crowd:
        process.join(60)
    assert [process.exitcode for process in crowd] == [0] * 8 and not failed.is_set()
    assert not list(tmp_path.rglob(".new-*"))


def test_without_a_folder_the_cache_stays_in_memory_and_warns_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = Cache(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="cannot be stored.*BLOCKNB_CACHE_DIR"):
        cache.put(KEY, {"x": 1}, {"ptx": b"text"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.put(key("another"), {"x": 2}, {})
    assert cache.get(KEY).blobs == {"ptx": b"text"} and cache.get(key("another")).meta == {"x": 2}


def test_a_full_disk_leaves_no_half_written_file(cache, monkeypatch):
    def full(source, target, **folders):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.put(KEY, {"x": 1}, {})
    assert cache.get(KEY).meta == {"x": 1}
    assert not [path for path in Path(cache.root).rglob("*") if path.is_file()]


def refused(*given, **named):
    raise PermissionError(13, "Permission denied")


def test_a_read_only_folder_still_returns_its_entries(cache, monkeypatch):
    cache.put(KEY, {"x": 1}, {})
    for name in ("utime", "replace", "unlink"):  # root may write everywhere
        monkeypatch.setattr(os, name, refused)
    real = os.open
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *mode, **folder: refused() if flags & os.O_CREAT else real(path, flags, *mode, **folder),
    )
    assert Cache(cache.root).get(KEY).meta == {"x": 1}
    with pytest.warns(RuntimeWarning, match="cannot be stored.*Permission denied"):
        cache.put(KEY, {"x": 2}, {})
    assert cache.get(KEY).meta == {"x": 2} and Cache(cache.root).get(KEY).meta == {"x": 1}
    cache.path(KEY).write_bytes(b"damaged")
    assert Cache(cache.root).get(KEY) is None  # though it cannot be removed


@pytest.mark.parametrize("written", [0, 1, 30])
def test_a_disk_that_fills_up_during_a_write_leaves_no_file(cache, monkeypatch, written):
    class Full:
        def __init__(self, descriptor, mode):
            self.descriptor = descriptor

        def __enter__(self):
            return self

        def __exit__(self, *error):
            os.close(self.descriptor)

        def write(self, data):
            os.write(self.descriptor, data[:written])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fdopen", Full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        cache.put(KEY, {"x": 1}, {})
    monkeypatch.undo()
    assert cache.get(KEY).meta == {"x": 1} and Cache(cache.root).get(KEY) is None
    assert not [path for path in Path(cache.root).rglob("*") if path.is_file()]


@pytest.mark.parametrize("moment", ["open", "replace"])
def test_a_folder_that_is_removed_during_a_write_is_created_again(cache, monkeypatch, moment):
    real, removed = getattr(os, moment), []

    def after_removal(*given, **named):
        if not removed:
            removed.append(1)
            shutil.rmtree(cache.root)
        return real(*given, **named)

    monkeypatch.setattr(os, moment, after_removal)
    cache.put(KEY, {"x": 1}, {"ptx": b"text"})
    assert removed and Cache(cache.root).get(KEY).blobs == {"ptx": b"text"}
    assert [path.name for path in Path(cache.root).rglob("*") if path.is_file()] == [cache.path(KEY).name]
    shutil.rmtree(cache.root)
    assert cache.get(KEY) is None
    cache.put(KEY, {"x": 2}, {})
    assert cache.get(KEY).meta == {"x": 2}


def test_a_hit_on_an_old_entry_renews_its_time_of_use(cache):
    cache.put(KEY, {"x": 1}, {})
    os.utime(cache.path(KEY), (time.time() - 86400,) * 2)
    cache.shrink()
    assert cache.get(KEY).meta == {"x": 1} and time.time() - cache.path(KEY).stat().st_mtime < 3600


def test_an_entry_of_another_format_is_dropped(cache):
    cache.put(KEY, {"x": 1}, {"ptx": b"text"})
    whole = cache.path(KEY).read_bytes()
    cache.path(KEY).write_bytes(b"bnbcach0" + whole[8:])
    assert cache.get(KEY) is None


def with_digest(head: bytes, rest: bytes = b"") -> bytes:
    """A whole file, with a valid digest, of that header and data."""
    body = struct.pack("<I", len(head)) + head + rest
    return module._MAGIC + module._digest(KEY, body) + body


@pytest.mark.parametrize("data", [
    with_digest(b"\x80\x04N."), with_digest(b""), with_digest(b"[]"), with_digest(b"{}"), with_digest(b"3"), with_digest(b"[{}, 3]"),
    with_digest(b"[[], []]"), with_digest(b'[3, []]'), with_digest(b'[{}, {"a": 1}]'), with_digest(b'[{}, [["a"]]]'),
    with_digest(b'[{}, [["a", "b"]]]'), with_digest(b'[{}, [["a", -1]]]', b"x"), with_digest(b'[{}, [["a", 1.0]]]', b"x"),
    with_digest(b'[{}, [["a", true]]]', b"x"), with_digest(b'[{}, [["a", 2]]]', b"x"), with_digest(b'[{}, [["a", 1]]]', b"xy"),
    with_digest(b'[{}, [[["a"], 1]]]', b"xy"), with_digest(b"[" * 100_000), with_digest(b"[{}, []]") + b"",
], ids=range(19))  # fmt: skip
def test_an_entry_of_a_valid_digest_and_a_wrong_shape_is_dropped(cache, data):
    cache.put(KEY, {"x": 1}, {})
    cache.path(KEY).write_bytes(data)
    right = data == with_digest(b"[{}, []]")
    entry = cache.get(KEY)
    assert entry == (module.Entry({}, {}) if right else None) and cache.path(KEY).exists() == right


def test_shrink_removes_the_least_recently_used_entries(tmp_path):
    cache = Cache(tmp_path, limit=10_000)
    names = [key(i) for i in range(20)]
    for age, name in enumerate(names):
        cache.put(name, {}, {"data": os.urandom(900)})
        os.utime(cache.path(name), (age, age))
    assert cache.get(names[0])  # used just now
    cache.shrink()
    left = [name for name in names if cache.path(name).exists()]
    assert 5 <= len(left) <= 8
    assert left == [names[0], *names[-len(left) + 1 :]]


def test_old_files_of_interrupted_writes_are_removed(cache):
    cache.put(KEY, {}, {})
    for name, age in ((".new-old", 7200), (".new-fresh", 10)):
        path = cache.path(KEY).parent / name
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age,) * 2)
    cache.shrink()
    assert sorted(p.name for p in cache.path(KEY).parent.iterdir() if p.name.startswith(".new")) == [".new-fresh"]


def test_clear_removes_every_entry(cache):
    cache.put(KEY, {}, {})
    cache.clear()
    assert cache.get(KEY) is None


def test_the_environment_variable_names_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", str(tmp_path / "here"))
    cache = Cache()
    cache.put(KEY, {}, {})
    assert (tmp_path / "here") in cache.path(KEY).parents and cache.path(KEY).exists()


# ---- keys ----------------------------------------------------------------------------------------------------------------

parts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def typed(value):
    """The value with its types, so that 1, 1.0 and True differ, as in a key."""
    if isinstance(value, tuple):
        return ("tuple", tuple(map(typed, value)))
    if isinstance(value, dict):
        return ("dict", tuple(sorted((k, repr(typed(v))) for k, v in value.items())))
    return (type(value).__name__, repr(value))


@given(parts, parts)
def test_keys_are_equal_exactly_when_the_parts_are(one, other):
    assert (key(one) == key(other)) == (typed(one) == typed(other))


def test_keys_do_not_depend_on_the_order_of_dicts_and_sets():
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert key({3, 1, 2}) == key(frozenset([2, 3, 1]))
    assert key("ab", "c") != key("a", "bc") != key(("a", "bc"))


@dataclass(frozen=True)
class One:
    x: int


@dataclass(frozen=True)
class Other:
    x: int


def test_dataclasses_enter_a_key_by_name_and_value():
    assert key(One(1)) == key(One(1)) != key(Other(1)) != key(Other(2))
    assert key(Target.parse("sm_90")) != key(Target.parse("sm_90a"))


@pytest.mark.parametrize("value", [object(), lambda: 0, One, range(3), print])
def test_a_part_without_a_canonical_form_is_rejected(value):
    with pytest.raises(TypeError, match="cannot be part of a cache key"):
        key("kernel", value)


def test_another_version_of_blocknb_llvmlite_or_ptxas_is_another_key(monkeypatch, tmp_path):
    tool = module.Tool("ptxas", Path("/x/ptxas"), "PyPI", (13, 0, 88))
    newer = module.Tool("ptxas", Path("/x/ptxas"), "PyPI", (13, 1, 1))
    keys = {key(environment_parts()), key(environment_parts(tool)), key(environment_parts(newer))}
    monkeypatch.setattr(module, "_source_stamp", lambda: "edited")
    keys.add(key(environment_parts(tool)))
    monkeypatch.setattr(module, "version_of", lambda package: "0.51.0")
    keys.add(key(environment_parts(tool)))
    assert len(keys) == 5


def test_editing_a_source_file_of_the_compiler_changes_the_stamp(tmp_path, monkeypatch):
    package = Path(module.__file__).parent.parent
    for path in package.rglob("*.py"):
        copy = tmp_path / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("one")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "runtime" / "cache.py"))
    stamp = module._source_stamp.__wrapped__
    last = stamp()
    assert stamp() == last
    no_part = {"notebook", "profile", "testing", "tune", "kernels", "compat", "eager"}
    for room in sorted(path.name for path in tmp_path.iterdir() if path.is_dir()):
        (tmp_path / room / "__init__.py").write_text("three")
        assert (stamp() == last) == (room in no_part), room
        last = stamp()
    os.utime(tmp_path / "passes" / "tile" / "layout_assignment.py", ns=(1, 1))  # of the same size
    assert stamp() != last
    last = stamp()
    (tmp_path / "passes" / "fresh.py").write_text("")
    assert stamp() != last


def test_the_folder_is_where_platformdirs_says(monkeypatch, tmp_path):
    monkeypatch.delenv("BLOCKNB_CACHE_DIR", raising=False)
    for folder in ("", " ", str(tmp_path)):
        monkeypatch.setenv("XDG_CACHE_HOME", folder)
        assert module.default_root() == platformdirs.user_cache_dir("blocknb", appauthor=False)
