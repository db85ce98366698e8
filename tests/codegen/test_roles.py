"""Kernels whose warps have roles, as code: their results by the tests' own reading of the instructions, and what ptxas makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bulk_kernels import HOPPER, PRODUCTS, Product
from fuzz import simt

from blocknb.codegen import gpu


def ran(product: Product, m: int, n: int, k: int, change=lambda text: text) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel stores, and what it should."""
    arguments = product.arguments(m, n, k)
    module = gpu.generate(product.finished(), HOPPER)
    simt.run(replace(module, text=change(module.text)), arguments, [product.programs(m, n)])
    a, b, c = arguments[:3]
    return c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
@pytest.mark.parametrize("extents", [(64, 64, 64), (100, 72, 200), (130, 8, 520)], ids=str)
def test_products_are_right(product, extents):
    got, expected = ran(product, *extents)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-2)
