"""Differences of LLVM text, PTX, SASS and assembly: lines aligned without regard to registers, labels and addresses, and counts by class.

A line is reduced to what the instruction does: opcode, types, and constants. The reduced lines are aligned (Myers, "An O(ND) difference
algorithm", 1986, as `difflib` approximates it), so that a renamed register is no difference. The sentences count instructions by class,
and compare what decides the speed: the width of accesses, registers and spills.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blocknb.ir_diff.sentence_writer import ChangeSentence, joined
from blocknb.ir_diff.sequences import equal_runs
from blocknb.trace import Resources

#: The parts of instructions that a comparison ignores: registers, labels, addresses, numbers of metadata. In SASS, `.reuse` goes with a
#: register: ptxas sets it where the next instruction reads the register again.
_NAMES = {
    "ptx": re.compile(r"%\w+|\$L\w+|\bL__\w+|\b\w*_\d+(?=[;:])|//.*$"),
    "sass": re.compile(
        r"/\*.*?\*/|\bU?[RP]\d+\b(?:\.reuse\b)?|\bU?R[Z]\b(?:\.reuse\b)?|\bB\d+\b|`\([^)]*\)|\.L\w+|\bSB\d+\b"
    ),
    "llvm": re.compile(r"%[\w.]+|![\w.]*\d*|#\d+|;.*$|\b\d+:"),
    "asm": re.compile(r"%\w+|\.L\w+|#.*$|-?\b\d+\(|\b[wxvqd]\d+\b"),
}
_OPCODE = {
    "ptx": re.compile(r"^\s*(?:\{\s*)?(?:@!?%\w+\s+)?([a-z][a-z0-9_]*(?:\.[\w:]+)*)(?=[\s;]|$)"),
    "sass": re.compile(r"^\s*(?:/\*.*?\*/\s*)?(?:\{\s*)?(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9]*(?:\.[\w.]+)?)(?=[\s;]|$)"),
    "llvm": re.compile(r"^\s+(?:[%@][\w.]+ = )?(?:tail )?([a-z]\w*)\b"),
    "asm": re.compile(r"^\s+([a-z][a-z0-9.]*)(?=\s|$)"),
}
#: The class of an instruction, by the beginning of its opcode; the longest one counts.
_CLASSES = {
    "ptx": {
        "ld.global": "global load", "st.global": "global store", "ld.shared": "shared load", "st.shared": "shared store",
        "ld.local": "spill load", "st.local": "spill store", "ldmatrix": "ldmatrix", "stmatrix": "stmatrix",
        "cp.async.bulk": "TMA copy", "cp.async": "cp.async", "mma": "mma", "wgmma.mma_async": "wgmma", "bar": "barrier",
        "mbarrier": "mbarrier", "shfl": "shuffle", "bra": "branch", "atom": "atomic", "red": "atomic",
        "fma": "fma", "ex2": "special function", "lg2": "special function", "rcp": "special function",
        "sqrt": "special function", "rsqrt": "special function", "sin": "special function", "cos": "special function",
    },
    "sass": {
        "LDG": "global load", "STG": "global store", "LDS": "shared load", "STS": "shared store", "LDSM": "ldmatrix",
        "STSM": "stmatrix", "LDL": "spill load", "STL": "spill store", "LDGSTS": "cp.async", "UTMALDG": "TMA load",
        "UTMASTG": "TMA store", "UBLKCP": "TMA copy", "HMMA": "mma", "IMMA": "mma", "DMMA": "mma", "HGMMA": "wgmma",
        "IGMMA": "wgmma", "QGMMA": "wgmma", "WARPGROUP": "warpgroup synchronization", "BAR": "barrier", "SYNCS": "mbarrier",
        "SHFL": "shuffle", "BRA": "branch", "ATOM": "atomic", "RED": "atomic", "MUFU": "special function", "FFMA": "fma",
        "HFMA2": "fma", "DFMA": "fma", "NOP": "nop",
    },
    "llvm": {"load": "load", "store": "store", "call": "call", "br": "branch", "phi": "phi"},
    "asm": {},
}  # fmt: skip
_BITS = {
    "ptx": re.compile(r"^(?:ld|st)\.global\S*?(?:\.v(\d))?\.[bfus](\d+)"),
    "sass": re.compile(r"^(?:LDG|STG)\.E(?:\.\w+)*?(?:\.(64|128|U8|S8|U16|S16))?(?:\.|$)"),
}
_WORTH = ("global", "shared", "spill", "matrix", "mma", "async", "TMA", "barrier", "atomic", "fma", "special function")
#: Floating-point arithmetic, which a kernel computes with; the other arithmetic is mostly that of addresses.
_FLOAT = {
    "ptx": re.compile(r"(?:add|sub|mul|div|min|max)\.(?:\w+\.)*(?:bf16|f16|f32|f64)(?:x2)?$"),
    "sass": re.compile(r"F(?:ADD|MUL|MNMX)|H(?:ADD2|MUL2|MNMX2)|D(?:ADD|MUL)"),
    "llvm": re.compile(r"f(?:add|sub|mul|div)"),
    "asm": re.compile(r"v?(?:add|sub|mul|div|min|max)[ps][sd]|vf?n?m(?:add|sub)\w*|f(?:add|sub|mul|div|mla)"),
}
MOST_CLASSES = 10


@dataclass(frozen=True)
class CodeDifference:
    """The difference of two listings of one language.

    `pairs` are the lines that correspond to each other (0-based), `same` those of them that do the same; `sentences` the summary.
    `is_same`: the texts differ in names only.
    """

    pairs: tuple[tuple[int, int], ...]
    same: frozenset[tuple[int, int]]
    sentences: tuple[ChangeSentence, ...]

    is_same: bool = False


def reduced(line: str, language: str) -> str:
    """The instruction of a line, without names of registers, labels and addresses."""
    return " ".join(_NAMES[language].sub("_", line).split())


def compare_code(
    a: str,
    b: str,
    language: str,
    lines_a: Sequence[int] = (),
    lines_b: Sequence[int] = (),
    resources: tuple[Resources, Resources] | None = None,
) -> CodeDifference:
    """Compares two texts in "llvm", "ptx", "sass" or "asm". `lines_a` and `lines_b` are the source lines of their lines (0: none)."""
    one, two = ([reduced(line, language) for line in text.split("\n")] for text in (a, b))
    pairs: list[tuple[int, int]] = []
    same: set[tuple[int, int]] = set()
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if tag == "equal":
            run = list(zip(range(i0, i1), range(j0, j1), strict=True))
            pairs += run
            same |= set(run)
        elif tag == "replace":
            texts = (a.split("\n")[i0:i1], b.split("\n")[j0:j1])
            opcodes = [[_opcode(line, language) for line in side] for side in texts]
            for x, y, n in equal_runs(opcodes[0], opcodes[1]):
                pairs += [(i0 + x + k, j0 + y + k) for k in range(n)]
    sentences = (*_resource_sentences(resources), *_class_sentences(a, b, language, lines_a, lines_b))
    return CodeDifference(tuple(pairs), frozenset(same), sentences, len(same) == len(one) == len(two))


def _opcode(line: str, language: str) -> str:
    found = _OPCODE[language].match(line)
    return found[1] if found and not line.rstrip().endswith(":") else ""


def instruction_class(opcode: str, language: str) -> str:
    """The class of an opcode, such as "global load"; the first word of the opcode if it has no class."""
    classes = _CLASSES[language]
    parts = opcode.replace("::", ":").split(".")
    for n in range(len(parts), 0, -1):
        if found := classes.get(".".join(parts[:n])):
            return found
    return parts[0]


def _counted(opcode: str, language: str) -> str:
    """The class of an opcode; in PTX, where `add` is of integers, too, floating-point arithmetic with its type: "add.f32"."""
    kind = instruction_class(opcode, language)
    return f"{kind}.{opcode.split('.')[-1]}" if language == "ptx" and _FLOAT["ptx"].match(opcode) else kind


def _instructions(text: str, language: str, lines: Sequence[int]) -> list[tuple[str, str, int]]:
    """Each instruction's opcode, class and source line (0: none)."""
    found = []
    for i, line in enumerate(text.split("\n")):
        if opcode := _opcode(line, language):
            found.append((opcode, _counted(opcode, language), lines[i] if i < len(lines) else 0))
    return found


