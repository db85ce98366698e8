"""The autotuner and heuristics: their choices, when they measure, hooks, and side effects of trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.runtime import cache, launch_context
from blocknb.runtime.kinds import HOST
from blocknb.tune import Autotuner, AutotunerError, store

X = np.arange(1000, dtype=np.float32)


def by_block(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """A benchmark without a clock: runs the call once and reports block 128 as the fastest."""
    call()
    TRIED.append(LAST["BLOCK"])
    return [abs(LAST["BLOCK"] - 128) + 1.0] * len(quantiles)


LAST: dict[str, int] = {}
TRIED: list[int] = []


def note(arguments: dict[str, Any]) -> None:
    LAST["BLOCK"] = arguments["BLOCK"]


def configs(*blocks: int, **options: Any) -> list[Config]:
    return [Config({"BLOCK": b}, pre_hook=note, **options) for b in blocks]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    LAST.clear()
    TRIED.clear()


def increment(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (blocknb.cdiv(meta["n"], meta["BLOCK"]),)


def tuned(*args: Any, **options: Any) -> Autotuner:
    given = {"configs": configs(64, 128, 256), "key": ["n"], "do_bench": by_block, **options}
    return blocknb.autotune(*args, **given)(blocknb.kernel(increment))


def test_the_fastest_configuration_is_launched_and_readable() -> None:
    kernel = tuned(restore_value=["x"])
    x = X.copy()
    kernel[grid](x, 1000)
    np.testing.assert_array_equal(x, X + 1)
    assert kernel.best_config is kernel.configs[1]
    assert list(kernel.cache.values()) == [kernel.configs[1]]
    assert kernel.arg_names == ["x", "n", "BLOCK"]
    assert kernel.fn.fn is increment
    assert TRIED == [64, 128, 256]
    assert kernel.configs_timings[kernel.configs[0]][0] == 65


def test_only_new_key_values_and_new_dtypes_are_measured() -> None:
    kernel = tuned()
    for x, n in ((X.copy(), 1000), (X.copy(), 1000), (X.copy(), 500), (X.astype(np.float64), 500), (X.copy(), 500)):
        kernel[grid](x, n)
    assert len(TRIED) == 9
    assert set(kernel.cache) == {(1000, "float32"), (500, "float32"), (500, "float64")}


def test_without_restore_value_trials_run_on_the_users_arrays() -> None:
    x = X.copy()
    tuned()[grid](x, 1000)
    np.testing.assert_array_equal(x, X + 4)  # three trials and the launch


def test_reset_to_zero_zeroes_before_every_trial_and_before_the_launch() -> None:
    x, kernel = X.copy(), tuned(reset_to_zero=["x"])
    kernel[grid](x, 1000)
    np.testing.assert_array_equal(x, np.ones_like(X))
    kernel[grid](x, 1000)  # tuned already: nothing is reset
    np.testing.assert_array_equal(x, np.full_like(X, 2))


def test_restored_torch_tensors_keep_their_memory() -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(1000, dtype=torch.float32)
    address = x.data_ptr()
    tuned(restore_value=["x"])[grid](x, 1000)
    assert torch.equal(x, torch.arange(1000, dtype=torch.float32) + 1)
    assert x.data_ptr() == address


def test_arrays_in_tuples_count_as_arrays() -> None:
    @blocknb.kernel
    def k(arrays, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(arrays[1][0] + i, tl.load(arrays[0] + i, mask=i < n), mask=i < n)

    kernel = blocknb.autotune(configs(64, 128), key=["n"], do_bench=by_block)(k)
    for dtype, tried in ((np.float32, 2), (np.float32, 2), (np.float16, 4)):
        x, y = X.astype(dtype), np.zeros(X.shape, dtype)
        kernel[grid]((x, (y,)), 1000)
        np.testing.assert_array_equal(y[:1000], x[:1000])
        assert len(TRIED) == tried
    assert set(store.devices(["arrays", "n"], ((x, (y,)), 1000), {})) == {HOST}


def test_one_configuration_is_not_measured() -> None:
    kernel = tuned(configs=configs(64))
    kernel[grid](X.copy(), 1000)
    assert TRIED == [] and kernel.best_config is kernel.configs[0]


def test_an_empty_list_of_configurations_uses_the_defaults() -> None:
    kernel = tuned(configs=[])
    kernel[(16,)](X.copy(), 1000, BLOCK=64)
    assert kernel.best_config.all_kwargs() == {"num_warps": 4, "num_ctas": 1, "num_stages": 3}


def test_user_hooks_run_before_and_after_every_trial() -> None:
    seen: list[Any] = []

    def before(arguments: dict[str, Any], reset_only: bool = False) -> None:
        seen.append(("before", arguments["BLOCK"], arguments["n"], reset_only))

    def after(arguments: dict[str, Any], exception: Exception | None) -> None:
        seen.append(("after", arguments["BLOCK"], exception))

    tuned(configs=configs(64, 128), pre_hook=before, post_hook=after)[grid](X.copy(), 1000)
    assert seen == [
        ("before", 64, 1000, False),
        ("after", 64, None),
        ("before", 128, 1000, False),
        ("after", 128, None),
        ("before", 128, 1000, True),
    ]


def test_the_post_hook_gets_an_error_before_the_caller_does() -> None:
    errors: list[Any] = []
    kernel = tuned(post_hook=lambda arguments, exception: errors.append(exception))
    with pytest.raises(blocknb.AccessError):
        kernel[grid](X[:10].copy(), 1000)
    assert [type(e) for e in errors] == [blocknb.AccessError]


def test_pruning_by_function_and_by_model() -> None:
    seen = {}

    def early(found: list[Config], arguments: dict[str, Any], **keywords: Any) -> list[Config]:
        seen.update(arguments=set(arguments), keywords=set(keywords))
        return found[:3]

    prune = {"early_config_prune": early, "perf_model": lambda BLOCK, **_: -BLOCK, "top_k": 2}
    tuned(configs=configs(32, 64, 256, 512), prune_configs_by=prune)[grid](X.copy(), n=1000)
    assert TRIED == [256, 64]
    assert seen["arguments"] == {"x"} and {"n", "grid"} <= seen["keywords"]


def test_top_k_is_a_count_or_a_share_of_at_most_one() -> None:
    prune = {"perf_model": lambda BLOCK, **_: BLOCK, "top_k": 0.5}
    tuned(configs=configs(512, 32, 64, 256), prune_configs_by=prune)[grid](X.copy(), 1000)
    assert TRIED == [32, 64]
    with pytest.raises(TypeError, match="top_k"):
        tuned(prune_configs_by={**prune, "top_k": 1.5})[grid](X.copy(), 1000)


def test_pruning_everything_is_an_error() -> None:
    with pytest.raises(AutotunerError, match="no configuration of increment"):
        tuned(prune_configs_by={"early_config_prune": lambda *_, **__: []})[grid](X.copy(), 1000)


def test_passing_a_tuned_constant_at_the_launch_is_an_error() -> None:
    with pytest.raises(AutotunerError, match="increment passes BLOCK, which the autotuner chooses"):
        tuned()[grid](X.copy(), 1000, BLOCK=64)


@blocknb.kernel
def picky(x, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK >= 128, "too small")
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 7.0, mask=i < n)


def test_a_configuration_that_a_static_assert_rejects_is_left_out() -> None:
    kernel = blocknb.autotune(configs(64, 256), key=["n"], do_bench=by_block)(picky)
    kernel[grid](X.copy(), 1000)
    assert kernel.best_config.kwargs == {"BLOCK": 256}
    assert kernel.configs_timings[kernel.configs[0]] == [math.inf] * 3


def test_when_no_configuration_can_run_the_launch_raises_the_reason() -> None:
    kernel = blocknb.autotune(configs(32, 64), key=["n"], do_bench=by_block)(picky)
    with pytest.raises(blocknb.errors.StaticAssertionFailed, match="too small"):
        kernel[grid](X.copy(), 1000)
    assert kernel.cache == {}


def test_observers_see_the_launch_but_not_the_trials() -> None:
    seen: list[Any] = []
    launch_context.observers.append(seen.append)
    try:
        tuned()[grid](X.copy(), 1000)
    finally:
        launch_context.observers.remove(seen.append)
    assert [launch.compiled.trace.constants["BLOCK"] for launch in seen] == [128]


def test_a_config_can_change_the_arguments_it_is_launched_with_in_place() -> None:
    state = np.zeros(1, np.float32)

    def hook(arguments: dict[str, Any]) -> None:
        state[0] = arguments["x"][0] = arguments["BLOCK"]

    kernel = tuned(configs=[Config({"BLOCK": 64}, pre_hook=hook)])
    x = X.copy()
    kernel[grid](x, 1000)
    assert x[0] == 65 and state[0] == 64


def test_warmup_compiles_every_configuration_and_launches_nothing() -> None:
    kernel, x = tuned(), X.copy()
    made = kernel.warmup(np.dtype("float32"), 1000, grid=grid)
    assert [c.trace.constants["BLOCK"] for c in made] == [64, 128, 256]
    np.testing.assert_array_equal(x, X)


def test_libraries_subclass_the_autotuner() -> None:
    class Mine(Autotuner):
        def run(self, *args: Any, **kwargs: Any) -> Any:
            self.runs = getattr(self, "runs", 0) + 1
            return super().run(*args, **kwargs)

    kernel = blocknb.kernel(increment)
    mine = Mine(kernel, kernel.arg_names, configs(64, 128), ["n"], None, None, do_bench=by_block)
    mine[grid](X.copy(), 1000)
    assert mine.runs == 1 and mine.best_config.kwargs["BLOCK"] == 128


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = cache.Cache(tmp_path)
    monkeypatch.setattr(cache, "shared", lambda: own)


def test_cache_results_keeps_the_choice_on_disk(own_cache: None) -> None:
    plain = [Config({"BLOCK": 64}), Config({"BLOCK": 128})]

    def bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        TRIED.append(0)
        return [1.0 / len(TRIED)] * 3

    def launched() -> Autotuner:
        kernel = tuned(configs=plain, cache_results=True, do_bench=bench)
        kernel[grid](X.copy(), 1000)
        return kernel

    first, second = launched(), launched()
    assert len(TRIED) == 2
    assert first.best_config == second.best_config == plain[1]
    assert first.configs_timings == second.configs_timings


def test_the_real_clock_is_used_by_default() -> None:
    kernel = tuned(do_bench=None, warmup=1, rep=2, configs=configs(64, 256))
    kernel[grid](X.copy(), 1000)
    assert all(0 < low <= median for median, low, _ in kernel.configs_timings.values())
    assert kernel.bench_time > 0


def test_configs_with_equal_contents_are_equal() -> None:
    assert Config({"A": 1}, num_warps=8) == Config({"A": 1}, num_warps=8) != Config({"A": 1})
    assert len({Config({}), Config({}), Config({}, maxnreg=128)}) == 2
    assert str(Config({"A": 1}, maxnreg=64)) == "A: 1, num_warps: 4, num_ctas: 1, num_stages: 3, maxnreg: 64"


# -- heuristics --------------------------------------------------------------------------------------------------------------


@blocknb.heuristics(
    {"EVEN": lambda args: args["n"] % args["BLOCK"] == 0, "HAS_BIAS": lambda args: args["bias"] is not None}
)
@blocknb.kernel
def shifted(x, bias, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, HAS_BIAS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i) if EVEN else tl.load(x + i, mask=i < n)
    if HAS_BIAS:
        value += tl.load(bias)
    tl.store(out + i, value, mask=i < n)


@pytest.mark.parametrize(("bias", "n"), [(None, 1000), (np.float32([3]), 1000), (None, 960)])
def test_heuristics_get_every_argument_including_none(bias: np.ndarray | None, n: int) -> None:
    out = np.zeros_like(X)
    compiled = shifted[grid](X, bias, out, n, BLOCK=64)
    np.testing.assert_array_equal(out[:n], X[:n] + (0 if bias is None else 3))
    assert compiled.trace.constants["EVEN"] is (n % 64 == 0)
    assert compiled.trace.constants["HAS_BIAS"] is (bias is not None)


def test_heuristics_may_set_launch_options_and_get_earlier_results() -> None:
    rules = {"BLOCK": lambda args: 256, "num_warps": lambda args: args["BLOCK"] // 32}
    compiled = blocknb.heuristics(rules)(blocknb.kernel(increment))[grid](X.copy(), 1000)
    assert compiled.metadata.num_warps == 8


def halve(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x + i, tl.load(x + i) / 2)
    else:
        tl.store(x + i, tl.load(x + i, mask=i < n) / 2, mask=i < n)


def test_heuristics_inside_an_autotuner_get_its_constants() -> None:
    rule = blocknb.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    tune = blocknb.autotune(configs(8, 128), key=["n"], do_bench=by_block, restore_value=["x"])
    x = X.copy()
    compiled = tune(rule(blocknb.kernel(halve)))[grid](x, 1000)
    np.testing.assert_array_equal(x, X / 2)
    assert (compiled.trace.constants["BLOCK"], compiled.trace.constants["EVEN"]) == (128, False)


def test_constants_of_heuristics_around_an_autotuner_reach_the_kernel() -> None:
    rule = blocknb.heuristics({"EVEN": lambda args: False})
    tune = blocknb.autotune(configs(64, 128), key=["n", "EVEN"], do_bench=by_block, restore_value=["x"])
    kernel, x = rule(tune(blocknb.kernel(halve))), X.copy()
    kernel[grid](x, 1000)
    np.testing.assert_array_equal(x, X / 2)
    assert list(kernel.fn.cache) == [(1000, False, "float32")]


def test_the_grid_function_gets_runtime_arguments_constants_and_defaults() -> None:
    seen: dict[str, Any] = {}

    @blocknb.kernel
    def fill(x, value=3.0, BLOCK: tl.constexpr = 8, N: tl.constexpr = 16):
        tl.store(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), value)

    rules = blocknb.heuristics({"N": lambda args: args["BLOCK"] * 4})
    x = np.zeros(32, np.float32)
    rules(blocknb.autotune([Config({"BLOCK": 16})], key=[])(fill))
    kernel = blocknb.autotune([Config({"BLOCK": 16})], key=[])(rules(fill))

    def sizes(meta: dict[str, Any]) -> tuple[int]:
        seen.update(meta)
        return (32 // meta["BLOCK"],)

    kernel[sizes](x)
    assert (seen["value"], seen["BLOCK"], seen["N"], seen["num_warps"]) == (3.0, 16, 64, 4)
    assert seen["x"] is x
    np.testing.assert_array_equal(x, np.full(32, 3, np.float32))


@blocknb.kernel
def calls_a_tuned_one(x, n, BLOCK: tl.constexpr):
    TUNED(x, n, BLOCK)


TUNED = tuned()


def test_a_tuned_kernel_called_in_another_kernel_is_inlined() -> None:
    x = X.copy()
    calls_a_tuned_one[(16,)](x, 1000, BLOCK=64)
    np.testing.assert_array_equal(x, X + 1)


def test_a_configuration_of_another_type_is_an_error() -> None:
    with pytest.raises(AutotunerError, match="must hold Config objects, not {'BLOCK': 64}"):
        blocknb.autotune([{"BLOCK": 64}], key=["n"])(blocknb.kernel(increment))


def test_autotune_on_a_plain_function_names_the_missing_decorator() -> None:
    with pytest.raises(AutotunerError, match="not a function") as error:
        blocknb.autotune([], key=[])(increment)  # type: ignore[arg-type]
    assert "put @blocknb.kernel below it" in str(error.value)


def test_arrays_that_are_restored_or_reset_may_be_none() -> None:
    @blocknb.autotune(configs(64, 128), key=["n"], do_bench=by_block, restore_value=["x", "y"], reset_to_zero=["z"])
    @blocknb.kernel
    def either(x, y, z, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
        if y is not None:
            tl.store(y + i, 0, mask=i < n)

    x = X.copy()
    either[grid](x, None, None, 1000)
    np.testing.assert_array_equal(x, X + 1)


def test_a_tuner_records_whether_its_hooks_are_user_defined() -> None:
    def hook(*_: Any, **__: Any) -> None: ...

    def told(tuner: Autotuner) -> tuple[bool, bool]:
        return tuner.user_defined_pre_hook, tuner.user_defined_post_hook

    assert told(tuned()) == (False, False)
    assert told(tuned(pre_hook=hook, post_hook=hook)) == (True, True)


def test_on_a_cpu_configurations_that_differ_only_in_warps_and_stages_are_measured_once() -> None:
    several = [
        Config({"BLOCK": b}, num_warps=w, num_stages=s, pre_hook=note)
        for b in (64, 128)
        for w in (2, 4)
        for s in (1, 2)
    ]
    kernel = tuned(configs=several)
    kernel[grid](X.copy(), 1000)
    assert TRIED == [64, 128]
    assert len(kernel.configs_timings) == 8
    assert kernel.best_config is several[4]
    assert [bool(trial.reason) for trial in kernel.tuning.trials] == [False, True, True, True] * 2


def test_a_kernel_with_a_num_warps_parameter_is_measured_for_each_value() -> None:
    @blocknb.autotune([Config({"BLOCK": 64}, num_warps=w, pre_hook=note) for w in (2, 4)], key=["n"], do_bench=by_block)
    @blocknb.kernel
    def aware(x, n, BLOCK: tl.constexpr, num_warps: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, num_warps, mask=i < n)

    x = X.copy()
    aware[grid](x, 1000)
    assert TRIED == [64, 64]
    assert set(x) == {2.0}


def test_a_config_rejects_ir_override() -> None:
    assert Config({"A": 1}, ir_override=None) == Config({"A": 1})
    with pytest.raises(blocknb.LaunchError, match="ir_override"):
        Config({"A": 1}, ir_override="kernel.ttir")


@pytest.mark.parametrize("blocks", [(64,), (64, 128)])
@pytest.mark.parametrize(("given", "name"), [({"BLOCK": 32}, "BLOCK"), ({"num_warps": 2}, "num_warps")])
def test_only_interpreted_launches_accept_tuned_constants(blocks, given, name) -> None:
    tuned = blocknb.autotune([blocknb.Config({"BLOCK": b}) for b in blocks], key=["n"])(blocknb.kernel(increment))
    x = X.copy()
    for _ in range(2):  # before there is a choice, and after
        with pytest.raises(AutotunerError, match=f"increment passes {name}, which the autotuner chooses"):
            tuned[(32,)](x, 1000, **given)
        tuned[lambda c: (blocknb.cdiv(1000, c["BLOCK"]),)](x, 1000)
    x[:] = X
    tuned.interpret(lambda c: (blocknb.cdiv(1000, c["BLOCK"]),))(x, 1000, **given)
    np.testing.assert_array_equal(x, X + 1)
