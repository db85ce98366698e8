"""`blocknb.torch.replace`: what it changes, that it undoes everything, and that it checks each replacement."""

from __future__ import annotations

import types
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch

from blocknb.torch import nn, replace
from blocknb.torch.nn.replacement import ReplacementError

Tensor = torch.Tensor


class LlamaRMSNorm(torch.nn.Module):
    """A module as Hugging Face's."""

    def __init__(self, size: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.rand(size) + 0.5), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)).to(
            x.dtype
        )


class LlamaMLP(torch.nn.Module):
    """A module as Hugging Face's."""

    def __init__(self, size: int, act: str = "silu"):
        super().__init__()
        self.config = types.SimpleNamespace(hidden_act=act)
        self.gate_proj, self.up_proj = (torch.nn.Linear(size, 3 * size, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(3 * size, size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class ToyBlock(torch.nn.Module):
    def __init__(self, size: int = 16, act: str = "silu"):
        super().__init__()
        self.norms = torch.nn.ModuleList([LlamaRMSNorm(size), torch.nn.LayerNorm(size), torch.nn.RMSNorm(size)])
        self.mlp = LlamaMLP(size, act)
        self.wide = torch.nn.LayerNorm((2, size))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = x + norm(x)
        return self.wide(self.mlp(x).view(-1, 2, x.shape[-1]))


class MixedModel(torch.nn.Module):
    """Modules of torch that `replace` knows, and some that it leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.sparse = torch.nn.Embedding(9, 8, padding_idx=0), torch.nn.Embedding(9, 8, sparse=True)
        self.norm, self.linear = torch.nn.GroupNorm(2, 8), torch.nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.sparse(ids)
        return self.linear(self.norm(x.transpose(1, 2)).transpose(1, 2))


def test_embeddings_and_group_norms_are_replaced_and_plain_linear_layers_are_not_mentioned() -> None:
    model, ids = MixedModel(), torch.tensor([[0, 3, 8], [1, 1, 0]])
    before, tied = model(ids), model.embed.weight
    with replace(model, ids) as changes:
        assert [r.path for r in changes.replaced] == ["embed", "norm"]
        assert all(r.difference is not None and r.difference < 1e-5 for r in changes.replaced)
        assert changes.skipped == {"sparse": "it has max_norm, scale_grad_by_freq or sparse gradients"}
        assert model.embed.weight is tied and model.embed.padding_idx == 0
        torch.testing.assert_close(model(ids), before)
    assert type(model.embed) is torch.nn.Embedding


PATHS = ["norms.0", "norms.1", "norms.2", "mlp"]


def gradients(model: Any, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).pow(2).sum(), model.parameters()))


def test_replace_lists_what_it_changed_keeps_values_gradients_and_state_and_undoes_it() -> None:
    model, x = ToyBlock(), torch.randn(4, 6, 16)
    before, exact = dict(model.named_modules()), [model(x), *gradients(model, x)]
    state, forward = model.state_dict(), LlamaRMSNorm.forward
    changes = replace(model, x)
    assert [r.path for r in changes.replaced] == PATHS
    assert all(r.difference is not None and r.difference < 1e-5 for r in changes.replaced)
    assert changes.skipped == {"wide": "it normalises more than one axis"}
    assert "norms.0: " in repr(changes) and "wide: left as it is" in repr(changes)
    assert isinstance(model.norms[0], nn.RMSNorm) and model.norms[0].casting == "llama"
    assert LlamaRMSNorm.forward is forward  # nothing is patched
    assert list(model.state_dict()) == list(state)
    for found, right in zip([model(x), *gradients(model, x)], exact, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-4)
    model.eval()
    assert changes.undo() is model
    assert {name: id(m) for name, m in model.named_modules()} == {name: id(m) for name, m in before.items()}
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())


def test_replace_as_a_context_manager_and_with_only_some_classes() -> None:
    model = ToyBlock()
    original = model.norms[1]
    with replace(model, only=["LayerNorm"]) as changes:
        assert [r.path for r in changes.replaced] == ["norms.1"]
        assert "not compared" in repr(changes)
        assert isinstance(model.norms[1], nn.LayerNorm)
    assert model.norms[1] is original


def test_a_second_time_and_a_model_that_is_one_layer_replace_nothing() -> None:
    model = ToyBlock()
    assert len(replace(model)) == 4
    assert len(replace(model)) == 0
    assert "the model itself" in repr(replace(LlamaRMSNorm(8)))


def test_a_class_without_a_replacement_is_an_error() -> None:
    with pytest.raises(ReplacementError, match="no layer of blocknb replaces LammaMLP; it replaces .*LlamaMLP"):
        replace(ToyBlock(), only=["LammaMLP"])


def test_a_replacement_that_computes_other_values_is_refused_and_the_model_stays_as_it_is() -> None:
    class Shifted(LlamaRMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + 0.01

    Shifted.__name__ = "LlamaRMSNorm"
    model, x = ToyBlock(), torch.randn(2, 6, 16)
    model.norms[0] = Shifted(16)
    modules = list(model.modules())
    with pytest.raises(ReplacementError, match=r"norms\.0: the replacement differs from LlamaRMSNorm by 0\.0.*only="):
        replace(model, x)
    assert list(model.modules()) == modules
    assert not any(module._forward_hooks for module in model.modules())


def test_unknown_activations_hooks_and_losses_with_weights_are_left_alone_with_the_reason() -> None:
    model = ToyBlock(act="relu")
    model.norms[1].register_forward_hook(lambda *_: None)
    model.loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    changes = replace(model)
    assert changes.skipped["mlp"] == "its activation is 'relu'"
    assert changes.skipped["norms.1"] == "it has hooks"
    assert changes.skipped["loss"] == "it has class weights or label smoothing"
    assert len(changes) == 2
