"""`autotune`: measures several configurations of a kernel for each new tuning key, and launches the fastest.

The tuning key holds the values of the arguments that `key` names, and the dtypes of all arrays. The autotuner compiles the configurations
in parallel, on all cores. It measures them against each other with the arguments of the launch, and stops hopeless ones early (`race`). So
a trial runs the kernel many times. Name arrays that the kernel updates in place in one of two arguments. Arrays in `restore_value` are
saved before each run and restored after it. Arrays in `reset_to_zero` are set to zero before each run and before the final launch. A
warning names arrays that are in neither. Observers of launches do not see trials.

The autotuner leaves out a configuration that does not compile, that needs more resources than the device has, or that spills heavily;
`tuning` states the reason. If none is left, the launch raises the error of the last one. An interrupt ends the launch and keeps the
measurements. The next launch with the same key continues from there. `store` keeps the choice on disk.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from blocknb.errors import KernelError, LaunchError
from blocknb.runtime import machine, parallel_compile
from blocknb.runtime.binding import caller
from blocknb.runtime.compile import Compiled
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import unobserved
from blocknb.tune import store
from blocknb.tune.array_state import ArrayState
from blocknb.tune.config import Config
from blocknb.tune.fast_choice import FastChoice, FastChoices
from blocknb.tune.in_place import updates
from blocknb.tune.pruning import AutotunerError, Pruning
from blocknb.tune.race import QUANTILES, REFUSALS, ROUNDS, Entrant, Race, stopwatch
from blocknb.tune.searches import REP, WARMUP, Measuring, Searches, SharedTrials
from blocknb.tune.tuning import Tuning
from blocknb.tune.wrapper import Wrapper

Hook = Callable[..., Any]
OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
#: The name of a dtype. The cache is necessary: str() of a NumPy dtype takes longer than a launch.
_dtype_name = functools.lru_cache(typed=True)(str)


class Autotuner(Wrapper):
    """A kernel with its configurations.

    After a launch, `best_config` is the configuration that it used, and `cache` maps tuning keys to the best configurations. Clear `cache`
    to tune again, unless the choice is on disk. `configs_timings`, `bench_time` (seconds) and `tuning` describe the last tuning; `tuning`
    is a table of all trials. `tunings` has those of a cluster, by kind of device. Libraries subclass this class, so names and the order
    of arguments are those of Triton.
    """

    def __init__(
        self,
        fn: Any,
        arg_names: list[str],
        configs: Sequence[Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None = None,
        restore_value: Sequence[str] | None = None,
        pre_hook: Hook | None = None,
        post_hook: Hook | None = None,
        prune_configs_by: Mapping[str, Any] | None = None,
        warmup: float | None = None,
        rep: float | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool | None = None,
        client: Any = None,
    ):
        super().__init__(fn, arg_names)
        self.configs = list(configs) or [Config({})]
        if wrong := [config for config in self.configs if not isinstance(config, Config)]:
            message = f"`configs` must hold Config objects, not {wrong[0]!r}"
            raise AutotunerError(message, hint='write blocknb.Config({"BLOCK": 64})')
        self.keys = list(key)
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.best_config: Config | None = None
        self.tuning: Tuning | None = None
        self.nargs: dict[str, Any] = {}
        self.cache_results = cache_results
        self.arrays = ArrayState(reset_to_zero, restore_value)
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self.pre_hook: Hook = pre_hook or self.arrays.prepare
        self.post_hook: Hook = post_hook or self.arrays.restore
        self.pruning = Pruning(prune_configs_by)
        warmup, rep = WARMUP if warmup is None else warmup, REP if rep is None else rep
        self.measuring = Measuring(warmup, rep, use_cuda_graph, do_bench)
        self._searches = Searches(client)
        self._searches.choices = FastChoices(arg_names, self.keys)

    def pickled_state(self) -> dict[str, Any]:
        """The attributes that travel to another process: all but running searches and the client of a cluster."""
        state = super().pickled_state()
        del state["_searches"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._searches = Searches()
        self._searches.choices = FastChoices(self.arg_names, self.keys)

    @property
    def configs_timings(self) -> dict[Config, Any]:
        """The times of the last tuning in milliseconds, by configuration, as in Triton."""
        return {} if self.tuning is None else self.tuning.timings

    @property
    def tunings(self) -> dict[str, Tuning]:
        """The tables of the last tuning on a cluster, by kind of device."""
        return self._searches.tunings

    @property
    def bench_time(self) -> float:
        """The seconds that the last tuning took."""
        return 0.0 if self.tuning is None else self.tuning.seconds

    # Subclasses in libraries read the decorator's arguments under these names.

    @property
    def reset_to_zero(self) -> list[str]:
        """The names of the arrays that are set to zero before each run."""
        return self.arrays.reset_to_zero

    @property
    def restore_value(self) -> list[str]:
        """The names of the arrays that are restored after each run."""
        return self.arrays.restore_value

    @property
    def early_config_prune(self) -> Callable[..., Any] | None:
        """The user's function that removes configurations, or None."""
        return self.pruning.early_config_prune

    # ---- launching ----

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        if type(self).run is not Autotuner.run:  # a subclass sees every launch
            return super().__getitem__(grid)
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Launches with the choice of an earlier call with the same tuning key, if it still holds; else `run` chooses."""
        found = self._searches.choices.find(args, kwargs)
        if found is None or self._chosen(found.key) is not found.config or self.kernel.interprets(kwargs):
            return self.run(*args, grid=grid, warmup=False, **kwargs)
        self.best_config = found.config
        return self.fn[grid](*args, **found.constants, **kwargs)

    def _chosen(self, key: tuple[Any, ...]) -> Config | None:
        """The choice for a tuning key, if there is one; the only configuration needs no tuning."""
        return self.configs[0] if len(self.configs) == 1 else self.cache.get(key)

    def _keep(self, config: Config, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Keeps the choice for launches like this one. A configuration's hook wants every launch, with its arguments by name."""
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        if config.pre_hook is None:
            key = () if len(self.configs) == 1 else self.tuning_key(args, given)
            self._searches.choices.keep(args, given, FastChoice(key, config, config.launched(self.arg_names)))

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        if self.kernel.interprets(kwargs):  # times of interpreted launches mean nothing, so any configuration serves
            config = self.cache.get(self.tuning_key(args, kwargs)) or self.prune_configs(kwargs)[0]
        else:
            config = self.configs[0] if len(self.configs) == 1 else self._best(args, kwargs)
            self._check_not_tuned(config, kwargs)
            self._keep(config, args, kwargs)
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self._named(args), **config.all_kwargs(), **kwargs})
        return self.fn.run(*args, **{**config.launched(self.arg_names), **kwargs})

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compiles every configuration that pruning leaves, in parallel, and launches nothing; returns the compiled kernels.

        The result leaves out configurations that need more resources than the target has, and those that a `static_assert` rejects. If all
        are rejected, raises the last error. Hooks are called if there are descriptors, because hooks set their blocks.
        """
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs)
        if len(configs) > 1:
            self.compile_ahead(configs, args, kwargs)
        made, failure = [], None
        for config in configs:
            self._describe(config, args, kwargs)
            try:
                made.append(self.fn.warmup(*args, **kwargs, **config.launched(self.arg_names)))
            except REFUSALS as error:
                failure = error
        if failure is not None and not made:
            raise failure
        return made

    def _describe(self, config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Calls a configuration's hook if there are descriptors: the hook sets their blocks, which the kernel is specialized on."""
        named = {**self._named(args), **kwargs}
        if config.pre_hook is not None and any(isinstance(v, TensorDescriptor) for v in store.elements(named.values())):
            config.pre_hook({**named, **config.all_kwargs()})

    def compile_ahead(
        self, configs: Sequence[Config], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[Config, Compiled | KernelError]:
        """Compiles configurations in parallel; returns the compiled kernel or the error of each.

        A configuration whose result is not known yet is missing. Its error appears when it is tried alone.
        """
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup", "interpret")}
        places: dict[Config, int] = {}
        costs: list[float] = []
        with parallel_compile.gathered() as requests:
            for config in configs:
                before = len(requests)
                with contextlib.suppress(KernelError):
                    self._describe(config, args, kwargs)
                    self.fn.warmup(*args, **{**given, **config.launched(self.arg_names)})
                if len(requests) == before + 1:
                    places[config] = before
                costs += [config.compile_cost] * (len(requests) - before)
        # The kernel that is ready last keeps all others waiting, so the slowest compilations begin first.
        order = sorted(range(len(requests)), key=lambda place: -costs[place])
        label = f"{self.__name__}: compiling configurations"
        answers = parallel_compile.compile_all([requests[place] for place in order], label)
        made = dict(zip(order, answers, strict=True))
        return {config: made[place] for config, place in places.items()}

    def _named(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return {**self.defaults, **dict(zip(self.arg_names, args, strict=False))}

    # ---- choosing ----

    def tuning_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the arguments that `key` names, the dtypes of all arrays, and the device if it is not the machine's first GPU."""
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        given = {name: value for name, value in named.items() if name in self.arg_names}
        values = [given[name] for name in self.keys if name in given]
        if wrong := [name for name in self.keys if name in given and not store.hashable(given[name])]:
            kind = type(given[wrong[0]]).__name__
            message = f"key={list(self.keys)!r} of {self.__name__} names `{wrong[0]}`, which is of type {kind}"
            raise LaunchError(message, hint="a key names numbers; dtypes of arrays are part of the key anyway")
        return (
            *values,
            *(_dtype_name(value.dtype) for value in store.elements(given.values()) if hasattr(value, "dtype")),
            *store.other_device(self.arg_names, args, kwargs),
        )

    def _best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        key = self.tuning_key(args, kwargs)
        found = self.cache.get(key)
        if found is None:
            with self._searches.lock:
                found = self.cache.get(key) or _best_of(self._tune(key, args, kwargs))
        return found

    def tune(self, *args: Any, grid: Any, client: Any = None, **kwargs: Any) -> Tuning:
        """Chooses the configuration for the launch `kernel[grid](*args, **kwargs)`, and does not launch. Returns the Tuning.

        With the `client` of a Dask cluster, the workers measure (see `blocknb.tune.cluster`). `tunings` then has one Tuning for each kind
        of device of the cluster. The Tuning of this machine's kind is the choice for launches here.
        """
        self.nargs, kwargs = dict(zip(self.arg_names, args, strict=False)), {**kwargs, "grid": grid}
        with self._searches.using(client):
            return self._tune(self.tuning_key(args, kwargs), args, kwargs, look=self._searches.client is None)

    def store_place(
        self, key: tuple[Any, ...], configs: Sequence[Config], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> store.StorePlace | None:
        """The entry of the disk cache for a tuning on this machine; None if the choice is not kept."""
        if not store.wanted(self.cache_results, not self._measured_by_others):
            return None
        by = (*key, self.measuring.use_cuda_graph)
        return store.StorePlace.of(self.kernel, self.arg_names, args, kwargs, configs, by)

    def _tune(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any], look: bool = True) -> Tuning:
        configs = self.prune_configs(kwargs)
        place, named = self.store_place(key, configs, args, kwargs), self._named_key(key)
        if look and place is not None and (found := place.read()) is not None:
            tuning = Tuning(self.__name__, named, tuple(found[0]), found[1], from_disk=True, parameters=self.arg_names)
        else:
            tuning = self._measured(key, named, configs, args, kwargs)
            self.pre_hook({**self._named(args), **kwargs, **_best_of(tuning).all_kwargs()}, reset_only=True)
            if place is not None:
                place.write(tuning)
        self._publish(tuning)
        self.cache[key] = _best_of(tuning)
        return tuning

    def _publish(self, tuning: Tuning) -> None:
        """Makes a tuning the newest one, also for the kernel's card, and prints it if the environment requests that."""
        self.tuning = tuning
        with contextlib.suppress(TypeError):  # a user-defined wrapper may contain no kernel
            vars(self.kernel)["tuning"] = tuning
        names = ("BLOCKNB_PRINT_AUTOTUNING", "TRITON_PRINT_AUTOTUNING")
        if any(os.environ.get(name, "") not in ("", "0") for name in names):
            print(tuning)

    def _named_key(self, key: tuple[Any, ...]) -> dict[str, Any]:
        """A tuning key as a dict for display."""
        known = [name for name in self.keys if name in self.arg_names]
        dtypes = ", ".join(dict.fromkeys(key[len(known) :]))
        return dict(zip(known, key, strict=False)) | ({"dtype": dtypes} if dtypes else {})

    def _measured(
        self,
        key: tuple[Any, ...],
        named: Mapping[str, Any],
        configs: Sequence[Config],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tuning:
        """Measures all configurations. After an interrupt, `tuning` has the trials so far, and the next call for this key continues."""
        ignore_gpu_options = HOST in store.devices(self.arg_names, args, kwargs) and not OPTIONS & set(self.arg_names)
        shared = SharedTrials(self.__name__, named, configs, ignore_gpu_options, self.arg_names)
        race = self._searches.races.setdefault(key, Race(self.__name__))
        try:
            with unobserved(), stopwatch(race):
                if self._searches.client is None:
                    self.race_here(race, shared.tried, args, kwargs)
                else:
                    from blocknb.tune import cluster

                    self._searches.tunings = cluster.tuned(self._searches.client, self, race, shared, args, kwargs)
        except KeyboardInterrupt:
            self._publish(replace(shared.tuning(race), best=None))
            raise
        except BaseException:
            del self._searches.races[key]
            raise
        del self._searches.races[key]
        tuning = shared.tuning(race)
        if tuning.best is None:
            assert race.failure is not None
            self._publish(tuning)
            raise race.failure
        return tuning

    def race_here(self, race: Race, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles and measures the configurations without a result: in turns with blocknb's clock, one by one with any other."""
        made = self.compile_ahead(configs, args, kwargs)
        for config, answer in made.items():
            if isinstance(answer, REFUSALS):
                race.refuse(config, answer)
        self._warn_of_updates(next((answer for answer in made.values() if isinstance(answer, Compiled)), None))
        spilled = {c: a.trace.resources.spill_bytes for c, a in made.items() if isinstance(a, Compiled)}
        race.refuse_spilling({config: count for config, count in spilled.items() if count is not None})
        configs = [config for config in configs if config not in race.out and config not in race.answers]
        label = f"{self.__name__}: measuring configurations"
        if self._races:
            with parallel_compile.shows(len(configs) + ROUNDS, label) as step:
                race.run(
                    [self._entrant(config, args, kwargs) for config in configs],
                    gpu=store.gpu_of(self.arg_names, args, kwargs),
                    warmup=self.measuring.warmup,
                    rep=self.measuring.rep,
                    step=step,
                )
            return
        with parallel_compile.shows(len(configs), label) as step:
            for number, config in enumerate(configs, 1):
                step(f"{number} of {len(configs)}")
                self._searches.refused = None
                answer = self._bench(*args, config=config, **kwargs)
                if self._searches.refused is None:
                    race.answers[config] = answer
                else:
                    race.refuse(config, self._searches.refused)

    def _warn_of_updates(self, compiled: Compiled | None) -> None:
        """Warns once if trials update arrays in place. Hooks of the user may restore them in their own way."""
        hooks = self.user_defined_pre_hook or self.user_defined_post_hook or any(c.pre_hook for c in self.configs)
        if compiled is None or hooks or self._searches.warned:
            return
        found = updates(compiled, {*self.arrays.reset_to_zero, *self.arrays.restore_value})
        if found is not None:
            self._searches.warned = True
            place = caller()
            message, file, line = found.message(self.__name__), place.file if place else "", place.line if place else 0
            warnings.warn_explicit(message, RuntimeWarning, file, line)

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configurations worth measuring for these arguments. Raises AutotunerError when pruning leaves none."""
        return self.pruning.pruned(self.__name__, self.configs, self.nargs, kwargs)

    # ---- measuring ----

    @property
    def _measured_by_others(self) -> bool:
        """Whether the user measures: by a `do_bench` function, or by methods of a subclass."""
        overridden = type(self)._bench is not Autotuner._bench or type(self).do_bench is not Autotuner.do_bench
        return overridden or self.measuring.do_bench is not None

    @property
    def _races(self) -> bool:
        """Whether configurations are measured in turns. CUDA graphs and user-defined clocks measure one after another."""
        return not self._measured_by_others and not (self.measuring.use_cuda_graph and machine.has_gpu())

    def _check_not_tuned(self, config: Config, kwargs: Mapping[str, Any]) -> None:
        """Raises AutotunerError for a launch that passes a value which the configurations set."""
        if clash := sorted(kwargs.keys() & config.launched(self.arg_names).keys()):
            message = f"the launch of {self.__name__} passes {', '.join(clash)}, which the autotuner chooses"
            raise AutotunerError(message, hint="leave it out of the launch")

    def _entrant(self, config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entrant:
        """A configuration as the race runs it. Raises AutotunerError for a launch that passes a tuned value."""
        self._check_not_tuned(config, kwargs)
        current = {**kwargs, **config.launched(self.arg_names)}
        named = {**self._named(args), **kwargs, **config.all_kwargs()}

        def launch() -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.fn.run(*args, **current)

        return Entrant(
            config, lambda: self.pre_hook(named), launch, lambda error: self.post_hook(named, exception=error)
        )

    def _bench(self, *args: Any, config: Config, **meta: Any) -> Any:
        """The median and the 20 % and 80 % quantiles in milliseconds, by `do_bench`; infinities if the configuration cannot run."""
        try:
            return self.do_bench(self._entrant(config, args, meta), quantiles=QUANTILES)
        except REFUSALS as error:
            self._searches.refused = error
            return [math.inf] * 3

    def do_bench(self, call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        """Times one call with the user's `do_bench` function, or with that of `blocknb.testing`."""
        from blocknb import testing

        if self.measuring.do_bench is not None:
            return self.measuring.do_bench(call, quantiles=quantiles)
        repeat = self.measuring.rep
        if self.measuring.use_cuda_graph and machine.has_gpu():
            return testing.do_bench_cudagraph(call, rep=repeat, quantiles=quantiles)
        budget = self.measuring.warmup
        return testing.do_bench(call, warmup=budget, rep=repeat, quantiles=quantiles)


def _best_of(tuning: Tuning) -> Config:
    assert tuning.best is not None
    return tuning.best


def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Hook | None = None,
    post_hook: Hook | None = None,
    warmup: float | None = None,
    rep: float | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool | None = None,
    client: Any = None,
) -> Callable[[Kernel | Wrapper], Autotuner]:
    """Decorates a kernel, or heuristics around a kernel: a launch uses the fastest of `configs`.

        @autotune([Config({"BLOCK": 128}), Config({"BLOCK": 1024}, num_warps=8)], key=["n"])

    The autotuner measures the configurations for each new value of an argument in `key` and each new dtype of an array. `prune_configs_by`
    may hold "early_config_prune", a function (configs, arguments, **keywords) -> configs. It may also hold "perf_model" and "top_k". The
    first is a function of all arguments by name that estimates the time. The second is the number or the share of configurations to
    measure. `reset_to_zero` and `restore_value` name arrays that the kernel updates. `pre_hook(arguments, reset_only)` and
    `post_hook(arguments, exception)` replace these two.

    `warmup` and `rep` limit the milliseconds per configuration (25 and 100). Configurations run in turns, with cold caches. The
    autotuner stops a configuration early that was slower than the best by 25 % in each of four rounds, or by 10 % in ten. If the time
    ends before that, the four fastest continue for at most the same time again (limits: `blocknb.tune.race`). `use_cuda_graph` measures
    replays of a CUDA graph, and `do_bench(call, quantiles)` is a clock of the user's; both measure one configuration after another.

    `cache_results` keeps the choice on disk, for the same kernel, configurations, key, device and versions. True keeps it, as in Triton.
    False tunes again in each process. By default the choice is kept unless there is a `do_bench`. Set the environment variable
    BLOCKNB_CACHE_AUTOTUNING (or TRITON_CACHE_AUTOTUNING) to 0 to turn this default off, or to 1 to keep every choice. Choices among
    configurations with hooks are never kept. BLOCKNB_PRINT_AUTOTUNING=1 (or TRITON_PRINT_AUTOTUNING) prints `tuning` after each choice.
    With the `client` of a Dask cluster, its workers measure (`Autotuner.tune`).
    """

    def decorate(fn: Kernel | Wrapper) -> Autotuner:
        if not hasattr(fn, "arg_names"):
            message = f"@autotune decorates a kernel, not a {type(fn).__name__}"
            raise AutotunerError(message, hint="put @blocknb.kernel below it")
        return Autotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook, prune_configs_by, warmup, rep,
            use_cuda_graph, do_bench, cache_results, client,
        )  # fmt: skip

    return decorate
