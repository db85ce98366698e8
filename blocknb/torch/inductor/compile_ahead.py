"""Compiles the kernels of a graph on all workers, before the generated file of the graph runs.

The file of a graph compiles its kernels one by one: `name = async_compile.triton("name", source)`. Here all their configurations are
compiled first, so that this process generates the LLVM text of one while workers produce machine code of others. The file then finds them
in the cache. Inductor does the same with a pool of processes, whose workers would have to import torch and blocknb first.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from blocknb.compat import host
from blocknb.errors import KernelError
from blocknb.runtime import parallel_compile
from blocknb.runtime.launch_context import environment_switch
from blocknb.runtime.request import Request
from blocknb.torch.inductor import results


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
    try:
        missing = _missing(text)
        requests = requests_of(missing) if len(missing) > 1 else []
    except Exception as error:
        if environment_switch("BLOCKNB_STRICT") and not isinstance(error, KernelError):
            raise
        return
    if requests:
        parallel_compile.compile_all(requests, "compiling the kernels of a graph")


def _missing(text: str) -> list[tuple[Any, Any]]:
    """(autotuner, configuration) of the kernels of a file that are not compiled."""
    from torch._inductor.codecache import PyCodeCache

    autotuners = [getattr(PyCodeCache.load(source), name) for name, source in generated_kernels(text)]
    return [(a, config) for a in autotuners if not a.compile_results for config in a.configs or ()]
