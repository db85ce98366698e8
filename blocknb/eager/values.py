"""Tiles of an interpreted kernel: Values that hold an array, with Python's operators, subscripts and conversions.

For the front end such a tile is an ordinary Value. Its operators call the emitter, as the visitor of the syntax does. `x * 2` therefore
has the same meaning in a kernel, at the prompt of a debugger, and in a plain function that a kernel calls.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.eager.running import RunningKernel
from blocknb.errors import KernelError
from blocknb.frontend.emitter import Mismatch
from blocknb.frontend.expressions import Method, attribute, new_axes, no_elements, one_answer
from blocknb.ir.core import Value
from blocknb.language.constants import unwrap

UNKNOWN: Any = object()


class EagerValue(Value):
    """A tile or scalar of one program.

    `data` is an array of the tile's shape; pointers are addresses of the interpreter. `constant` is the number that the compiler would
    know. `interpreter` is the interpreter that computed the value.

    It prints as its numbers, `repr` adds dtype and shape; `numpy()` copies it out, `np.asarray(x)`, `int(x)`, `float(x)` and
    `if x:` do what they do for an array.
    """

    __slots__ = ("constant", "data", "interpreter")
    __array_priority__ = 1000  # x op NumPy scalar is the language's operator, on either side

    def __init__(self, type: Any, interpreter: RunningKernel, data: np.ndarray | None = None):
        super().__init__(type)
        self.interpreter, self.constant = interpreter, UNKNOWN
        if data is not None:
            self.data = data

    # -- looking at it

    def numpy(self) -> np.ndarray:
        """A copy of the elements, or of the addresses of pointers."""
        return np.array(self.data)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.data, dtype)

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.type.size != 1:
            raise Mismatch(f"a tile of shape {self.type.shape} cannot become one number", "x.numpy() returns its array")
        number = self.data.reshape(-1)[0]
        return float(number) if self.type.dtype.is_float else number.item()

    def __repr__(self) -> str:
        kind = self.type
        if kind.is_pointer:
            what = f" {kind.shape}" if kind.shape else ""
            return f"{kind.dtype!r}{what}: {self.interpreter.machine.space.spell(self.data, kind.dtype.element.bytes)}"
        return f"{kind.dtype!r} {kind.shape}: {self.data!r}" if kind.shape else repr(self.item())

    def __str__(self) -> str:
        if self.type.is_pointer:
            return repr(self)
        return str(self.data) if self.type.shape else str(self.item())

    def __format__(self, spec: str) -> str:
        if not spec or self.type.is_pointer:
            return format(str(self), spec)
        if not self.type.shape:
            return format(self.item(), spec)
        shown: Any = {"all": lambda x: format(x.item(), spec)}
        return np.array2string(self.data, formatter=shown)

    # -- as Python's own

    def __bool__(self) -> bool:
        interpreter = self.interpreter
        if interpreter.lanes and self.type.size > 1:
            raise OneByOne
        answer = one_answer(interpreter.frame, self)
        return bool(answer.data) if isinstance(answer, EagerValue) else answer

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return operator.index(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __len__(self) -> int:
        if not self.type.shape:
            raise TypeError("a scalar has no length")
        return self.type.shape[0]

    def __iter__(self) -> Any:
        raise Mismatch("a tile has no element access, and cannot be unpacked", "x.numpy() returns its array")

    def __getitem__(self, index: Any) -> Value:
        entries = list(index) if isinstance(index, tuple) else [index]
        if any(e is not None and e is not Ellipsis and e != slice(None) for e in entries):
            raise no_elements(self)
        return new_axes(self.interpreter.frame, self, entries)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in EagerValue.__slots__:
            raise AttributeError(name)
        try:
            found = attribute(self.interpreter.frame, self, name)
        except KernelError as error:  # for hasattr, and for tools that probe attributes
            raise UnknownAttribute(error.message, hint=error.hint) from None
        return self.interpreter.callable(found) if isinstance(found, Method) else found

    __hash__ = object.__hash__


class UnknownAttribute(Mismatch, AttributeError):
    """Raised for an unknown attribute of a tile. It is an error of the kernel and an AttributeError."""

    title = Mismatch.title


class OneByOne(BaseException):
    """Raised if a function of scalars branches on one, so that it cannot run on all elements at once. Internal to this package."""


def _binary(symbol: str) -> Callable:
    return lambda self, other: self.interpreter.emit.binary(symbol, self, unwrap(other))


def _reflected(symbol: str) -> Callable:
    return lambda self, other: self.interpreter.emit.binary(symbol, unwrap(other), self)


def _comparison(symbol: str) -> Callable:
    return lambda self, other: self.interpreter.emit.compare(symbol, self, unwrap(other))


def _unary(symbol: str) -> Callable:
    return lambda self: self.interpreter.emit.unary(symbol, self)


for _name, _symbol in (
    ("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("floordiv", "//"), ("mod", "%"), ("pow", "**"), ("matmul", "@"),
    ("and", "&"), ("or", "|"), ("xor", "^"), ("lshift", "<<"), ("rshift", ">>"),
):  # fmt: skip
    setattr(EagerValue, f"__{_name}__", _binary(_symbol))
    setattr(EagerValue, f"__r{_name}__", _reflected(_symbol))
for _name, _symbol in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(EagerValue, f"__{_name}__", _comparison(_symbol))
for _name, _symbol in (("neg", "-"), ("pos", "+"), ("invert", "~")):
    setattr(EagerValue, f"__{_name}__", _unary(_symbol))
