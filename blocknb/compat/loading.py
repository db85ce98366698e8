"""Files and processes in which Triton means blocknb: `load` for one file, `install` for all that is imported from now on."""

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
    """Runs a Python file written for Triton and returns it as a module; its imports of Triton mean blocknb.

    The module is not entered in sys.modules. What the file imports from other files is imported as it stands there.
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
    """Makes `import triton` mean blocknb in this process. Raises ImportError where Triton itself has been imported already.

    torch.compile is told that there is no Triton for it: the code that it generates for GPUs calls Triton's internals. It goes on to
    work on the CPU, and kernels of blocknb in torch programs as everywhere.
    """
    present = sys.modules.get("triton")
    if present is not None and not isinstance(present, Facade):
        raise ImportError("triton has been imported already; call blocknb.compat.install() before anything imports it")
    for name, module in _modules().items():
        sys.modules[name] = module
    _tell_torch("1")


def uninstall() -> None:
    """Takes back `install`; modules that have imported blocknb as triton keep it."""
    for name, module in _modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    _tell_torch(None)


_FOR_TORCH = "TORCHINDUCTOR_TRITON_DISABLE_DEVICE_DETECTION"
_before: list[str | None] = []  # what the environment said before install


def _tell_torch(answer: str | None) -> None:
    """Answers torch's question whether to look for devices that Triton compiles for; with None as it was answered before `install`.
    torch reads the environment when it is loaded, and what it found once it keeps."""
    if (answer is None) == (not _before):  # nothing to take back, or said already
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
    """Every module of Triton's that there is here, by its name there."""
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
