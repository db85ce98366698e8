"""The interpreter as a debugger: a kernel's own Python runs, on tiles that hold NumPy arrays.

`Interpreter` runs programs of a kernel one after another; what stands in the kernel is executed by Python itself, so `print`,
`breakpoint()`, `try` and everything else work in it. Its operators and builtins go through the handlers of `blocknb.frontend`, which
emit ops as ever, into an emitter that computes each at once. So promotion, errors and hints are the compiler's own, and whatever the
compiler learns, this learns with it.
"""

from blocknb.eager.interpreter import Interpreter
from blocknb.eager.record import Assigned, Run
from blocknb.eager.values import EagerValue

__all__ = ["Assigned", "EagerValue", "Interpreter", "Run"]
