"""The front end: a Python function becomes tile IR.

`Source` holds a function's text and AST, `parse` runs it symbolically; `ArgType` and `Constant` say what the arguments are.
"""

from blocknb.frontend.dependencies import Dependencies, constant_key, dependencies
from blocknb.frontend.parse import ArgType, Argument, Constant, parse
from blocknb.frontend.source import Parameter, Source, source_of

__all__ = [
    "ArgType",
    "Argument",
    "Constant",
    "Dependencies",
    "Parameter",
    "Source",
    "constant_key",
    "dependencies",
    "parse",
    "source_of",
]
