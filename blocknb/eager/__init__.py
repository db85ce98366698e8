"""Interprets kernels for debugging: Python executes the kernel's own code, on tiles that hold NumPy arrays.

`Interpreter` runs the programs of a kernel one after another. Python itself executes the code of the kernel, so `print`,
`breakpoint()`, `try` and all other statements work. Operators and builtins use the handlers of `blocknb.frontend`, which emit ops. The
emitter computes each op at once. Promotion, errors and hints are therefore those of the compiler.
"""

from blocknb.eager.interpreter import Interpreter
from blocknb.eager.record import Accessed, Assigned, Run
from blocknb.eager.values import EagerValue

__all__ = ["Accessed", "Assigned", "EagerValue", "Interpreter", "Run"]
