"""`@torch_op`: an operator of torch from a Python function that launches kernels.

    @blocknb.torch_op("mine::square")
    def square(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        square_kernel[(blocknb.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
        return y

    @square.backward
    def _(saved, dy):
        return 2 * saved.x * dy

The schema comes from the annotations. The function also serves torch.compile as its description on tensors without memory ("fake"
function), with launches skipped. The gradient is an `autograd.Function` around the operator, because `torch.func` does not see through one
that the dispatcher calls.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch.utils import unwrap_dead_wrappers

from blocknb.runtime.binding import caller
from blocknb.runtime.launch_context import skipped, this_thread
from blocknb.torch import ops_dispatch
from blocknb.torch.ops_forward import ForwardRule, forward_function, kept
from blocknb.torch.ops_mutation import OperatorError, check_outputs, run_checked
from blocknb.torch.ops_tracing import trace_kernels

trace_kernels()

_PLAIN = (int, float, bool, str, type(None), torch.dtype)
_MOST_SIGNATURES = 4096  # shapes and dtypes that an operator remembers as checked


class TorchOp:
    """An operator of torch; `torch_op` makes it. Call it like the function.

    `overload` is torch's OpOverload, `schema` the text of its schema. `backward` and `vmap` register more rules. `check` tests it.
    """

    def __init__(self, body: Callable[..., Any], name: str, mutates: Sequence[str], autocast: Any):
        functools.update_wrapper(self, body)
        self.body, self.name = body, name
        self.mutates = (mutates,) if isinstance(mutates, str) else tuple(mutates)
        self.autocast = autocast
        self.parameters = _parameters(name, body, self.mutates)
        self.schema = _schema(name, body, self.mutates)
        self._names = tuple(self.parameters)
        self._checked: set[Any] = set()
        self._function: Any = None  # of the gradient
        self._rule: tuple[Any, ...] = (None, None, ())  # the gradient as `backward` got it
        self._forward_rule: Callable[..., Any] | None = None
        self._forward: Any = None  # the Function with forward mode, made at its first use
        self._vmap: Callable[..., Any] | None = None
        self.overload = ops_dispatch.define(name, self.schema, self).overload
        self._without_gradient = _function(self, _no_gradient(name), (), ())

    def __repr__(self) -> str:
        return f"<torch operator {self.name}{self.schema}>"

    def __reduce__(self) -> str:
        """By its name, as functions do: copies of a module share the operator."""
        return self.body.__qualname__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = self._positional(args, kwargs)
        if self.autocast is not None and (device := _autocast_device(args)) is not None:
            dtype = torch.get_autocast_dtype(device) if self.autocast is True else self.autocast
            with torch.autocast(device, enabled=False):
                return self._apply([_cast(a, dtype) for a in args])
        return self._apply(args)

    # ---- rules -----------------------------------------------------------------------------------------------------------

    def backward(
        self, rule: Callable[..., Any] | None = None, *, save: Sequence[str | int] | None = None, undifferentiable: Sequence[int] = ()
    ) -> Any:  # fmt: skip
        """Registers the gradient: `rule(saved, *gradients)` takes one gradient per output and returns those of the parameters.

        The result is one gradient, a tuple in the order of the parameters, or a dict by their names; None or absent means no gradient.
        `saved` has the arguments by name, `saved.outputs`, and `saved.needs`, the set of names whose gradient is wanted. `save` lists the
        names of parameters and the numbers of outputs to keep (default: all); `saved` has None for the rest. The outputs with the numbers
        `undifferentiable` have no gradient, and the rule gets none for them. Raises OperatorError for an operator that changes arguments.
        """
        if rule is None:
            return functools.partial(self.backward, save=save, undifferentiable=undifferentiable)
        if self.mutates:
            message = (
                f"the operator {self.name} changes `{self.mutates[0]}`, and an operator with a gradient changes nothing"
            )
            raise OperatorError(message, caller(), "return a new tensor instead")
        self._function = _function(self, rule, save, tuple(undifferentiable))
        self._rule, self._forward = (rule, save, tuple(undifferentiable)), None
        return rule

    def jvp(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Registers forward mode: `rule(saved, *tangents)` takes one tangent per parameter, None where there is none, and returns the
        derivative of each output. `saved` has all arguments and outputs, as in `backward`. Without a rule, forward mode is derived from a
        gradient whose operations have gradients themselves, at the cost of two backward passes."""
        self._forward_rule, self._forward = rule, None
        return rule

    def vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Registers `rule(info, in_dims, *args)` for `torch.vmap`, as `torch.library.register_vmap` does. Without one, the operator runs
        once per element of the batch."""
        self._vmap = rule
        return rule

    def check(self, *args: Any, reference: Callable[..., Any] | None = None, double: bool = False) -> Any:
        """Tests the operator on arguments and returns an OpReport. The tests are `torch.library.opcheck`, and gradcheck in float64 (with
        `double` also of the second derivative). The report also has the error against `reference`, computed in float64."""
        from blocknb.torch.ops_check import check

        return check(self, args, reference, double)

    # ---- calls -----------------------------------------------------------------------------------------------------------

    def _apply(self, args: Sequence[Any]) -> Any:
        if (
            torch.compiler.is_compiling()
        ):  # Dynamo traces the Function; the dispatcher refuses a gradient where there is none
            args = self._positional(tuple(args), {})  # as many as `forward` has parameters
            return self.overload(*args) if self._function is None else self._function.apply(*args)
        if not _inside.function and _needs_function(args):
            return self._differentiable(*args)
        return self.run(*args) if _ordinary(args) and not _inside.function else self.overload(*args)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments of a call with keywords, by position. Raises TypeError as a call of the function does."""
        found, names = list(args), self._names
        left = dict(kwargs)
        for name in names[len(args) :]:
            if name in left:
                found.append(left.pop(name))
            elif self.parameters[name] is not inspect.Parameter.empty:
                found.append(self.parameters[name])
            else:
                raise TypeError(f"{self.name} misses the argument `{name}`")
        if left:
            raise TypeError(
                f"{self.name} has no parameter `{next(iter(left))}`, or got it twice; it has {', '.join(names)}"
            )
        return tuple(found)

    def run(self, *args: Any) -> Any:
        signature = tuple([(a.shape, a.dtype) if isinstance(a, torch.Tensor) else type(a) for a in args])
        if signature in self._checked:
            return self.body(*args)
        found = run_checked(self.name, self.body, self._names, self.mutates, args)
        check_outputs(self.name, self.body, self.overload, found)
        if len(self._checked) < _MOST_SIGNATURES:
            self._checked.add(signature)
        return found

    def fake(self, *args: Any) -> Any:
        with skipped():
            found = self.body(*args)
        check_outputs(self.name, self.body, self.overload, found)
        return found

    def differentiable(self, *args: Any) -> Any:
        if not _inside.function:
            if torch.autograd.forward_ad._current_level >= 0 and not self.mutates:
                if torch._C._are_functorch_transforms_active():
                    message = f"torch.func has no forward mode for {self.overload}, which the dispatcher calls"
                    raise OperatorError(message, caller(), "call the function that @torch_op decorates")
                return self._differentiable(*args)
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
                return self._differentiable(*args)
        return None

    def _differentiable(self, *args: Any) -> Any:
        """The result with a gradient, or with one that raises OperatorError when it is asked for."""
        if not self.mutates:
            if torch.autograd.forward_ad._current_level >= 0:
                return self._with_forward_mode().apply(*args)
            function = self._function or self._without_gradient
            if torch._C._are_functorch_transforms_active():
                return function.apply(*args)
            if len(args) != len(self._names):
                args = self._positional(args, {})
            # Function.apply without its search for defaults by `inspect`, which takes a third of the time of a small layer.
            return super(torch.autograd.Function, function).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            message = f"the operator {self.name} changes `{self.mutates[0]}` and has no gradient, but an argument requires one"
            raise OperatorError(message, caller(), "call it under torch.no_grad(), or pass x.detach()")
        return self.overload(*args)

    def _with_forward_mode(self) -> Any:
        if self._forward is None:
            rule, save, undifferentiable = self._rule
            base = _function(self, rule or _no_gradient(self.name), None, undifferentiable)
            forward = ForwardRule(self, self._forward_rule, rule, save, undifferentiable, _by_position)
            self._forward = forward_function(base, self._names, base.saved_of, forward)
        return self._forward

    def batched(self, info: Any, in_dims: Any, *args: Any) -> Any:
        if self._vmap is not None:
            return self._vmap(info, in_dims, *args)
        if not self.mutates:  # elements are then contiguous, as a body without strides expects
            args = tuple([a if d is None else a.movedim(d, 0).contiguous() for a, d in zip(args, in_dims, strict=True)])
            in_dims = tuple([None if d is None else 0 for d in in_dims])
        results = [self.overload(*map(functools.partial(_element, i), args, in_dims)) for i in range(info.batch_size)]
        if not isinstance(results[0], tuple):
            return (torch.stack(results), 0) if isinstance(results[0], torch.Tensor) else (results[0], None)
        return tuple(map(torch.stack, zip(*results, strict=True))), (0,) * len(results[0])


