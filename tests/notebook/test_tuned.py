"""Autotuning in a notebook: the table of trials, a line on the kernel's card, and a progress bar that disappears."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

import blocknb
import blocknb.language as tl
from blocknb import Config
from blocknb.notebook import progress, register
from blocknb.notebook.card import card_of
from blocknb.notebook.observe import record_of
from blocknb.tune.tuning import LEFT_OUT, Trial, Tuning

X = np.arange(1000, dtype=np.float32)


def scale(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


def tuned() -> Any:
    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [1.5, 1.25, 1.75]

    made = blocknb.autotune([Config({"BLOCK": b}) for b in (64, 128)], ["n"], do_bench=bench)(blocknb.kernel(scale))
    made[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](X, np.empty_like(X), 1000)
    return made


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    found = InteractiveShell()
    register.register(found)
    return found


def test_a_tuning_is_a_table_in_the_style_of_a_card(shell) -> None:
    tuning = tuned().tuning
    data, _ = shell.display_formatter.format(tuning)
    assert data["text/plain"] == tuning.text()
    assert (
        '<div class="blocknb-card"><style>' in data["text/html"]
        and "<b>scale, n = 1000, dtype = float32</b>" in data["text/html"]
    )
    assert "<tr class=bn-first><td>64</td><td>1.5</td><td>1.25</td><td>1.75</td><td>1.00</td>" in data["text/html"]


def test_reasons_are_escaped_and_a_long_table_is_truncated(shell) -> None:
    trials = [Trial(Config({"BLOCK": b}), (float(b + 1),) * 3) for b in range(150)]
    trials.append(Trial(Config({"BLOCK": 999}), status=LEFT_OUT, reason="<script>alert(1)</script>"))
    few = Tuning("k", {}, tuple(trials[-3:]), trials[-3].config)
    html = shell.display_formatter.format(few)[0]["text/html"]
    assert "&lt;script&gt;" in html and "<script>" not in html
    many = shell.display_formatter.format(Tuning("k", {}, tuple(trials), trials[0].config))[0]
    assert many["text/html"].count("<tr") == 102 and "and 51 more; print(...) shows all" in many["text/html"]
    assert "and 135 more; print(...) shows all" in many["text/plain"] and len(many["text/plain"]) < 2000


def test_the_card_shows_the_choice_if_the_launch_used_it(shell) -> None:
    kernel = tuned()
    facts = dict(card_of(record_of(kernel.kernel)).facts)
    assert facts["tuned"].startswith("BLOCK=64 (1.5 ms), the best of 2; ") and facts["tuned"].endswith(
        ": `scale.tuning`"
    )
    kernel.kernel[(2,)](X, np.empty_like(X), 1000, BLOCK=512)
    assert "tuned" not in dict(card_of(record_of(kernel.kernel)).facts)


def test_an_interrupted_tuning_keeps_times_and_arrays_and_continues_at_the_next_launch(notebook) -> None:
    setup = """
import time
def slow(arguments):
    print("run", flush=True)
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.01:
        pass

@blocknb.autotune([blocknb.Config({"BLOCK": b}, pre_hook=slow) for b in (16, 32, 64)], ["n"], restore_value=["x"], rep=1e5)
@blocknb.kernel
def more(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)
"""
    assert notebook.run(setup).status == "ok"
    launch = "more[lambda meta: (blocknb.cdiv(64, meta['BLOCK']),)](x, 64)"
    answer = notebook.run(launch, interrupt_after="run\n" * 40)
    assert "KeyboardInterrupt" in answer.error_text
    assert {"text/plain": ""} in answer.bundles, "a bar, which is gone"
    assert all(bundle == {"text/plain": ""} for bundle in answer.bundles)
    seen = notebook.run(
        "print((x == np.arange(64)).all(), more.tuning.headline, more.tuning.trials[0].rounds > 1)"
    ).printed
    assert seen.startswith("True interrupted, 3 of 3 measured") and seen.endswith("True\n")
    assert notebook.run(launch).status == "ok"
    seen = notebook.run(
        "print((x == np.arange(64) + 1).all(), more.best_config in more.configs, more.tuning.best is None)"
    )
    assert seen.printed == "True True False\n"


def test_a_progress_bar_shows_the_remaining_configurations(monkeypatch) -> None:
    now, said = [0.0], []
    bar = SimpleNamespace(value=0, description="", close=lambda: None)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def shown(self: progress.Progress) -> None:
        self.bar, self.shown = bar, SimpleNamespace(update=lambda *args, **kwargs: None)

    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr(progress.Progress, "_show", shown)
    monkeypatch.setattr("blocknb.runtime.parallel_compile.shows", progress.of_compiles)

    def hook(arguments: dict[str, Any]) -> None:
        now[0] += 0.4
        said.append((bar.value, bar.description))

    configs = [Config({"BLOCK": b}, pre_hook=hook) for b in (64, 128)]
    kernel = blocknb.autotune(configs, ["n"], warmup=0, rep=1)(blocknb.kernel(scale))
    kernel[lambda meta: (blocknb.cdiv(1000, meta["BLOCK"]),)](X, np.empty_like(X), 1000)
    assert "scale: measuring configurations: first run of 2 of 2" in [text for _, text in said]
    assert (3, "scale: measuring configurations: round 2, 2 of 2 left") in said
