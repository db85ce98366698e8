"""The language of block programs, under Triton's names: `import blocknb.language as tl`.

Everything here is for use inside a kernel: dtypes, the builtins (`load`, `arange`, `dot`...), the library written in the
language itself (`cdiv`, `softmax`...) and `constexpr`. `help(tl.load)` explains a name.
"""

from __future__ import annotations

from blocknb.language import core, standard  # noqa: F401 (`triton.language` has both as attributes)
from blocknb.language.core import *  # noqa: F403
from blocknb.language.core import (  # noqa: F401
    __all__,
    _experimental_descriptor_load,
    _experimental_descriptor_store,
    _experimental_make_tensor_descriptor,
)
from blocknb.language.refused import refuser

__getattr__ = refuser(__name__)
