"""Embedding, group norm, LoRA, mixtures of experts, divergences and preference losses by table. The table has gradcheck in float64, low
precision against float64, strides, empty batches, torch.compile, torch.func and autocast. `op.check` checks their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch.library", reason="torch is not installed; `make test-torch` runs this")

import seeds
import torch
import torch._dynamo.testing
from test_nn_layers import LIMITS, _poisoned, compare, random  # noqa: F401
from torch.nn import functional as F
from torch_device import DEVICE

from blocknb.torch import nn

Tensor = torch.Tensor
TARGET = torch.tensor([[3, 0, 6], [-100, 2, 2], [1, 1, 5], [4, -100, -100]]).to(DEVICE)
IDS = torch.tensor([[4, 0, 1], [1, 1, 1]]).to(DEVICE)
OFFS = torch.tensor([2, 2, 5, 9], dtype=torch.int32).to(DEVICE)


class Case(NamedTuple):
    """A layer, torch's operations for it, the shapes of its inputs, what makes inputs of random numbers, and the factor of its limits."""

    ours: Callable[..., Any]
    exact: Callable[..., Any]
    shapes: list[tuple[int, ...]]
    factor: float = 3.0


def grouped(a: Tensor, b: Tensor) -> Tensor:
    ends = [0, *OFFS.tolist()]
    return torch.cat([a[begin:end] @ m for begin, end, m in zip(ends, ends[1:], b, strict=False)])


