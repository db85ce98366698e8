"""The replacements of embeddings, group norms, adapters of PEFT, experts and rotary angles, by class name, for `blocknb.torch.replace`.

A maker gets a module and returns its replacement, the reason why it has none, or None for a module that only has the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from blocknb.torch.nn.divergences import KLDivLoss
from blocknb.torch.nn.embeddings import Embedding
from blocknb.torch.nn.group_norms import GroupNorm
from blocknb.torch.nn.lora import LoRALinear
from blocknb.torch.nn.mixture import Experts
from blocknb.torch.nn.rotary import RotaryAngles

#: The names of `hidden_act` by the classes of activations in torch and Hugging Face's transformers.
ACTIVATION_CLASSES = {
    "SiLU": "silu", "SiLUActivation": "silu", "GELUActivation": "gelu", "GELUTanh": "gelu_pytorch_tanh",
    "PytorchGELUTanh": "gelu_pytorch_tanh",
}  # fmt: skip


def _embedding(module: Any) -> Any:
    if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
        return "it has max_norm, scale_grad_by_freq or sparse gradients"
    made = Embedding(module.num_embeddings, module.embedding_dim, module.padding_idx, device="meta")
    made.weight = module.weight
    return made


def _group_norm(module: Any) -> Any:
    made = GroupNorm(module.num_groups, module.num_channels, module.eps, affine=False)
    made.weight, made.bias, made.affine = module.weight, module.bias, module.affine
    return made


def _lora(module: Any) -> Any:
    """PEFT's layer of a linear layer, which is called Linear, too."""
    if not hasattr(module, "lora_A"):
        return None
    adapters = list(module.active_adapters)
    if len(adapters) != 1 or module.merged or module.disable_adapters:
        return "it has no single active adapter that is not merged"
    (name,) = adapters
    plain = type(module.base_layer) is torch.nn.Linear and not getattr(module, "fan_in_fan_out", False)
    if not plain or module.lora_bias.get(name) or name in getattr(module, "lora_variant", {}):
        return "it is no plain adapter of a plain linear layer"
    if getattr(module.lora_dropout[name], "p", 0.0):
        return "its adapter has dropout"
    with torch.device("meta"):
        made = LoRALinear(torch.nn.Linear(1, 1), 1, adapter_name=name)
    made.base_layer, made.lora_A, made.lora_B = module.base_layer, module.lora_A, module.lora_B
    made.in_features, made.out_features = module.base_layer.in_features, module.base_layer.out_features
    made.r, made.lora_alpha, made.scaling = dict(module.r), dict(module.lora_alpha), dict(module.scaling)
    return made


def _experts(module: Any) -> Any:
    act = ACTIVATION_CLASSES.get(type(getattr(module, "act_fn", None)).__name__)
    if act is None:
        return f"its activation is {type(getattr(module, 'act_fn', None)).__name__}"
    weights = (getattr(module, name, None) for name in ("gate_up_proj", "down_proj"))
    if any(getattr(w, "ndim", 0) != 3 for w in weights) or getattr(module, "is_transposed", False):
        return "its weights are not those of Mixtral"
    made = Experts(1, 1, 1, act, device="meta")
    made.num_experts = module.gate_up_proj.shape[0]
    made.gate_up_proj, made.down_proj = module.gate_up_proj, module.down_proj
    return made


def _rotary_angles(module: Any) -> Any:
    if module.state_dict():
        return "it has parameters or saved buffers, whose names would change"
    return RotaryAngles(module)


#: Prefixes of the class names of rotary embeddings in Hugging Face's transformers.
ROTARY = (
    "Llama", "Mistral", "Ministral", "Mixtral", "Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe", "Phi3", "Gemma", "Gemma2", "Gemma3",
)  # fmt: skip
MORE_MAKERS: dict[str, Callable[[Any], Any]] = {
    "Embedding": _embedding,
    "GroupNorm": _group_norm,
    "KLDivLoss": lambda module: KLDivLoss(module.reduction, module.log_target),
    "Linear": _lora,
    **dict.fromkeys(("MixtralExperts", "Qwen2MoeExperts", "Qwen3MoeExperts"), _experts),
    **dict.fromkeys([f"{name}RotaryEmbedding" for name in ROTARY], _rotary_angles),
}
