"""Facts about indices, addresses and masks, derived from linear forms.

`analyze(func)` gives `Facts`, which computes its answers on demand and caches them. An integer or pointer tile has a linear `form`, a
`root` argument, a `stride` and a `range`. Along an axis it has `contiguity`, `divisibility` and `constancy`. The form of a pointer is its
offset in elements from its base. A loop-carried value whose yield is itself plus an invariant has the form `init + step * iteration`, as in
LLVM's scalar evolution. The analysis names the value, computes the form of the yield, and compares.

The assumptions are slightly weaker than Triton's: signed 32- and 64-bit arithmetic for addresses and masks does not overflow, and divisors
are positive. Narrow and unsigned arithmetic may wrap. It has a form only if its range proves that it does not. `range` and `truth` never
use these assumptions, but they use the author's promises (`assume`).
"""

from __future__ import annotations

from typing import Any

from blocknb.analysis import axis_info, division_forms, ranges
from blocknb.analysis.facts import FunctionFacts
from blocknb.analysis.linear_forms import COUNT, MAX_TERMS, Dim, Form, Symbol, common
from blocknb.analysis.operand_order import operands_first
from blocknb.analysis.reshaped_forms import reshape
from blocknb.ir.core import Func, Op, Value
from blocknb.language.ops import PRESERVING, named
from blocknb.language.types import Tile


def analyze(func: Func) -> Facts:
    """The facts about a Func of the tile or distributed level. The call walks the function once; the rest is computed on demand."""
    return Facts(func)


#: The ops whose result is an operand, moved or not: of numbers and of pointers.
CARRYING = PRESERVING | {"ptradd", "promise", "select"}
RING = named("ring")
#: The arithmetic for which `form` has a rule.
ARITHMETIC = RING | {"cast", "shl", "shr", "div", "rem", "and", "or", "xor", "min", "max", "abs"}


def _pointers(op: Op) -> tuple[Value, ...]:
    """The pointers from which an op makes its result."""
    return tuple(a for a in op.args if a.type.is_pointer) if op.name in CARRYING else ()


def _terms(op: Op) -> tuple[Value, ...]:
    """The numbers and pointers over which an op's result may be a polynomial."""
    if op.name not in CARRYING | ARITHMETIC:
        return ()
    return tuple(a for a in op.args if a.type.is_pointer or (a.type.dtype.is_integer and a.type.dtype.kind != "bool"))


