"""Translates calls: builtins of the language, helper kernels, dtypes and plain Python functions.

The front end looks up a name in a kernel as Python does. The object decides the meaning of the call. A builtin emits ops, under
any alias. A kernel or library function is inlined. A plain Python function runs at compile time and takes only
constants.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from blocknb import language
from blocknb.errors import KernelError, Loc, StaticAssertionFailed, SyntaxUnsupported
from blocknb.frontend import (  # noqa: F401 (some modules only register their handlers)
    assembly,
    atomics,
    debug,
    descriptors,
    hint_checks,
    memory,
    numeric,
    shapes,
    target_queries,
)
from blocknb.frontend.emitter import Emitter, Mismatch, describe
from blocknb.frontend.expressions import Method, Operator, printable
from blocknb.frontend.hints import did_you_mean, instead_of_array, instead_of_function
from blocknb.frontend.libraries import of_library
from blocknb.frontend.merge import leaves
from blocknb.frontend.scope import Frame, Returned, emits, expression
from blocknb.frontend.source import MISSING, Parameter, Source, source_of
from blocknb.ir.core import Value
from blocknb.language import declarations
from blocknb.language import types as t
from blocknb.language.constants import constexpr, unwrap
from blocknb.language.library import LIBRARY

LANGUAGE = os.path.dirname(language.__file__) + os.sep
#: Python's own functions that have another meaning in a kernel; `frontend/python_functions.py` fills it.
PYTHON: dict[Any, Callable] = {}

# -- signatures ----------------------------------------------------------------------------------------------------------------

_signatures: dict[str, tuple[tuple[Parameter, ...], str | None]] = {}


def signature(name: str) -> tuple[tuple[Parameter, ...], str | None]:
    """The parameters that a builtin declares, and the name of its `*` parameter."""
    if name not in _signatures:
        parameters = list(inspect.signature(declarations.BUILTINS[name]).parameters.values())
        star = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), None)
        named = (
            Parameter(p.name, default=p.default, keyword_only=p.kind == p.KEYWORD_ONLY)
            for p in parameters
            if p.kind != p.VAR_POSITIONAL
        )
        _signatures[name] = tuple(named), star
    return _signatures[name]


def bind(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], kwargs: dict[str, Any], star: str | None = None
) -> dict[str, Any]:
    """The arguments by parameter name, with defaults. Raises Mismatch if an argument is missing, unknown or surplus."""
    positional = [p.name for p in parameters if not p.keyword_only]
    if len(args) > len(positional) and star is None:
        raise Mismatch(
            f"`{name}` takes {len(positional)} positional arguments, not {len(args)}",
            f"its parameters are ({', '.join(p.name for p in parameters)})",
        )
    bound = dict(zip(positional, args, strict=False))
    for key, value in kwargs.items():
        if key in bound:
            raise Mismatch(f"`{name}` gets the argument `{key}` twice", None, key)
        bound[key] = value
    known = {p.name for p in parameters}
    for key in kwargs:
        if key not in known and key != star:
            raise Mismatch(
                f"`{name}` has no parameter `{key}`",
                did_you_mean(key, known) or f"its parameters are ({', '.join(p.name for p in parameters)})",
                key,
            )
    for p in parameters:
        if p.name not in bound:
            if p.default is MISSING:
                raise Mismatch(
                    f"the call of `{name}` lacks the argument `{p.name}`",
                    f"its parameters are ({', '.join(q.name for q in parameters)})",
                )
            bound[p.name] = p.default
    return bound


def call_builtin(frame: Frame, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    parameters, star = signature(name)
    handler = frame.handlers.get(name)
    if handler is None:
        raise Mismatch(f"`{name}` cannot be called here", "use tl.range and tl.static_range only in `for ... in`")
    if star is None:
        return handler(frame, **bind(name, parameters, args, kwargs))
    if star in kwargs:  # reshape(x, shape=(4, 8)) names the `*` parameter
        args, kwargs = [*args, kwargs[star]], {k: v for k, v in kwargs.items() if k != star}
    named = [p for p in parameters if not p.keyword_only]
    bound = bind(name, parameters, args, kwargs, star)
    keywords = {p.name: bound[p.name] for p in parameters if p.keyword_only}
    return handler(frame, *(bound[p.name] for p in named), *args[len(named) :], **keywords)


# -- the call expression -------------------------------------------------------------------------------------------------------


@expression(ast.Call)
def visit_call(frame: Frame, node: ast.Call) -> Any:
    function = frame.expr(node.func)
    if spread := next((k.value for k in node.keywords if k.arg is None), None):
        raise SyntaxUnsupported(
            "`**` in a call is not supported in a kernel", frame.loc(spread), "write the arguments out"
        )
    args: list[Any] = []
    for a in node.args:
        args += _elements(frame, a.value) if isinstance(a, ast.Starred) else (frame.expr(a),)
    kwargs = {k.arg: frame.expr(k.value) for k in node.keywords if k.arg and k.arg not in COMPILER_KEYWORDS}
    if isinstance(function, Value):
        raise shadowed(frame, node.func, function)
    try:
        return call(frame, function, args, kwargs, node)
    except Mismatch as error:
        if error.loc is None and error.argument is not None:
            error.loc = argument_loc(frame, node, function, error.argument)
        raise


def _elements(frame: Frame, node: ast.expr) -> tuple:
    """The arguments that `*x` expands to."""
    x = frame.expr(node)
    if not isinstance(x, tuple):
        error = Mismatch(
            f"`*` expands a tuple, not {describe(x)}", "tl.split(x) splits a last axis of size two into two tiles"
        )
        error.loc = frame.loc(node)
        raise error
    return x


def shadowed(frame: Frame, node: ast.expr, value: Value) -> Mismatch:
    """The error for a call of a value, most often because the kernel assigned to the name of a function."""
    hint = None
    if isinstance(node, ast.Name) and (where := frame.where.get(node.id)):
        hint = f"line {getattr(where, 'lineno', 0)} assigns to `{node.id}`; use another name there"
    error = Mismatch(f"`{ast.unparse(node)}` is a value here ({describe(value)}), not a function", hint)
    error.loc = frame.loc(node)
    return error


COMPILER_KEYWORDS = ("_builder", "_semantic", "_generator")  # of old Triton versions; published kernels still pass them


def argument_loc(frame: Frame, node: ast.Call, function: Any, argument: str) -> Any:
    """The place of one argument of a call, or None if the call does not contain it."""
    for keyword in node.keywords:
        if keyword.arg == argument:
            return frame.loc(keyword.value)
    shift = 0
    if isinstance(function, Method):
        function, shift = function.function, 1
    name = getattr(function, "builtin", None)
    if name is None:
        return None
    parameters, star = signature(name)
    names = [p.name for p in parameters if not p.keyword_only] + ([star] if star else [])
    if argument not in names:
        return None
    at = names.index(argument) - shift
    if at < 0:
        return frame.loc(node.func.value) if isinstance(node.func, ast.Attribute) else None
    spread = any(isinstance(a, ast.Starred) for a in node.args[: at + 1])
    return frame.loc(node.args[at]) if at < len(node.args) and not spread else None


def call(frame: Frame, function: Any, args: list[Any], kwargs: dict[str, Any], node: ast.AST | None = None) -> Any:
    """Calls the object that a name refers to."""
    if isinstance(function, Method):
        function, args = function.function, [function.receiver, *args]
    if isinstance(function, Operator):
        if len(args) != 1 or kwargs:
            raise Mismatch(f"the operator `{function.symbol}` takes one value, not {len(args) + len(kwargs)}")
        return function(frame, args[0])
    if name := getattr(function, "builtin", None):
        return call_builtin(frame, name, args, kwargs)
    if (source := source_of(function)) is not None:
        return inline(frame, source, args, kwargs, node)
    if isinstance(function, (t.DType, t.Pointer)):
        if len(args) != 1 or kwargs:
            raise Mismatch(f"the dtype {function} converts one value, not {len(args) + len(kwargs)}")
        return shapes.cast(frame, args[0], function)
    if function is t.DType:
        return shapes.dtype_of(*args, **kwargs)  # tl.dtype("uint16")
    if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_make"):
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            raise Mismatch(
                f"`{function.__name__}`: {error}", f"its fields are ({', '.join(vars(function)['_fields'])})"
            ) from None
    if function is constexpr:
        return compile_time(args[0], frame) if args else None
    try:
        special = PYTHON.get(function)
    except TypeError:  # unhashable, hence not one of them
        special = None
    if special is not None:
        try:
            inspect.signature(special).bind(frame, *args, **kwargs)
        except TypeError as error:
            raise Mismatch(f"`{function.__name__}` in a kernel: {error}") from None
        return special(frame, *args, **kwargs)
    return call_python(frame, function, args, kwargs)


def compile_time(x: Any, frame: Frame) -> Any:
    """The argument of tl.constexpr(...), which must be known at compile time."""
    x = frame.emit.constant(x)
    if isinstance(x, Value):
        raise Mismatch(
            f"a constexpr must be known at compile time, but this is {describe(x)} computed at run time",
            "drop the tl.constexpr",
        )
    return x


def call_python(frame: Frame, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Calls a plain Python function at compile time. Every argument must be a constant."""
    if not callable(function):
        raise Mismatch(f"{describe(function)} is not a function")
    name = getattr(function, "__name__", str(function))
    args = [frame.emit.constant(a) for a in args]
    kwargs = {k: frame.emit.constant(v) for k, v in kwargs.items()}
    if any(contains_value(x) for x in (*args, *kwargs.values())):
        if (getattr(function, "__module__", None) or "").split(".")[0] == "blocknb" and name in LIBRARY:
            return call(frame, LIBRARY[name], [*args], kwargs)  # blocknb.cdiv, meant for the host, is tl.cdiv here
        own = inspect.isfunction(function)
        hint = (
            "decorate it with @blocknb.kernel; the compiler then inlines it here"
            if own and not of_library(function)
            else instead_of_function(name)
        )
        raise Mismatch(
            f"`{name}` is a plain Python function, and this call gives it values known only at run time", hint
        )
    try:
        result = unwrap(frame.emit.host(function, args, kwargs))
    except KernelError:
        raise
    except Exception as error:
        raise Mismatch(f"`{name}`, called while compiling, raised {type(error).__name__}: {error}") from error
    if hint := instead_of_array(name, result):
        raise Mismatch(f"`np.{name}` makes an array on the host, and a kernel computes with tiles", hint)
    return tuple(result) if isinstance(result, list) else result


