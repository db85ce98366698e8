"""`triton.language.core`: the language under the name of the module that Triton keeps most of it in."""

from __future__ import annotations

from blocknb import language
from blocknb.language.refused import refuser
from blocknb.language.types import integer_dtype as get_int_dtype  # noqa: F401

_names: list[str] = vars(language)["__all__"]
globals().update({name: getattr(language, name) for name in _names})
__all__ = list(_names)
#: The default of `descending` in sorts that were copied out of Triton's library.
CONSTEXPR_0 = language.constexpr(0)
__getattr__ = refuser(__name__)
