"""Forward mode of operators (`torch.func.jvp`, `jacfwd`, dual numbers): by a rule of the user, or derived from the gradient.

The gradient g(u) is linear in the gradients u of the outputs. The gradient of g(u) t with respect to u is then the derivative in the
direction t (the "double backward trick": Townsend 2017). It needs a gradient whose operations have gradients for u.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from blocknb.torch.ops_mutation import OperatorError


def kept(
    names: Sequence[str], inputs: Sequence[Any], outputs: Sequence[Any], save: Sequence[str | int] | None
) -> tuple[list[Any], list[str | int], dict[str, Any]]:
    """(tensors to keep, their names or numbers of outputs, the other arguments by name) of a call; `save` None keeps all tensors."""
    tensors: list[Any] = []
    places: list[str | int] = []
    constants: dict[str, Any] = {}
    for name, value in zip(names, inputs):  # noqa: B905 (Dynamo)
        if not isinstance(value, torch.Tensor):
            constants[name] = value
        elif save is None or name in save:
            tensors.append(value)
            places.append(name)
    for number, value in enumerate(outputs):
        if save is None or number in save:
            tensors.append(value)
            places.append(number)
    return tensors, places, constants


class ForwardRule:
    """How to compute the derivatives of an operator's outputs. `rule(saved, *tangents)` is the user's; without one, they are derived from
    the gradient `backward`, which sees what `save` names."""

    def __init__(
        self, op: Any, rule: Callable[..., Any] | None, backward: Callable[..., Any] | None,
        save: Sequence[str | int] | None, undifferentiable: Sequence[int], by_position: Callable[..., Any],
    ):  # fmt: skip
        self.op, self.rule, self.backward = op, rule, backward
        self.save, self.undifferentiable, self.by_position = save, undifferentiable, by_position

    def __call__(self, saved: Any, tangents: Sequence[Any]) -> Any:
        """One derivative per output, from one tangent per parameter, None where there is none."""
        if self.rule is not None:
            return self.rule(saved, *tangents)
        if self.backward is None:
            raise self._missing("it has no gradient to derive one from") from None
        try:
            return self._derived(saved, tangents)
        except OperatorError as error:
            raise self._missing(f"its gradient has no gradient ({error.message})") from error

    def _missing(self, why: str) -> OperatorError:
        name = self.op.name.partition("::")[2]
        hint = f"write @{name}.jvp above a function (saved, *tangents) that returns the derivative of each output"
        return OperatorError(f"the operator {self.op.name} has no rule for forward mode, and {why}", None, hint)

    def _derived(self, saved: Any, tangents: Sequence[Any]) -> Any:
        names, save = self.op._names, self.save
        outputs = saved.outputs
        if save is not None:  # as in the backward pass
            hidden = {n: None for n in names if isinstance(getattr(saved, n), torch.Tensor) and n not in save}
            seen = tuple([o if i in save else None for i, o in enumerate(outputs)])
            saved = saved._replace(**hidden, outputs=seen)
        numbers = [i for i in range(len(outputs)) if i not in self.undifferentiable]
        used: list[int] = []

        def pull(*given: Any) -> Any:
            found = self.by_position(self.op.name, names, self.backward(saved, *given), len(names))  # type: ignore[misc]
            used[:] = [i for i, t in enumerate(tangents) if t is not None and found[i] is not None]
            return tuple([found[i] for i in used])

        zeros = [torch.zeros_like(outputs[i]) for i in numbers]
        _, push = torch.func.vjp(pull, *zeros)
        directions = push(tuple([tangents[i] for i in used]))
        by_number = dict(zip(numbers, directions, strict=True))
        return tuple([by_number.get(i) for i in range(len(outputs))])


def forward_function(base: Any, names: Sequence[str], saved_of: Callable[..., Any], rule: ForwardRule) -> Any:
    """The autograd.Function `base`, which keeps all tensors, with forward mode. Dynamo refuses a Function with `jvp`, so it has one
    without."""

    class ForwardFunction(base):
        generate_vmap_rule = True

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            base.setup_context(ctx, inputs, output)
            outputs = output if isinstance(output, tuple) else (output,)
            ctx.save_for_forward(*kept(names, inputs, outputs, None)[0])
            ctx.single = not isinstance(output, tuple)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            wanted = {n for n, t in zip(names, tangents, strict=False) if t is not None}
            tangents = (*tangents, *(None,) * (len(names) - len(tangents)))
            found = rule(saved_of(ctx, wanted), tangents)
            values = found if isinstance(found, tuple) else (found,)
            return values[0] if ctx.single else values

    return ForwardFunction
