"""`autotune`: a kernel that is tried in several configurations when its arguments are of a new kind, and launched in the fastest.

What "a new kind" is, the `key` says: the values of the arguments it names, and the dtypes of all arrays. Configurations are compiled
together, on all cores, and raced against each other with the launch's own arguments (`race`): the hopeless are stopped early. A trial
therefore really runs the kernel, many times: arrays that it updates in place belong into `restore_value` (saved before each run and put
back after it) or `reset_to_zero` (set to zero before each run, and once more before the launch itself); None, for an array that this
launch does without, may stand in either. Trials are kept from the observers of launches.

A configuration that cannot be compiled, for which the device has not the resources, or that spills heavily, is left out, and `tuning`
says why; if none is left, the launch raises what the last one raised. An interrupt ends the launch; what was measured stays, and the next
launch of that kind goes on from there. What was chosen is kept on disk (`store`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blocknb import forks
from blocknb.errors import KernelError
from blocknb.runtime import machine, parallel_compile
from blocknb.runtime.compile import Compiled
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.kinds import HOST
from blocknb.runtime.launch_context import unobserved
from blocknb.tune import store
from blocknb.tune.array_state import ArrayState
from blocknb.tune.config import Config
from blocknb.tune.pruning import AutotunerError, Pruning
from blocknb.tune.race import QUANTILES, REFUSALS, ROUNDS, Entrant, Race, stopwatch
from blocknb.tune.tuning import MEASURED, Trial, Tuning
from blocknb.tune.wrapper import Wrapper

Hook = Callable[..., Any]
WARMUP, REP = 25, 100  # milliseconds a configuration
OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


#: A dtype's text: to write NumPy's anew at each launch takes longer than the launch.
_spelled = functools.lru_cache(typed=True)(str)


@dataclass(frozen=True)
class Measuring:
    """How configurations are timed: milliseconds to warm up and to repeat, by replays of a graph, or by a function of the caller's."""

    warmup: float = WARMUP
    rep: float = REP
    use_cuda_graph: bool = False
    do_bench: Callable[..., Any] | None = None


class Searches:
    """The searches of an autotuner that are under way: a lock, races by tuning key, and why the last configuration could not run."""

    def __init__(self) -> None:
        self.races: dict[tuple[Any, ...], Race] = {}
        self.refused: KernelError | None = None
        self.lock = threading.RLock()
        forks.renewed(self, lock=threading.RLock)


