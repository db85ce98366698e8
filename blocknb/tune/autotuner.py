"""`autotune`: a kernel that is tried in several configurations when its arguments are of a new kind, and launched in the fastest.

What "a new kind" is, the `key` says: the values of the arguments it names, and the dtypes of all arrays. Configurations are compiled
together, on all cores, and measured one after another with the launch's own arguments. A trial therefore really runs the kernel, many
times: arrays that it updates in place belong into `restore_value` (saved before each run and put back after it) or `reset_to_zero` (set
to zero before each run, and once more before the launch itself); None, for an array that this launch does without, may stand in either.
Trials are kept from the observers of launches. A configuration that the target has not the resources for, or that a `static_assert`
refuses, is out of the race; if all are, the launch raises what the last one raised.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blocknb.errors import KernelError, OutOfResources, StaticAssertionFailed, Unsupported
from blocknb.runtime import many
from blocknb.runtime.arguments import HOST
from blocknb.runtime.descriptor import TensorDescriptor
from blocknb.runtime.kernel import Kernel
from blocknb.runtime.recent import unobserved
from blocknb.tune import store
from blocknb.tune.config import Config
from blocknb.tune.wrapper import Wrapper

Hook = Callable[..., Any]
QUANTILES = (0.5, 0.2, 0.8)
OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}
_OUT = (OutOfResources, StaticAssertionFailed, Unsupported)


class AutotunerError(KernelError):
    """The autotuner was given nothing that it could try."""

    title = "autotuning"


class Autotuner(Wrapper):
    """A kernel with its configurations. Read after a launch: `best_config`, `cache` (the best one by tuning key), `configs_timings` and
    `bench_time` (seconds) of the last tuning. Libraries subclass it, so names and the order of arguments are Triton's."""

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
        cache_results: bool = False,
    ):
        super().__init__(fn, arg_names)
        self.configs = list(configs) or [Config({})]
        self.keys = list(key)
        self.cache: dict[tuple[Any, ...], Config] = {}
        self.best_config: Config | None = None
        self.configs_timings: dict[Config, Any] = {}
        self.bench_time = 0.0
        self.nargs: dict[str, Any] = {}
        self.cache_results = cache_results
        self.reset_to_zero, self.restore_value = list(reset_to_zero or ()), list(restore_value or ())
        self.restore_copies: dict[str, Any] = {}
        self.user_defined_pre_hook, self.user_defined_post_hook = pre_hook is not None, post_hook is not None
        self.pre_hook: Hook = pre_hook or self._prepare
        self.post_hook: Hook = post_hook or self._restore
        prune = prune_configs_by or {}
        self.early_config_prune: Hook | None = prune.get("early_config_prune")
        self.perf_model: Hook | None = prune.get("perf_model")
        self.configs_top_k: int | float = prune.get("top_k", 1.0)
        self.num_warmups, self.num_reps, self.use_cuda_graph = warmup, rep, use_cuda_graph
        self._do_bench = do_bench
        self._failure: KernelError | None = None
        self._tuning = threading.RLock()

    # ---- launching ----

    def run(self, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        if self.kernel.interprets(kwargs):  # its time says nothing: any will do
            config = self.cache.get(self.tuning_key(args, kwargs)) or self.prune_configs(kwargs)[0]
        else:
            config = self.configs[0] if len(self.configs) == 1 else self._best(args, kwargs)
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self._named(args), **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.launched(self.arg_names))

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
            except _OUT as error:
                failure = error
        if failure is not None and not made:
            raise failure
        return made

    def _describe(self, config: Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Has a configuration's hook set the blocks of descriptors, which are part of what is compiled."""
        named = {**self._named(args), **kwargs}
        if config.pre_hook is not None and any(isinstance(v, TensorDescriptor) for v in store.elements(named.values())):
            config.pre_hook({**named, **config.all_kwargs()})

    def _compile_ahead(self, configs: Sequence[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compiles configurations at the same time. What goes wrong is said when they are tried, one by one."""
        if len(configs) < 2:
            return
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup", "interpret")}
        with many.gathered() as requests:
            for config in configs:
                with contextlib.suppress(KernelError):
                    self._describe(config, args, kwargs)
                    self.fn.warmup(*args, **{**given, **config.launched(self.arg_names)})
        many.compile_all(requests, f"{self.__name__}: compiling configurations")

    def _named(self, args: tuple[Any, ...]) -> dict[str, Any]:
        return {**self.defaults, **dict(zip(self.arg_names, args, strict=False))}

    # ---- choosing ----

    def tuning_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of the arguments that `key` names, then the dtypes of all arrays."""
        named = {**dict(zip(self.arg_names, args, strict=False)), **kwargs}
        given = {name: value for name, value in named.items() if name in self.arg_names}
        values = [given[name] for name in self.keys if name in given]
        return (*values, *(str(value.dtype) for value in store.elements(given.values()) if hasattr(value, "dtype")))

    def _best(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        key = self.tuning_key(args, kwargs)
        found = self.cache.get(key)
        if found is None:
            with self._tuning:
                found = self.cache.get(key) or self._tune(key, args, kwargs)
        return found

    def _tune(self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Config:
        configs, place = self.prune_configs(kwargs), None
        if self.cache_results and not any(c.pre_hook for c in configs):
            place = store.Place.of(self.kernel, self.arg_names, args, kwargs, configs, key)
            if place is not None and (timings := place.read()) is not None:
                self.configs_timings = timings
                self.cache[key] = min(timings, key=timings.__getitem__)
                return self.cache[key]
        begin, self._failure = time.perf_counter(), None
        with unobserved():
            timings = self._measured(configs, args, kwargs)
        self.bench_time, self.configs_timings = time.perf_counter() - begin, timings
        best = min(timings, key=timings.__getitem__)
        if self._failure is not None and _median(timings[best]) == math.inf:
            raise self._failure
        self.cache[key] = best
        self.pre_hook({**self._named(args), **kwargs, **best.all_kwargs()}, reset_only=True)
        if place is not None:
            place.write(timings)
        return best

    def _measured(self, configs: Sequence[Config], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Config, Any]:
        """The times of all; on the CPU one measurement serves configurations that differ in warps and stages only, which it has not."""
        alike = HOST in store.devices(self.arg_names, args, kwargs) and not OPTIONS & set(self.arg_names)
        same = {c: (*sorted(c.kwargs.items()), c.pre_hook) if alike else c for c in configs}
        tried: dict[Any, Config] = {}
        for config in configs:
            tried.setdefault(same[config], config)
        self._compile_ahead(list(tried.values()), args, kwargs)
        known: dict[Any, Any] = {}
        with many.shows(len(tried), f"{self.__name__}: measuring configurations") as step:
            for which, config in tried.items():
                step(f"{len(known) + 1} of {len(tried)}")
                known[which] = self._bench(*args, config=config, **kwargs)
        return {config: known[same[config]] for config in configs}

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The configurations worth measuring for these arguments. Raises AutotunerError when pruning leaves none."""
        configs = self.configs
        if self.early_config_prune is not None:
            configs = list(self.early_config_prune(self.configs, self.nargs, **kwargs))
            if not configs:
                raise AutotunerError(f"early_config_prune leaves no configuration of {self.__name__}")
        if self.perf_model is not None:
            top = self.configs_top_k
            if isinstance(top, float) and top <= 1.0:
                top = max(int(len(self.configs) * top), 1)
            elif not isinstance(top, int):
                raise TypeError(f"top_k is a share of at most 1.0 or a number of configurations, not {top!r}")
            if len(configs) > top:
                times = {c: self.perf_model(**self.nargs, **kwargs, **c.all_kwargs()) for c in configs}
                configs = sorted(times, key=times.__getitem__)[:top]
        return configs

    # ---- measuring ----

    def _bench(self, *args: Any, config: Config, **meta: Any) -> Any:
        """(median, 20 %, 80 %) of milliseconds in this configuration; infinities when it cannot run."""
        if clash := sorted(meta.keys() & config.kwargs.keys()):
            message = f"{', '.join(clash)} of {self.__name__} is chosen by the autotuner, and the launch gives it, too"
            raise AutotunerError(message, hint="leave it out of the launch")
        current = {**meta, **config.launched(self.arg_names)}
        named = {**self._named(args), **meta, **config.all_kwargs()}

        def call() -> None:
            if config.pre_hook is not None:
                config.pre_hook(named)
            self.pre_hook(named)
            try:
                self.fn.run(*args, **current)
            except Exception as error:
                self.post_hook(named, exception=error)
                raise
            self.post_hook(named, exception=None)

        try:
            return self.do_bench(call, quantiles=QUANTILES)
        except _OUT as error:
            self._failure = error
            return [math.inf] * 3

    def do_bench(self, call: Callable[[], Any], quantiles: Sequence[float]) -> Any:
        """Times a call, by the function given to the autotuner or by blocknb.testing's."""
        from blocknb import testing
        from blocknb.runtime import machine

        if self._do_bench is not None:
            return self._do_bench(call, quantiles=quantiles)
        repeat = 100 if self.num_reps is None else self.num_reps
        if self.use_cuda_graph and machine.has_gpu():
            return testing.do_bench_cudagraph(call, rep=repeat, quantiles=quantiles)
        budget = 25 if self.num_warmups is None else self.num_warmups
        return testing.do_bench(call, warmup=budget, rep=repeat, quantiles=quantiles)

    def _prepare(self, arguments: dict[str, Any], reset_only: bool = False) -> None:
        for name in self.reset_to_zero:
            if arguments[name] is not None:
                _fill_zero(_array(arguments[name]))
        if not reset_only:
            kept = (name for name in self.restore_value if arguments[name] is not None)
            self.restore_copies = {name: _copy(_array(arguments[name])) for name in kept}

    def _restore(self, arguments: dict[str, Any], exception: BaseException | None) -> None:
        for name, saved in self.restore_copies.items():
            _put_back(_array(arguments[name]), saved)
        self.restore_copies = {}


def _median(timing: Any) -> float:
    return timing[0] if isinstance(timing, (list, tuple)) else timing


def _array(value: Any) -> Any:
    return value.base if isinstance(value, TensorDescriptor) else value


def _fill_zero(array: Any) -> None:
    array.zero_() if hasattr(array, "zero_") else array.fill(0)


def _copy(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy()


def _put_back(array: Any, saved: Any) -> None:
    if hasattr(array, "copy_"):
        array.copy_(saved)
    else:
        array[...] = saved


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
    cache_results: bool = False,
) -> Callable[[Kernel | Wrapper], Autotuner]:
    """Decorates a kernel (or heuristics around one): launches choose the fastest of `configs`, measured anew when an argument named in
    `key` has a new value or an array a new dtype.

        @autotune([Config({"BLOCK": 128}), Config({"BLOCK": 1024}, num_warps=8)], key=["n"])

    `prune_configs_by` may hold "early_config_prune" (a function (configs, arguments, **keywords) -> configs), and "perf_model" (a function
    of all arguments by name -> estimated time) with "top_k" (how many to measure, or a share). `reset_to_zero` and `restore_value` name
    arrays that the kernel updates. `pre_hook(arguments, reset_only)` and `post_hook(arguments, exception)` stand in place of those
    two. `warmup` and `rep` are milliseconds a configuration (25, 100), `use_cuda_graph` measures replays of a graph (on a GPU),
    `do_bench(call, quantiles)` measures in its own way. `cache_results` keeps the times on disk.
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