def route(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The numbers and weights of two experts. The logits decide about the weights only, so rounding changes no number."""
    index = torch.stack([torch.arange(len(logits)) % 4, (torch.arange(len(logits)) * 3 + 1) % 4], 1)
    index[:, 1] = torch.where(index[:, 0] == index[:, 1], (index[:, 1] + 1) % 4, index[:, 1])
    index = index.to(logits.device)
    return index, torch.sigmoid(logits).gather(1, index)


def experts(x: Tensor, gate_up: Tensor, down: Tensor, logits: Tensor, act: str = "silu") -> Tensor:
    index, weights = route(logits)
    found = torch.zeros_like(x)
    for e in range(4):
        token, place = torch.where(index == e)
        gate, up = F.linear(x[token], gate_up[e]).chunk(2, -1)
        found = found.index_add(0, token, F.linear(F.silu(gate) * up, down[e]) * weights[token, place, None])
    return found


def jensen_shannon(x: Tensor, t: Tensor) -> Tensor:
    x, t = x.log_softmax(-1), t.log_softmax(-1)
    m = (0.3 * t.exp() + 0.7 * x.exp()).log()
    return (
        0.3 * F.kl_div(m, t, log_target=True, reduction="sum") + 0.7 * F.kl_div(m, x, log_target=True, reduction="sum")
    ) / len(x)


def answers(x: Tensor, weight: Tensor) -> Tensor:
    chosen = F.log_softmax(x @ weight.t(), -1).gather(-1, TARGET.clamp(min=0)[..., None])[..., 0]
    return torch.where(TARGET == -100, 0.0, chosen).sum(-1)


REFERENCE = torch.tensor([-3.0, -5.0, -4.0, -2.0]).to(DEVICE)


def preferences(x: Tensor, weight: Tensor) -> Tensor:
    good, bad = (answers(x, weight) - REFERENCE.to(x.dtype)).chunk(2)
    return -F.logsigmoid(0.1 * (good - bad)).mean()


CASES = {
    "embedding": Case(lambda w: nn.embedding(IDS, w), lambda w: F.embedding(IDS, w), [(5, 9)]),
    "embedding with padding": Case(
        lambda w: nn.embedding(IDS, w, -4), lambda w: torch.where((IDS == 1)[..., None], w.detach()[IDS], w[IDS]), [(5, 3)]
    ),
    "group_norm": Case(
        lambda x, w, b: nn.group_norm(x, 3, w, b), lambda x, w, b: F.group_norm(x, 3, w, b), [(2, 6, 3, 2), (6,), (6,)]
    ),
    "group_norm without weights": Case(lambda x: nn.group_norm(x, 2), lambda x: F.group_norm(x, 2), [(3, 8)]),
    "lora_linear": Case(
        lambda x, w, a, b, c: nn.lora_linear(x, w, a, b, 0.7, c),
        lambda x, w, a, b, c: F.linear(x, w, c) + 0.7 * F.linear(F.linear(x, a), b),
        [(2, 3, 9), (5, 9), (2, 9), (5, 2), (5,)],
    ),
    "grouped_mm": Case(lambda a, b: nn.grouped_mm(a, b, OFFS), grouped, [(9, 7), (4, 7, 5)]),
    "experts_mlp": Case(
        lambda x, g, d, w: nn.experts_mlp(x, g, d, *route(w)), experts, [(3, 4), (4, 6, 4), (4, 4, 3), (3, 4)], 12.0
    ),
    "kl_div": Case(
        lambda x, t: nn.kl_div(x, t.softmax(-1), "batchmean"), lambda x, t: F.kl_div(x, t.softmax(-1), reduction="batchmean"),
        [(4, 9), (4, 9)], 12.0,
    ),
    "kl_div of logarithms": Case(
        lambda x, t: nn.kl_div(x, t, "none", True), lambda x, t: F.kl_div(x, t, reduction="none", log_target=True), [(2, 5), (2, 5)]
    ),
    "jsd": Case(lambda x, t: nn.jsd(x.log_softmax(-1), t.log_softmax(-1), 0.3), jensen_shannon, [(3, 5), (3, 5)], 20.0),
    "linear_logps": Case(lambda x, w: nn.linear_logps(x, w, TARGET), answers, [(4, 3, 4), (7, 4)], 5.0),
    "linear_dpo_loss": Case(
        lambda x, w: nn.dpo_loss(*nn.linear_logps(x, w, TARGET).chunk(2), *REFERENCE.to(w.dtype).chunk(2))[0].mean(), preferences,
        [(4, 3, 4), (7, 4)], 8.0,
    ),
}  # fmt: skip
by_case = pytest.mark.parametrize("case", list(CASES.values()), ids=list(CASES))


def inputs(case: Case, dtype: Any = torch.float64) -> list[Tensor]:
    return [random(*shape, dtype=dtype) for shape in case.shapes]


@pytest.mark.sampled(2)
@by_case
def test_gradients_pass_gradcheck_in_float64_and_values_are_exact(case: Case) -> None:
    given = inputs(case)
    torch.testing.assert_close(case.ours(*given), case.exact(*given), rtol=1e-12, atol=1e-12)
    if case.exact is not CASES["embedding with padding"].exact:  # numerical differences see the row of the padding
        assert torch.autograd.gradcheck(case.ours, tuple(given))


@by_case
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, *(pytest.param(d, marks=pytest.mark.full) for d in (torch.float32, torch.float16))]
)
def test_values_and_gradients_match_float64(case: Case, dtype: Any) -> None:
    compare(case.ours, case.exact, inputs(case), dtype, factor=case.factor)


@pytest.mark.sampled(2)
@by_case
def test_compile_traces_a_whole_graph_and_strided_inputs_give_the_same(case: Case) -> None:
    strided = [random(*reversed(shape), dtype=torch.float32).detach().permute(*reversed(range(len(shape)))).requires_grad_()
               for shape in case.shapes]  # fmt: skip
    compare(
        torch.compile(case.ours, fullgraph=True, backend="aot_eager"),
        case.exact,
        strided,
        torch.float32,
        factor=case.factor,
    )


@pytest.mark.sampled(3)
@by_case
def test_func_grad_gives_the_gradient_of_the_first_input(case: Case) -> None:
    given = [t.detach() for t in inputs(case)]
    found, exact = (
        torch.func.grad(lambda first, f=f: f(first, *given[1:]).square().sum())(given[0])
        for f in (case.ours, case.exact)
    )
    torch.testing.assert_close(found, exact)


def test_the_results_are_the_same_in_every_run() -> None:
    ids = torch.randint(0, 3, (2000,), device=DEVICE)
    weight, dout = random(3, 40, dtype=torch.bfloat16), torch.randn(2000, 40, device=DEVICE).bfloat16()
    first, *others = [torch.autograd.grad(nn.embedding(ids, weight), weight, dout)[0] for _ in range(3)]
    exact = torch.zeros(3, 40, dtype=torch.float64, device=DEVICE).index_add_(0, ids, dout.double())
    assert (first - exact).abs().max() < 5e-3 * exact.abs().max()  # 667 terms per sum, rounded once
    assert all(torch.equal(first, other) for other in others)


def test_empty_batches_give_empty_results_and_gradients_of_zero() -> None:
    weight, x = random(5, 4), random(0, 4)
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    moe = nn.MoE(4, 3, 4, 2, dtype=torch.float64, device=DEVICE)
    for found, parameter in (
        (nn.embedding(none, weight), weight),
        (nn.lora_linear(x, weight, random(2, 4), random(5, 2)), weight),
        (nn.grouped_mm(x, b := random(4, 4, 5), OFFS * 0), b),
        (moe(x), moe.experts.down_proj),
        (nn.group_norm(random(0, 4, 3), 2, w := random(4)), w),
        (nn.kl_div(x, x.detach(), "sum"), x),
    ):
        assert found.numel() == 0 or found == 0
        (gradient,) = torch.autograd.grad(found.sum(), parameter)
        assert gradient.shape == parameter.shape and not gradient.any()


def test_numbers_outside_of_the_table_are_an_error_and_int32_works() -> None:
    weight = random(5, 4)
    torch.testing.assert_close(nn.embedding(IDS.int(), weight), weight[IDS])
    if DEVICE == "cpu":
        for wrong in (5, -1):
            with pytest.raises(IndexError, match="outside of the table's 0 to 4"):
                nn.embedding(torch.tensor([wrong]), weight)


def test_a_term_with_a_probability_of_zero_is_zero_and_not_nan() -> None:
    x = torch.tensor([[-float("inf"), 0.0], [-1.0, -2.0]], device=DEVICE, requires_grad=True)
    target = torch.tensor([[0.0, 1.0], [1.0, 0.0]], device=DEVICE)
    for loss in (nn.kl_div(x, target, "sum"), nn.kl_div(x, target.log(), "sum", True), nn.jsd(x, target.log())):
        assert loss.isfinite()
        assert torch.autograd.grad(loss, x)[0].isfinite().all()


def test_group_norm_of_a_large_mean_keeps_its_digits() -> None:
    mean = 3000.0
    x = (random(128, 4, 300, dtype=torch.float32) + mean).detach()
    deviation = x.double().reshape(128, 2, 600).std(-1, correction=0, keepdim=True)
    off = (nn.group_norm(x, 2).double() - F.group_norm(x.double(), 2)).reshape(128, 2, 600) * deviation
    # x - mean is exact (Sterbenz), and its result is divided by the standard deviation, so `off` is the error of the mean in fp32. The
    # kernel adds the mean of x - mean, whose own error is far below an ulp. So the mean of a channel has 1 rounding, and is as exact as
    # fp32 can be. The mean of two channels has another one, of their sum. Each is at most 2**-13, half an ulp of numbers from 2048 to 4096.
    # z itself is at most 6: its own roundings are at most 6 * 2**-24 each, and two hundredths cover several.
    half_ulp = 2**-13
    assert off.abs().max() < 2.02 * half_ulp
    # In units of half_ulp**2, the rounding of a channel has a variance of 1/3, and the mean of two channels 1/6. Their sum is a multiple of
    # 2**-12, so its rounding to multiples of 2**-11 is 0 or a tie. That is a variance of 1/2, and the whole has 2/3. The square of the
    # whole has a standard deviation of 0.79 (its fourth moment is 1.07). The mean of 256 groups has a 16th of it. The bound adds five of
    # these.
    assert off.square().mean() < (2 / 3 + 5 * 0.79 / 16) * half_ulp**2


def test_group_norm_of_equal_elements_has_no_negative_variance() -> None:
    for value in (0.1, 3000.1, 1e10, -7e18):
        x = torch.full((2, 4, 333), value)
        for eps in (1e-5, 1e-30):
            assert nn.group_norm(x, 2, eps=eps).isfinite().all(), (value, eps)


def test_modules_have_the_state_and_the_values_of_torchs() -> None:
    x = random(3, 6, 5, dtype=torch.float32)
    for one, other, given in (
        (torch.nn.Embedding(9, 4, padding_idx=2), nn.Embedding(9, 4, padding_idx=2), IDS),
        (torch.nn.GroupNorm(3, 6), nn.GroupNorm(3, 6), x),
        (torch.nn.GroupNorm(2, 6, affine=False), nn.GroupNorm(2, 6, affine=False), x),
    ):
        for parameter in one.parameters():
            torch.nn.init.normal_(parameter)
        other.load_state_dict(one.state_dict(), strict=True)
        assert list(one.state_dict()) == list(other.state_dict())
        torch.testing.assert_close(other.to(DEVICE)(given), one.to(DEVICE)(given))
    assert not nn.Embedding(4, 3, padding_idx=-1).weight[3].any()
    log, p = x.log_softmax(-1), x.softmax(-1)
    torch.testing.assert_close(nn.KLDivLoss("batchmean")(log, p), torch.nn.KLDivLoss(reduction="batchmean")(log, p))
    torch.testing.assert_close(
        nn.JSDLoss(0.0)(log, log.flip(0)), F.kl_div(log, log.flip(0), log_target=True, reduction="batchmean")
    )


def test_lora_has_the_names_of_peft_trains_the_adapter_only_and_merges() -> None:
    base = torch.nn.Linear(6, 5).to(DEVICE)
    layer, x = nn.LoRALinear(base, r=2, lora_alpha=6), random(4, 6, dtype=torch.float32)
    names = ["base_layer.weight", "base_layer.bias", "lora_A.default.weight", "lora_B.default.weight"]
    assert list(layer.state_dict()) == names and layer.scaling == {"default": 3.0}
    torch.testing.assert_close(layer(x), base(x))  # B begins as zero
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    torch.testing.assert_close(layer.merged()(x), layer(x))
    layer(x).sum().backward()
    assert [n for n, p in layer.named_parameters() if p.grad is not None] == names[2:]
    with torch.autocast(DEVICE, torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=3e-2, atol=3e-2)


def test_a_layer_of_16_bits_with_an_adapter_of_fp32_works_and_keeps_the_dtypes_of_gradients() -> None:
    layer = nn.LoRALinear(torch.nn.Linear(6, 5, dtype=torch.bfloat16, device=DEVICE), r=2, dtype=torch.float32)
    y = layer(x := random(4, 6, dtype=torch.bfloat16))
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, layer.lora_B["default"].weight.grad.dtype) == (
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_experts_take_autocast_and_unused_experts_get_gradients_of_zero(dtype: Any) -> None:
    moe, x = nn.MoE(8, 6, 16, 2, device=DEVICE, dtype=dtype), random(3, 1, 8, dtype=dtype)
    with torch.autocast(DEVICE, torch.bfloat16):
        y = moe(x)
        used = moe.gate(x.detach().view(-1, 8))[
            2
        ].unique()  # with the same rounding, which decides between equal logits
    assert y.dtype == torch.bfloat16 and y.shape == x.shape
    y.float().sum().backward()
    has = moe.experts.down_proj.grad.flatten(1).any(1).nonzero()[:, 0]
    assert torch.equal(has, used) and moe.gate.weight.grad.any()
    assert not moe.experts.gate_up_proj.grad.isnan().any()


@pytest.mark.parametrize("make", [lambda: nn.Embedding(9, 8), lambda: nn.GroupNorm(3, 9), lambda: nn.MoE(9, 4, 4, 2)],
                         ids=["Embedding", "GroupNorm", "MoE"])  # fmt: skip
def test_many_instances_of_a_module_share_one_compilation(make: Callable[[], Any]) -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

    def run(module: Any, x: Tensor) -> Tensor:
        return module(x)

    compiled = torch.compile(run, fullgraph=True, backend=counter)
    for layer in [make().to(DEVICE) for _ in range(3)]:
        compiled(layer, IDS if isinstance(layer, nn.Embedding) else torch.ones(3, 9, device=DEVICE))
    assert counter.frame_count == 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["embedding", "embedding_backward", "group_norm", "lora_linear", "grouped_mm", "gather", "combine",
                                  "divergence", "divergence_backward", "masked_attention"])  # fmt: skip
def test_operators_pass_their_own_check(name: str) -> None:
    from blocknb.torch.nn import divergences, embeddings, group_norms, lora, mixture
    from blocknb.torch.nn.attention import _masked_attention

    ids, f64 = IDS.flatten(), torch.float64
    x = random(6, 4)
    heads = [random(1, 2, 5, 8) for _ in range(3)]
    places = torch.tensor([[3, 1], [0, 2], [5, 4]], device=DEVICE)
    op, *args = {
        "embedding": (embeddings._embedding, random(5, 4), ids, -1),
        "embedding_backward": (embeddings._embedding_backward, x, ids, 5, 1),
        "group_norm": (group_norms._group_norm, random(2, 4, 3), random(4), random(4), 2, 1e-5, f64),
        "lora_linear": (lora._lora_linear, x, random(5, 4), random(5), random(2, 4), random(5, 2), 0.5),
        "grouped_mm": (mixture._grouped_mm, random(9, 4), random(4, 4, 3), OFFS, True, False),
        "gather": (mixture._gather, random(3, 4), torch.tensor([1, 0, 1, 0, 2, 2], device=DEVICE), places),
        "combine": (mixture._combine, x, random(3, 2), places, places.flatten()),
        "divergence": (divergences._divergence, x, random(6, 4), "jsd", 0.3, True, f64),
        "divergence_backward": (divergences._divergence_backward, x.detach(), x.detach(), x[:, 0].detach(), "jsd", 0.3, True, True, True),
        "masked_attention": (_masked_attention, *heads, None, None, None, True, None, 0, 2, 3.0, False),
    }[name]  # fmt: skip
    op.check(*args).raise_failures()


def test_wrong_inputs_are_one_clear_error() -> None:
    x, w = torch.randn(2, 6), torch.randn(5, 6)
    for call, message in (
        (lambda: nn.embedding(x, w), "`input` is torch.float32.*input.long"),
        (lambda: nn.embedding(x.long(), w, 7), "padding_idx is 7, but the table has 5 rows"),
        (lambda: nn.Embedding(5, 4, max_norm=1.0), "has no max_norm: use torch.nn.Embedding"),
        (lambda: nn.Embedding(5, 4, sparse=True), "has no sparse"),
        (lambda: nn.group_norm(x, 4), "must be a multiple of 4 groups"),
        (lambda: nn.group_norm(x, 3, torch.ones(5)), "`weight` has the shape .5,., but `x` has 6 channels"),
        (lambda: nn.GroupNorm(4, 6), "not a multiple of num_groups, 4"),
        (lambda: nn.lora_linear(x, w, w, w), "takes x .* lora_A .R, K."),
        (
            lambda: nn.lora_linear(x, w.half(), torch.ones(2, 6), torch.ones(5, 2)),
            "`x` is torch.float32, and `weight` is torch.float16",
        ),
        (lambda: nn.LoRALinear(torch.nn.Linear(2, 2), lora_dropout=0.1), "has no dropout"),
        (lambda: nn.grouped_mm(x, w[None], OFFS), "takes a .M, K., b .G, K, N. and offs"),
        (lambda: nn.grouped_mm(x, w.t()[None], torch.tensor([2])), "pass offs.int"),
        (lambda: nn.grouped_mm(x, w.t()[None].half(), torch.tensor([2]).int()), "`b` is torch.float16"),
        (lambda: nn.MoE(6, 4, 2, 1, "relu"), "one of silu"),
        (lambda: nn.kl_div(x, x, "max"), "one of mean, batchmean, sum, none"),
        (lambda: nn.kl_div(x, x.half()), "`target` is torch.float16"),
        (lambda: nn.jsd(x, x, 1.5), "from 0 to 1"),
        (lambda: nn.dpo_loss(x, x, x, x, loss_type="kto"), "one of sigmoid, hinge, ipo"),
        (lambda: nn.dpo_loss(x, x, x, x, label_smoothing=0.1, loss_type="ipo"), 'needs loss_type="sigmoid"'),
        (lambda: nn.linear_dpo_loss(x[:1, None], w, torch.ones(1, 1).long()), "in pairs"),
        (lambda: nn.linear_logps(x, w, torch.ones(2).long()), "takes x .B, T, H."),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(("m", "count"), [(1, 5), (63, 9), (700, 128256), (130, 1 << 28)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_numbers_are_sorted_stably_by_their_ranks(m: int, count: int, dtype: Any) -> None:
    from blocknb.kernels import embedding

    ids = torch.from_numpy(seeds.rng().integers(-2, count + 2, m)).to(DEVICE, dtype)
    ordered, order = embedding.sorted_numbers(
        ids, torch.empty_like(ids), torch.empty_like(ids, dtype=torch.int64), count
    )
    right = ids.clamp(-1, count).sort(stable=True)[1]  # numbers outside of the table are equal
    assert torch.equal(order, right) and torch.equal(ordered, ids[right])
    with pytest.raises(ValueError, match="order int64"):
        embedding.sorted_numbers(ids, ordered, order.int(), count)
