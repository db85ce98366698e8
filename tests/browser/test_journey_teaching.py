"""The views that teach: the launch in motion, the values of a program line by line, and the footprint. By content, with a live kernel."""

from __future__ import annotations

import re

import pytest
from browser import eventually
from laboratory import complaints
from softmax import SETUP

#: Six kernels on arrays that the setup makes: each makes a footprint of another form.
KERNELS = {
    "add": """
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)

add[512,](a, b, c, 65536, BLOCK=128);""",
    "softmax": """
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, powers / tl.sum(powers, axis=0))

softmax[256,](a, c, 256, BLOCK=256);""",
    "matmul": """
def matmul(a, b, c, n, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for k in range(0, n, B):
        inner = k + tl.arange(0, B)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        total = tl.dot(left, tl.load(b + inner[:, None] * n + columns[None, :]), total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)

matmul[8, 8](a, b, c, 256, B=32);""",
    "transpose": """
def transpose(x, out, n, B: tl.constexpr):
    rows, columns = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    values = tl.load(x + rows[:, None] * n + columns[None, :])
    tl.store(out + columns[:, None] * n + rows[None, :], tl.trans(values))

transpose[16, 16](a, c, 256, B=16);""",
    "stencil": """
def stencil(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + at - 1, mask=(at > 0) & (at < n), other=0.0)
    right = tl.load(x + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(out + at, left + tl.load(x + at, mask=at < n) + right, mask=at < n)

stencil[256,](a, c, 65536, BLOCK=256);""",
    "attention": """
def attention(q, k, v, out, scale, KEYS: tl.constexpr, B: tl.constexpr, WIDTH: tl.constexpr):
    rows, width = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, WIDTH)
    queries = tl.load(q + rows[:, None] * WIDTH + width[None, :]) * scale
    most, total = tl.full((B,), -float("inf"), tl.float32), tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, WIDTH), tl.float32)
    for at in range(0, KEYS, B):
        columns = at + tl.arange(0, B)
        scores = tl.dot(queries, tl.load(k + columns[None, :] * WIDTH + width[:, None]))
        now = tl.maximum(most, tl.max(scores, axis=1))
        powers, kept = tl.exp(scores - now[:, None]), tl.exp(most - now)
        total = total * kept + tl.sum(powers, axis=1)
        acc = tl.dot(powers, tl.load(v + columns[:, None] * WIDTH + width[None, :]), acc * kept[:, None])
        most = now
    tl.store(out + rows[:, None] * WIDTH + width[None, :], acc / total[:, None])

attention[16,](a, b, d, c, 0.1, KEYS=256, B=16, WIDTH=256);""",
}
ARRAYS = "a, b, c, d = (np.random.default_rng(i).standard_normal((256, 256)).astype(np.float32) for i in range(4))"

#: Plays the launch from its beginning at 60 steps per second, for at most three seconds: the frames per second.
PLAY = """(panel) => new Promise((resolve) => {
  const speed = panel.querySelector('[data-tool=speed]');
  speed.value = '60';
  speed.dispatchEvent(new Event('change'));
  const begin = performance.now();
  let frames = 0;
  panel.querySelector('[data-tool=play]').click();
  const count = (now) => {
    frames += 1;
    if (panel.dataset.playing && now - begin < 3000) {
      requestAnimationFrame(count);
    } else {
      panel.dataset.playing && panel.querySelector('[data-tool=play]').click();
      resolve(1000 * frames / (now - begin));
    }
  };
  requestAnimationFrame(count);
})"""


def counted(panel):
    return {
        key: int(panel(f"[data-counter={key}]").attribute("data-bytes"))
        for key in ("loaded", "first", "reused", "stored")
    }


def test_a_live_card_shows_the_launch_the_steps_and_the_footprint(softmax):
    card = softmax.card(2)
    launch = card.open("Launch")
    launch("[data-part=where]").until_text("program 0, number 1 of 64")
    assert "load x[0, 0:832]" in launch(".bnb-launch-tiles").text
    launch("[aria-label='Step']").press("End")
    launch("[data-part=where]").until_text("program 63")
    array = 64 * 832 * 4
    assert counted(launch) == {"loaded": array, "first": array, "reused": 0, "stored": array}
    steps = card.open("Step")  # of the same program
    steps("[data-run='0']").having("row").until_text("= 63")
    line = softmax.line_of(2, "tl.load")
    steps(f"[data-break='{line}']").click()
    steps("[aria-label='Run to breakpoint']").click()
    steps("[data-part=where]").until_text(f"line {line}")
    assert "x[63, 0:832], 832 of 1024 on" in steps(f"[data-run='0'][data-at='{line}']").text
    footprint = card.open("Footprint")
    footprint("[data-part=about]").until_text("no element has several programs; every element has one")
    footprint("text=out · stores").click()
    footprint("canvas").hover()
    text = eventually(lambda: footprint(".bnb-details").text, bool)
    program = re.fullmatch(r"out\[(\d+), \d+\]: program (\d+) stores it in iteration 0, line (\d+)", text)
    assert program and program[1] == program[2] and int(program[3]) == softmax.line_of(2, "tl.store")
    kept = eventually(lambda: softmax.notebook.document(2).get("teaching", {}), lambda found: len(found) == 3)
    assert all("packed" in kept[view] for view in ("launch", "step", "footprint"))


