"""The passes of a fused linear cross entropy over blocks of classes, with the memory of `linear_loss_plans`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from blocknb.kernels.blocked_cross_entropy import (
    block_of_classes,
    block_of_gradients,
    columns_gradients,
    columns_statistics,
    statistics_shares,
)
from blocknb.torch.nn import linear_loss_plans as plans
from blocknb.torch.nn.shapes import sums_dtype


def row_logits(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The logits (rows, classes), rounded once, as those of `torch.nn.functional.linear`."""
    return torch.mm(x, weight.t()) if bias is None else torch.addmm(bias, x, weight.t())


def column_logits(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Writes the logits (classes, rows) to `out`. With a bias they exist twice meanwhile.

    A gradient is the exponential of a logit minus the logsumexp of `row_logits`. If both were rounded in different places, the errors would
    not cancel. With the bias added as a matrix, gradients on an H200 had three times the error of eager's."""
    if bias is None:
        torch.mm(weight, x.t(), out=out)
    else:
        out.copy_(row_logits(x, weight, bias).t())


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a b, without rounding the product to 16 bits where torch multiplies 16 bits into fp32: on GPUs since sm_80."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    elif a.is_cuda and torch.cuda.get_device_capability(a.device)[0] >= 8:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
    else:
        total += torch.mm(a, b)


def _blocks(classes: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(begin + step, classes)) for begin in range(0, classes, step))


# ---- forward -------------------------------------------------------------------------------------------------------------


