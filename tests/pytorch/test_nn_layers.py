"""Layers of `blocknb.torch.nn`: gradcheck in float64, comparison with float64 on ragged sizes, torch.compile, autocast, wrong inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import seeds
import torch
from torch.nn import functional as F
from torch_device import DEVICE

from blocknb import kernels
from blocknb.torch import nn

Tensor = torch.Tensor
#: Largest errors relative to the largest value of the exact result.
LIMITS = {torch.float32: 2e-6, torch.float16: 1.2e-3, torch.bfloat16: 9e-3}


def random(*shape: int, dtype: Any = torch.float64) -> Tensor:
    return torch.from_numpy(seeds.rng().standard_normal(shape)).to(DEVICE, dtype).requires_grad_()


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.empty` and its relatives return NaN, so that an element that no kernel stores is found."""
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def llama(x: Tensor, weight: Tensor) -> Tensor:
    """Hugging Face's LlamaRMSNorm, with the rounding of x's dtype."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def gemma(x: Tensor, weight: Tensor) -> Tensor:
    return (F.rms_norm(x, x.shape[-1:], None, 1e-6) * (1 + weight)).to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-b, a), -1) * sin[:, None]


def angles(positions: int, width: int, dtype: Any) -> tuple[Tensor, Tensor]:
    at = torch.from_numpy(seeds.rng().uniform(0, 6, (1, positions, width // 2)))
    at = torch.cat((at, at), -1)
    return at.cos().to(DEVICE, dtype), at.sin().to(DEVICE, dtype)


def classes(m: int, n: int) -> Tensor:
    found = torch.from_numpy(seeds.rng().integers(0, n, m))
    found[m // 2] = -100
    if m == 1:
        found[0] = n - 1
    return found.to(DEVICE)


#: (name, the layer, torch's functions for it, the shapes of the inputs for M rows of N).
ROWS: list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[int, int], list[tuple[int, ...]]]]] = [
    ("rms_norm", lambda x, w: nn.rms_norm(x, w, 1e-6), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), lambda m, n: [(m, n), (n,)]),
    ("rms_norm without weight", lambda x: nn.rms_norm(x, None, 1e-6), lambda x: F.rms_norm(x, x.shape[-1:], None, 1e-6),
     lambda m, n: [(m, n)]),
    ("llama", lambda x, w: nn.rms_norm(x, w, 1e-6, casting="llama"), llama, lambda m, n: [(m, n), (n,)]),
    ("gemma", lambda x, w: nn.rms_norm(x, w, 1e-6, casting="gemma"), gemma, lambda m, n: [(m, n), (n,)]),
    ("add_rms_norm", lambda x, r, w: nn.add_rms_norm(x, r, w, 1e-6),
     lambda x, r, w: (F.rms_norm(x + r, w.shape, w, 1e-6), x + r), lambda m, n: [(m, n), (m, n), (n,)]),
    ("layer_norm", nn.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b), lambda m, n: [(m, n), (n,), (n,)]),
    ("layer_norm without bias", nn.layer_norm, lambda x, w: F.layer_norm(x, w.shape, w), lambda m, n: [(m, n), (n,)]),
    ("swiglu", nn.swiglu, lambda g, u: F.silu(g) * u, lambda m, n: [(m, n), (m, n)]),
    ("geglu", nn.geglu, lambda g, u: F.gelu(g) * u, lambda m, n: [(m, n), (m, n)]),
    ("geglu, tanh", lambda g, u: nn.geglu(g, u, "tanh"), lambda g, u: F.gelu(g, approximate="tanh") * u, lambda m, n: [(m, n), (m, n)]),
]  # fmt: skip
by_name = pytest.mark.parametrize(("ours", "exact", "shapes"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS])


def results(function: Callable[..., Any], inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
    """The outputs and the gradients of the inputs, for gradients of the outputs."""
    found = function(*inputs)
    outputs = list(found) if isinstance(found, tuple) else [found]
    total = sum((o * w.to(o.dtype)).sum() for o, w in zip(outputs, weights, strict=False))
    return [*outputs, *torch.autograd.grad(total, [i for i in inputs if i.requires_grad])]


def compare(
    ours: Callable[..., Any], exact: Callable[..., Any], inputs: list[Tensor], dtype: Any, factor: float = 1.0
) -> None:
    """Compares outputs and gradients in a dtype with those in float64 of the same rounded inputs."""
    low = [i.detach().to(dtype).requires_grad_(i.requires_grad) if i.is_floating_point() else i for i in inputs]
    wide = [i.detach().double().requires_grad_(i.requires_grad) if i.is_floating_point() else i for i in low]
    with torch.no_grad():
        one = exact(*wide)
    weights = [torch.randn_like(o) for o in (one if isinstance(one, tuple) else (one,))]
    weights = [w.to(dtype) for w in weights]
    for i, (found, right) in enumerate(zip(results(ours, low, weights), results(exact, wide, weights), strict=True)):
        assert found.shape == right.shape
        scale = right.abs().max().item()
        off = (found.double() - right).abs().max().item()
        assert off <= factor * LIMITS[dtype] * scale + 1e-30, f"value {i}: {off / scale:.2g} of its largest element"


@by_name
def test_gradients_pass_gradcheck_in_float64(ours: Any, exact: Any, shapes: Any) -> None:
    inputs = tuple(random(*shape) for shape in shapes(3, 5))
    assert torch.autograd.gradcheck(ours, inputs)


@pytest.mark.sampled(2, each=["ours", "exact", "dtype"])
@by_name
@pytest.mark.parametrize(
    "dtype", [pytest.param(d, marks=[pytest.mark.full] * (d == torch.float16)) for d in LIMITS], ids=str
)
def test_values_and_gradients_match_float64(ours: Any, exact: Any, shapes: Any, dtype: Any) -> None:
    for m, n in ((1, 8), (5, 33), (3, 1000)):  # rows of one element have gradients of 0, a difference of equal terms
        compare(ours, exact, [random(*shape) for shape in shapes(m, n)], dtype, factor=2.0)


@by_name
def test_strided_inputs_of_more_axes_give_the_same(ours: Any, exact: Any, shapes: Any) -> None:
    def strided(*shape: int) -> Tensor:
        if len(shape) == 1:
            return random(*shape, dtype=torch.float32)
        m, n = shape
        return random(n + 1, 2, m, dtype=torch.float32).detach()[:n].permute(1, 2, 0).requires_grad_()

    compare(ours, exact, [strided(*shape) for shape in shapes(3, 7)], torch.float32, factor=2.0)


@by_name
def test_compile_traces_a_whole_graph_forward_and_backward(ours: Any, exact: Any, shapes: Any) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    compare(compiled, exact, [random(*shape) for shape in shapes(3, 33)], torch.float32, factor=2.0)


@pytest.mark.sampled(2, each=["dtype", "axis"])
@pytest.mark.parametrize("dtype", [torch.float64, *LIMITS], ids=str)
@pytest.mark.parametrize("axis", [1, 2])
def test_rotary_embedding_matches_float64(dtype: Any, axis: int) -> None:
    cos, sin = angles(5, 14, dtype)
    shapes = [(2, 3, 5, 14), (2, 1, 5, 14)] if axis == 1 else [(2, 5, 3, 14), (2, 5, 1, 14)]
    inputs = [random(*shape) for shape in shapes]

    def ours(q: Tensor, k: Tensor) -> Any:
        return nn.rotary_embedding(q, k, cos, sin, axis)

    def exact(q: Tensor, k: Tensor) -> Any:
        if axis == 1:
            return rotated(q, cos.double(), sin.double()), rotated(k, cos.double(), sin.double())
        return tuple(rotated(x.transpose(1, 2), cos.double(), sin.double()).transpose(1, 2) for x in (q, k))

    if dtype == torch.float64:
        assert torch.autograd.gradcheck(ours, inputs)
    else:
        compare(ours, exact, inputs, dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_rotary_embedding_takes_queries_and_keys_of_other_batches(compiled: bool) -> None:
    torch._dynamo.reset()
    cos, sin = angles(5, 8, torch.float32)
    function = (
        torch.compile(nn.rotary_embedding, backend="aot_eager", fullgraph=True) if compiled else nn.rotary_embedding
    )
    compare(
        lambda q, k: function(q, k, cos, sin),
        lambda q, k: (rotated(q, cos.double(), sin.double()), rotated(k, cos.double(), sin.double())),
        [random(2, 3, 5, 8), random(1, 1, 5, 8)],
        torch.float32,
    )


@pytest.mark.parametrize(
    ("heads", "causal"),
    [
        (1, True),
        (2, False),
        (4, True),
        *(pytest.param(*c, marks=pytest.mark.full) for c in ((1, False), (2, True), (4, False))),
    ],
)
def test_attention_with_grouped_heads_matches_float64(heads: int, causal: bool) -> None:
    inputs = [random(2, 4, 37, 24), random(2, heads, 37, 24), random(2, heads, 37, 24)]
    options = {"is_causal": causal, "enable_gqa": True}
    ours = lambda q, k, v: nn.attention(q, k, v, **options)  # noqa: E731
    exact = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)  # noqa: E731
    for dtype in LIMITS:
        compare(ours, exact, inputs, dtype, factor=3.0)


def test_attention_follows_the_setting_of_torch_for_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name in ("attention", "attention_backward"):
        inherited = getattr(kernels, name)
        note = lambda *a, inherited=inherited, **k: asked.append(k["input_precision"]) or inherited(*a, **k)  # noqa: E731
        monkeypatch.setattr(kernels, name, note)
    q, k, v = (random(1, 2, 17, 16, dtype=torch.float32) for _ in range(3))
    before = torch.get_float32_matmul_precision()
    torch._dynamo.reset()
    compiled = torch.compile(nn.attention, backend="aot_eager", fullgraph=True)
    try:
        for function in (nn.attention, compiled):
            for setting in ("highest", "high", "highest"):
                torch.set_float32_matmul_precision(setting)
                out = function(q, k, v)
                torch.set_float32_matmul_precision("highest")  # the gradient has the precision of the forward pass
                out.sum().backward()
    finally:
        torch.set_float32_matmul_precision(before)
    assert asked == 2 * ["ieee", "ieee", "tf32", "tf32", "ieee", "ieee"]


def test_modules_have_the_state_and_the_values_of_torchs() -> None:
    x = random(4, 12, dtype=torch.float32)
    for one, other in (
        (torch.nn.RMSNorm(12, eps=1e-5), nn.RMSNorm(12, eps=1e-5)),
        (torch.nn.RMSNorm(12), nn.RMSNorm((12,))),
        (torch.nn.LayerNorm(12), nn.LayerNorm(12)),
        (torch.nn.LayerNorm(12, bias=False), nn.LayerNorm(12, bias=False)),
    ):
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter)
        other.load_state_dict(one.state_dict(), strict=True)
        torch.testing.assert_close(other(x), one(x))
        assert list(one.state_dict()) == list(other.state_dict())
        assert other(x.bfloat16()).dtype == torch.bfloat16
    add = nn.AddRMSNorm(12)
    y, added = add(x, 2 * x)
    torch.testing.assert_close(added, 3 * x)
    torch.testing.assert_close(y, F.rms_norm(3 * x, (12,)))


def test_norms_take_low_precision_inputs_with_fp32_weights_and_give_torchs_dtypes() -> None:
    x, weight = random(4, 12, dtype=torch.bfloat16), random(12, dtype=torch.float32)
    assert nn.rms_norm(x, weight).dtype == F.rms_norm(x.float(), (12,), weight).to(x.dtype).dtype == torch.bfloat16
    assert nn.rms_norm(x, weight, casting="gemma").dtype == torch.bfloat16
    assert nn.rms_norm(x, weight, casting="llama").dtype == llama(x, weight).dtype == torch.float32
    for casting in ("torch", "llama", "gemma"):
        dx, dweight = torch.autograd.grad(nn.rms_norm(x, weight, 1e-6, casting=casting).sum(), (x, weight))
        assert (dx.dtype, dweight.dtype) == (torch.bfloat16, torch.float32)
        # A weight's gradient is never left out. It is a sum of 4 terms, each of at most sqrt(12), which llama rounds to bf16.
        exact = F.rms_norm(x.double(), (12,), None, 1e-6).sum(0)
        assert (dweight - exact).abs().max() <= 4 * 2**-9 * 12**0.5


def test_llamas_rounding_is_bit_for_bit_that_of_hugging_face() -> None:
    x, weight = random(40, 64, dtype=torch.bfloat16), random(64, dtype=torch.bfloat16)
    same = (nn.rms_norm(x, weight, 1e-6, casting="llama") == llama(x, weight)).double().mean()
    other = (nn.rms_norm(x, weight, 1e-6, casting="torch") == llama(x, weight)).double().mean()
    assert same > 0.995 > other


def test_layers_are_deterministic() -> None:
    x, weight, bias = random(300, 65), random(65), random(65)
    low = [i.detach().bfloat16().requires_grad_() for i in (x, weight, bias)]
    first = torch.autograd.grad(nn.layer_norm(*low).sum(), low)
    for _ in range(3):
        assert all(map(torch.equal, first, torch.autograd.grad(nn.layer_norm(*low).sum(), low)))


def test_many_instances_of_a_layer_share_one_compilation() -> None:
    torch._dynamo.reset()
    layers = torch.nn.ModuleList([nn.RMSNorm(8) for _ in range(6)])
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    for layer in layers:
        torch.compile(nn.rms_norm, fullgraph=True, backend=counter)(torch.randn(3, 8), layer.weight)
    assert counter.frame_count == 1


def test_a_compiled_layer_norm_has_the_bits_of_the_eager_one() -> None:
    x, weight, bias = (random(*shape, dtype=torch.bfloat16) for shape in ((33, 65), (65,), (65,)))
    compiled = torch.compile(nn.layer_norm, fullgraph=True, backend="aot_eager")
    for found, right in zip(
        results(compiled, [x, weight, bias], [x]), results(nn.layer_norm, [x, weight, bias], [x]), strict=True
    ):
        assert torch.equal(found, right)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_gated_mlp_in_training_keeps_two_of_its_three_wide_tensors(act: str, bias: bool) -> None:
    functions = {"silu": F.silu, "gelu": F.gelu, "gelu_pytorch_tanh": lambda g: F.gelu(g, approximate="tanh")}
    module = nn.GatedMLP(12, 40, act, bias=bias, device=DEVICE)
    x = random(2, 5, 12, dtype=torch.float32)
    wanted = [x, *module.parameters()]
    exact = module.down_proj(functions[act](module.gate_proj(x)) * module.up_proj(x))
    right = torch.autograd.grad(exact.square().sum(), wanted)
    for function in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        kept: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            found = function(x)
        assert len({t.data_ptr() for t in kept if t.numel() == 2 * 5 * 40}) == 2
        torch.testing.assert_close(torch.autograd.grad(found.square().sum(), wanted), right, atol=1e-4, rtol=1e-4)


def test_a_gated_mlp_with_a_frozen_or_hooked_last_layer_or_in_a_transform_gets_the_same_gradients() -> None:
    module, x = nn.GatedMLP(12, 40, device=DEVICE), random(5, 12, dtype=torch.float32)
    (right,) = torch.autograd.grad(module(x).square().sum(), x)
    found = torch.func.grad(lambda x: module(x).square().sum())(x.detach())
    torch.testing.assert_close(found.detach(), right)
    calls: list[Any] = []
    hook = module.down_proj.register_forward_hook(lambda *args: calls.append(args))
    torch.testing.assert_close(torch.autograd.grad(module(x).square().sum(), x)[0], right)
    assert len(calls) == 1
    hook.remove()
    module.down_proj.weight.requires_grad_(False)
    torch.testing.assert_close(torch.autograd.grad(module(x).square().sum(), x)[0], right)


def test_vmap_and_func_grad_work_through_a_layer() -> None:
    x, weight = random(3, 4, 6).detach(), random(6).detach()
    torch.testing.assert_close(torch.vmap(lambda x: nn.rms_norm(x, weight, 1e-6))(x), F.rms_norm(x, (6,), weight, 1e-6))
    one, other = (
        torch.func.grad(lambda w, f=f: f(w).pow(3).sum())(weight)
        for f in (lambda w: nn.rms_norm(x, w, 1e-6), lambda w: F.rms_norm(x, (6,), w, 1e-6))
    )
    torch.testing.assert_close(one, other)


def test_wrong_inputs_are_one_clear_error() -> None:
    x = torch.randn(2, 6)
    for call, message in (
        (lambda: nn.rms_norm(x, torch.ones(5)), "`weight` has the shape .5,., but the last axis of `x` has 6"),
        (lambda: nn.rms_norm(x.long()), "`x` is torch.int64"),
        (lambda: nn.rms_norm(x, casting="t5"), "one of torch, llama, gemma"),
        (lambda: nn.add_rms_norm(x, x.bfloat16()), "both need one shape and one dtype"),
        (lambda: nn.layer_norm(x, None, torch.ones(2, 6)), "`bias` has the shape"),
        (lambda: nn.LayerNorm((2, 6)), "one size, not .2, 6."),
        (lambda: nn.swiglu(x, x.bfloat16()), "`up` is torch.bfloat16, and `gate` is torch.float32"),
        (lambda: nn.geglu(x, x[:1]), "`up` has the shape"),
        (lambda: nn.geglu(x, x, "fast"), "'none' or 'tanh'"),
        (lambda: nn.GatedMLP(4, 4, "relu"), "one of silu"),
        (lambda: nn.rotary_embedding(x, x, x, x), "needs four axes"),
        (lambda: nn.attention(x, x, x), "must have the shape .batch, heads, rows, head."),
        (lambda: nn.attention(torch.randn(1, 4, 8, 8), *[torch.randn(1, 2, 8, 8)] * 2), "pass enable_gqa=True"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
