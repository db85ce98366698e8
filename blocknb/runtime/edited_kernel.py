"""A kernel compiled on from an edited stage: `kernel.trace(...).stages["software_pipelining"].edit(text)`.

The edit is a part of the request (`StageEdit`), and so of the keys in memory and on disk. A launch therefore never finds edited code
under the key of the kernel itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from blocknb.errors import LaunchError
from blocknb.language import types as t
from blocknb.runtime import compile as compiler
from blocknb.runtime.binding import OPTIONS, Binding, bind, definition, launch_error, normal_grid
from blocknb.runtime.compile import Compiled
from blocknb.runtime.kinds import ONE, Kind, Tuple, spelled
from blocknb.runtime.launchable import Launchable
from blocknb.runtime.plan import LaunchPlan, check_writable, common_device, starter, target_of
from blocknb.runtime.prepared_launch import PreparedLaunch
from blocknb.runtime.request import Request, StageEdit
from blocknb.target import Target


def resume(kernel: Launchable, request: Request, stage: str, text: str) -> EditedKernel:
    """Compiles a request of a kernel with another text of the IR after a stage. Raises EditError, and KernelError as a compilation does."""
    edit = StageEdit(stage, text)
    found = compiler.compile(request.source, request.kinds, request.options, request.target, edit)
    return EditedKernel(**{f.name: getattr(found, f.name) for f in fields(Compiled)} | {"kernel": kernel})


@dataclass(eq=False)
class EditedKernel(Compiled):
    """A kernel whose IR was edited after a pass. It is a Compiled, and launches the edited code: `edited[grid](*args)`.

    Launch it with the arguments of the kernel. You may leave out constants and options, because they are part of the code.
    """

    _bindings: dict[tuple[Any, ...], Binding] = field(default_factory=dict)
    _plans: dict[Any, LaunchPlan] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.name} with an edited stage, compiled for {self.target}>"

    def __getitem__(self, grid: Any) -> Callable[..., Compiled]:
        return functools.partial(self.launch, grid)

    def launch(self, grid: Any, /, *args: Any, **kwargs: Any) -> Compiled:
        """Launches the edited code: `edited.launch(grid, *args)`, or `edited[grid](*args)`.

        Raises LaunchError for an argument of another kind than those that the code was compiled for.
        """
        binding, ready = self._prepared(grid, args, kwargs)
        if 0 not in ready.grid:
            self.kernel._start(ready.plan, binding, ready.grid, ready.raws, ready.values, grid)
        return self

    def prepared(self, grid: Any, /, *args: Any, **kwargs: Any) -> PreparedLaunch:
        """Prepares a launch of the edited code (see `runtime.prepared_launch`). Raises LaunchError as `launch` does."""
        return self._prepared(grid, args, kwargs)[1]

    def _prepared(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Binding, PreparedLaunch]:
        given = {p.name for p in self.source.parameters[: len(args)]} | set(kwargs)
        kwargs |= {n: kind.constant[0] for n, kind in self.kinds.items() if kind.constant and n not in given}
        form = (len(args), *kwargs)
        if (binding := self._bindings.get(form)) is None:
            binding = self._bindings[form] = bind(self.source, frozenset(), len(args), tuple(kwargs))
        values = (*args, *kwargs.values(), *binding.defaults)
        kinds, raws = self.kernel.describe(binding, values)
        if (plan := self._plans.get((binding, kinds))) is None:
            plan = self._plans[binding, kinds] = self._plan(binding, kinds, values)
        sizes = normal_grid(self.source, grid, binding.bound(values) if callable(grid) else {})
        return binding, PreparedLaunch(plan, sizes, raws, values)

    def _plan(self, binding: Binding, kinds: tuple[Kind, ...], values: tuple[Any, ...]) -> LaunchPlan:
        for name, kind in zip(binding.names, kinds, strict=True):
            self._check(name, kind)
        device = common_device(self.source, binding.names, kinds, values)
        if (target := target_of(device)) != self.target:
            hint = f"edit a stage of {self.name}.trace(..., target={str(target)!r}), or pass arrays of the other device"
            message = f"the edited code of {self.name} is for {self.target}, and the arrays lie on {target}"
            raise launch_error(self.source, None, message, hint)
        check_writable(self.source, binding.names, kinds, self.stored)
        return LaunchPlan(self, kinds, device, starter(self, binding, kinds, device))

    def _check(self, name: str, kind: Kind) -> None:
        """Raises LaunchError if the code was compiled for another kind of argument, or with another option."""
        if name in OPTIONS and name not in self.kinds:
            has, same = repr(self.options[name]), kind.constant == (self.options[name],)
        else:
            has, same = str(self.kinds[name]), accepts(self.kinds[name], kind)
        if not same:
            message = f"the edited code was compiled with {spelled(name)} = {has}, and the argument is {kind}"
            hint = "edit a stage of a trace for these arguments"
            raise launch_error(self.source, name, message, hint)

    def retarget(self, target: str | Target, without: Iterable[str] = ()) -> Compiled:
        """Returns this code for its own target. Raises LaunchError for others: the edited stage belongs to one target."""
        if Target.parse(target) == self.target and tuple(sorted(without)) == tuple(self.options["without"]):
            return self
        message = f"the edited IR of {self.name} is for {self.target} and its own passes"
        raise LaunchError(
            message, definition(self.source), f"edit a stage of {self.name}.trace(target={str(target)!r})"
        )


def accepts(compiled: Kind, given: Kind) -> bool:
    """Whether code for one kind of argument is right for another: the same type, with at least its divisibility."""
    if compiled is given:
        return True
    if compiled.type is None:
        return False  # constants are interned
    if given is ONE:  # the number 1, on which the code is not specialized
        return isinstance(compiled.type, t.DType) and compiled.type.is_int() and compiled.divisibility == 1
    if isinstance(compiled.type, Tuple):
        same = isinstance(given.type, Tuple) and given.type.structure == compiled.type.structure
        return same and all(map(accepts, compiled.type.parts, given.type.parts))
    return bool(given.type == compiled.type) and given.divisibility % compiled.divisibility == 0
