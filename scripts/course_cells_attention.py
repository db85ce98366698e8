"""The cells whose cards are the pictures of unit 11: the timeline of attention."""

from __future__ import annotations

from typing import Any

from blocknb.learn.units.attention_kernels import ATTN_2

_LAUNCH = """
q, k, v, out = np.ones((4, 1024, 64), np.float16)
attention[8,](q, k, v, out, 1024, 1024, 0.125, BM=128, BN=128, D=64, num_warps=8, num_stages=2)
"""

CELLS: dict[str, dict[str, Any]] = {
    "timeline_attention": {"cell": "%%blockkernel --target sm_90a\n" + ATTN_2.solution + _LAUNCH, "view": "Timeline"},
}
