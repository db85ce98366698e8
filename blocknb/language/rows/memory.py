"""Rows of the op table: accesses to arrays, prints and assertions."""

from __future__ import annotations

from blocknb.language.op_spec import op
from blocknb.language.rules import check_atomic, check_mask, need
from blocknb.language.types import int1, int64


@op(
    "memory",
    operands="pointer [mask [other]]",
    attrs="cache evict volatile sem scheduling_barrier layout vec emit",
    reads="global",
    traits="access producer",
)
def load(types, attrs):
    """Loads elements from memory. Where the mask is off, an element is `other`, or zero without `other`.

    `pointer` is a tile or a scalar of pointers, and the result has its shape. `mask` (int1) and `other` broadcast to this shape, and
    `other` is cast to the element type. Where the mask is off, nothing is read. Triton leaves such an element undefined without `other`.
    `cache_modifier`, `eviction_policy` and `volatile` change no result. `other` without `mask` is an error. For a block pointer,
    `boundary_check` names the axes to test, and `padding_option` ("zero" or "nan") gives the elements outside.

    Example:
        i = tl.arange(0, 4)
        tl.load(a_ptr + i)  # [0.0, 1.0, 2.0, 3.0]
        tl.load(a_ptr + i * 2, mask=i < 3, other=-1.0)  # [0.0, 2.0, 4.0, -1.0]

    IR:
        `scheduling_barrier` marks the last load of a group that machine code issues before the ops that follow. The group has the loads for
        a later iteration, or those of an iteration or a branch. With "straight", it has the loads after a product that no loop contains.
        The barrier branches on a number of the loop, and with "clock" or "straight" on the GPU's clock. ptxas may take more registers for
        it, but not with "straight". `sem` is "acquire" for a volatile load that a loop waits for. `emit` says where the GPU's code of the
        load stands.
    """
    pointer = types[0]
    need(pointer.is_pointer, f"loads from {pointer}, which is no pointer")
    value = pointer.with_dtype(pointer.dtype.element)
    if len(types) > 1:
        check_mask(pointer.shape, pointer.layout, types[1:])
    if len(types) > 2:
        need(types[2] == value, f"other is {types[2]} for a load of {value}")
    return (value,)


@op(
    "memory",
    operands="pointer value [mask]",
    attrs="cache evict layout vec split_of piece nontemporal",
    writes="global",
    traits="access",
)
def store(types, attrs):
    """Stores elements to memory where the mask is on.

    `value` and `mask` broadcast to the shape of `pointer`, and `value` is cast to the element type. Where the mask is off, nothing is
    written. A tile stored to a scalar pointer is an error. For a block pointer, `boundary_check` names the axes to test.

    Example:
        i = tl.arange(0, 4)
        tl.store(out_ptr + i, i * 10, mask=i > 1)
        tl.debug_barrier()
        tl.load(out_ptr + i)  # [0.0, 0.0, 20.0, 30.0]

    IR:
        Stores with one number as `split_of` are parts of one store and have no order among themselves. With `piece`, the store emits the
        values that it stores, that number of registers at a time. `nontemporal` is the number of bytes from which on a CPU's store to an
        array bypasses the cache.
    """
    pointer, value = types[:2]
    need(pointer.is_pointer, f"stores to {pointer}, which is no pointer")
    need(value == pointer.with_dtype(pointer.dtype.element), f"stores {value} to {pointer}")
    if len(types) > 2:
        check_mask(pointer.shape, pointer.layout, types[2:])
    return ()


