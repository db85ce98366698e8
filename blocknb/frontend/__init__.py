"""The front end: a Python function becomes tile IR.

`Source` holds a function's text and AST, `parse` runs it symbolically; `ArgType` and `Constant` say what the arguments are.
"""

from blocknb.frontend.parse import Argument, ArgType, Constant, parse
from blocknb.frontend.source import Parameter, Source, source_of

__all__ = ["ArgType", "Argument", "Constant", "Parameter", "Source", "parse", "source_of"]
