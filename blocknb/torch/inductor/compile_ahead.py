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

from blocknb.errors import KernelError
from blocknb.runtime import parallel_compile
from blocknb.runtime.request import Request
from blocknb.torch.inductor import results


def generated_kernels(text: str) -> Iterator[tuple[str, str]]:
    """(name, source) of each kernel that the file of a graph compiles."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "triton":
            name, source = (a.value if isinstance(a, ast.Constant) else None for a in node.args[:2])
            if isinstance(name, str) and isinstance(source, str):
                yield name, source


def requests_of(configurations: Iterable[tuple[Any, Any]]) -> list[Request]:
    """The requests for (autotuner, configuration). One with wrong arguments is left out: its error appears when the graph compiles it."""
    results.install()
    with parallel_compile.gathered() as requests:
        for autotuner, config in configurations:
            with contextlib.suppress(KernelError):
                results.compile_config(autotuner, config, autotuner._create_compile_meta(config))
    return requests


def compile_ahead(text: str) -> None:
    """Compiles the kernels of the file of a graph, if there are several. Errors of the compiler appear when the file runs."""
    from torch._inductor.codecache import PyCodeCache

    autotuners = [getattr(PyCodeCache.load(source), name) for name, source in generated_kernels(text)]
    missing = [(a, config) for a in autotuners if not a.compile_results for config in a.configs or ()]
    if len(missing) > 1:
        parallel_compile.compile_all(requests_of(missing), "compiling the kernels of a graph")