@op(
    "memory",
    operands="[buffer] pointer value [mask]",
    attrs="kind sem scope layout",
    reads="global",
    writes="global",
    traits="access atomic",
)
def atomic(types, attrs):
    """Combines each element with memory in one step and returns the old value. Where the mask is off, the result is zero.

    The order of the elements is not defined. The maximum and minimum of floats put -0.0 below 0.0, and a NaN beyond the infinity of its
    sign. A GPU adds fp32 numbers below 2^-126 as zero.

    Example:
        before = tl.atomic_add(i_ptr + 5, 3)
        before  # 5
        tl.load(i_ptr + 5)  # 8

    IR:
        `kind` is add, max, min, and, or, xor or xchg. `sem` orders other accesses (relaxed, acquire, release, acq_rel) as seen within
        `scope` (cta, gpu, sys). With a buffer, the old values go there, and threads that hold replicas read them from it.
    """
    return check_atomic(types, attrs, attrs["kind"], 2)


@op(
    "memory",
    operands="[buffer] pointer compare value [mask]",
    attrs="sem scope layout",
    reads="global",
    writes="global",
    traits="access atomic",
)
def atomic_cas(types, attrs):
    """Stores `value` where memory holds the bits of `compare`, in one step, and returns the old value.

    `pointer`, `cmp` and `val` broadcast to the shape of the result. Elements of 8 bits and integers of 16 bits are an error.

    Example:
        before = tl.atomic_cas(i_ptr + 5, 5, 50)
        before  # 5
        tl.load(i_ptr + 5)  # 50

    IR:
        `sem` orders other accesses (relaxed, acquire, release, acq_rel) as seen within `scope` (cta, gpu, sys). With a buffer, the old
        values go there, and threads that hold replicas read them from it.
    """
    return check_atomic(types, attrs, "cas", 3)


@op("report", operands="[x...]", attrs="prefix hex", writes="report")
def print(types, attrs):
    """Prints each element of each operand. A line begins with the program, the element and the prefix.

    Example:
        tl.device_print("x", tl.arange(0, 2))
        tl.load(i_ptr + 3)  # 3
    """
    return ()


@op("report", operands="condition [value]", attrs="message", writes="report")
def assert_(types, attrs):
    """Reports the elements for which the condition does not hold.

    Example:
        tl.device_assert(tl.arange(0, 2) < 2, "too large")
        tl.load(i_ptr + 3)  # 3

    IR:
        With a value, the op tests a hint, which `message` spells, and reports the value for which it is false.
    """
    need(types[0].dtype == int1, f"asserts {types[0]}, which is not a condition")
    if len(types) > 1:
        need(types[1].dtype == int64, f"reports {types[1]}, which is not an int64")
        check_mask(types[1].shape, types[1].layout, types[:1])
    return ()


@op("report", operands="pointer bad", attrs="argument action", writes="report")
def outside(types, attrs):
    """Reports the elements that an access would find outside of an array.

    IR:
        `argument` is the number of the array among the arguments, and `action` names the access, which does not happen there.
    """
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    check_mask(types[0].shape, types[0].layout, types[1:])
    return ()


@op("report", operands="pointer [mask]", attrs="action site verb arguments clocked", writes="report", traits="shadows")
def shadow(types, attrs):
    """Records an access in shadow memory, and finds a conflicting access of another program there.

    IR:
        `action` is load, store, update (an atomic) or observe (a volatile load). A check for elements that were never written has the
        actions fill, for a store, and read, for a load. `site` numbers the access among `shadow` ops, `verb` names it, and `arguments` are
        the numbers of the arrays that it may touch (none: any). `clocked` says that vector clocks order accesses.
    """
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    if len(types) > 1:
        check_mask(types[0].shape, types[0].layout, types[1:])
    return ()


@op("report", attrs="take", writes="report", traits="shadows")
def clock_lock(types, attrs):
    """Takes (`take`) or releases the lock of the vector clocks around an atomic that orders other accesses."""
    return ()


@op("report", operands="pointer [mask]", attrs="sem", writes="report", traits="shadows")
def clock_join(types, attrs):
    """Joins the vector clock of the program with those of the addresses that an atomic released (`sem`) or acquired."""
    need(types[0].is_pointer, f"{types[0]} is not a pointer")
    if len(types) > 1:
        check_mask(types[0].shape, types[0].layout, types[1:])
    return ()
