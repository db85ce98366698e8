"""The formats of microscaling as tensors of torch, with the names of `triton.tools.mxfp`: elements e2m1 (fp4) and scales e8m0.

e2m1 has a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. e8m0 is a power of two from
2^-127 to 2^127, and NaN.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Self

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BIAS, _NAN = 127, 255


def fp8e8m0_to_float32(scale: Any) -> Any:
    """The values of e8m0 codes (any shape, uint8 or int8) in fp32."""
    import torch

    codes = scale.view(torch.uint8).to(torch.int32)
    bits = torch.where(codes == 0, 1 << 22, codes << 23)  # 2^-127 is a subnormal of fp32
    return torch.where(codes == _NAN, 0x7FC00000, bits).to(torch.int32).view(torch.float32)


class _Codes:
    """A tensor of codes: `data` (uint8), made of numbers, or of a `size` on a `device` and filled by `random`."""

    def __init__(self, data: Any = None, size: Any = None, device: Any = None):
        self.device = device if data is None else data.device
        self.size = size if data is None else tuple(data.shape)
        self.data: Any = None if data is None else self._encoded(data)

    def _encoded(self, numbers: Any) -> Any:
        raise NotImplementedError

    def _drawn(self, low: int, high: int) -> Self:
        """Fills the tensor with codes from low to high."""
        import torch

        size = (self.size,) if isinstance(self.size, int) else self.size
        self.data = torch.randint(low, high + 1, size, dtype=torch.uint8, device=self.device)
        return self


class MXFP4Tensor(_Codes):
    """Elements in e2m1, one per byte in the low four bits. `MXFP4Tensor(numbers)` rounds to nearest, ties to even, and saturates at 6."""

    def random(self) -> Self:
        """Fills the tensor with random codes, all of which are finite numbers."""
        return self._drawn(0, 15)

    def to(self, dtype: Any) -> Any:
        """The numbers as a tensor of the dtype."""
        import torch

        table = torch.tensor([*_E2M1, *(-x for x in _E2M1)], device=self.data.device)
        return table[self.data.long()].to(dtype)

    def _encoded(self, numbers: Any) -> Any:
        import torch

        numbers = numbers.to(torch.float32)
        size = numbers.abs()
        code = torch.zeros_like(size, dtype=torch.uint8)
        for below, (low, high) in enumerate(itertools.pairwise(_E2M1)):
            middle = (low + high) / 2
            code += size >= middle if below % 2 else size > middle  # a tie goes to the even code
        return code | (torch.signbit(numbers).to(torch.uint8) << 3)

    def to_packed_tensor(self, dim: int) -> Any:
        """Two elements per byte along an axis, the first in the low bits. An axis of odd size is padded with a zero."""
        import torch

        assert 0 <= dim < self.data.ndim, f"a tensor with {self.data.ndim} axes has no axis {dim}"
        pairs = self.data.movedim(dim, -1)
        pairs = torch.nn.functional.pad(pairs, (0, pairs.shape[-1] % 2)).unflatten(-1, (-1, 2))
        return (pairs[..., 0] | (pairs[..., 1] << 4)).movedim(-1, dim)

    def unpack_packed_tensor(self, packed_tensor: Any, dim: int, original_shape: Any) -> Any:
        """The elements of a packed tensor, without the padding; undoes `to_packed_tensor`."""
        import torch

        packed = packed_tensor.movedim(dim, -1)
        elements = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
        return elements[..., : original_shape[dim]].movedim(-1, dim)


class MXScaleTensor(_Codes):
    """Scales in e8m0, one per byte. `MXScaleTensor(numbers)` rounds down to powers of two; numbers that are not positive become NaN."""

    def random(self, low: float | None = None, high: float | None = None) -> Self:
        """Fills the tensor with random powers of two from low to high, by default from all of them."""
        least = 0 if low is None else max(0, math.ceil(math.log2(low)) + _BIAS)
        most = _NAN - 1 if high is None else min(_NAN - 1, math.floor(math.log2(high)) + _BIAS)
        assert least <= most, f"no power of two is from {low} to {high}"
        return self._drawn(least, most)

    def to(self, dtype: Any) -> Any:
        """The numbers as a tensor of the dtype."""
        return fp8e8m0_to_float32(self.data).to(dtype)

    def _encoded(self, numbers: Any) -> Any:
        import torch

        codes = (torch.frexp(numbers.to(torch.float32)).exponent - 1 + _BIAS).clamp(0, _NAN - 1)
        return torch.where(torch.isfinite(numbers) & (numbers > 0), codes, _NAN).to(torch.uint8)
