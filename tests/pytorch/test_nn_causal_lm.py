"""`replace` with its options for language models of transformers: attention without masks, and the loss without logits."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")
pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

import torch
from torch_device import DEVICE
from transformers import LlamaConfig, LlamaForCausalLM

from blocknb.torch import replace
from blocknb.torch.nn import hugging_face

V, H = 97, 32


def model_of(**more: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=H, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=64, pad_token_id=0, **more,
    )  # fmt: skip
    return LlamaForCausalLM(config).float().to(DEVICE).train()


def step(model: Any, **inputs: Any) -> tuple[Any, list[torch.Tensor]]:
    """The output, and the loss with the gradients of all parameters."""
    model.zero_grad()
    found = model(**inputs)
    found.loss.backward()
    return found, [found.loss.detach(), *(p.grad.clone() for p in model.parameters())]


def close(found: list[torch.Tensor], exact: list[torch.Tensor]) -> None:
    for a, b in zip(found, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", [False, True, "causal"])
def test_options_keep_loss_and_gradients_and_are_taken_back(attention: bool | str, tied: bool) -> None:
    model = model_of(tie_word_embeddings=tied)
    ids = torch.randint(1, V, (2, 9))
    labels = ids.clone()
    labels[0, :4] = -100
    before, exact = step(model, input_ids=ids, labels=labels)
    state = list(model.state_dict())
    changes = replace(model, ids, attention=attention, fused_loss=True)
    assert "the loss without logits in training" in repr(changes) and "LossHead" in repr(changes)
    assert list(model.state_dict()) == state
    found, values = step(model, input_ids=ids, labels=labels)
    close(values, exact)
    assert found.logits.shape == (2, 9, H) and before.logits.shape == (2, 9, V)
    changes.undo()
    assert type(model.lm_head) is torch.nn.Linear and model.config._attn_implementation == "sdpa"
    again, values = step(model, input_ids=ids, labels=labels)
    assert again.logits.shape == (2, 9, V) and "_loss_function" not in vars(model)
    close(values, exact)


def test_without_gradients_or_in_evaluation_there_are_logits_and_the_plain_loss() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    exact = model(input_ids=ids, labels=ids)
    replace(model, fused_loss=True)
    with torch.no_grad():
        found = model(input_ids=ids, labels=ids)
    torch.testing.assert_close(found.logits, exact.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.loss, exact.loss, rtol=1e-5, atol=1e-6)
    assert model.eval()(input_ids=ids).logits.shape == (2, 7, V)


def test_the_number_of_items_and_shifted_labels_are_those_of_transformers_losses() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    shifted = torch.randint(1, V, (2, 7))
    for more in ({"labels": ids, "num_items_in_batch": torch.tensor(5)}, {"labels": ids, "shift_labels": shifted}):
        _, exact = step(model, input_ids=ids, **more)
        with replace(model, fused_loss=True):
            _, found = step(model, input_ids=ids, **more)
        close(found, exact)


def test_causal_attention_refuses_what_needs_a_mask_and_attention_takes_it() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    padding = torch.ones_like(ids)
    padding[0, :3] = 0
    exact = model(input_ids=ids, attention_mask=padding).logits[1]
    with replace(model, attention="causal"), pytest.raises(ValueError, match="takes no attention_mask"):
        model(input_ids=ids, attention_mask=padding)
    with replace(model, attention="causal"), torch.no_grad(), pytest.raises(ValueError, match="without a cache"):
        model.generate(ids[:1], max_new_tokens=2, do_sample=False)
    with replace(model, attention=True):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=padding).logits[1], exact, rtol=1e-3, atol=1e-4)


def test_a_compiled_model_has_no_mask_with_causal_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    inherited = hugging_face.hugging_face_attention

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **more: Any) -> Any:
        masks.append(mask)
        return inherited(module, q, k, v, mask, **more)

    monkeypatch.setattr(hugging_face, "hugging_face_attention", attention)
    ids = torch.randint(1, V, (2, 7))
    for option, masked in ((True, True), ("causal", False)):
        model = model_of(use_cache=False)  # as in training: transformers then looks for packed sequences
        _, exact = step(model, input_ids=ids, labels=ids)
        replace(model, attention=option)
        torch._dynamo.reset()
        masks.clear()
        _, found = step(torch.compile(model, backend="aot_eager"), input_ids=ids, labels=ids)
        close(found, exact)
        assert masks and all((mask is not None) == masked for mask in masks)


def test_a_model_that_does_not_fit_is_refused_and_stays() -> None:
    plain = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="linear lm_head"):
        replace(plain, fused_loss=True)
    with pytest.raises(ValueError, match="models of transformers"):
        replace(plain, attention=True)
    model = model_of()
    with pytest.raises(ValueError, match="it must be True, False"):
        replace(model, attention="flash")
    model.loss_function = lambda **_: 0
    with pytest.raises(ValueError, match="ForCausalLMLoss"):
        replace(model, fused_loss=True)
    assert type(model.lm_head) is torch.nn.Linear and model.config._attn_implementation == "sdpa"


def test_older_versions_of_transformers_give_the_positions_of_the_queries() -> None:
    given = {"attention_mask": None, "kv_length": 7, "local_size": None, "allow_is_causal_skip": True}
    whole, last = torch.arange(7), torch.tensor([6])
    assert hugging_face.hugging_face_mask(**given, cache_position=whole) is None
    assert hugging_face.causal_mask(**given, cache_position=whole) is None
    with pytest.raises(ValueError, match="without a cache"):
        hugging_face.causal_mask(**given, cache_position=last)
