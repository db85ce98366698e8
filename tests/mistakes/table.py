"""Runs the whole corpus and prints its table as markdown: mistake, found by which check, time, message.

PYTHONPATH=. python tests/mistakes/table.py [wrong|right] [words of a name ...] [--silent]
"""

from __future__ import annotations

import sys

from corpus import Entry, Shell, Told, entries


def row(entry: Entry, told: Told) -> str:
    """One row of the table."""
    missing = told.missing(entry)
    named = "named" if not missing else "silent" if told.check == "none" else f"misses {', '.join(missing)}"
    message = " ".join(told.text.split("\n")[0].split()) if told.check != "none" else ""
    cells = (entry.group, entry.name, told.check, f"{told.seconds * 1000:.0f} ms", named, message)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main(kind: str, words: list[str], whole: bool) -> int:
    """Prints the table, or whole messages of those that are not named; returns the number of these."""
    shell, left, count = Shell(), 0, 0
    print("| group | cell | found by | time | outcome | message |\n|---|---|---|---|---|---|")
    for entry in entries(kind).values():
        if words and not all(word in entry.name or word == entry.group for word in words):
            continue
        told = shell.run(entry)
        wrong = bool(told.missing(entry)) if kind == "wrong" else told.accused
        count, left = count + 1, left + wrong
        if wrong or not whole:
            print(row(entry, told), flush=True)
        if wrong and whole:
            print("\n" + told.text + "\n")
    print(f"\n{count - left} of {count} cells {'named' if kind == 'wrong' else 'without an accusation'}")
    return left


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    main(given[0] if given else "wrong", given[1:], "--silent" in sys.argv)
