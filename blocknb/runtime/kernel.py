"""The decorator `@kernel`: `kernel[grid](*args, BLOCK=..., num_warps=...)` specializes, compiles and launches a function.

A launch describes its arguments (`arguments.describe`) and looks up the launch plan by the way of calling (see `binding`) and the
interned Kinds. The lookup compares identities, never names; all other work happens once per plan. A plan that is used again gets a
generated function (see `fast_launch`), which `kernel[grid]` calls first. After each launch, the functions in `observers` receive a
`Launch` with times and a summary of the arguments. An error of a launch names the parameter and the line that launched.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType, MethodType
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.errors import LaunchError
from blocknb.frontend.source import Source
from blocknb.language.declarations import running
from blocknb.runtime import arguments, launch_context
from blocknb.runtime import compile as compiler
from blocknb.runtime.arguments import DESCRIBE
from blocknb.runtime.binding import (
    OPTIONS,
    Binding,
    bind,
    caller,
    check_options,
    ignored_options,
    interpret_options,
    normal_grid,
    place,
    similar,
    switched_off,
    unspecialized_names,
    without_left_out,
)
from blocknb.runtime.divisor_specialization import refined
from blocknb.runtime.kinds import HOST, Kind, constant_kind, flat, unspecialized_kind
from blocknb.runtime.launch_context import Grid, environment_switch, slow_path_threads, this_thread
from blocknb.runtime.measured import MeasuredKernel, from_torch
from blocknb.runtime.misaligned import copies_misaligned
from blocknb.runtime.pickling import Picklable
from blocknb.runtime.plan import LaunchPlan, check_writable, common_device, library, mocked, prepared, target_of, typed
from blocknb.runtime.request import Request
from blocknb.runtime.triton_attributes import TritonAttributes
from blocknb.target import CLUSTER, Target

if TYPE_CHECKING:
    from blocknb.runtime.compile import Compiled
    from blocknb.runtime.edited_kernel import EditedKernel
    from blocknb.runtime.launch_snapshot import LaunchSnapshot
    from blocknb.trace import Trace

_MAX_ATTEMPTS = 8  # fast launches that a call tries before the general path
_numbers = itertools.count()
#: The kernels by their numbers. torch.compile keeps numbers as constants of a graph.
by_number: weakref.WeakValueDictionary[int, Kernel] = weakref.WeakValueDictionary()
#: (whether torch.compile traces the caller, the launch as a node of its graph), which `blocknb.torch` sets.
in_graph: tuple[Callable[[], bool], Callable[..., Any]] | None = None
_NOT_RECOGNISED = object()  # replaces a FastLaunch where no short test recognises the arguments
_MAX_PLANS = 4096
_DECORATOR = frozenset(OPTIONS) | {"do_not_specialize", "do_not_specialize_on_alignment", "noinline", "repr"}
_DECORATOR |= {"launch_metadata", "version", "interpret"}


@dataclass(frozen=True)
class Launch:
    """One observed launch.

    `arguments`: summaries by parameter name (dtype, shape, bytes; never an array). `milliseconds`: the kernel's time, by events on a GPU
    and by the clock on the CPU. `device`: the GPU's number, or -1 for the CPU. `snapshot`: the data for a repetition, with weak references
    to arrays, or None when the launch cannot be repeated."""

    kernel: Kernel
    compiled: Compiled
    grid: Grid
    arguments: Mapping[str, dict[str, Any]]
    milliseconds: float
    device: int
    snapshot: LaunchSnapshot | None = None

    def __repr__(self) -> str:
        device = "CPU" if self.device < 0 else f"GPU {self.device}"
        return f"<Launch of {self.kernel.__name__}: grid {self.grid}, {self.milliseconds:.4g} ms, {device}>"

    @property
    def trace(self) -> Trace:
        return self.compiled.trace

    def retarget(self, target: str, without: Iterable[str] = ()) -> Trace:
        """Compiles the same kernel, types and constants for another target and returns the trace. Launches nothing."""
        return self.compiled.retarget(target, without).trace


class Kernel(MeasuredKernel, Picklable, TritonAttributes):
    """A block program. `kernel[grid](*args, **constants_and_options)` launches it; `trace` compiles it without a launch.

    `source` is the front end's view of the function, `latest` the last Compiled that was launched or traced, `last_launch` the
    last observed Launch.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any], **options: Any):
        function = getattr(function, "__func__", function)  # the function of a staticmethod
        if not isinstance(function, FunctionType):
            raise LaunchError(f"@kernel decorates a function, not a {type(function).__name__}")
        if unknown := sorted(set(options) - _DECORATOR):
            hint = similar(unknown, sorted(_DECORATOR)) or "its options: " + ", ".join(sorted(_DECORATOR))
            raise LaunchError(f"@kernel has no option {', '.join(unknown)}", caller(), hint)
        functools.update_wrapper(self, function)
        self.source = self._owned(Source(function))
        self.options = {**OPTIONS, **{k: v for k, v in options.items() if k in OPTIONS}}
        self.interpreted: bool | None = options.get(
            "interpret", environment_switch("BLOCKNB_INTERPRET", "TRITON_INTERPRET") or None
        )
        self.latest: Compiled | None = None
        self.last_launch: Launch | None = None
        self._do_not_specialize = options.get("do_not_specialize")
        self.rename: Callable[[Any], Any] | None = options.get("repr")
        self._bindings: dict[Any, Binding] = {}
        self._bound: Any = None  # the parameters of the current bindings
        #: The function that launches: a fast launch, which passes calls that it does not recognise to `_general`.
        self._launch: Callable[..., Compiled] = self._general_launch
        self.number = next(_numbers)
        by_number[self.number] = self
        self._lock = threading.RLock()
        forks.renewed(self, _lock=threading.RLock)

    def __repr__(self) -> str:
        return f"<kernel {self.__name__} ({', '.join(p.name for p in self.source.parameters)})>"

    def __getitem__(self, grid: Any) -> Callable[..., Compiled]:
        """`kernel[grid]`: an int, up to three ints, or a function of the bound arguments."""
        if in_graph is not None and in_graph[0]():
            return functools.partial(in_graph[1], self, grid)
        return MethodType(self._launch, (None,) if grid is None else grid)  # the cheapest way to bind one argument

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if (run := running.get()) is not None:
            return run(self, args, kwargs)
        hint = f"write {self.__name__}[grid](...), where grid is the number of programs; only kernels call a kernel without a grid"
        raise LaunchError(f"the kernel {self.__name__} was called without a grid", place(self.source), hint)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Compiled:
        """`kernel[grid](*args, **kwargs)` in the form that wrappers call; with `warmup` it compiles and launches nothing."""
        return self.warmup(*args, **kwargs) if warmup else self._launch(grid, *args, **kwargs)

    def launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> Compiled:
        """Launches the kernel on a grid and returns what was compiled for it (interpreted: the Run). Raises KernelError."""
        return self._launch(grid, *args, **kwargs)

    def trace(self, *args: Any, target: str = "sm_90a", without: Iterable[str] = (), **kwargs: Any) -> Trace:
        """Compiles for these arguments and a target ("sm_90a", "cpu", ...) and returns the Trace. Launches nothing and needs no GPU.

        An argument is an array or number as in a launch, or a text that names a type. Examples are "*fp32" (an array), "*fp16:16" (an array
        whose address is a multiple of 16), "i32", "i32:16" and "fp32". `without` names optional passes to leave out. Raises KernelError.
        """
        return self.compile(*args, target=target, without=without, **kwargs).trace

    def compile(
        self, *args: Any, target: str | Target = "sm_90a", without: Iterable[str] = (), **kwargs: Any
    ) -> Compiled:
        """Compiles as `trace` does, but returns the Compiled, which holds the machine code."""
        binding, values = self.bound_call(args, kwargs)
        kinds, _ = self.describe(binding, tuple(map(typed, values, binding.fixed)))
        self.latest = self._compile(binding, kinds, Target.parse(target), without)
        return self.latest

    def request(self, *args: Any, target: str | Target, **kwargs: Any) -> Request:
        """The Request that `compile` would compile, for `parallel_compile.compile_all`. Compiles nothing. Raises KernelError."""
        binding, values = self.bound_call(args, kwargs)
        kinds, _ = self.describe(binding, tuple(map(typed, values, binding.fixed)))
        parsed = Target.parse(target)
        return Request(self.source, *self._compile_arguments(binding, kinds, parsed, ()), parsed)

    def resume(self, request: Request, stage: str, text: str) -> EditedKernel:
        """Compiles a request on from another text of the IR after a stage. `Stage.edit` calls it."""
        with forks.guard:
            from blocknb.runtime import edited_kernel

        return edited_kernel.resume(self, request, stage, text)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Compiled:
        """Compiles and loads the kernel for these arguments without a launch. A dtype of torch or NumPy, or a type text ("*fp32"), stands
        for an array on the default device: the current GPU, else the CPU."""
        binding, values = self.bound_call(args, kwargs)
        values = tuple(map(mocked, values, binding.fixed))
        kinds, _ = self.describe(binding, values)
        if this_thread.gathered is not None:
            target = target_of(common_device(self.source, binding.names, kinds, values))
            arguments = self._compile_arguments(binding, kinds, target, None)
            this_thread.gathered.append(Request(self.source, *arguments, target))
            return None  # type: ignore[return-value]
        return self._plan(binding, kinds, values).compiled

    def interprets(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether the interpreter runs a launch with these keywords. The keyword `interpret=` (True, False, or a dict of options of the
        method) decides first, then the decorator, then the cell."""
        wanted = kwargs.get("interpret")
        if wanted is None:
            wanted = self.interpreted
        return this_thread.interprets if wanted is None else wanted is not False

    # ---- launching -------------------------------------------------------------------------------------------------------

    def _general_launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> Compiled:
        """Launches by the general path, in the form of `launch`."""
        return self._general(grid, args, kwargs)

    @copies_misaligned
    def _general(
        self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tried: Binding | None = None
    ) -> Compiled:
        """Launches from arguments, some of which may be LEFT_OUT. The attempts of the Binding `tried` have rejected the call."""
        if this_thread.skips:
            return None  # type: ignore[return-value]
        args, kwargs = without_left_out(args, kwargs)
        if self.interpreted or this_thread.interprets or "interpret" in kwargs:
            wanted, how = self.interprets(kwargs), interpret_options(kwargs.pop("interpret", None))
            if wanted:
                return self.interpret(grid, **how)(*args, **kwargs)  # type: ignore[return-value]
        kwargs = self._with_enforced(kwargs)
        if self.source.parameters is not self._bound:  # the defaults of the function have changed
            self._unbind()
        binding = self._bindings.get((len(args), *kwargs)) or self._bind(len(args), kwargs)
        values = (*args, *kwargs.values(), *binding.defaults)
        if binding is not tried and not (launch_context.observers or slow_path_threads):
            for attempt in binding.attempts:
                if (found := attempt(grid, *args, *kwargs.values())) is not None:
                    return found
        kinds, raws = self.describe(binding, values)
        sizes = self._sizes(grid, binding, values)
        plan = binding.plans.get(kinds)
        if plan is None or plan.compiled.stale():
            plan = self._plan(binding, kinds, values)
        if not (checked := plan.compiled.options["checked"] is True):
            self._prepare_fast_launch(binding, plan, values)
        self.latest, this_thread.device = plan.compiled, plan.device
        if this_thread.inspect is not None:
            this_thread.inspect(plan.compiled, binding.names, kinds, raws, values)
        if checked and not this_thread.unobserved:
            with forks.guard:
                from blocknb.runtime.footprint_warnings import examine

            examine(self, binding, kinds, raws, values, sizes)
        if 0 not in sizes:
            self._start(plan, binding, sizes, raws, values, grid)
        return plan.compiled

    def _with_enforced(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Adds the options of the cell to the keywords of a launch, which override them."""
        if not launch_context.enforced:
            return kwargs
        return {n: x for n, x in launch_context.enforced.items() if n not in self.arg_names} | kwargs

    def _sizes(self, grid: Any, binding: Binding, values: tuple[Any, ...]) -> Grid:
        """The three sizes of a grid."""
        if type(grid) is tuple and len(grid) == 1 and type(grid[0]) is int and grid[0] >= 0:
            return grid[0], 1, 1
        return normal_grid(self.source, grid, binding.bound(values) if callable(grid) else {})

    def _start(
        self, plan: LaunchPlan, binding: Binding, sizes: Grid, raws: Sequence[Any], values: tuple[Any, ...], grid: Any
    ) -> None:
        """Starts a plan and calls the observers. `grid` is the one of the launch, and `sizes` are its three sizes."""
        try:
            if launch_context.observers and not this_thread.unobserved:
                self._observed(plan, binding, sizes, raws, values, grid)
            else:
                plan.start(sizes, raws, values)
        except LaunchError as error:  # the device knows no source locations
            error.loc = error.loc or place(self.source)
            raise

    # ---- new forms of call, new kinds and new devices -------------------------------------------------------

    def _owned(self, source: Source) -> Source:
        source.kernel = self
        return source

    def _unbind(self) -> None:
        """Drops bindings that belong to another source or to other defaults."""
        self._bindings.clear()
        self._launch = self._general_launch
        self._bound = self.source.parameters

    def bound_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Binding, tuple[Any, ...]]:
        binding = self._bindings.get((len(args), *kwargs)) or self._bind(len(args), kwargs)
        return binding, (*args, *kwargs.values(), *binding.defaults)

    def _bind(self, positional: int, kwargs: dict[str, Any]) -> Binding:
        unspecialized = unspecialized_names(self.source.parameters, self._do_not_specialize)
        binding = bind(self.source, unspecialized, positional, tuple(kwargs))
        return self._bindings.setdefault((positional, *kwargs), binding)

    def describe(self, binding: Binding, values: tuple[Any, ...]) -> tuple[tuple[Kind, ...], list[Any]]:
        kinds: list[Kind] = []
        raws: list[Any] = []
        try:
            for value, fixed in zip(values, binding.fixed, strict=True):
                if fixed:
                    kinds.append(constant_kind(value))
                    raws.append(None)
                else:
                    kind, raw = (DESCRIBE.get(type(value)) or arguments.describer(value))(value)
                    kinds.append(kind)
                    raws.append(raw)
        except LaunchError as error:
            name = binding.names[len(kinds)]
            message = f"the argument `{name}` of the kernel {self.__name__}: {error.message}"
            raise type(error)(message, place(self.source, name), error.hint) from None
        return refined(kinds, raws, binding.moduli) if binding.moduli else tuple(kinds), raws

    def _plan(self, binding: Binding, kinds: tuple[Kind, ...], values: tuple[Any, ...]) -> LaunchPlan:
        with self._lock:
            if (plan := binding.plans.get(kinds)) and not plan.compiled.stale():
                return plan
            device = common_device(self.source, binding.names, kinds, values)
            compiled = self._compile(binding, kinds, target_of(device), None, list(launch_context.companions))
            check_writable(self.source, binding.names, kinds, compiled.stored)
            plan = prepared(compiled, binding, kinds, device)
            if len(binding.plans) >= _MAX_PLANS:  # bounds the memory when constants change with every launch
                binding.plans.clear()
                binding.fast_launches.clear()
            if (stale := binding.plans.get(kinds)) is not None:
                binding.fast_launches = {
                    key: found for key, found in binding.fast_launches.items() if key[0] is not stale
                }
                binding.attempts, self._launch = (), self._general_launch
            binding.plans[kinds] = plan
            return plan

    def _prepare_fast_launch(self, binding: Binding, plan: LaunchPlan, values: tuple[Any, ...]) -> None:
        """Generates the fast launch of a plan at its second launch."""
        key = plan, *map(type, values)
        if key not in binding.fast_launches:
            binding.fast_launches[key] = None
            return
        if (found := binding.fast_launches[key]) is None:
            with forks.guard:
                from blocknb.runtime.fast_launch import fast_launch

            binding.fast_launches[key] = found = fast_launch(self, binding, plan, values) or _NOT_RECOGNISED
        if found is not _NOT_RECOGNISED:
            others = [attempt for attempt in binding.attempts if attempt is not found.attempt]
            binding.attempts = (found.attempt, *others)[:_MAX_ATTEMPTS]
            if self.source is binding.source:
                self._launch = found.launch

    def _compile(
        self,
        binding: Binding,
        kinds: tuple[Kind, ...],
        target: Target,
        without: Iterable[str] | None,
        companions: Sequence[Callable[..., Callable[[], None] | None]] = (),
    ) -> Compiled:
        by_parameter, options = self._compile_arguments(binding, kinds, target, without)
        begun = [begin(self.source, by_parameter, options, target) for begin in companions]
        try:
            compiled = compiler.compile(self.source, by_parameter, options, target)
        finally:
            for wait in filter(None, begun):
                wait()
        compiled.kernel = self
        if ignored := ignored_options(binding):
            compiled.trace.stages.note(ignored)
        return compiled

    def _compile_arguments(
        self, binding: Binding, kinds: tuple[Kind, ...], target: Target, without: Iterable[str] | None
    ) -> tuple[dict[str, Kind], dict[str, Any]]:
        """Returns the Kinds by parameter and the options of a compilation."""
        given, options = {}, dict(self.options)
        for name, kind, unspecialized in zip(binding.names, kinds, binding.unspecialized, strict=True):
            if name in OPTIONS:
                options[name] = kind.constant[0]
            given[name] = unspecialized_kind(kind) if unspecialized else kind
        options["without"] = switched_off(options["without"] if without is None else without)
        check_options(self.source, options)
        if options["num_ctas"] != CLUSTER or target.arch != "sm_90a":
            options["num_ctas"] = None
        if options["debug"] is None and target.is_gpu and environment_switch("BLOCKNB_DEBUG", "TRITON_DEBUG"):
            options["debug"] = True
        return {p.name: given[p.name] for p in self.source.parameters}, options

    def _observed(
        self, plan: LaunchPlan, binding: Binding, sizes: Grid, raws: Sequence[Any], values: tuple[Any, ...], grid: Any
    ) -> None:
        with forks.guard:
            from blocknb.runtime.launch_snapshot import remember
            from blocknb.runtime.summary import summary

        milliseconds = 0.0
        snapshot = remember(grid, binding.names, values, plan.kinds)
        if this_thread.capture is None:
            for prelude in list(launch_context.preludes):
                prelude(self, plan.compiled, snapshot)
        if this_thread.capture is not None:
            pass
        elif plan.device == HOST:
            begin = time.perf_counter()
            plan.start(sizes, raws, values)
            milliseconds = (time.perf_counter() - begin) * 1e3
        else:
            from blocknb.runtime import driver

            milliseconds = driver.timed(plan.device, library(plan.kinds), lambda: plan.start(sizes, raws, values))
        summaries = {n: summary(v, k, r) for n, k, v, r in flat(binding.names, plan.kinds, values, raws)}
        launch = Launch(self, plan.compiled, sizes, MappingProxyType(summaries), milliseconds, plan.device, snapshot)
        if this_thread.capture is not None:
            return this_thread.capture(launch)
        self.last_launch = launch
        for observer in list(launch_context.observers):
            observer(launch)
        return None