HELPER = """\
@blocknb.kernel
def activated(total, slope):
    scaled = total * slope
    return tl.maximum(total, scaled)"""
CALLING = """\
%%blockkernel --learn
@blocknb.kernel
def shifted(value):
    moved = value + 1.0
    return moved * 2.0

@blocknb.kernel
def calling(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = shifted(tl.load(x + at))
    tl.store(out + at, activated(total, 0.5))

calling[1,](x, out, BLOCK=64);"""


@pytest.mark.full  # teaching.test.ts and test_teaching.py test the same without a browser
def test_step_goes_into_helpers_of_the_cell_and_of_another_cell_and_over_them(notebook, screenshots):
    cells = [notebook.add(source) for source in (HELPER, CALLING)]
    notebook.run(*cells)
    card = notebook.complete(cells[1])
    steps = card.open("Step")
    where = steps("[data-part=where]")
    where.until_text("line")
    steps("[aria-label='First line']").click()
    seen = [where.text]
    count = int(seen[0].split()[-1])
    for number in range(2, count + 1):
        steps("[aria-label='Next line']").click()
        seen.append(where.until_text(f"{number} of {count}"))
        if "line 3 of activated" in seen[-1]:
            assert "scaled = total * slope" in steps(".bnb-step-source.bnb-step-now").text
            assert "fp32[64]" in steps(".bnb-step-values.bnb-step-now").text
            card.screenshot(screenshots / "step-helper.png")
    assert [text.split(" · ")[0] for text in seen] == [
        "line 8",
        "line 9",
        "line 10",
        "line 3 of shifted, called in line 10",
        "line 4 of shifted, called in line 10",
        "line 10",
        "line 2 of activated, called in line 11",
        "line 3 of activated, called in line 11",
        "line 11",
    ]
    steps("[aria-label='First line']").click()
    over = [where.text]
    while not over[-1].endswith(f"{count} of {count}"):
        steps("[aria-label='Step over']").click()
        over.append(where.text)
    assert [text.split(" · ")[0] for text in over] == [text.split(" · ")[0] for text in seen if "called" not in text]


@pytest.mark.full
def test_six_launches_play_at_thirty_frames_a_second_and_count_the_bytes_of_the_footprint(
    lab, notebook, page, screenshots
):
    notebook.run(notebook.add(f"{SETUP}\n{ARRAYS}"))
    for name, source in KERNELS.items():
        cell = notebook.add(f"%%blockkernel --learn\n@blocknb.kernel{source}")
        notebook.run(cell)
        card = notebook.complete(cell)
        assert card.titles[:3] == ["Step", "Launch", "Footprint"]
        launch = card.open("Launch")
        launch("[data-part=where]").until_text("program")
        assert launch.run(PLAY) >= 30, name
        launch("[aria-label='Step']").press("End")
        arguments = source.rsplit("(", 1)[1].rstrip(";")
        grid = source.rsplit("[", 1)[1].split("]")[0]
        print_totals = (
            f"seen = {name}.footprint(({grid}))({arguments}\n"
            "print([sum(int(m.count.sum()) for m in maps) * 4 for maps in zip(*((x.loads, x.stores) for x in seen.arrays.values()))], "
            "sum(x.loads.elements for x in seen.arrays.values()) * 4)"
        )
        asked = notebook.add(print_totals)
        notebook.run(asked)
        printed = eventually(lambda at=asked: "".join(o.get("text", "") for o in notebook.output(at)), bool)
        loaded, stored, first = map(int, re.findall(r"\d+", printed))
        assert counted(launch) == {"loaded": loaded, "first": first, "reused": loaded - first, "stored": stored}
        card.screenshot(screenshots / f"launch-{name}.png")
    assert complaints(page) == []