class Facts(FunctionFacts):
    """The facts about one Func. Values of other Funcs raise KeyError."""

    def __init__(self, func: Func):
        super().__init__(func)
        self.suppositions: dict[tuple[Value, int], Facts] = {}

    def with_multiple(self, parameter: Value, multiple: int) -> Facts:
        """The facts if a parameter were a multiple of a number, which counts bytes for a pointer."""
        key = parameter, multiple
        if key not in self.suppositions:
            supposed = self.suppositions[key] = Facts(self.func)
            supposed.hints[parameter] = max(multiple, supposed.hints.get(parameter, 1))
        return self.suppositions[key]

    # -- queries ---------------------------------------------------------------------------------------------------------

    def form(self, value: Value) -> Form | None:
        """The polynomial of an integer, or of a pointer's offset from `base` in elements; None for anything else."""
        forms = self.memo.forms
        if value not in forms:
            for known in operands_first(self, value, forms, _terms):
                if known not in forms:
                    forms[known] = self._form(known)
        return forms[value]

    def base(self, pointer: Value) -> Value | None:
        """The scalar pointer from which `form(pointer)` counts: a parameter, or an opaque pointer. None for a tile without a single
        base."""
        bases = self.memo.bases
        if pointer not in bases:
            for known in operands_first(self, pointer, bases, _pointers):
                if known not in bases:
                    bases[known] = self._base(known)
        return bases[pointer]

    def root(self, pointer: Value) -> Value | None:
        """The pointer parameter from which a pointer comes, if there is exactly one; else None."""
        base = self.base(pointer)
        while base is not None and (op := self.definition.get(base)) is not None and op.name == "promise":
            base = self.base(op.args[0])
        return base if base in self.hints or base in self.func.params else None

    def contiguity(self, value: Value, axis: int) -> int:
        """The largest known power of two c such that elements of every aligned group of c along the axis increase by one."""
        return axis_info.contiguity(self, value, axis)

    def constancy(self, value: Value, axis: int) -> int:
        """The largest known power of two c such that every aligned group of c along the axis holds one value."""
        return axis_info.constancy(self, value, axis)

    def divisibility(self, value: Value, axis: int | None = None) -> int:
        """A power of two (at most 2^30) that divides every element. With `axis`, it divides the first of each group of `contiguity`.
        For pointers it divides the address in bytes."""
        group = 1 if axis is None else self.contiguity(value, axis)
        found = axis_info.divisor(self, value, axis, group)
        if not value.type.is_pointer:
            return found
        base, promise = self.base(value), axis_info.promised_multiple(self.definition.get(value), axis)
        if base is None:
            return promise
        aligned: int = max(promise, min(self.alignment(base), found * value.type.dtype.element.bytes))
        return aligned

    def alignment(self, base: Value) -> int:
        """A power of two that divides the address of a `base`: the specialization of an argument, a promise, or the alignment of its
        source."""
        op = self.definition.get(base)
        if op is None:
            return self.hints.get(base, 1)
        promise = axis_info.promised_multiple(op, None)
        match op.name:
            case "bitcast" | "promise":
                return max(promise, self.divisibility(op.args[0]))
            case "select":
                return max(promise, min(self.divisibility(a) for a in op.args[1:]))
            case "if":
                position = op.results.index(base)
                return max(promise, min(self.divisibility(b.terminator.args[position]) for b in op.blocks))
        return promise

    def stride(self, value: Value, axis: int) -> int | Form | None:
        """The difference of neighbours along an axis, if it is the same everywhere: a number, or a form of uniform symbols. None if it
        differs."""
        form = self.form(value)
        if form is None or (cut := form.split(axis)) is None:
            return None
        return cut[0] if cut[0].constant is None else cut[0].constant

    def range(self, value: Value) -> tuple[int, int] | None:
        """Inclusive bounds of every element of an integer value; None if only the limits of the type are known."""
        if not isinstance(value.type, Tile) or not value.type.dtype.is_integer:
            return None
        found = ranges.bounds(self, value)
        return None if found == ranges.limits(value.type.dtype) else found

    def bounds(self, value: Value) -> tuple[Form, Form] | None:
        """The least and the greatest element of a tile as forms of uniform symbols; None if the sign of a stride is unknown."""
        form = self.form(value)
        return None if form is None else ranges.extremes(self, form, value.type.shape)

    def truth(self, value: Value) -> bool | None:
        """True or False if every element of a boolean is known to have that value, else None."""
        return ranges.truth(self, value)

    # -- forms -------------------------------------------------------------------------------------------------------------

    def _form(self, value: Value) -> Form | None:
        if not isinstance(value.type, Tile):
            return None
        dtype = value.type.dtype
        if value.type.is_pointer:
            base = self.base(value)
            if base is None or base is value:
                return None if base is None else Form.of(0)
        elif not dtype.is_integer or dtype.kind == "bool":
            return None
        found = None
        if value in self.argument:
            found = self._argument(*self.argument[value], value)
        elif value in self.definition:
            op = self.definition[value]
            found = self._structured(op, value) if op.blocks else self._operation(op, dtype)
            if found is not None and axis_info.promised(self, op, found):
                found = None  # the author's promises state more about the value than its form
        if found is None or len(found.terms) > MAX_TERMS:
            return self.opaque(value)
        return found

    def _operation(self, op: Op, dtype: Any) -> Form | None:
        """The form of a plain op's result from those of its operands; None for an opaque one."""
        args, attrs = op.args, op.attrs
        match op.name:
            case "const":
                return Form.of(int(attrs["value"]))
            case "arange":
                dim = Form.symbol(Dim(0)) if attrs["end"] - attrs["start"] > 1 else Form.of(0)
                return dim + Form.of(attrs["start"])
            case "splat" | "broadcast" | "convert" | "promise":
                return self.form(args[0])
            case "expand_dims" | "trans" | "reshape" | "part":
                return self._shaped(op, self.form(args[0]))
            case "ptradd":
                pointer, offset = self.form(args[0]), self.widened(args[1])
                return None if pointer is None or offset is None else pointer + offset
            case "cast":
                return self._cast(args[0], dtype)
            case name if name in RING:
                return self.fitting(self.unwrapped(op), op.result.type)
            case "shl" | "shr" | "div" | "rem" | "and" | "or" | "xor" | "min" | "max" | "abs" | "select":
                return self.fitting(division_forms.polynomial(self, op), op.result.type)
        return None

    def unwrapped(self, op: Op) -> Form | None:
        """The form of integer arithmetic, assuming that the type is unbounded."""
        a = self.integer(op.args[0])
        if op.name == "neg":
            return -a
        b = self.integer(op.args[1])
        match op.name:
            case "add":
                return a + b
            case "sub":
                return a - b
        return a * b if len(a.terms) * len(b.terms) <= MAX_TERMS else None

    def fitting(self, form: Form | None, type: Tile) -> Form | None:
        """The form, if arithmetic in this type cannot wrap: assumed for wide signed integers, proved for the others. None if it can
        wrap."""
        if form is None or (type.dtype.kind == "int" and type.dtype.bits >= 32):
            return form
        return form if ranges.within(ranges.interval(self, form, type.shape), ranges.limits(type.dtype)) else None

    def widened(self, value: Value) -> Form | None:
        """The form of an integer extended to more bits. It is exact only if the range proves that the narrow value had not overflowed."""
        form = self.form(value)
        if form is None or ranges.within(
            ranges.interval(self, form, value.type.shape), ranges.limits(value.type.dtype)
        ):
            return form
        return form.assumed()

    def _cast(self, x: Value, dtype: Any) -> Form | None:
        source = x.type.dtype
        form = self.form(x)
        if form is None or source == dtype:
            return form
        if dtype.bits > source.bits and (source.kind == "uint" or dtype.kind == "int"):
            return self.widened(x)
        if dtype.bits >= source.bits:  # a change of signedness keeps numbers that both types hold
            low, high = ranges.interval(self, form, x.type.shape)
            return self.widened(x) if low >= 0 and (source.kind == "int" or high <= ranges.limits(dtype)[1]) else None
        return form if ranges.within(ranges.bounds(self, x), ranges.limits(dtype)) else None

    def _shaped(self, op: Op, form: Form | None) -> Form | None:
        if form is None:
            return None
        old = op.args[0].type.shape
        match op.name:
            case "expand_dims":
                return form.renamed({i: i + (i >= op.attrs["axis"]) for i in range(len(old))})
            case "trans":
                return form.renamed({axis: i for i, axis in enumerate(op.attrs["perm"])})
            case "part":
                axis, start = op.attrs["axis"], op.attrs["index"] * op.result.type.shape[op.attrs["axis"]]
                if form.split(axis) is None:  # an opaque symbol varies along the axis
                    return None
                return form.replaced(Dim(axis), Form.symbol(Dim(axis)) + Form.of(start))
        return reshape(form, old, tuple(op.attrs["shape"]))

    # -- control flow ------------------------------------------------------------------------------------------------------

    def _argument(self, op: Op, block: int, i: int, value: Value) -> Form | None:
        if op.name == "for" and i == 0:
            lower, step = self.form(op.args[0]), self.form(op.args[2])
            return (
                None
                if lower is None or step is None
                else self.fitting(lower + step * Form.symbol(self.iteration(op)), value.type)
            )
        if op.name == "while" and block == 1:
            return self.form(op.blocks[0].terminator.args[i + 1])
        if (carried := self.carried(value)) is None:
            return None
        first, after = carried
        start = self.form(first)
        if after is value:
            return start
        name, base = self.opaque(value), self.base(value) if value.type.is_pointer else None
        with self.supposing(value, name, base):
            last = self.form(after)
        if start is None or last is None:
            return None
        step = last - name
        return start + step * Form.symbol(self.iteration(op)) if self.invariant(step, op) else None

    def _structured(self, op: Op, value: Value) -> Form | None:
        """The form of a result of `for`, `while` or `if`, as seen from outside."""
        i = op.results.index(value)
        match op.name:
            case "if":
                form = common(*(self.form(block.terminator.args[i]) for block in op.blocks))
                return form if form is not None and self.invariant(form, op) else None
            case "for":
                form = self.form(op.blocks[0].args[1 + i])
            case "while":
                form = self.form(op.blocks[0].terminator.args[1 + i])
            case _:
                return None
        if form is None:
            return None
        count = ranges.iterations(self, op)
        total = Form.of(count[0]) if count[0] == count[1] else Form.symbol(Symbol(COUNT, self.number[op], (), op))
        form = form.replaced(self.iteration(op), total)
        outside = (
            s.value is None or (s.kind == COUNT and s.value is op) or not self.inside(s.value, op)
            for s in form.symbols()
        )
        return form if all(outside) else None

    def _base(self, pointer: Value) -> Value | None:
        own = pointer if pointer.type.is_scalar else None
        if pointer in self.argument:
            return self._carried_base(pointer, own)
        if pointer not in self.definition:
            return own
        op = self.definition[pointer]
        match op.name:
            case name if name == "ptradd" or name in PRESERVING:
                return self.base(op.args[0])
            case "promise" if not pointer.type.is_scalar:  # a scalar promise is a base of its own, with its alignment
                return self.base(op.args[0])
            case "select":
                a, b = self.base(op.args[1]), self.base(op.args[2])
            case "if":
                a, b = (self.base(block.terminator.args[op.results.index(pointer)]) for block in op.blocks)
            case "for":
                a = b = self.base(op.blocks[0].args[1 + op.results.index(pointer)])
            case "while":
                a = b = self.base(op.blocks[0].terminator.args[1 + op.results.index(pointer)])
            case _:
                return own
        return a if a is not None and a is b and not (op.blocks and self.inside(a, op)) else own

    def _carried_base(self, pointer: Value, own: Value | None) -> Value | None:
        op, block, i = self.argument[pointer]
        if op.name == "while" and block == 1:
            return self.base(op.blocks[0].terminator.args[i + 1])
        carried = self.carried(pointer)
        if carried is None or (base := self.base(carried[0])) is None:
            return own
        with self.supposing(pointer, base=base):
            return base if self.base(carried[1]) is base else own
