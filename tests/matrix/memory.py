"""Loads, stores, atomics, block pointers and descriptors: every dtype, keyword, and rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from blocknb.language import types as t
from matrix.entry import ANY, FLOATS, FLOATS8, NUMBERS, WORDS, Case, X, anything, entry, exact, wild

SHAPES = ((), (64,), (4, 16), (2, 4, 8), (2, 2, 2, 8))


def bits(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [wild(rng, d, n) for d, n in zip(dtypes, sizes, strict=True)]


def access(name: str, code: str, reference: Callable, **rest: Any) -> None:
    takes, fields = rest.get("takes", (X,)), rest.pop("fields", [{}])
    cases = tuple(Case((s,) * len(takes), f) for s in SHAPES for f in fields)
    entry(name, code, reference, **{"dtypes": ANY, "cases": cases, "domain": bits, "raw": True} | rest)


# -- loads ---------------------------------------------------------------------------------------------------------------------

MASKED = {"takes": (X, t.int1)}
access("load", "tl.load(a_ptr + a_at)", lambda a: a)
access("load mask", "tl.load(a_ptr + a_at, mask=b)", lambda a, b: np.where(b, a, np.zeros_like(a)), **MASKED)
access(
    "load mask positional, other", "tl.load(a_ptr + a_at, b, 1)", lambda a, b: np.where(b, a, np.ones_like(a)), **MASKED
)
access(
    "load other float",
    "tl.load(a_ptr + a_at, mask=b, other=1.0)",
    lambda a, b: np.where(b, a, np.ones_like(a)),
    **MASKED,
)
access(
    "load other tile", "tl.load(a_ptr + a_at, mask=b, other=c)", lambda a, b, c: np.where(b, a, c), takes=(X, t.int1, X)
)
access(
    "load mask constant",
    "tl.load(a_ptr + a_at, mask={mask}, other=0)",
    lambda a, mask: a if mask else np.zeros_like(a),
    fields=[{"mask": True}, {"mask": False}],
)
access(
    "load keywords",
    'tl.load(a_ptr + a_at, cache_modifier="{cache}", eviction_policy="{evict}", volatile={volatile})',
    lambda a, cache, evict, volatile: a,
    fields=[
        {"cache": cache, "evict": evict, "volatile": volatile}
        for cache, evict, volatile in (
            ("", "evict_first", False),
            (".ca", "", False),
            (".cg", "evict_last", False),
            (".cv", "", False),
            ("", "", True),
        )
    ],
)

# -- stores ---------------------------------------------------------------------------------------------------------------------


def kept(a: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Masked-out elements stay unchanged."""
    return np.ma.masked_array(a, ~mask)


#: A pointer to X; conditions are stored as bytes.
OUT = "out = w0.to(tl.pointer_type({X}))\n"
access("store", OUT + "tl.store(out + a_at, a)", lambda a: a)
access("tensor.store", OUT + "(out + a_at).store(a)", lambda a: a)
access("store mask", OUT + "tl.store(out + a_at, a, mask=b)", kept, **MASKED)
access("store mask positional", OUT + "tl.store(out + a_at, a, b)", kept, **MASKED)
access("store number", OUT + "tl.store(out + a_at, 1, mask=b)", lambda a, b: kept(np.ones_like(a), b), **MASKED)
access("store scalar", OUT + "tl.store(out + a_at, tl.load(a_ptr))", lambda a: np.full_like(a, a.ravel()[0]))
access(
    "store keywords",
    OUT + 'tl.store(out + a_at, a, cache_modifier="{cache}", eviction_policy="{evict}")',
    lambda a, cache, evict: a,
    fields=[
        {"cache": c, "evict": e}
        for c, e in (("", "evict_first"), (".wb", ""), (".cg", "evict_last"), (".cs", ""), (".wt", ""))
    ],
)
access(
    "store casts",
    OUT + "tl.store(out + a_at, a)",
    lambda a: a.astype(int),
    takes=(t.float32,),
    gives=(X,),
    dtypes=NUMBERS,
    domain=lambda r, d, n: [r.integers(0, 100, k).astype(np.float32) for k in n],
    refuses=False,
)

# -- atomics ---------------------------------------------------------------------------------------------------------------------


def bit_order(x: np.ndarray) -> np.ndarray:
    """Floats by sign and magnitude: -0 below 0, a NaN beyond the infinity of its sign."""
    if x.dtype.kind in "iu":
        return x
    kind = np.dtype(f"i{x.itemsize}")
    b = np.ascontiguousarray(x).view(kind)
    return np.where(b < 0, -(b & np.iinfo(kind).max) - 1, b)


