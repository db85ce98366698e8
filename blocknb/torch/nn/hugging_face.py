"""More replacements in a language model of Hugging Face: its attention, and its head with a loss that has no logits in memory.

Both use what transformers offers for this: the registries of attention functions and masks, and the attribute `loss_function` of a model.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from blocknb.torch.nn.attention import hugging_face_attention
from blocknb.torch.nn.linear_losses import linear_cross_entropy

NAME, CAUSAL = "blocknb", "blocknb_causal"  # of the attention in the registries of transformers


def _queries(keywords: Mapping[str, Any]) -> Any:
    """The number of queries, which older versions of transformers give by their positions."""
    positions = keywords.get("cache_position")
    return keywords.get("q_length") if positions is None else positions.shape[0]


def hugging_face_mask(*args: Any, **keywords: Any) -> Any:
    """A function of Hugging Face's `AttentionMaskInterface`: no mask where attention is plainly causal, else that of "sdpa"."""
    from transformers.masking_utils import sdpa_mask

    plain = keywords.get("allow_is_causal_skip", False) and keywords.get("attention_mask") is None
    local, length = keywords.get("local_size"), keywords.get("kv_length")
    if plain and not args and _queries(keywords) == length and (local is None or length < local):
        return None
    return sdpa_mask(*args, **keywords)


def causal_mask(*args: Any, **keywords: Any) -> None:
    """A function of Hugging Face's `AttentionMaskInterface` for batches without padding and without packed sequences: there is no mask.

    transformers makes a mask in each compiled graph, because there it cannot look whether sequences are packed, and a mask takes slower
    kernels. Raises ValueError for a mask of padding, and for queries that continue a cache. In eager mode it raises ValueError for packed
    sequences, too. In a compiled graph they are not noticed.
    """
    if keywords.get("attention_mask") is not None:
        raise ValueError('attention="causal" takes no attention_mask: leave it out, or set attention=True')
    if _queries(keywords) != keywords.get("kv_length"):
        raise ValueError(
            'attention="causal" takes whole sequences without a cache: set attention=True, or use_cache=False'
        )
    if keywords.get("local_size") is not None and keywords["local_size"] < keywords["kv_length"]:
        raise ValueError('attention="causal" is for layers without a sliding window: set attention=True')
    if not torch.compiler.is_compiling() and not keywords.get("allow_is_causal_skip", True):
        raise ValueError('attention="causal" takes no packed sequences and no other mask: set attention=True')


def use_attention(model: Any, causal: bool = False) -> Callable[[], None]:
    """Registers `attention` in transformers and sets it for a model; with `causal` without any mask. Returns what takes the setting back.

    Raises ValueError for a model without `set_attn_implementation`.
    """
    if not hasattr(model, "set_attn_implementation"):
        raise ValueError(f"attention= is for models of transformers, and {type(model).__name__} is none")
    import transformers

    for name, mask in ((NAME, hugging_face_mask), (CAUSAL, causal_mask)):
        transformers.AttentionInterface.register(name, hugging_face_attention)
        transformers.AttentionMaskInterface.register(name, mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(CAUSAL if causal else NAME)
    return lambda: model.set_attn_implementation(before)


class LossHead(torch.nn.Module):
    """The linear head of a language model for `HeadLoss`. In training with labels it returns the hidden states, otherwise logits.

    "In training" is in the mode `train()` and with gradients enabled. The model sets `labels_given` before each call of the head, which
    then sets `passed_on`. The parameters and the state_dict are those of the linear layer.
    """

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        self.in_features, self.out_features = head.in_features, head.out_features
        self.labels_given = self.passed_on = False

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., in_features) to logits (..., out_features), or in training with labels to itself."""
        self.passed_on = self.labels_given and self.training and torch.is_grad_enabled()
        self.labels_given = False
        return x if self.passed_on else functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class HeadLoss:
    """The loss of a language model with a LossHead: `linear_cross_entropy` of hidden states, else the loss that the model had of logits."""

    def __init__(self, head: LossHead, plain: Callable[..., Any], keep_logits: bool = False) -> None:
        self.head, self.plain, self.keep_logits = head, plain, keep_logits

    def __call__(
        self, logits: Tensor, labels: Tensor | None, vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
        shift_labels: Tensor | None = None, **keywords: Any,
    ) -> Tensor:  # fmt: skip
        """The loss of hidden states (..., T, H) as `logits`, and classes (..., T); with the arguments of transformers' losses."""
        if not self.head.passed_on:
            return self.plain(
                logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, ignore_index=ignore_index,
                shift_labels=shift_labels, **keywords,
            )  # fmt: skip
        if shift_labels is None:
            assert labels is not None
            shift_labels = functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        reduction = "mean" if num_items_in_batch is None else "sum"
        head, classes = self.head, shift_labels.reshape(-1).to(logits.device)
        loss = linear_cross_entropy(
            logits.reshape(-1, logits.shape[-1]), head.weight, classes, head.bias, ignore_index, reduction,
            self.keep_logits,
        )  # fmt: skip
        return loss if num_items_in_batch is None else loss / num_items_in_batch


