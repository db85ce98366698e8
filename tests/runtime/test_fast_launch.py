"""The fast launch path repeats launches with the same kinds of arguments, and rejects all others."""

from __future__ import annotations

import collections
import enum
import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import seeds

import blocknb
import blocknb.language as bl
from blocknb.language import types as t
from blocknb.runtime import kernel as kernels
from blocknb.runtime.arguments import DESCRIBE, describer
from blocknb.runtime.binding import bind
from blocknb.runtime.divisor_specialization import finer
from blocknb.runtime.fast_launch import fast_launch
from blocknb.runtime.kinds import constant_kind
from blocknb.runtime.plan import LaunchPlan

BYTES = np.zeros(4096, np.uint8)
ROOM = BYTES[-BYTES.ctypes.data % 64 :]


def placed(dtype, offset: int, size: int = 4) -> np.ndarray:
    """An array at a multiple of 64 bytes plus `offset`."""
    return np.frombuffer(ROOM, dtype, size, offset)


def frozen(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view


class Sub(np.ndarray):
    pass


class Described(blocknb.TensorDescriptor):
    pass


def descriptor(
    dtype=np.float32, block_shape=(4, 16), columns=32, padding="zero", array=None, made_by=blocknb.TensorDescriptor
):
    base = placed(dtype, 0, 128) if array is None else array
    return made_by(base, [4, columns], [32, 1], block_shape, padding)


def changed(value, **attributes):
    for name, new in attributes.items():
        setattr(value, name, new)
    return value


Mode = enum.IntEnum("Mode", {"A": 32})
Pair = collections.namedtuple("Pair", "first second")
VALUES = [
    *(placed(d, at) for d in (np.float32, np.int32, np.float16, np.float64) for at in (0, 16, 8, 32)),
    placed(np.float32, 4),
    placed(np.float16, 2),
    placed(np.float32, 0).reshape(2, 2).T,
    frozen(placed(np.float32, 0)),
    placed(np.float32, 0).view(Sub),
    np.zeros(0, np.float32),
    *(0, 1, 2, 16, 32, -16, -1, 2**31 - 16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63, 2**40),
    *(0.0, -0.0, 1.0, 2.5, float("nan"), float("inf")),
    *(True, False, None, Mode.A, "text", t.float16, t.float32, ()),
    *(np.int32(16), np.int64(5), np.float32(1.5), np.float64(1.5), np.bool_(True), np.bool_(False)),
    *(np.int32(1), np.int64(1), np.int32(5), np.int64(-16), np.uint64(2**63), np.float16(1.5), np.float64("nan")),
    *(np.uint8(16), np.longlong(5), np.float32(-0.0)),
    (1, 2),
    (placed(np.float32, 0), 3),
    (placed(np.float32, 16), 32),
    (placed(np.float32, 4), 3),
    (placed(np.float32, 0), 3, None),
    Pair(placed(np.float32, 0), 3),
    Pair(placed(np.float32, 0), (np.float32(2.5), "text")),
    Pair(placed(np.float32, 0), (np.float32(3.5), "text")),
    Pair(placed(np.float32, 0), (np.float32(3.5), "another")),
    *(descriptor(dtype=d) for d in (np.float32, np.int32, np.float16)),
    *(descriptor(block_shape=b) for b in ([4, 16], (2, 16), (4, 8))),
    *(descriptor(columns=n) for n in (16, 17, 32)),
    descriptor(padding="nan"),
    descriptor(array=frozen(placed(np.float32, 0, 128))),
    descriptor(array=placed(np.float32, 0, 128).view(Sub)),
    changed(descriptor(), block_shape=[2, 16]),
    changed(descriptor(), base=placed(np.float32, 64, 128)),
    changed(descriptor(), shape=[3, 48]),
    descriptor(made_by=Described),
    (descriptor(), descriptor(columns=17)),
]
SEEN = (
    int,
    float,
    bool,
    type(None),
    np.ndarray,
    np.int32,
    np.float32,
    np.bool_,
    np.uint64,
    tuple,
    Pair,
    blocknb.TensorDescriptor,
)  # types that are recognised, where the Kind allows it


@blocknb.kernel
def of_one(x, FIXED: bl.constexpr):
    pass


@blocknb.kernel
def of_modulus(x, FIXED: bl.constexpr):
    bl.program_id(0) % x


class Recogniser:
    """The fast launch made from a launch with `value`. `raws(other)` returns the raw values that a launch with another value passes to the
    starter, or None if the fast launch rejects it."""

    def __init__(self, value, kind, fixed, kernel=of_one):
        self.fixed, self.seen = fixed, []
        binding = bind(kernel.source, frozenset(), 0, ("FIXED", "x"))
        compiled = SimpleNamespace(reached=(), calls=())
        start = lambda grid, raws, values: self.seen.append((raws, values))  # noqa: E731
        kinds = (kind, constant_kind(None)) if fixed else (constant_kind(None), kind)
        self.fast_launch = fast_launch(kernel, binding, LaunchPlan(compiled, kinds, -1, start), self.values(value))

    def values(self, value):
        return (value, None) if self.fixed else (None, value)

    def raws(self, value):
        if self.fast_launch is None or self.fast_launch.attempt((1,), *self.values(value)) is None:
            return None
        ((raws, values),) = self.seen
        assert all(a is b for a, b in zip(values, self.values(value), strict=True))
        self.seen.clear()
        return raws[:1] if self.fixed else raws[1:]


def described(value, fixed: bool):
    return (constant_kind(value), None) if fixed else describer(value)(value)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_recognised_argument_has_the_same_kind_and_raw_value(fixed):
    values = [v for v in VALUES if not (fixed and isinstance(v, (np.ndarray, tuple, blocknb.TensorDescriptor)))]
    recognised = 0
    for first in values:
        kind, _ = described(first, fixed)
        recogniser = Recogniser(first, kind, fixed)
        for second in values:
            found, (other, raw) = recogniser.raws(second), described(second, fixed)
            if found is not None:
                recognised += 1
                assert other is kind, (first, second)
                assert kind.constant or found == [raw] or (raw != raw and found[0] != found[0]), (first, second)
    assert recognised >= 20  # each with itself at least


def test_a_modulus_is_recognised_among_numbers_with_the_same_divisor():
    numbers = [0, 1, *range(-64, 65, 8), 96, 128, 192, 256, 320, 384, 512, 2**31 - 64, 2**31, 2**40 + 64, 2**63]
    values = [*numbers, *(np.int64(v) for v in numbers[:-1]), 1.0, None, True]

    def finer_kind(value):
        kind, raw = described(value, False)
        return finer(kind, raw)

    assert {finer_kind(v).divisibility for v in numbers} == {1, 8, 16, 64, 128, 256}
    for i, first in enumerate(values):
        recogniser = Recogniser(first, finer_kind(first), False, of_modulus)
        same = [recogniser.raws(second) is not None for second in values]
        assert not any(s and finer_kind(v) is not finer_kind(first) for s, v in zip(same, values, strict=True)), first
        assert same[i] or first == 2**63, first


def test_torch_tensors_of_other_kinds_are_rejected():
    torch = pytest.importorskip("torch")
    whole = torch.zeros(64, dtype=torch.float32)
    tensors = [whole, whole[4:], whole[1:], whole.to(torch.bfloat16), whole.to(torch.float64), whole.to(torch.int32)]
    tensors += [
        torch.nn.Parameter(whole),
        whole.reshape(8, 8).T,
        torch.zeros(0),
        torch.view_as_real(torch.zeros(4) + 1j),
    ]
    for first, second in itertools.product(tensors, repeat=2):
        kind, _ = described(first, False)
        found = Recogniser(first, kind, False).raws(second)
        other, raw = described(second, False)
        if found is not None:
            assert other is kind and found == [raw]
        else:
            assert other is not kind or type(first) is not type(second)
    kind, _ = described(whole, False)
    recogniser = Recogniser(whole, kind, False)
    assert recogniser.raws(whole.to_sparse()) is None
    assert recogniser.raws(torch.complex(whole, whole).conj().imag) is None  # negated when it is read
    assert recogniser.raws(torch.zeros(4, device="meta")) is None
    assert recogniser.raws(whole) == [whole.data_ptr()]


def test_the_usual_arguments_are_recognised():
    for value in VALUES:
        if type(value) in SEEN and not (type(value) is int and not -(2**63) <= value < 2**63):
            array = getattr(value, "base", None) if type(value) is blocknb.TensorDescriptor else value
            if isinstance(array, np.ndarray) and (type(array) is Sub or not array.flags.writeable):
                continue
            kind, raw = describer(value)(value)
            found = Recogniser(value, kind, False).raws(value)
            assert found == [raw] or (raw != raw and found[0] is raw) or (found and kind.constant), value
    for value in (1, 1024, True, "text", 1e-5, 0.0, -0.0, float("nan"), None, t.float16, (), of_one, described):
        assert Recogniser(value, constant_kind(value), True).raws(value) == [None]


@blocknb.kernel
def scaled(x, out, n, factor, BLOCK: bl.constexpr, SIGN: bl.constexpr = 1.0):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at, mask=at < n) * factor * SIGN, mask=at < n)