def torch_op(
    name: str, *, mutates: Sequence[str] = (), autocast: Any = None
) -> Callable[[Callable[..., Any]], TorchOp]:
    """Decorates a function that launches kernels: makes it the operator `torch.ops.namespace.name`, for the CPU and for CUDA.

    `name` is "namespace::name". Every parameter and the result have an annotation that `torch.library.infer_schema` knows. `mutates` names
    the tensors that the function changes; a kernel that stores into another argument raises OperatorError. `autocast`: inside
    `torch.autocast`, floating tensors are cast to this dtype, or with True to that of the region. Running the definition again replaces
    the operator. Raises OperatorError for a name or a signature that has no schema.
    """
    if not isinstance(name, str) or name.count("::") != 1 or not all(p.isidentifier() for p in name.split("::")):
        raise OperatorError(
            f"{name!r} is no name of an operator", caller(), 'write @blocknb.torch_op("namespace::name")'
        )

    def made(body: Callable[..., Any]) -> TorchOp:
        if not inspect.isfunction(body):
            message = (
                f"the operator {name} is made of a Python function, not of an object of type {type(body).__name__}"
            )
            raise OperatorError(
                message, caller(), "write a function that allocates the outputs and launches the kernel"
            )
        return TorchOp(body, name, mutates, autocast)

    return made


