"""Loads CPU object code into this process: `load_object(data).address("kernel")`.

LLVM's ORC linker places code and constants and applies relocations. It is the only part of LLVM in the notebook's process: the code
generators may abort, so they run in workers (`worker`). Unlike MCJIT, it rejects undefined symbols. Objects are position-independent. Each
gets its own library in one JIT, so two kernels may use the same names. The memory of an object lives as long as the returned `Loaded`.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from typing import Any

from blocknb import forks
from blocknb.codegen.elf_objects import elf_instruction_set, elf_symbols
from blocknb.codegen.llvm import LIBRARY
from blocknb.errors import CompilerBug, Unsupported
from blocknb.target import instruction_set


class Loaded:
    """Machine code in memory. It is unloaded with the last reference to this object, so keep one as long as an address is in use."""

    def __init__(self, tracker: Any, names: Sequence[str]):
        self._tracker, self.names = tracker, tuple(names)

    def address(self, name: str) -> int:
        """The address of a function; KeyError names what there is."""
        if name not in self.names:
            raise KeyError(f"no function {name!r}; there are: {', '.join(self.names)}")
        return self._tracker[name]


_numbers = itertools.count()


def load_object(data: bytes) -> Loaded:
    """Loads an object that a worker made. Raises CompilerBug if it cannot be linked, and Unsupported if it is for another instruction set.

    The bytes must come from a worker or through the cache, which checks them: a damaged object may crash the linker.
    """
    defined, undefined = elf_symbols(data)
    if unknown := sorted(set(undefined) - set(LIBRARY)):
        raise CompilerBug("the code calls undefined functions: " + ", ".join(unknown))
    with forks.guard:  # the locks of LLVM itself could not be made new in the child of a fork
        from llvmlite import binding

        made_for, own = elf_instruction_set(data), instruction_set(binding.get_process_triple())
        if made_for not in ("", own):
            hint = "read its assembly, or compile the kernel for this machine: target='cpu'"
            raise Unsupported(f"the code is for {made_for} CPUs, and this machine has an {own} CPU", hint=hint)
        library = binding.JITLibraryBuilder().add_object_img(data)
        for name in undefined:
            library.import_symbol(name, _library_address(name))
        for name in defined:
            library.export_symbol(name)
        try:
            tracker = library.link(_jit(), f"blocknb{next(_numbers)}")
        except RuntimeError as error:
            raise CompilerBug(f"the object code cannot be linked: {error}") from None
    return Loaded(tracker, defined)


@functools.cache
def _jit() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    # Objects are linked as on Linux everywhere: the rules of macOS would put an underscore before each name.
    triple = f"{instruction_set(binding.get_process_triple())}-unknown-linux-gnu"
    machine = binding.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="default")
    # Errors come back as exceptions; printing them too would litter the notebook.
    return binding.create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)


@functools.cache
def _library_address(name: str) -> int:
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address
    return address
