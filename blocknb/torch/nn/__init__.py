"""Layers of torch with kernels of blocknb: forward and backward, fp16, bf16, fp32 and fp64, on the CPU and on CUDA.

Each module stands for a module of torch or Hugging Face, and has its arguments and its state_dict. Most have a function, too.
`blocknb.torch.replace` puts them into a model. All of them are deterministic: the same inputs give the same bits, on one device and with
one version, except where a docstring says otherwise. docs/pytorch_ops.md lists them.
"""

from blocknb.torch.nn.activations import GatedMLP, geglu, swiglu
from blocknb.torch.nn.attention import attention, hugging_face_attention
from blocknb.torch.nn.divergences import JSDLoss, KLDivLoss, jsd, kl_div
from blocknb.torch.nn.embeddings import Embedding, embedding
from blocknb.torch.nn.group_norms import GroupNorm, group_norm
from blocknb.torch.nn.linear_losses import LinearCrossEntropyLoss, linear_cross_entropy
from blocknb.torch.nn.lora import LoRALinear, lora_linear
from blocknb.torch.nn.losses import CrossEntropyLoss, cross_entropy
from blocknb.torch.nn.mixture import Experts, MoE, TopKRouter, experts_mlp, grouped_mm
from blocknb.torch.nn.norms import AddRMSNorm, LayerNorm, RMSNorm, add_rms_norm, layer_norm, rms_norm
from blocknb.torch.nn.preferences import dpo_loss, linear_dpo_loss, linear_logps
from blocknb.torch.nn.rotary import rotary_embedding

__all__ = [
    "AddRMSNorm",
    "CrossEntropyLoss",
    "Embedding",
    "Experts",
    "GatedMLP",
    "GroupNorm",
    "JSDLoss",
    "KLDivLoss",
    "LayerNorm",
    "LinearCrossEntropyLoss",
    "LoRALinear",
    "MoE",
    "RMSNorm",
    "TopKRouter",
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "dpo_loss",
    "embedding",
    "experts_mlp",
    "geglu",
    "group_norm",
    "grouped_mm",
    "hugging_face_attention",
    "jsd",
    "kl_div",
    "layer_norm",
    "linear_cross_entropy",
    "linear_dpo_loss",
    "linear_logps",
    "lora_linear",
    "rms_norm",
    "rotary_embedding",
    "swiglu",
]