class Autotuner(Wrapper):
    """A kernel with its configurations. Read after a launch: `best_config`, `cache` (the best one by tuning key; clearing it tunes anew,
    unless the choice is found on disk), and of the last tuning `configs_timings`, `bench_time` (seconds) and `tuning`, a table of all that
    was tried and why it lost. Libraries subclass it, so names and the order of arguments are Triton's."""

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
    ):
        super().__init__(fn, arg_names)
        self.configs = list(configs) or [Config({})]
        if wrong := [config for config in self.configs if not isinstance(config, Config)]:
            raise AutotunerError(f"a configuration is a Config, not {wrong[0]!r}", hint='blocknb.Config({"BLOCK": 64})')
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
        self._searches = Searches()

    @property
    def configs_timings(self) -> dict[Config, Any]:
        """The times of the last tuning by configuration, as Triton's."""
        return {} if self.tuning is None else self.tuning.timings

    @property
    def bench_time(self) -> float:
        """The seconds that the last tuning took."""
        return 0.0 if self.tuning is None else self.tuning.seconds

    # ---- launching ----

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        if self.kernel.interprets(kwargs):  # its time says nothing: any will do, and whatever the launch gives
            config = self.cache.get(self.tuning_key(args, kwargs)) or self.prune_configs(kwargs)[0]
        else:
            config = self.configs[0] if len(self.configs) == 1 else self._best(args, kwargs)
            self._refuse_given(config, kwargs)
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self._named(args), **config.all_kwargs(), **kwargs})
        return self.fn.run(*args, **{**config.launched(self.arg_names), **kwargs})

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compiles every configuration that pruning leaves, several at a time, and launches nothing. Those that the target has not the
        resources for, or that a `static_assert` refuses, are left out of what is returned; if all are, raises what the last one raised.
        Hooks are called where there are descriptors, whose blocks they set."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        configs = self.prune_configs(kwargs)
        self._compile_ahead(configs, args, kwargs)
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
        """Has a configuration's hook set the blocks of descriptors, which are part of what is compiled."""
        named = {**self._named(args), **kwargs}
        if config.pre_hook is not None and any(isinstance(v, TensorDescriptor) for v in store.elements(named.values())):
            config.pre_hook({**named, **config.all_kwargs()})

    def _compile_ahead(
        self, configs: Sequence[Config], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[Config, Compiled | KernelError]:
        """Compiles configurations at the same time, and returns what became of them, as far as that is known now: what else goes wrong is
        said when they are tried, one by one."""
        if len(configs) < 2:
            return {}
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup", "interpret")}
        places: dict[Config, int] = {}
        with parallel_compile.gathered() as requests:
            for config in configs:
                before = len(requests)
                with contextlib.suppress(KernelError):
                    self._describe(config, args, kwargs)
                    self.fn.warmup(*args, **{**given, **config.launched(self.arg_names)})
                if len(requests) == before + 1:
                    places[config] = before
        made = parallel_compile.compile_all(requests, f"{self.__name__}: compiling configurations")
        return {config: made[place] for config, place in places.items()}

    def _named(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return {**self.defaults, **dict(zip(self.arg_names, args, strict=False))}

    # ---- choosing ----

    def tuning_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the arguments that `key` names, then the dtypes of all arrays."""
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        given = {name: value for name, value in named.items() if name in self.arg_names}
        values = [given[name] for name in self.keys if name in given]
        return (
            *values,
            *(_spelled(value.dtype) for value in store.elements(given.values()) if hasattr(value, "dtype")),
        )

    def _best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        key = self.tuning_key(args, kwargs)
        found = self.cache.get(key)
        if found is None:
            with self._searches.lock:
                found = self.cache.get(key) or self._tune(key, args, kwargs)
        return found

    def _tune(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        configs, place = self.prune_configs(kwargs), None
        if store.wanted(self.cache_results, not self._measured_by_others):
            by = (*key, self.measuring.use_cuda_graph)
            place = store.StorePlace.of(self.kernel, self.arg_names, args, kwargs, configs, by)
        named = self._named_key(key)
        if place is not None and (found := place.read()) is not None:
            tuning = Tuning(self.__name__, named, tuple(found[0]), found[1], from_disk=True)
        else:
            tuning = Tuning(self.__name__, named, *self._measured(key, named, configs, args, kwargs))
            self.pre_hook({**self._named(args), **kwargs, **_best_of(tuning).all_kwargs()}, reset_only=True)
            if place is not None:
                place.write(tuning)
        self._tell(tuning)
        self.cache[key] = _best_of(tuning)
        return self.cache[key]

    def _tell(self, tuning: Tuning) -> None:
        self.tuning = tuning
        with contextlib.suppress(TypeError):  # somebody's own wrapper without a kernel in it
            vars(self.kernel)["tuning"] = tuning  # for the kernel's card
        if any(
            os.environ.get(name, "") not in ("", "0")
            for name in ("BLOCKNB_PRINT_AUTOTUNING", "TRITON_PRINT_AUTOTUNING")
        ):
            print(tuning)

    def _named_key(self, key: tuple[Any, ...]) -> dict[str, Any]:
        """A tuning key for a reader."""
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
    ) -> tuple[tuple[Trial, ...], Config, float]:
        """The trials of all, the best, and the seconds that it took; on the CPU one measurement serves configurations that differ in warps
        and stages only, which it has not. After an interrupt `tuning` has what there is, and the next call for this key goes on."""
        alike = HOST in store.devices(self.arg_names, args, kwargs) and not OPTIONS & set(self.arg_names)
        same = {c: (*sorted(c.kwargs.items()), c.pre_hook) if alike else c for c in configs}
        tried: dict[Any, Config] = {}
        for config in configs:
            tried.setdefault(same[config], config)
        race = self._searches.races.setdefault(key, Race(self.__name__))

        def trials() -> tuple[Trial, ...]:
            found = []
            for config in configs:
                trial = race.trial(tried[same[config]])
                if config is not tried[same[config]] and trial.fate == MEASURED:
                    trial = replace(trial, reason="once for all num_warps and num_stages, which a CPU has not")
                found.append(replace(trial, config=config))
            return tuple(found)

        try:
            with unobserved(), stopwatch(race):
                self._race(race, list(tried.values()), args, kwargs)
        except KeyboardInterrupt:
            self._tell(Tuning(self.__name__, named, trials(), None, race.seconds))
            raise
        except BaseException:
            del self._searches.races[key]
            raise
        del self._searches.races[key]
        finished = [trial for trial in trials() if trial.fate == MEASURED]
        if not finished:
            assert race.failure is not None
            self._tell(Tuning(self.__name__, named, trials(), None, race.seconds))
            raise race.failure
        return trials(), min(finished, key=lambda trial: trial.median).config, race.seconds

    def _race(self, race: Race, configs: list[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles and measures all that are not known yet: together by our own clock, one by one by any other."""
        made = self._compile_ahead(configs, args, kwargs)
        for config, answer in made.items():
            if isinstance(answer, REFUSALS):
                race.refuse(config, answer)
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

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configurations worth measuring for these arguments. Raises AutotunerError when pruning leaves none."""
        return self.pruning.pruned(self.__name__, self.configs, self.nargs, kwargs)

    # ---- measuring ----

    @property
    def _measured_by_others(self) -> bool:
        """Whether somebody brings another way to measure: a `do_bench`, or a subclass's own methods."""
        theirs = type(self)._bench is not Autotuner._bench or type(self).do_bench is not Autotuner.do_bench
        return theirs or self.measuring.do_bench is not None

    @property
    def _races(self) -> bool:
        """Whether configurations take turns; graphs are replayed one after another."""
        return not self._measured_by_others and not (self.measuring.use_cuda_graph and machine.has_gpu())

    def _refuse_given(self, config: Config, kwargs: Mapping[str, Any]) -> None:
        """Raises AutotunerError for a launch that gives what is tuned."""
        if clash := sorted(kwargs.keys() & config.launched(self.arg_names).keys()):
            message = f"{', '.join(clash)} of {self.__name__} is chosen by the autotuner, and the launch gives it, too"
            raise AutotunerError(message, hint="leave it out of the launch")

    def _entrant(self, config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entrant:
        """A configuration as the race runs it. Raises AutotunerError for a launch that gives what is tuned."""
        self._refuse_given(config, kwargs)
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
        """(median, 20 %, 80 %) of milliseconds in this configuration, by `do_bench`; infinities when it cannot run."""
        try:
            return self.do_bench(self._entrant(config, args, meta), quantiles=QUANTILES)
        except REFUSALS as error:
            self._searches.refused = error
            return [math.inf] * 3

    def do_bench(self, call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        """Times a call by itself, by the function given to the autotuner or by blocknb.testing's."""
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
) -> Callable[[Kernel | Wrapper], Autotuner]:
    """Decorates a kernel (or heuristics around one): launches choose the fastest of `configs`, measured anew when an argument named in
    `key` has a new value or an array a new dtype.

        @autotune([Config({"BLOCK": 128}), Config({"BLOCK": 1024}, num_warps=8)], key=["n"])

    `prune_configs_by` may hold "early_config_prune" (a function (configs, arguments, **keywords) -> configs), and "perf_model" (a function
    of all arguments by name -> estimated time) with "top_k" (how many to measure, or a share). `reset_to_zero` and `restore_value` name
    arrays that the kernel updates. `pre_hook(arguments, reset_only)` and `post_hook(arguments, exception)` stand in place of those
    two. `warmup` and `rep` are milliseconds a configuration (25, 100) at most. Configurations take turns, with cold caches, and those that
    cannot win any more are stopped early: what was slower than the best by a quarter in each of four rounds, or by a tenth in ten; when
    the time is over before that, the four fastest go on for as long again at most (figures in `blocknb.tune.race`). `use_cuda_graph`
    measures replays of a graph (on a GPU) and `do_bench(call, quantiles)` in its own way, one configuration after another.

    `cache_results` says whether what was chosen is kept on disk, for the same kernel, configurations, key, device and versions. True keeps
    it, as in Triton. Left out, it is kept unless there is a `do_bench`, which may measure anything; False, or BLOCKNB_CACHE_AUTOTUNING=0
    (or TRITON_CACHE_AUTOTUNING) in the environment where nothing is said here, measures anew in each process, and =1 keeps all.
    Configurations with hooks are never kept. BLOCKNB_PRINT_AUTOTUNING=1 (or TRITON_PRINT_AUTOTUNING) prints `tuning` after each choice.
    """

    def decorate(fn: Kernel | Wrapper) -> Autotuner:
        if not hasattr(fn, "arg_names"):
            raise AutotunerError(
                f"@autotune stands above a kernel, not a {type(fn).__name__}", hint="put @blocknb.kernel below it"
            )
        return Autotuner(
            fn, fn.arg_names, configs, key, reset_to_zero, restore_value, pre_hook, post_hook, prune_configs_by, warmup, rep,
            use_cuda_graph, do_bench, cache_results,
        )  # fmt: skip

    return decorate