UPDATES: dict[str, tuple[Any, Callable, Callable]] = {
    "add": ((*WORDS, *FLOATS), lambda a, b: a + b, exact),
    "max": ((*WORDS, t.float32, t.float64), lambda a, b: np.where(bit_order(a) >= bit_order(b), a, b), anything),
    "min": ((*WORDS, t.float32, t.float64), lambda a, b: np.where(bit_order(a) <= bit_order(b), a, b), anything),
    "and": (WORDS, np.bitwise_and, bits),
    "or": (WORDS, np.bitwise_or, bits),
    "xor": (WORDS, np.bitwise_xor, bits),
    "xchg": ((*WORDS, t.float32, t.float64), lambda a, b: b, bits),
}
START = "tl.store(w0 + a_at, a)\ntl.debug_barrier()\n"
ORDERS = [
    {"sem": s, "scope": w} for s, w in (("relaxed", "cta"), ("acquire", "gpu"), ("release", "sys"), ("acq_rel", "gpu"))
]
for _kind, (_dtypes, _update, _domain) in UPDATES.items():
    _name = f"atomic_{_kind}"
    _rest: dict[str, Any] = {"takes": (X, X), "gives": (X, X), "dtypes": _dtypes, "domain": _domain}
    access(
        _name,
        START + f'tl.{_name}(w0 + a_at, b, sem="{{sem}}", scope="{{scope}}")',
        lambda a, b, sem, scope, f=_update: (f(a, b), a),
        fields=ORDERS,
        **_rest,
    )
    access(f"tensor.{_name}", START + f"(w0 + a_at).{_name}(b)", lambda a, b, f=_update: (f(a, b), a), **_rest)
    access(
        f"{_name} unused",
        START + f"tl.{_name}(w0 + a_at, b)\nNone",
        lambda a, b, f=_update: f(a, b),
        **(_rest | {"gives": (X,)}),
    )
    access(
        f"{_name} mask",
        START + f"tl.{_name}(w0 + a_at, b, mask=c)",
        lambda a, b, c, f=_update: (np.where(c, f(a, b), a), np.where(c, a, np.zeros_like(a))),
        **(
            _rest
            | {
                "takes": (X, X, t.int1),
                "domain": lambda r, d, n, g=_domain: [*g(r, d[:2], n[:2]), *bits(r, d[2:], n[2:])],
            }
        ),
    )