def contains_value(x: Any) -> bool:
    return any(isinstance(leaf, Value) for leaf in leaves(x))


# -- inlining --------------------------------------------------------------------------------------------------------------------


def inline(frame: Frame, source: Source, args: Sequence[Any], kwargs: dict[str, Any], node: ast.AST | None) -> Any:
    """Visits the body of a helper in place of the call. The ops keep their own lines, with the call as `caller`."""
    if frame.emit.runs is not None:
        return frame.emit.runs(frame, source, args, kwargs)
    return visit_helper(frame, source, args, kwargs, node)


def visit_helper(
    frame: Frame, source: Source, args: Sequence[Any], kwargs: dict[str, Any], node: ast.AST | None
) -> Any:
    caller = frame.loc(node) if node is not None else frame.emit.loc
    inner = Frame(source, frame.emit, caller, frame)
    inner.names.update(bind(source.name, source.parameters, args, kwargs))
    inner.known = {name: value for name, value in inner.names.items() if not contains_value(value)}
    inner.refuse_endless()
    try:
        returned = inner.run(source.node.body)
    except KernelError as error:
        if getattr(source.function, "inline", False) and error.loc is not None and in_language(error.loc):
            # The error points to the user's call, not into the library.
            error.loc = caller
            if not in_language(caller):
                what, _, instead = error.message.removeprefix("static_assert failed: ").partition("; ")
                error.message, error.hint = f"in `{source.name}`: {what}", error.hint or instead or None
        raise
    return returned.value if isinstance(returned, Returned) else None


