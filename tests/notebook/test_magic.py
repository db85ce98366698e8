"""`%%blockkernel`: its body behaves like any cell, launches are observed, and each kernel gets one card."""

from __future__ import annotations

import json

import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell

from blocknb.notebook import document
from blocknb.notebook.completion import candidates
from blocknb.notebook.register import register
from blocknb.runtime import launch_context

ADD = """@blocknb.kernel
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)
"""
LAUNCH = "add[blocknb.cdiv(1000, 128),](x, y, out, 1000, BLOCK=128)\n"


class Shell:
    """An IPython shell in this process; `show` collects the outputs of cells."""

    def __init__(self) -> None:
        self.ip = InteractiveShell()
        self.displayed: list[dict] = []
        self.ip.display_pub.publish = lambda data, *args, **kwargs: self.displayed.append(data)
        register(self.ip)
        self.run("import blocknb, blocknb.language as tl, numpy as np")

    def run(self, cell: str):
        self.displayed.clear()
        return self.ip.run_cell(cell, store_history=True)

    @property
    def cards(self) -> list[dict]:
        return [d for d in self.displayed if document.MIME in d]


@pytest.fixture(scope="module")
def shared_shell():
    return Shell()


@pytest.fixture
def shell(shared_shell, capsys):
    x = np.arange(1000, dtype=np.float32)
    shared_shell.ip.user_ns.update(x=x, y=2 * x, out=np.zeros_like(x))
    yield shared_shell
    assert launch_context.observers == []  # nothing goes on listening after a cell


# ---- the body is a cell ----------------------------------------------------------------------------------------------------


def test_the_last_expression_is_the_cells_result(shell):
    assert shell.run("%%blockkernel\na = 3\na + 4").result == 7
    assert shell.run("_").result == 7


def test_line_magics_and_shell_commands_work_in_the_body(shell):
    result = shell.run("%%blockkernel\nlines = !echo hello\nname = %pwd\nlines[0], isinstance(name, str)")
    assert result.result == ("hello", True)


def test_top_level_await_works_in_the_body(shell):
    assert shell.run("%%blockkernel\nimport asyncio\nawait asyncio.sleep(0, 'slept')").result == "slept"


def test_lines_of_errors_count_from_the_magic_line(shell):
    result = shell.run("%%blockkernel --quiet\na = 1\n1 / 0")
    assert result.error_in_exec.__traceback__.tb_next.tb_lineno == 3


def test_a_syntax_error_is_reported_at_its_line(shell):
    result = shell.run("%%blockkernel\na = 1\nb = = 2")
    assert isinstance(result.error_before_exec, SyntaxError)
    assert result.error_before_exec.lineno == 3


def test_braces_and_dollars_in_the_options_are_not_expanded(shell):
    assert shell.run("%%blockkernel --launch {1: '$x'}[1]\nx = 5").success


def test_future_imports_work_in_the_body(shell):
    assert shell.run("%%blockkernel\nfrom __future__ import annotations\n1").result == 1


# ---- cards -----------------------------------------------------------------------------------------------------------------


def test_a_launch_gives_one_card_and_the_right_result(shell):
    result = shell.run(f"%%blockkernel\n{ADD}\n{LAUNCH}")
    assert result.success
    np.testing.assert_array_equal(shell.ip.user_ns["out"], 3 * np.arange(1000))
    (card,) = shell.cards
    assert "ran on CPU" in card["text/plain"] and "GPU view: sm_90a" in card["text/plain"]
    assert "ran on CPU" in card["text/html"] and "GPU view: sm_90a" in card["text/html"]


def test_there_is_one_card_per_kernel_and_not_per_launch(shell):
    other = "@blocknb.kernel\ndef fill(out, v):\n    tl.store(out, v)\n"
    shell.run(f"%%blockkernel\n{ADD}{other}for _ in range(3):\n    {LAUNCH}fill[1](out, 2.0)")
    assert [card[document.MIME]["kernel"] for card in shell.cards] == ["add", "fill"]
    assert "3 launches" in shell.cards[0]["text/plain"]
    assert shell.cards[0][document.MIME]["launches"][0]["launches"] == 3


