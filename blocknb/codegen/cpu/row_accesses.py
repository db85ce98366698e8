"""The loads and stores of one row: which ones run once per row, where the code checks them, and which mask each has.

An access whose lanes are contiguous is checked once per row. If the row as a whole is not safe, each vector checks its lanes.
"""

from __future__ import annotations

from blocknb.codegen.cpu import nontemporal_stores, scalar_accesses
from blocknb.codegen.cpu.context import VersionContext, VersionPart, lowers
from blocknb.codegen.cpu.dataflow import identity
from blocknb.codegen.cpu.uniformity import Prefix, Stored, Strided, Uniform, Uniformity, UniformityAnalysis, Varying
from blocknb.codegen.cpu.vectors import VectorBody
from blocknb.codegen.scalar_math import casts
from blocknb.codegen.scalar_math.register_types import memory_type
from blocknb.ir.core import Op, is_volatile
from blocknb.language.ops import MASK_AT


class RowAccesses(VersionPart):
    """The accesses of a row of `size` positions.

    `masks` has the mask of each access, None if all lanes are on. `bounds` has the positions (i64) at which uniform masks end. `unsafe`
    has an i1 for each access: "true" if every vector must check its lanes, or whether they must because the row check failed.
    """

    def __init__(self, context: VersionContext, forms: UniformityAnalysis):
        super().__init__(context)
        self.forms = forms
        self.masks: dict[Op, Uniformity | None] = {}
        self.bounds: list[str] = []
        self.unsafe: dict[Op, str] = {}

    # -- before the vector loop --------------------------------------------------------------------------------------------

    def prepare(self, op: Op) -> None:
        """Before a row: loads an element that is the same for the whole row. For any other access, records the mask and checks the row."""
        pointers = self.forms.of_operand(op.args[0])
        mask = self._row_mask(op)
        uniform_owner = self._take_owner(op)
        if op.name == "load" and uniform_owner and self._load_once(op, pointers, mask):
            return
        if isinstance(mask, Uniform):
            mask = self.forms.as_prefix(mask)
            assert mask is not None
            self.bounds.append(mask.count)
        self.masks[op] = mask
        count = str(self.forms.size)
        if isinstance(mask, Prefix):
            count = self.code.i64_least(mask.count, count)
        if isinstance(pointers, Strided) and uniform_owner:
            self._check(op, pointers, mask, count)
        else:
            self.unsafe[op] = "true"

    def _row_mask(self, op: Op) -> Uniformity | None:
        mask_at = MASK_AT[op.name]
        mask = self.forms.of_operand(op.args[mask_at]) if len(op.args) > mask_at else None
        return None if isinstance(mask, Uniform) and mask.text == "true" else mask

    def _load_once(self, op: Op, pointers: Uniformity, mask: Uniformity | None) -> bool:
        """Loads one element for the whole row, if the mask and the other value are uniform, too."""
        if not isinstance(pointers, Uniform) or not isinstance(mask, Uniform | None):
            return False
        other = self.forms.of_operand(op.args[2]) if len(op.args) > 2 else None
        if not isinstance(other, Uniform | None):
            return False
        texts = mask.text if mask else None, other.text if other else None
        value = scalar_accesses.load(self.code, self.checks, op, pointers.text, *texts)
        self.forms.memo[op.result, identity(op.result.type.shape)] = Uniform(value)
        return True

    def _check(self, op: Op, pointers: Strided, mask: Uniformity | None, count: str) -> None:
        """Checks `count` elements of a row. If the row is not safe and its mask is no prefix, each vector checks its lanes."""
        if isinstance(mask, (Varying, Stored)) or self.checks.by_lane(op):
            self.unsafe[op] = self.checks.row_outside(op, pointers.base, pointers.step, count)
        else:
            self.checks.row(op, pointers.base, pointers.step, count)

    def _take_owner(self, op: Op) -> bool:
        """Whether all elements of the row have the same owner; passes the owner to `checks`."""
        guard = self.checks.guard(op)
        if guard is None or guard.carried is None:
            return True
        form = self.forms.of_operand(guard.carried)
        if not isinstance(form, Uniform):
            return False
        self.checks.owners[op] = form.text, 1
        return True

    # -- inside the vector loop --------------------------------------------------------------------------------------------

    @lowers("load")
    def load(self, op: Op, body: VectorBody) -> str:
        """Loads one vector of a row."""
        c, dtype, mask, other = self.code, op.args[0].type.dtype.element, self._mask(op, body), None
        if len(op.args) > 2 and mask is not None:
            other = casts.to_memory(c, body.value(op.args[2]), dtype, body.width)
        addresses = self._addresses(op, body, mask)
        element, volatile = memory_type(dtype), is_volatile(op)
        if addresses is None:
            first = self._first(op, body)
            raw = c.load_vector(first, element, body.width, dtype.bytes, mask, other, volatile)
        else:
            raw = c.gather(addresses, element, body.width, dtype.bytes, mask, other)
        if volatile:
            c.w.do("fence acquire")  # keeps LLVM from merging the load with another one, or moving others across it
        return casts.from_memory(c, raw, dtype, body.width)

    @lowers("store")
    def store(self, op: Op, body: VectorBody) -> None:
        """Stores one vector of a row."""
        c, dtype, mask = self.code, op.args[0].type.dtype.element, self._mask(op, body)
        value = casts.to_memory(c, body.value(op.args[1]), dtype, body.width)
        addresses = self._addresses(op, body, mask)
        element = memory_type(dtype)
        if addresses is None:
            align = nontemporal_stores.UNIT if body.streaming else dtype.bytes
            c.store_vector(self._first(op, body), value, element, body.width, align, mask, body.streaming)
        else:
            c.scatter(addresses, value, element, body.width, dtype.bytes, mask)

    @lowers("atomic", "atomic_cas")
    def atomic(self, op: Op, body: VectorBody) -> str:
        """Executes an atomic on one element, because loop nests with atomics have vectors of one lane."""
        count = MASK_AT[op.name]
        self._take_lane_owners(op, body)
        address, *values = (body.value(a) for a in op.args[:count])
        mask = body.value(op.args[count]) if len(op.args) > count else None
        return scalar_accesses.update(self.code, self.checks, op, address, values, mask)

    def _mask(self, op: Op, body: VectorBody) -> str | None:
        """The mask of a vector; None if all lanes are on."""
        form = self.masks.get(op)
        if form is None or (isinstance(form, Prefix) and (body.full or form.count == str(self.forms.size))):
            return None
        if isinstance(form, Prefix):
            return body.prefix(form.count)
        return body.value(op.args[MASK_AT[op.name]])

    def _contiguous(self, op: Op, body: VectorBody) -> Strided | None:
        """The addresses of an access, if its lanes are contiguous."""
        form = self.forms.of_operand(op.args[0])
        size = op.args[0].type.dtype.element.bytes
        return form if isinstance(form, Strided) and (form.step == size or body.width == 1) else None

    def _first(self, op: Op, body: VectorBody) -> str:
        """The pointer to the first lane of a contiguous access."""
        form, c = self._contiguous(op, body), self.code
        assert form is not None
        at = c.i64("mul", body.position, str(form.step))
        return c.pointer(c.i64("add", form.base, at))

    def _addresses(self, op: Op, body: VectorBody, mask: str | None) -> str | None:
        """Checks the lanes of an access if the row was not found safe; returns their addresses, None if they are contiguous."""
        unsafe = self.unsafe.get(op, "false")
        self._take_lane_owners(op, body)
        apart = self._contiguous(op, body) is None
        addresses = body.value(op.args[0]) if apart or unsafe != "false" else ""
        if unsafe == "true":
            self.checks.lanes(op, addresses, mask, body.width)
        elif unsafe != "false":
            self.code.w.when(unsafe, lambda: self.checks.lanes(op, addresses, mask, body.width))
        return addresses if apart else None

    def _take_lane_owners(self, op: Op, body: VectorBody) -> None:
        """Passes the owners of the lanes to `checks`, if the row has more than one."""
        guard = self.checks.guard(op)
        if guard is None or guard.carried is None:
            return
        form = self.forms.of_operand(guard.carried)
        register = (form.text, 1) if isinstance(form, Uniform) else (body.value(guard.carried), body.width)
        self.checks.owners[op] = register
