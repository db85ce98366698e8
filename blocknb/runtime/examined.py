"""The methods of a kernel that examine launches on NumPy: `interpret` runs the kernel's Python, `footprint` tells what it accesses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from blocknb import forks
from blocknb.runtime.interface import KernelInterface

if TYPE_CHECKING:
    from blocknb.eager import Run
    from blocknb.footprint.access_log import Budget
    from blocknb.footprint.value import Footprint


class ExaminedKernel(KernelInterface):
    """A base class of `Kernel`."""

    def interpret(
        self,
        grid: Any,
        *,
        programs: Iterable[Any] | None = None,
        program: Any = None,
        watch: Iterable[str] = (),
        record: Any = None,
    ) -> Callable[..., Run]:
        """Debugs the kernel: `kernel.interpret(grid)(*args, **kwargs)` runs its Python on NumPy, one program after another.

        The kernel may use all of Python: `print(x)`, `f"{x}"`, `breakpoint()`, `try`, and statements that the compiler refuses, such as
        `break`. Tiles hold arrays (`x.numpy()`). Dtypes, shapes and masks behave as in the compiled kernel. An access outside an array
        raises AccessError with its program. After an error, the debugger (`%debug`, `pdb.pm()`) shows the variables of that program.

        `program` or `programs`: the ids (an int, or up to three) to run instead of the whole grid. `watch`: names whose values are
        recorded in every program. `record`: a program in which all values are recorded. The Run returns them with their lines:

            run = kernel.interpret((8,), record=3)(x, out, n, BLOCK=128)
            run["acc"]    # [(line, array), ...]: each value that `acc` took in program 3
            run.at(17)    # {"acc": array}: what line 17 assigned last

        Arrays of the host are used in place; arrays of a GPU are copied to the host and back. `kernel[grid](..., interpret=True)`,
        `@kernel(interpret=True)`, `%%blockkernel --interpret`, and BLOCKNB_INTERPRET=1 or TRITON_INTERPRET=1 in the environment also
        interpret launches. Raises KernelError, and the exceptions of the kernel's Python.
        """
        with forks.guard:
            from blocknb.runtime.interpreted import launcher

        wanted = [program] if programs is None and program is not None else programs
        return launcher(self, grid, wanted, watch, record)  # type: ignore[arg-type]

    def footprint(self, grid: Any, budget: Budget | None = None) -> Callable[..., Footprint]:
        """The memory accesses of a launch: `kernel.footprint(grid)(*args, **kwargs)` returns a Footprint, and launches nothing.

        The Footprint tells for each array which program loads, stores and updates which element. Its findings say what is wrong: races,
        elements that no program stores, idle programs. It needs no GPU, and changes no array:

            found = add.footprint(98)(x, y, out, n, BLOCK=1024)
            print(found)
            found["out"].stores.owner     # the program that stores each element, -1: none, -2: several

        It is exact if addresses and masks follow from the arguments. If they depend on data that the kernel changes, the programs run on
        copies of the arrays, in the interpreter. `budget` limits time and memory, by default to about two seconds. Beyond it the Footprint
        is that of a sample of the programs. Raises KernelError if the kernel cannot be parsed for these arguments.
        """
        with forks.guard:
            from blocknb.runtime.footprints import footprints

        return footprints(self, grid, budget)  # type: ignore[arg-type]
