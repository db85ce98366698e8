"""Makes files and processes use blocknb as Triton: `load` for one file, `install` for all later imports."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import sys
import types

from blocknb.compat.facade import PREFIX, Facade
from blocknb.compat.rewrite import MODULES, rewrite


def load(path: str | os.PathLike[str]) -> types.ModuleType:
    """Runs a Python file written for Triton and returns it as a module; its imports of Triton import blocknb.

    The module is not entered in sys.modules. Its imports of other files are not rewritten.
    """
    file = os.path.abspath(os.fspath(path))
    with open(file, "rb") as source:
        text = source.read()
    module = types.ModuleType(os.path.splitext(os.path.basename(file))[0])
    module.__file__ = file
    code = compile(rewrite(ast.parse(text, file)), file, "exec", dont_inherit=True)
    exec(code, vars(module))
    return module


def install() -> None:
    """Makes `import triton` import blocknb in this process. Raises ImportError if Triton itself has been imported already.

    torch.compile gets the information that Triton is not available, since the GPU code that it generates calls Triton's internals.
    torch.compile still works on the CPU, and torch programs can launch blocknb kernels as usual.
    """
    present = sys.modules.get("triton")
    if present is not None and not isinstance(present, Facade):
        raise ImportError("triton has been imported already; call blocknb.compat.install() before anything imports it")
    for name, module in _modules().items():
        sys.modules[name] = module
    _tell_torch("1")


def uninstall() -> None:
    """Undoes `install`; modules that have imported blocknb as triton keep it."""
    for name, module in _modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _tell_torch(None)


_FOR_TORCH = "TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION"
_before: list[str | None] = []  # the environment variable before install


def _tell_torch(answer: str | None) -> None:
    """Sets whether torch looks for devices that Triton compiles for; None restores the setting before `install`.

    torch reads the environment variable when it is imported, and keeps the value.
    """
    if (answer is None) == (not _before):  # nothing to restore, or set already
        return
    if answer is None:
        answer = _before.pop()
    else:
        _before.append(os.environ.get(_FOR_TORCH))
    if answer is None:
        del os.environ[_FOR_TORCH]
    else:
        os.environ[_FOR_TORCH] = answer
    config, questions = sys.modules.get("torch._inductor.config"), sys.modules.get("torch.utils._triton")
    if config is not None:
        config.triton_disable_device_detection = answer == "1"  # type: ignore[attr-defined]
    for question in vars(questions).values() if questions is not None else ():
        if hasattr(question, "cache_clear"):
            question.cache_clear()


def _modules() -> dict[str, types.ModuleType]:
    """All modules of Triton that exist here, by their names in Triton."""
    found: dict[str, types.ModuleType] = {
        name.removeprefix(PREFIX): module
        for name, module in list(sys.modules.items())
        if isinstance(module, Facade) and name.startswith(PREFIX)
    }
    language = importlib.import_module("blocknb.language")
    below = [m.name for m in pkgutil.walk_packages(language.__path__, "blocknb.language.")]
    found |= {name.replace("blocknb", "triton", 1): importlib.import_module(name) for name in below}
    for theirs, ours in MODULES.items():
        found[theirs] = importlib.import_module(ours)
    return found