class LabelNotingForward:
    """A model's `forward` that tells its LossHead whether there are labels, then calls `before`, or the `forward` of the model's class.

    A hook would not do: PEFT calls `forward` of the model that it wraps, which runs no hooks. Copies of a model and pickled models keep it.
    """

    def __init__(self, model: Any, before: Callable[..., Any] | None) -> None:
        names = list(inspect.signature(model.forward).parameters)
        self.model, self.before = model, before
        self.place = names.index("labels") if "labels" in names else None

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of the wrapped `forward`, by which trainers choose the columns of a batch."""
        return inspect.signature(self.before or types.MethodType(type(self.model).forward, self.model))

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Calls the wrapped `forward`."""
        model, place = self.model, self.place
        head = model._modules["lm_head"]
        if isinstance(head, LossHead):
            labels = keywords.get("labels") if place is None or len(args) <= place else args[place]
            head.labels_given = labels is not None
        if self.before is not None:
            return self.before(*args, **keywords)
        return type(model).forward(model, *args, **keywords)


def _note_labels(model: Any) -> Callable[[], None]:
    """Gives a model a LabelNotingForward. Returns what takes it back."""
    before = model.__dict__.get("forward")
    model.forward = made = LabelNotingForward(model, before)

    def undo() -> None:
        if model.__dict__.get("forward") is not made:
            return  # someone has wrapped it since; without a LossHead it changes nothing
        if before is None:
            del model.forward
        else:
            model.forward = before

    return undo


def fuse_loss(model: Any, keep_logits: bool = False) -> tuple[torch.nn.Linear, LossHead, Callable[[], None]]:
    """Sets a HeadLoss for a model, and returns its head, the LossHead to put in its place, and what takes the loss back.

    Raises ValueError for a model without a linear `lm_head` of its own, and for one whose loss is not that of a causal language model.
    """
    head: Any = getattr(model, "lm_head", None)
    plain: Any = getattr(model, "loss_function", None)
    kind = type(model).__name__
    if type(head) is not torch.nn.Linear or plain is None:
        raise ValueError(f"fused_loss=True needs a model with a linear lm_head and a loss_function, not {kind}")
    if model._modules.get("lm_head") is not head:
        raise ValueError(f"fused_loss=True: {kind} only wraps the model with lm_head: pass the inner model")
    if getattr(plain, "__name__", "") != "ForCausalLMLoss":
        raise ValueError(f"fused_loss=True is for the loss ForCausalLMLoss, and the model has {plain!r}")
    if getattr(model.config, "final_logit_softcapping", None):
        raise ValueError("fused_loss=True cannot cap logits, and the model has final_logit_softcapping")
    own = model.__dict__.get("_loss_function")
    made = LossHead(head).train(head.training)
    model.loss_function = HeadLoss(made, plain, keep_logits)
    forget = _note_labels(model)

    def undo() -> None:
        forget()
        if own is None:
            del model._loss_function
        else:
            model.loss_function = own

    return head, made, undo
