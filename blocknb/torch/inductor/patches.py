"""Patches of Inductor while blocknb compiles a graph: answers to questions about Triton, and marks and comments in generated files.

Each replacement is an attribute of one of torch's modules. It lasts for one compilation, which torch runs under its compile lock. The
answers are those for the version of Triton that blocknb implements, so the generated code does not depend on an installed Triton.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch._inductor.codecache as codecache
import torch._inductor.codegen.common as common
import torch._inductor.config as config
import torch._inductor.utils as utils
import torch.utils._triton as questions
from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
from torch._inductor.scheduler import WhyNoFuse
from torch._inductor.virtualized import V

from blocknb.compat.host import triton_key
from blocknb.compat.names import VERSION
from blocknb.torch.inductor import autotuning, compile_ahead, fragments, fusion_graph, origins, results, sources
from blocknb.torch.inductor.graphs import run_file

_reload = codecache._reload_python_module


def _attributes(divisible: Any = None, equal_to_1: Any = None, pointer_range: Any = None) -> dict:
    return {(x,): [["tt.divisibility", 16]] for x in divisible or ()}


#: Our patches, by the name of the function that Inductor calls.
PATCHES: dict[str, Callable[..., Any]] = {
    "has_triton": lambda *_, **__: True,
    "has_triton_package": lambda: True,
    "has_triton_block_ptr": lambda: True,
    "has_triton_cpu_backend": lambda: True,
    "has_triton_stable_tma_api": lambda: True,
    "has_triton_tensor_descriptor_host_tma": lambda: False,
    "has_triton_experimental_host_tma": lambda: False,
    "has_triton_reduction_ordering": lambda: False,
    "get_triton_version": lambda *_: tuple(map(int, VERSION.split(".")[:2])),
    "triton_hash_with_backend": lambda: "BLOCKNB" + triton_key().upper(),
    "triton_version_uses_attrs_dict": lambda: True,
    "get_triton_attrs_descriptor_version": lambda: utils.TritonAttrsDescriptorVersion.V4_DICT,
    "gen_attr_descriptor_import": lambda: "",
    "AttrsDescriptorWrapper": _attributes,
    **autotuning.PATCHES,
}


class MarkedScheduling(TritonScheduling):
    """Inductor's scheduling, which also writes where each kernel comes from."""

    def define_kernel(self, src_code: str, node_schedule: Any, kernel: Any) -> str:
        """Defines a kernel and writes a comment with its origins at the top of the graph; the first kernel's has the graph, too."""
        known = len(V.graph.wrapper_code.lines)
        name = super().define_kernel(src_code, node_schedule, kernel)
        for line in V.graph.wrapper_code.lines[known:]:
            compile_ahead.begin(getattr(line, "kernel_body", ""))
        scheduler, header = V.graph.scheduler, V.graph.wrapper_code.header
        if not hasattr(V.graph, "_blocknb_described"):
            V.graph._blocknb_described = True
            header.writeline(fusion_graph.comment(V.graph, scheduler))
        group = fusion_graph.group_of(scheduler, node_schedule)
        described = {"kernel": name, "group": group, **origins.of_nodes(node_schedule)}
        header.writeline(f"{origins.COMMENT}{json.dumps(described)}")
        fragment = {"kernel": name, **fragments.of_kernel(node_schedule, kernel)}
        header.writeline(f"{fragments.COMMENT}{json.dumps(fragment)}")
        return name


def _note_why_not_fused(inherited: Any) -> Callable[..., None]:
    """Inductor's note that two nodes are not fused, which also keeps the reason with the graph."""

    def __call__(self: Any, reason: str, *args: Any) -> None:
        inherited(self, reason, *args)
        fusion_graph.note_reason(V.graph, self.name1, self.name2, reason, args)

    return __call__


