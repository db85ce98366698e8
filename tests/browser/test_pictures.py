"""The card looks as in the stored pictures: in JupyterLab, at three widths, in both themes, at a zoom of 100 and 200 %.

The quick tests compare one header and one view in the light theme. `python scripts/pictures.py` takes the pictures again after a wanted
change. Look at them before you commit them.
"""

from __future__ import annotations

import pytest
from laboratory import THEMES, VIEWS
from pictures import HEADERS, STORED, WIDTHS, Shot, Studio, differing, differs
from PIL import Image

MOST_BYTES = 1_500_000


@pytest.fixture(scope="module")
def studio(lab, shared_page):
    made = Studio(lab, shared_page)
    yield made
    made.close()


def rare(values, quick):
    """The values as parameters; all but `quick` belong to the full tests."""
    return [value if value == quick else pytest.param(value, marks=pytest.mark.full) for value in values]


@pytest.fixture(params=rare(sorted(THEMES), "light"))
def theme(request, studio, page):
    studio.theme(request.param)
    return request.param


@pytest.mark.parametrize("header", rare(HEADERS, "Header"))
def test_the_header_looks_as_stored_at_every_width(studio, theme, header):
    assert [found for shot, picture in studio.take(header, theme) if (found := differs(shot, picture))] == []


@pytest.mark.parametrize("view", rare(VIEWS, "Passes"))
def test_a_view_looks_as_stored_at_every_width(studio, theme, view):
    assert [found for shot, picture in studio.take(view, theme) if (found := differs(shot, picture))] == []


#: The former header: its facts as a list of terms with these rules, over which JupyterLab's own rules win.
FLOATED = """(card) => {
  const facts = card.querySelector('.bnb-facts');
  const list = document.createElement('dl');
  list.className = 'former-facts';
  for (const fact of facts.children) {
    const [label, text] = fact.children;
    list.append(Object.assign(document.createElement('dt'), { textContent: label.textContent }));
    list.append(Object.assign(document.createElement('dd'), { textContent: text.textContent }));
  }
  const style = document.createElement('style');
  style.textContent = `.former-facts { display: grid; grid-template-columns: max-content 1fr; gap: 1px 12px; margin: 6px 0; }
    .former-facts dd { margin: 0; }`;
  list.append(style);
  facts.replaceWith(list);
  card.facts = facts;
}"""
RESTORED = "(card) => card.querySelector('.former-facts').replaceWith(card.facts)"


@pytest.mark.full
def test_a_header_whose_terms_float_is_a_difference(studio, page):
    """The comparison finds the fault for which it was made at every width, and not one row of pixels more or less."""
    studio.theme("light")
    for shot, picture in studio.take("Facts", "light"):
        moved = picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, 1))
        assert differing(picture, moved) < 0.01, shot
    studio.card.run(FLOATED)
    try:
        assert [shot for shot, picture in studio.take("Facts", "light") if not differs(shot, picture)] == []
    finally:
        studio.card.run(RESTORED)


def test_the_stored_pictures_are_small_and_complete():
    stored = {file.name: file.stat().st_size for file in STORED.iterdir()}
    assert sum(stored.values()) < MOST_BYTES
    wanted = {Shot(what, theme, width).file.name for what in (*HEADERS, *VIEWS) for theme in THEMES for width in WIDTHS}
    assert set(stored) == wanted | {"card.json.gz"}
