"""blocknb: an interactive environment for writing GPU kernels as block programs, on CPU and GPU.

    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def add(x, y, out, n, BLOCK: tl.constexpr):
        ...

    add[blocknb.cdiv(n, 1024),](x, y, out, n, BLOCK=1024)

The import loads NumPy and little else. Each name below is loaded when it is first used. In IPython, the import also registers the
`%%blockkernel` magic, as `%load_ext blocknb` does.
"""

from __future__ import annotations

import importlib
import operator
import sys
from typing import TYPE_CHECKING, Any

from blocknb.runtime import notebook_methods

if TYPE_CHECKING:
    from blocknb import compat as compat
    from blocknb import errors as errors
    from blocknb import language as language
    from blocknb import testing as testing
    from blocknb.arrays.mapping import map_blocks as map_blocks
    from blocknb.arrays.mapping import map_overlap as map_overlap
    from blocknb.arrays.reducing import contraction as contraction
    from blocknb.arrays.reducing import reduction as reduction
    from blocknb.compat.loading import load as load

    # isort: off
    from blocknb.errors import (
        AccessError as AccessError,
        CompilationError as CompilationError,
        CompilerBug as CompilerBug,
        DeviceAssertionFailed as DeviceAssertionFailed,
        KernelError as KernelError,
        LaunchError as LaunchError,
        OutOfResources as OutOfResources,
        RaceError as RaceError,
        SyntaxUnsupported as SyntaxUnsupported,
        TypeMismatch as TypeMismatch,
        UninitializedError as UninitializedError,
        Unsupported as Unsupported,
    )

    # isort: on
    from blocknb.language.constants import constexpr as constexpr
    from blocknb.notebook.export import export_html as export_html
    from blocknb.notebook.roofline import roofline as roofline
    from blocknb.notebook.side_by_side import compare as compare
    from blocknb.runtime.descriptor import TensorDescriptor as TensorDescriptor
    from blocknb.runtime.interrupts import stop_launches as stop_launches
    from blocknb.runtime.kernel import Kernel as Kernel
    from blocknb.runtime.kernel import jit as jit
    from blocknb.runtime.kernel import kernel as kernel
    from blocknb.target import Target as Target
    from blocknb.torch.ops import torch_op as torch_op
    from blocknb.trace import Trace as Trace
    from blocknb.tune import Config as Config
    from blocknb.tune import autotune as autotune
    from blocknb.tune import heuristics as heuristics

_ERRORS = (
    "AccessError",
    "CompilationError",
    "CompilerBug",
    "DeviceAssertionFailed",
    "KernelError",
    "LaunchError",
    "OutOfResources",
    "RaceError",
    "SyntaxUnsupported",
    "TypeMismatch",
    "UninitializedError",
    "Unsupported",
)
#: Maps a name to its module and its name there ("" is the module itself).
_ORIGINS = {
    "kernel": ("runtime.kernel", "kernel"),
    "jit": ("runtime.kernel", "jit"),
    "Kernel": ("runtime.kernel", "Kernel"),
    "TensorDescriptor": ("runtime.descriptor", "TensorDescriptor"),
    "constexpr": ("language.constants", "constexpr"),
    "language": ("language", ""),
    "errors": ("errors", ""),
    "Target": ("target", "Target"),
    "Trace": ("trace", "Trace"),
    "autotune": ("tune", "autotune"),
    "heuristics": ("tune", "heuristics"),
    "Config": ("tune", "Config"),
    "testing": ("testing", ""),
    "kernels": ("kernels", ""),
    "compat": ("compat", ""),
    "load": ("compat", "load"),
    "reinterpret": ("runtime.interface", "reinterpret"),
    "roofline": ("notebook.roofline", "roofline"),
    "export_html": ("notebook.export", "export_html"),
    "compare": ("notebook.side_by_side", "compare"),
    "torch_op": ("torch.ops", "torch_op"),
    "map_blocks": ("arrays.mapping", "map_blocks"),
    "map_overlap": ("arrays.mapping", "map_overlap"),
    "reduction": ("arrays.reducing", "reduction"),
    "contraction": ("arrays.reducing", "contraction"),
    "stop_launches": ("runtime.interrupts", "stop_launches"),
    **{name: ("errors", name) for name in _ERRORS},
}
__all__ = sorted([*_ORIGINS, "__version__", "cdiv", "load_ipython_extension", "next_power_of_2"])


def cdiv(x: int, y: int) -> int:
    """x / y rounded up: the number of blocks of y elements that cover x elements."""
    return -(-x // y)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; 1 for n below 1."""
    return 1 << max(operator.index(n) - 1, 0).bit_length()  # also of a symbolic size of torch.compile


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        found: Any = version("blocknb")
    elif name in _ORIGINS:
        module, attribute = _ORIGINS[name]
        found = importlib.import_module(f"blocknb.{module}")
        found = getattr(found, attribute) if attribute else found
    else:
        import difflib

        close = difflib.get_close_matches(name, _ORIGINS, 1)
        hint = f"; did you mean blocknb.{close[0]}?" if close and not name.startswith("_") else ""
        raise AttributeError(f"module 'blocknb' has no attribute {name!r}{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics: `%load_ext blocknb`."""
    from blocknb.notebook import course
    from blocknb.notebook.register import register

    course.provide(lambda: importlib.import_module("blocknb.learn.lessons"))
    register(shell)


def _method(name: str) -> Any:
    """The implementation of a kernel's method, or of a table. Importing the modules here keeps `import blocknb` fast."""
    return getattr(importlib.import_module(f"blocknb.{_PROVIDERS.get(name, 'notebook.measure')}"), name)


_PROVIDERS = {
    "export_html": "notebook.export",
    "tune_kernel": "tune.plain",
    "torch_kernels_html": "notebook.torch_table",
    "torch_kernels_bundle": "notebook.torch_page",
    "save_torch_kernels": "notebook.torch_table",
    "recorded": "torch",
    "cell_of": "torch.inductor.edited",
    "replace_kernel": "torch.inductor.edited",
    "restore": "torch.inductor.edited",
    "from_torch": "torch.inductor.from_torch",
    "drift_of": "torch.inductor.drift",
    "open_cell": "notebook.new_cell",
}


notebook_methods.provide(_method)


def _inside_ipython() -> Any:
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None


if (_shell := _inside_ipython()) is not None:
    load_ipython_extension(_shell)
