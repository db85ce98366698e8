"""Ready-made kernels with plain wrappers for NumPy, CuPy and torch arrays. The notebooks teach them, and the benchmarks measure them.

A wrapper writes into the arrays that the caller passes, and returns the first of them.
"""

from blocknb.kernels.add import add, add_kernel
from blocknb.kernels.attention import attention, attention_kernel
from blocknb.kernels.attention_decoding import attention_decoding
from blocknb.kernels.attention_gradients import attention_backward
from blocknb.kernels.copies import copy
from blocknb.kernels.cross_entropy import cross_entropy, cross_entropy_backward
from blocknb.kernels.descriptors import matmul_descriptors
from blocknb.kernels.elementwise import dropout, rope, swiglu, swiglu_backward
from blocknb.kernels.gated_gelu import geglu, geglu_backward
from blocknb.kernels.gemm import matmul
from blocknb.kernels.grouped import grouped_matmul, matmul_many
from blocknb.kernels.matmul import matmul_kernel, matmul_pointers
from blocknb.kernels.norm_gradients import layer_norm_backward, rms_norm_backward
from blocknb.kernels.norms import layer_norm, rms_norm
from blocknb.kernels.quantized import matmul_int4, matmul_int8
from blocknb.kernels.softmax import softmax, softmax_kernel
from blocknb.kernels.split_k import matmul_split
from blocknb.kernels.sums import sum
from blocknb.kernels.transpose import transpose

__all__ = [
    "add",
    "add_kernel",
    "attention",
    "attention_backward",
    "attention_decoding",
    "attention_kernel",
    "copy",
    "cross_entropy",
    "cross_entropy_backward",
    "dropout",
    "geglu",
    "geglu_backward",
    "grouped_matmul",
    "layer_norm",
    "layer_norm_backward",
    "matmul",
    "matmul_descriptors",
    "matmul_int4",
    "matmul_int8",
    "matmul_kernel",
    "matmul_many",
    "matmul_pointers",
    "matmul_split",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "softmax",
    "softmax_kernel",
    "sum",
    "swiglu",
    "swiglu_backward",
    "transpose",
]