def _marked_imports(inherited: Any) -> Callable[..., str]:
    def gen_common_triton_imports(cls: Any) -> str:
        return f"{sources.MARK}\n{inherited.__get__(None, cls)()}"

    return classmethod(gen_common_triton_imports)  # type: ignore[return-value]


def reload_module(key: str, path: str, *args: Any, **kwargs: Any) -> Any:
    """Loads a generated file. Files without our mark are Inductor's own affair."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if sources.MARK not in text:
        return _reload(key, path, *args, **kwargs)
    if fusion_graph.COMMENT in text:
        compile_ahead.compile_ahead(text)
    return run_file(key, path, text)


def install() -> None:
    """Makes marked files load through blocknb for the rest of the process: graphs from Inductor's cache load outside compilations."""
    codecache._reload_python_module = reload_module
    common.init_backend_registration()


def run_job(job: Callable[[], Any]) -> Any:
    """Runs a benchmark of a candidate in Inductor's process for benchmarks, with our hooks. Raises FailedCandidate."""
    install()
    results.install()
    return autotuning.losing(job)()


def _modules() -> list[Any]:
    return [questions, *(m for n, m in list(sys.modules.items()) if n.startswith("torch._inductor.") and m)]


#: Inductor's own functions, by the names of PATCHES. A later module may have a flag of the same name.
_own: dict[str, Any] = {}
for _module in _modules():
    for _name in PATCHES:
        if _name in vars(_module):
            _own.setdefault(_name, vars(_module)[_name])


def _restore() -> None:
    """Gives modules that were imported during a compilation Inductor's own functions."""
    for module in _modules():
        for name, answer in PATCHES.items():
            if vars(module).get(name) is answer:
                setattr(module, name, _own[name])


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    for module in _modules():
        for name, answer in PATCHES.items():
            # Functions that import has_triton_package when they run also import Triton, so they get the truth.
            asked = module is not questions or name != "has_triton_package"
            if asked and vars(module).get(name, answer) is not answer:
                yield module, name, answer
    inherited = TritonKernel.__dict__["gen_common_triton_imports"]
    yield TritonKernel, "gen_common_triton_imports", _marked_imports(inherited)
    yield WhyNoFuse, "__call__", _note_why_not_fused(WhyNoFuse.__call__)
    # By Inductor's registry, which knows the other devices only if it is asked before the module of the CPU is imported.
    for_cpu = type(common.get_device_op_overrides("cpu"))
    # torch 2.11 defines the function over several lines, which breaks the header of templates for the CPU.
    yield for_cpu, "import_get_raw_stream_as", lambda self, name: f"{name} = lambda _: 0"
    # torch 2.11 writes `with pass:` where it times a kernel on the CPU.
    yield for_cpu, "device_guard", lambda self, index: "torch._ops.contextlib.nullcontext()"


@contextlib.contextmanager
def applied(options: dict[str, Any]) -> Iterator[None]:
    """Compiles with the patches and these options of Inductor."""
    known = {device: common.device_codegens[device] for device in ("cpu", "cuda") if device in common.device_codegens}
    ours = {
        device: common.DeviceCodegen(
            MarkedScheduling, codegen.wrapper_codegen, codegen.cpp_wrapper_codegen, codegen.fx_wrapper_codegen
        )
        for device, codegen in known.items()
    }
    settings = {"cpu_backend": "triton", "cuda_backend": "triton", "compile_threads": 1, **options}
    tag = f"blocknb-{triton_key()[:16]}"
    with contextlib.ExitStack() as stack:
        if questions.has_triton is _own["has_triton"]:  # the outer of two contexts
            stack.callback(_restore)
        for owner, name, replacement in _replacements():
            stack.enter_context(mock.patch.object(owner, name, replacement))
        stack.enter_context(mock.patch.dict(common.device_codegens, ours))
        stack.enter_context(config.patch(settings))
        stack.enter_context(torch.compiler.config.patch(cache_key_tag=tag))
        stack.enter_context(autotuning.applied(run_job))
        yield
