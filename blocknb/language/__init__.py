"""The language of block programs, under Triton's names: `import blocknb.language as tl`.

Everything here is for use inside a kernel: dtypes, the builtins (`load`, `arange`, `dot`...), the library written in the
language itself (`cdiv`, `softmax`...) and `constexpr`. `help(tl.load)` explains a name.
"""

# ruff: noqa: F401 (the imports are the namespace)

from blocknb.language import extra, libdevice, math
from blocknb.language.constants import PropagateNan, constexpr
from blocknb.language.library import cdiv, sigmoid, softmax, swizzle2d
from blocknb.language.moves import cat, histogram, interleave, join, sort, split, topk
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
from blocknb.language.surface import (
    abs,
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
from blocknb.language.types import (
    DType as dtype,
)
from blocknb.language.types import (
    Pointer as pointer_type,
)
from blocknb.language.types import (
    bfloat16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)


class tensor:
    """The type of run-time values, for `isinstance(x, tl.tensor)` and annotations inside kernels; never made outside."""


_MODULES = {"constants", "library", "meaning", "moves", "ops", "random", "rules", "surface", "types"}
__all__ = sorted(name for name in dict(vars()) if not name.startswith("_") and name not in _MODULES)
