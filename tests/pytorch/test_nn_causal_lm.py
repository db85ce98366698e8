"""`replace` with its options for language models of transformers: attention without masks, and the loss without logits."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
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


def test_in_training_without_labels_there_are_logits_also_after_a_step_with_labels() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    exact = model(input_ids=ids).logits
    hidden = model.model(input_ids=ids).last_hidden_state
    with replace(model, fused_loss=True):
        assert model(input_ids=ids, labels=ids).logits.shape == (2, 7, H)
        torch.testing.assert_close(model.lm_head(hidden), exact, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model(input_ids=ids).logits, exact, rtol=1e-4, atol=1e-5)
        place = list(inspect.signature(model.forward).parameters).index("labels")
        assert model(ids, *[None] * (place - 1), ids).logits.shape == (2, 7, H)
    assert "forward" not in vars(model)


def test_the_fused_loss_works_in_a_copy_and_through_forward_as_peft_calls_it() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    exact = model(input_ids=ids, labels=ids).loss
    replace(model, fused_loss=True)
    for each in (model.forward, copy.deepcopy(model)):
        found = each(input_ids=ids, labels=ids)
        assert found.logits.shape == (2, 7, H)
        torch.testing.assert_close(found.loss, exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied", [True, False])
def test_a_pickled_model_keeps_the_fused_loss(tied: bool) -> None:
    model = model_of(tie_word_embeddings=tied)
    ids = torch.randint(1, V, (2, 7))
    replace(model, fused_loss=True)
    _, values = step(model, input_ids=ids, labels=ids)
    loaded = pickle.loads(pickle.dumps(model))
    found, same = step(loaded, input_ids=ids, labels=ids)
    assert found.logits.shape == (2, 7, H)
    close(same, values)
    assert loaded(input_ids=ids).logits.shape == (2, 7, V)
    assert inspect.signature(loaded.forward) == inspect.signature(type(model).forward.__get__(model))


def test_a_forward_of_the_instance_is_kept_and_comes_back() -> None:
    model = model_of()
    ids = torch.randint(1, V, (2, 7))
    calls: list[Any] = []
    inherited = model.forward

    @functools.wraps(inherited)
    def own(*args: Any, **more: Any) -> Any:
        calls.append(more)
        return inherited(*args, **more)

    model.forward = own
    with replace(model, fused_loss=True):
        assert model(input_ids=ids, labels=ids).logits.shape == (2, 7, H) and len(calls) == 1
    assert vars(model)["forward"] is own
    changes = replace(model, fused_loss=True)
    ours = model.forward
    model.forward = lambda **more: ours(**more)  # as accelerate does
    wrapped = model.forward
    changes.undo()
    assert model.forward is wrapped and model(input_ids=ids, labels=ids).logits.shape == (2, 7, V)


def test_a_compiled_model_has_the_fused_loss_with_labels_and_logits_without() -> None:
    model = model_of(use_cache=False)
    ids = torch.randint(1, V, (2, 7))
    _, exact = step(model, input_ids=ids, labels=ids)
    logits = model(input_ids=ids).logits
    replace(model, fused_loss=True)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        found, values = step(compiled, input_ids=ids, labels=ids)
        assert found.logits.shape == (2, 7, H)
        close(values, exact)
        torch.testing.assert_close(compiled(input_ids=ids).logits, logits, rtol=1e-4, atol=1e-5)


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
    with (
        replace(model, attention="causal"),
        torch.no_grad(),
        pytest.raises(ValueError, match="without a cache|takes no attention_mask"),
    ):
        model.generate(ids[:1], max_new_tokens=2, do_sample=False)
    with replace(model, attention=True):
        torch.testing.assert_close(model(input_ids=ids, attention_mask=padding).logits[1], exact, rtol=1e-3, atol=1e-4)


def test_causal_attention_refuses_packed_sequences_and_attention_takes_them() -> None:
    model = model_of(use_cache=False)
    packed = {"input_ids": torch.randint(1, V, (1, 7)), "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2, 3]])}
    exact = model(**packed).logits
    with replace(model, attention="causal"), pytest.raises(ValueError, match="no packed sequences"):
        model(**packed)
    with replace(model, attention=True):
        torch.testing.assert_close(model(**packed).logits, exact, rtol=1e-3, atol=1e-4)


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


class Wrapper(torch.nn.Module):
    """Passes attributes on to the model in it, as PeftModel does."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def test_the_fused_loss_refuses_a_wrapper_and_a_head_with_hooks() -> None:
    model = model_of()
    with pytest.raises(ValueError, match="Wrapper only wraps the model with lm_head: pass the inner model"):
        replace(Wrapper(model), fused_loss=True)
    handle = model.lm_head.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="lm_head, which has hooks"):
        replace(model, fused_loss=True)
    assert not {"_loss_function", "forward"} & set(vars(model)) and type(model.lm_head) is torch.nn.Linear
    handle.remove()
    assert replace(model, fused_loss=True).settings


def test_an_error_of_any_kind_in_setting_the_attention_takes_the_loss_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()

    def fail(name: str) -> None:
        raise RuntimeError("no attention here")

    monkeypatch.setattr(model, "set_attn_implementation", fail, raising=False)
    with pytest.raises(RuntimeError, match="no attention here"):
        replace(model, attention=True, fused_loss=True)
    assert not {"_loss_function", "forward"} & set(vars(model))


def test_older_versions_of_transformers_give_the_positions_of_the_queries() -> None:
    given = {"attention_mask": None, "kv_length": 7, "local_size": None, "allow_is_causal_skip": True}
    whole, last = torch.arange(7), torch.tensor([6])
    assert hugging_face.hugging_face_mask(**given, cache_position=whole) is None
    assert hugging_face.causal_mask(**given, cache_position=whole) is None
    with pytest.raises(ValueError, match="without a cache|takes no attention_mask"):
        hugging_face.causal_mask(**given, cache_position=last)


def test_kept_logits_and_rotary_angles_in_memory_keep_loss_and_gradients() -> None:
    model = model_of(use_cache=False)
    ids = torch.randint(1, V, (2, 7))
    _, exact = step(model, input_ids=ids, labels=ids)
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    with pytest.raises(ValueError, match='True, False or "keep_logits"'):
        replace(model, fused_loss="all")
    with replace(model, ids, fused_loss="keep_logits") as changes:
        assert "LlamaRotaryEmbedding -> blocknb's RotaryAngles" in repr(changes)
        assert model.model.rotary_emb.inv_freq.shape == (H // 8,)  # an attribute of the original
        for function in (model, torch.compile(model, backend=backend, fullgraph=True)):
            found, values = step(function, input_ids=ids, labels=ids)
            assert found.logits.shape == (2, 7, H)
            close(values, exact)
    assert "in_memory" in graphs[0] and type(model.model.rotary_emb).__name__ == "LlamaRotaryEmbedding"
