"""The base class of the analyses of index arithmetic: definitions of values, and a cache of results.

The analyses depend on each other: the form of a value needs ranges, and ranges need forms. They know only this class, which declares the
queries. `affine` implements them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from blocknb.analysis.linear_forms import ITERATION, VALUE, Form, Symbol
from blocknb.ir.core import Block, Func, Op, Value


@dataclass
class Memo:
    """A cache of results, by value."""

    forms: dict[Value, Form | None] = field(default_factory=dict)
    bases: dict[Value, Value | None] = field(default_factory=dict)
    infos: dict[Value, Any] = field(default_factory=dict)
    bounds: dict[Value, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> Memo:
        return Memo(dict(self.forms), dict(self.bases), dict(self.infos), dict(self.bounds))


class FunctionFacts(ABC):
    """The structure of one Func, and the queries that its analyses make of each other."""

    def __init__(self, func: Func):
        self.func, self.memo = func, Memo()
        self.hints = {p: h.divisibility for p, h in zip(func.params, func.hints, strict=False)}
        self.limits = {p: (h.least, h.most) for p, h in zip(func.params, func.hints, strict=False)}
        self.definition: dict[Value, Op] = {}
        self.argument: dict[Value, tuple[Op, int, int]] = {}
        self.home: dict[Value, Op | None] = dict.fromkeys(func.params)
        self.parent: dict[Op, Op | None] = {}
        self.number: dict[Any, int] = {p: i for i, p in enumerate(func.params)}
        #: The tile that each local_load reads from its buffer, stored earlier in the same block; and the stores to each buffer.
        self.loaded: dict[Value, Op] = {}
        self.stores: Counter[Value] = Counter()
        self._enter(func.body, None)

    def _enter(self, block: Block, parent: Op | None) -> None:
        here: dict[Value, Op] = {}
        for op in block.ops:
            self.parent[op] = parent
            if op.name == "local_store":
                here[op.args[0]] = op
                self.stores[op.args[0]] += 1
            elif op.name == "local_load" and op.args[0] in here:
                self.loaded[op.result] = here[op.args[0]]
            for value in op.results:
                self.definition[value], self.home[value] = op, parent
                self.number[value] = len(self.number)
            for b, inner in enumerate(op.blocks):
                self.number[op] = len(self.number)
                for i, value in enumerate(inner.args):
                    self.argument[value], self.home[value] = (op, b, i), op
                    self.number[value] = len(self.number)
                self._enter(inner, op)

    # -- queries ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def form(self, value: Value) -> Form | None:
        """The polynomial of an integer, or of a pointer's offset from `base` in elements; None for anything else."""

    @abstractmethod
    def base(self, pointer: Value) -> Value | None:
        """The scalar pointer from which `form(pointer)` counts."""

    @abstractmethod
    def unwrapped(self, op: Op) -> Form | None:
        """The form of integer arithmetic, assuming that the type is unbounded."""

    @abstractmethod
    def widened(self, value: Value) -> Form | None:
        """The form of an integer extended to more bits."""

    def integer(self, value: Value) -> Form:
        """The form of an integer; if there is none, the value itself as a symbol."""
        form = self.form(value)
        assert form is not None, f"{value} is no integer"
        return form

    # -- structure -------------------------------------------------------------------------------------------------------

    def stored(self, loaded: Value) -> Value | None:
        """The tile that a local_load reads from its buffer, if it is the only tile that is ever stored there; otherwise None."""
        store = self.loaded.get(loaded)
        return store.args[1] if store is not None and self.stores[store.args[0]] == 1 else None

    def invariant(self, form: Form, loop: Op) -> bool:
        """Whether all symbols of a form are defined outside of a loop."""
        return not any(self.inside(s.value, loop) for s in form.symbols() if s.value is not None)

    def inside(self, thing: Value | Op, op: Op) -> bool:
        """Whether a value is defined in the blocks of an op; for an op, whether it is that op or nested in it."""
        at = thing if isinstance(thing, Op) else self.home[thing]
        while at is not None and at is not op:
            at = self.parent[at]
        return at is op

    def around(self, op: Op) -> Iterator[Op]:
        """The ops in whose blocks an op is, innermost first."""
        at = self.parent[op]
        while at is not None:
            yield at
            at = self.parent[at]

    def iteration(self, loop: Op) -> Symbol:
        """The symbol of the iteration number of a `for` or `while`."""
        return Symbol(ITERATION, self.number[loop], (), loop)

    def opaque(self, value: Value) -> Form:
        """The value as an opaque symbol."""
        axes = tuple(i if n > 1 else -1 for i, n in enumerate(value.type.shape))
        return Form.symbol(Symbol(VALUE, self.number[value], axes, value))

    @contextmanager
    def supposing(
        self, value: Value, form: Form | None = None, base: Value | None = None, info: Any = None
    ) -> Iterator[None]:
        """Adds facts about the value for the duration of the context. Results that are computed meanwhile are discarded afterwards."""
        saved, self.memo = self.memo, self.memo.copy()
        if form is not None:
            self.memo.forms[value] = form
        if base is not None:
            self.memo.bases[value] = base
        if info is not None:
            self.memo.infos[value] = info
        try:
            yield
        finally:
            self.memo = saved

    def carried(self, value: Value) -> tuple[Value, Value] | None:
        """The initial and the next value of a loop-carried value; None for other block arguments."""
        op, block, i = self.argument[value]
        if op.name == "for" and i > 0:
            return op.args[2 + i], op.blocks[0].terminator.args[i - 1]
        if op.name == "while" and block == 0:
            return op.args[i], op.blocks[1].terminator.args[i]
        return None
