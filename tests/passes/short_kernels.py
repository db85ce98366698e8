"""Helpers for tests of single passes: kernels of a few lines, one pass over them, and a check by the interpreter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import seeds
from frontend_helpers import ir
from support import check_same, random_args

from blocknb import passes
from blocknb.ir.core import Func
from blocknb.ir.text import print_func
from blocknb.ir.verify import verify
from blocknb.target import Target
from blocknb.trace import Note, Notes

CPU = "cpu:x86-64"
FOLDERS = {entry.split(".")[1]: entry.split(".")[0] for entry in passes.ORDER}


def passed(func: Func, *names: str, target: str = CPU) -> tuple[Func, list[Note]]:
    """The Func after these passes for a target, verified, and the notes of the last one."""
    notes = Notes("none")
    for name in names:
        notes = Notes(name)
        func = passes.load(f"{FOLDERS[name]}.{name}").run(func, Target.parse(target), notes)
        verify(func)
    return func, notes.list


def same(
    kernel: Any,
    *names: str,
    sizes: Any = 4096,
    scalars: Any = (),
    grid: Any = 2,
    target: str = CPU,
    **arguments: Any,
) -> tuple[Func, Func, list[Note]]:
    """(before, after, notes) of the last of some passes over a kernel. Checks that each pass keeps the results.

    `arguments` are types (`x="*f32"`, `n="i32"`) and values of constexprs. The interpreter gets arrays of `sizes` random elements, and
    `scalars` for the numbers. A pass that needs those before it, such as the layouts, is tested with a Case (`kernels.base`).
    """
    first = before = after = ir(kernel, **arguments)
    notes: list[Note] = []
    values = random_args(first, sizes, scalars, seed=int(seeds.rng().integers(1 << 30)))
    for name in names:
        before = after
        after, notes = passed(before, name, target=target)
        check_same(first, after, values, grid)
    return before, after, notes


def counts(func: Func) -> Counter[str]:
    return Counter(op.name for op in func.ops())


def texts(notes: list[Note]) -> list[str]:
    return [note.text for note in notes]


def report(before: Func, after: Func, name: str, notes: list[Note]) -> str:
    """The text of a golden file."""
    note_lines = [f"// note at {note.op}: {note.text}" for note in notes]
    return "\n".join(["// before", print_func(before), f"// after {name}", print_func(after), *note_lines]) + "\n"
