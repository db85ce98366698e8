"""`replace` and `hugging_face_attention` in models of transformers with random weights, and PEFT's adapters."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")
pytest.importorskip("transformers", reason="transformers is not installed: pip install transformers")

import torch
import transformers

from blocknb.torch import nn, replace

pytestmark = pytest.mark.full
SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
#: (name of the family, further sizes, the classes that are replaced). Windows are shorter than the text. Gemma scales its embeddings.
MODELS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "Llama": ({}, {"Embedding", "LlamaRMSNorm", "LlamaMLP"}),
    "Qwen2": ({}, {"Embedding", "Qwen2RMSNorm", "Qwen2MLP"}),
    "Qwen3": ({}, {"Embedding", "Qwen3RMSNorm", "Qwen3MLP"}),
    "Mistral": ({"sliding_window": 5}, {"Embedding", "MistralRMSNorm", "MistralMLP"}),
    "Gemma": ({}, {"GemmaRMSNorm", "GemmaMLP"}),
    "Gemma2": ({"sliding_window": 5, "query_pre_attn_scalar": 8}, {"Gemma2RMSNorm", "Gemma2MLP"}),
    "Gemma3": ({"sliding_window": 5, "query_pre_attn_scalar": 8}, {"Gemma3RMSNorm", "Gemma3MLP"}),
    "Mixtral": (EXPERTS, {"Embedding", "MixtralRMSNorm", "MixtralExperts"}),
    "Qwen3Moe": (EXPERTS, {"Embedding", "Qwen3MoeRMSNorm", "Qwen3MoeExperts"}),
}


def model_of(family: str, attention: str) -> Any:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}TextConfig" if family == "Gemma3" else f"{family}Config")
    made = config(**SIZES, **MODELS[family][0], attn_implementation=attention)
    return getattr(transformers, f"{family}ForCausalLM")(made).float()


def results(model: Any, ids: torch.Tensor, mask: Any) -> list[torch.Tensor]:
    found = model(input_ids=ids, attention_mask=mask, labels=ids)
    model.zero_grad()
    found.loss.backward()
    return [found.logits if mask is None else found.logits * mask[..., None], *(p.grad for p in model.parameters())]


@pytest.mark.sampled(2, each=["family", "padded"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("family", list(MODELS))
def test_models_keep_their_values_and_gradients(family: str, padded: bool) -> None:
    transformers.AttentionInterface.register("blocknb", nn.hugging_face_attention)
    transformers.AttentionMaskInterface.register("blocknb", transformers.masking_utils.sdpa_mask)
    ids = torch.randint(1, 97, (2, 11))
    mask = torch.ones_like(ids) if padded else None
    if padded:
        mask[0, 7:] = 0
    model = model_of(family, "eager")
    exact, state = results(model, ids, mask), list(model.state_dict())
    model.set_attn_implementation("blocknb")
    changes = replace(model, ids)
    assert {type(r.original).__name__ for r in changes.replaced} == MODELS[family][1]
    assert list(model.state_dict()) == state
    for found, right in zip(results(model, ids, mask), exact, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-3, atol=2e-5)


def test_a_model_with_replaced_layers_generates_the_same_text() -> None:
    model = model_of("Llama", "sdpa").eval()
    ids = torch.randint(1, 97, (1, 5))
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    exact = model.generate(ids, **options)
    transformers.AttentionInterface.register("blocknb", nn.hugging_face_attention)
    transformers.AttentionMaskInterface.register("blocknb", transformers.masking_utils.sdpa_mask)
    model.set_attn_implementation("blocknb")
    with replace(model, ids):
        assert torch.equal(model.generate(ids, **options), exact)


def test_adapters_of_peft_are_replaced_with_their_values_gradients_and_state() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install peft")
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Linear(5, 4))
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["0", "1"], init_lora_weights=False)
    model, x = peft.get_peft_model(base, config), torch.randn(3, 6)
    trained = [p for p in model.parameters() if p.requires_grad]
    exact, state = [model(x), *torch.autograd.grad(model(x).sum(), trained)], list(model.state_dict())
    changes = replace(model, x)
    assert [type(r.replacement) for r in changes.replaced] == [nn.LoRALinear] * 2
    assert list(model.state_dict()) == state
    for found, right in zip([model(x), *torch.autograd.grad(model(x).sum(), trained)], exact, strict=True):
        torch.testing.assert_close(found, right)
    changes.undo()
    model.base_model.model[0].merge()
    assert replace(model).skipped["base_model.model.0"] == "it has no single active adapter that is not merged"
