"""Makes the sequence of cells of a seed and a number. The same seed and number give the same sequence."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from blocknb.cell_fuzz import magic_lines, misuse, mutate, zoo
from blocknb.cell_fuzz.cell import SETUP, CellSequence, FuzzCell
from blocknb.cell_fuzz.kernels import Filled, fill

PROBE = """%%blockkernel --quiet
@blocknb.kernel
def probe(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)

probe_x = np.arange(100, dtype=np.int32); probe_out = np.zeros_like(probe_x)
probe[(2,)](probe_x, probe_out, 100, BLOCK=64)
assert np.array_equal(probe_out, probe_x * 3)"""


_SCALED = """@blocknb.kernel
def user(x, out):
    at = tl.arange(0, 16)
    tl.store(out + at, {value})"""
_MAKE = "def make(scale):\n" + "\n".join(
    "    " + line for line in _SCALED.format(value="tl.load(x + at) * scale").split("\n")
)
#: The values that a kernel may capture: the text that changes it, the text that defines the kernel, and the kernel's name.
CAPTURES = (
    ("SCALE = tl.constexpr({v})", _SCALED.format(value="tl.load(x + at) * SCALE"), "user"),
    ("@blocknb.kernel\ndef scaled(v):\n    return v * {v}", _SCALED.format(value="scaled(tl.load(x + at))"), "user"),
    ("if 'make' in globals(): made = make(tl.constexpr({v}))", _MAKE + "\n    return user", "made"),
)


FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # of ml_dtypes
DTYPES = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?", *FLOATS)
MAGICS = ("", "", "%%blockkernel --target cpu\n", "%%blockkernel --interpret\n", "%%blockkernel --quiet --checked\n")


class _Maker:
    """A sequence in the making: `cells` so far, and the kernel of the newest correct cell."""

    def __init__(self, rng: Random):
        self.rng, self.cells = rng, [FuzzCell(SETUP, "sane")]
        self.newest = self._fill()

    def _fill(self) -> Filled:
        found = fill(self.rng)
        self.add(found.data, "sane")
        return found

    def add(self, code: str, role: str = "", interrupt: float | None = None) -> None:
        self.cells.append(FuzzCell(code, role, interrupt))

    def check(self, cell: Filled) -> None:
        self.add(f"assert {cell.check}, (x, out)", "check")

    # ---- the actions ----

    def correct(self) -> None:
        """A correct kernel with random options, sometimes in an unusual place or text."""
        rng = self.rng
        cell = self.newest = self._fill()
        body = rng.choice((misuse.definition, misuse.text, _plain, _plain, _plain))(rng, cell)
        magic = f"%%blockkernel {magic_lines.options(rng, cell)}\n" if rng.random() < 0.8 else ""
        if magic and rng.random() < 0.06:
            magic = rng.choice(("%%capture\n", "%%time\n", "\n", "# comment\n", " ")) + magic
        self.add(magic + body, "", rng.uniform(0, 1.5) ** 2 if rng.random() < 0.15 else None)
        self.check(cell)

    def redefined(self) -> None:
        """A kernel again with other numbers, in two cells: definition and launch."""
        rng = self.rng
        cell = self.newest = fill(rng, self.newest.template, self.newest.kernel)
        self.add(cell.data, "sane")
        self.add(cell.source, "sane")
        for _ in range(rng.choice((1, 2))):
            self.add(rng.choice(("", "%%blockkernel --quiet\n")) + cell.launch, "sane")
        self.check(cell)

    def constants(self) -> None:
        """A global, a closure or a helper that a kernel reads changes between launches."""
        change, scaled, name = self.rng.choice(CAPTURES)
        self.add("x = np.arange(16, dtype=np.float32); out = np.full_like(x, 777); n = 16", "sane")
        self.add(change.format(v="7.0"), "sane")
        self.add(scaled, "sane")
        for _ in range(3):
            v = self.rng.choice(("1.0", "2.0", "-3.0", "0.25"))
            magic = self.rng.choice(("", "%%blockkernel --quiet\n", "%%blockkernel --interpret\n"))
            self.add(f"{magic}{change.format(v=v)}\n{name}[1](x, out)", "sane")
            self.add(f"assert np.array_equal(out, x * np.float32({v})), out", "check")

    def wrong_launch(self) -> None:
        """Wrong and unusual launches. One that succeeds compiled gives what the interpreter gives."""
        rng, cell = self.rng, self.newest
        self.add(cell.source if rng.random() < 0.9 else "pass")
        for _ in range(rng.choice((1, 2, 3))):
            if rng.random() < 0.3:
                self.add(misuse.odd_call(rng, cell))
                continue
            launch = misuse.wrong_launch(rng, cell)
            *first, last = launch.split("\n")
            magic = rng.choice(MAGICS)
            if rng.random() < 0.6 and "interpret" not in magic + last:
                launch = "\n".join([*first, f"inside.both(lambda: {last})"])
            self.add(magic + launch)

    def dtypes(self) -> None:
        """A template on arrays of other dtypes and strides: compiled and interpreted results agree."""
        rng = self.rng
        cell = fill(rng)
        self.add(cell.data, "sane")
        self.add(cell.source)
        for name in ("x", "y", "out"):
            if rng.random() < 0.8:
                kind = rng.choice(DTYPES)
                self.add(f"if {name!r} in globals(): {name} = {name}.astype({kind!r})")
        if rng.random() < 0.3:
            self.add("if x.ndim == 1: x = np.repeat(x, 2)[::2]")
        options = rng.choice(("", "", ", num_warps=1", ", checked=True", ", checked=False", ", without='simplify'"))
        self.add(f"inside.both(lambda: {cell.launch[:-1]}{options}))")

    def measured(self) -> None:
        """A card with GPU code, a sweep or a comparison, interrupted at a random moment."""
        rng, cell = self.rng, self.newest
        body = f"{cell.source}\n{cell.launch}"
        constant = cell.template.constants or "num_warps"
        self.add(
            rng.choice(
                (
                    f"%%blockkernel --target {rng.choice(('sm_80', 'sm_90a', 'sm_120a'))}\n{body}",
                    f"%%blockkernel --target cpu --sweep {constant}=32,64,128\n{body}",
                    f"%%blockkernel --target cpu --baseline np.exp(x) --without simplify\n{body}",
                    f"%%blockkernel --sweep n=1,2,3 --launch {cell.launch}\n{body}",
                    f'{body}\n%blockbench np.exp(x) "{cell.launch}"',
                    f"{body}\n{cell.kernel}",
                    f"{body}\nfor target in ('sm_80', 'sm_120a'):\n    {cell.kernel}.latest.retarget(target).trace.ptx",
                )
            ),
            "",
            rng.uniform(0.0, 1.2) if rng.random() < 0.8 else None,
        )

    def completed(self) -> None:
        """Completions on the lines of magics."""
        rng = self.rng
        self.add(self.newest.source)
        line = rng.choice(
            (f"%%blockkernel {magic_lines.options(rng, self.newest)}", magic_lines.line_magic(rng, self.newest))
        )
        self.add(f"inside.complete({line[: rng.randrange(len(line) + 1)]!r})", "sane")

    def raising(self) -> None:
        magic = f"%%blockkernel {magic_lines.options(self.rng, self.newest)}\n" if self.rng.random() < 0.6 else ""
        self.add(magic + misuse.raising(self.rng, self.newest))

    def magics(self) -> None:
        self.add(f"%%blockkernel --quiet --target cpu\n{self.newest.source}\n{self.newest.launch}")
        for _ in range(self.rng.choice((1, 2, 3))):
            self.add(magic_lines.line_magic(self.rng, self.newest))

    def mutant(self) -> None:
        """A mutated template: compiled and interpreted results agree."""
        rng = self.rng
        cell = fill(rng)
        self.add(cell.data, "sane")
        magic = rng.choice(("", "%%blockkernel --quiet\n", "%%blockkernel --quiet --target cpu\n"))
        self.add(magic + mutate.mutated(rng, cell.source))
        self.add(f"inside.both(lambda: {cell.launch})")

    def zoo(self) -> None:
        """A mutated kernel of the zoo: compiled and interpreted results agree."""
        rng = self.rng
        if not zoo.cuts():
            return self.mutant()
        cut = rng.choice(zoo.cuts())
        text = mutate.mutated(rng, cut.text, *rng.choice(cut.kernels))
        self.add(f"%%blockkernel --quiet --target cpu\nfrom zoo.registry import ZOO\nZOO.clear()\n{text}")
        self.add("case = list(ZOO.values())[0]")
        self.add(
            f"given = case.make(np.random.default_rng({rng.randrange(1000)}))\n"
            "inside.both(lambda: case.run(given, 'numpy', 'cpu'))"
        )
        return None

    def endless(self) -> None:
        rng = self.rng
        body = rng.choice(misuse.ENDLESS).replace("{launch}", self.newest.launch)
        magic = rng.choice(("", "%%blockkernel\n", "%%blockkernel --quiet\n", *MAGICS[2:]))
        self.add("out = np.zeros(8, np.int32)", "sane")
        self.add(magic + body, "", rng.uniform(0.02, 0.6))

    def page(self) -> None:
        """Requests of a page about a card, valid and not."""
        rng, cell = self.rng, self.newest
        self.add(f"%%blockkernel --quiet --target cpu\n{cell.source}\n{cell.launch}")
        self.add(f"inside.page({cell.kernel}, {misuse.page_request(rng)})")
        if rng.random() < 0.3:
            self.add(
                f"import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n    {cell.kernel}.export_html(d + '/card.html')"
            )


def _plain(rng: Random, cell: Filled) -> str:
    return f"{cell.source}\n{cell.launch}"


ACTIONS: tuple[tuple[Callable[[_Maker], None], int], ...] = (
    (_Maker.correct, 20),
    (_Maker.redefined, 10),
    (_Maker.constants, 8),
    (_Maker.wrong_launch, 16),
    (_Maker.raising, 10),
    (_Maker.magics, 10),
    (_Maker.mutant, 14),
    (_Maker.zoo, 8),
    (_Maker.dtypes, 10),
    (_Maker.endless, 5),
    (_Maker.measured, 6),
    (_Maker.completed, 3),
    (_Maker.page, 6),
)


def generate(seed: int, number: int) -> CellSequence:
    """A sequence of about ten cells. It ends with a correct cell, which shows that the notebook still works."""
    maker = _Maker(Random(f"{seed}/{number}"))
    actions, weights = zip(*ACTIONS, strict=True)
    for action in maker.rng.choices(actions, weights, k=maker.rng.choice((1, 2, 2, 3))):
        action(maker)
    maker.add(PROBE, "sane")
    return CellSequence(tuple(maker.cells), f"seed {seed}, sequence {number}")
