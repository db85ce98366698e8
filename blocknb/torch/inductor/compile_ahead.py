"""Compiles the kernels of a graph on all workers, before the generated file of the graph runs.

The file of a graph compiles its kernels one by one: `name = async_compile.triton("name", source)`. Here all their configurations are
compiled first, and the file then finds them in the cache. The processes of `compile_pool` compile whole kernels. Without a pool, this
process generates the LLVM text of one kernel while workers produce machine code of others.
"""

from __future__ import annotations

import ast
import collections
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from blocknb.compat import host
from blocknb.errors import KernelError
from blocknb.runtime import compile as compiler
from blocknb.runtime import parallel_compile
from blocknb.runtime.compile import Compiled
from blocknb.runtime.launch_context import environment_switch
from blocknb.runtime.request import Request
from blocknb.torch.inductor import compile_pool, results


def generated_kernels(text: str) -> Iterator[tuple[str, str]]:
    """(name, source) of each kernel that the file of a graph compiles. A call with other arguments is left out."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "triton":
            match node.args:
                case [ast.Constant(str(name)), ast.Constant(str(source)), *_]:
                    yield name, source


def requests_of(configurations: Iterable[tuple[Any, Any]]) -> list[Request]:
    """The requests for (autotuner, configuration). One with wrong arguments is left out: its error appears when the graph compiles it."""
    results.install()
    requests = []
    for autotuner, config in configurations:
        with contextlib.suppress(KernelError):
            given = results.compiler_input(autotuner, config, autotuner._create_compile_meta(config))
            requests.append(host.request(*given))
    return requests


def compile_ahead(text: str) -> None:
    """Compiles the kernels of the file of a graph, if there are several. Errors of the compiler appear when the file runs.

    So do errors of loading a kernel, with the origins of the kernel. BLOCKNB_STRICT=1 raises those that are no KernelError here."""
    from torch._inductor.codecache import PyCodeCache

    try:
        compile_modules((PyCodeCache.load(source), name) for name, source in generated_kernels(text))
    except Exception as error:
        if environment_switch("BLOCKNB_STRICT") and not isinstance(error, KernelError):
            raise


def compile_modules(modules: Iterable[tuple[Any, str]]) -> list[Compiled | KernelError]:
    """Compiles the kernels of (loaded file, name of its kernel) that have no results, if they have several configurations.

    The pool compiles those that no cache holds, as soon as their file is loaded, and this process the rest. Returns the Compiled of each
    configuration, or its error."""
    requests: list[Request] = []
    jobs = _jobs(modules, requests)
    if (pool := compile_pool.running()) is not None:
        pool.compile(jobs)
    else:
        collections.deque(jobs, 0)
    return parallel_compile.compile_all(requests, compile_pool.LABEL) if len(requests) > 1 else []


def _jobs(modules: Iterable[tuple[Any, str]], requests: list[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
    """(request, job of the pool) of the configurations that no cache holds. All requests are appended to `requests`."""
    for module, name in modules:
        autotuner = getattr(module, name)
        for index, config in enumerate(() if autotuner.compile_results else autotuner.configs or ()):
            for request in requests_of([(autotuner, config)]):
                requests.append(request)
                if not request.unknown and compiler.find(request) is None:
                    yield request, {"key": module.key, "path": module.__file__, "name": name, "index": index}


def begin(definition: str) -> None:
    """Gives the pool the kernels of a definition, `name = async_compile.triton(...)`, while Inductor generates the rest of the graph.

    An error appears when the file of the graph runs."""
    from torch._inductor.codecache import PyCodeCache

    if (pool := compile_pool.running()) is not None:
        with contextlib.suppress(Exception):
            for request, job in _jobs(((PyCodeCache.load(t), name) for name, t in generated_kernels(definition)), []):
                pool.begin(request, job)
