"""Runs the programs of a kernel as Python. The rewritten code calls the Interpreter under the name `rewrite.HELPER`.

The interpreter classifies calls as the compiler does: builtins, library functions, dtypes, and helpers, whose Python code is rewritten
like the kernel's. It calls all other Python functions directly. Execution cannot find the type of the arm that does not run. For
conditional expressions, the compiler's visitor therefore computes the type from the current names.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import pdb
import sys
import traceback
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blocknb.eager import functions
from blocknb.eager.debugger import debugger
from blocknb.eager.emitter import EagerEmitter, EagerMachine
from blocknb.eager.places import current, describe_call, locate
from blocknb.eager.record import Run
from blocknb.eager.rewrite import instantiate, rewritten
from blocknb.eager.values import EagerValue, OneByOne
from blocknb.errors import KernelError, Loc, TypeMismatch
from blocknb.frontend import calls, expressions, loops, shapes
from blocknb.frontend.emitter import NUMBERS, Emitter, Mismatch
from blocknb.frontend.hints import did_you_mean
from blocknb.frontend.libraries import of_library
from blocknb.frontend.merge import Disagreement, identical, leaf_type, leaves, rebuild, same_shape, unequal_arms
from blocknb.frontend.parse import Constant, passed
from blocknb.frontend.scope import HANDLERS, Frame, as_constant
from blocknb.frontend.source import Source, source_of
from blocknb.frontend.statements import settle
from blocknb.ir.address import AddressSpace
from blocknb.ir.core import Value
from blocknb.ir.interp_tile import Program, numpy_dtype
from blocknb.ir.report import lines
from blocknb.language.constants import constexpr, unwrap
from blocknb.language.declarations import BUILTINS, running
from blocknb.language.ops import TypeRule
from blocknb.language.types import DType, Pointer


class EagerFrame(Frame):
    """The frame for handlers of builtins. One frame serves all programs and calls, because Python keeps the names."""

    def __init__(self, source: Source, interpreter: Interpreter):
        super().__init__(source, interpreter.emit)
        self.interpreter, self.handlers = interpreter, ChainMap(functions.HANDLERS, HANDLERS)


class Interpreter:
    """The programs of one launch.

    `arguments` has a Constant per parameter, or an ArgType with its numbers (for a pointer, its address in `space`). `options` are the
    launch options that the kernel may query. `grid` has three sizes. `run` records the requested assignments.
    """

    def __init__(
        self,
        source: Source,
        arguments: Mapping[str, Any],
        options: Mapping[str, Any],
        space: AddressSpace,
        grid: Program,
        run: Run,
    ):
        self.source, self.arguments, self.space, self.grid, self.run = source, arguments, space, grid, run
        self.lanes = False  # whether values represent many scalars at once
        self.prints = not run.muted  # static_print prints only once, as at compile time
        self.printer: Callable[..., None] = print if not run.muted else lambda *args, **kwargs: None
        self.sources: dict[types.CodeType, Source] = {}
        self.const = {parameter.name for parameter in source.parameters if parameter.const}
        self._functions: dict[Any, types.FunctionType] = {}
        self._pending: list[Any] = []  # partial results of and, or, chained comparisons and conditional expressions
        self.machine = EagerMachine(source.name, space, grid, (0, 0, 0))
        self.emit: EagerEmitter = EagerEmitter(self, options)
        self.frame: EagerFrame = EagerFrame(source, self)

    def program(self, program: Program) -> None:
        """Runs one program. Errors have a place, and a traceback that ends in frames of the kernel."""
        self.machine = EagerMachine(self.source.name, self.space, self.grid, program)
        token = running.set(self.invoke)
        self.lanes, self._pending = False, []
        try:
            function = self.function(self.source)
            function(**{name: self._argument(name, given, program) for name, given in self.arguments.items()})
        except (TypeRule, NameError) as error:
            raised = self._of_the_kernel(error)
            raised.__traceback__ = error.__traceback__
            locate(raised, self.sources)
            raise raised from None
        except BaseException as error:
            locate(error, self.sources)
            raise
        finally:
            running.reset(token)
        self.prints = False
        self.run.programs.append(program)

    def flush_output(self) -> None:
        """Writes the pending output of the kernel."""
        if not self.run.muted:
            print(lines(self.space.printed, len(self.space.printed)), end="")
        self.space.printed.clear()

    def _of_the_kernel(self, error: Exception) -> Exception:
        """The compiler's error for an undefined name of the kernel. A NameError of other code stays as it is."""
        if isinstance(error, TypeRule):
            return TypeMismatch(str(error))
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        source, name = self.sources.get(frames[-1].f_code), getattr(error, "name", None)
        if source is None:
            return error
        if isinstance(error, UnboundLocalError) or name is None:
            return Mismatch(str(error), "assign the name on every path that leads here")
        hint = did_you_mean(name, [*frames[-1].f_locals, *source.visible()])
        return Mismatch(f"unknown name `{name}`", hint).in_triton(f"{name} is not defined")

    def _argument(self, name: str, given: Any, program: Program) -> Any:
        if isinstance(given, Constant):
            value = as_constant(name, given.value)
        else:
            kind, numbers = given
            value, parts = passed(name, kind, name in self.const)
            made = {
                part: EagerValue(part.type, self, self._data(part.type, x))
                for part, x in zip(parts, numbers, strict=True)
            }
            for part, x in made.items():
                x.name = part.name
            # Errors distinguish parameters from computed values.
            self.emit.promised.update(dict.fromkeys(made.values(), 1))
            value = rebuild(value, iter([made.get(leaf, leaf) for leaf in leaves(value)]))
        if self.run.wants(program, name):
            self._keep(name, value, Loc(self.source.file, self.source.node.lineno, function=self.source.name))
        return value

    def _data(self, type: Any, x: Any) -> np.ndarray:
        if type.is_pointer:
            return self.space.pointer(x)
        return np.asarray(x).astype(numpy_dtype(type.dtype))

    def function(self, source: Source) -> types.FunctionType:
        """The rewritten Python function of a kernel or helper."""
        made = self._functions.get(source.function)
        if made is None:
            made = self._functions[source.function] = instantiate(source, self)
            self.sources[made.__code__] = source
        return made

    # -- names and calls

    def outside(self, found: Any, name: str) -> Any:
        """The value of a name from outside the function. Arrays and lists stay unchanged, because Python code may use them."""
        if isinstance(found, list) or getattr(found, "shape", None) or type(found).__module__ == "builtins":
            return found
        return as_constant(name, found)

    def attribute(self, base: Any, name: str) -> Any:
        if isinstance(base, EagerValue):
            return getattr(base, name)
        if not isinstance(base, (Value, *NUMBERS, type(None))) and not is_ours(type(base)):
            try:
                return self.outside(getattr(base, name), name)
            except AttributeError:
                pass  # the front end has a better message
        found = expressions.attribute(self.frame, base, name)
        return self.callable(found) if isinstance(found, expressions.Method) else found

    def callable(self, function: Any) -> Callable[..., Any]:
        """The Python callable for a call of `function` in the kernel."""
        if function is builtins.breakpoint or function is pdb.set_trace:
            return debugger(function, self.sources)
        if function is builtins.print:
            return self.printer
        if function is builtins.range or hasattr(function, "blocknb_eager"):
            return function
        if isinstance(function, type) and function not in calls.PYTHON and function is not constexpr:
            return function
        if isinstance(function, expressions.Method) or getattr(function, "builtin", None) or function is constexpr:
            return self._invoking(function)
        if (source := source_of(function)) is not None:
            return self.function(source)
        if isinstance(function, (DType, Pointer)):
            return self._invoking(function)
        try:
            if function in calls.PYTHON:
                return self._special(function)
        except TypeError:  # unhashable, hence a Python object
            return function
        if any(map(is_ours, (function, type(function), type(getattr(function, "__self__", None))))):
            return self._invoking(function)
        if inspect.isfunction(function) and not of_library(function):
            return self._python(function)
        return function

    def _invoking(self, function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self.invoke(function, args, kwargs)

        call.blocknb_eager = True  # type: ignore[attr-defined]
        return call

    def _special(self, function: Any) -> Callable[..., Any]:
        """The replacement of a Python builtin that has another meaning for tiles."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if function is builtins.isinstance or (
                any(isinstance(a, Value) for a in args) and all(isinstance(a, (Value, *NUMBERS)) for a in args)
            ):
                return self.invoke(function, args, kwargs)
            return function(*args, **kwargs)

        return call

    def _python(self, function: Any) -> Callable[..., Any]:
        """A plain function of the user. With constants it runs as at compile time, and with tiles as a helper."""

        def call(*args: Any, **kwargs: Any) -> Any:
            known = self.emit.constant
            args, kwargs = tuple(map(known, args)), {k: known(v) for k, v in kwargs.items()}
            return unwrap(self._helper_of(function, (*args, *kwargs.values()))(*args, **kwargs))

        return call

    def _helper_of(self, function: Any, values: Sequence[Any]) -> Any:
        if not any(isinstance(x, Value) for x in values):
            return function
        try:
            return self.function(Source(function))
        except KernelError:  # cannot be a kernel (*args, a lambda); tiles have operators, so the plain function works
            return function

    def invoke(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a function of the language."""
        if (source := source_of(function)) is not None:
            return self.function(source)(*args, **kwargs)
        try:
            found = calls.call(self.frame, function, list(map(plain, args)), {k: plain(v) for k, v in kwargs.items()})
        except KernelError as error:
            describe_call(error, function.function if isinstance(function, expressions.Method) else function)
            raise
        return found

    def run_helper(self, frame: Frame, source: Source, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Calls a helper from a handler of the front end."""
        if any(isinstance(a, Value) and not isinstance(a, EagerValue) for a in args):
            return calls.visit_helper(frame, source, args, dict(kwargs), None)
        return self.function(source)(*args, **kwargs)

    # -- assignments

    def settle(self, value: Any, targets: tuple, line: int) -> Any:
        value = settle(self.frame, value)
        for names in targets:
            self._assigned(names, value, line)
        return value

    def constant(self, value: Any, targets: tuple, line: int) -> Any:
        value = self.frame.emit.constant(unwrap(value))
        for names in targets:
            self._assigned(names, value, line)
        return value

    def _assigned(self, names: Any, value: Any, line: int) -> None:
        if isinstance(names, tuple):
            if isinstance(value, (tuple, list)):
                for name, part in zip(names, value, strict=False):
                    self._assigned(name, part, line)
        elif names is not None:
            if isinstance(value, EagerValue) and not value.name:
                value.name = names
            if self.run.wants(self.machine.program, names):
                self._keep(names, value, self._at(line))

    def entered(self, parameters: Mapping[str, Any], line: int) -> None:
        """Records the parameters of a helper of the user in the record of a program. The kernel's own are recorded before it runs."""
        loc = self._at(line) if self.machine.program == self.run.record else None
        if loc is not None and loc.caller is not None and not calls.in_language(loc):
            for name, value in parameters.items():
                self._keep(name, value, loc)

    def _keep(self, name: str, value: Any, loc: Loc) -> None:
        """Records a value. The arrays of tiles are immutable, so they need no copy."""
        found, kind = (value.data, value.type) if isinstance(value, EagerValue) else (value, None)
        self.run.keep(self.machine.program, loc, name, found, kind)

    def _at(self, line: int) -> Loc:
        """The place of a statement that begins at a line of the function that runs now."""
        return replace(current(self.sources) or Loc(self.source.file, line, function=self.source.name), line=line)

    # -- conditions

    def test(self, value: Any) -> bool:
        """The condition of an `if`, `while` or `assert`. Python objects have their usual truth value."""
        return bool(unwrap(value))

    def negate(self, value: Any) -> Any:
        return self.emit.unary("not", value) if isinstance(value, Value) else not value

    def branch(self, value: Any) -> tuple[bool, bool]:
        """The truth value of a condition, and whether it is a run-time value."""
        return self.test(value), isinstance(self.emit.constant(value), Value)

    def joined(self, value: Any, branch: tuple[bool, bool]) -> Any:
        return self.carried(value) if branch[1] else value

    def carried(self, value: Any) -> Any:
        return self.emit.runtime(value) if isinstance(value, NUMBERS) else value

    def first(self, word: str, value: Any) -> bool:
        self._pending.append([word, value])
        return self._decided()

    def then(self, value: Any) -> bool:
        entry = self._pending[-1]
        word, result = entry
        entry[1] = expressions.conjunction(self.frame, word, result, value) if isinstance(result, Value) else value
        return self._decided()

    def _decided(self) -> bool:
        word, result = self._pending[-1]
        return not isinstance(result, Value) and bool(result) == (word == "or")

    def result(self, decided: bool) -> Any:
        return self._pending.pop()[1]

    def start(self, operator: str, left: Any, right: Any) -> bool:
        self._pending.append([right, self.compare(operator, left, right)])
        return self._false()

    def step(self, operator: str, right: Any) -> bool:
        entry = self._pending[-1]
        link = self.compare(operator, entry[0], right)
        entry[:] = right, expressions.conjunction(self.frame, "and", entry[1], link)
        return self._false()

    def _false(self) -> bool:
        result = self._pending[-1][1]
        return not isinstance(result, Value) and not result

    def compare(self, operator: str, left: Any, right: Any) -> Any:
        """A comparison. Membership in an object other than a tuple or a string is that of Python, by the number."""
        if operator in ("In", "NotIn") and not isinstance(right, (tuple, str, Value)):
            number = left.item() if isinstance(left, EagerValue) and left.type.size == 1 else left
            return (number in right) == (operator == "In")
        return expressions.compare_one(self.frame, getattr(ast, operator)(), plain(left), plain(right))

    # -- conditional expressions

    def choose(self, value: Any) -> bool:
        answer, at_run_time = self.branch(value)
        self._pending.append(at_run_time)
        return answer

    def arm(self, value: Any, number: int, taken: bool) -> Any:
        """The value of the taken arm, in the common type of both arms."""
        if not self._pending.pop():
            return value
        frame = sys._getframe(1)
        source = self.sources[frame.f_code]
        node = rewritten(source).ternaries[number]
        other = self._type_of(node.orelse if taken else node.body, source, frame.f_locals)
        if not same_shape(value, other) if other is not None else True:
            return settle(self.frame, value)
        try:
            return rebuild(value, iter([self._meet(a, b) for a, b in zip(leaves(value), leaves(other), strict=True)]))
        except Disagreement as error:
            raise unequal_arms(error) from None

    def _meet(self, x: Any, other: Any) -> Any:
        if identical(x, other) or not isinstance(x, (Value, *NUMBERS)):
            return x
        kind = leaf_type(x, other)
        return x if isinstance(x, Value) else self.emit.number(x, kind.dtype, kind.shape)

    def _type_of(self, node: ast.expr, source: Source, names: Mapping[str, Any]) -> Any:
        """The compiler's value of an expression. None if the compiler does not support it."""
        frame = Frame(source, Emitter())
        frame.names.update(names)
        try:
            return frame.expr(node)
        except KernelError:
            return None

    # -- loops

    def loop(self, function: Any, places: tuple, target: Any, line: int) -> Callable[..., Any]:
        """The iterable of `for target in function(...)`. `places` are the places where the body assigns names."""
        if function is builtins.range or function is BUILTINS["range"]:
            return lambda *args, **kwargs: self._counted(
                loops.range_bounds("range", list(args), kwargs)[0], len(args) == 1, dict(places), target, line
            )
        if function is BUILTINS["static_range"]:

            def unrolled(*args: Any, **kwargs: Any) -> range:
                bounds, _ = loops.range_bounds("static_range", list(args), kwargs)
                what = ("start", "end", "step")
                start, end, step = (
                    shapes.constant_int(self.frame, x, w, f"the {w} of static_range")
                    for x, w in zip(bounds, what, strict=True)
                )
                if step == 0:
                    raise Mismatch("the step of static_range is zero", "write a positive or a negative step")
                return range(start, end, step)

            return unrolled
        return self.callable(function)

    def _counted(
        self, bounds: list[Any], single: bool, places: dict[str, tuple], target: Any, line: int
    ) -> Iterator[EagerValue]:
        """A run-time loop. The index is int32 or int64, and names keep the types that they had before the loop."""
        if self.lanes and any(isinstance(x, EagerValue) and x.type.shape for x in bounds):
            raise OneByOne
        if self.emit.constant(bounds[2]) == 0:
            raise Mismatch("the step of the range is zero", "write a positive or a negative step")
        try:
            numbers = loops.loop_bounds(self.frame, bounds)
        except Mismatch as error:
            error.argument = "arg1" if single else error.argument
            describe_call(error, BUILTINS["range"])
            raise
        return self._count(numbers, places, target, line, sys._getframe(2))

    def _count(
        self, bounds: list[Any], places: dict[str, tuple], target: Any, line: int, frame: types.FrameType
    ) -> Iterator[EagerValue]:
        kind = bounds[0].type
        before = {n: v for n, v in frame.f_locals.items() if n in places and isinstance(v, EagerValue)}
        for i in range(*(int(x.data) for x in bounds)):
            counter = EagerValue(kind, self, np.asarray(i, kind.dtype.numpy))
            self._assigned(target, counter, line)
            yield counter
            now = frame.f_locals
            for name, old in before.items():
                new = now.get(name)
                if isinstance(new, EagerValue) and new.type != old.type:
                    source = self.sources.get(frame.f_code, self.source)
                    line, column, end_line, end_column = places[name]
                    place = Loc(source.file, line, column, end_line, end_column, source.name)
                    raise loops.changed_type(name, old, new, place)


def is_ours(x: Any) -> bool:
    """Whether a class or function belongs to the language or its front end, which define its meaning in a kernel."""
    return (getattr(x, "__module__", None) or "").startswith("blocknb.")


def plain(x: Any) -> Any:
    """Converts an argument for the front end: lists to tuples, constexprs to their values."""
    if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
        return tuple(map(plain, x))
    return unwrap(x)
