"""Kernels are right with any disk cache: old, damaged, of another version, read-only, or with concurrent writers."""

import dataclasses
import hashlib
import importlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.codegen import toolchain
from blocknb.runtime import cache, private_files, record
from blocknb.runtime import compile as compiler
from blocknb.runtime.cache import Cache
from blocknb.target import Target

X = np.arange(100, dtype=np.float32)


@blocknb.kernel
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty disk cache. `launched` begins with an empty memory cache, as a new process does."""
    made = Cache(tmp_path / "cache")
    monkeypatch.setattr(cache, "shared", lambda: made)
    return made


def launched(store) -> bool:
    """Launches, checks the result, and returns whether the code came from the disk."""
    compiler.forget()
    twice._bindings.clear()
    store._memory.clear()
    out = np.full_like(X, np.nan)
    made = twice[(2,)](X, out, len(X), BLOCK=64)
    np.testing.assert_array_equal(out, 2 * X)
    return made.trace.from_cache


def files(store) -> list[Path]:
    return sorted(path for path in Path(store.root).rglob("*") if path.is_file())


def test_an_entry_is_found_a_day_later(store):
    assert not launched(store)
    for path in files(store):
        os.utime(path, (path.stat().st_mtime - 86400,) * 2)
    store.shrink()
    assert launched(store)


def test_a_hit_loads_no_compiler(store, monkeypatch):
    launched(store)
    monkeypatch.setattr(compiler, "load", None)
    assert launched(store)


@pytest.mark.parametrize("what", ["blocknb", "llvmlite", "source"])
def test_another_version_compiles_again_and_keeps_the_old_entries(store, monkeypatch, what):
    assert not launched(store)
    with monkeypatch.context() as other:
        if what == "source":
            other.setattr(cache, "_source_stamp", lambda: "edited")
        else:
            cache._source_stamp.cache_clear()
            other.setattr(cache, "version_of", lambda name, real=cache.version_of: "99" if name == what else real(name))
        assert not launched(store)
        assert launched(store)
    cache._source_stamp.cache_clear()
    assert launched(store) and len(files(store)) == 2


def test_another_ptxas_is_another_key(store, monkeypatch):
    kinds = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    traced = lambda: (compiler.forget(), twice.trace(**kinds, BLOCK=64, target="sm_80"))[1]  # noqa: E731
    target = Target.parse("sm_80")
    real = toolchain.find_ptxas(target)
    if real is None:
        pytest.skip("there is no ptxas on this machine")
    assert not traced().from_cache and traced().from_cache
    newer = toolchain.Tool(real.name, real.path, real.origin, (*real.version[:2], real.version[2] + 1))
    monkeypatch.setattr(toolchain, "find_ptxas", lambda target: newer)
    again = traced()
    assert not again.from_cache and again.artifacts["cubin"]
    monkeypatch.undo()
    monkeypatch.setattr(cache, "shared", lambda: store)
    assert traced().from_cache


def lengths(size: int, head: int) -> list[int]:
    """Lengths for a truncated file: 0, one inside each part, one at each end, and all but one byte."""
    return [0, 4, 20, 42, 44 + head // 2, 44 + head, (44 + head + size) // 2, size - 1]


def test_a_kernel_with_a_truncated_file_is_compiled_again(store):
    launched(store)
    (path,) = files(store)
    whole = path.read_bytes()
    for length in lengths(len(whole), int.from_bytes(whole[40:44], "little")):
        path.write_bytes(whole[:length])
        assert not launched(store), length
    assert launched(store) and files(store) == [path]


def test_a_kernel_with_a_damaged_file_is_compiled_again(store):
    launched(store)
    (path,) = files(store)
    whole = path.read_bytes()
    for at in np.linspace(0, len(whole) - 1, 8).astype(int):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        assert not launched(store), at
    assert launched(store)


@pytest.mark.parametrize("spoil", [
    lambda meta: meta.pop("code"),
    lambda meta: meta["code"].update({"class": "blocknb.runtime.compile:Gone"}),
    lambda meta: meta["code"].update({"class": "blocknb.gone:Code"}),
    lambda meta: meta["code"]["fields"].append(1),
    lambda meta: meta.update(files=[]),
    lambda meta: meta.update(code=3),
    lambda meta: meta["code"].update({"class": "blocknb.trace:Resources"}),
    lambda meta: meta["code"].update({"class": "blocknb.fuzz.run:Options"}),
    lambda meta: meta["code"]["fields"].__setitem__(0, 7),
    lambda meta: meta["code"]["fields"].__setitem__(1, {"tuple": [{"tuple": ["x", 1]}]}),
    lambda meta: meta["code"]["fields"].__setitem__(7, {"tuple": ["no site"]}),
    lambda meta: meta["code"]["fields"].__setitem__(12, {"tuple": [{"tuple": ["import os"]}]}),
    lambda meta: meta["code"]["fields"].__setitem__(0, "another_entry"),
    lambda meta: meta.update(files="name"),
    lambda meta: meta.update(milliseconds=[1]),
    lambda meta: meta.update(milliseconds={"parse": "long"}),
    lambda meta: meta.update(resources={"tuple": []}),
])  # fmt: skip
def test_a_kernel_with_a_meaningless_entry_is_compiled_again(store, spoil):
    launched(store)
    (path,) = files(store)
    name = path.parent.name + path.stem
    entry = store.get(name)
    spoil(entry.meta)
    store.put(name, entry.meta, entry.blobs)
    assert not launched(store)
    assert launched(store)


@pytest.mark.parametrize("blobs", [
    {}, {"object": b""}, {"object": b"\x7fELF\x02\x01"}, {"object": b"\x7fELF\x02\x01" + bytes(58)}, {"object": b"MZ" * 100},
    {"llvm": b"\xff\xfe"},
])  # fmt: skip
def test_a_kernel_whose_entry_holds_other_code_is_compiled_again(store, blobs):
    launched(store)
    (path,) = files(store)
    name = path.parent.name + path.stem
    store.put(name, store.get(name).meta, blobs)
    assert not launched(store)
    assert launched(store)


def test_the_entry_of_another_kernel_is_not_run(store):
    """Whoever can rename files in a folder must not choose the code of a kernel: the digest of an entry covers its key."""
    launched(store)
    (path,) = files(store)
    twice.trace("*fp32", "*fp32", "i32", BLOCK=32, target="cpu")
    (other,) = set(files(store)) - {path}
    other.replace(path)
    assert not launched(store)
    assert launched(store)


@pytest.mark.parametrize("name", [name for names in record._CLASSES.values() for name in names])
def test_the_fields_of_each_class_of_an_entry_have_a_test(name):
    (module,) = [module for module, names in record._CLASSES.items() if name in names]
    for field in dataclasses.fields(getattr(importlib.import_module(module), name)):
        assert field.type in record._DECLARED, field


def test_kernels_run_without_a_writable_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    store = Cache(tmp_path / "file" / "cache")
    monkeypatch.setattr(cache, "shared", lambda: store)
    with pytest.warns(RuntimeWarning, match="cannot be stored"):
        assert not launched(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not launched(store)


def test_after_a_full_disk_the_next_process_compiles_again(store, monkeypatch):
    def full(root, name, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_files, "write", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert not launched(store)
    monkeypatch.undo()
    monkeypatch.setattr(cache, "shared", lambda: store)
    assert not launched(store)
    assert launched(store)


def test_a_folder_that_is_removed_between_launches_is_created_again(store):
    assert not launched(store)
    shutil.rmtree(store.root)
    assert not launched(store)
    assert launched(store)


def compile_in_a_crowd(number: int, answers) -> None:
    """Compiles a kernel that all processes share and one of this process. Returns the digests of their machine code."""
    compiler.forget()
    code = {}
    for block in (64, 128 << number):
        made = twice.compile("*fp32", "*fp32", "i32", BLOCK=block, target="cpu:x86-64-v3")
        code[block] = hashlib.sha256(made.artifacts["object"]).hexdigest()
    answers.put(code)


def test_eight_processes_compile_into_one_folder_at_once(store):
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    crowd = [context.Process(target=compile_in_a_crowd, args=(n, answers)) for n in range(8)]
    for process in crowd:
        process.start()
    found = [answers.get() for _ in crowd]
    for process in crowd:
        process.join(60)
    assert [process.exitcode for process in crowd] == [0] * 8
    assert len({code[64] for code in found}) == 1
    assert len(files(store)) == 9 and all(path.suffix == ".bnb" for path in files(store))
    compiler.forget()
    everything = {block: digest for code in found for block, digest in code.items()}
    for block, digest in everything.items():
        made = twice.compile("*fp32", "*fp32", "i32", BLOCK=block, target="cpu:x86-64-v3")
        assert made.trace.from_cache and hashlib.sha256(made.artifacts["object"]).hexdigest() == digest


def test_a_hit_returns_the_same_code_as_the_compiler(store):
    compiler.forget()
    first = twice.trace("*fp32", "*fp32", "i32", BLOCK=64, target="cpu:x86-64-v3")
    compiler.forget()
    again = twice.trace("*fp32", "*fp32", "i32", BLOCK=64, target="cpu:x86-64-v3")
    assert again.from_cache and again.artifacts == first.artifacts and again.resources == first.resources
    assert [stage.name for stage in again.stages] == [stage.name for stage in first.stages]


SCRIPT = """
import sys
import blocknb
import blocknb.language as tl

@blocknb.kernel
def twice(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

trace = twice.trace("*fp32", "*fp32", "i32", BLOCK=64, target="sm_80")
print(trace.from_cache, *sys.modules)
"""


def test_a_hit_in_a_new_process_imports_no_compiler(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    root = Path(blocknb.__file__).parent.parent
    environment = {**os.environ, "BLOCKNB_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)}
    said = [
        subprocess.run(
            [sys.executable, tmp_path / "script.py"], env=environment, capture_output=True, text=True, check=True
        )
        for _ in range(2)
    ]
    (miss, *compiler_, _), (hit, *loaded) = (one.stdout.split() for one in said)
    assert (miss, hit) == ("False", "True") and "blocknb.runtime.job" in compiler_
    heavy = (
        "blocknb.runtime.job",
        "blocknb.frontend.parse",
        "blocknb.passes",
        "blocknb.codegen.gpu",
        "blocknb.ir.text",
        "llvmlite",
    )
    assert not set(heavy) & set(loaded)
