"""`blocknb bench compile`: what happens without Triton, and if the process of a compiler ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from blocknb.bench import compile_times


def test_a_python_without_triton_is_named_and_blocknb_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    seen = []
    monkeypatch.setattr(
        compile_times,
        "in_warm_processes",
        lambda peers, rounds: seen.append(list(peers)) or [{"what": "add", "ms": 1.0}],
    )
    monkeypatch.setattr(compile_times, "in_new_processes", lambda peers, rounds: [{"what": "import", "ms": 1.0}])
    monkeypatch.setenv("BLOCKNB_TRITON_PYTHON", "/nowhere/python")
    rows = compile_times.run(1)
    assert seen == [["ours"]]
    assert rows[-1] == {
        "what": "Triton",
        "problem": "BLOCKNB_TRITON_PYTHON is '/nowhere/python': No such file or directory",
    }
    assert "Triton left out: BLOCKNB_TRITON_PYTHON is" in capsys.readouterr().out


def test_a_process_that_ends_is_an_error_that_names_the_compiler() -> None:
    command = [sys.executable, "-c", "pass"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        with pytest.raises(ValueError, match="the process of Triton ended without an answer to 'cold add'"):
            compile_times._ask("Triton", server, "cold add")
        server.stdin = None