def launched(dtype, n, factor, offset=0, **constants):
    x = np.arange(96, dtype=np.float32).astype(dtype)[offset:]
    out = np.zeros(96, dtype)[offset:]
    scaled[(blocknb.cdiv(n, 32),)](x, out, n, factor, BLOCK=32, **constants)
    expected = np.where(np.arange(96 - offset) < n, x * factor * constants.get("SIGN", 1.0), 0)
    np.testing.assert_array_equal(out, expected.astype(dtype))


def test_launches_with_alternating_kinds_are_correct(request):
    rng = seeds.rng()
    values = (
        (np.float32, np.float64),
        (1, 7, 16, 64),
        (2.0, 3),
        (0, 1),
        ({}, {"SIGN": -1.0}, {"SIGN": 0.0}, {"SIGN": -0.0}),
    )
    calls = list(itertools.product(*values))
    if not (
        full := request.config.getoption("--full")
    ):  # 32 of the 128 kinds, as compiling them takes most of the time
        # Each value comes eight times or more, with values of the other parameters that chance chooses.
        shuffled = [rng.permutation(32) % len(choices) for choices in values]
        calls = [tuple(c[i] for c, i in zip(values, chosen, strict=True)) for chosen in zip(*shuffled, strict=True)]
    for number in rng.integers(0, len(calls), 400 if full else 150):
        dtype, n, factor, offset, constants = calls[number]
        for _ in range(int(rng.integers(1, 4))):
            launched(dtype, n, factor, offset, **constants)