def kernel(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Turns a function into a block program: `@kernel`, `@kernel(num_warps=8)` or `kernel(f)`.

    The options are defaults of the launch options:

    - `num_warps`: warps per program; the compiler chooses the number if it is None.
    - `num_stages`: stages of pipelined loops, if `range` names none (on a GPU; see `register_prefetch` and `software_pipelining`).
    - `num_ctas`: 2 lets programs 2i and 2i + 1 copy an operand of a product together, if both need the same tiles (sm_90a; see
      `passes.pipelining.multicast`). Other values have no effect.
    - `maxnreg`: the most registers per thread on a GPU, for kernels without warp specialization. Fewer let more programs share a
      multiprocessor.
    - `checked`: find accesses outside arrays (the default on the CPU), and with "race", "init" or "all" more (see docs/debugging.md).
    - `debug`: test assertions. Default: on the CPU; on a GPU in checked mode, or with BLOCKNB_DEBUG=1 or TRITON_DEBUG=1 in the environment
      of the compilation. "trap" stops a GPU as CUDA's assert does, without a report; CUDA graphs can capture such launches.
    - `fast_math`: the GPU's approximations for fp32 division, roots, logarithms, sines and cosines.
    - `without`: names of optional passes to leave out.

    `do_not_specialize` has Triton's meaning. Other options of Triton have no effect. Raises LaunchError for unknown options.
    """
    if function is None:
        return functools.partial(kernel, **options)
    if not (getattr(function, "__module__", None) or "").startswith("blocknb."):
        compiler.prepare()
    return Kernel(function, **options)


kernel.from_torch = from_torch  # type: ignore[attr-defined]
jit = kernel  # Triton's name