def launch(function: Callable[..., Any], *args: Any) -> None:
    """Calls a Python function that launches kernels, or skips it while launches are skipped. Its Python code then puts no conditions on
    symbolic sizes. Pass keywords by `functools.partial`."""
    if not this_thread.skips:
        function(*args)


# ---- the definition ------------------------------------------------------------------------------------------------------


def _parameters(name: str, body: Callable[..., Any], mutates: Sequence[str]) -> dict[str, Any]:
    """The parameters of the function with their defaults. Raises OperatorError for those that an operator cannot have."""
    found = {}
    for parameter in inspect.signature(body).parameters.values():
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            message = f"the parameter `{parameter.name}` of the operator {name} is not an ordinary one"
            raise OperatorError(message, caller(), f"write {parameter.name} without * and /")
        if parameter.name in ("outputs", "needs"):
            message = f"`{parameter.name}` is the name of a field of `saved`, not of a parameter"
            raise OperatorError(message, caller(), "give the parameter another name")
        found[parameter.name] = parameter.default
    if unknown := [n for n in mutates if n not in found]:
        message = f"mutates= names `{unknown[0]}`, which is not a parameter of {name}"
        raise OperatorError(message, caller(), f"its parameters are {', '.join(found)}")
    return found


def _schema(name: str, body: Callable[..., Any], mutates: Sequence[str]) -> str:
    try:
        return str(torch.library.infer_schema(body, mutates_args=mutates))
    except Exception as error:  # torch raises several types, also for annotations that it cannot evaluate
        first = str(error).split("\n")[0]
        hint = f"annotate every parameter and the result: def {name.split('::')[1]}(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor"
        raise OperatorError(f"torch derives no schema for the operator {name}: {first}", caller(), hint) from None


# ---- the gradient --------------------------------------------------------------------------------------------------------


