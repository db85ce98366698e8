"""The line magic `%roofline`: shows the card of a kernel with its roofline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook.roofline import earlier, launched_record, roofline


def show(line: str, shell: Any) -> None:
    """`%roofline` (see `lines`): the card of the first kernel with its roofline."""
    from blocknb.notebook import diffs, live
    from blocknb.notebook.card import card_of
    from blocknb.notebook.expressions import Expression
    from blocknb.notebook.options import split_words, unquoted

    head, *rest = line.split("--baseline")
    names = [unquoted(word) for word in split_words(head)]
    if not names:
        raise UsageError("%roofline takes kernel names: %roofline softmax --baseline scipy.special.softmax(x, 1)")
    kernels = [diffs.kernel_of(name, shell) for name in names]
    expressions = [Expression(unquoted(text.strip()), shell) for text in rest]
    record = launched_record(kernels[0])
    baselines = {e.text: e.on_copies() for e in expressions}
    made = roofline(*kernels, baselines=baselines, versions=earlier(kernels[0]))
    card = replace(card_of(record), parts={"roofline": made.part}, opened=("roofline",))
    shell.display_pub.publish({**live.bundle(card), "text/plain": made.text()})
