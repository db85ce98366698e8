"""An autotuned kernel that updates its arguments in place is named, with the argument of `autotune` that restores them."""

import warnings

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb.tune.in_place import updates

X = np.arange(256, dtype=np.float32)
CONFIGS = [blocknb.Config({"BLOCK": block}) for block in (32, 64)]


def add_one(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def count(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def both(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
    tl.atomic_max(out, 1.0)


def pure(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def locked(x, out, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(out, 0.0, 1.0) == 1.0:
        pass
    tl.debug_barrier()
    tl.atomic_xchg(out, 0.0)


def through_a_descriptor(x, out, n, BLOCK: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [n], [1], [BLOCK])
    at = tl.program_id(0) * BLOCK
    d.store([at], d.load([at]) * 2)


def of_a_tuple(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x[1] + i, tl.load(x[1] + i) + tl.load(x[0] + i))


def launch(function, **options):
    """Tunes and launches a kernel; returns the messages of its warnings."""
    given = {"configs": CONFIGS, "key": ["n"], "warmup": 1, "rep": 1, "cache_results": False, **options}
    kernel = blocknb.autotune(**given)(blocknb.kernel(function))
    x = (X.copy(), X.copy()) if function is of_a_tuple else X.copy()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for n in (256, 128):  # two tunings
            kernel[lambda c: (blocknb.cdiv(n, c["BLOCK"]),)](x, np.zeros_like(X), n)
    return [str(w.message) for w in said if issubclass(w.category, RuntimeWarning)], said


@pytest.mark.parametrize(("function", "hint"), [
    (add_one, "loads `x` and stores to it: .*Write restore_value=['x'] in @autotune, or reset_to_zero=['x']"),
    (count, "loads `out` and stores to it: .*Write reset_to_zero=['out'] in @autotune, or restore_value=['out']"),
    (through_a_descriptor, "loads `x` and stores to it: .*Write restore_value=['x']"),
    (of_a_tuple, "loads `x` and stores to it"),
])  # fmt: skip
def test_a_kernel_that_updates_an_array_is_named_once_at_its_launch(function, hint):
    messages, said = launch(function)
    assert len(messages) == 1 and messages[0].startswith(f"autotuning {function.__name__} runs the kernel many times")
    for part in hint.split(".*"):
        assert part in messages[0]
    assert said[0].filename == __file__


def test_all_arrays_are_in_one_warning():
    messages, _ = launch(both)
    assert len(messages) == 1 and "loads `x`, `out` and stores to them" in messages[0]
    messages, _ = launch(both, restore_value=["x"])
    assert len(messages) == 1 and "Write reset_to_zero=['out']" in messages[0]


@pytest.mark.parametrize(("function", "options"), [
    (pure, {}), (locked, {}), (add_one, {"restore_value": ["x"]}), (add_one, {"reset_to_zero": ["x"]}), (count, {"reset_to_zero": ["out"]}),
    (add_one, {"pre_hook": lambda arguments, reset_only=False: None}), (add_one, {"post_hook": lambda arguments, exception: None}),
    (add_one, {"configs": [blocknb.Config({"BLOCK": b}, pre_hook=lambda given: None) for b in (32, 64)]}),
    (add_one, {"configs": CONFIGS[:1]}),
])  # fmt: skip
def test_no_warning_without_an_update_or_where_the_user_restores(function, options):
    assert launch(function, **options)[0] == []


def test_a_choice_from_the_disk_runs_no_trials_and_warns_not(tmp_path, monkeypatch):
    from blocknb.runtime import cache

    made = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: made)
    assert len(launch(add_one, cache_results=True)[0]) == 1
    assert launch(add_one, cache_results=True)[0] == []


def test_the_arrays_of_a_compiled_kernel_are_known():
    compiled = blocknb.kernel(both).compile("*fp32", "*fp32", "i32", BLOCK=32, target="cpu:x86-64-v3")
    found = updates(compiled, ())
    assert (found.by_atomics, found.all) == (("out",), ("x", "out"))
    assert updates(compiled, {"x", "out"}) is None
