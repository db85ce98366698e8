"""The mathematical functions under Triton's second name for them: `tl.math.exp` is `tl.exp`, and libdevice's are here as well."""

# ruff: noqa: F401 (the imports are the namespace)

from blocknb.language import libdevice
from blocknb.language.surface import (
    abs,
    ceil,
    cos,
    div_rn,
    erf,
    exp,
    exp2,
    fdiv,
    floor,
    fma,
    log,
    log2,
    maximum,
    minimum,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    tanh,
    umulhi,
)

max, min = maximum, minimum  # of two, as in libdevice

globals().update({name: function for name, function in libdevice.FUNCTIONS.items() if name not in globals()})
__all__ = sorted({name for name in dict(vars()) if not name.startswith("_")} - {"libdevice"})
