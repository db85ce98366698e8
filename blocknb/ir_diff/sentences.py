"""Sentences for the changes between two functions, from the matched ops alone: no sentence depends on the name of a pass.

Each rule reads the matches, yields sentences, and marks the matches that its sentences cover. So a later and more general rule does not
repeat them. Rules come from the specific (a load that became an asynchronous copy) to the general (added arithmetic). The sentences are
sorted by weight: what costs or saves time first, index arithmetic last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from blocknb.ir_diff import control_sentences, memory_sentences, value_sentences
from blocknb.ir_diff.matching import Matching
from blocknb.ir_diff.sentence_writer import ChangeSentence, SentenceWriter

__all__ = ["ChangeSentence", "sentences"]

#: The rules in the order in which they take matches.
RULES: tuple[Callable[[SentenceWriter], Iterator[ChangeSentence]], ...] = (
    control_sentences.function_attributes,
    control_sentences.warp_roles,
    control_sentences.unrolled_loops,
    memory_sentences.asynchronous_copies,
    memory_sentences.bulk_stores,
    memory_sentences.buffers,
    control_sentences.loops,
    value_sentences.attributes,
    memory_sentences.accesses_of_another_type,
    value_sentences.layouts,
    value_sentences.replacements,
    memory_sentences.synchronization,
    value_sentences.copies,
    control_sentences.moved_between_blocks,
    value_sentences.types,
    value_sentences.operands,
    value_sentences.merged,
    value_sentences.added,
    value_sentences.removed,
    control_sentences.reordered,
)


def sentences(matching: Matching, compared: bool = False) -> list[ChangeSentence]:
    """The changes between two functions, the most important first. Empty if no op differs.

    `compared` is true for two compilations, which no pass connects.
    """
    writer = SentenceWriter(matching, compared)
    found = [sentence for rule in RULES for sentence in rule(writer)]
    return sorted(found, key=lambda sentence: -sentence.weight)
