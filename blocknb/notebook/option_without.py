"""`--without PASS`: measures the kernel compiled without a pass, in turns with the kernel as it is."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook.options import Found, Option


def names() -> tuple[str, ...]:
    from blocknb import passes

    return passes.optional()


def complete(word: str) -> list[str]:
    return [name for name in names() if name.startswith(word)]


def prepare(given: Any, shell: Any) -> list[tuple[str, ...]]:
    variants = [tuple(name for word in words for name in word.split(",") if name) for words in given or ()]
    for variant in variants:
        if unknown := [name for name in variant if name not in names()]:
            raise UsageError(f"--without {unknown[0]}: the optional passes are {', '.join(names())}")
    return variants


def after(variants: list[tuple[str, ...]], record: Any, shell: Any, found: Found) -> None:
    off = tuple(record.latest.compiled.options["without"])
    for variant in variants:
        found.variants[f"without {', '.join(variant)}"] = {"without": tuple(sorted({*off, *variant}))}


OPTION = Option(
    "--without",
    {
        "metavar": "PASS",
        "nargs": "+",
        "action": "append",
        "help": "Also compile the kernel without these optional passes, and measure it interleaved with the original kernel. "
        "The option can be repeated.",
    },
    after,
    prepare,
    complete,
)
