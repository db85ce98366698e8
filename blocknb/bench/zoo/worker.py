"""The process of one compiler: `python -m blocknb.bench.zoo.worker blocknb|triton`. It reads requests and writes answers as lines of JSON.

With "blocknb", `import triton` stands for blocknb in this process, so a library runs as it is. The requests:

    {"do": "list", "library": NAME}                      the names of the cases, or the reason why there are none
    {"do": "check", "case": NAME, "seed": N, "save": FILE} runs a case once, saves samples of its results, names the launched kernels
    {"do": "time", "case": NAME, "repeats": N}             the microseconds of each launched kernel, in the order of launches
    {"do": "compile", "case": NAME, "seed": N}             compiles the kernels of a case for the target of the process; nothing runs
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import blocknb
from blocknb.bench.zoo import pretend
from blocknb.bench.zoo.cases import RandomInputs, ZooCase, cases_of

FLUSH_BYTES = 256 << 20  # more than four times the L2 cache of an H200
SAMPLES = 1 << 14
TUNING = (2.0, 10.0)  # milliseconds of warm-up and of measurement for each configuration of an autotuner


class ZooWorker:
    """Answers requests. `compiler` is "blocknb" or "triton"; `configs` limits the configurations of an autotuner, 0 means all."""

    def __init__(self, compiler: str, target: str, configs: int) -> None:
        self.compiler, self.target = compiler, target
        if compiler == "blocknb":
            blocknb.compat.install()
        import torch
        import torch.utils._triton

        if (
            compiler == "blocknb"
        ):  # compat.install() denies Triton to torch.compile, but libraries ask torch for it, too
            torch.utils._triton.has_triton = torch.utils._triton.has_triton_package = lambda: True
        if target:
            pretend.gpu(torch)
            if compiler == "triton":
                from triton.runtime import driver

                driver.set_active(pretend.TritonDriver(target))
        self.torch, self.device = torch, "cpu" if target else "cuda"
        limit_configurations(configs)
        self.cases: dict[str, ZooCase] = {}
        self.ready: dict[str, PreparedCase] = {}
        self.scratch: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. An exception of a library or a compiler becomes {"error": text}."""
        try:
            return getattr(self, request.pop("do"))(**request)
        except Exception as error:  # a library may raise anything; the next case runs anyway
            traceback.print_exc(file=sys.stderr)
            return {"error": one_line(error), "kind": type(error).__name__}

    def list(self, library: str) -> dict[str, Any]:
        found = cases_of(library)
        self.cases |= {f"{library}.{case.name}": case for case in found}
        return {"cases": [f"{library}.{case.name}" for case in found]}

    def check(self, case: str, seed: int, save: str) -> dict[str, Any]:
        import numpy as np

        self.ready.clear()
        self.torch.cuda.empty_cache()
        self.ready[case] = prepared = PreparedCase(self, self.cases[case], seed)
        results = prepared.run(prepared.fresh())
        with launches(self.compiler) as names:
            results = prepared.run(prepared.fresh())
        self.torch.cuda.synchronize()
        errors = prepared.errors(results)
        np.savez(save, *[self.sample(result) for result in results])
        return {"kernels": names, "errors": errors}

    def time(self, case: str, repeats: int) -> dict[str, Any]:
        prepared = self.ready[case]
        with launches(self.compiler) as names:
            prepared.run(prepared.fresh())
        times = profiled(self.torch, names, repeats, lambda: self.cold(prepared))
        return {"kernels": names, "times": times}

    def compile(self, case: str, seed: int) -> dict[str, Any]:
        from blocknb.bench.zoo import compiling

        prepared = PreparedCase(self, self.cases[case], seed)
        collect = compiling.by_blocknb if self.compiler == "blocknb" else compiling.by_triton
        with collect(self.target) as found:
            prepared.run(prepared.fresh())
        return {"kernels": found}

    def cold(self, prepared: PreparedCase) -> None:
        """Runs a case on fresh copies of its inputs, with a cold L2 cache."""
        inputs = prepared.fresh()
        if self.scratch is None:
            self.scratch = self.torch.empty(FLUSH_BYTES // 4, dtype=self.torch.int32, device=self.device)
        self.scratch.fill_(1)
        prepared.run(inputs)

    def sample(self, result: Any) -> Any:
        """At most SAMPLES elements of a result, evenly spaced, as a NumPy array."""
        flat = result.detach().reshape(-1)
        if flat.element_size() == 1 and flat.is_floating_point():
            flat = flat.to(self.torch.float32)
        flat = flat[:: max(flat.numel() // SAMPLES, 1)]
        return (flat.double() if flat.is_floating_point() else flat).cpu().numpy()


class PreparedCase:
    """A case with its inputs, from which `fresh` makes copies, since some libraries overwrite their inputs."""

    def __init__(self, worker: ZooWorker, case: ZooCase, seed: int) -> None:
        self.torch, self.case = worker.torch, case
        self.random = RandomInputs(worker.torch, worker.device, seed)
        self.inputs = case.make(self.random)
        self.gradients: list[Any] | None = None

    def fresh(self) -> dict[str, Any]:
        """Copies of the inputs."""

        def copy(value: Any) -> Any:
            if isinstance(value, self.torch.Tensor):
                return value.detach().clone().requires_grad_(value.requires_grad)
            return type(value)(map(copy, value)) if type(value) in (list, tuple) else value

        return {name: copy(value) for name, value in self.inputs.items()}

    def run(self, inputs: dict[str, Any], call: Callable[..., Any] | None = None) -> list[Any]:
        """The results of the call, then the gradients of the inputs that require one."""
        returned = (call or self.case.call)(*inputs.values())
        results = [t for t in flat(returned) if isinstance(t, self.torch.Tensor)]
        wanted = [t for t in inputs.values() if isinstance(t, self.torch.Tensor) and t.requires_grad]
        sources = [t for t in results if t.requires_grad]
        if not wanted or not sources:
            return results
        if self.gradients is None:
            self.gradients = [self.random.normal(*t.shape, dtype=str(t.dtype).removeprefix("torch.")) for t in sources]
        given = [g.to(t.dtype).clone() for g, t in zip(self.gradients, sources, strict=True)]
        found = self.torch.autograd.grad(sources, wanted, given, allow_unused=True)
        return results + [t for t in found if t is not None]

    def errors(self, results: list[Any]) -> list[float]:
        """The relative errors of the results against the float64 reference of the case; [] without one."""
        if self.case.exact is None:
            return []
        wide = {
            name: value.detach().double().requires_grad_(value.requires_grad)
            if isinstance(value, self.torch.Tensor) and value.is_floating_point()
            else value
            for name, value in self.fresh().items()
        }
        exact = self.run(wide, self.case.exact)
        return [
            float((got.detach().double() - want).norm() / (want.norm() + 1e-300))
            for got, want in zip(results, exact, strict=True)
        ]


def flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from flat(item)
    else:
        yield value


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def limit_configurations(count: int) -> None:
    """Makes autotuners measure at most `count` of their configurations, evenly spaced, and each for TUNING milliseconds.

    0 means all, at length. Both compilers keep the same configurations."""
    if not count:
        return
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench as bench

    before = Autotuner.__init__
    signature = inspect.signature(before)

    def limited(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        configs = list(given["configs"])
        step = max(len(configs) / count, 1.0)
        given["configs"] = [configs[int((i + 0.5) * step)] for i in range(min(count, len(configs)))]
        if given.get("do_bench") is None:
            given["do_bench"] = lambda call, quantiles: bench(call, *TUNING, quantiles=quantiles)
        before(**given)

    Autotuner.__init__ = limited


@contextlib.contextmanager
def launches(compiler: str) -> Iterator[list[str]]:
    """Collects the names of the kernels that are launched inside, in order, as the profiler will name them."""
    names: list[str] = []
    if compiler == "blocknb":
        from blocknb.runtime import launch_context

        def observe(launch: Any) -> None:
            names.append(launch.compiled.code.entry)

        launch_context.observers.append(observe)
        try:
            yield names
        finally:
            launch_context.observers.remove(observe)
        return
    from triton.runtime.jit import JITFunction

    before = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = before(self, *args, **kwargs)
        if kernel is not None and not kwargs.get("warmup"):
            names.append(kernel.metadata.name)
        return kernel

    JITFunction.run = run
    try:
        yield names
    finally:
        JITFunction.run = before


def profiled(torch: Any, names: list[str], repeats: int, call: Callable[[], None]) -> list[list[float]]:
    """The microseconds of each launch in `names`, by repeat. Raises ValueError if the profiler saw other launches."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as session:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    wanted = set(names)
    events = [e for e in session.profiler.kineto_results.events() if e.name() in wanted]
    events.sort(key=lambda e: e.start_ns())
    if [e.name() for e in events] != names * repeats:
        raise ValueError(f"the profiler saw {len(events)} launches, not {repeats} times {len(names)}")
    times = [e.duration_ns() / 1e3 for e in events]
    return [times[i * len(names) : (i + 1) * len(names)] for i in range(repeats)]


def main() -> None:
    """Serves requests from stdin until it ends. Answers go to the first stdout; what libraries print goes to stderr."""
    compiler, target, configs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = ZooWorker(compiler, "" if target == "-" else target, configs)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
