"""Lowers the ops that keep the account of accesses in shadow memory: the thread that owns an element makes one call for it.

The context is a hidden parameter (see `codegen.shadow`).
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.codegen import shadow
from blocknb.codegen.gpu.context import KernelContext
from blocknb.codegen.gpu.element_types import llvm_type
from blocknb.codegen.gpu.registry import OpLowering, lowers
from blocknb.ir.core import Op
from blocknb.ir.shadow import plan_of

CONTEXT = "ptr addrspace(1) %shadow"


class ShadowCalls(OpLowering):
    """Lowers `shadow`, `clock_lock` and `clock_join`."""

    def __init__(self, context: KernelContext):
        super().__init__(context)
        plan = plan_of(self.func)
        self.site_bits = plan.site_bits if plan else 0

    @lowers("shadow")
    def note(self, op: Op) -> None:
        """Notes the elements whose mask is on, unless the launch stores to none of the arrays."""
        attrs = op.attrs
        if not attrs["arguments"] or not shadow.has_cell(attrs["action"]):
            self.calls(op)
            return
        some = self.text.emit(f"and i64 {self.word(shadow.ARGUMENTS)}, {shadow.argument_bits(attrs['arguments'])}")
        self.when(self.text.emit(f"icmp ne i64 {some}, 0"), lambda: self.calls(op))

    def calls(self, op: Op) -> None:
        """One call for each element of the thread."""
        attrs, program, size = op.attrs, self.program(), op.args[0].type.dtype.element.bytes
        site, kind = attrs["site"], shadow.KINDS[attrs["action"]]

        def key() -> str:
            high = self.text.emit(f"shl i64 {program}, {self.site_bits}")
            return self.text.emit(f"add i64 {high}, {site + 1}")

        name, rest = shadow.call_of(attrs, program, key)
        self.define(name)
        head = f"call void @blocknb.shadow.{name}({CONTEXT}"

        def each(address: str, on: str, lane: str) -> None:
            if name != "record":
                self.text.do(f"{head}, i64 {address}, i64 {size}, {rest}, i1 {on})")
                return
            high = self.text.emit(f"shl i64 {self.text.emit(f'add i64 {program}, 1')}, 32")
            mine, wide = self.text.emit(f"or i64 {high}, {site}"), self.text.emit(f"zext i32 {lane} to i64")
            words = f"i64 {address}, i64 {mine}, i64 {wide}, i64 {kind}"
            self.when(on, lambda: self.text.do(f"{head}, {words})"))

        self.elements(op, each)

    @lowers("clock_lock")
    def lock(self, op: Op) -> None:
        """One thread of the program takes or releases the lock of the clocks."""
        self.define("lock")
        self.threads.barrier()
        first = self.text.emit("icmp eq i32 %tid, 0")
        take, stop = str(op.attrs["take"]).lower(), self.place(shadow.FILLED)
        call = f"call void @blocknb.shadow.lock({CONTEXT}, i1 {take}, ptr addrspace(1) {stop})"
        self.when(first, lambda: self.text.do(call))
        self.threads.barrier()

    @lowers("clock_join")
    def join(self, op: Op) -> None:
        """Joins the clock of the program with those of the addresses."""
        self.define("join")
        self.threads.barrier()  # all threads have compared with the clock before it changes
        flags, program = shadow.join_flags(op.attrs["sem"]), self.program()

        def each(address: str, on: str, lane: str) -> None:
            rest = f"i64 {address}, i64 {program}, {flags}, i1 {on}"
            self.text.do(f"call void @blocknb.shadow.join({CONTEXT}, {rest})")

        self.elements(op, each)
        self.threads.barrier()

    # -- parts

    def define(self, name: str) -> None:
        """Adds the function, and the hidden parameter."""
        self.interface.shadow = True
        shadow.define(self.text.helpers, shadow.GPU, name)

    def place(self, index: int) -> str:
        """The address of a word of the context."""
        self.interface.shadow = True
        return self.text.emit(f"getelementptr i64, {CONTEXT}, i64 {index}")

    def word(self, index: int) -> str:
        return self.text.emit(f"load i64, ptr addrspace(1) {self.place(index)}, align 8")

    def program(self) -> str:
        """The number of the program in the grid, an i64."""
        x, y, z = (self.wide(self.threads.place("program_id", axis)) for axis in range(3))
        across, down = (self.wide(self.threads.place("num_programs", axis)) for axis in range(2))
        rows = self.text.emit(f"add i64 {y}, {self.text.emit(f'mul i64 {z}, {down}')}")
        return self.text.emit(f"add i64 {x}, {self.text.emit(f'mul i64 {rows}, {across}')}")

    def wide(self, name: str) -> str:
        return self.text.emit(f"zext i32 {name} to i64")

    def elements(self, op: Op, each: Callable[[str, str, str], None]) -> None:
        """Calls `each(address, mask, number)` for each element that the thread may own."""
        pointer, masks = op.args[0], self.registers.regs(op.args[1]) if len(op.args) > 1 else None
        layout = pointer.type.layout if pointer.type.shape else None
        owner, numbers = self.threads.owner(layout), layout.register_indices if layout is not None else (0,)
        thread = self.threads.thread_index(layout.lane, layout.warp) if layout is not None else "0"
        for r in dict.fromkeys(numbers.index(i) for i in numbers):  # one register of each element, without replicas
            name = self.registers.element(pointer, r)
            address = self.text.emit(f"ptrtoint {llvm_type(pointer.type.dtype)} {name} to i64")
            on = self.text.both(masks[r] if masks is not None else "", owner) or "true"
            each(address, on, self.text.emit(f"xor i32 {thread}, {numbers[r]}") if numbers[r] else thread)

    def when(self, condition: str, action: Callable[[], object]) -> None:
        """Runs the code that `action` writes if the i1 holds."""
        label, done = self.text.new_label("note"), self.text.new_label("noted")
        self.text.do(f"br i1 {condition}, label %{label}, label %{done}")
        self.text.open_chunk()
        self.text.start(label)
        action()
        self.text.do(f"br label %{done}")
        self.text.open_chunk()
        self.text.start(done)
        self.text.open_chunk()