def test_a_repeated_launch_describes_no_argument(monkeypatch):
    for _ in range(3):
        launched(np.float32, 40, 2.0)
    described_types = []
    monkeypatch.setitem(DESCRIBE, np.ndarray, lambda array: described_types.append(array) or describer(array)(array))
    launched(np.float32, 40, 2.0)
    assert not described_types


def test_repeated_launches_use_a_redefined_helper():
    space = {"blocknb": blocknb, "bl": bl}
    monitor = np.zeros(4, np.float32)
    import linecache

    def define(name, text):
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), space)

    define("<helper 1>", "@blocknb.kernel\ndef helper(v):\n    return v + 1\n")
    define(
        "<user>",
        "@blocknb.kernel\ndef k(x):\n    at = bl.arange(0, 4)\n    bl.store(x + at, helper(bl.load(x + at)))\n",
    )
    for _ in range(4):
        space["k"][(1,)](monitor)
    assert (monitor == 4).all()
    define("<helper 2>", "@blocknb.kernel\ndef helper(v):\n    return v + 100\n")
    for _ in range(4):
        space["k"][(1,)](monitor)
    assert (monitor == 404).all()


def test_alternating_plans_generate_one_fast_launch_each(monkeypatch):
    made = []
    monkeypatch.setattr("blocknb.runtime.fast_launch.fast_launch", lambda *a: made.append(a) or fast_launch(*a))
    fresh = blocknb.kernel(scaled.fn)
    for _ in range(10):
        for array in (np.ones(8, np.float32), np.ones(8, np.float64)):
            fresh[(1,)](array, array, 8, 2.0, BLOCK=8)
    assert len(made) == 2
    assert kernels._MAX_PLANS >= len(made)


def test_fast_launches_distinguish_plans_by_identity():
    plan = LaunchPlan(None, (), -1, None)
    assert plan != replace(plan)
