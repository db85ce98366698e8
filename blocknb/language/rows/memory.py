"""Rows of the op table: accesses to arrays, prints and assertions."""

from __future__ import annotations

from blocknb.language import rules
from blocknb.language.op_spec import Help, OpSpec, traits

SEM = (
    "`sem` orders other accesses (relaxed, acquire, release, acq_rel) as seen within `scope` (cta, gpu, sys). With a buffer, the old "
    "values go there, and threads that hold replicas read them from it."
)

ROWS = (
    OpSpec(
        "load",
        "memory",
        rules.load,
        Help(
            "Loads elements from memory. Where the mask is off, an element is `other`, or zero without `other`.",
            "`pointer` is a tile or scalar of pointers and gives the shape; `mask` (int1) and `other` broadcast to it, and `other` is cast "
            "to the element type. Where the mask is off, nothing is read. Triton leaves such an element undefined without `other`. "
            "`cache_modifier`, `eviction_policy` and `volatile` change no result. `other` without `mask` is an error. For a block "
            'pointer, `boundary_check` names the axes to test, and `padding_option` ("zero" or "nan") gives the elements outside.',
            "i = tl.arange(0, 4)\n"
            "tl.load(a_ptr + i)  # [0.0, 1.0, 2.0, 3.0]\n"
            "tl.load(a_ptr + i * 2, mask=i < 3, other=-1.0)  # [0.0, 2.0, 4.0, -1.0]",
            "`scheduling_barrier` marks the last load for a later iteration of the loop: machine code issues it before the ops that "
            'follow. `sem` is "acquire" for a volatile load that a loop waits for.',
        ),
        operands="pointer [mask [other]]",
        attrs=("cache", "evict", "volatile", "sem", "scheduling_barrier", "layout", "vec"),
        reads="global",
        traits=traits("access producer"),
    ),
    OpSpec(
        "store",
        "memory",
        rules.store,
        Help(
            "Stores elements to memory where the mask is on.",
            "`value` and `mask` broadcast to the shape of `pointer`, and `value` is cast to the element type. Where the mask is off "
            "nothing is written. To store a tile to a scalar pointer is an error. "
            "For a block pointer, `boundary_check` names the axes to test.",
            "i = tl.arange(0, 4)\ntl.store(out_ptr + i, i * 10, mask=i > 1)\ntl.debug_barrier()\n"
            "tl.load(out_ptr + i)  # [0.0, 0.0, 20.0, 30.0]",
            "Stores with one number as `split_of` are parts of one store and have no order among themselves.",
        ),
        operands="pointer value [mask]",
        attrs=("cache", "evict", "layout", "vec", "split_of"),
        writes="global",
        traits=traits("access"),
    ),
    OpSpec(
        "atomic",
        "memory",
        rules.atomic,
        Help(
            "Combines each element with memory in one step and returns the old value. Where the mask is off, the result is zero.",
            "The elements take their turns in no fixed order. The maximum and minimum of floats put -0.0 below 0.0, and a NaN beyond the "
            "infinity of its sign. A GPU adds fp32 numbers below 2^-126 as zero.",
            "before = tl.atomic_add(i_ptr + 5, 3)\nbefore  # 5\ntl.load(i_ptr + 5)  # 8",
            "`kind` is add, max, min, and, or, xor or xchg. " + SEM,
        ),
        operands="[buffer] pointer value [mask]",
        attrs=("kind", "sem", "scope", "layout"),
        reads="global",
        writes="global",
        traits=traits("access atomic"),
    ),
    OpSpec(
        "atomic_cas",
        "memory",
        rules.atomic_cas,
        Help(
            "Stores `value` where memory holds the bits of `compare`, in one step, and returns the old value.",
            "`pointer`, `cmp` and `val` broadcast to one shape, that of the result; elements of 8 bits and integers of 16 are refused.",
            "before = tl.atomic_cas(i_ptr + 5, 5, 50)\nbefore  # 5\ntl.load(i_ptr + 5)  # 50",
            SEM,
        ),
        operands="[buffer] pointer compare value [mask]",
        attrs=("sem", "scope", "layout"),
        reads="global",
        writes="global",
        traits=traits("access atomic"),
    ),
    OpSpec(
        "print",
        "report",
        rules.nothing,
        Help(
            "Prints each element of each operand. A line begins with the program, the element and the prefix.",
            example='tl.device_print("x", tl.arange(0, 2))\ntl.load(i_ptr + 3)  # 3',
        ),
        operands="[x...]",
        attrs=("prefix", "hex"),
        writes="report",
    ),
    OpSpec(
        "assert",
        "report",
        rules.asserted,
        Help(
            "Reports the elements for which the condition does not hold.",
            example='tl.device_assert(tl.arange(0, 2) < 2, "too large")\ntl.load(i_ptr + 3)  # 3',
        ),
        operands="condition",
        attrs=("message",),
        writes="report",
    ),
    OpSpec(
        "outside",
        "report",
        rules.outside,
        Help(
            "Reports the elements that an access would find outside of an array.",
            ir="`argument` is the number of the array among the arguments, and `action` names the access, which does not happen there.",
        ),
        operands="pointer bad",
        attrs=("argument", "action"),
        writes="report",
    ),
)
