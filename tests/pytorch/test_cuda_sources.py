"""The kernels that Inductor generates for CUDA, of all functions, models and templates of the lists: blocknb compiles them for sm_90a.

No GPU is needed. Each graph runs eager on the CPU, so forward and backward graphs get their inputs.
"""

from __future__ import annotations

import logging

import pytest
import torch
from cuda_templates import MAX_AUTOTUNE, TEMPLATES, TemplateCase
from torch_functions import FUNCTIONS, arguments
from torch_models import MODELS, loss_of

from blocknb.torch.inductor.without_gpu import CudaKernels

pytestmark = pytest.mark.own_count

#: What a quick run compiles: elementwise kernels, reductions, a training graph, and products.
SAMPLE_FUNCTIONS = ("softmax", "layer_norm")
SAMPLE_MODELS = ("swiglu",)
SAMPLE_TEMPLATES = ("addmm_gelu_float16", "persistent_tma")
#: The least number of different kernels that the lists must give.
LEAST = 193


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    """The backward of flex attention is traced on the CPU, for which torch has none."""
    monkeypatch.setattr(torch.nn.attention.flex_attention, "_validate_device", lambda *_: None)
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def run_function(found: CudaKernels, name: str) -> None:
    function, shapes = FUNCTIONS[name]
    torch.compile(function, backend=found.backend, fullgraph=True)(*arguments(shapes))


def run_model(found: CudaKernels, name: str) -> None:
    model, value = MODELS[name]()
    loss_of(torch.compile(model, backend=found.backend)(value)).backward()


def run_template(found: CudaKernels, case: TemplateCase) -> None:
    options = {**MAX_AUTOTUNE, **case.options}
    out = torch.compile(case.function, backend=found.backend, fullgraph=True, options=options)(*case.arguments())
    if case.backward:
        out.float().sum().backward()


def compiled(functions, models, templates) -> CudaKernels:
    """The kernels of these graphs. Raises AssertionError if one of them does not compile, or if a template was not used."""
    found = CudaKernels()
    for names, run in ((functions, run_function), (models, run_model)):
        for name in names:
            torch._dynamo.reset()
            run(found, name)
    for name in templates:
        torch._dynamo.reset()
        before = len(found.kernels)
        run_template(found, TEMPLATES[name])
        made = found.kernels[before:]
        assert any("triton_tem" in k.name for k in made) or not made, (name, made)
    assert not found.failed, "\n".join(f"{k.name}: {k.error}" for k in found.failed)
    assert all(c.target.is_gpu and c.artifacts["cubin"] for k in found.kernels for c in k.compiled)
    return found


def test_a_sample_of_the_kernels_for_cuda_compiles(cuda_count):
    found = compiled(SAMPLE_FUNCTIONS, SAMPLE_MODELS, SAMPLE_TEMPLATES)
    cuda_count(found)
    names = " ".join(k.name for k in found.kernels)
    assert all(kind in names for kind in ("triton_poi_", "triton_per_", "triton_red_", "triton_tem_"))
    assert "wgmma" in "".join(c.asm["ptx"] for k in found.kernels if "triton_tem" in k.name for c in k.compiled)


@pytest.mark.full
def test_all_kernels_for_cuda_compile(cuda_count):
    found = compiled(FUNCTIONS, MODELS, TEMPLATES)
    cuda_count(found)
    assert len(found.kernels) >= LEAST


@pytest.mark.full
def test_the_list_of_templates_has_at_least_50_graphs():
    assert len(TEMPLATES) >= 50
