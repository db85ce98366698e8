"""The checked operands of a matrix product: sizes, strides, batches, the epilogue, and whether tensor descriptors can describe them.

The wrappers of all matrix products take the arguments of `matmul` and begin with `MatmulProblem.of`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

from blocknb.kernels.shapes import LINE, OperandRows, TileShape, choose
from blocknb.kernels.strides import address, contiguous, device, dtype_name, empty, need_arrays, strides
from blocknb.kernels.tiling import ACTIVATIONS

#: The dtypes of results, by that of the operands: the dtype of the sums, and the default dtype of the result.
SUMS = {
    "float16": ("float32", "float16"),
    "bfloat16": ("float32", "bfloat16"),
    "float32": ("float32", "float32"),
    "float64": ("float64", "float64"),
    "int8": ("int32", "int32"),
    "float8_e4m3fn": ("float32", "bfloat16"),
    "float8_e5m2": ("float32", "bfloat16"),
}
PRECISIONS = ("tf32", "tf32x3", "ieee")
ALIGNMENT = 16  # bytes: of the address of a described array and of its rows
DESCRIPTORS_FROM = 90  # the compute capability from which descriptors pay
NEAR = 1 << 31  # elements that 32-bit offsets reach


@dataclass(frozen=True)
class Blocks:
    """How an array is described: which of its last two axes is contiguous, as the inner one, and the strides of the others."""

    transposed: bool
    step: int
    batch: int


@dataclass(frozen=True)
class MatmulProblem:
    """out = a @ b: the arrays, their sizes and strides (batch, row, column), and the arguments of the epilogue."""

    a: Any
    b: Any
    out: Any
    m: int
    n: int
    k: int
    batch: int
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    out_strides: tuple[int, ...]
    batched: bool
    epilogue: dict[str, Any]
    sum: str
    precision: str

    @staticmethod
    def of(
        a: Any, b: Any, out: Any = None, *, bias: Any = None, activation: str = "", a_scale: Any = None, b_scale: Any = None,
        out_dtype: str = "", precision: str = "tf32",
    ) -> MatmulProblem:  # fmt: skip
        """Checks the arguments of a product. Raises ValueError if they do not fit each other; its message says what to do instead.

        The result depends on shapes, strides and dtypes, not on elements. It is cached for arrays with the same ones.
        """
        arrays = (a, b, out, bias, a_scale, b_scale)
        try:
            key = (*map(_array_key, arrays), activation, out_dtype, precision)
        except AttributeError:
            names = ("a", "b", "out", "bias", "a_scale", "b_scale")
            need_arrays(**{name: array for name, array in zip(names, arrays, strict=True) if array is not None})
            raise
        found = _checked_problems.get(key)
        if found is None:
            product = MatmulProblem._checked(*arrays, activation, out_dtype, precision)
            facts = {
                name: getattr(product, name) for name in ("far", "blocks", "operand_blocks", "operand_rows", "aligned")
            }
            facts |= {name: value for name, value in vars(product).items() if name not in ("a", "b", "out", "epilogue")}
            if len(_checked_problems) >= MOST_CHECKED:
                _checked_problems.clear()
            _checked_problems[key] = (
                facts,
                product.epilogue["BY_ROW"],
                tuple(product.out.shape),
                dtype_name(product.out),
            )
            return product
        facts, by_row, shape, kind = found
        product = object.__new__(MatmulProblem)
        epilogue = {"bias": bias, "a_scale": a_scale, "b_scale": b_scale, "BY_ROW": by_row, "ACTIVATION": activation}
        vars(product).update(facts, a=a, b=b, out=empty(a, shape, kind) if out is None else out, epilogue=epilogue)
        return product

    @staticmethod
    def _checked(
        a: Any, b: Any, out: Any, bias: Any, a_scale: Any, b_scale: Any, activation: str, out_dtype: str, precision: str
    ) -> MatmulProblem:  # fmt: skip
        need_arrays(a=a, b=b)
        shapes = tuple(a.shape), tuple(b.shape)
        names = dtype_name(a), dtype_name(b)
        if not all(2 <= len(shape) <= 3 for shape in shapes):
            raise ValueError(
                f"cannot multiply arrays of shapes {shapes[0]} and {shapes[1]}: matrices have two axes, batches of them "
                "three; reshape a vector to (1, K) or (K, 1), and fold further axes into one"
            )
        known = _sizes(*shapes)
        if known is None:
            raise ValueError(
                f"cannot multiply {shapes[0]} by {shapes[1]}"
                + (f" into {tuple(out.shape)}" if out is not None else "")
                + ": a must have the shape (M, K) and b (K, N); an axis in front is the batch, of equal size or 1"
            )
        batch, m, n, k = known
        shape = (batch, m, n) if max(map(len, shapes)) == 3 else (m, n)
        _check_choices(names, activation, precision)
        sum_dtype, default = SUMS[names[0]]
        if out is None:
            out = empty(a, shape, out_dtype or default)
        elif tuple(out.shape) != shape:
            raise ValueError(
                f"cannot multiply {shapes[0]} by {shapes[1]} into {tuple(out.shape)}: out must have the shape {shape}"
            )
        if bias is not None and (tuple(bias.shape) != (n,) or not contiguous(bias)):
            raise ValueError(f"bias must be a contiguous vector of {n} elements, not of shape {tuple(bias.shape)}")
        by_row = _scales(a_scale, b_scale, m, n, batch)
        epilogue = {"bias": bias, "a_scale": a_scale, "b_scale": b_scale, "BY_ROW": by_row, "ACTIVATION": activation}
        a_strides, b_strides, out_strides = (_strides(array) for array in (a, b, out))
        if math.prod(out.shape) > 1 and 0 in [s for s, size in zip(strides(out), out.shape, strict=True) if size > 1]:
            raise ValueError("out repeats elements (a stride of 0); pass an array of its own")
        return MatmulProblem(
            a, b, out, m, n, k, batch, a_strides, b_strides, out_strides, batch > 1, epilogue, sum_dtype, precision
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute. With K = 0 there is: zeros, and the epilogue."""
        return 0 in (self.m, self.n, self.batch)

    @property
    def is_vector(self) -> bool:
        """Whether a is one row of floats that are summed in fp32, and the columns of b are contiguous. Offsets in a fit 32 bits."""
        fp32 = self.sum == "float32" and self.itemsize in (2, 4) and (self.itemsize == 2 or self.precision == "ieee")
        near = self.k * abs(self.a_strides[2]) < NEAR
        return self.m == 1 and not self.batched and self.k > 0 and fp32 and near and self.b_strides[1] == 1

    @property
    def batches(self) -> dict[str, int]:
        """The launch arguments for the strides of a batch; none for a single product."""
        if not self.batched:
            return {}
        return {"a_batch": self.a_strides[0], "b_batch": self.b_strides[0], "c_batch": self.out_strides[0]}

    @functools.cached_property
    def far(self) -> bool:
        """Whether offsets in one of the matrices need 64 bits; tiles reach a little beyond the matrices."""
        arrays = (
            (self.m, self.k, self.a_strides),
            (self.k, self.n, self.b_strides),
            (self.m, self.n, self.out_strides),
        )
        return any((r + 256) * abs(s[1]) + (c + 256) * abs(s[2]) >= NEAR for r, c, s in arrays)

    @property
    def itemsize(self) -> int:
        return int(self.a.dtype.itemsize)

    def tile(
        self, given: Any = None, num_warps: int | None = None, num_stages: int | None = None, splittable: bool = False
    ) -> TileShape:
        """The tile that `choose` selects, with the named values in its place: (M, N, K) of a tile, warps, stages."""
        if given is None:
            found = choose(self.m, self.n, self.k, self.itemsize, device(self.a), self.batch, splittable)
        else:
            found = given if isinstance(given, TileShape) else TileShape(*given, 4, None)
        if num_warps is None and num_stages is None:
            return found
        named = {"num_warps": num_warps, "num_stages": num_stages}
        return found._replace(**{name: value for name, value in named.items() if value is not None})

    @functools.cached_property
    def blocks(self) -> tuple[Blocks, Blocks, Blocks] | str:
        """How a, b and out are described for block-wise access, or the reason why one cannot be."""
        operands, out = (
            self.operand_blocks,
            described(self.out, self.out_strides, self.out.dtype.itemsize, self.batched),
        )
        if isinstance(operands, str):
            return operands
        if isinstance(out, str):
            return f"out {out}"
        return "out is stored column by column" if out.transposed else (*operands, out)

    @functools.cached_property
    def operand_blocks(self) -> tuple[Blocks, Blocks] | str:
        """How a and b are described, or the reason why one cannot be."""
        found = []
        for name, array, steps in (("a", self.a, self.a_strides), ("b", self.b, self.b_strides)):
            one = described(array, steps, self.itemsize, self.batched)
            if isinstance(one, str):
                return f"{name} {one}"
            found.append(one)
        return (found[0], found[1]) if self.k else "a has no columns"

    @functools.cached_property
    def aligned(self) -> bool:
        """Whether a descriptor describes the result, stored row by row."""
        found = described(self.out, self.out_strides, self.out.dtype.itemsize, self.batched)
        return not isinstance(found, str) and not found.transposed

    @property
    def along_k(self) -> tuple[bool, bool]:
        """Whether neighbours along K are neighbours in memory, for a and b."""
        return self.a_strides[2] == 1, self.b_strides[1] == 1

    @functools.cached_property
    def operand_rows(self) -> tuple[OperandRows, OperandRows]:
        """How the stored rows of a and b lie in memory."""
        found = []
        for array, steps in ((self.a, self.a_strides), (self.b, self.b_strides)):
            pitch = (steps[1] + steps[2] - 1) * self.itemsize
            if not isinstance(described(array, steps, self.itemsize, self.batched), str):
                aligned = not (pitch % LINE or address(array) % LINE)
                found.append(OperandRows.LINE_ALIGNED if aligned else OperandRows.UNALIGNED)
            else:
                copyable = 1 in steps[1:] and pitch > 0
                found.append(OperandRows.COPYABLE if copyable else OperandRows.POINTERS_ONLY)
        return found[0], found[1]


