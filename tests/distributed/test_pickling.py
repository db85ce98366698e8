"""Kernels travel: from a module, a script, a notebook cell, a function and a file, with helpers, constants, code and errors."""

from __future__ import annotations

import copy
import importlib.util
import linecache
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import kernels_of_a_module as module
import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import errors
from blocknb.errors import CompilationInterrupted, KernelError, Loc
from blocknb.runtime import cache, pickling
from blocknb.runtime.artifacts import ArtifactsError

X = np.arange(300, dtype=np.float32)

TEXT = """
import blocknb
import blocknb.language as tl

SCALE = 2.0


@blocknb.kernel
def doubled(value):
    return value * SCALE


@blocknb.kernel(num_warps=8)
def scaled(x, out, n, BLOCK: tl.constexpr = 64):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_assert(at < 1024, "too far")
    tl.store(out + at, doubled(tl.load(x + at, mask=at < n)), mask=at < n)
"""


def launched(kernel: Any, x: np.ndarray, grid: int = 5, **more: Any) -> tuple[np.ndarray, int, str, bool]:
    """What a launch makes, on a worker: the output, and about the kernel: its number, its options, and whether a cache had the code."""
    x, out = (
        x.copy(),
        np.zeros_like(x),
    )  # Dask may place an array at any address, for which the kernel would be compiled again
    compiled = kernel[(grid,)](x, out, x.size, **more)
    return out, kernel.number, str(kernel.options["num_warps"]), compiled.trace.from_cache


def factory(offset: float) -> Any:
    @blocknb.kernel
    def shifted(x, out, n, BLOCK: tl.constexpr = 64):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + offset, mask=at < n)

    return shifted


def test_a_kernel_of_a_module_travels_as_its_name(client) -> None:
    assert len(pickle.dumps(module.scaled)) < 200
    assert pickle.loads(pickle.dumps(module.scaled)) is module.scaled
    out, *_ = client.submit(launched, module.scaled, X, BLOCK=64).result()
    np.testing.assert_array_equal(out, X * 2)


def test_the_kernel_inside_an_autotuner_travels_as_a_name_too() -> None:
    assert pickle.loads(pickle.dumps(module.tuned)) is module.tuned
    assert pickle.loads(pickle.dumps(module.tuned.kernel)) is module.tuned.kernel


def test_a_kernel_of_a_script_travels_with_its_helper_and_its_constant(cluster, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"{TEXT}\n"
        "if __name__ == '__main__':\n"
        "    import sys, numpy as np\n    from distributed import Client\n    from test_pickling import launched\n"
        "    SCALE = 3.0\n"
        "    with Client(sys.argv[1]) as client:\n"
        "        print(client.submit(launched, scaled, np.ones(300, np.float32)).result()[0].sum())\n"
    )
    done = subprocess.run(
        [sys.executable, script, cluster.scheduler_address], capture_output=True, text=True, timeout=300
    )
    assert done.stdout.strip() == "900.0", done.stderr


def test_a_kernel_of_a_notebook_cell_travels_and_its_error_shows_the_cell(client) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_cell(f"# a cell\n{TEXT}").raise_error()
    kernel = shell.user_ns["scaled"]
    assert kernel.__module__ == "__main__" and "ipython-input" in kernel.source.file
    out, _, warps, _ = client.submit(launched, kernel, X).result()
    np.testing.assert_array_equal(out, X * 2)
    assert warps == "8"
    with pytest.raises(blocknb.DeviceAssertionFailed) as caught:
        client.submit(launched, kernel, X, grid=17).result()
    with pytest.raises(blocknb.DeviceAssertionFailed) as here:
        launched(kernel, X, grid=17)
    assert str(caught.value) == str(here.value) and "^^^" in str(here.value)
    assert (caught.value.program, caught.value.index, caught.value.loc) == ((16, 0, 0), 0, here.value.loc)
    shown = client.submit(linecache.getline, kernel.source.file, kernel.source.first_line + 1).result()
    assert shown == linecache.getline(kernel.source.file, kernel.source.first_line + 1)


def test_a_kernel_of_a_function_travels_with_its_free_variables(client) -> None:
    for offset in (1.0, 5.0):
        out, *_ = client.submit(launched, factory(offset), X).result()
        np.testing.assert_array_equal(out, X + offset)


def test_a_kernel_of_a_file_that_is_no_module_travels(client, tmp_path) -> None:
    path = tmp_path / "some_kernels.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    found = importlib.util.module_from_spec(spec)
    sys.modules["some_kernels"] = found
    try:
        spec.loader.exec_module(found)
        path.unlink()
        out, *_ = client.submit(launched, found.scaled, X).result()
    finally:
        del sys.modules["some_kernels"]
    np.testing.assert_array_equal(out, X * 2)


