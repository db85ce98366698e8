"""The text of cells that hold generated kernels: imports, and definitions with blocknb's decorators instead of Inductor's heuristics."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from blocknb.runtime.kernel import Kernel
from blocknb.torch.inductor.readable import readable, text_of

_HELPERS = ("libdevice", "tl_math", "triton_helpers")


def short_name(name: str) -> str:
    """A short name for a copy of a generated kernel: "triton_poi_fused_add_exp_0" to "add_exp"."""
    found = re.sub(r"^triton_[a-z]+_(fused_)?_*|_\d+$", "", name) or name
    while len(found) > 40 and "_" in found:
        found = found.rpartition("_")[0]
    return found.strip("_") or "kernel"


def header(body: str, more: str = "") -> list[str]:
    """The imports of a cell with kernels."""
    used = [name for name in _HELPERS if re.search(rf"\b{name}\.", body)]
    own = [f"from blocknb.torch.helpers import {', '.join(used)}"] if used else []
    plain = ["import math"] if re.search(r"(?<!\.)\bmath\.", body) else []
    return [
        *plain,
        *([more] if more else []),
        "import blocknb",
        "import blocknb.language as tl",
        "import blocknb.torch",
        *own,
    ]


def definitions(
    autotuner: Any,
    config: Any,
    name: str,
    names: Mapping[str, str] | None = None,
    note: Callable[[Any], None] | None = None,
) -> str:
    """The definition of a generated kernel under another name, after those of its helpers, with blocknb's decorators. `names` are new
    names of parameters; `note` may add comments to the tree before its names change."""
    kernel = autotuner.fn
    options = {"num_warps": config.num_warps}
    if autotuner.device_props.type != "cpu":
        options["num_stages"] = config.num_stages
    given = ", ".join(f"{option}={value}" for option, value in options.items() if value)
    made = []
    for node in ast.parse(_file_text(kernel)).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        node.decorator_list = [ast.parse("blocknb.kernel", mode="eval").body]
        if node.name == kernel.__name__:
            node.name, node.decorator_list = name, [ast.parse(f"blocknb.kernel({given})", mode="eval").body]
            _set_defaults(node, config.kwargs)
            if note is not None:
                note(node)
            node = readable(node, names)
        made.append(text_of(node))
    return "\n\n\n".join(made)


def _file_text(kernel: Kernel) -> str:
    """The text of the generated file of a kernel, with the helpers that it calls; only its own text if it is from elsewhere."""
    module = inspect.getmodule(kernel.fn)
    return inspect.getsource(module) if module is not None and "compile_tasks" in module.__name__ else kernel.src


def _set_defaults(node: ast.FunctionDef, values: Mapping[str, Any]) -> None:
    """Gives the constants at the end of the parameters the values of a configuration as defaults."""
    defaults: list[ast.expr] = []
    for argument in reversed(node.args.args):
        if argument.arg not in values:
            break
        defaults.insert(0, ast.Constant(values[argument.arg]))
    node.args.defaults = defaults
