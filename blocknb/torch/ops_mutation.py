"""Runs the body of an operator with a check that its kernels store into no argument that is declared unchanged.

The compiler knows through which parameters a kernel stores (`runtime.effects`). `torch.compile` reorders and removes calls by what the
schema declares, so a wrong declaration gives wrong numbers later and elsewhere. The check compares addresses before each launch. It also
refuses an output that shares memory with an argument, which torch's schemas do not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from blocknb.errors import KernelError
from blocknb.runtime.arguments import describer
from blocknb.runtime.binding import caller
from blocknb.runtime.kinds import flat
from blocknb.runtime.launch_context import inspected


class OperatorError(KernelError):
    """The definition of an operator of torch is wrong: its schema, its gradient, or what it stores."""

    title = "operator error"


class _Memory(NamedTuple):
    """The bytes of an argument's storage, from `low` to `high`."""

    name: str
    low: int
    high: int


def _memory(name: str, tensor: Any) -> _Memory:
    storage = tensor.untyped_storage()
    return _Memory(name, storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def tensors_of(names: Sequence[str], args: Sequence[Any]) -> list[tuple[str, Any]]:
    """The tensors among arguments, also those in lists, with the names of their parameters."""
    found = []
    for name, value in zip(names, args, strict=False):
        for element in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(element, torch.Tensor):
                found.append((name, element))
    return found


def run_checked(
    operator: str, body: Callable[..., Any], names: Sequence[str], mutates: Sequence[str], args: Sequence[Any]
) -> Any:
    """Returns `body(*args)`. Raises OperatorError, before the launch, if a kernel stores into an argument that `mutates` does not name.
    Also raises it, after the launch, if an output shares memory with an argument."""
    tensors = tensors_of(names, args)
    everything = [_memory(name, tensor) for name, tensor in tensors]
    unchanged = [memory for memory in everything if memory.name not in mutates]

    def inspect(
        compiled: Any, of: Sequence[str], kinds: Sequence[Any], raws: Sequence[Any], values: Sequence[Any]
    ) -> None:
        for parameter, kind, value in flat(of, kinds, values):
            if kind.device is None or parameter not in compiled.stored:
                continue
            array = getattr(value, "base", value) if type(value).__name__ == "TensorDescriptor" else value
            address = describer(array)(array)[1]
            for name, low, high in unchanged:
                if low <= address < high:
                    raise _stores(operator, compiled.source.name, parameter, name)

    with inspected(inspect):
        found = body(*args)
    for tensor in found if isinstance(found, (list, tuple)) else (found,):
        if isinstance(tensor, torch.Tensor) and tensor.numel():
            address = tensor.untyped_storage().data_ptr()
            for name, low, high in everything:
                if low <= address < high:
                    message = f"the operator {operator} returns a tensor that shares memory with its argument `{name}`"
                    raise OperatorError(message, _definition(body), "return a new tensor, for example out.clone()")
    return found


def check_outputs(operator: str, body: Callable[..., Any], overload: Any, found: Any) -> None:
    """Raises OperatorError if what the body returned is not what its annotation says: None instead of tensors, or too few of them."""
    kinds = [str(output.type) for output in overload._schema.returns]
    several = len(kinds) != 1 and isinstance(found, (list, tuple))
    given = list(found) if several else [] if found is None and not kinds else [found]
    fits = all(isinstance(value, torch.Tensor) for value, kind in zip(given, kinds, strict=False) if kind == "Tensor")
    if len(given) != len(kinds) or not fits:
        texts = "nothing" if found is None else ", ".join(type(value).__name__ for value in given)
        message = f"the operator {operator} returns {texts}, but its annotation says {', '.join(kinds) or 'None'}"
        raise OperatorError(message, _definition(body), "return what the annotation of the function says")


def _stores(operator: str, kernel: str, parameter: str, name: str) -> OperatorError:
    message = (
        f"the operator {operator} declares that it does not change `{name}`, but the kernel {kernel} stores into it "
        f"(through `{parameter}`)"
    )
    hint = f'declare it: @blocknb.torch_op("{operator}", mutates=("{name}",)); or store into torch.empty_like({name})'
    return OperatorError(message, caller(), hint)


def _definition(body: Callable[..., Any]) -> Any:
    from blocknb.errors import Loc

    code = getattr(body, "__code__", None)
    return code and Loc(code.co_filename, code.co_firstlineno, function=code.co_name)