def test_specializations_are_rows_with_the_differing_arguments(shell):
    shell.run(f"%%blockkernel\n{ADD}for size in (64, 256):\n    add[16,](x, y, out, 1000, BLOCK=size)")
    (card,) = shell.cards
    assert [row["constants"]["BLOCK"] for row in card[document.MIME]["launches"]] == ["64", "256"]
    assert "BLOCK=64" in card["text/html"] and "BLOCK=256" in card["text/html"]


def test_cards_appear_even_if_the_cell_then_raises(shell):
    result = shell.run(f"%%blockkernel\n{ADD}{LAUNCH}raise ValueError('later')")
    assert isinstance(result.error_in_exec, ValueError)
    assert len(shell.cards) == 1


def test_a_cell_without_a_launch_shows_one_line_with_an_example_launch(shell):
    shell.run(f"%%blockkernel\n{ADD}")
    (line,) = [d["text/plain"] for d in shell.displayed]
    assert "Defined add" in line and "add[grid](x, y, out, n, BLOCK=...)" in line and "\n" not in line


def test_a_cell_without_kernels_shows_a_message(shell):
    shell.run("%%blockkernel\na = 1")
    assert [d["text/plain"] for d in shell.displayed] == ["No kernel was launched in this cell."]


def test_the_card_does_not_launch_the_kernel(shell):
    shell.run(f"%%blockkernel\n{ADD}{LAUNCH}out[:] = -1")
    assert len(shell.cards) == 1
    assert (shell.ip.user_ns["out"] == -1).all()


def test_a_kernel_as_last_expression_shows_its_latest_card(shell):
    shell.run(f"%%blockkernel --quiet\n{ADD}{LAUNCH}")
    assert shell.displayed == []
    data, _ = shell.ip.display_formatter.format(shell.ip.user_ns["add"])
    assert data[document.MIME]["kernel"] == "add"
    assert "grid 8" in data["text/plain"]


def test_a_kernel_without_launches_shows_an_example_launch(shell):
    shell.run(ADD)
    data, _ = shell.ip.display_formatter.format(shell.ip.user_ns["add"])
    assert "add[grid](x, y, out, n, BLOCK=...)" in data["text/plain"] and document.MIME not in data


def test_a_cell_inside_a_cell_has_its_own_cards(shell):
    inner = f"%%blockkernel\n{ADD}{LAUNCH}"
    shell.ip.user_ns["inner"] = inner
    shell.run("%%blockkernel\nget_ipython().run_cell(inner)\nb = 1")
    assert len(shell.cards) == 2  # the inner cell's, and the outer one's, which saw the launch too


def test_called_from_code_the_magic_runs_the_body_itself(shell):
    shell.ip.user_ns["body"] = f"{ADD}{LAUNCH}out[-1] + 1"
    result = shell.run("get_ipython().run_cell_magic('blockkernel', '--target sm_80', body)\nold = out[-1]")
    assert result.success and shell.ip.user_ns["old"] == 2997
    assert "GPU view: sm_80" in shell.cards[0]["text/plain"]


def test_called_from_code_an_error_of_the_body_is_raised_once_after_the_card(shell):
    shell.ip.user_ns["body"] = f"{ADD}{LAUNCH}1 / 0"
    result = shell.run("get_ipython().run_cell_magic('blockkernel', '', body)")
    assert isinstance(result.error_in_exec, ZeroDivisionError) and len(shell.cards) == 1


# ---- options ---------------------------------------------------------------------------------------------------------------


def test_target_selects_the_gpu_whose_code_is_shown(shell):
    shell.run(f"%%blockkernel --target sm_75\n{ADD}{LAUNCH}")
    views = shell.cards[0][document.MIME]["views"]
    assert [(v["role"], v["target"].split(":")[0]) for v in views] == [("ran", "cpu"), ("view", "sm_75")]