def _class_sentences(
    a: str, b: str, language: str, lines_a: Sequence[int], lines_b: Sequence[int]
) -> Iterable[ChangeSentence]:
    one, two = _instructions(a, language, lines_a), _instructions(b, language, lines_b)
    counts = [Counter(kind for _, kind, _ in side) for side in (one, two)]
    for text, lines in _widths(one, two, language):
        yield ChangeSentence(text, 80, lines=lines)
    changed = [kind for kind in {**counts[0], **counts[1]} if counts[0][kind] != counts[1][kind]]
    difference = {kind: abs(counts[1][kind] - counts[0][kind]) for kind in changed}
    most = max(difference.values(), default=0)
    worth = [
        kind
        for kind in changed
        if difference[kind] == most > 1 or _FLOAT[language].match(kind) or any(w in kind for w in _WORTH)
    ]
    for kind in sorted(worth, key=lambda kind: -difference[kind]):
        text = f"{counts[1][kind] - counts[0][kind]:+d} {kind} ({counts[0][kind]} → {counts[1][kind]})".replace(
            "-", "−", 1
        )
        yield ChangeSentence(text, 60, lines=_where(one, two, kind))
    others = [kind for kind in changed if kind not in worth]
    rest = sorted(others, key=lambda kind: -difference[kind])[:MOST_CLASSES]
    if rest:
        each = ", ".join(f"{counts[1][kind] - counts[0][kind]:+d} {kind}".replace("-", "−", 1) for kind in rest)
        yield ChangeSentence(f"other instructions: {each}", 20)
    if len(one) != len(two):
        yield ChangeSentence(f"{len(two)} instructions instead of {len(one)}", 40)


