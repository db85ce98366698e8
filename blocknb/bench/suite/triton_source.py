"""Our ready-made kernels for another compiler: loads rewritten copies of the modules of blocknb.kernels.

`Sources("triton")` has the wrappers of blocknb.kernels with Triton kernels: the copy replaces `@blocknb.kernel` by `@triton.jit`, and the
imports by `triton` and `triton.language`. `Sources("blocknb")` are unchanged copies, in which a search may replace a module's `tile`.
`Sources("unspecialized")` disable the pass `warp_specialization`. Both compilers read the source of a kernel from a file, so the copies
are in a temporary folder until the process ends. A copy imports from the copies of other modules that hold kernels.
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
from blocknb.bench.suite.definition import Config, SuiteBenchmark

_count = itertools.count()
#: The patterns in our modules and their replacements, by language. `triton` also has cdiv and next_power_of_2.
REWRITING: dict[str, tuple[tuple[str, str], ...]] = {
    "blocknb": (),
    "unspecialized": ((r"^@blocknb\.kernel$", '@blocknb.kernel(without={"warp_specialization"})'),),
    "triton": (
        (r"^import blocknb\.language as bl$", "import triton.language as bl"),
        (r"^import blocknb$", "import triton as blocknb"),
        (r"^from blocknb import TensorDescriptor$", "from triton.tools.tensor_descriptor import TensorDescriptor"),
        (r"^@blocknb\.kernel(\(.*\))?$", "@blocknb.jit"),
        (r"(\.load\(\[[^\]]*\]), eviction_policy=\w+\)", r"\1)"),  # of a descriptor: Triton 3.6 has none there
    ),
}


@functools.cache
def _folder() -> Path:
    path = tempfile.mkdtemp(prefix="blocknb-suite-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


def rewritten(text: str, language: str) -> str:
    """The source of a module of blocknb.kernels in that language. Raises ValueError for names that Triton lacks."""
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
    """Whether blocknb.kernels.<name>, or a module that it imports from, defines kernels."""
    text = source(name)
    return "@blocknb.kernel" in text or any(map(holds_kernels, _IMPORTED.findall(text)))


def _allocated(size: int, alignment: int, stream: int | None) -> Any:
    """Memory for the tensor maps that Triton's kernels make."""
    torch = importlib.import_module("torch")
    return torch.empty(size, dtype=torch.int8, device="cuda")


def loaded(name: str, text: str) -> ModuleType:
    """Writes a source to a new file and loads it as a module."""
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
    """A blocknb kernel as a Triton kernel, from its source. Raises ImportError without Triton."""
    importlib.import_module("triton")
    text = f"import blocknb\nimport blocknb.language as bl\n\n\n@blocknb.kernel\n{kernel.src}"
    return getattr(loaded(kernel.fn.__name__, rewritten(text, "triton")), kernel.fn.__name__)


class Sources:
    """The wrappers of blocknb.kernels, from copies of its modules. `language` is a key of REWRITING."""

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
        """A call of the benchmark's wrapper, or of `run`, on the arrays. `config` None means the default of the wrapper."""
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
        """The configurations of a search; one row per program if the kernel supports no more."""
        found = list(benchmark.sweep(shape))
        if any("ROWS" in config for config in found) and not hasattr(self.module(benchmark.module), "tile"):
            return [{"num_warps": c["num_warps"]} for c in found if c["ROWS"] == 1]
        return found