def in_language(loc: Loc | None) -> bool:
    """Whether a place lies in a library function that is written in the language itself."""
    return loc is not None and loc.file.startswith(LANGUAGE)


# -- hints and compile-time output ---------------------------------------------------------------------------------------------


def _promise(name: str) -> None:
    """Registers a hint, which becomes an attribute of the op of its operand. Axis info reads the attribute."""

    def handler(frame: Frame, input: Any, values: Any) -> Any:
        divisors = values if isinstance(values, tuple) else (values,)
        numbers = tuple(shapes.constant_int(frame, n, "values") for n in divisors)
        if any(n <= 0 for n in numbers):
            raise Mismatch(f"{name} takes positive numbers, not {numbers}", None, "values")
        if isinstance(input, Value) and frame.emit.tests_hints(input):
            hint_checks.test_hint(frame.emit, input, name, numbers)
        elif isinstance(input, Value) and not frame.emit.promise(input, **{name: numbers}):
            return frame.emit.value("promise", input, **{name: numbers})
        return input

    emits(name)(handler)


for _name in ("multiple_of", "max_contiguous", "max_constancy"):
    _promise(_name)


@emits("assume")
def assume(frame: Frame, cond: Any) -> None:
    """Records the facts that a condition implies.

    Operands of `&` are assumed one by one. A comparison with a constant bounds the other side. `x % n == 0` has the meaning of
    `multiple_of`. The compiler does not use other conditions.
    """
    cond = frame.emit.constant(cond)
    if isinstance(cond, Value):
        holds = frame.emit.truth(cond)
        if frame.emit.tests_hints(holds):
            frame.emit.op("assert", holds, frame.emit.cast(holds, t.int64), message="tl.assume")
        else:
            _assume(frame.emit, cond)
    elif not cond:
        raise Mismatch("the assumption is false", None, "cond")


MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


def _assume(emit: Emitter, cond: Value) -> None:
    made = emit.definition(cond)
    if made is not None and made.name == "and":
        for part in made.args:
            _assume(emit, part)
    if made is None or made.name != "cmp" or made.attrs["pred"] == "ne":
        return
    (a, b), predicate = made.args, made.attrs["pred"]
    if a in emit.known:
        a, b, predicate = b, a, MIRRORED[predicate]
    number = emit.known.get(b)
    if not isinstance(number, int) or a in emit.known or a.type.is_pointer or a.type.dtype.kind not in ("int", "uint"):
        return
    rest = emit.definition(a)
    if predicate == "eq" and number == 0 and rest is not None and rest.name == "rem":
        divisor = emit.known.get(rest.args[1])
        if isinstance(divisor, int) and divisor > 0:
            emit.promise(rest.args[0], multiple_of=(divisor,) * max(1, len(cond.type.shape)))
    bounds = {
        "lt": {"most": number - 1}, "le": {"most": number}, "gt": {"least": number + 1}, "ge": {"least": number},
        "eq": {"least": number, "most": number},
    }[predicate]  # fmt: skip
    _promise_bounds(emit, a, bounds)


def _promise_bounds(emit: Emitter, a: Value, bounds: dict[str, int]) -> None:
    """Promises bounds of an integer, and of the narrower integers that it was extended from."""
    while True:
        emit.promise(a, **bounds)
        rest = emit.definition(a)
        if rest is None or rest.name != "cast" or rest.args[0].type.dtype.kind not in ("int", "uint"):
            return
        if rest.args[0].type.dtype.bits > a.type.dtype.bits or rest.args[0].type.dtype.kind != a.type.dtype.kind:
            return
        a = rest.args[0]


@emits("static_assert")
def static_assert(frame: Frame, cond: Any, msg: Any = "") -> None:
    cond = frame.emit.constant(cond)
    if isinstance(cond, Value):
        raise Mismatch(
            "static_assert needs a condition known at compile time", "it can test constexprs, shapes and dtypes", "cond"
        )
    if not cond:
        raise StaticAssertionFailed(f"static_assert failed{': ' + str(msg) if msg else ''}")


@emits("static_print")
def static_print(
    frame: Frame, *values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: Any = False
) -> None:
    frame.emit.printed.append(sep.join(str(printable(v)) for v in values) + end)
