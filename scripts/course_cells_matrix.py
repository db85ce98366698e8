"""The cells whose cards are the pictures of units 8 to 10: tiles of a product, their order, resources, and timelines."""

from __future__ import annotations

from typing import Any

_ORDER = """\
    first = pid // (8 * across) * 8
    height = min(down - first, 8)
    inside = pid % (8 * across)
    row, column = first + inside % height, inside // height
"""
_TILES = """\
@blocknb.kernel
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], mask=(k[:, None] < K) & (n[None, :] < N), other=0.0)
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))

"""
_RAGGED = """\
a, b = np.ones((70, 50), np.float32), np.ones((50, 45), np.float32)
c = np.zeros((70, 45), np.float32)
matmul[3, 3](a, b, c, 70, 45, 50, BM=32, BN=16, BK=16)
"""
_IN_ORDER = """\
@blocknb.kernel
def matmul(c, down, across):
    pid = tl.program_id(0)
{order}    m, n = row * 4 + tl.arange(0, 4), column * 4 + tl.arange(0, 4)
    tl.store(c + m[:, None] * across * 4 + n[None, :], tl.zeros((4, 4), tl.float32))

c = np.zeros((96, 96), np.float32)
matmul[24 * 24,](c, 24, 24)
"""
_HALF = """\
a, b = np.ones((512, 1024), np.float16), np.ones((1024, 512), np.float16)
c = np.zeros((512, 512), np.float16)
matmul[blocknb.cdiv(512, {BM}), blocknb.cdiv(512, {BN})](
    a, b, c, 512, 512, 1024, BM={BM}, BN={BN}, BK=64, num_warps=8, num_stages={stages})
"""
_C = "(panel) => [...panel.querySelectorAll('button')].find((b) => b.textContent.startsWith('c')).click()"
_GPU = "%%blockkernel --target sm_90a\n" + _TILES.replace("total, mask", "total.to(tl.float16), mask")

CELLS: dict[str, dict[str, Any]] = {
    "product_tiles": {"cell": "%%blockkernel --footprint\n" + _TILES + _RAGGED, "view": "Footprint", "before": _C},
    "grouped_tiles": {
        "cell": "%%blockkernel --footprint\n" + _IN_ORDER.format(order=_ORDER),
        "view": "Footprint",
        "before": _C,
    },
    "product_resources": {"cell": _GPU + _HALF.format(BM=128, BN=256, stages=3), "view": "Resources"},
    "timeline_one_stage": {"cell": _GPU + _HALF.format(BM=128, BN=128, stages=1), "view": "Timeline"},
    "timeline_stages": {"cell": _GPU + _HALF.format(BM=128, BN=128, stages=4), "view": "Timeline"},
}
