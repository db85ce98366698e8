"""Ops that make tiles, change their shape and move their elements: bits of every dtype, at every rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from blocknb.language import types as t
from matrix.entry import ANY, INTEGERS, NUMBERS, X, between, distinct, entry, from_each, limits, over, steps, wild

RANKS = ((32,), (4, 16), (2, 4, 8), (2, 1, 4, 8))


def bits(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [wild(rng, d, n) for d, n in zip(dtypes, sizes, strict=True)]


def moved(name: str, code: str, reference: Any, cases: Any, **rest: Any) -> None:
    entry(name, code, reference, **{"dtypes": ANY, "cases": cases, "domain": bits, "raw": True} | rest)


# -- shapes -------------------------------------------------------------------------------------------------------------------

TO = ((64,), (4, 16), (2, 2, 16), (2, 1, 8, 4))
for _label, _code in (
    ("reshape", "tl.reshape(a, {to})"),
    ("tensor.reshape", "a.reshape{to}"),
    ("reshape can_reorder", "tl.reshape(a, {to}, can_reorder=True)"),
    ("view", "tl.view(a, {to})"),
    ("tensor.view", "a.view({to})"),
):
    moved(_label, _code, lambda a, to: a.reshape(to), over((64,), (8, 8), (4, 2, 8), (2, 2, 2, 8), to=TO))
moved("reshape of a scalar", "tl.reshape(a, (1, 1))", lambda a: a.reshape(1, 1), over(()))
moved("ravel", "tl.ravel(a)", np.ravel, over(*RANKS))
moved("tensor.ravel", "a.ravel()", np.ravel, over(*RANKS))
PERMUTED = tuple(over(shape, dims=[d])[0] for shape in RANKS[1:] for d in itertools.permutations(range(len(shape))))
for _label, _code in (
    ("permute", "tl.permute(a, {dims})"),
    ("tensor.permute", "a.permute{dims}"),
    ("trans dims", "tl.trans(a, {dims})"),
):
    moved(_label, _code, lambda a, dims: np.transpose(a, dims), PERMUTED)


for _label, _code in (("trans", "tl.trans(a)"), ("tensor.trans", "a.trans()"), ("tensor.T", "a.T")):
    moved(_label, _code, lambda a: np.swapaxes(a, -1, -2), over(*RANKS[1:]))
for _label, _code in (("expand_dims", "tl.expand_dims(a, {axis})"), ("tensor.expand_dims", "a.expand_dims({axis})")):
    moved(_label, _code, lambda a, axis: np.expand_dims(a, axis), over((), (32,), (4, 16), (2, 4, 8), axis=[0, -1]))
moved("unsqueeze", "tl.unsqueeze(a, 0)", lambda a: np.expand_dims(a, 0), over((32,), (4, 16)))
moved("squeeze", "tl.squeeze(a, 0)", lambda a: np.squeeze(a, 0), over((1, 32), (1, 4, 16)))
moved("expand_dims axes", "tl.expand_dims(a, (0, 2))", lambda a: np.expand_dims(a, (0, 2)), over((32,), (4, 16)))
moved("subscript None", "a[None, :, None]", lambda a: a[None, :, None], over((32,), (4, 8)))
moved("subscript ...", "a[..., None]", lambda a: a[..., None], over((32,), (4, 8), (2, 4, 8)))
for _label, _code in (("broadcast_to", "tl.broadcast_to(a, {to})"), ("tensor.broadcast_to", "a.broadcast_to{to}")):
    moved(
        _label,
        _code,
        lambda a, to: np.broadcast_to(a, to),
        over((), (1,), (8,), (4, 1), (1, 8), (2, 4, 1), to=[(2, 4, 8)]),
    )
moved(
    "broadcast",
    "tl.broadcast(a, b)",
    lambda a, b: tuple(np.broadcast_arrays(a, b)),
    takes=(X, X),
    gives=(X, X),
    cases=over(((4, 1), (1, 8)), ((8,), (2, 4, 8)), ((), (4, 4)), ((2, 1, 1, 4), (1, 2, 8, 1))),
)

# -- sources --------------------------------------------------------------------------------------------------------------------

SHAPES = [(), (1,), (32,), (4, 8), (2, 4, 4), (2, 2, 1, 8)]
moved("zeros", "tl.zeros({s}, {X})", lambda s: np.zeros(s), over(None, s=SHAPES), takes=(), refuses=False)
moved(
    "full",
    "tl.full({s}, 3, {X})",
    lambda s: np.full(s, 3),
    over(None, s=SHAPES),
    takes=(),
    dtypes=NUMBERS,
    refuses=False,
)
moved("full of a scalar", "tl.full({s}, a, {X})", lambda a, s: np.full(s, a), over((), s=SHAPES))
moved("zeros_like", "tl.zeros_like(a)", np.zeros_like, over((), *RANKS))
moved("to_tensor", "tl.to_tensor(a)", lambda a: a, over((), *RANKS))
moved(
    "arange",
    "tl.arange({start}, {start} + 16)",
    lambda start: np.arange(start, start + 16),
    over(None, start=[0, 5, -3]),
    takes=(),
    gives=(t.int32,),
    dtypes=(t.int32,),
    refuses=False,
)
moved("item", "a.item()", lambda a: a.reshape(()), over((), (1,), (1, 1), (1, 1, 1, 1)))

# -- moves ---------------------------------------------------------------------------------------------------------------------

PAIRS = over(*((s, s) for s in ((), *RANKS)))
moved("join", "tl.join(a, b)", lambda a, b: np.stack([a, b], -1), PAIRS, takes=(X, X))
moved(
    "interleave",
    "tl.interleave(a, b)",
    lambda a, b: np.stack([a, b], -1).reshape((*a.shape[:-1], -1) if a.ndim else 2),
    PAIRS,
    takes=(X, X),
)
for _label, _code in (("split", "tl.split(a)"), ("tensor.split", "a.split()")):
    moved(_label, _code, lambda a: (a[..., 0], a[..., 1]), over((2,), (16, 2), (4, 8, 2), (2, 2, 8, 2)), gives=(X, X))
moved("cat", "tl.cat(a, b, can_reorder=True)", lambda a, b: np.concatenate([a, b]), over(((32,), (32,))), takes=(X, X))
moved(
    "cat dim",
    "tl.cat(a, b, dim={dim})",
    lambda a, b, dim: np.concatenate([a, b], dim),
    over(*((s, s) for s in RANKS[1:]), dim=[0, 1, -1]),
    takes=(X, X),
)
for _label, _code in (("flip", "tl.flip(a, {dim})"), ("tensor.flip", "a.flip({dim})")):
    moved(_label, _code, lambda a, dim: np.flip(a, dim), over(*RANKS, dim=[0, -1]))
moved(
    "xor_shuffle",
    "tl.xor_shuffle(a, {axis}, {mask})",
    lambda a, axis, mask: np.take(a, np.arange(a.shape[axis]) ^ mask, axis),
    over((4, 16), (4, 4, 8), axis=[0, -1], mask=[1, 2, 3]),
)
GATHERED = over(((32,), (64,)), ((4, 16), (4, 8)), ((2, 4, 8), (2, 4, 16)), ((2, 1, 4, 8), (2, 1, 4, 4)), axis=[-1])
GATHERED += over(((8, 8), (16, 8)), ((4, 2, 8), (2, 2, 8)), axis=[0])
for _label, _code in (("gather", "tl.gather(a, b, {axis})"), ("tensor.gather", "a.gather(b, {axis})")):
    moved(
        _label,
        _code,
        lambda a, b, axis: np.take_along_axis(a, b.astype(int), axis),
        GATHERED,
        takes=(X, t.int32),
        domain=from_each(bits, between(0, 3)),
    )
moved(
    "gather index dtypes",
    "tl.gather(a, b, {axis})",
    lambda a, b, axis: np.take_along_axis(a, b.astype(int), axis),
    GATHERED,
    takes=(t.float32, X),
    gives=(t.float32,),
    dtypes=INTEGERS,
    domain=from_each(bits, between(0, 3)),
)

# -- sorting and counting ----------------------------------------------------------------------------------------------------------


def falling(a: np.ndarray, down: bool, axis: int = -1) -> np.ndarray:
    return np.flip(np.sort(a, axis), axis) if down else np.sort(a, axis)


for _label, _code in (("sort", "tl.sort(a, {dim}, {down})"), ("tensor.sort", "a.sort(dim={dim}, descending={down})")):
    moved(
        _label,
        _code,
        lambda a, dim, down: falling(a, down, -1 if dim is None else dim),
        over(*RANKS[:3], dim=[None, 0], down=[False, True]),
        zeros=False,
    )
moved("sort rank 4", "tl.sort(a)", lambda a: np.sort(a, -1), over(RANKS[3]), zeros=False)


def bitonic(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    found = []
    for x, d in zip(distinct(rng, dtypes, sizes), dtypes, strict=True):
        rows = x.reshape(-1, 16)
        rows[:, :8].sort(1)
        rows[:, 8:] = np.sort(rows[:, 8:], 1)[:, ::-1]
        found.append(rows.ravel().astype(d.numpy))
    return found


moved(
    "bitonic_merge",
    "tl.bitonic_merge(a, descending={down})",
    lambda a, down: falling(a, down),
    over((16,), (4, 16), (2, 2, 16), down=[False, True]),
    dtypes=NUMBERS,
    domain=bitonic,
    refuses=False,
)
moved(
    "topk",
    "tl.topk(a, {k})",
    lambda a, k: falling(a, True)[..., :k],
    over((32,), (4, 16), (2, 4, 8), (2, 1, 2, 8), k=[1, 4, 8]),
    dtypes=NUMBERS,
    domain=distinct,
    refuses=False,
)
moved(
    "topk dim",
    "tl.topk(a, 4, dim=0)",
    lambda a: falling(a, True, 0)[:4],
    over((32,), (8, 8)),
    dtypes=NUMBERS,
    domain=distinct,
    refuses=False,
)


def counts(a: np.ndarray, bins: int, mask: Any = None) -> np.ndarray:
    kept = a if mask is None else a[mask]
    return np.bincount(kept[(kept >= 0) & (kept < bins)].astype(int), minlength=bins)


_rest: dict[str, Any] = {"dtypes": INTEGERS, "gives": (t.int32,)}
for _label, _code in (("histogram", "tl.histogram(a, {bins})"), ("tensor.histogram", "a.histogram({bins})")):
    moved(_label, _code, counts, over((64,), (256,), bins=[2, 16, 64]), domain=between(-3, 80), **_rest)
moved(
    "histogram mask",
    "tl.histogram(a, {bins}, mask=b)",
    lambda a, b, bins: counts(a, bins, b),
    over(((64,), (64,)), bins=[16, 32]),
    takes=(X, t.int1),
    domain=from_each(between(-3, 80), bits),
    **_rest,
)

# -- casts -----------------------------------------------------------------------------------------------------------------------


def castable(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    """Numbers within the range of 8-bit integers, including fractions and zeros."""
    (dtype,), (size,) = dtypes, sizes
    low = -128 if dtype.is_float or dtype.kind == "int" else 0
    x = rng.uniform(low, 127, size) if dtype.is_float else rng.integers(low, 127, size, endpoint=True)
    x[: size // 4] = rng.choice([0, 1, low, 127], size // 4)
    return [rng.permutation(x).astype(dtype.numpy)]


def positive_castable(rng: Any, dtypes: Any, sizes: Any) -> list[np.ndarray]:
    return [
        np.abs(x) if d.is_float else np.where(x < 0, 0, x).astype(x.dtype)
        for d, x in zip(dtypes, castable(rng, dtypes, sizes), strict=True)
    ]


def as_float(x: np.ndarray) -> np.ndarray:
    """Any number as a float without loss: int64 and uint64 in extended precision."""
    return x.astype(np.longdouble if x.dtype.kind in "iuf" else np.float64)


def as_integer(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Integers wrap and floats saturate. The floats of `castable` are small, though 127 is 128 in eight bits."""
    if x.dtype.kind in "iub":
        return x.astype(dtype)
    return np.clip(
        np.trunc(x.astype(np.float64)), max(np.iinfo(dtype).min, -128), min(np.iinfo(dtype).max, 128)
    ).astype(dtype)


