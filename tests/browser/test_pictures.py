"""The card looks as in the stored pictures: in JupyterLab, at three widths, in both themes, at a zoom of 100 and 200 %.

`python scripts/pictures.py` takes the pictures again after a wanted change. Look at them before you commit them.
"""

from __future__ import annotations

import pytest
from pictures import STORED, THEMES, VIEWS, WIDTHS, Shot, Studio, differing, differs
from PIL import Image

MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def studio(lab, shared_page):
    made = Studio(lab, shared_page)
    yield made
    made.close()


@pytest.fixture(params=sorted(THEMES))
def theme(request, studio, page):
    studio.theme(request.param)
    return request.param


def test_the_header_looks_as_stored_at_every_width(studio, theme):
    assert [found for shot, picture in studio.take("Header", theme) if (found := differs(shot, picture))] == []


@pytest.mark.sampled(7)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_looks_as_stored_at_every_width(studio, theme, view):
    assert [found for shot, picture in studio.take(view, theme) if (found := differs(shot, picture))] == []


#: The header of before: its facts as a list of terms, which JupyterLab's own rules float.
FLOATED = """(card) => {
  const facts = card.querySelector('.bnb-facts');
  const list = document.createElement('dl');
  list.className = 'bnb-facts';
  for (const fact of facts.children) {
    const [label, text] = fact.children;
    list.append(Object.assign(document.createElement('dt'), { textContent: label.textContent }));
    list.append(Object.assign(document.createElement('dd'), { textContent: text.textContent }));
  }
  facts.replaceWith(list);
}"""


def test_a_header_whose_terms_float_is_a_difference(studio, page):
    """The comparison finds the fault for which it was made, and not one row of pixels more or less."""
    studio.theme("light")
    studio.card.run("(card) => { card.querySelector('details').open = true; }")
    before = dict(studio.take("Header", "light"))
    studio.card.run(FLOATED)
    after = dict(studio.take("Header", "light"))
    try:
        for shot, picture in before.items():
            moved = picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, 1))
            assert differing(picture, moved) < 0.01
            taller = abs(after[shot].height - picture.height) > 0.03 * picture.height
            assert taller or differing(picture, after[shot]) > 0.03, shot
    finally:
        studio.card.run("(card) => { card.querySelector('details').open = false; }")


def test_the_stored_pictures_are_small_and_complete():
    stored = {file.name: file.stat().st_size for file in STORED.iterdir()}
    assert sum(stored.values()) < MOST_BYTES
    wanted = {Shot(what, theme, width).file.name for what in ("Header", *VIEWS) for theme in THEMES for width in WIDTHS}
    assert set(stored) == wanted | {"card.json.gz"}