def _where(one: list[tuple[str, str, int]], two: list[tuple[str, str, int]], kind: str) -> tuple[int, ...]:
    """The source lines whose number of instructions of a class differs."""
    counts = [Counter(line for _, found, line in side if found == kind and line) for side in (one, two)]
    return tuple(sorted(line for line in {**counts[0], **counts[1]} if counts[0][line] != counts[1][line]))


def _widths(
    one: list[tuple[str, str, int]], two: list[tuple[str, str, int]], language: str
) -> Iterable[tuple[str, tuple[int, ...]]]:
    """The widths of global loads and stores, where they differ."""
    if language not in _BITS:
        return
    for kind in ("global load", "global store"):
        bits: list[dict[int, list[int]]] = []
        for side in (one, two):
            found: dict[int, list[int]] = defaultdict(list)
            for opcode, its_kind, line in side:
                if its_kind == kind and (width := access_bits(opcode, language)):
                    found[width].append(line)
            bits.append(found)
        if bits[0] and bits[1] and set(bits[0]) != set(bits[1]):
            old, new = (joined([f"{width}" for width in sorted(side, reverse=True)]) for side in bits)
            lines = sorted({line for side in bits for found in side.values() for line in found if line})
            yield f"{kind}s of {new} bits instead of {old} bits", tuple(lines)


def access_bits(opcode: str, language: str) -> int:
    """The bits per thread of a global load or store; 0 for another instruction."""
    found = _BITS[language].match(opcode)
    if found is None:
        return 0
    if language == "ptx":
        return int(found[1] or 1) * int(found[2])
    return int((found[1] or "32").lstrip("US"))


def _resource_sentences(resources: tuple[Resources, Resources] | None) -> Iterable[ChangeSentence]:
    if resources is None:
        return
    a, b = resources
    for name, what, weight in (
        ("spill_bytes", "bytes of spilled registers per thread", 95),
        ("registers", "registers per thread", 90),
        ("shared_bytes", "bytes of shared memory per CTA", 85),
        ("threads", "threads per CTA", 85),
    ):
        old, new = getattr(a, name), getattr(b, name)
        if old != new and new is not None and old is not None:
            yield ChangeSentence(f"{new} {what} instead of {old}", weight)
