"""`%%torchkernels` without PyTorch: one clear line, and a cell that does not run. tests/pytorch has the rest."""

from __future__ import annotations

import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import torch_magic


def test_without_torch_the_cell_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    shell = InteractiveShell(colors="nocolor")
    torch_magic.register(shell)
    assert not shell.run_cell("%%torchkernels\nran = True").success
    assert "ran" not in shell.user_ns
    assert "%%torchkernels needs PyTorch: pip install torch" in "".join(capsys.readouterr())


def test_other_cells_and_requests_for_help_are_left_alone() -> None:
    for text in ("%%torchkernels?\n", "%%torchkernelsx\n", "%%time\n"):
        assert torch_magic.start_line([text, "1\n"]) == [text, "1\n"]
    assert torch_magic.start_line(["%%torchkernels\n", "1\n"])[1:] == ["1\n"]
    assert torch_magic.start_line([]) == []
