"""Direct preference optimization (Rafailov et al. 2023), also from the last hidden states, without logits in memory."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from blocknb.torch.nn.linear_losses import linear_cross_entropy

LOSS_TYPES = ("sigmoid", "hinge", "ipo")


def dpo_loss(
    policy_chosen_logps: Tensor, policy_rejected_logps: Tensor, reference_chosen_logps: Tensor, reference_rejected_logps: Tensor,
    beta: float = 0.1, label_smoothing: float = 0.0, loss_type: str = "sigmoid",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss of TRL's DPOTrainer, from the logarithms of the answers' probabilities (B).

    Returns (losses, rewards of the chosen answers, rewards of the rejected answers), each (B).

    `loss_type` is "sigmoid", "hinge" or "ipo" (whose logarithms are means over tokens). The rewards have no gradient. Raises ValueError
    for another type, and for label smoothing with another type than "sigmoid".
    """
    if loss_type not in LOSS_TYPES:
        raise ValueError(f"dpo_loss: loss_type is {loss_type!r}, but it must be one of {', '.join(LOSS_TYPES)}")
    if label_smoothing and loss_type != "sigmoid":
        raise ValueError(f'dpo_loss: label_smoothing needs loss_type="sigmoid", not {loss_type!r}')
    chosen = policy_chosen_logps - reference_chosen_logps
    rejected = policy_rejected_logps - reference_rejected_logps
    logits = chosen - rejected
    if loss_type == "sigmoid":
        losses = -functional.logsigmoid(beta * logits) * (1 - label_smoothing)
        if label_smoothing:
            losses = losses - functional.logsigmoid(-beta * logits) * label_smoothing
    elif loss_type == "hinge":
        losses = torch.relu(1 - beta * logits)
    else:
        losses = (logits - 1 / (2 * beta)).square()
    return losses, beta * chosen.detach(), beta * rejected.detach()


def linear_logps(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    average: bool = False,
) -> Tensor:
    """The logarithms of the probabilities of answers (B), in fp32: the sum over tokens of log_softmax(x weight^T + bias)[target].

    x is (B, T, H), the weight (V, H), and the target (B, T); tokens whose target is `ignore_index` do not count. `average` divides by the
    number of those that count. At most one block of logits is in memory. Raises ValueError for shapes and dtypes that do not fit.
    """
    if x.dim() != 3 or tuple(target.shape) != tuple(x.shape[:2]):
        raise ValueError(
            f"linear_logps takes x (B, T, H) and target (B, T), not {tuple(x.shape)} and {tuple(target.shape)}"
        )
    losses = linear_cross_entropy(x.flatten(0, 1), weight, target.flatten(), bias, ignore_index, "none")
    total = -losses.view(target.shape).sum(-1)
    return total / (target != ignore_index).sum(-1).clamp(min=1) if average else total


def linear_dpo_loss(
    x: Tensor, weight: Tensor, target: Tensor, ref_x: Tensor | None = None, ref_weight: Tensor | None = None, *,
    bias: Tensor | None = None, ref_bias: Tensor | None = None, ignore_index: int = -100, beta: float = 0.1,
    label_smoothing: float = 0.0, loss_type: str = "sigmoid",
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`dpo_loss` from hidden states x (2 B, T, H), the chosen answers first, and a weight (V, H) of the language model's head.

    Returns (mean loss, rewards of the chosen answers, rewards of the rejected answers).

    `ref_x` and `ref_weight` are those of the reference model, which get no gradient; without them its logarithms are 0. Raises ValueError
    for an odd number of answers, and as `linear_logps` does.
    """
    if x.shape[0] % 2:
        raise ValueError(f"linear_dpo_loss: x has {x.shape[0]} answers, but it needs chosen and rejected ones in pairs")
    options = {"ignore_index": ignore_index, "average": loss_type == "ipo"}
    policy = linear_logps(x, weight, target, bias, **options)  # type: ignore[arg-type]
    reference = torch.zeros_like(policy)
    if ref_x is not None:
        if ref_weight is None:
            raise ValueError("linear_dpo_loss: `ref_x` needs `ref_weight`")
        with torch.no_grad():
            reference = linear_logps(ref_x, ref_weight, target, ref_bias, **options)  # type: ignore[arg-type]
    (good, bad), (ref_good, ref_bad) = policy.chunk(2), reference.chunk(2)
    losses, chosen, rejected = dpo_loss(good, bad, ref_good, ref_bad, beta, label_smoothing, loss_type)
    return losses.mean(), chosen, rejected