def test_launch_is_evaluated_after_the_body_and_observed(shell):
    result = shell.run(f"%%blockkernel --launch add[8](x, y, out, 1000, BLOCK=128)\n{ADD}7")
    assert result.result == 7 and len(shell.cards) == 1


def test_an_error_in_launch_is_the_cells_error(shell):
    result = shell.run(f'%%blockkernel --launch "add[8](x, y)"\n{ADD}')
    assert type(result.error_in_exec).__name__ == "LaunchError" and not result.success


def test_show_unfolds_sections(shell):
    shell.run(f"%%blockkernel --show source ptx\n{ADD}{LAUNCH}")
    html = shell.cards[0]["text/html"]
    assert html.count("<details open>") == 2
    assert "<details open><summary><b>PTX</b>" in html


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--target sm_1", "sm_90a"),
        ("--bogus", "--bogus"),
        ("--show nothing", "source"),
        ("--check x +", "not an expression"),
        ("--without layout_assignment", "simplify"),
        ("--target", "expected one argument"),
        ("--help", "unrecognized arguments: --help; see %%blockkernel? for the options"),
    ],
)
def test_a_wrong_option_is_a_usage_error_that_stops_the_cell(shell, capsys, options, says):
    result = shell.run(f"%%blockkernel {options}\nwas_run = True")
    assert type(result.error_in_exec).__name__ == "UsageError" and not result.success
    assert says in str(result.error_in_exec)
    assert "was_run" not in shell.ip.user_ns


def test_help_explains_every_option(shell, capsys):
    assert shell.run("%%blockkernel?").success
    text = capsys.readouterr().out
    wanted = (
        "--target",
        "--launch",
        "--show",
        "--quiet",
        "--interpret",
        "--checked",
        "--check",
        "--baseline",
        "--without",
    )
    for option in wanted:
        assert option in text
    assert "%%blockkernel" in text


@pytest.mark.parametrize(
    ("line", "word", "found"),
    [
        ("%%blockkernel --ta", "--ta", ["--target"]),
        ("%%blockkernel --target sm_90", "sm_90", ["sm_90", "sm_90a"]),
        ("%%blockkernel --quiet --l", "--l", ["--launch", "--launch-view", "--learn"]),
        ("%%blockkernel --show pt", "pt", ["ptx"]),
        ("%%blockkernel --show ptx coal", "coal", ["coalesce"]),
        ("%%blockkernel --launch ad", "", []),
        ("%%blockkernel --without coal", "coal", ["coalesce"]),
        ("%%blockkernel --baseline np.e", "", []),
        ("%%blockkernel --baseline x --ba", "--ba", ["--baseline"]),
        ("%%blockkernel --check x --che", "--che", ["--checked"]),
        ("%%time --ta", "", []),
    ],
)
def test_options_complete(line, word, found):
    assert candidates(line) == (word, found)


def test_ipythons_completer_offers_the_options(shell):
    from IPython.core.completer import provisionalcompleter

    code = "%%blockkernel --tar\nx = 1"
    with provisionalcompleter():
        found = [(c.start, c.end, c.text) for c in shell.ip.Completer.completions(code, 19)]
    assert found == [(14, 19, "--target")]


def test_registering_twice_changes_nothing(shell):
    before = len(shell.ip.input_transformers_cleanup)
    register(shell.ip)
    assert len(shell.ip.input_transformers_cleanup) == before
    shell.run(f"%%blockkernel\n{ADD}{LAUNCH}")
    assert len(shell.cards) == 1


def test_a_card_is_json(shell):
    shell.run(f"%%blockkernel\n{ADD}{LAUNCH}")
    json.dumps(shell.cards[0])


# ---- what running kernels say --------------------------------------------------------------------------------------------

STRAY = """@blocknb.kernel(checked=False)
def stray(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))
"""