def _function(
    op: TorchOp, rule: Callable[..., Any], save: Sequence[str | int] | None, undifferentiable: tuple[int, ...]
) -> Any:
    """The autograd.Function that calls the operator and, for its gradient, the rule."""
    # Dynamo traces the methods, and what they close over must be a tuple, a function, or an overload.
    title, names, overload = op.name, op._names, op.overload
    defaults = tuple(None if d is inspect.Parameter.empty else d for d in op.parameters.values())
    saved_type = _record((*names, "outputs", "needs"))
    if unknown := [n for n in save or () if not isinstance(n, int) and n not in names]:
        message = f"save= names `{unknown[0]}`, which is not a parameter of {op.name}"
        raise OperatorError(message, caller(), f"its parameters are {', '.join(names)}; outputs have numbers")

    def saved_of(ctx: Any, needs: Any) -> Any:
        by_place = dict(zip(ctx.places, ctx.saved_tensors, strict=True))
        by_name = [
            ctx.constants[n] if n in ctx.constants else by_place.get(n, defaults[i]) for i, n in enumerate(names)
        ]
        return saved_type(*by_name, tuple([by_place.get(i) for i in range(ctx.counts[1])]), needs)

    def eager(args: tuple[Any, ...]) -> Any:
        if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
            return _inside_function(overload, args)
        return op.run(*args) if _ordinary(args) else overload(*args)  # without the dispatcher, as without a gradient

    class OperatorFunction(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*args: Any) -> Any:
            return overload(*args) if torch.compiler.is_compiling() else eager(args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            outputs = output if isinstance(output, tuple) else (output,)
            tensors, places, constants = kept(names, inputs, outputs, save)
            ctx.save_for_backward(*tensors)
            ctx.places, ctx.constants, ctx.counts = places, constants, (len(inputs), len(outputs))
            if undifferentiable:
                ctx.mark_non_differentiable(*[outputs[i] for i in undifferentiable])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            needs = {n for n, wanted in zip(names, ctx.needs_input_grad, strict=False) if wanted}
            wanted = [g for i, g in enumerate(gradients) if i not in undifferentiable]
            return _by_position(title, names, rule(saved_of(ctx, needs), *wanted), ctx.counts[0])

    # Where no gradient is wanted, Dynamo counts the parameters to tell whether `forward` takes a context.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(n, kind, default=d) for n, d in op.parameters.items()]
    OperatorFunction.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    OperatorFunction.saved_of = staticmethod(saved_of)
    OperatorFunction.__name__ = OperatorFunction.__qualname__ = op.name.replace("::", "_")
    OperatorFunction._backward_cls.__name__ = f"{OperatorFunction.__name__}Backward"  # torch's errors show it
    return OperatorFunction


def _no_gradient(name: str) -> Callable[..., Any]:
    def refuse(saved: Any, *gradients: Any) -> Any:
        hint = "register one with @op.backward. For a second derivative, the operators of that rule need one, too"
        raise OperatorError(f"the operator {name} has no gradient", None, hint)

    return refuse


def _record(fields: tuple[str, ...]) -> Any:
    return namedtuple("Saved", fields)


class _Inside(threading.local):
    """Whether this thread is inside the forward pass of an operator's Function under torch.func, which sees to all gradients."""

    function = False


_inside = _Inside()


def _inside_function(overload: Any, args: tuple[Any, ...]) -> Any:
    before, _inside.function = _inside.function, True
    try:
        return overload(*args)
    finally:
        _inside.function = before


def _by_position(title: str, names: tuple[str, ...], found: Any, count: int) -> tuple[Any, ...]:
    """The gradients of the first `count` parameters."""
    if isinstance(found, dict):
        if unknown := [n for n in found if n not in names]:
            message = f"the gradient of {title} names `{unknown[0]}`, which is not a parameter"
            raise OperatorError(message, None, f"its parameters are {', '.join(names)}")
        return tuple([found.get(n) for n in names[:count]])
    if found is None:
        hint = "end the rule with `return`; `return {}` says that no parameter has a gradient"
        raise OperatorError(f"the gradient of {title} returns nothing", None, hint)
    values = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    if len(values) > len(names):
        hint = f"its parameters are {', '.join(names)}"
        raise OperatorError(
            f"the gradient of {title} returns {len(values)} values for {len(names)} parameters", None, hint
        )
    return (*values, *(None,) * len(names))[:count]


def _needs_function(args: Sequence[Any]) -> bool:
    """Whether a call goes through the autograd.Function: under torch.func and forward-mode AD always."""
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*args)


def _ordinary(args: Sequence[Any]) -> bool:
    """Whether the dispatcher would only call the body: the tensors have memory, and nothing traces, batches or wraps them."""
    if torch._C._len_torch_dispatch_stack():
        return False
    for value in args:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter:
            if not (value.is_cpu or value.is_cuda):
                return False
        elif kind not in _PLAIN:
            return False
    return True


def _autocast_device(args: Sequence[Any]) -> str | None:
    """The type of the device of the first tensor, if autocast is on there."""
    device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), None)
    return device if device is not None and torch.is_autocast_enabled(device) else None


def _cast(value: Any, dtype: Any) -> Any:
    """A floating tensor in another dtype; float64 and other values stay."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64:
        return value.to(dtype)
    return value


def _element(index: int, value: Any, dim: int | None) -> Any:
    """Element `index` of a batched argument."""
    return value if dim is None else value.select(dim, index)
