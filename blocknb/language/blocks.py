"""Declares block pointers and tensor descriptors, which know the shape and the strides of their array.

Both describe a window of fixed shape that moves over an array. A block pointer contains its offsets, and `advance` changes them. A
tensor descriptor takes the offsets with every access. The front end lowers both to pointers, offsets and masks. The classes here serve
`isinstance` and hold the docstrings of the methods.
"""

from __future__ import annotations

from blocknb.language.declarations import builtin, method


@builtin
def make_block_ptr(base, shape, strides, offsets, block_shape, order):
    """Makes a pointer to a block of `block_shape`, powers of two, in an array of `shape` and `strides` (in elements) at `base`.

    `offsets` is the position of the block's first element, per axis; it may lie outside the array. `order` names the axes from the
    fastest to the slowest. `load` and `store` accept it instead of a tile of pointers, and check the axes in `boundary_check`.

    Example:
        p = tl.make_block_ptr(a_ptr, shape=(4, 4), strides=(4, 1), offsets=(2, 2), block_shape=(2, 2), order=(1, 0))
        tl.load(p)  # [[10.0, 11.0], [14.0, 15.0]]
        turned = tl.make_block_ptr(a_ptr, (4, 4), (1, 4), (0, 1), (2, 2), (0, 1))
        tl.load(turned)  # [[4.0, 8.0], [5.0, 9.0]]
    """


@method
def advance(base, offsets):
    """Moves the block pointer by `offsets` elements, one offset per axis. Also a method: `p = p.advance((0, 16))`.

    Example:
        p = tl.make_block_ptr(a_ptr, (4, 4), (4, 1), (2, 0), (2, 2), (1, 0))
        tl.load(tl.advance(p, (1, 2)), boundary_check=(0,), padding_option="zero")  # [[14.0, 15.0], [0.0, 0.0]]
    """


@builtin
def make_tensor_descriptor(base, shape, strides, block_shape, padding_option="zero"):
    """Makes a descriptor of an array with `shape` and `strides` (in elements), for access in blocks of `block_shape`.

    The last stride must be 1. The other strides and `base` must be multiples of 16 bytes. The last axis of a block needs at least 16
    bytes. Loads return zero outside the array, or NaN with `padding_option="nan"`. Stores write nothing outside the array.

    Example:
        d = tl.make_tensor_descriptor(a_ptr, shape=(4, 4), strides=(4, 1), block_shape=(2, 4))
        d.load([3, 0])  # [[12.0, 13.0, 14.0, 15.0], [0.0, 0.0, 0.0, 0.0]]
        d.block_shape[1]  # 4
    """


@builtin
def load_tensor_descriptor(desc, offsets):
    """Loads the block of a tensor descriptor at `offsets`, like `desc.load(offsets)`.

    Example:
        d = tl.make_tensor_descriptor(a_ptr, (4, 4), (4, 1), (1, 4))
        tl.load_tensor_descriptor(d, [2, 0])  # [[8.0, 9.0, 10.0, 11.0]]
    """


@builtin
def store_tensor_descriptor(desc, offsets, value):
    """Stores a block of a tensor descriptor at `offsets`, like `desc.store(offsets, value)`.

    Example:
        d = tl.make_tensor_descriptor(out_ptr, (4, 4), (4, 1), (1, 4))
        tl.store_tensor_descriptor(d, [1, 0], tl.full((1, 4), 2.0, tl.float32))
        tl.load(out_ptr + 3 + tl.arange(0, 4))  # [0.0, 2.0, 2.0, 2.0]
    """


@builtin
def _experimental_make_tensor_descriptor(base, shape, strides, block_shape):
    """Makes a tensor descriptor; the older name of `make_tensor_descriptor`.

    Example:
        tl._experimental_make_tensor_descriptor(a_ptr, (16,), (1,), (4,)).load([8])  # [8.0, 9.0, 10.0, 11.0]
    """


@builtin
def _experimental_descriptor_load(desc_pointer, offsets, shape, dtype):
    """Loads a block; the older name of `load_tensor_descriptor`. `shape` and `dtype` must be those of the descriptor.

    Example:
        d = tl.make_tensor_descriptor(a_ptr, (16,), (1,), (4,))
        tl._experimental_descriptor_load(d, [4], [4], tl.float32)  # [4.0, 5.0, 6.0, 7.0]
    """


@builtin
def _experimental_descriptor_store(desc_pointer, value, offsets):
    """Stores a block; the older name of `store_tensor_descriptor`.

    Example:
        d = tl.make_tensor_descriptor(out_ptr, (16,), (1,), (4,))
        tl._experimental_descriptor_store(d, tl.full((4,), 3.0, tl.float32), [12])
        tl.load(out_ptr + 11)  # 0.0
        tl.load(out_ptr + 12)  # 3.0
    """