def saturated(x: np.ndarray, dtype: Any) -> np.ndarray:
    """8-bit floats saturate."""
    most = limits(dtype)[0]
    return np.clip(x, -most, most)


for _to in ANY:
    _name = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}.get(
        _to.name, _to.name.replace("fp8", "float8")
    )
    for _label, _code in (
        (f"cast to {_name}", f"tl.cast(a, tl.{_name})"),
        (f"tensor.to {_name}", f"a.to(tl.{_name})"),
        (f"{_name}()", f"tl.{_name}(a)"),
        (f"tensor.cast {_name}", f"a.cast(tl.{_name})"),
    ):
        if _to.kind == "bool":
            entry(_label, _code, lambda a: a != 0, ANY, gives=(t.int1,))
        elif _to.is_float:
            entry(
                _label,
                _code,
                as_float if _to.bits > 8 else lambda a, d=_to: a if a.dtype == d.numpy else saturated(as_float(a), d),
                ANY,
                gives=(_to,),
                raw=True,
                zeros=_to.bits > 8,
            )
        else:
            entry(
                _label,
                _code,
                lambda a, d=_to: as_integer(a, d.numpy),
                ANY,
                gives=(_to,),
                domain=positive_castable if _to.kind == "uint" else castable,
            )
    if _to.is_integer and _to.bits > 1:  # a cast between integers always wraps
        entry(
            f"cast wraps to {_name}",
            f"a.to(tl.{_name})",
            lambda a, d=_to: a.astype(d.numpy),
            (t.int1, *INTEGERS),
            gives=(_to,),
            refuses=False,
        )
    _same = tuple(d for d in ANY if d.bits == _to.bits)
    entry(
        f"cast bitcast to {_name}",
        f"a.to(tl.{_name}, bitcast=True)",
        lambda a, d=_to: a.view(d.numpy),
        _same,
        gives=(_to,),
        raw=True,
    )
