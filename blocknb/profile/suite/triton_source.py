"""Our ready-made kernels through another compiler: the modules of blocknb.kernels loaded once more, their text rewritten.

`Sources("triton")` offers the same wrappers as blocknb.kernels, whose kernels are Triton's: `@blocknb.kernel` becomes `@triton.jit`, the
imports `triton` and `triton.language`, and nothing else changes. `Sources("blocknb")` are copies of our own, unchanged, so that a
search may set a module's `tile` without anybody noticing; `Sources("unspecialized")` leave the pass `warp_specialization` out. Both
compilers read a kernel's source from a file, so the copies lie in a folder that lives as long as the process. A module that imports from
others which hold kernels imports from copies of those.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import inspect
import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from blocknb import Kernel, kernels
from blocknb.profile.suite.definition import Config, SuiteBenchmark

_count = itertools.count()
#: By language: what stands in our modules, and what in the copy; `triton` has cdiv and next_power_of_2, too.
REWRITING: dict[str, tuple[tuple[str, str], ...]] = {
    "blocknb": (),
    "unspecialized": ((r"^@blocknb\.kernel$", '@blocknb.kernel(without={"warp_specialization"})'),),
    "triton": (
        (r"^import blocknb\.language as bl$", "import triton.language as bl"),
        (r"^import blocknb$", "import triton as blocknb"),
        (r"^from blocknb import TensorDescriptor$", "from triton.tools.tensor_descriptor import TensorDescriptor"),
        (r"^@blocknb\.kernel(\(.*\))?$", "@blocknb.jit"),
    ),
}


@functools.cache
def _folder() -> Path:
    path = tempfile.mkdtemp(prefix="blocknb-suite-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def rewritten(text: str, language: str) -> str:
    """A module of blocknb.kernels as a program in that language. Raises ValueError where Triton's would name what is ours alone."""
    for pattern, other in REWRITING[language]:
        text = re.sub(pattern, other, text, flags=re.MULTILINE)
    left = set(re.findall(r"\bblocknb\.(?!kernels\b|jit\b|cdiv\b|next_power_of_2\b)\w+", text))
    if left and language == "triton":
        raise ValueError(f"Triton has no {', '.join(sorted(left))}")
    return text


def source(name: str) -> str:
    """The text of blocknb.kernels.<name>."""
    return Path(inspect.getfile(importlib.import_module(f"blocknb.kernels.{name}"))).read_text()


_IMPORTED = re.compile(r"^from blocknb\.kernels\.(\w+) import", re.MULTILINE)


@functools.cache
def holds_kernels(name: str) -> bool:
    """Whether blocknb.kernels.<name> has kernels, or a module has that it imports from."""
    text = source(name)
    return "@blocknb.kernel" in text or any(map(holds_kernels, _IMPORTED.findall(text)))


def _allocated(size: int, alignment: int, stream: int | None) -> Any:
    """Memory for the tensor maps that Triton's kernels make."""
    torch = importlib.import_module("torch")
    return torch.empty(size, dtype=torch.int8, device="cuda")


def loaded(name: str, text: str) -> ModuleType:
    """A module of that text, from a file of its own."""
    path = _folder() / f"{name}_{next(_count)}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def kernel_for_triton(kernel: Kernel) -> Any:
    """One kernel of ours as Triton's, from its source. Raises ImportError without Triton."""
    importlib.import_module("triton")
    text = f"import blocknb\nimport blocknb.language as bl\n\n\n@blocknb.kernel\n{kernel.src}"
    return getattr(loaded(kernel.fn.__name__, rewritten(text, "triton")), kernel.fn.__name__)


class Sources:
    """Wrappers by name, as blocknb.kernels has them, of modules of one's own; `language` is one of REWRITING."""

    def __init__(self, language: str) -> None:
        self.language = language
        self.modules: dict[str, ModuleType] = {}
        if language == "triton":
            importlib.import_module("triton").set_allocator(
                _allocated
            )  # raises ImportError at once where it is not installed

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        home = inspect.getmodule(getattr(kernels, name))
        assert home is not None
        found = getattr(self.module(home.__name__.rpartition(".")[2]), name)
        setattr(self, name, found)
        return found

    def module(self, name: str) -> ModuleType:
        """The copy of blocknb.kernels.<name>."""
        if name not in self.modules:
            text = rewritten(source(name), self.language)
            for other in filter(holds_kernels, dict.fromkeys(_IMPORTED.findall(text))):
                text = re.sub(
                    rf"^from blocknb\.kernels\.{other} import",
                    f"from {self.module(other).__name__} import",
                    text,
                    flags=re.M,
                )
            self.modules[name] = loaded(name, text)
        return self.modules[name]

    def call(
        self,
        benchmark: SuiteBenchmark,
        arrays: dict[str, Any],
        config: Config | None = None,
        run: Callable[..., Any] | None = None,
    ) -> Callable[[], Any]:
        """A call of the benchmark's wrapper (or of `run`, as it) on the arrays, in the configuration that it chooses itself or in that
        one."""
        run = run or benchmark.ours
        if config is None:
            return functools.partial(run, self, arrays)
        if "ROWS" not in config:
            return functools.partial(run, self, arrays, **config)
        module = self.module(benchmark.module)
        chosen = module.tile

        def tile(x: Any, *_: Any) -> Config:
            return chosen(x) | config

        def call() -> Any:
            module.tile = tile  # type: ignore[attr-defined]
            try:
                return benchmark.ours(self, arrays)
            finally:
                module.tile = chosen  # type: ignore[attr-defined]

        return call

    def configurations(self, benchmark: SuiteBenchmark, shape: tuple[int, ...]) -> list[Config]:
        """What a search tries; only one row a program where the module's kernel takes no more."""
        found = list(benchmark.sweep(shape))
        if any("ROWS" in config for config in found) and not hasattr(self.module(benchmark.module), "tile"):
            return [{"num_warps": c["num_warps"]} for c in found if c["ROWS"] == 1]
        return found
