"""Defines options of `%%blockkernel` and lists those with a module of their own; such a module ends with an
`OPTION`, or with several `CELL_OPTIONS`.

An option has two steps. Before the cell runs, `prepare` parses its text; a wrong text raises UsageError, which stops the cell. After the
cell, `after` gets every launched kernel, and adds its findings to that kernel's card. Findings are facts, parts of the document, and a
verdict for the history. Modules of options import nothing heavy until they are used.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import argument

if TYPE_CHECKING:
    from blocknb.notebook.observe import KernelRecord

#: The modules of options, in the order of the help text.
MODULES = (
    "blocknb.notebook.cluster.option_client",
    "blocknb.notebook.option_check",
    "blocknb.notebook.option_baseline",
    "blocknb.notebook.option_without",
    "blocknb.notebook.option_sweep",
    "blocknb.notebook.teaching.options",
    "blocknb.notebook.course",
)


@dataclass
class Found:
    """The findings of options about one kernel.

    `facts` are lines for the card's head, `parts` go into its document, and `ok` is whether the result was right, by the expression
    `checked`; `check` evaluates it again. `baselines` and `variants` are measured together with the kernel, by label. `launch` is the
    cell's launch expression, and `expressions` are its baselines. `cluster` is the Dask client of `--client`.
    """

    launch: str = ""
    expressions: Sequence[Any] = ()
    cluster: Any = None

    facts: list[tuple[str, str]] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    ok: bool | None = None
    checked: str = ""
    check: Callable[[], bool] | None = None
    baselines: dict[str, Callable[[], Any]] = field(default_factory=dict)
    variants: dict[str, Mapping[str, Any]] = field(default_factory=dict)


def _as_given(value: Any, shell: Any) -> Any:
    return value


@dataclass(frozen=True)
class Option:
    """One option. `settings` are arguments for argparse; `complete(word)` lists completions of the value.

    `complete` is None for an expression, which the shell completes itself. If `prepare` returns a context manager, the cell runs inside
    it. `after(value, record, shell, found)` adds to `found`; an exception becomes the cell's error. `run(value, shell, cell)` gets the
    text of the cell after its body, while launches are still observed; it returns what to display without a card, or None.
    """

    name: str
    settings: Mapping[str, Any]
    after: Callable[[Any, KernelRecord, Any, Found], None]
    prepare: Callable[[Any, Any], Any] = _as_given
    complete: Callable[[str], Sequence[str]] | None = None
    run: Callable[[Any, Any, str], dict[str, Any] | None] | None = None

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")


@cache
def options() -> tuple[Option, ...]:
    """All options that have a module."""
    modules = map(importlib.import_module, MODULES)
    return tuple(option for module in modules for option in getattr(module, "CELL_OPTIONS", None) or (module.OPTION,))


class Once(argparse.Action):
    """Stores the value of an option, and refuses the option a second time instead of dropping the first value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        given: set[str] = vars(namespace).setdefault("_given", set())
        if self.dest in given:
            parser.error(f"{option_string} is given twice; it takes one value")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a magic with the options' arguments."""
    for option in reversed(options()):
        function = argument(option.name, **{"action": Once, **option.settings})(function)
    return function


def finish(values: Mapping[str, Any], record: KernelRecord, shell: Any, launch: str = "") -> Found:
    """Runs the options of a cell for one of its kernels; `values` are the results of `prepare`, by key."""
    from blocknb.notebook import compared

    found = Found(launch, values.get("baseline") or ())
    for option in options():
        if values.get(option.key):
            option.after(values[option.key], record, shell, found)
    if found.baselines or found.variants:
        bench = compared.of_record(record, found.variants, found.baselines)
        found.parts["bench"] = bench
        found.facts += compared.facts(bench)
    return found


def split_words(text: str) -> list[str]:
    """The words of a magic line, split at blanks outside quotes, with their quotes. Raises UsageError for a quote without its end."""
    import shlex

    from IPython.core.error import UsageError

    try:
        return shlex.split(text, posix=False)
    except ValueError as error:
        raise UsageError(f"{text.strip()!r}: {str(error)[:1].lower()}{str(error)[1:]}; close the quote") from None


def unquoted(given: str | Sequence[str]) -> str:
    """An expression as the user wrote it: the words joined by blanks, without quotes around the whole."""
    text = given if isinstance(given, str) else " ".join(given)
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
