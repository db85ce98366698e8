"""`compiled.artifacts`: the code and the texts of a compilation, which another process can use instead of compiling.

    sent = kernel.compile(*args, target="cpu").artifacts   # in one process
    sent.load()                                            # in another: its launches now find the code

`load` puts the code into the caches of the process, in memory and on disk. Code fits only the versions and the target that it was made
for, so `load` compares them and refuses others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from blocknb.errors import KernelError
from blocknb.runtime import cache, compile, machine
from blocknb.runtime.compile import Compiled
from blocknb.runtime.request import Request
from blocknb.target import Target
from blocknb.trace import Trace


class ArtifactsError(KernelError):
    """Code that another process has compiled does not fit this process: it has other versions, or another GPU or CPU."""

    title = "artifacts"


@dataclasses.dataclass(frozen=True)
class Shipped:
    """The data from which another process makes a Compiled: the input of its compilation, its entry of the disk cache, and the versions."""

    kernel: Any
    kinds: dict[str, Any]
    options: dict[str, Any]
    target: Target
    versions: dict[str, str]
    meta: dict[str, Any]
    blobs: dict[str, bytes]
    persistent: bool

    @staticmethod
    def of(compiled: Compiled) -> Shipped:
        """Packs a Compiled. Raises ArtifactsError for a kernel with an edited stage."""
        if type(compiled) is not Compiled or compiled.kernel is None:
            hint = "send the kernel, and edit the stage there"
            raise ArtifactsError(f"{compiled!r} cannot be sent to another process", hint=hint)
        request = request_of(compiled)
        meta, blobs = compile.entry_of(request, compiled.code, compiled.trace)
        fixed = not request.unknown and not compiled.calls
        return Shipped(
            compiled.kernel, dict(compiled.kinds), dict(compiled.options), compiled.target, versions(), meta, blobs, fixed
        )  # fmt: skip

    def load(self, check_target: bool) -> Compiled:
        """The Compiled in this process. Raises ArtifactsError if versions differ.

        Code that depends on what only its own process can identify is compiled again.
        """
        self._check(check_target)
        request = Request(self.kernel.source, self.kinds, self.options, self.target)
        if not self.persistent:
            found = compile.compile(request.source, request.kinds, request.options, request.target)
        elif (known := compile.find(request)) is not None:
            found = known
        else:
            found = compile.keep(request, compile.read_entry(request, cache.Entry(self.meta, self.blobs)))
            cache.shared().put(request.digest, self.meta, self.blobs)
        found.kernel = self.kernel
        return found

    def _check(self, check_target: bool) -> None:
        here, there = versions(), self.versions
        wrong = [name for name in here if here[name] != there.get(name)]
        if wrong:
            theirs, ours = (", ".join(f"{n} {found.get(n)}" for n in wrong) for found in (there, here))
            message = f"the code of {self.kernel.__name__} was compiled by {theirs}, and this process has {ours}"
            raise ArtifactsError(
                message, hint="install the same versions, or send the kernel: it is compiled where it runs"
            )
        if check_target and self.target not in (known := targets()):
            has = ", ".join(map(str, known))
            message = f"the code of {self.kernel.__name__} was compiled for {self.target}, and this process runs {has}"
            if str(self.target) in map(str, known):
                message += " with other features"
            raise ArtifactsError(
                message, hint=f"compile it for one of these targets: kernel.compile(..., target={has!r})"
            )


class Artifacts(Mapping[str, Any]):
    """The texts and binaries of a compilation by name: "llvm", "ptx", "cubin", "object". It can be pickled; see `load`."""

    def __init__(self, trace: Trace | None, compiled: Compiled | None = None, shipped: Shipped | None = None):
        self._texts: Mapping[str, Any] = trace.artifacts if trace is not None else {}
        self._compiled, self._shipped = compiled, shipped
        if shipped is not None:
            self._texts = compile.texts(shipped.blobs)

    def __repr__(self) -> str:
        return f"<Artifacts: {', '.join(f'{name} ({len(text)} bytes)' for name, text in self.items())}>"

    def __getitem__(self, name: str) -> Any:
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Artifacts, (None, None, self.shipped)

    @property
    def shipped(self) -> Shipped:
        """The packed form, which `pickle` writes."""
        if self._shipped is not None:
            return self._shipped
        assert self._compiled is not None
        return Shipped.of(self._compiled)

    def load(self) -> Compiled:
        """Puts the code into the caches of this process, so that launches and `compile` find it. Returns the Compiled.

        Raises ArtifactsError if this process has another version of blocknb or llvmlite, or neither a GPU nor the CPU of the target.
        """
        return self.shipped.load(check_target=True)


def versions() -> dict[str, str]:
    """The versions on which code depends."""
    return {name: cache.version_of(name) for name in ("blocknb", "llvmlite")}


def targets() -> list[Target]:
    """The targets of the CPU and of the GPUs of this process."""
    found = [Target.parse("cpu")]
    if machine.has_gpu():
        from blocknb.runtime import cuda

        found += dict.fromkeys(cuda.target(number) for number in range(cuda.api().runtime.getDeviceCount()))
    return found


def request_of(compiled: Compiled) -> Request:
    """The input of a compilation again."""
    return Request(compiled.source, compiled.kinds, compiled.options, compiled.target)


def unpickled(shipped: Shipped) -> Compiled:
    """A Compiled that another process has pickled. Raises ArtifactsError if versions differ."""
    return shipped.load(check_target=False)
