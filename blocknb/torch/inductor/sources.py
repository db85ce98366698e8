"""Loads Inductor's generated files, and private copies of some of its modules, so that they import blocknb instead of Triton.

The private copies are the modules of Inductor whose contents depend on Triton, such as `triton_heuristics`. They are in sys.modules under
names of ours. Inductor's own modules keep their Triton, or their lack of one.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from typing import Any

from blocknb.compat import rewrite
from blocknb.compat.rewrite import ImportTransformer

#: Stands in each generated file that blocknb compiles.
MARK = "# blocknb compiles the kernels of this file"
INDUCTOR = "torch._inductor"
OURS = "blocknb.torch.inductor.private"
#: The modules with private copies, below torch._inductor. Not every version of torch has all of them.
PRIVATE = frozenset(
    (
        "runtime.triton_compat",
        "runtime.triton_helpers",
        "runtime.triton_heuristics",
        "heuristics.registry",
        "heuristics.triton_codegen",
        "heuristics.triton_codegen.pointwise",
        "heuristics.triton_codegen.reduction",
    )
)


def _place(module: str) -> str:
    """The name under which generated code imports a module."""
    below = module.removeprefix(INDUCTOR + ".")
    return f"{OURS}.{below}" if below != module and below in PRIVATE else module


class _PrivateImports(ImportTransformer):
    """Makes imports of modules in PRIVATE imports of the private copies. `package` resolves relative imports."""

    def __init__(self, package: str):
        self.package = package

    def visit_Import(self, node: ast.Import) -> Any:
        for alias in node.names:
            if alias.asname:
                alias.name = _place(alias.name)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        module = node.module or ""
        if node.level:
            parents = self.package.split(".")[: self.package.count(".") + 2 - node.level]
            module = ".".join([*parents, module] if module else parents)
        made = []
        for alias in node.names:
            ours, _, name = _place(f"{module}.{alias.name}").rpartition(".")
            place = _place(module) if ours == module else ours
            renamed = ast.copy_location(ast.alias(name, alias.asname), alias)
            made.append(ast.copy_location(ast.ImportFrom(place, [renamed], 0), node))
        return made


class _Copies(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the private copies."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The specification of a private copy or of a package around one; None for other modules."""
        below = name.removeprefix(OURS).removeprefix(".")
        if not name.startswith(OURS):
            return None
        theirs = importlib.util.find_spec(f"{INDUCTOR}.{below}") if below in PRIVATE else None
        if theirs is None and below and not any(other.startswith(below + ".") for other in PRIVATE):
            return None
        is_package = theirs is None or theirs.submodule_search_locations is not None
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=theirs.origin if theirs else None, is_package=is_package
        )
        spec.has_location = theirs is not None
        return spec

    def exec_module(self, module: types.ModuleType) -> None:
        """Runs the rewritten source of Inductor's module."""
        spec = module.__spec__
        assert spec is not None
        if spec.origin is None:
            return
        with open(spec.origin, encoding="utf-8") as file:
            text = file.read()
        theirs = INDUCTOR + spec.name.removeprefix(OURS)
        package = theirs if spec.submodule_search_locations is not None else theirs.rpartition(".")[0]
        exec(compiled(text, spec.origin, package), vars(module))


def compiled(text: str, path: str, package: str = "") -> types.CodeType:
    """The code of a file of Inductor, with imports of blocknb. `package` is that of the file, for its relative imports."""
    tree = _PrivateImports(package).visit(ast.parse(text, path))
    return compile(rewrite(tree), path, "exec", dont_inherit=True)


@functools.cache
def private(name: str) -> Any:
    """The private copy of one of Inductor's modules: `private("triton_heuristics")`."""
    if not any(isinstance(finder, _Copies) for finder in sys.meta_path):
        sys.meta_path.append(_Copies())
        _replace_unreached(private("triton_helpers"), private("triton_compat"))
    return importlib.import_module(f"{OURS}.runtime.{name}")


def _replace_unreached(helpers: Any, compat: Any) -> None:
    """Replaces names that rewritten imports do not reach.

    These are helpers that use the builder of Triton's compiler, for which blocknb's compiler calls plain functions. The name of the package
    of heuristics is another one. Without Triton, so is the class of configurations that Inductor's cache restores."""
    from torch._inductor.runtime import autotune_cache, triton_heuristics

    import blocknb

    if importlib.util.find_spec(f"{INDUCTOR}.heuristics") is not None:
        registry: Any = importlib.import_module(f"{OURS}.heuristics.registry")
        registry._CODEGEN_HEURISTICS_PACKAGE = f"{OURS}.heuristics.triton_codegen"
    if autotune_cache.Config is object:
        autotune_cache.Config = compat.Config

    def constexpr_next_power_of_2(n: int) -> int:
        return blocknb.next_power_of_2(n)

    def if_mask(mask: Any, value: Any) -> Any:
        return None if mask is None else value

    def set_driver() -> None:
        """The device of a launch's tensors decides where it runs."""

    # Inductor catches its own class where it compares kernels.
    private("triton_heuristics").NoTritonConfigsError = triton_heuristics.NoTritonConfigsError
    helpers.constexpr_next_power_of_2, helpers.if_mask = constexpr_next_power_of_2, if_mask
    helpers.set_driver_to_cpu = helpers.set_driver_to_gpu = set_driver


def load(key: str, path: str, text: str) -> types.ModuleType:
    """Runs a generated file and returns its module, which is in sys.modules as Inductor's own are."""
    private("triton_heuristics")
    module = types.ModuleType(f"torch._inductor.runtime.compile_tasks.{key}")
    module.__file__ = path
    module.key = key  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    exec(compiled(text, path), vars(module))
    return module
