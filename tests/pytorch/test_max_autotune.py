"""Inductor chooses among its Triton templates (`max_autotune`), which blocknb compiles: on the CPU, and on a GPU where there is one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch._inductor import select_algorithm
from torch.nn.attention.flex_attention import flex_attention

import blocknb.torch
from blocknb.compat import host
from blocknb.errors import CompilationError, OutOfResources

pytestmark = pytest.mark.own_count
RANDOM = torch.Generator().manual_seed(2)
A, B, BIAS = (torch.randn(shape, generator=RANDOM) for shape in ((64, 32), (32, 48), (48,)))
TEMPLATES = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON", "max_autotune_conv_backends": "TRITON"}
#: Two candidates that Inductor has in all versions.
TWO = {
    **TEMPLATES,
    "test_configs.autotune_choice_name_regex": "triton_mm",
    "test_configs.autotune_choice_desc_regex": r".*BLOCK_K=(16|32), BLOCK_M=32, BLOCK_N=32.*",
    "force_disable_caches": True,
}
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def timings():
    """The times that Inductor measured, by the text of the candidate."""
    found: dict[str, float] = {}

    def keep(times, *_):
        found.update({str(choice): time for choice, time in times.items()})

    select_algorithm.add_feedback_saver(keep)
    yield found
    select_algorithm.clear_feedback_savers()


def same(function, *values, options=TEMPLATES, tolerance=1e-4, mode=None):
    """The kernels that the compiled function launches, after a comparison with eager."""
    f = torch.compile(function, backend=blocknb.torch.backend, options=options, mode=mode)
    torch.testing.assert_close(f(*values), function(*values), rtol=tolerance, atol=tolerance)
    with blocknb.torch.recorded() as record:
        f(*values)
    return [kernel.autotuner.fn.__name__ for kernel in record.kernels]


def test_a_template_computes_a_product_with_its_epilogue(timings):
    assert any("triton_tem" in name for name in same(lambda a, b: (a @ b).relu(), A, B, options=TWO))
    assert len(timings) >= 2 and all(map(math.isfinite, timings.values()))


@pytest.mark.parametrize("fault", [OutOfResources, CompilationError])
def test_a_candidate_that_fails_loses(monkeypatch, timings, fault):
    inherited = host.compile

    def compile(source, *args, **kwargs):
        if "BLOCK_K : tl.constexpr = 16" in source.fn.src:
            raise fault("this candidate is forced to fail")
        return inherited(source, *args, **kwargs)

    monkeypatch.setattr(host, "compile", compile)
    assert any("triton_tem" in name for name in same(lambda a, b: a @ b, A, B, options=TWO))
    failed = {name: time for name, time in timings.items() if "BLOCK_K=16" in name}
    assert not any(map(math.isfinite, failed.values())) and len(failed) < len(timings)


def test_the_library_wins_if_every_candidate_fails(monkeypatch):
    def compile(*_, **__):
        raise OutOfResources("every candidate is forced to fail")

    monkeypatch.setattr(host, "compile", compile)
    options = {**TEMPLATES, "max_autotune_gemm_backends": "TRITON,ATEN", "force_disable_caches": True}
    assert not same(lambda a, b: a @ b, A, B, options=options)


@pytest.mark.full
def test_candidates_may_be_timed_in_another_process(timings):
    same(lambda a, b: a @ b, A, B, options={**TWO, "autotune_in_subproc": True})
    assert len(timings) >= 2 and all(map(math.isfinite, timings.values()))


@pytest.mark.full
@pytest.mark.parametrize(
    ("function", "values"),
    [
        (lambda c, a, b: torch.addmm(c, a, b), (BIAS, A, B)),
        (lambda a, b: torch.bmm(a, b), (A.reshape(2, 32, 32), B.expand(2, 32, 48).contiguous())),
        (lambda x, w: F.conv2d(x, w), (A.reshape(1, 8, 16, 16), B[:, :9].repeat(4, 1).reshape(16, 8, 3, 3))),
    ],
    ids=["addmm", "bmm", "conv2d"],
)
def test_templates_of_other_operators(function, values):
    assert any("triton_tem" in name for name in same(function, *values))


@pytest.mark.full
def test_the_mode_max_autotune():
    same(lambda a, b: (a @ b).softmax(-1), A, B, options=None, mode="max-autotune")


@pytest.mark.full
def test_kernels_are_fused_where_the_fused_kernel_is_faster():
    options = {"benchmark_fusion": True, "force_disable_caches": True}
    assert same(lambda a: (a.sin().sum(-1), a.cos() + 1), A, options=options)


@ON_GPU
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mode_max_autotune_on_a_gpu(dtype):
    a, b = (torch.randn(shape, generator=RANDOM).to("cuda", dtype) for shape in ((512, 256), (256, 1024)))
    same(lambda a, b: (a @ b).relu(), a, b, options=None, mode="max-autotune-no-cudagraphs", tolerance=2e-2)


@ON_GPU
@pytest.mark.parametrize("options", [{}, {"triton.enable_persistent_tma_matmul": True}, {"autotune_in_subproc": True}])
def test_templates_alone_on_a_gpu(options):
    a, b = (torch.randn(shape, generator=RANDOM).to("cuda", torch.float16) for shape in ((512, 256), (256, 1024)))
    assert any(
        "triton_tem" in n for n in same(lambda a, b: a @ b, a, b, options={**TEMPLATES, **options}, tolerance=2e-2)
    )


@ON_GPU
def test_flex_attention_on_a_gpu():
    q, k, v = (torch.randn(1, 4, 512, 64, generator=RANDOM).to("cuda", torch.float16) for _ in range(3))
    assert any("triton_tem" in n for n in same(lambda q, k, v: flex_attention(q, k, v), q, k, v, tolerance=2e-2))


@ON_GPU
def test_convolution_on_a_gpu():
    x, w = (torch.randn(shape, generator=RANDOM).cuda() for shape in ((2, 32, 28, 28), (64, 32, 3, 3)))
    assert any("triton_tem" in n for n in same(lambda x, w: F.conv2d(x, w), x, w, tolerance=2e-2))