def swaps(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Half of the comparisons hold."""
    a, b, c = bits(rng, dtypes, sizes)
    return [a, np.where(rng.random(a.size) < 0.5, a, b), c]


for _label, _code in (
    ("atomic_cas", 'tl.atomic_cas(w0 + a_at, b, c, sem="{sem}", scope="{scope}")'),
    ("tensor.atomic_cas", '(w0 + a_at).atomic_cas(b, c, "{sem}", "{scope}")'),
):
    access(
        _label,
        START + _code,
        lambda a, b, c, sem, scope: (np.where(a == b, c, a), a),
        takes=(X, X, X),
        gives=(X, X),
        dtypes=(t.int16, t.uint16, *WORDS, *FLOATS),
        domain=swaps,
        fields=ORDERS,
    )

for _name, _poll in (
    ("atomic_poll", "tl.atomic_poll(w0 + a_at, b, timeout_ns=0)"),
    ("atomic_poll method", '(w0 + a_at).atomic_poll(b, sem="relaxed", timeout_ns=0)'),
):
    access(
        _name,
        START + _poll,
        lambda a, b: (a, a == b),
        takes=(X, X),
        gives=(X, t.int1),
        dtypes=(t.int16, t.uint16, *WORDS),
        domain=lambda rng, dtypes, sizes: swaps(rng, [*dtypes, dtypes[0]], [*sizes, sizes[0]])[:2],
    )

# -- blocks of arrays ------------------------------------------------------------------------------------------------------------

#: Arrays of rank 1 to 4, the block that is read, and its offset: across the end, inside, before the beginning.
ARRAYS = (
    ((50,), (32,), (30,)),
    ((5, 32), (4, 16), (3, 16)),
    ((3, 6, 16), (2, 4, 16), (1, -1, 0)),
    ((2, 3, 5, 16), (1, 2, 4, 16), (1, 2, 3, 0)),
)


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))


def window(a: np.ndarray, block: tuple[int, ...], at: tuple[int, ...], fill: Any = 0) -> np.ndarray:
    found = np.full(block, fill, a.dtype)
    for i in np.ndindex(*block):
        place = tuple(p + o for p, o in zip(i, at, strict=True))
        if all(0 <= p < n for p, n in zip(place, a.shape, strict=True)):
            found[i] = a[place]
    return found


def put(block: np.ndarray, shape: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    """An array in which a block was written."""
    found, written = np.zeros(shape, block.dtype), np.zeros(shape, bool)
    for i in np.ndindex(*block.shape):
        place = tuple(p + o for p, o in zip(i, at, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            found[place], written[place] = block[i], True
    return np.ma.masked_array(found, ~written)


def blocks(of_array: bool) -> tuple[Case, ...]:
    return tuple(
        Case(
            (shape if of_array else block,),
            {
                "shape": shape,
                "strides": strides(shape),
                "block": block,
                "at": at,
                "order": tuple(reversed(range(len(shape)))),
                "axes": tuple(range(len(shape))),
            },
        )
        for shape, block, at in ARRAYS
    )


LOADED, STORED = (
    {"cases": blocks(True), "domain": bits, "raw": True},
    {"cases": blocks(False), "domain": bits, "raw": True},
)
POINTER = "p = tl.make_block_ptr({base}, {shape}, {strides}, {at}, {block}, {order})\n"


def bytes_of_bools(x: Any) -> Any:
    """As in Triton, a block pointer to conditions loads bytes."""
    return t.int8 if x == t.int1 else x


def of_array(a: np.ndarray, at: Any, block: Any, fill: Any = 0, **_: Any) -> np.ndarray:
    return window(a, block, at, fill)


def of_block(a: np.ndarray, at: Any, shape: Any, **_: Any) -> np.ndarray:
    return put(a, shape, at)


entry(
    "make_block_ptr",
    POINTER.replace("{base}", "a_ptr") + 'tl.load(p, boundary_check={axes}, padding_option="zero")',
    of_array,
    ANY,
    gives=(bytes_of_bools,),
    **LOADED,
)
entry(
    "make_block_ptr nan",
    POINTER.replace("{base}", "a_ptr") + 'tl.load(p, boundary_check={axes}, padding_option="nan")',
    lambda a, **f: of_array(a, fill=np.nan, **f),
    (*FLOATS, *FLOATS8),
    **LOADED,
)
entry(
    "store to a block pointer",
    POINTER.replace("{base}", "w0") + "tl.store(p, a, boundary_check={axes})",
    of_block,
    (*NUMBERS, *FLOATS8),
    **STORED,
    refuses=False,
)
for _label, _code in (("advance", "p = tl.advance(p, {at})\n"), ("tensor.advance", "p = p.advance({at})\n")):
    entry(
        _label,
        POINTER.replace("{base}", "a_ptr").replace("{at}", "{axes}") + _code + "tl.load(p, boundary_check={axes})",
        lambda a, at, block, axes, **f: window(a, block, tuple(x + y for x, y in zip(at, axes, strict=True))),
        ANY,
        gives=(bytes_of_bools,),
        **LOADED,
    )

DESCRIPTOR = "d = tl.make_tensor_descriptor({base}, {shape}, {strides}, {block})\n"
DESCRIBED = tuple(c for c in blocks(True) if len(c.shapes[0]) > 1)
WRITTEN = tuple(c for c in blocks(False) if len(c.shapes[0]) > 1)
for _label, _code in (
    ("make_tensor_descriptor", "d.load({at})"),
    ("load_tensor_descriptor", "tl.load_tensor_descriptor(d, {at})"),
):
    entry(
        _label,
        DESCRIPTOR.replace("{base}", "a_ptr") + _code,
        of_array,
        (*NUMBERS, *FLOATS8),
        **LOADED | {"cases": DESCRIBED},
        refuses=False,
    )
entry(
    "make_tensor_descriptor nan",
    DESCRIPTOR.replace("{base}", "a_ptr").replace("{block})", '{block}, padding_option="nan")') + "d.load({at})",
    lambda a, **f: of_array(a, fill=np.nan, **f),
    (*FLOATS, *FLOATS8),
    **LOADED | {"cases": DESCRIBED},
    refuses=False,
)
for _label, _code in (
    ("tensor_descriptor.store", "d.store({at}, a)"),
    ("store_tensor_descriptor", "tl.store_tensor_descriptor(d, {at}, a)"),
):
    entry(
        _label,
        DESCRIPTOR.replace("{base}", "w0") + _code,
        of_block,
        (*NUMBERS, *FLOATS8),
        **STORED | {"cases": WRITTEN},
        refuses=False,
    )
