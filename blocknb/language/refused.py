"""Names of Triton's language that blocknb does not support, with a hint for each that says what to write instead.

A module of the language raises an AttributeError with the hint. In a kernel the front end turns it into an error at the line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

_AMD = "targets are NVIDIA's GPUs and the CPU; tl.extra.libdevice has the functions"
_INTERNAL = "it belongs to Triton's own compiler"
_HELPER = "write a kernel function (@triton.jit), which is inlined where it is called"

REFUSED: dict[str, str] = {
    "constexpr_type": "a compile-time value has no type of its own: annotate with tl.constexpr",
    "hip": _AMD,
    "extern_elementwise": "tl.extra.libdevice has CUDA's functions; tl.inline_asm_elementwise takes PTX",
    "builtin": _HELPER,
    "extern": _HELPER,
    "_aggregate": "pass the fields as a tuple",
    "semantic": _INTERNAL,
    "atomic_load": "tl.atomic_cas(pointer, 0, 0) reads a value atomically; tl.load(pointer, volatile=True) reads it from memory",
    "atomic_store": "tl.atomic_xchg(pointer, value) stores a value atomically",
    "expect_zero": "tl.assume(x == 0) states the same",
    "_unwrap_if_constexpr": "constexprs are plain values in a kernel",
    "ir": _INTERNAL,
    **dict.fromkeys(
        ("convert_custom_float8", "convert_custom_float8_sm70", "convert_custom_float8_sm80"), "cast with .to(dtype)"
    ),
    **dict.fromkeys(("base_type", "base_value", "slice_type", "tuple_type", "tensor_descriptor_type"), _INTERNAL),
}


def refuser(module: str) -> Callable[[str], Any]:
    """Makes the `__getattr__` of a module of the language."""

    def __getattr__(name: str) -> NoReturn:
        if name in REFUSED:
            raise AttributeError(f"blocknb does not have {name}: {REFUSED[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return __getattr__
