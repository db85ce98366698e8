"""Differences of two compilations that explain themselves: of IR, of LLVM text, and of machine code.

`match_stages` pairs the ops of two stages of one compilation by op ids and by provenance (`Op.was`). `match_traces` pairs those of two
compilations (two versions, targets or settings of a knob), whose ids have nothing to do with each other. `sentences` turns either into
sentences, and `compare_code` does the same for instructions. Structural matching follows GumTree (Falleri et al., "Fine-grained and
accurate source code differencing", 2014): anchors first, then what the anchors imply.
"""

from __future__ import annotations

from blocknb.ir_diff.code_alignment import CodeDifference, compare_code
from blocknb.ir_diff.compilations import match_traces
from blocknb.ir_diff.matching import Matching, OpMatch, match_stages
from blocknb.ir_diff.sentences import ChangeSentence, sentences

__all__ = [
    "ChangeSentence",
    "CodeDifference",
    "Matching",
    "OpMatch",
    "compare_code",
    "match_stages",
    "match_traces",
    "sentences",
]
