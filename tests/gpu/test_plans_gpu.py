"""Every plan of a product on a GPU against float64: whole tiles, tiles of 192 columns, split last waves, splits, copies and clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

import blocknb
import blocknb.language as bl
from blocknb.kernels import gemm, plans
from blocknb.kernels.operands import MatmulProblem
from blocknb.kernels.strides import device

torch = pytest.importorskip("torch")
pytest.importorskip("cupy")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

pytestmark = pytest.mark.skipif(
    torch.cuda.get_device_capability() != (9, 0), reason="the plans are those for compute capability 9.0"
)
#: Aligned to lines, to 16 bytes, and not at all; fewer and more tiles than multiprocessors; an odd number of rows of tiles.
SHAPES = ((2176, 1088, 4160), (3000, 1544, 1032), (1169, 2213, 777), (320, 192, 3328), (5184, 2624, 256))


def stored(rows: int, columns: int, transposed: bool) -> torch.Tensor:
    found = torch.randn((columns, rows) if transposed else (rows, columns), device="cuda", dtype=torch.float16)
    return found.T if transposed else found


@pytest.mark.parametrize("order", ["nn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_every_plan_matches_float64(shape, order):
    m, n, k = shape
    a, b = stored(m, k, order[0] == "t"), stored(k, n, order[1] == "t")
    bias = torch.randn(n, device="cuda")
    expected = torch.relu(a.double() @ b.double() + bias.double())
    out = torch.empty(m, n, device="cuda", dtype=torch.float16)
    p = MatmulProblem.of(a, b, out, bias=bias, activation="relu")
    for _, plan in plans.candidates(m, n, k, device(a), p.operand_rows, p.aligned, p.along_k):
        pairs = plan._replace(tile=plan.tile._replace(cluster=2))
        split_whole = plan.tile.splits > 1 and not plan.last_wave
        for one in (plan, *([pairs] if plan.tile.num_warps == 8 and not split_whole else [])):
            out.fill_(torch.nan)
            gemm.carry_out(replace(p), one)
            error = (out.double() - expected).abs().max() / expected.abs().max()
            assert error < 1e-3, one  # NaN fails


@blocknb.kernel
def rows_kernel(a, b, c, m, n, k, BLOCK: bl.constexpr, DEPTH: bl.constexpr):
    """A program multiplies BLOCK rows of a by all of b, which has BLOCK columns."""
    first = bl.program_id(0) * BLOCK
    rows = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BLOCK, DEPTH])
    columns = bl.make_tensor_descriptor(b, [k, n], [n, 1], [DEPTH, BLOCK])
    total = bl.zeros((BLOCK, BLOCK), bl.float32)
    for start in range(0, k, DEPTH):
        total = bl.dot(rows.load([first, start]), columns.load([start, 0]), total)
    bl.make_tensor_descriptor(c, [m, n], [n, 1], [BLOCK, BLOCK]).store([first, 0], total.to(bl.float16))


@pytest.mark.parametrize("programs", [1, 2, 3, 4, 301, 302])
def test_grids_of_even_and_odd_numbers_of_programs_match_float64(programs):
    m, n, k = programs * 128, 128, 320
    a = torch.randn(m, k, device="cuda", dtype=torch.float16)
    b = torch.randn(k, n, device="cuda", dtype=torch.float16)
    c = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
    for _ in range(2):  # the second launch is a repeated one
        c.fill_(torch.nan)
        rows_kernel[(programs,)](a, b, c, m, n, k, BLOCK=128, DEPTH=64, num_warps=8, num_ctas=2)
        expected = a.double() @ b.double()
        assert (c.double() - expected).abs().max() / expected.abs().max() < 1e-3
