"""The text of a function as Python compiled it, also after its file was edited.

Python compiles a module once, and runs this code until the process ends. `inspect.getsource` reads the file as it is now, so a function
that was imported before an edit would get the text of after it. Two things prevent this here. `snapshot` reads the file when a kernel is
defined, while its module is being imported. `matches_source` compiles the file again and compares the bytecode, because a function may be
defined later than its module, as by a factory. Only a file that was written after this process began needs this comparison.
"""

from __future__ import annotations

import dis
import linecache
import time
import types
from typing import Any

from blocknb.ir.traversal import reachable

_BEGAN = time.time()
#: The functions of the latest snapshots: the lines, and the code objects by first line and name.
_compiled: dict[str, tuple[list[str], dict[tuple[int, str], types.CodeType]]] = {}


def snapshot(file: str, space: dict[str, Any]) -> list[str]:
    """The lines of a file or cell as they are now; [] if there are none."""
    linecache.checkcache(file)
    return linecache.getlines(file, space)


def modified_since_start(file: str) -> bool:
    """Whether a file of the snapshots is newer than this process. Cells have no time: IPython gives each version another name."""
    entry: Any = linecache.cache.get(file)
    return entry is not None and len(entry) > 1 and entry[1] is not None and entry[1] >= _BEGAN


def matches_source(lines: list[str], code: types.CodeType) -> bool:
    """Whether Python makes this code of the lines of its file, at the same place. True if pytest has rewritten its assertions."""
    if "@pytest_ar" in code.co_names:
        return True
    found = _functions(code.co_filename, lines).get((code.co_firstlineno, code.co_qualname))
    return found is not None and _same(found, code)


def _functions(file: str, lines: list[str]) -> dict[tuple[int, str], types.CodeType]:
    known = _compiled.get(file)
    if known is None or known[0] is not lines:
        known = _compiled[file] = lines, {}
        try:
            whole = compile("".join(lines), file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return known[1]
        inner = lambda code: (x for x in code.co_consts if isinstance(x, types.CodeType))  # noqa: E731
        known[1].update({(code.co_firstlineno, code.co_qualname): code for code in reachable([whole], inner)})
    return known[1]


def _same(a: types.CodeType, b: types.CodeType) -> bool:
    if (a.co_name, a.co_names, a.co_varnames) != (b.co_name, b.co_names, b.co_varnames):
        return False
    if _instructions(a) != _instructions(b):
        return False
    return len(a.co_consts) == len(b.co_consts) and all(map(_same_constant, a.co_consts, b.co_consts))


def _instructions(code: types.CodeType) -> list[tuple[int, int | None]]:
    """Opcodes and operands, without the inline caches, which a run fills."""
    return [(instruction.opcode, instruction.arg) for instruction in dis.get_instructions(code)]


def _same_constant(a: Any, b: Any) -> bool:
    if isinstance(a, types.CodeType) and isinstance(b, types.CodeType):
        return _same(a, b)
    return type(a) is type(b) and repr(a) == repr(b)
