"""HTML and scripts in the names, strings and comments of a kernel are rendered as text in every view and in both exports."""

from __future__ import annotations

import pytest
from browser import Page
from laboratory import SCRIPT, Card, Notebook
from softmax import SETUP

#: Pictures that the card did not draw. A picture in a data URI runs no script.
FOREIGN = "img:not([src^='data:image/png']):not([src^='data:image/svg+xml'])"


def bad(mark):
    return (
        f"</script></style></noscript><img src=x onerror=window.pwned=`{mark}`><script>window.pwned=`{mark}`</script>"
    )


KERNEL = f"""\
%%blockkernel --check CHECK --baseline BASELINE --without coalesce --sweep BLOCK=64,128
@blocknb.kernel
def ηostile(x, out, BLOCK: tl.constexpr, TEXT: tl.constexpr):
    '''{bad("docstring")}'''
    at = tl.arange(0, BLOCK)  # {bad("comment")}
    tl.static_assert(TEXT == TEXT, {bad("string")!r})
    tl.store(out + at, tl.load(x + at) + 1)

a = np.ones(4096, np.float32)
b = np.empty_like(a)
ηostile[1,](a, b, BLOCK=128, TEXT={bad("constant")!r});
"""


def harmless(page: Page, card: Card) -> None:
    assert page.run("() => window.pwned ?? null") is None
    assert card("img, script, iframe, object, embed, style:not(.cm-style)").count == 0


@pytest.fixture(scope="module")
def hostile(lab, shared_page):
    source = KERNEL.replace("CHECK", f'"{bad("check")!r} != 0"').replace("BASELINE", f'"len({bad("baseline")!r})"')
    changed = source.replace("+ 1)", "+ 2)")
    name = "<img src=x onerror=pwned=1>.ipynb"
    notebook = Notebook(shared_page, lab.write(name, [SETUP, source, changed, "ηostile.export_html('hostile.html')"]))
    notebook.run(0, 1, 2, 3)
    notebook.save()
    yield notebook
    notebook.close()


def test_a_hostile_kernel_is_text_in_every_view(hostile, page):
    card = hostile.card(2)
    card.until_state("live")
    for title in card.titles:
        card.open(title)
        harmless(page, card)
    card.open("Code")
    assert bad("baseline") in card.open("Bench").text
    history = card.open("History")
    history("[aria-label='What to compare']").choose("source")
    history.until_text(bad("comment"))
    harmless(page, card)


def test_a_hostile_kernel_is_text_in_the_exported_page(hostile, browser, lab):
    for script in (True, False):
        page = browser.open(SCRIPT if script else "", javaScriptEnabled=script)
        page.goto((lab.folder / "hostile.html").as_uri())
        if script:
            card = Card(page, ".bnb-card")
            card.wait()
            for title in card.titles:
                card.open(title)
                harmless(page, card)
        else:
            assert bad("comment") in page("body").text
            assert page(f"body {FOREIGN}").count == 0
        assert page.errors() == []
        page.close()


def test_a_hostile_kernel_is_text_in_the_page_of_nbconvert(hostile, browser, lab):
    from nbconvert import HTMLExporter

    text, _ = HTMLExporter().from_filename(str(lab.folder / hostile.path))
    (lab.folder / "converted.html").write_text(text, "utf-8")
    page = browser.open()
    page.set_offline(True)
    page.goto((lab.folder / "converted.html").as_uri())
    assert page.run("() => window.pwned ?? null") is None
    assert page(f".jp-OutputArea-output {FOREIGN}").count == 0
    assert bad("comment") in "".join(page(".jp-OutputArea-output").texts)
    page.close()
