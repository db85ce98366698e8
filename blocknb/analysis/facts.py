"""What every analysis of index arithmetic shares: where values are defined, and what has been worked out so far.

The analyses ask each other: the form of a value needs ranges, and ranges need forms. So they know this class only, whose questions `affine`
answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from blocknb.analysis.linear_forms import TRIP, VALUE, Form, Symbol
from blocknb.ir.core import Block, Func, Op, Value


@dataclass
class Memo:
    """What has been worked out so far, by value."""

    forms: dict[Value, Form | None] = field(default_factory=dict)
    bases: dict[Value, Value | None] = field(default_factory=dict)
    infos: dict[Value, Any] = field(default_factory=dict)
    bounds: dict[Value, tuple[int, int]] = field(default_factory=dict)

    def copy(self) -> Memo:
        return Memo(dict(self.forms), dict(self.bases), dict(self.infos), dict(self.bounds))


class FunctionFacts(ABC):
    """The structure of one Func, and the questions that its analyses ask of each other."""

    def __init__(self, func: Func):
        self.func, self.memo = func, Memo()
        self.hints = {p: h.divisibility for p, h in zip(func.params, func.hints, strict=False)}
        self.limits = {p: (h.least, h.most) for p, h in zip(func.params, func.hints, strict=False)}
        self.definition: dict[Value, Op] = {}
        self.argument: dict[Value, tuple[Op, int, int]] = {}
        self.home: dict[Value, Op | None] = dict.fromkeys(func.params)
        self.parent: dict[Op, Op | None] = {}
        self.number: dict[Any, int] = {p: i for i, p in enumerate(func.params)}
        #: What a local_load has from its buffer, which was stored in the same block before; and the stores to each buffer.
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

    # -- the questions ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def form(self, value: Value) -> Form | None:
        """The polynomial of an integer, or of a pointer's offset from `base` in elements; None for anything else."""

    @abstractmethod
    def base(self, pointer: Value) -> Value | None:
        """The scalar pointer that `form(pointer)` counts from."""

    @abstractmethod
    def unwrapped(self, op: Op) -> Form | None:
        """The form of integer arithmetic as if the type had no width."""

    @abstractmethod
    def widened(self, value: Value) -> Form | None:
        """The form of an integer extended to more bits."""

    def integer(self, value: Value) -> Form:
        """The form of an integer, which is at worst the value itself as a symbol."""
        form = self.form(value)
        assert form is not None, f"{value} is no integer"
        return form

    # -- structure -------------------------------------------------------------------------------------------------------

    def stored(self, loaded: Value) -> Value | None:
        """The tile that a conversion brings through shared memory to a local_load: all that is ever stored to that buffer."""
        store = self.loaded.get(loaded)
        return store.args[1] if store is not None and self.stores[store.args[0]] == 1 else None

    def invariant(self, form: Form, loop: Op) -> bool:
        """Whether a form is built of symbols from outside a loop alone."""
        return not any(self.inside(s.value, loop) for s in form.symbols() if s.value is not None)

    def inside(self, thing: Value | Op, op: Op) -> bool:
        """Whether a value is defined in the blocks of an op (or an op lies there, or is it)."""
        at = thing if isinstance(thing, Op) else self.home[thing]
        while at is not None and at is not op:
            at = self.parent[at]
        return at is op

    def trip(self, loop: Op) -> Symbol:
        """The symbol of the iteration number of a `for` or `while`."""
        return Symbol(TRIP, self.number[loop], (), loop)

    def opaque(self, value: Value) -> Form:
        """The value as a symbol of its own."""
        axes = tuple(i if n > 1 else -1 for i, n in enumerate(value.type.shape))
        return Form.symbol(Symbol(VALUE, self.number[value], axes, value))

    @contextmanager
    def supposing(
        self, value: Value, form: Form | None = None, base: Value | None = None, info: Any = None
    ) -> Iterator[None]:
        """Inside, the value has these facts; what is worked out meanwhile is forgotten afterwards."""
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
        """For a value that a loop carries, the values it has first and next; None for other block arguments."""
        op, block, i = self.argument[value]
        if op.name == "for" and i > 0:
            return op.args[2 + i], op.blocks[0].terminator.args[i - 1]
        if op.name == "while" and block == 0:
            return op.args[i], op.blocks[1].terminator.args[i]
        return None