entry(
    "cast reaches the ends of int64",
    "a.to(tl.int64)",
    lambda a: np.trunc(a).astype(np.int64),
    (t.float32, t.float64),
    gives=(t.int64,),
    domain=between(-(2.0**63), 2.0**62.9),
    refuses=False,
)
entry(
    "cast reaches the ends of uint64",
    "a.to(tl.uint64)",
    lambda a: np.trunc(a).astype(np.uint64),
    (t.float32, t.float64),
    gives=(t.uint64,),
    domain=between(0, 2.0**63.9),
    refuses=False,
)


def toward_zero(x: np.ndarray, dtype: Any) -> np.ndarray:
    step = steps(x, dtype)
    cut = np.trunc(x / step) * step
    most = limits(dtype)[0]
    return np.where(np.isfinite(x), np.clip(cut, -most, most), x)


for _to in (t.float16, t.bfloat16, t.float32):
    _wider = tuple(d for d in ANY if d == _to or (d.is_float and d.bits > _to.bits))
    _name = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[_to.name]
    entry(
        f"cast rtz to {_name}",
        f'a.to(tl.{_name}, fp_downcast_rounding="rtz")',
        lambda a, d=_to: toward_zero(a, d),
        _wider,
        gives=(_to,),
    )
    entry(f"cast rtne to {_name}", f'a.to(tl.{_name}, fp_downcast_rounding="rtne")', lambda a: a, _wider, gives=(_to,))