def test_checked_applies_only_to_launches_of_the_cell(shell, capsys):
    big = np.zeros(64, np.float32)
    shell.ip.user_ns.update(part=big[:60])
    result = shell.run(f"%%blockkernel --checked\n{STRAY}stray[1,](part, out, BLOCK=64)")
    assert type(result.error_in_exec).__name__ == "AccessError"
    assert "loads element 60 of `part`" not in str(result.error_in_exec)  # messages name the kernel's parameter
    assert "loads element 60 of `x`, which has 60 elements" in str(result.error_in_exec)
    assert launch_context.enforced == {}
    assert shell.run("stray[1,](part, out, BLOCK=64)").success


def test_checked_may_name_the_checks(shell):
    cell = "@blocknb.kernel\ndef same(out):\n    tl.store(out, tl.program_id(0).to(tl.float32))\nsame[2,](out)"
    result = shell.run(f"%%blockkernel --checked race\n{cell}")
    assert type(result.error_in_exec).__name__ == "RaceError"
    assert shell.run(f"%%blockkernel --checked init\n{cell}").success
    assert "is none of bounds, race, init, all" in str(shell.run(f"%%blockkernel --checked fast\n{cell}").error_in_exec)


def test_a_launch_may_override_checked(shell):
    shell.ip.user_ns.update(part=np.zeros(64, np.float32)[:60])
    assert shell.run(f"%%blockkernel --checked\n{STRAY}stray[1,](part, out, BLOCK=64, checked=False)").success


def test_prints_of_a_kernel_appear_in_the_cells_output(shell, capsys):
    shell.run("%%blockkernel --quiet\n@blocknb.kernel\ndef say(x):\n    print('x', tl.load(x))\nsay[2,](x)")
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("pid")] == [
        "pid (0, 0, 0) idx () x: 0.0",
        "pid (1, 0, 0) idx () x: 0.0",
    ]


def test_a_fault_that_cupy_reports_looks_like_an_error_of_blocknb(shell, capsys, monkeypatch):
    import sys
    import types

    from blocknb.runtime import driver

    class CUDARuntimeError(RuntimeError):
        pass

    monkeypatch.setitem(
        sys.modules, "cupy_backends.cuda.api.runtime", types.SimpleNamespace(CUDARuntimeError=CUDARuntimeError)
    )
    monkeypatch.setattr(driver, "_recent", type(driver._recent)(["first", "second"], 3))
    shell.ip.user_ns.update(CUDARuntimeError=CUDARuntimeError)
    shell.run("raise CUDARuntimeError('cudaErrorIllegalAddress: an illegal memory access was encountered')")
    text = capsys.readouterr().out
    assert "AccessError" in text
    assert "`second`" in text and "`first` may have been running" in text
    assert "context is lost" in text and "checked=True" in text
    assert "Traceback" not in text
    shell.run("raise CUDARuntimeError('cudaErrorMemoryAllocation: out of memory')")
    assert "Traceback" in capsys.readouterr().out


class LostClient:
    """A client whose cluster is gone after the cell has begun."""

    asked = 0

    def submit(self, *args): ...

    def scheduler_info(self): ...

    def run(self, *args):
        self.asked += 1
        if self.asked > 1:
            raise OSError("the scheduler is gone")
        return {}


def test_an_option_that_cannot_end_is_told_once_and_leaves_nothing_behind(shell, capsys):
    from blocknb.runtime import launch_context

    shell.ip.user_ns["client"] = LostClient()
    before = len(launch_context.observers), len(launch_context.preludes), len(launch_context.companions)
    result = shell.ip.run_cell("%%blockkernel --client client --checked\n1 / 0")
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert "the scheduler is gone" in capsys.readouterr().out
    assert (len(launch_context.observers), len(launch_context.preludes), len(launch_context.companions)) == before
    assert not launch_context.enforced
    assert shell.ip.run_cell("2 + 2").success
    said = capsys.readouterr()
    assert "Error in callback" not in said.out + said.err