def test_a_worker_makes_a_kernel_once_and_again_after_a_change(client) -> None:
    kernel, worker = factory(2.0), [next(iter(client.scheduler_info()["workers"]))]
    first, second = (client.submit(launched, kernel, X, pure=False, workers=worker).result()[1] for _ in range(2))
    assert first == second
    kernel.source.closure["offset"].cell_contents = 7.0
    out, third, *_ = client.submit(launched, kernel, X, pure=False, workers=worker).result()
    np.testing.assert_array_equal(out, X + 7)
    assert third != first


def test_workers_share_a_cache_and_the_key_is_that_of_the_client(client, cluster_cache, monkeypatch) -> None:
    kernel = factory(11.0)
    first, second = client.scheduler_info()["workers"]
    assert client.submit(launched, kernel, X, pure=False, workers=[first]).result()[3] is False
    assert client.submit(launched, kernel, X, pure=False, workers=[second]).result()[3] is True
    monkeypatch.setattr(cache, "shared", lambda: cache.Cache(cluster_cache))
    assert launched(kernel, X)[3] is True


def test_a_kernel_by_value_is_itself_in_its_own_process_and_copies_are_the_kernel() -> None:
    kernel = factory(3.0)
    assert cloudpickle.loads(cloudpickle.dumps(kernel)) is kernel
    assert copy.copy(kernel) is kernel is copy.deepcopy([kernel])[0]


def test_pickle_alone_suffices_for_plain_captured_values(tmp_path) -> None:
    code = "import pickle, sys; k = pickle.load(sys.stdin.buffer); print(k, k.source.lookup('offset'), k.source.text)"
    kernel = factory(4.0)
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(kernel), capture_output=True, timeout=300)
    assert done.stdout.decode().strip() == f"{kernel} 4.0 {kernel.source.text}".strip(), done.stderr.decode()


def test_a_module_that_is_registered_by_value_makes_its_kernels_travel_by_value() -> None:
    cloudpickle.register_pickle_by_value(module)
    try:
        assert not pickling.importable(module.__name__) and pickling.path_of(module.scaled) is None
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    assert pickling.importable(module.__name__) and not pickling.importable("__main__")


def test_autotuners_and_heuristics_travel_with_their_kernel(client) -> None:
    configs = [blocknb.Config({"BLOCK": block}) for block in (64, 128)]
    tuner = blocknb.autotune(configs, ["n"], warmup=0, rep=1)(factory(2.0))
    tuner = blocknb.heuristics({"n": lambda arguments: 300})(tuner)

    def launch(kernel: Any, x: np.ndarray) -> tuple[np.ndarray, int]:
        out = np.zeros_like(x)
        kernel[(5,)](x, out)
        return out, kernel.fn.best_config.kwargs["BLOCK"]

    out, block = client.submit(launch, tuner, X).result()
    np.testing.assert_array_equal(out, X + 2)
    assert block in (64, 128)


# ---- code


def test_artifacts_are_loaded_instead_of_compiled_and_refused_for_other_versions(client, monkeypatch) -> None:
    kernel = factory(13.0)
    sent = kernel.compile(X, X.copy(), X.size, target="cpu").artifacts
    worker = [next(iter(client.scheduler_info()["workers"]))]
    assert client.submit(lambda a: sorted(a.load().artifacts), sent, workers=worker).result() == sorted(sent)
    assert client.submit(launched, kernel, X, pure=False, workers=worker).result()[3] is True
    monkeypatch.setattr(cache, "version_of", lambda name: "0.1")
    with pytest.raises(ArtifactsError) as caught:
        client.submit(lambda a: a.load(), kernel.compile(X, X.copy(), X.size, target="cpu").artifacts).result()
    monkeypatch.undo()
    here = [cache.version_of(name) for name in ("blocknb", "llvmlite")]
    assert caught.value.message == (
        "the code of shifted was compiled by blocknb 0.1, llvmlite 0.1, and this process has "
        f"blocknb {here[0]}, llvmlite {here[1]}"
    )


def test_artifacts_for_another_cpu_are_refused_in_one_line() -> None:
    sent = factory(14.0).compile(X, X.copy(), X.size, target="cpu:x86-64-v2").artifacts
    with pytest.raises(ArtifactsError, match=r"was compiled for cpu:x86-64-v2, and this process runs cpu:") as caught:
        pickle.loads(cloudpickle.dumps(sent)).load()
    assert "\n" not in caught.value.message


