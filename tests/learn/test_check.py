"""`learn.check`: right answers pass, wrong ones get a verdict with one clear sentence, whatever they are."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from blocknb import learn

ADD = learn.exercise("add-1")
HEAD = "@blocknb.kernel\ndef add(x, y, out, n, BLOCK: tl.constexpr):\n"
LINES = "    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    inside = at < n\n"
SUM = "tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("source", [ADD.solution, *ADD.alternatives])
def test_right_answers_pass(source: str) -> None:
    verdict = learn.check(ADD, source)
    assert verdict.passed, verdict
    assert verdict.headline == "passed · 4 of 4 cases"


def test_the_skeleton_is_refused_with_the_line_of_its_first_blank() -> None:
    verdict = learn.check("add-1", ADD.skeleton)
    assert not verdict.passed
    assert verdict.findings[0].line == 4


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x = 1", "defines no kernel"),
        ("def add(x, y, out, n, BLOCK):\n    out[:] = x + y", "`add` is a Python function"),
        (HEAD + "    at = (", "not Python"),
        ("1 / 0", "ZeroDivisionError"),
        ("@blocknb.kernel\ndef add(x, y):\n    tl.store(x, 1.0)", "`x`, `y`, `out`, `n` and `BLOCK`"),
        (HEAD.replace("y,", "y, z, w,") + "    pass", "take these parameters in this order"),
        (HEAD + "    return\n    tl.store(out, 1.0)", "does the kernel return before it?"),
        (HEAD + LINES, "no store to `out`"),
        (HEAD + LINES + "    tl.store(out + at, total, mask=inside)", "unknown name `total`"),
        (HEAD + LINES + f"    tl.store(x + at, {SUM}, mask=inside)", "writes to `x`, which is an input"),
        (HEAD + LINES.replace("BLOCK +", "32 +") + f"    tl.store(out + at, {SUM}, mask=inside)", "never stored"),
        (HEAD + LINES + f"    tl.store(out + at, {SUM} + 1.0, mask=inside)", "`out`[0] is"),
        (HEAD + LINES + f"    tl.store(out + at, 0.0 - ({SUM}), mask=inside)", "wrong sign"),
        (HEAD + LINES + "    tl.store(out + at, tl.load(x + at, mask=inside), mask=inside)", "never loads `y`"),
        (HEAD + "    np.copyto(out, x)", "plain Python function"),
        ("class Answer:\n    pass\nadd = Answer()", "defines no kernel"),
    ],
)
def test_a_wrong_answer_of_any_kind_gets_one_clear_sentence(source: str, words: str) -> None:
    verdict = learn.check(ADD, source, seed=1)
    assert not verdict.passed
    assert any(words in finding.text for finding in verdict.findings), verdict


def test_an_endless_loop_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = HEAD + "    t = tl.load(x)\n    while t < 100.0:\n        t = t - t + 1.0\n    tl.store(out, t)"
    monkeypatch.setattr("blocknb.learn.checking.SECONDS", 0.5)
    verdict = learn.check(ADD, loop)
    assert "does every loop end?" in verdict.headline
    assert [case.text for case in verdict.cases[1:]] == ["not tried"] * 3


def test_a_right_result_by_luck_is_refused() -> None:
    """Every program adds everything: the result is right, and all programs race to store it."""
    body = "    for first in range(0, n, BLOCK):\n        at = first + tl.arange(0, BLOCK)\n        inside = at < n\n"
    verdict = learn.check(ADD, f"{HEAD}{body}        tl.store(out + at, {SUM}, mask=inside)")
    assert [case.passed for case in verdict.cases] == [True] * 4
    assert "both store all of `out`: is tl.program_id in the address?" in verdict.headline


def test_heuristics_see_no_array_that_is_judged() -> None:
    choose = "def choose(given):\n    given['out'][...] = given['x'] + given['y']\n    return 128\n"
    cheat = f"{choose}@blocknb.heuristics({{'BLOCK': choose}})\n{HEAD}    tl.program_id(0)"
    assert not learn.check(ADD, cheat).passed
    honest = (
        f"@blocknb.heuristics({{'BLOCK': lambda given: 128}})\n{HEAD}{LINES}    tl.store(out + at, {SUM}, mask=inside)"
    )
    fixed = learn.Exercise(
        **{
            name: getattr(ADD, name)
            for name in ("name", "title", "task", "outputs", "reference", "rules", "solution", "blanks", "mistakes")
        },
        cases=tuple(
            learn.Case(case.name, lambda rng, case=case: _without(case.make(rng), "BLOCK")) for case in ADD.cases
        ),
        grid=lambda n, BLOCK: (-(-n // BLOCK),),
    )
    assert learn.check(fixed, honest).passed
    tuned = honest.replace(
        "heuristics({'BLOCK': lambda given: 128})", "autotune([blocknb.Config({'BLOCK': 64})], key=['n'])"
    )
    assert learn.check(fixed, tuned).passed


def _without(arguments: dict, name: str) -> dict:
    return {key: value for key, value in arguments.items() if key != name}


def test_a_kernel_object_is_checked_as_its_function() -> None:
    """What a cell sets on the kernel object does not count."""
    import blocknb
    import blocknb.language as tl

    @blocknb.kernel
    def add(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)

    def fill(grid, x, y, out, n, BLOCK, **options):
        out[...] = x + y

    add._launch = fill
    assert "never loads `y`" in str(learn.check("add-1", add))


def test_the_same_seed_gives_the_same_verdict() -> None:
    wrong = ADD.mistakes[7].applied(ADD.solution)
    first = learn.check(ADD, wrong)
    assert str(learn.check(ADD, wrong, seed=first.seed)) == str(first)


def test_an_unknown_device_or_case_is_named() -> None:
    with pytest.raises(ValueError, match="no devices: 'cuda'"):
        learn.check(ADD, ADD.solution, devices=("cuda",))
    with pytest.raises(ValueError, match="no case 'n=0'"):
        learn.launch(ADD, ADD.solution, "n=0")


def test_a_launch_is_limited_on_systems_without_clocks_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS and Windows lack pthread_getcpuclockid."""
    from blocknb.learn.running import TimeUp, limited

    monkeypatch.delattr("time.pthread_getcpuclockid", raising=False)
    with limited(60):
        pass
    with pytest.raises(TimeUp), limited(0.1):
        while True:
            pass


