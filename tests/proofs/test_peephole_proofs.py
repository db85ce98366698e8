"""The peephole rules are proved: for every small term, `simplify`'s result equals the term for all operands.

The proof is of the code that runs: the pass rewrites a function, and one translator makes terms of both. Every `return` of a rule must have
replaced an op in some term, so that a rule without a proof fails here. `--full` proves all dtypes, with random constants.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

pytest.importorskip("z3")

import peephole_terms as terms
import smt

from blocknb.ir.core import Func
from blocknb.language import types as t
from blocknb.passes.support import peephole
from blocknb.passes.tile.simplify import rounds

FILE = Path(peephole.__file__)
#: Rules whose proof is elsewhere, or that are only tested: docs/design/proofs.md names them.
ELSEWHERE = {
    "_product_sum": "reassociates floats, tests/passes/test_simplify.py",
    "whole_tile": "needs the facts of a function, test_division_proofs.py",
}


def proved(found: Iterable[terms.Named]) -> tuple[int, int]:
    """The number of terms, and of those that changed; fails on a term whose meaning changed."""
    count = changed = 0
    for name, func in found:
        after = rounds(func, {}, None)
        count += 1
        if after is func:
            continue
        changed += 1
        try:
            wrong = smt.difference(func, after)
        except smt.Untranslated:
            # The rule moved an op that has no term; the ops are the same ones.
            assert names(func) == names(after), name
            continue
        assert wrong is None, f"{name}: differs for {wrong}"
    return count, changed


def names(func: Func) -> list[str]:
    return [op.name for op in func.ops()]


def rules() -> dict[int, str]:
    """The lines of the file on which a rule may return a replacement, by the number of the statement's last line."""
    found, lines = {}, FILE.read_text().splitlines()
    for function in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(function, ast.FunctionDef) and function.name not in ELSEWHERE:
            for node in ast.walk(function):
                if not isinstance(node, ast.Return) or node.value is None:
                    continue
                if ast.unparse(node.value) != "None" and "whole_tile" not in lines[node.lineno - 2]:
                    found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or 0) + 1), node.lineno))
    return found


@contextmanager
def fired() -> Iterator[set[int]]:
    """Collects the lines of the file on which a function returned a value other than None."""
    lines: set[int] = set()

    def local(frame: FrameType, event: str, value: Any) -> Any:
        if event == "return" and value is not None:
            lines.add(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        return local if frame.f_code.co_filename == str(FILE) else None

    saved = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(saved)


def test_every_rule_replaces_an_op_in_some_term():
    every = chain(
        terms.all_terms((t.int1, t.int8)),
        filter(None, terms.casts(t.int8, t.int16)),
        filter(None, terms.flat(t.float16)),
        filter(None, terms.saturating_casts()),
        terms.everything_else(),
    )
    with fired() as lines:
        for _, func in every:
            rounds(func, {}, None)
    found = rules()
    missing = sorted(set(found.values()) - {found[line] for line in lines if line in found})
    text = FILE.read_text().splitlines()
    assert not missing, "no term in which these rules fire:\n" + "\n".join(f"{n}: {text[n - 1]}" for n in missing)


@pytest.mark.parametrize("dtype", [t.int1, t.int8, t.int32, t.uint64], ids=str)
def test_rules_of_integers_are_exact(dtype):
    count, changed = proved(terms.all_terms((dtype,)))
    assert count > 100 and changed > count // 5


def test_rules_of_floats_are_exact_to_the_bit():
    count, changed = proved(filter(None, chain(terms.flat(t.float16), terms.selections(t.float16))))
    assert count > 300 and changed > 10


def test_rules_of_shapes_and_pointers_are_exact():
    count, changed = proved(terms.everything_else())
    assert count > 150 and changed > 100


@pytest.mark.full
@pytest.mark.parametrize("dtype", terms.INTEGERS, ids=str)
def test_rules_of_integers_are_exact_for_random_constants(dtype):
    proved(terms.all_terms((dtype,), more=8))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [t.int1, *terms.INTEGERS, *terms.FLOATS], ids=str)
def test_casts_between_all_dtypes_are_removed_only_if_nothing_changes(dtype):
    for other in (t.int1, *terms.INTEGERS, *terms.FLOATS):
        proved(filter(None, terms.casts(dtype, other)))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [t.bfloat16, t.float32, t.float64], ids=str)
def test_rules_of_wide_floats_are_exact_to_the_bit(dtype):
    proved(filter(None, chain(terms.flat(dtype), terms.selections(dtype))))


@pytest.mark.full
def test_rules_of_nested_floats_are_exact_to_the_bit():
    proved(filter(None, terms.nested(t.float16)))