def row_statistics(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The logsumexp of each row of x (M, H), and the logit of its class: two vectors of M in fp32 (fp64 for fp64)."""
    largest = torch.empty(x.shape[0], dtype=sums_dtype(x), device=x.device)
    total, chosen = torch.empty_like(largest), torch.zeros_like(largest)
    for part in _blocks(weight.shape[0], step):
        logits = row_logits(x, weight[part], None if bias is None else bias[part])
        block_of_classes(logits, target, largest, total, chosen, part.start)
        del logits  # before the next block exists
    return largest + total.log(), chosen


def kept_statistics(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, memory: Tensor
) -> tuple[Tensor, Tensor]:
    """`row_statistics` of at most H rows. Their logits (V, rows) stay in the first columns of `memory` (V, H)."""
    v, rows = weight.shape[0], x.shape[0]
    logits = memory[:, :rows]
    column_logits(x, weight, bias, logits)
    parts = torch.empty((statistics_shares(v, rows)[0], rows), dtype=sums_dtype(x), device=x.device)
    columns_statistics(logits, parts)
    chosen = logits.gather(0, target.long().clamp(0, v - 1)[None])[0].to(parts.dtype)
    return parts.logsumexp(0), chosen


def early_gradients(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    expected: Tensor,
    ignored: int,
    memory: Tensor,
    dx: Tensor,
) -> list[tuple[Tensor, Tensor]]:
    """`kept_statistics` of groups of at most H rows, one after the other in `memory`. Writes their gradients to dx, for losses with the
    gradient `expected`, a scalar."""
    found, step = [], max(memory.shape[1], 1)
    for begin in range(0, x.shape[0], step):
        rows = slice(begin, min(begin + step, x.shape[0]))
        found.append(kept_statistics(x[rows], weight, bias, target[rows], memory))
        logits, dlosses = memory[:, : rows.stop - begin], expected.expand(rows.stop - begin).contiguous()
        columns_gradients(logits, target[rows], dlosses, found[-1][0], 0, ignored)
        torch.mm(logits.t(), weight, out=dx[rows])
    return found


def all_gradients(
    x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dlosses: Tensor, ignored: int, dx: Tensor | None,
    dweight: Tensor, dbias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`kept_statistics` of all rows, whose logits are in memory at once. Writes the gradients that are not None."""
    logits = x.new_empty((weight.shape[0], x.shape[0]))
    found = kept_statistics(x, weight, bias, target, logits)
    columns_gradients(logits, target, dlosses, found[0], 0, ignored)
    if dx is not None:
        torch.mm(logits.t(), weight, out=dx)
    torch.mm(logits, x, out=dweight)
    if dbias is not None:
        dbias.copy_(logits.sum(1, dtype=sums_dtype(x)))
    return found


# ---- backward ------------------------------------------------------------------------------------------------------------


class LossGradients:
    """The gradients of one backward pass. `memory` (V, H) has the logits of the first `kept` rows, and becomes the weight's gradient."""

    def __init__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dlosses: Tensor, logsumexp: Tensor, ignored: int,
    ):  # fmt: skip
        self.x, self.weight, self.bias = x, weight, bias
        self.target, self.dlosses, self.logsumexp, self.ignored = target, dlosses, logsumexp, ignored

    def run(
        self,
        dx: Tensor | None,
        dweight: Tensor | None,
        dbias: Tensor | None,
        kept: int = 0,
        expected: Tensor | None = None,
    ) -> None:
        """Writes the gradients that are not None. `dweight` has the logits of the first `kept` rows before; with 0 they are computed.
        With `expected`, dx has the other rows from `early_gradients`."""
        (m, h), v = self.x.shape, self.weight.shape[0]
        wide = sums_dtype(self.x)
        ratio = wide.itemsize // self.x.element_size()
        if kept == 0 and m and dweight is not None and dx is not None and dweight.is_contiguous():
            kept = plans.kept_rows(m, h)
            column_logits(self.x[:kept], self.weight, self.bias, dweight[:, :kept])
        needs_x, needs_weight, early = dx is not None, dweight is not None or dbias is not None, expected is not None
        plan = plans.loss_plan(m, h, v, kept, ratio, needs_x, needs_weight, early)
        if kept and dweight is not None:
            logits = dweight[:, :kept]
            self._columns(logits, slice(0, kept), 0)
            if dx is not None:
                torch.mm(logits.t(), self.weight, out=dx[:kept])
        sums = [] if dx is None or early else self._sums(plan, dx, wide)
        if needs_weight:
            self._classes(plan, sums, dweight, dbias)
        if dx is None:
            return
        if expected is not None:
            found = torch.where(self.target == self.ignored, 1.0, self.dlosses / expected)
            dx[kept:].mul_(
                found[kept:, None]
            )  # exact if the gradient of the losses is as expected, or a power of two times that
        elif sums:
            own, extra = sums
            if ratio > 1:
                _narrow(own, dx[plan.kept :], max(1, plan.in_place // 16))
            dx[plan.kept + plan.in_place :][: plan.extra_memory].copy_(extra)
            del own, extra, sums
        self._chunks(plan, dx)

    @staticmethod
    def _sums(plan: plans.LossPlan, dx: Tensor, wide: torch.dtype) -> list[Tensor]:
        """Zeros for the sums of the gradient of x: for the `own` rows in its memory, which reaches into that of the rows after them."""
        if plan.in_place + plan.extra_memory == 0:
            return []
        h = dx.shape[1]
        flat = dx.view(-1)[plan.kept * h :][: plan.in_place * h * wide.itemsize // dx.element_size()]
        own = flat.view(wide).view(plan.in_place, h).zero_()
        return [own, torch.zeros((plan.extra_memory, h), dtype=wide, device=dx.device)]

    def _columns(self, logits: Tensor, rows: slice, begin: int) -> None:
        """Replaces logits (classes, rows) by their gradients."""
        given = self.target[rows], self.dlosses[rows], self.logsumexp[rows]
        columns_gradients(logits, *given, begin, self.ignored)

    def _chunks(self, plan: plans.LossPlan, dx: Tensor) -> None:
        """The gradient of the last rows of x, in chunks of rows."""
        m = dx.shape[0]
        for begin in range(m - plan.recomputed, m, plan.chunk):
            rows = slice(begin, min(begin + plan.chunk, m))
            gradients = row_logits(self.x[rows], self.weight, self.bias)
            given = self.target[rows], self.dlosses[rows], self.logsumexp[rows]
            block_of_gradients(gradients, *given, 0, self.ignored)
            torch.mm(gradients, self.weight, out=dx[rows])
            del gradients

    def _classes(self, plan: plans.LossPlan, sums: list[Tensor], dweight: Tensor | None, dbias: Tensor | None) -> None:
        """The gradients of the weight and the bias, and the sums of x's, block by block of classes."""
        m, kept = self.x.shape[0], plan.kept
        for part in _blocks(self.weight.shape[0], plan.block):
            gradients = self.x.new_empty((part.stop - part.start, m))
            if kept and dweight is not None:
                gradients[:, :kept].copy_(dweight[part, :kept])
            if kept < m:
                others = gradients[:, kept:]
                bias = None if self.bias is None else self.bias[part]
                column_logits(self.x[kept:], self.weight[part], bias, others)
                self._columns(others, slice(kept, m), part.start)
                del others  # it holds the block
            begin = kept
            for total in sums:
                if rows := total.shape[0]:
                    _add_product(total, gradients[:, begin : begin + rows].t(), self.weight[part])
                begin += rows
            if dweight is not None:
                torch.mm(gradients, self.x, out=dweight[part])
            if dbias is not None:
                dbias[part] = gradients.sum(1, dtype=sums_dtype(self.x))
            del gradients


def _narrow(wide: Tensor, out: Tensor, step: int) -> None:
    """Writes the rows of `wide` to the first ones of `out`, which begins at the same address and has a narrower dtype."""
    for begin in range(0, wide.shape[0], step):
        out[begin : begin + step][: wide.shape[0] - begin].copy_(wide[begin : begin + step].to(out.dtype))