def test_an_unknown_exercise_lists_similar_names() -> None:
    with pytest.raises(learn.UnknownExercise, match="did you mean add-1"):
        learn.check("add-2", ADD.solution)


def test_predictions_accept_values_and_explain_wrong_ones() -> None:
    item = learn.Prediction(
        "predict-lanes",
        "Count",
        question="How many programs, and how many lanes of the last are off?",
        answer=lambda: (10, 240),
        wrong=((lambda: (9, 240), "The last block counts, too."),),
    )
    assert learn.check(item, (10, 240)).passed
    assert learn.check(item, [10, 240.0]).passed
    assert learn.check(item, (9, 240)).findings[0].text == "The last block counts, too."
    assert not learn.check(item, "ten").passed


def test_the_grid_of_the_cell_counts_if_the_exercise_has_none() -> None:
    own = learn.Exercise(
        **{
            n: getattr(ADD, n)
            for n in ("name", "title", "task", "cases", "outputs", "reference", "rules", "blanks", "mistakes")
        },
        grid=None,
        solution=ADD.solution + "\ngrid = lambda n, BLOCK: (blocknb.cdiv(n, BLOCK),)\n",
    )
    assert learn.check(own, own.solution).passed
    assert "defines no `grid`" in str(learn.check(own, ADD.solution))
    assert "never stored" in str(learn.check(own, ADD.solution + "\ngrid = (2,)\n"))
    filled = ADD.skeleton.replace("...", "0") + "\ndef grid(x, y, out):\n    out[...] = x + y\n    return (1,)\n"
    assert not learn.check(own, filled).passed


def test_tolerances_follow_dtype_and_additions() -> None:
    from blocknb.learn.running import differs

    want = np.array([1.0, np.nan, np.inf, 0.0])
    got = want.astype(np.float32)
    assert not differs(got, want, learn.Tolerance()).any()
    got[0] += 1e-4
    assert differs(got, want, learn.Tolerance()).tolist() == [True, False, False, False]
    assert not differs(got, want, learn.Tolerance(additions=4096)).any()


def test_a_finite_number_is_not_near_an_infinite_one() -> None:
    from blocknb.learn.running import differs

    assert differs(np.float32([1.0, np.inf, -np.inf]), np.array([np.inf] * 3), 1e-3).tolist() == [True, False, True]


TRACED = """
import sys
from blocknb.learn.running import TimeUp, limited
for _ in range(20):
    try:
        with limited(0.004):
            sum(range(1_000_000))  # no Python instruction, so the exception waits for its end
    except TimeUp:
        pass
sys.settrace(lambda frame, event, value: None)
print(sum(x for x in range(1000)))
"""


def test_a_traced_generator_resumes_after_a_time_limit() -> None:
    """CPython 3.11 hung here, when a pending TimeUp was taken back."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "499500\n", done.stderr
