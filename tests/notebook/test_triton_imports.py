"""In a `%%blockkernel` cell, `import triton` imports blocknb permanently; in other cells it is unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import blocknb
import blocknb.language

CELL = """\
%%blockkernel --quiet
import triton
import triton.language as tl, numpy as np

@triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"], warmup=1, rep=1)
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

def doubled(x):
    from triton import cdiv
    out = np.empty_like(x)
    double[lambda meta: (cdiv(x.size, meta["BLOCK"]),)](x, out, x.size)
    return out

doubled(np.ones(50, np.float32)).sum()
"""


@pytest.fixture
def shell() -> Iterator[Any]:
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    from IPython.core.displaypub import CapturingDisplayPublisher

    before = interactive.InteractiveShell._instance
    shell = interactive.InteractiveShell()
    shell.display_pub = CapturingDisplayPublisher()
    blocknb.load_ipython_extension(shell)
    yield shell
    interactive.InteractiveShell._instance = before


def test_a_cell_written_for_triton_runs(shell: Any) -> None:
    assert shell.run_cell(CELL).result == 100
    names = shell.user_ns
    assert names["tl"] is blocknb.language and names["triton"].jit is blocknb.jit
    assert not [name for name in sys.modules if name.split(".")[0] == "triton"]


def test_what_the_cell_defined_still_works_in_later_cells(shell: Any) -> None:
    shell.run_cell(CELL)
    result = shell.run_cell("doubled(np.ones(70, np.float32)).sum(), triton.cdiv(9, 2)")
    assert result.result == (140, 5)


def test_trials_do_not_appear_on_the_card_and_the_wrapper_shows_it(shell: Any) -> None:
    shell.run_cell(CELL.replace(" --quiet", ""))
    (card,) = shell.display_pub.outputs
    assert " launches, " not in card["data"]["text/plain"]  # there was one
    bundle, _ = shell.display_formatter.format(shell.user_ns["double"])
    assert "double" in bundle["text/plain"] and "application/vnd.blocknb.v1+json" in bundle


def test_other_cells_import_the_installed_triton(shell: Any) -> None:
    shell.run_cell("try:\n    import triton\nexcept ImportError:\n    triton = None")
    assert getattr(shell.user_ns["triton"], "__name__", "triton") == "triton"


def test_the_magic_called_from_code_rewrites_imports(shell: Any) -> None:
    shell.user_ns["body"] = CELL.split("\n", 1)[1]
    assert shell.run_cell("get_ipython().run_cell_magic('blockkernel', '--quiet', body)").success
    assert shell.user_ns["tl"] is blocknb.language


def test_an_error_in_the_cell_shows_the_original_line(shell: Any) -> None:
    result = shell.run_cell("%%blockkernel --quiet\nimport triton\nfrom triton import nothing_like_it")
    assert isinstance(result.error_in_exec, ImportError)
    assert result.error_in_exec.__traceback__.tb_next.tb_lineno == 3


def test_a_cell_that_only_defines_a_tuned_kernel_shows_a_message(shell: Any) -> None:
    definition = CELL.split("def doubled")[0].replace(" --quiet", "")
    shell.run_cell(definition)
    (message,) = shell.display_pub.outputs
    assert message["data"]["text/plain"].startswith("Defined double without a launch.")
