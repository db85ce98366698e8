"""Lists sentences of the course that are too long, and terms that are used before they are explained.

    python scripts/course_prose.py           # both lists; the exit status is 1 if one of them is not empty
    python scripts/course_prose.py --terms   # where each term is explained

It reads the text cells of notebooks/course in their order. It reads the texts of an exercise (task, hints, sentences about mistakes) in the
place where the notebook has the exercise. A term is explained where a text cell shows it in bold, `**warp**` or `**[warp](link)**`. Code,
tables, headings and links to other pages are not prose. `TERMS` lists the words that a reader who knows NumPy does not know. Code may use
an option of `OPTIONS` after a text cell has named it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COURSE = ROOT / "notebooks" / "course"
sys.path.insert(0, str(ROOT))

MOST_WORDS = 25

#: Terms, with the pattern of their forms. A term that no notebook uses is harmless. Everyday words are left out where they cannot be told
#: from the term ("block of text", "we launch").
TERMS = {
    "kernel": r"kernels?",
    "program": r"programs?",
    "block": r"blocks?",
    "grid": r"grids?",
    "launch": r"launch(?:es|ed)?",
    "pointer": r"pointers?",
    "mask": r"masks?|masked",
    "card": r"cards?",
    "lane": r"lanes?",
    "row-major order": r"row-major(?: order)?",
    "stride": r"strides?",
    "tile": r"tiles?",
    "view": r"views?",
    "fp32": r"fp32",
    "fp16": r"fp16",
    "multiprocessor": r"multiprocessors?|SMs?",
    "warp": r"warps?",
    "register": r"registers?",
    "request": r"requests?",
    "sector": r"sectors?",
    "coalesced": r"coalesc\w+",
    "latency": r"latency|latencies",
    "occupancy": r"occupancy",
    "shared memory": r"shared memory",
    "reduction": r"reductions?",
    "race": r"races?",
    "atomic": r"atomics?|atomically",
    "barrier": r"barriers?",
    "fusion": r"fusion|fused?|fusing",
    "softmax": r"softmax",
    "roofline": r"rooflines?",
    "autotuner": r"autotun\w+",
    "cache": r"caches?|L2",
    "bandwidth": r"bandwidth",
    "accumulator": r"accumulators?",
    "epilogue": r"epilogues?",
    "tensor core": r"tensor cores?",
    "wgmma": r"`?wgmma`?",
    "bank": r"banks?|bank conflicts?",
    "swizzle": r"swizzl\w+",
    "spill": r"spills?|spilled",
    "pipelining": r"(?:software )?pipelin\w+",
    "stage": r"num_stages|stages?",
    "TMA": r"TMA",
    "tensor descriptor": r"(?:tensor )?descriptors?",
    "persistent": r"persistent",
    "wave": r"waves?",
    "online softmax": r"online softmax",
    "attention": r"attention",
    "query": r"quer(?:y|ies)",
    "causal attention": r"causal(?: attention)?",
    "warp specialization": r"warp[- ]specializ\w+",
    "barrier object": r"mbarriers?",
    "PTX": r"PTX",
    "SASS": r"SASS",
    "CTA": r"CTAs?",
    "thread": r"threads?",
}
#: Options of kernels that code passes, as `num_stages=3`.
OPTIONS = ("num_warps", "num_stages")
#: Terms that a cell may use without an explanation: the lines "Where this stands in CUDA and Triton" speak to readers of those.
_ASIDE = re.compile(r"\*\*Where this stands in CUDA and Triton\.\*\*.*?(?=\n\n|\Z)", re.DOTALL)

_FENCE = re.compile(r"```.*?```", re.DOTALL)
_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
_HEADING = re.compile(r"^#+ .*$", re.MULTILINE)
_IMAGE = re.compile(r"!\[([^\]]*)\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_BOLD = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) ", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*`A-Z0-9]|blocknb)|\n\s*\n")


@dataclass(frozen=True)
class CourseText:
    """A piece of prose: the file, the number of its cell, and the name of the exercise if it belongs to one."""

    file: str
    cell: int
    text: str
    exercise: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}, cell {self.cell}" + (f", {self.exercise}" if self.exercise else "")


def texts(folder: Path = COURSE) -> Iterator[CourseText]:
    """The prose of the course in the order in which a reader meets it."""
    from blocknb.learn import UnknownExercise, exercise

    for file in sorted(folder.glob("*.ipynb")):
        for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                yield CourseText(file.name, number, source)
                continue
            for name in re.findall(
                r"^(?:%%blockkernel .*--exercise |%predict |%exercise )([\w-]+)", source, re.MULTILINE
            ):
                try:
                    item = exercise(name)
                except UnknownExercise:
                    continue
                told = [getattr(item, "task", ""), getattr(item, "question", ""), *item.hints]
                told += [mistake.says for mistake in getattr(item, "mistakes", ())]
                told += [text for _, text in getattr(item, "wrong", ())]
                for text in told:
                    yield CourseText(file.name, number, text, name)


def prose(text: str) -> str:
    """A text without code blocks, tables and the addresses of links. Inline code becomes one word, a heading a sentence."""
    for pattern, to in ((_FENCE, "\n\n"), (_TABLE, "\n\n"), (_HEADING, "\n\n"), (_IMAGE, r"\1\n\n"), (_LINK, r"\1")):
        text = pattern.sub(to, text)
    return _ITEM.sub("\n\n", _CODE.sub("Code", text))


def sentences(text: str) -> list[str]:
    """The sentences of a text. A colon ends one, because what follows it stands on its own."""
    return [" ".join(part.split()) for part in _END.split(prose(text)) if part.strip()]


def long_sentences(found: list[CourseText]) -> list[str]:
    """The sentences with more than 25 words, each with its place."""
    return [
        f"{text.place}: {len(sentence.split())} words: {sentence}"
        for text in found
        for sentence in sentences(text.text)
        if len(sentence.split()) > MOST_WORDS
    ]


def explanations(found: list[CourseText]) -> dict[str, int]:
    """Where each term is explained: the index of the text that shows it in bold first."""
    places: dict[str, int] = {}
    for number, text in enumerate(found):
        bold = [_LINK.sub(r"\1", words) for words in _BOLD.findall(text.text)] if not text.exercise else []
        for term, pattern in TERMS.items():
            if any(re.fullmatch(pattern, words.strip("` "), re.IGNORECASE) for words in bold):
                places.setdefault(term, number)
    return places


def early_terms(found: list[CourseText]) -> list[str]:
    """The first use of each term that comes before its explanation, or has none."""
    places, early = explanations(found), []
    for term, pattern in TERMS.items():
        for text in found[: places.get(term, len(found))]:
            words = _CODE.sub(" ", _ASIDE.sub(" ", prose(text.text)))
            if used := re.search(rf"(?<![\w`%-])(?:{pattern})(?![\w-])", words):
                told = f"explained in {found[places[term]].place}" if term in places else "explained nowhere"
                around = " ".join(words[max(0, used.start() - 40) : used.end() + 30].split())
                early.append(f"{text.place}: {term}, {told}: ... {around} ...")
                break
    return early


def early_options(folder: Path = COURSE) -> list[str]:
    """The first code cell that passes an option before any text cell has named it."""
    named: set[str] = set()
    early = []
    for file in sorted(folder.glob("*.ipynb")):
        for number, cell in enumerate(json.loads(file.read_text(encoding="utf-8"))["cells"]):
            source = "".join(cell["source"])
            for option in OPTIONS:
                if cell["cell_type"] == "markdown" and f"`{option}" in source:
                    named.add(option)
                elif cell["cell_type"] == "code" and option not in named and re.search(rf"\b{option}=", source):
                    named.add(option)  # its later uses are no news
                    early.append(f"{file.name}, cell {number}: the code passes {option}, which no text cell has named")
    return early


def main() -> int:
    """Prints the lists; returns the exit status."""
    parser = argparse.ArgumentParser(description="Lists long sentences and unexplained terms of the course.")
    parser.add_argument("--terms", action="store_true", help="list where each term is explained")
    parser.add_argument(
        "--notebook", default="", metavar="NAME", help="print only what concerns notebooks with this name"
    )
    options = parser.parse_args()
    found = list(texts())
    if options.terms:
        for term, number in explanations(found).items():
            print(f"{term}: {found[number].place}")
        return 0
    lists = (*long_sentences(found), *early_terms(found), *early_options())
    wrong = [line for line in lists if line.startswith(options.notebook)]
    print("\n".join(wrong) or "No sentence is too long, and every term is explained before its use.")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
