"""Ready-made kernels with plain wrappers, for NumPy, CuPy and torch arrays: what the notebooks teach, benchmarks measure."""

from blocknb.kernels.add import add, add_kernel
from blocknb.kernels.matmul import matmul, matmul_kernel
from blocknb.kernels.softmax import softmax, softmax_kernel

__all__ = ["add", "add_kernel", "matmul", "matmul_kernel", "softmax", "softmax_kernel"]
