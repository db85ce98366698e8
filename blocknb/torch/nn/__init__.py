"""Layers of torch with kernels of blocknb: forward and backward, fp16, bf16, fp32 and (except attention) fp64, on the CPU and on CUDA.

Each module has the arguments and the state_dict of the module of torch or Hugging Face that it stands for, and a function next to it.
`blocknb.torch.replace` puts them into a model. All of them are deterministic: the same inputs give the same bits, on one device and with
one version, except where a docstring says otherwise. docs/pytorch_ops.md lists them.
"""

from blocknb.torch.nn.activations import GatedMLP, geglu, swiglu
from blocknb.torch.nn.attention import attention
from blocknb.torch.nn.linear_losses import LinearCrossEntropyLoss, linear_cross_entropy
from blocknb.torch.nn.losses import CrossEntropyLoss, cross_entropy
from blocknb.torch.nn.norms import AddRMSNorm, LayerNorm, RMSNorm, add_rms_norm, layer_norm, rms_norm
from blocknb.torch.nn.rotary import rotary_embedding

__all__ = [
    "AddRMSNorm",
    "CrossEntropyLoss",
    "GatedMLP",
    "LayerNorm",
    "LinearCrossEntropyLoss",
    "RMSNorm",
    "add_rms_norm",
    "attention",
    "cross_entropy",
    "geglu",
    "layer_norm",
    "linear_cross_entropy",
    "rms_norm",
    "rotary_embedding",
    "swiglu",
]