def test_a_compiled_kernel_travels_with_its_stages_and_its_launch(client) -> None:
    compiled = factory(15.0).compile(X, X.copy(), X.size, target="sm_90a")

    def read(compiled: Any) -> tuple[str, str, list[str]]:
        return str(compiled), compiled.trace.ptx, [stage.name for stage in compiled.trace.stages]

    assert client.submit(read, compiled).result() == read(compiled)


def test_a_kernel_with_an_edited_stage_stays_in_its_process() -> None:
    stage = factory(16.0).compile(X, X.copy(), X.size, target="cpu").trace.stages[0]
    with pytest.raises(ArtifactsError, match="cannot be sent to another process"):
        pickle.dumps(stage.edit(stage.text))


# ---- errors


def all_errors() -> list[type[KernelError]]:
    found, todo = [], [KernelError]
    while todo:
        found.append(todo.pop())
        todo += found[-1].__subclasses__()
    return [c for c in found if c.__module__.startswith("blocknb.")]


def test_every_error_travels_with_all_its_attributes() -> None:
    kernel = factory(1.0)
    loc = kernel.source.loc(kernel.source.node.body[0], kernel.source.loc())
    assert len(all_errors()) > 20
    for cls in all_errors():
        error = cls.__new__(cls)
        KernelError.__init__(error, "wrong", loc, "write right")
        error.in_triton("other words").needed, error.other_loc, error.program = 7, Loc(__file__, 3), (1, 2, 3)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is cls and vars(again) == vars(error) and str(again) == str(error), cls


def test_an_error_brings_the_lines_of_a_file_that_the_receiver_lacks(client, tmp_path) -> None:
    def fail(file: str) -> None:
        errors.keep_lines(file, {3: "    x = y"})
        raise blocknb.LaunchError("wrong", Loc(file, 3, 4, 3, 9, "f"))

    with pytest.raises(blocknb.LaunchError) as caught:
        client.submit(fail, str(tmp_path / "only there.py")).result()
    assert "        x = y\n        ^^^^^" in str(caught.value)


def test_the_trace_of_a_failed_compilation_travels_as_text() -> None:
    broken = factory(1.0)
    broken.src = broken.src.replace("+ offset", "+ offset.missing(tl.sum(at))")
    with pytest.raises(KernelError) as caught:
        broken.compile(X, X.copy(), X.size, target="cpu")
    again = pickle.loads(cloudpickle.dumps(caught.value))
    assert str(again) == str(caught.value) and (again.trace is None) == (caught.value.trace is None)
    made = factory(1.0).compile(X, X.copy(), X.size, target="sm_90a").trace
    sent = pickle.loads(cloudpickle.dumps(made))
    assert [(s.name, s.text, s.changed, s.notes) for s in sent.stages] == [
        (s.name, s.text, s.changed, s.notes) for s in made.stages
    ]
    interrupted = pickle.loads(pickle.dumps(CompilationInterrupted("k", "coalesce", None)))
    assert (interrupted.kernel, interrupted.stage, str(interrupted)) == (
        "k", "coalesce", "the compilation of k was interrupted in coalesce",
    )  # fmt: skip


# ---- the cache, with many processes

WRITER = """
import os, sys
from blocknb.runtime.cache import Cache
cache, data = Cache(sys.argv[1]), bytes(1 << 16)
print("writes", flush=True)
for number in range(int(sys.argv[2])):
    cache.put(f"{number % 4:02x}" + "0" * 62, {"number": number % 4}, {"object": data})
"""


def test_readers_see_whole_entries_while_processes_write_and_die(tmp_path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, "1000000"], stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == b"writes\n"
    reader, seen = cache.Cache(tmp_path), [0] * 4
    enough = threading.Event()
    stop = threading.Timer(0.5, lambda: (enough.wait(120), [writer.kill() for writer in writers]))
    stop.start()
    while any(writer.poll() is None for writer in writers):
        for number in range(4):
            entry = reader.get(f"{number:02x}" + "0" * 62)
            seen[number] += entry is not None
            assert entry is None or (entry.meta, len(entry.blobs["object"])) == ({"number": number}, 1 << 16)
        if min(seen) > 3:
            enough.set()
    for number in range(4):  # a killed writer leaves whole entries, and a file that no reader looks at
        assert reader.get(f"{number:02x}" + "0" * 62) is not None
    assert enough.is_set() and all(
        path.suffix == ".bnb" or path.name.startswith(".new-") for path in Path(tmp_path).glob("*/*")
    )
