"""Collects all names of the language. `blocknb.language` and `triton.language.core` take their names from this module."""


# ruff: noqa: F401 (the imports are the namespace)

import builtins

from blocknb.language import extra, libdevice, math, target_info
from blocknb.language.blocks import (
    _experimental_descriptor_load,
    _experimental_descriptor_store,
    _experimental_make_tensor_descriptor,
    advance,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store_tensor_descriptor,
    tensor_descriptor,
    tensor_descriptor_base,
)
from blocknb.language.constants import PropagateNan, const, constexpr
from blocknb.language.debug import device_assert, device_print
from blocknb.language.library import atomic_poll, cdiv, sigmoid, softmax, squeeze, swizzle2d, unsqueeze
from blocknb.language.microscaling import dot_scaled
from blocknb.language.moves import bitonic_merge, cat, histogram, interleave, join, sort, split, topk
from blocknb.language.pointwise import inline_asm_elementwise, map_elementwise
from blocknb.language.random import (
    pair_uniform_to_normal,
    philox,
    philox_impl,
    rand,
    rand4x,
    randint,
    randint4x,
    randn,
    randn4x,
    uint_to_uniform_float,
)
from blocknb.language.refused import refuser
from blocknb.language.surface import FUNCTIONS as _functions
from blocknb.language.surface import (
    abs,
    add,
    arange,
    argmax,
    argmin,
    associative_scan,
    assume,
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    broadcast,
    broadcast_to,
    cast,
    ceil,
    clamp,
    condition,
    cos,
    cumprod,
    cumsum,
    debug_barrier,
    div_rn,
    dot,
    erf,
    exp,
    exp2,
    expand_dims,
    fdiv,
    flip,
    floor,
    fma,
    full,
    gather,
    load,
    log,
    log2,
    max,
    max_constancy,
    max_contiguous,
    maximum,
    min,
    minimum,
    mul,
    multiple_of,
    num_programs,
    permute,
    program_id,
    range,
    ravel,
    reduce,
    reduce_or,
    reshape,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    static_assert,
    static_print,
    static_range,
    store,
    sub,
    sum,
    tanh,
    to_tensor,
    trans,
    umulhi,
    view,
    where,
    xor_shuffle,
    xor_sum,
    zeros,
    zeros_like,
)
from blocknb.language.types import MAX_TILE_ELEMENTS as TRITON_MAX_TENSOR_NUMEL
from blocknb.language.types import DType as dtype
from blocknb.language.types import Pointer as pointer_type
from blocknb.language.types import (
    bfloat16,
    block_type,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    str_to_ty,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)
from blocknb.language.types import integer_dtype as get_int_dtype


class tensor:
    """The type of run-time values, for `isinstance(x, tl.tensor)` and annotations in kernels. It has no instances outside of kernels."""


tuple = builtins.tuple
slice = builtins.slice
pi32_t = pointer_type(int32)
globals().update(_functions)

_OWN = {"builtins", "get_int_dtype", "refuser"}  # names of this module that are not of the language
__all__ = sorted(name for name in dict(vars()) if not name.startswith("_") and name not in _OWN)
#: The default of `descending` in sorts that were copied out of Triton's library.
CONSTEXPR_0 = constexpr(0)
__getattr__ = refuser(__name__)