#: Checked products by the layout of their arrays: whether scales are per row, and the shape and dtype of a new result.
_checked_problems: dict[tuple[Any, ...], tuple[dict[str, Any], bool, tuple[int, ...], str]] = {}
MOST_CHECKED = 1024


def _array_key(array: Any) -> tuple[Any, ...] | None:
    """Everything about an array that `MatmulProblem` depends on, as a cache key."""
    if array is None:
        return None
    steps = array.stride() if callable(getattr(array, "stride", None)) else array.strides
    at = address(array)
    return type(array), array.shape, steps, array.dtype, at % ALIGNMENT, at % LINE == 0


def described(array: Any, steps: tuple[int, ...], size: int, batched: bool) -> Blocks | str:
    """How an array with these strides (batch, row, column) is described, or why it cannot be: the rules of the hardware's tensor maps."""
    batch, row, column = steps
    if column == 1 and row * size % ALIGNMENT == 0 and row > 0:
        found = Blocks(False, row, batch)
    elif row == 1 and column * size % ALIGNMENT == 0 and column > 0:
        found = Blocks(True, column, batch)
    else:
        return f"has strides {(row, column)}: one must be 1, and the other positive and a multiple of {ALIGNMENT // size} elements"
    if batched and (batch * size % ALIGNMENT or batch <= 0):
        return f"has matrices {batch} elements apart, not a positive multiple of {ALIGNMENT // size}"
    if address(array) % ALIGNMENT:
        return f"does not begin at a multiple of {ALIGNMENT} bytes"
    return found


