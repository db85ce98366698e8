"""Options of `nn.attention`: masks, windows, ALiBi, soft caps, lengths, fp64, a KV cache, and the interface of Hugging Face."""

from __future__ import annotations

import math
import types
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import torch
from test_nn_layers import LIMITS, _poisoned, compare, random  # noqa: F401
from torch.nn import functional as F
from torch_device import DEVICE

from blocknb.torch import nn

Tensor = torch.Tensor
B, H, SHARED, QUERIES, KEYS, WIDTH = 2, 4, 2, 37, 70, 24


def exact(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None, is_causal: bool = False, window: int | None = None,
    soft_cap: float | None = None, alibi_slopes: Any = None, lengths: Any = None, shift: int = 0, scale: float | None = None,
) -> Tensor:  # fmt: skip
    """Attention with all options in torch's operations; a query that sees no key gets zeros."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    rows = torch.arange(q.shape[2], device=q.device)[:, None] + shift
    columns = torch.arange(k.shape[2], device=q.device)[None]
    visible = torch.ones(len(q), 1, q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(scores)[:, None, None] * (rows - columns).abs()
    if is_causal:
        visible = visible & (columns <= rows)
    if window:
        visible = visible & (columns > rows - window)
    if lengths is not None:
        visible = visible & (columns < lengths[:, None, None, None])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        scores = scores + attn_mask.to(scores)
    scores = scores.masked_fill(~visible, -math.inf)
    seen = visible.any(-1, keepdim=True)
    return torch.where(seen, torch.softmax(torch.where(seen, scores, 0.0), -1), 0.0) @ v


def boolean(*shape: int) -> Tensor:
    found = random(*shape).detach() > -0.5
    found[..., 3, :] = False  # a query that sees no key
    return found


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"is_causal": True, "window": 9},
    "window of a KV cache": {"is_causal": True, "window": 40, "shift": KEYS - QUERIES},
    "soft cap": {"is_causal": True, "soft_cap": 2.0, "scale": 0.7},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]).to(DEVICE)},
    "causal alibi": {"is_causal": True, "alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]).to(DEVICE), "shift": 3},
    "lengths": {"lengths": torch.tensor([5, 66]).to(DEVICE)},
    "lengths of zero": {"lengths": torch.tensor([0, 66], dtype=torch.int32).to(DEVICE), "is_causal": True},
}
MASKS = {"bool": (QUERIES, KEYS), "bool, by batch": (B, 1, QUERIES, KEYS), "bool, keys only": (B, 1, 1, KEYS),
         "additive": (QUERIES, KEYS), "additive, by head": (1, H, QUERIES, KEYS)}  # fmt: skip


def qkv(dtype: Any = torch.float64, queries: int = QUERIES, keys: int = KEYS) -> list[Tensor]:
    shapes = (B, H, queries, WIDTH), (B, SHARED, keys, WIDTH), (B, SHARED, keys, WIDTH)
    return [random(*shape, dtype=dtype) for shape in shapes]


def option(name: str) -> dict[str, Any]:
    if name in OPTIONS:
        return OPTIONS[name]
    shape = MASKS[name]
    if name.startswith("additive"):
        mask = random(*shape).detach()
        mask[..., ::7] = torch.finfo(torch.float32).min  # as Hugging Face hides keys
        return {"attn_mask": mask.float()}
    return {"attn_mask": boolean(*shape) if shape[-2] > 1 else random(*shape).detach() > 0}


QUICK = ("window of a KV cache", "bool, by batch", "causal alibi")
by_name = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in (*OPTIONS, *MASKS)]
)


@by_name
@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(d, marks=pytest.mark.full) for d in (torch.float16, torch.bfloat16))]
)
def test_every_option_matches_float64_with_its_gradients(name: str, dtype: Any) -> None:
    given = option(name)
    ours = lambda q, k, v: nn.attention(q, k, v, enable_gqa=True, **given)  # noqa: E731
    compare(ours, lambda q, k, v: exact(q, k, v, **given), qkv(), dtype, factor=4.0)


def test_masks_give_the_values_of_torch() -> None:
    q, k, v = qkv(torch.float32)
    for mask in (torch.rand(QUERIES, KEYS, device=DEVICE) > 0.3, torch.randn(H, QUERIES, KEYS, device=DEVICE)):
        torch.testing.assert_close(
            nn.attention(q, k, v, mask, enable_gqa=True), F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        )


@pytest.mark.parametrize(
    "given",
    [{}, {"is_causal": True, "window": 2, "soft_cap": 1.5}, {"attn_mask": torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()},
     {"is_causal": True, "alibi_slopes": torch.tensor([0.3, 0.6]), "lengths": torch.tensor([2])}],
    ids=["plain", "window and soft cap", "mask", "alibi and lengths"],
)  # fmt: skip
@pytest.mark.sampled(3)
def test_gradients_pass_gradcheck_in_float64(given: dict[str, Any]) -> None:
    given = {n: v.to(DEVICE) if isinstance(v, Tensor) else v for n, v in given.items()}
    inputs = [random(1, heads, 3, 8) for heads in (2, 1, 1)]
    assert torch.autograd.gradcheck(lambda q, k, v: nn.attention(q, k, v, enable_gqa=True, **given), tuple(inputs))


MORE = {
    "causal": {"is_causal": True, "shift": 2},
    "window and soft cap": {"is_causal": True, "window": 9, "soft_cap": 1.5},
    "alibi and lengths": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.1, 0.0]).to(DEVICE), "lengths": torch.tensor([5, 66]).to(DEVICE)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "more", "dtype"),
    [
        pytest.param((B, H, QUERIES, KEYS), {}, torch.float32, marks=pytest.mark.full),
        ((1, H, QUERIES, KEYS), MORE["window and soft cap"], torch.float64),
        pytest.param((H, QUERIES, KEYS), {}, torch.float32, marks=pytest.mark.full),
        pytest.param((B, 1, QUERIES, KEYS), MORE["causal"], torch.float32, marks=pytest.mark.full),
        ((QUERIES, KEYS), MORE["alibi and lengths"], torch.float64),
        ((B, 1, 1, KEYS), {}, torch.float32),
        pytest.param((H, QUERIES, 1), {}, torch.float64, marks=pytest.mark.full),
        pytest.param((1,), {}, torch.float64, marks=pytest.mark.full),
    ],
    ids=str,
)
def test_a_floating_mask_gets_the_gradient_of_float64(shape: tuple[int, ...], more: Any, dtype: Any) -> None:
    """Also where the mask hides keys, and where the position hides whole tiles."""
    inputs, weights = qkv(), random(B, H, QUERIES, WIDTH).detach()
    mask = random(*shape).detach()
    if shape[-1] == KEYS:
        mask[..., 3::7] = torch.finfo(torch.float32).min  # hidden keys; each query sees others
    mask.requires_grad_()
    wanted = torch.autograd.grad((exact(*inputs, mask, **more) * weights).sum(), (*inputs, mask))
    given = [t.detach().to(dtype).requires_grad_() for t in (*inputs, mask)]
    out = nn.attention(*given[:3], given[3], enable_gqa=True, **more)
    found = torch.autograd.grad((out * weights.to(dtype)).sum(), given)
    limit = 1e-10 if dtype == torch.float64 else 1e-5
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype == dtype
        assert (one.double() - other).norm() <= limit * max(
            other.norm(), 1.0
        )  # a number for all keys of a query changes nothing
    (alone,) = torch.autograd.grad((nn.attention(*(t.detach() for t in given[:3]), given[3], enable_gqa=True, **more)
                                    * weights.to(dtype)).sum(), given[3])  # fmt: skip
    assert torch.equal(alone, found[3])


def test_a_relative_position_bias_trains_in_16_bits_and_compiles() -> None:
    """T5's bias: a table of numbers by distance and head, gathered to (1, heads, queries, keys), against torch's attention.

    Both round differently, and the ratio of their errors varies by a fifth between draws. The sums over eight draws vary little."""
    places = torch.arange(QUERIES, device=DEVICE)[:, None] - torch.arange(QUERIES, device=DEVICE)[None] + QUERIES

    def loss(attend: Any, q: Tensor, k: Tensor, v: Tensor, table: Tensor) -> Tensor:
        bias = table[places].permute(2, 0, 1)[None]
        return attend(q, k, v, bias.to(q.dtype), enable_gqa=True, scale=1.0).float().square().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    squares = torch.zeros(3, dtype=torch.float64)  # of the errors of torch, of ours, and of ours compiled
    for _ in range(8):
        table = random(2 * QUERIES, H, dtype=torch.float32)
        given = [t.detach() for t in qkv(torch.bfloat16, QUERIES, QUERIES)]
        losses = loss(F.scaled_dot_product_attention, *given, table), loss(nn.attention, *given, table)
        found = [torch.autograd.grad(one, table)[0] for one in (*losses, compiled(nn.attention, *given, table))]
        exactly = table.detach().double().requires_grad_()
        bias = exactly[places].permute(2, 0, 1)[None]
        wide = [t.double() for t in given]
        (true,) = torch.autograd.grad(exact(*wide, bias, scale=1.0).square().sum(), exactly)
        squares += torch.stack([(one.double() - true).square().sum() for one in found]).cpu()
    theirs, *ours = squares.sqrt()
    assert all(one <= 2 * theirs for one in ours), squares


def test_empty_batches_queries_and_keys_give_zeros() -> None:
    for shapes in (((0, 2, 3, 8), (0, 2, 4, 8)), ((1, 2, 0, 8), (1, 2, 4, 8)), ((1, 2, 3, 8), (1, 2, 0, 8))):
        for given in ({}, {"is_causal": True, "window": 2}):
            q, k, v = (random(*shapes[i], dtype=torch.float32) for i in (0, 1, 1))
            out = nn.attention(q, k, v, **given)
            assert out.shape == q.shape and not out.any()
            assert not any(g.any() for g in torch.autograd.grad(out.sum(), (q, k, v)))


@torch._dynamo.config.patch(error_on_recompile=False)
def test_compile_traces_one_whole_graph_with_a_mask_for_all_sizes() -> None:
    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return nn.attention(q, k, v, mask, enable_gqa=True) + nn.attention(
            q, k, v, None, 0.0, True, window=3, enable_gqa=True
        )

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend="aot_eager")
    for queries, keys in ((5, 7), (9, 12)):
        torch._dynamo.config.error_on_recompile = queries == 9
        inputs, mask = qkv(torch.float32, queries, keys), torch.rand(queries, keys, device=DEVICE) > 0.2
        found = torch.autograd.grad(compiled(*inputs, mask).sum(), inputs)
        for one, other in zip(found, torch.autograd.grad(run(*inputs, mask).sum(), inputs), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.full
def test_func_grad_and_vmap_work_with_a_mask() -> None:
    q, k, v = (t.detach() for t in qkv(queries=4, keys=5))
    mask = torch.rand(4, 5, device=DEVICE) > 0.2
    ours = lambda q: nn.attention(q, k, v, mask, enable_gqa=True).square().sum()  # noqa: E731
    theirs = lambda q: exact(q, k, v, mask).square().sum()  # noqa: E731
    torch.testing.assert_close(torch.func.grad(ours)(q), torch.func.grad(theirs)(q))
    torch.testing.assert_close(torch.vmap(ours)(torch.stack([q, 2 * q])), torch.stack([theirs(q), theirs(2 * q)]))


def test_gradients_with_options_are_the_same_in_every_run() -> None:
    inputs = qkv(torch.float32)
    first, second = (
        torch.autograd.grad(nn.attention(*inputs, is_causal=True, window=20, enable_gqa=True).sum(), inputs)
        for _ in range(2)
    )
    assert all(map(torch.equal, first, second))


@pytest.mark.full
def test_autocast_casts_as_torchs_attention_does() -> None:
    inputs = qkv(torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        outputs = [nn.attention(*inputs, enable_gqa=True, **given) for given in ({}, {"soft_cap": 50.0})]
    for out in outputs:
        assert out.dtype == torch.bfloat16
        assert {g.dtype for g in torch.autograd.grad(out.sum(), inputs)} == {torch.float32}


def test_the_function_for_hugging_face_takes_its_arguments() -> None:
    q, k, v = qkv(torch.float32, QUERIES, QUERIES)
    module = types.SimpleNamespace(is_causal=True, num_key_value_groups=H // SHARED, training=False)
    mask = torch.rand(B, 1, QUERIES, QUERIES, device=DEVICE) > 0.2
    for given, same in (
        (
            {"attention_mask": None, "sliding_window": 5, "softcap": 3.0},
            {"is_causal": True, "window": 5, "soft_cap": 3.0},
        ),
        ({"attention_mask": mask, "sliding_window": 5}, {"attn_mask": mask}),
        ({"attention_mask": None, "is_causal": False}, {}),
    ):
        out, weights = nn.hugging_face_attention(module, q, k, v, scaling=0.3, position_ids=None, **given)
        assert weights is None and out.shape == (B, QUERIES, H, WIDTH)
        torch.testing.assert_close(out.transpose(1, 2), exact(q, k, v, scale=0.3, **same), rtol=1e-4, atol=1e-5)


def test_wrong_options_are_one_clear_error() -> None:
    q = torch.randn(1, 2, 4, 8, device=DEVICE)
    for given, message in (
        ({"dropout_p": 0.1}, "has no dropout"),
        ({"window": 3}, "pass is_causal=True"),
        (
            {"alibi_slopes": torch.zeros(2, requires_grad=True)},
            "`alibi_slopes` gets no gradient.*the bias as attn_mask",
        ),
        ({"attn_mask": torch.zeros(4, 4).long()}, "`attn_mask` is torch.int64.*attn_mask.bool"),
        (
            {"attn_mask": torch.zeros(3, 4).bool()},
            "`attn_mask` has the shape .3, 4., which does not broadcast to .1, 2, 4, 4.",
        ),
        ({"alibi_slopes": torch.zeros(3)}, "alibi_slopes must be contiguous, float32, of shape .2,."),
        ({"lengths": torch.zeros(2).long()}, "lengths must be 1 contiguous int32 or int64"),
        ({"soft_cap": 0.0}, "soft_cap must be positive"),
        ({"is_causal": True, "window": 0}, "window must be the number of keys"),
    ):
        with pytest.raises(ValueError, match=message):
            nn.attention(q, q, q, **given)


@pytest.mark.parametrize("sliced", [False, True], ids=["dense", "slice of a projection"])
@pytest.mark.parametrize("options", [{}, {"window": 9}], ids=["causal", "window"])
def test_results_and_gradients_have_the_order_of_axes_of_their_inputs(options: dict[str, Any], sliced: bool) -> None:
    """A model that has positions before heads then copies neither the result nor the gradients."""
    given = [random(B, KEYS, 2 * n if sliced else n, WIDTH, dtype=torch.float32) for n in (H, SHARED, SHARED)]
    q, k, v = (x.detach()[:, :, : x.shape[2] // (2 if sliced else 1)].transpose(1, 2).requires_grad_() for x in given)
    compiled = torch.compile(nn.attention, fullgraph=True, backend="aot_eager")
    more = {"is_causal": True, "enable_gqa": True, **options}
    right = exact(q, k, v, is_causal=True, **options)
    for function in (nn.attention, compiled):
        out = function(q, k, v, **more)
        assert out.transpose(1, 2).is_contiguous()
        torch.testing.assert_close(out, right, atol=1e-4, rtol=1e-4)
        found = torch.autograd.grad(out.square().sum(), (q, k, v))
        assert all(g.transpose(1, 2).is_contiguous() for g in found)
        expected = torch.autograd.grad(right.square().sum(), (q, k, v), retain_graph=True)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    contiguous = [x.detach().contiguous() for x in (q, k, v)]
    assert nn.attention(*contiguous, **more).is_contiguous()
