"""Keeps the arguments of recorded launches in the memory of the host, so that a kernel can run on them again after the step.

A copy takes the whole storage of a tensor, as in `measured`: strides and overlaps stay. A record has a limit of bytes. Launches that come
after it are not kept, and say so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.runtime.compile import Compiled

#: Bytes that a record keeps of the arguments of its launches, unless the caller gives another limit.
KEEP_BYTES = 512 << 20


@dataclass(frozen=True)
class _TensorPlace:
    """A tensor of a launch: its storage by number, and its place there in elements."""

    storage: int
    dtype: Any
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class KeptArguments:
    """The arguments of a launch before it ran. `storages` are the bytes of its storages, on the host; `device` is where they were."""

    arguments: Mapping[str, Any]
    storages: Sequence[Any]
    device: Any

    def restored(self) -> dict[str, Any]:
        """The arguments by name, in new memory of the device."""
        storages = [bytes_.to(self.device, copy=True).untyped_storage() for bytes_ in self.storages]
        return {
            name: _tensor(storages[value.storage], value) if isinstance(value, _TensorPlace) else value
            for name, value in self.arguments.items()
        }

    def drawn(self, seed: int) -> dict[str, Any]:
        """As `restored`, but with random floating-point numbers from the range of the recorded ones. Integers stay: they may be indices.
        So do tensors whose elements overlap."""
        import torch

        values = self.restored()
        generator = torch.Generator().manual_seed(seed)
        for value in values.values():
            if not hasattr(value, "is_floating_point") or not value.is_floating_point() or not value.numel():
                continue
            if any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True)):
                continue
            finite = value[value.isfinite()].double()
            if finite.numel():
                low, high = finite.min().item(), finite.max().item()
                random = torch.rand(value.shape, generator=generator, dtype=torch.float64, device="cpu")
                value.copy_(low + (high - low) * random)
        return values


def poison(values: Mapping[str, Any], written: Collection[str], read: Collection[str], flag: bool) -> None:
    """Fills the storages that a launch writes and does not read: NaN, a number, or `flag` for bools."""
    kept = {values[name].untyped_storage().data_ptr() for name in read if hasattr(values[name], "untyped_storage")}
    for name in written:
        if values[name].untyped_storage().data_ptr() not in kept:
            whole = flat(values[name])
            whole.fill_(float("nan") if whole.is_floating_point() else flag if str(whole.dtype) == "torch.bool" else 85)


def flat(value: Any) -> Any:
    """All elements of the storage of a tensor."""
    import torch

    storage = value.untyped_storage()
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(storage)


def _tensor(storage: Any, place: _TensorPlace) -> Any:
    import torch

    empty = torch.empty(0, dtype=place.dtype, device=storage.device)
    return empty.set_(storage, place.offset, place.shape, place.strides)


class ArgumentKeeper:
    """Keeps arguments up to a limit of bytes."""

    def __init__(self, limit: int = KEEP_BYTES):
        self.limit = self.left = limit

    def keep(self, compiled: Compiled, values: Sequence[Any]) -> tuple[KeptArguments | None, str]:
        """(the arguments of a launch that has not run yet, ""), or (None, why they are not kept)."""
        import torch

        tensors = [value for value in values if hasattr(value, "untyped_storage")]
        unique = {value.untyped_storage().data_ptr(): value for value in tensors}
        size = sum(value.untyped_storage().nbytes() for value in unique.values())
        if size > self.left:
            need = f"they have {size} bytes, and the record keeps at most {self.limit} in all"
            return None, f"{need}; give more by `keep_bytes=`"
        if any(value.is_cuda for value in tensors) and torch.cuda.is_current_stream_capturing():
            return None, "CUDA graphs capture the launch"
        self.left -= size
        numbers = {address: i for i, address in enumerate(unique)}
        storages = [flat(value.detach()).view(torch.uint8).to("cpu", copy=True) for value in unique.values()]

        def placed(value: Any) -> Any:
            if not hasattr(value, "untyped_storage"):
                return value
            number = numbers[value.untyped_storage().data_ptr()]
            return _TensorPlace(number, value.dtype, value.storage_offset(), tuple(value.shape), tuple(value.stride()))

        named = {name: placed(value) for (name, _), value in zip(compiled.parameters, values, strict=True)}
        device = tensors[0].device if tensors else torch.device("cpu")
        return KeptArguments(named, storages, device), ""