def _sizes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, int, int, int] | None:
    """(batch, m, n, k), or None for shapes that do not fit."""
    batches = {shape[0] for shape in (a, b) if len(shape) == 3} - {1}
    if a[-1] != b[-2] or len(batches) > 1:
        return None
    return batches.pop() if batches else 1, a[-2], b[-1], a[-1]


def _strides(array: Any) -> tuple[int, ...]:
    """The strides of batch, row and column; the first is 0 if all products share the matrix."""
    found = strides(array)
    if len(found) == 2:
        return 0, *found
    return (0 if array.shape[0] == 1 else found[0]), *found[1:]


def _scales(left: Any, right: Any, m: int, n: int, batch: int) -> bool:
    """Whether scales are per row and column. Raises ValueError unless they are, or are one scale per matrix."""
    if left is None and right is None:
        return False
    sizes = [None if scale is None else math.prod(scale.shape) for scale in (left, right)]
    if sizes == [1, 1] or (sizes == [m, n] and batch == 1):
        if any(dtype_name(scale) != "float32" for scale in (left, right)):
            raise ValueError(f"a_scale and b_scale must be float32, not {dtype_name(left)} and {dtype_name(right)}")
        for scale in (left, right):
            if not contiguous(scale):
                raise ValueError(f"a_scale and b_scale must be contiguous; one has the strides {strides(scale)}")
        return sizes != [1, 1]
    raise ValueError(
        f"a_scale and b_scale have {sizes[0]} and {sizes[1]} elements; pass one element each, or {m} for the rows of a and {n} for "
        "the columns of b (not for a batch)"
    )


def _check_choices(names: tuple[str, str], activation: str, precision: str) -> None:
    """Raises ValueError for dtypes that cannot be multiplied, and for an activation or a precision that does not exist."""
    if names[0] not in SUMS or (names[0] != names[1] and not all(name.startswith("float8") for name in names)):
        raise ValueError(
            f"cannot multiply {names[0]} by {names[1]}; convert them to one of {', '.join(SUMS)} (only 8-bit floats may differ)"
        )
    if activation not in ACTIVATIONS:
        raise ValueError(f"no activation {activation!r}; there are {', '.join(map(repr, ACTIVATIONS))}")
    if precision not in PRECISIONS:
        raise ValueError(f"no precision {precision!r}; there are {', '.join(PRECISIONS)}")
