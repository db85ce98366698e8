"""The attributes of Triton's kernels that libraries read: `fn`, `arg_names`, `params`, `src` and `cache_key`."""

from __future__ import annotations

import re
import textwrap
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from blocknb.frontend.dependencies import dependencies
from blocknb.frontend.source import MISSING, Source, written
from blocknb.runtime.binding import unspecialized_names


@dataclass(frozen=True)
class KernelParam:
    """A parameter as `kernel.params` lists it."""

    num: int
    name: str
    is_constexpr: bool
    default: Any
    do_not_specialize: bool

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING


class TritonAttributes:
    """A base class of Kernel."""

    source: Source
    _do_not_specialize: Sequence[int | str] | None

    @abstractmethod
    def _owned(self, source: Source) -> Source:
        """The source as this kernel's own."""

    @abstractmethod
    def _unbind(self) -> None:
        """Forgets the bindings, because the source has changed."""

    @property
    def fn(self) -> FunctionType:
        """The decorated function."""
        return self.source.function

    @property
    def arg_names(self) -> list[str]:
        return [p.name for p in self.source.parameters]

    @property
    def params(self) -> list[KernelParam]:
        unspecialized = unspecialized_names(self.source.parameters, self._do_not_specialize)
        return [
            KernelParam(i, p.name, p.constexpr, p.default, p.name in unspecialized)
            for i, p in enumerate(self.source.parameters)
        ]

    @property
    def cache_key(self) -> str:
        """A digest of the source text and of all functions and constants that it uses."""
        return dependencies(self.source).key

    @property
    def src(self) -> str:
        """The source text from `def` on, as in Triton."""
        text = textwrap.dedent(self.source.text)
        return text[re.search(r"^def\s", text, re.MULTILINE).start() :]  # type: ignore[union-attr]

    @src.setter
    def src(self, text: str) -> None:
        """Replaces the source text, for libraries that generate kernels. The new text sees the same names as the old one."""
        self.source = self._owned(Source(written(text, self.source.function)))
        self._unbind()

    def _unsafe_update_src(self, text: str) -> None:
        """`kernel.src = text`, as in newer versions of Triton."""
        self.src = text
