"""Repeated launches of an autotuned kernel: they take the short way, and choose what `run` would choose."""

import numpy as np
import pytest

import blocknb
import blocknb.language as bl
from blocknb.tune.autotuner import Autotuner

CONFIGS = [blocknb.Config({"BLOCK": block}) for block in (32, 64)]


@blocknb.kernel
def plus(x, out, n, k, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at, mask=at < n) + k, mask=at < n)


@pytest.fixture
def tuned(monkeypatch):
    """An autotuner of `plus`, and the calls of its `run`, after which the short way is taken. The choice is the block of the key."""
    made = blocknb.autotune(CONFIGS, key=["k"], do_bench=lambda call, quantiles: [1.0] * 3)(plus)
    calls = []
    run = Autotuner.run

    def counted(self, *args, **kwargs):
        calls.append(kwargs)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Autotuner, "run", counted)
    return made, calls


def launch(kernel, k=1, n=64, dtype=np.float32, **more):
    x, out = np.arange(64, dtype=dtype), np.zeros(64, dtype)
    kernel[2,](x, out, n, k, **more)
    np.testing.assert_array_equal(out[:n], x[:n] + k)
    np.testing.assert_array_equal(out[n:], 0)


def test_repeated_launches_do_not_choose_again(tuned):
    kernel, calls = tuned
    launch(kernel)
    assert len(calls) == 1
    for n in (64, 10, 33):
        launch(kernel, n=n)
    assert len(calls) == 1
    assert kernel.best_config in CONFIGS


def test_other_keys_dtypes_and_forms_of_call_choose_anew(tuned):
    kernel, calls = tuned
    launch(kernel)
    launch(kernel, k=2)
    launch(kernel, dtype=np.float64)
    x, out = np.zeros(64, np.float32), np.zeros(64, np.float32)
    kernel[2,](x, out, n=64, k=1)
    assert len(calls) == 4
    assert len(kernel.cache) == 3
    launch(kernel)
    kernel[2,](out=out, x=x, n=64, k=1)
    assert len(calls) == 5


def test_a_cleared_cache_or_another_choice_is_seen(tuned):
    kernel, calls = tuned
    launch(kernel)
    kernel.cache.clear()
    launch(kernel)
    assert len(calls) == 2
    (key,) = kernel.cache
    other = next(config for config in CONFIGS if config is not kernel.cache[key])
    kernel.cache[key] = other
    launch(kernel)
    assert kernel.best_config is other


def test_the_short_way_passes_on_what_run_refuses(tuned):
    kernel, _ = tuned
    launch(kernel)
    with pytest.raises(blocknb.KernelError, match="which the autotuner chooses"):
        launch(kernel, BLOCK=32)
    with pytest.raises(blocknb.KernelError, match="a key names numbers"):
        launch(kernel, k=np.zeros(3, np.float32))


def test_hooks_and_subclasses_see_every_launch():
    seen = []
    configs = [blocknb.Config({"BLOCK": 32}, pre_hook=lambda given: seen.append(given["n"]))]
    kernel = blocknb.autotune(configs, key=[])(plus)
    for n in (64, 64, 32):
        launch(kernel, n=n)
    assert seen == [64, 64, 32]

    class Logged(Autotuner):
        def run(self, *args, **kwargs):
            seen.append("run")
            return super().run(*args, **kwargs)

    logged = Logged(plus, plus.arg_names, [blocknb.Config({"BLOCK": 32})], [])
    launch(logged)
    launch(logged)
    assert seen[3:] == ["run", "run"]


def test_interpreted_launches_are_not_shortened(tuned):
    kernel, calls = tuned
    launch(kernel)
    launch(kernel)
    launch(kernel, interpret=True)
    assert len(calls) == 2
