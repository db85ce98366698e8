"""Keeps the pages true: README.md and ARCHITECTURE.md stay short, and every path, module, link and IR op that a page names exists."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from blocknb.language.ops import OPS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / ".github").rglob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
README, ARCHITECTURE = 700, 900  # words at most
SENTENCE = 25  # words at most
#: Folders and files of the repository whose names begin a path.
TOP = ("blocknb/", "docs/", "labextension/", "notebooks/", "requirements/", "scripts/", "tests/", ".ci/", ".github/")
#: Where a path may begin. Pages of the compiler leave out `blocknb/`, and a page names its neighbours.
BASES = (ROOT, ROOT / "blocknb")
EXTENSIONS = "py|md|ts|css|json|ipynb|lock|toml|ir|txt|png"
CONTROL = {"func", "yield", "condition", "else", "roles", "for", "if", "while", "do"}  # words that begin a line of IR

_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_CODE_SPAN = re.compile(r"(`+)[^`]+\1")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(rf"^[\w./*-]+/[\w.*-]*$|^[\w.-]+\.(?:{EXTENSIONS})$")
_MODULE = re.compile(r"\bblocknb(?:\.\w+)+")
_IR = re.compile(r"^```ir\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ATTRS = re.compile(r"\{([^{}]*=[^{}]*)\}")
_KEY = re.compile(r"(?:^|, )(\w+)=")
#: Where a paragraph, an item of a list, a heading or a row of a table ends.
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>#]|\d+\.)\s)|\n(?=\|)")
_END = re.compile(r"(?<=[.?!;])[)\"*]*\s+")  # a semicolon ends a sentence, a colon does not
#: The text of a docstring, and the lines of a comment. Source code is not parsed, which would take ten times as long.
_DOCSTRING = re.compile(r'(?:\A|:(?: +#[^\n]*)?\n) *r?"""(.*?)"""', re.DOTALL)
_COMMENT = re.compile(r"(?:^ *#:? [^\n]*\n)+", re.MULTILINE)
_INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)  # code in a docstring
_OP = re.compile(r"^\s*(?:\w+> )?(?:%[^=]*= )?([a-z_]\w*)")


def ids(page: Path) -> str:
    """The name of a page in the name of a test."""
    return str(page.relative_to(ROOT))


def words(name: str) -> int:
    """The words of a page as `wc -w` counts them."""
    return len((ROOT / name).read_text(encoding="utf-8").split())


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and JupyterLab make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a Markdown text, also those in lists and cells. A text in backquotes is one word, a link the words that it shows."""
    text = _CODE_SPAN.sub("Code", re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", _FENCE.sub("\n\n", text)))
    for block in _BLOCK.split(text):
        for cell in block.strip().strip("|").split("|") if block.lstrip().startswith("|") else [block]:
            yield from _END.split(" ".join(cell.split()))


def long_sentences(text: str) -> list[str]:
    """The sentences with too many words. Signs such as list marks and dashes are no words."""
    return [s for s in sentences(text) if sum(any(c.isalnum() for c in word) for word in s.split()) > SENTENCE]


def named_paths(page: Path) -> Iterator[str]:
    """The texts in backquotes that look like paths of this repository, except for what `make` writes."""
    for code in _CODE.findall(prose(page)):
        if (
            _PATH.match(code)
            and any(c.isalpha() for c in code)
            and not code.startswith(("build/", "dist/"))
            and (code.startswith(TOP) or "/" in code or code.endswith((".md", ".py", ".ts")))
        ):
            yield code


def exists(path: str, page: Path, folders: set[Path]) -> bool:
    """Whether a path exists in the repository, in `blocknb/`, next to the page, or in a folder that the page has named before."""
    return any(next(base.glob(path.rstrip("/")), None) is not None for base in (*BASES, page.parent, *folders))


def resolves(name: str) -> bool:
    """Whether `blocknb.a.b.C` is a module, or a name that a module defines or exports."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            spec = importlib.util.find_spec(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        if spec is not None:
            return cut == len(parts) or parts[cut] in exported(".".join(parts[:cut]), spec.origin)
    return False


def exported(module: str, origin: str | None) -> set[str]:
    """The names that a module's text defines, imports or lists."""
    tree = ast.parse(Path(origin or "").read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    found |= {x.id for x in ast.walk(tree) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    found |= {alias.asname or alias.name for x in ast.walk(tree) if isinstance(x, ast.ImportFrom) for alias in x.names}
    return found | {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant) and isinstance(x.value, str)}


def test_readme_and_architecture_are_short() -> None:
    assert words("README.md") <= README
    assert words("ARCHITECTURE.md") <= ARCHITECTURE


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_sentences_of_a_page_are_short(page: Path) -> None:
    found = long_sentences(page.read_text(encoding="utf-8"))
    assert not found, f"{ids(page)} has sentences of more than {SENTENCE} words: " + " / ".join(found)


def explanations(text: str) -> Iterator[str]:
    """The docstrings of a source file without their code, and its comments."""
    for docstring in _DOCSTRING.findall(text):
        yield _INDENTED.sub("", inspect.cleandoc(docstring))
    for comment in _COMMENT.findall(text):
        yield re.sub(r"^ *#:? ", "", comment, flags=re.MULTILINE)


@pytest.mark.parametrize("folder", ["blocknb", "scripts", "tests"])
def test_sentences_of_docstrings_and_comments_are_short(folder: str) -> None:
    found = [
        f"{ids(path)}: {sentence}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for text in explanations(path.read_text(encoding="utf-8"))
        for sentence in long_sentences(text)
    ]
    assert not found, f"sentences of more than {SENTENCE} words: " + " / ".join(found)


@pytest.mark.parametrize(
    "form",
    [
        '"""{}"""\n',
        'def f(\n    x,\n):  # fmt: skip\n    """One.\n\n    {}\n    """\n',
        "x = 1\n#: {}\nY = 2\n",
        "    # One\n    # {}\n",
    ],
)
def test_long_sentences_are_found_in_docstrings_and_comments(form: str) -> None:
    long, short = (" ".join(["word"] * n) + "." for n in (SENTENCE + 1, SENTENCE - 1))
    assert [s for text in explanations(form.format(long)) for s in long_sentences(text)]
    assert not [s for text in explanations(form.format(short)) for s in long_sentences(text)]


@pytest.mark.parametrize(
    "form", ["{}", "A title:\n\n- One. {}", "1. {}\n2. Two.", "| a | b |\n|---|---|\n| c | {} |", "Short.\n{}"]
)
def test_long_sentences_are_found_in_each_form_of_text(form: str) -> None:
    long, short = (" ".join(["word"] * n) + "." for n in (SENTENCE + 1, SENTENCE))
    assert long_sentences(form.format(long)) and not long_sentences(form.format(f"{short} `a b c`. {short}"))


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_path_that_a_page_names_exists(page: Path) -> None:
    folders, missing = set[Path](), []
    for path in named_paths(page):
        if not exists(path, page, folders):
            missing.append(path)
            continue
        for base in BASES:
            found = base / path
            folders |= {found if found.is_dir() else found.parent} if found.exists() else set()
    assert not missing, f"{ids(page)} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    named = {name for code in _CODE.findall(prose(page)) for name in _MODULE.findall(code)}
    assert not (lost := sorted(name for name in named if not resolves(name))), f"{ids(page)} names {', '.join(lost)}"


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_link_of_a_page_has_an_existing_target(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", prose(page))):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken, f"{ids(page)} links to {', '.join(broken)}"


def test_docs_readme_lists_every_page() -> None:
    docs = ROOT / "docs"
    listed = {(docs / link).resolve() for link in _LINK.findall((docs / "README.md").read_text(encoding="utf-8"))}
    assert not {
        str(p.relative_to(docs)) for p in docs.rglob("*.md") if p.resolve() not in listed and p != docs / "README.md"
    }


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_every_op_and_attribute_in_the_ir_of_a_page_is_in_the_op_table(page: Path) -> None:
    unknown = set()
    for block in _IR.findall(page.read_text(encoding="utf-8")):
        for line in block.splitlines():
            code = line.partition("//")[0]
            op = found[1] if (found := _OP.match(code)) else "func"
            if op not in OPS and op not in CONTROL:
                unknown.add(op)
            elif op not in CONTROL and (braces := _ATTRS.search(code)):
                unknown |= {f"{op} {{{key}}}" for key in _KEY.findall(braces[1]) if key not in OPS[op].attrs}
    assert not unknown, f"{ids(page)} shows {', '.join(sorted(unknown))}"


def test_every_view_has_a_tab() -> None:
    folder = ROOT / "labextension/src/core/views"
    views = {path.stem for path in folder.glob("*.ts") if ": ViewSpec" in path.read_text()} - {"index"}
    tabs = (folder / "index.ts").read_text().partition("VIEWS")[2]
    assert views == set(re.findall(r"^  (\w+),$", tabs, re.MULTILINE))


def test_the_page_of_the_card_has_a_section_for_each_view() -> None:
    views = (ROOT / "labextension/src/core/views").glob("*.ts")
    titles = {title for path in views for title in re.findall(r"^  title: '(.*)',$", path.read_text(), re.MULTILINE)}
    assert titles >= {"Code", "Passes"}
    assert not {title for title in titles if title.lower() not in anchors(ROOT / "docs" / "card.md")}
