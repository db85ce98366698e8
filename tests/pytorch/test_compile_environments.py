"""`backend="blocknb"` without Triton, with an import of Triton that raises, next to Triton, and by its entry point."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.own_count
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
    import torch, blocknb.torch
    def f(x, w): return torch.nn.functional.gelu(x * w).softmax(-1).sum(0)
    x, w = torch.randn(9, 33), torch.randn(33, requires_grad=True)
    out = torch.compile(f, backend=blocknb.torch.backend)(x, w)
    torch.testing.assert_close(out, f(x, w))
    (ours,) = torch.autograd.grad(out[1], w)
    (theirs,) = torch.autograd.grad(f(x, w)[1], w)
    torch.testing.assert_close(ours, theirs)
    print(len(blocknb.torch.kernels()), "kernels")
"""


def run(before: str, after: str = "", **environment: str) -> str:
    program = textwrap.dedent(before) + textwrap.dedent(PROGRAM) + textwrap.dedent(after)
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    return answer.stdout


def test_it_works_where_the_import_of_triton_raises(tmp_path):
    before = """
        import sys
        class Refuse:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "triton":
                    raise ImportError("the import of triton is refused")
        sys.meta_path.insert(0, Refuse())
    """
    after = "assert 'triton' not in sys.modules"
    assert "kernels" in run(before, after, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed")
def test_it_works_without_triton(tmp_path):
    after = "import sys; assert 'triton' not in sys.modules"
    assert "kernels" in run("", after, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_an_installed_triton_stays_as_it_is(tmp_path):
    after = """
        import sys, triton
        assert sys.modules["triton"] is triton
        assert "site" in triton.__file__ and "blocknb" not in triton.__name__
        import torch._inductor.runtime.triton_heuristics as theirs
        assert theirs.triton is triton
    """
    assert "kernels" in run("import triton", after, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))


def test_inductor_compiles_for_itself_after_us(tmp_path):
    """Inductor's own C++ back end for the CPU gets its own answers and caches again."""
    after = """
        torch._dynamo.reset()
        before = len(blocknb.torch.kernels())
        torch.testing.assert_close(torch.compile(f)(x, w), f(x, w))
        assert len(blocknb.torch.kernels()) == before
        import torch._inductor.utils as utils, torch._inductor.codegen.common as common
        assert "blocknb" not in utils.has_triton_package.__module__
        assert "blocknb" not in getattr(common.device_codegens["cpu"].scheduling, "__module__", "")
    """
    assert "kernels" in run("", after, TORCHINDUCTOR_CACHE_DIR=str(tmp_path))


def test_a_second_process_knows_the_origins_of_kernels_from_the_cache_of_inductor(tmp_path):
    after = "print(blocknb.torch.kernels()[0].operators)"
    first, second = (run("", after, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)) for _ in range(2))
    assert first.splitlines()[-1] == second.splitlines()[-1]
    assert "aten." in second


def test_the_entry_point_names_the_backend():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torch_dynamo_backends"] == {"blocknb": "blocknb.torch.inductor.backend:backend"}
