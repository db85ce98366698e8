"""Tab completion of the options of `%%blockkernel` and of the line magics, and of option values that are names.

IPython completes the names of magics and, with Jedi, the body, but not the options, so this module adds a context matcher. IPython's
completer splits words at dashes and dots. So the matcher finds the fragment to replace and returns it with the candidates.
"""

from __future__ import annotations

import re
from typing import Any

from IPython import get_ipython
from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

from blocknb.notebook import lines, options

OPTIONS = ("--target", "--launch", "--show", "--quiet", "--interpret", "--checked", "--memory")
REPEATABLE = ("--baseline", "--without")
_LINE = re.compile(r"%%?blockkernel\s(?P<before>.*\s)?(?P<word>\S*)$")
_OTHER = re.compile(r"%(?P<name>\w+)\s(?:.*\s)?(?P<word>\S*)$")


def candidates(text: str, shell: Any = None) -> tuple[str, list[str]]:
    """(the word before the cursor on a magic line, its completions); ("", []) on any other line."""
    found = _LINE.match(text.lstrip())
    if found is None:
        return _of_line_magic(text.lstrip(), shell)
    word, earlier = found["word"], (found["before"] or "").split()
    last = next((w for w in reversed(earlier) if w.startswith("--")), "")
    more = {option.name: option for option in options.options()}
    if not word.startswith("-") and (found_values := _values(word, earlier, last, more)) is not None:
        return found_values
    left = [o for o in (*OPTIONS, *more) if o not in earlier or o in REPEATABLE]
    return word, [option for option in left if option.startswith(word)]


def _values(word: str, earlier: list[str], last: str, more: dict[str, Any]) -> tuple[str, list[str]] | None:
    """The completions of a word after the `last` option, as `candidates` returns them; None if the option takes no value."""
    if last == "--target" and earlier[-1] == last:
        from blocknb.target import known

        return word, [name for name in known() if name.startswith(word)]
    if last == "--show":
        return word, [name for name in section_names() if name.startswith(word)]
    if last in more and (complete := more[last].complete):
        return word, list(complete(word))
    if last == "--launch" or last in more:
        return "", []  # a Python expression, which the other matchers complete
    return None


def _of_line_magic(text: str, shell: Any) -> tuple[str, list[str]]:
    found = _OTHER.match(text)
    if found is None or shell is None or found["name"] not in lines.LINES:
        return "", []
    return found["word"], list(lines.LINES[found["name"]].complete(found["word"], shell))


def section_names() -> list[str]:
    """The values of `--show`."""
    from blocknb.notebook.sections import KEYS
    from blocknb.passes import pipeline
    from blocknb.target import Target

    return [*KEYS, "all", "parse", *(p.name for p in pipeline(Target.parse("sm_90a")))]


@context_matcher(identifier="blocknb.options")
def options_matcher(context: CompletionContext) -> SimpleMatcherResult:
    """The context matcher that IPython's completer calls."""
    line = context.text_until_cursor
    if context.cursor_line != 0 and "blockkernel" in line:
        return SimpleMatcherResult(completions=[])
    word, found = candidates(line, get_ipython())
    completions = [SimpleCompletion(text=text, type="magic option") for text in found]
    return SimpleMatcherResult(completions=completions, matched_fragment=word, suppress=bool(found), ordered=True)


def install(shell: Any) -> None:
    """Adds the matcher to a shell's completer, once."""
    matchers = shell.Completer.custom_matchers
    if options_matcher not in matchers:
        matchers.append(options_matcher)
