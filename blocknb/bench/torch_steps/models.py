"""`blocknb bench torch_models`: training steps of models of transformers with random weights, in bf16.

A step is the loss and the gradients of all parameters. The models come from configurations, and nothing is downloaded. Dropout is off, so
that the results can be compared with those of eager in float32. Attention is torch's scaled_dot_product_attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from blocknb.bench.torch_steps.definition import RandomTensors, Tensors, TorchStep

Sizes = Mapping[str, dict[str, Any]]
#: Sizes on a GPU, and tiny ones for a CPU.
LLAMA = {"cuda": {"batch": 2, "tokens": 2048}, "cpu": {"batch": 1, "tokens": 24}}
LLAMA_SIZES: Sizes = {
    "cuda": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "cpu": {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2},
}
GPT2 = {"cuda": {"batch": 8, "tokens": 1024}, "cpu": {"batch": 2, "tokens": 16}}
GPT2_SIZES: Sizes = {
    "cuda": {},
    "cpu": {"n_embd": 32, "n_head": 2, "vocab_size": 130, "n_positions": 16},
}
VIT = {"cuda": {"batch": 64}, "cpu": {"batch": 2}}
VIT_SIZES: Sizes = {
    "cuda": {},
    "cpu": {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32, "patch_size": 16},
}
MOE = {"cuda": {"batch": 2, "tokens": 1024}, "cpu": {"batch": 1, "tokens": 24}}
MOE_SIZES: Sizes = {
    "cuda": {"hidden_size": 4096, "intermediate_size": 14336, "num_local_experts": 8, "num_experts_per_tok": 2},
    "cpu": {"hidden_size": 64, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def squared(out: Any, target: Any) -> Any:
    """Half the squared distance from a target."""
    wide = out if out.element_size() == 8 else out.float()
    return (wide - target).pow(2).sum() / 2


def _ready(make: Callable[[], Any], device: str, seed: int) -> Any:
    """A model in bf16 on the device, with the weights of a seed."""
    import torch

    torch.manual_seed(seed)
    with torch.device(device):
        return make().to(torch.bfloat16).train()


def llama_block(device: str, seed: int, layers: int) -> TorchStep:
    """The decoder layer of Llama 3 8B, with its rotary embedding made before."""
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaDecoderLayer, LlamaRotaryEmbedding

    batch, tokens = (LLAMA[device][key] for key in ("batch", "tokens"))
    config = LlamaConfig(**LLAMA_SIZES[device], attn_implementation="sdpa")
    hidden = config.hidden_size
    block = _ready(lambda: LlamaDecoderLayer(config, 0), device, seed)
    rotary = LlamaRotaryEmbedding(config).to(device)

    def loss(block: Any, x: Any, target: Any, cosines: Any, sines: Any) -> Any:
        found = block(x, position_embeddings=(cosines, sines))
        return squared(found[0] if isinstance(found, tuple) else found, target)

    def draw(r: RandomTensors) -> Tensors:
        x = r.normal(batch, tokens, hidden, gradient=True)
        positions = r.torch.arange(tokens, device=device)[None]
        return [x, r.normal(batch, tokens, hidden), *(t.detach() for t in rotary(x, positions))]

    return TorchStep("llama_block", f"{batch}x{tokens}x{hidden}", loss, draw, block, wide="float32")


def gpt2(device: str, seed: int, layers: int) -> TorchStep:
    """GPT-2 with 124 M parameters if it has 12 layers, and its loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    batch, tokens = (GPT2[device][key] for key in ("batch", "tokens"))
    off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(n_layer=layers, **off, **GPT2_SIZES[device], attn_implementation="sdpa", use_cache=False)
    model = _ready(lambda: GPT2LMHeadModel(config), device, seed)

    def loss(model: Any, words: Any) -> Any:
        import torch.nn.functional as F

        logits = model(input_ids=words, use_cache=False).logits[:, :-1].flatten(0, 1)
        return F.cross_entropy(logits if logits.element_size() == 8 else logits.float(), words[:, 1:].flatten())

    return TorchStep(
        "gpt2", f"{batch}x{tokens}, {layers} layers", loss,
        lambda r: [r.integers_below(config.vocab_size, batch, tokens)], model, wide="float32",
    )  # fmt: skip


def vit(device: str, seed: int, layers: int) -> TorchStep:
    """ViT-B/16 if it has 12 layers, with a cross entropy over 1000 classes."""
    from transformers import ViTConfig, ViTForImageClassification

    batch = VIT[device]["batch"]
    config = ViTConfig(num_hidden_layers=layers, num_labels=1000, **VIT_SIZES[device], attn_implementation="sdpa")
    model = _ready(lambda: ViTForImageClassification(config), device, seed)

    def loss(model: Any, pixels: Any, classes: Any) -> Any:
        import torch.nn.functional as F

        logits = model(pixel_values=pixels).logits
        return F.cross_entropy(logits if logits.element_size() == 8 else logits.float(), classes)

    def draw(r: RandomTensors) -> Tensors:
        return [r.normal(batch, 3, config.image_size, config.image_size), r.integers_below(1000, batch)]

    return TorchStep("vit", f"{batch}x{config.image_size}, {layers} layers", loss, draw, model, wide="float32")


def moe_block(device: str, seed: int, layers: int) -> TorchStep:
    """The mixture of experts of Mixtral 8x7B, after its RMS norm; two of eight experts per token, as grouped products."""
    import torch
    from transformers.models.mixtral.modeling_mixtral import MixtralConfig, MixtralRMSNorm, MixtralSparseMoeBlock

    batch, tokens = (MOE[device][key] for key in ("batch", "tokens"))
    config = MixtralConfig(**MOE_SIZES[device])
    config._experts_implementation = "grouped_mm"
    hidden = config.hidden_size

    def made() -> Any:
        block = torch.nn.Sequential(MixtralRMSNorm(hidden), MixtralSparseMoeBlock(config))
        for parameter in block[1].parameters():
            torch.nn.init.normal_(parameter, std=hidden**-0.5)
        return block

    block = _ready(made, device, seed)

    def loss(block: Any, x: Any, target: Any) -> Any:
        found = block(x)
        found = found[0] if isinstance(found, tuple) else found
        return squared(x + found, target)

    def draw(r: RandomTensors) -> Tensors:
        return [r.normal(batch, tokens, hidden, gradient=True), r.normal(batch, tokens, hidden)]

    def by_expert(block: Any) -> None:
        block[1].experts.config._experts_implementation = "eager"

    shape = f"{batch}x{tokens}x{hidden}"
    return TorchStep("moe_block", shape, loss, draw, block, wide="float32", as_reference=by_expert)


MODELS = (llama_block, gpt2, vit, moe_block)


def steps(device: str, seed: int, layers: int) -> list[Callable[[], TorchStep]]:
    """Makers of the steps for a device, "cuda" or "cpu". GPT-2 and ViT have `layers` layers."""

    def made(model: Callable[[str, int, int], TorchStep]) -> Callable[[], TorchStep]:
        return lambda: model(device, seed, layers)

    return [made(model) for model in MODELS]
