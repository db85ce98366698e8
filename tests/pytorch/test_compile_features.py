"""Features of torch.compile with `backend="blocknb"`: dtypes, shapes, options, modes, randomness, mutation, and more."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import blocknb.torch


def compiled(function, **options):
    return torch.compile(function, backend=blocknb.torch.backend, **options)


def same(function, *values, rtol=1e-5, atol=1e-5, **options):
    torch.testing.assert_close(compiled(function, **options)(*values), function(*values), rtol=rtol, atol=atol)


X = torch.randn(13, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_agrees_with_eager(dtype):
    same(lambda x: (x * 2).gelu() if hasattr(x, "gelu") else F.gelu(x * 2), X.to(dtype), rtol=2e-2, atol=2e-2)


def test_float64_agrees_with_eager_to_1e_12():
    same(lambda x: x.exp().sum(-1), X.double(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_integers_agree_with_eager(dtype):
    same(lambda x: (x * 3 + 1).clamp(0, 50) // 2, (X * 10).to(dtype))


def test_booleans_agree_with_eager():
    same(lambda x: (x > 0) ^ (x.abs() < 1), X)


def test_complex_numbers_stay_with_eager():
    same(lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j) + 1, X.reshape(13, 20, 2))


def test_casts_agree_with_eager():
    # Inductor leaves out a cast to half precision and back.
    same(lambda x: x.half().float() + x.int().float() + (x > 0).float(), X, rtol=1e-3, atol=1e-3)


def test_autocast_agrees_with_eager():
    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return F.gelu(x @ w).float().sum(-1)

    same(f, X, torch.randn(40, 8), rtol=5e-2, atol=5e-2)


def test_dynamic_shapes_compile_once():
    count = torch._dynamo.testing.CompileCounterWithBackend(blocknb.torch.backend)
    f = torch.compile(lambda x: (x * 2).softmax(-1), backend=count, dynamic=True)
    for n in (3, 7, 21):
        torch.testing.assert_close(f(X[:n, : n + 2]), (X[:n, : n + 2] * 2).softmax(-1))
    assert count.frame_count == 1


def test_another_shape_agrees_with_eager():
    f = compiled(lambda x: x.sum(-1) + x.shape[0])
    for n in (5, 9, 12):
        torch.testing.assert_close(f(X[:n]), X[:n].sum(-1) + n)


def test_an_empty_tensor_agrees_with_eager():
    same(lambda x: (x * 2).relu(), X[:0])


def test_a_scalar_tensor_agrees_with_eager():
    same(lambda x: (x * 2).exp(), torch.tensor(0.5))


def test_strided_inputs_agree_with_eager():
    same(lambda x: (x + 1).sum(0), X.t()[::2])


def test_misaligned_inputs_agree_with_eager():
    same(lambda x: x * 2 + 1, X.flatten()[1:301])


def test_views_as_outputs_agree_with_eager():
    same(lambda x: ((x * 2).t(), (x + 1).view(-1)[3:]), X)


def test_an_input_is_mutated_as_in_eager():
    ours, theirs = X.clone(), X.clone()

    def f(x):
        x.mul_(2).add_(1)
        return x.sum()

    torch.testing.assert_close(compiled(f)(ours), f(theirs))
    torch.testing.assert_close(ours, theirs)


def test_aliased_inputs_agree_with_eager():
    base = X.clone()
    torch.testing.assert_close(compiled(lambda x, y: x + y * 2)(base, base[:]), base * 3)


def test_python_control_flow_agrees_with_eager():
    def f(x, flag):
        return x * 2 if flag else x - 1

    g = compiled(f)
    torch.testing.assert_close((g(X, True), g(X, False)), (X * 2, X - 1))


def test_a_function_with_a_graph_break_agrees_with_eager():
    def f(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.relu() + 1

    same(f, X)


def test_fullgraph_refuses_a_graph_break():
    def f(x):
        torch._dynamo.graph_break()
        return x * 2

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(f, fullgraph=True)(X)


def test_dropout_and_random_numbers_repeat_with_the_seed():
    f = compiled(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
    torch.manual_seed(3)
    first = f(X)
    torch.manual_seed(3)
    assert torch.equal(first, f(X))
    assert not torch.equal(first, f(X))


def test_fallback_random_gives_the_numbers_of_eager():
    def f(x):
        return F.dropout(x, 0.5) * 2

    g = compiled(f, options={"fallback_random": True})
    torch.manual_seed(3)
    found = g(X)
    torch.manual_seed(3)
    torch.testing.assert_close(found, f(X))


def test_dynamic_python_numbers_agree_with_eager():
    g = compiled(lambda x, s: x * s + 1)
    torch.testing.assert_close([g(X, s) for s in (0.5, 1.5, 2.5)], [X * s + 1 for s in (0.5, 1.5, 2.5)])


def test_inference_mode_and_no_grad_agree_with_eager():
    f = compiled(lambda x: F.layer_norm(x, (40,)).sum(0))
    with torch.inference_mode():
        torch.testing.assert_close(f(X), F.layer_norm(X, (40,)).sum(0), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(f(X), F.layer_norm(X, (40,)).sum(0), rtol=1e-4, atol=1e-4)


def test_kernels_with_block_pointers_agree_with_eager():
    same(lambda x: (x * 2).sum(-1), X, options={"triton.use_block_ptr": True})


def test_kernels_with_tensor_descriptors_agree_with_eager():
    same(lambda x: x * 2 + 1, torch.ones(64, 64), options={"triton.use_tensor_descriptor": True})


def test_combo_kernels_agree_with_eager():
    same(lambda x, y: (x * 2, y + 1), X, torch.ones(7), options={"combo_kernels": True})


def test_foreach_operators_agree_with_eager():
    same(lambda x, y: torch._foreach_add([x, y], [x, y], alpha=2), X, torch.ones(7, 3))


def test_a_fused_optimizer_step_agrees_with_eager():
    weights = [torch.randn(5, 5, requires_grad=True), torch.randn(7, requires_grad=True)]
    theirs = [w.detach().clone().requires_grad_() for w in weights]
    optimizers = [torch.optim.AdamW(w, lr=0.1, foreach=True) for w in (weights, theirs)]
    for group in (weights, theirs):
        for w in group:
            w.grad = torch.full_like(w, 0.3)
    compiled(optimizers[0].step)()
    optimizers[1].step()
    torch.testing.assert_close(weights, theirs)


def test_a_long_row_is_scanned_in_a_loop():
    x = X.flatten().repeat(10)
    same(lambda v: v.cumsum(0), x, rtol=1e-4, atol=1e-3)


def test_multi_kernel_chooses_between_both_kinds_of_reduction():
    same(lambda x: x.softmax(-1), X, options={"triton.multi_kernel": 1})


def test_looped_reductions_agree_with_eager():
    same(lambda x: x.softmax(-1), X, options={"triton.persistent_reductions": False})


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_every_mode_agrees_with_eager(mode):
    same(lambda x: (x * 2).softmax(-1), X, mode=mode)


def test_coordinate_descent_tuning_agrees_with_eager():
    same(lambda x: (x * 2).sum(-1), X, options={"coordinate_descent_tuning": True})


def test_checkpointing_agrees_with_eager():
    def f(x):
        return torch.utils.checkpoint.checkpoint(lambda y: y.sin().exp(), x, use_reentrant=False).sum()

    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    compiled(f)(ours).backward()
    f(theirs).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_vmap_of_grad_agrees_with_eager():
    same(lambda x: torch.func.vmap(torch.func.grad(lambda row: row.sin().sum()))(x), X)


def test_index_put_accumulates_as_in_eager():
    same(lambda x: torch.zeros(5, 40).index_put((torch.arange(13) % 5,), x, accumulate=True), X)


@pytest.mark.own_count
@pytest.mark.parametrize(
    "option",
    [
        {"cpp_wrapper": True},
        {"triton.enable_pdl": True},
        {"triton.autotune_at_compile_time": True},
        {"cpu_backend": "cpp"},
    ],
)
def test_an_option_that_cannot_work_is_refused(option):
    with pytest.raises(Exception, match=f"cannot honour the option {next(iter(option))}"):
        compiled(lambda x: x + 1, options=option)(X)


@pytest.mark.own_count
def test_another_version_of_torch_gets_one_line(monkeypatch):
    from blocknb.torch.inductor import versions

    monkeypatch.setattr(versions.check, "cache_clear", versions.check.cache_clear, raising=False)
    monkeypatch.setattr(torch, "__version__", "2.3.1")
    versions.check.cache_clear()
    with pytest.raises(Exception, match=r"does not support torch 2.3.1; it supports 2.11, 2.13, 2.15"):
        versions.check()
    versions.check.cache_clear()


def test_the_kernels_of_a_function_come_in_the_order_of_their_launches():
    def f(x, w):
        return (F.gelu(x) @ w).softmax(-1)

    found = blocknb.torch.kernels(compiled(f), X, torch.randn(40, 9))
    assert [k.operators for k in found] == [("aten.gelu",), ("aten._softmax",)] or len(found) == 2
    assert "aten.gelu" in found[0].operators
    assert [line[0] for k in found for line in k.lines] == [__file__] * 2
    assert found[0].trace.stages and "tl.load" in found[0].source
    assert "<table" in found._repr_html_() and "aten.gelu" in repr(found)