class tensor_descriptor_base:
    """The base class of tensor descriptors, for `isinstance` in a kernel."""


class tensor_descriptor(tensor_descriptor_base):
    """A tensor descriptor in a kernel, made there or passed as an argument (`blocknb.TensorDescriptor`).

    `block_shape`, `dtype` and `type` are compile-time values; `shape` and `strides` are tuples of scalars.
    """

    @builtin
    def load(self, offsets, eviction_policy=""):
        """Loads the block that begins at `offsets`, one scalar per axis. `eviction_policy` is that of `load`.

        Example:
            d = tl.make_tensor_descriptor(a_ptr, (16,), (1,), (4,))
            d.load([14])  # [14.0, 15.0, 0.0, 0.0]
        """

    @builtin
    def store(self, offsets, value):
        """Stores the block that begins at `offsets`, cast to the dtype of the descriptor. Elements outside the array are dropped.

        Example:
            d = tl.make_tensor_descriptor(out_ptr, (16,), (1,), (4,))
            d.store([4], tl.full((4,), 1, tl.int32))
            tl.load(out_ptr + 3 + tl.arange(0, 4))  # [0.0, 1.0, 1.0, 1.0]
        """

    @builtin
    def gather(self, x_offsets, y_offset):
        """Loads the rows in the tile `x_offsets`, each from column `y_offset` on. The block of the descriptor is one row.

        Example:
            d = tl.make_tensor_descriptor(a_ptr, (2, 8), (8, 1), (1, 8))
            rows = d.gather(tl.arange(0, 8) % 2, 4)
            tl.sum(rows, axis=0)  # [64.0, 72.0, 80.0, 88.0, 0.0, 0.0, 0.0, 0.0]
        """

    @builtin
    def scatter(self, value, x_offsets, y_offset):
        """Stores the rows of `value` to the rows in `x_offsets`, from column `y_offset` on. The block of the descriptor is one row.

        Example:
            d = tl.make_tensor_descriptor(out_ptr, (2, 8), (8, 1), (1, 8))
            d.scatter(tl.full((8, 8), 5.0, tl.float32), tl.arange(0, 8) + 1, 6)
            tl.load(out_ptr + 12 + tl.arange(0, 4))  # [0.0, 0.0, 5.0, 5.0]
        """

    @builtin
    def atomic_add(self, offsets, value):
        """Adds the block to memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(out_ptr, (16,), (1,), (4,))
            d.atomic_add([14], tl.full((4,), 2.5, tl.float32))
            tl.load(out_ptr + 12 + tl.arange(0, 4))  # [0.0, 0.0, 2.5, 2.5]
        """

    @builtin
    def atomic_min(self, offsets, value):
        """Stores the minimum of the block and the values in memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(i_ptr, (16,), (1,), (4,))
            d.atomic_min([4], tl.full((4,), 6, tl.int32))
            tl.load(i_ptr + 4 + tl.arange(0, 4))  # [4, 5, 6, 6]
        """

    @builtin
    def atomic_max(self, offsets, value):
        """Stores the maximum of the block and the values in memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(i_ptr, (16,), (1,), (4,))
            d.atomic_max([4], tl.full((4,), 6, tl.int32))
            tl.load(i_ptr + 4 + tl.arange(0, 4))  # [6, 6, 6, 7]
        """

    @builtin
    def atomic_and(self, offsets, value):
        """Stores the bitwise and of the block and the values in memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(i_ptr, (16,), (1,), (4,))
            d.atomic_and([4], tl.full((4,), 5, tl.int32))
            tl.load(i_ptr + 4 + tl.arange(0, 4))  # [4, 5, 4, 5]
        """

    @builtin
    def atomic_or(self, offsets, value):
        """Stores the bitwise or of the block and the values in memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(i_ptr, (16,), (1,), (4,))
            d.atomic_or([4], tl.full((4,), 1, tl.int32))
            tl.load(i_ptr + 4 + tl.arange(0, 4))  # [5, 5, 7, 7]
        """

    @builtin
    def atomic_xor(self, offsets, value):
        """Stores the bitwise exclusive or of the block and the values in memory, atomically for each element.

        Example:
            d = tl.make_tensor_descriptor(i_ptr, (16,), (1,), (4,))
            d.atomic_xor([4], tl.full((4,), 1, tl.int32))
            tl.load(i_ptr + 4 + tl.arange(0, 4))  # [5, 4, 7, 6]
        """
