"""Tab completion on the `%%blockkernel` line: its options, targets after `--target`, names of sections after `--show`.

IPython completes a magic's name and, with Jedi, the body, but not a magic's options; a context matcher of its own does that. The
completer splits words at dashes and dots, so the fragment to replace is worked out here and given back with the answer.
"""

from __future__ import annotations

import re
from typing import Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher

OPTIONS = ("--target", "--launch", "--show", "--quiet")
_LINE = re.compile(r"%%?blockkernel\s(?P<before>.*\s)?(?P<word>\S*)$")


def candidates(text: str) -> tuple[str, list[str]]:
    """(the word at the end of a magic line up to the cursor, what it may become); ("", []) on any other line."""
    found = _LINE.match(text.lstrip())
    if found is None:
        return "", []
    word, earlier = found["word"], (found["before"] or "").split()
    previous = earlier[-1] if earlier else ""
    if previous == "--target":
        from blocknb.target import known

        return word, [name for name in known() if name.startswith(word)]
    if previous == "--launch":
        return "", []  # a Python expression: the other matchers know more
    if previous == "--show" or ("--show" in earlier and not word.startswith("-")):
        return word, [name for name in section_names() if name.startswith(word)]
    return word, [option for option in OPTIONS if option.startswith(word) and option not in earlier]


def section_names() -> list[str]:
    """What `--show` takes."""
    from blocknb.notebook.sections import KEYS
    from blocknb.passes import pipeline
    from blocknb.target import Target

    return [*KEYS, "all", "parse", *(p.name for p in pipeline(Target.parse("sm_90a")))]


@context_matcher(identifier="blocknb.options")
def options_matcher(context: CompletionContext) -> SimpleMatcherResult:
    if context.cursor_line != 0:
        return SimpleMatcherResult(completions=[])
    word, found = candidates(context.text_until_cursor)
    completions = [SimpleCompletion(text=text, type="magic option") for text in found]
    return SimpleMatcherResult(completions=completions, matched_fragment=word, suppress=bool(found), ordered=True)


def install(shell: Any) -> None:
    """Adds the matcher to a shell's completer, once."""
    matchers = shell.Completer.custom_matchers
    if options_matcher not in matchers:
        matchers.append(options_matcher)
