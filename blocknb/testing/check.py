"""`assert_close`: compares two arrays of any library within a tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np


def assert_close(x: Any, y: Any, atol: Any = None, rtol: Any = None, err_msg: str = "") -> None:
    """Raises AssertionError unless |x - y| <= atol + rtol * |y| everywhere; NaN agrees with NaN.

    x and y are numbers, lists, or arrays of NumPy, torch or CuPy, of one shape (or one is a single number). `atol` is 0.01 and
    `rtol` 0 by default; either may be a function of x's dtype.
    """
    atol, rtol = (t(getattr(x, "dtype", None)) if callable(t) else t for t in (atol, rtol))
    absolute, relative = 1e-2 if atol is None else atol, 0.0 if rtol is None else rtol
    found, wanted = _numpy(x), _numpy(y)
    np.testing.assert_allclose(found, wanted, rtol=relative, atol=absolute, equal_nan=True, err_msg=err_msg)


def _numpy(x: Any) -> np.ndarray:
    """A NumPy array on the host. Floats of less than 32 bits become fp32, because NumPy's comparisons require that."""
    module = type(x).__module__.split(".")[0]
    if module == "torch":
        x = x.detach().cpu()
        x = (x.float() if x.is_floating_point() and x.element_size() < 4 else x).numpy()
    elif module == "cupy":
        x = x.get()
    array = np.asarray(x)
    return array.astype(np.float32) if array.dtype.kind in "fV" and array.dtype.itemsize < 4 else array
