"""libdevice under the names of CUDA and Triton, written in the block language itself.

The functions take floats of any dtype, and compute fp16 and bf16 in fp32. Operands broadcast. The GPU, the CPU and the interpreter give
the same results up to the stated errors. `FUNCTIONS` is the registry from which `blocknb reference` prints the table. Functions that
are builtins of the language (`sqrt`, `fma`, `erf`...) are the same objects here.
"""

from __future__ import annotations

from collections.abc import Callable

from blocknb.language import surface
from blocknb.language.libdevice import (  # noqa: F401 (they fill FUNCTIONS)
    bessel,
    conversions,
    elementary,
    floats,
    integers,
    roots,
    rounding,
    special,
    trigonometry,
)
from blocknb.language.libdevice.parts import FUNCTIONS

#: Functions of libdevice that the language has as builtins.
BUILTINS = (
    "abs", "floor", "rsqrt", "ceil", "exp2", "fma", "div_rn", "sqrt_rn", "sqrt", "sin", "cos", "log2", "tanh", "log", "erf",
)  # fmt: skip

for _name in BUILTINS:
    FUNCTIONS[_name] = getattr(surface, _name)

globals().update(FUNCTIONS)
__all__ = sorted(FUNCTIONS)


def __getattr__(name: str) -> Callable:
    raise AttributeError(f"libdevice has no `{name}`")


def __dir__() -> list[str]:
    return __all__
