"""Loads, stores and atomics of one element of the user's arrays, with bounds checks.

Several threads run the programs of a launch, so atomics are LLVM's atomic instructions. A tile of atomics runs element by element in a loop
nest of its own, so the operations around it stay in vectors. LLVM has every operation on integers, and the addition of fp32 and fp64. A
maximum or minimum of floats compares their bits: as signed integers if positive, and reversed as unsigned ones if negative. fp16 and bf16
add in a compare-and-swap loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from blocknb.codegen.cpu.builder import KernelBuilder
from blocknb.codegen.cpu.checks import BoundsChecks
from blocknb.codegen.scalar_math import casts, narrow_floats
from blocknb.codegen.scalar_math.register_types import NARROW, constant, memory_type, register_type
from blocknb.ir.core import Op, is_volatile
from blocknb.language.types import DType

ORDER = {"relaxed": "monotonic", "acquire": "acquire", "release": "release", "acq_rel": "acq_rel"}


def load(c: KernelBuilder, checks: BoundsChecks, op: Op, address: str, mask: str | None, other: str | None) -> str:
    """Loads one element from an i64 address. Returns `other` (zero if None) where the mask is off."""
    dtype = op.args[0].type.dtype.element
    checks.scalar(op, address, mask)
    element = memory_type(dtype)

    def read() -> str:
        load = "load volatile" if is_volatile(op) else "load"
        raw = c.w.value(f"{load} {element}, ptr {c.pointer(address)}, align {dtype.bytes}")
        if is_volatile(op):  # LLVM may move other loads across a volatile one
            c.w.do("fence acquire")
        return casts.from_memory(c, raw, dtype, 1)

    if mask is None or mask == "true":
        return read()
    return c.w.guarded(mask, register_type(dtype), other or constant(0, dtype), read)


def store(c: KernelBuilder, checks: BoundsChecks, op: Op, address: str, value: str, mask: str | None) -> None:
    """Stores one element to an i64 address, where the mask is on."""
    dtype = op.args[0].type.dtype.element
    checks.scalar(op, address, mask)

    def write() -> None:
        raw = casts.to_memory(c, value, dtype, 1)
        c.w.do(f"store {memory_type(dtype)} {raw}, ptr {c.pointer(address)}, align {dtype.bytes}")

    if mask is None or mask == "true":
        write()
    else:
        c.w.when(mask, write)


def update(
    c: KernelBuilder, checks: BoundsChecks, op: Op, address: str, values: Sequence[str], mask: str | None
) -> str:
    """Writes one checked atomic at an i64 address. Returns the old value, or zero if the mask is off."""
    dtype = op.args[0].type.dtype.element
    checks.scalar(op, address, mask)
    if mask is None or mask == "true":
        return _step(c, op, address, values, dtype)
    return c.w.guarded(mask, register_type(dtype), constant(0, dtype), lambda: _step(c, op, address, values, dtype))


def _step(c: KernelBuilder, op: Op, address: str, values: Sequence[str], dtype: DType) -> str:
    w = c.w
    place, order = c.pointer(address), ORDER[op.attrs["sem"]]
    element = register_type(dtype)
    bits = f"i{dtype.bits}"
    if op.name == "atomic_cas":
        old, new = (casts.bitcast(c, v, dtype, _integer(dtype), 1) for v in values)
        weaker = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
        found = w.value(f"cmpxchg ptr {place}, {bits} {old}, {bits} {new} {order} {weaker}, align {dtype.bytes}")
        return _back(c, w.value(f"extractvalue {{ {bits}, i1 }} {found}, 0"), dtype)
    kind, value = op.attrs["kind"], values[0]
    if dtype.name in NARROW:
        return _add_narrow(c, place, value, dtype, order)
    if dtype.is_float and kind in ("max", "min"):
        return _float_extremum(c, place, value, dtype, kind, order)
    if dtype.is_float:
        kind = "fadd" if kind == "add" else kind
    elif kind in ("max", "min") and not dtype.is_signed:
        kind = f"u{kind}"
    return w.value(f"atomicrmw {kind} ptr {place}, {element} {value} {order}, align {dtype.bytes}")


def _integer(dtype: DType) -> DType:
    return DType(f"int{dtype.bits}", f"i{dtype.bits}", "int", dtype.bits)


def _back(c: KernelBuilder, bits: str, dtype: DType) -> str:
    return casts.bitcast(c, bits, _integer(dtype), dtype, 1)


def _float_extremum(c: KernelBuilder, place: str, value: str, dtype: DType, kind: str, order: str) -> str:
    w, element = c.w, f"i{dtype.bits}"
    bits = casts.bitcast(c, value, dtype, _integer(dtype), 1)
    slot = w.slot(element)
    negative = w.value(f"icmp slt {element} {bits}, 0")
    down, up, done = (w.fresh(s) for s in ("negative", "positive", "updated"))
    other = "umin" if kind == "max" else "umax"
    w.branch(negative, down, up)
    for label, operation in ((down, other), (up, kind)):
        w.place(label)
        old = w.value(f"atomicrmw {operation} ptr {place}, {element} {bits} {order}, align {dtype.bytes}")
        w.do(f"store {element} {old}, ptr {slot}")
        w.jump(done)
    w.place(done)
    return _back(c, w.value(f"load {element}, ptr {slot}"), dtype)


def _add_narrow(c: KernelBuilder, place: str, value: str, dtype: DType, order: str) -> str:
    w = c.w
    kind = memory_type(dtype)
    weaker = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
    slot = w.slot(kind)
    first = w.value(f"load atomic {kind}, ptr {place} monotonic, align {dtype.bytes}")
    w.do(f"store {kind} {first}, ptr {slot}")
    again, done = w.fresh("again"), w.fresh("added")
    w.place(again)
    old = w.value(f"load {kind}, ptr {slot}")
    total = c.binary("fadd", casts.from_memory(c, old, dtype, 1), value, "float", 1)
    new = casts.to_memory(c, narrow_floats.rounded(c, total, dtype, 1), dtype, 1)
    found = w.value(f"cmpxchg ptr {place}, {kind} {old}, {kind} {new} {order} {weaker}, align {dtype.bytes}")
    w.do(f"store {kind} {w.value(f'extractvalue {{ {kind}, i1 }} {found}, 0')}, ptr {slot}")
    w.branch(w.value(f"extractvalue {{ {kind}, i1 }} {found}, 1"), done, again)
    w.place(done)
    return casts.from_memory(c, old, dtype, 1)
