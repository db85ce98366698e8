"""Random lines of magics: options of `%%blockkernel` and line magics, valid, invalid, combined, abbreviated and repeated."""

from __future__ import annotations

from random import Random

from blocknb.cell_fuzz.kernels import Filled

ODD = (
    "",
    "-",
    "--",
    "=",
    "'",
    '"',
    "0",
    "-1",
    "1e9",
    "None",
    "nan",
    "é",
    "\\",
    "%",
    "a b",
    "x" * 300,
    "${HOME}",
    "{n}",
    "..",
    ";",
    "🙂",
)
SECTIONS = (
    "source",
    "times",
    "parse",
    "simplify",
    "coalesce",
    "llvm",
    "ptx",
    "sass",
    "assembly",
    "all",
    "layout_assignment",
)
PASSES = ("simplify", "coalesce", "unroll", "pointers", "peephole", "dce")


def options(rng: Random, cell: Filled) -> str:
    """The options of one cell: mostly few and valid."""
    roll = rng.random()
    if roll < 0.3:
        return rng.choice(("--quiet", "--target cpu", "--quiet --checked", "--interpret", "--quiet --target cpu"))
    if roll < 0.7:
        words = [_valid(rng, cell) for _ in range(rng.choice((1, 1, 2, 3)))]
    else:
        words = [_valid(rng, cell) if rng.random() < 0.5 else _invalid(rng, cell) for _ in range(rng.choice((1, 2, 3)))]
    if rng.random() < 0.7 and "--target" not in " ".join(words):
        words.append(rng.choice(("--target cpu", "--quiet")))  # a card with GPU code takes a second
    rng.shuffle(words)
    return " ".join(words)


def _valid(rng: Random, cell: Filled) -> str:
    constant = cell.template.constants or "num_warps"
    return rng.choice(
        (
            "--quiet",
            "--checked",
            "--interpret",
            f"--show {rng.choice(SECTIONS)}",
            f"--show {rng.choice(SECTIONS)},{rng.choice(SECTIONS)}",
            f"--target {rng.choice(('cpu', 'cpu', 'sm_70', 'sm_80', 'sm_90a', 'sm_100a', 'sm_120a'))}",
            f"--launch {cell.launch}",
            f'--launch "{cell.launch}"',
            f"--check {cell.check}",
            f'--check "{cell.check}"',
            "--check (out >= out).all() or True",
            "--baseline np.exp(x)",
            "--baseline 'x + 1' --baseline x.sum()",
            f"--without {rng.choice(('simplify', 'simplify,coalesce', 'unroll pointers'))}",
            f"--sweep {constant}={rng.choice(('32,64', '64..128', '2**5', '(32, 64)', '1..2', '128'))}",
            f"--sweep n=8,16 --launch {cell.launch}",
            "--sweep num_warps=1,2",
            "--quie",
            "--targ cpu",
            "--interp",
        )
    )


def _invalid(rng: Random, cell: Filled) -> str:
    odd = rng.choice(ODD)
    return rng.choice(
        (
            odd,
            f"--{odd}",
            "--target",
            f"--target {odd}",
            f"--target {rng.choice(('sm_1', 'sm_90', 'sm_', 'gpu', 'H100', 'amd', 'sm_999a', 'SM_80'))}",
            "--target sm_80 --target cpu",
            f"--show {odd}",
            f"--show {rng.choice(PASSES)} {rng.choice(PASSES)}",
            "--launch",
            f"--launch {odd}",
            f"--launch {cell.launch.replace('[', '(', 1)}",
            "--launch 1/0",
            "--launch undefined_name",
            f"--launch {cell.kernel}[1]()",
            "--check",
            f"--check {odd}",
            "--check out == nothing",
            "--check False",
            "--check out[10**9]",
            "--check (lambda: 1/0)()",
            "--check np.array([])",
            "--check object()",
            "--check 'x'",
            "--baseline",
            f"--baseline {odd}",
            "--baseline np.nothing(x)",
            "--baseline x.resize(3)",
            "--baseline out.fill(3)",
            "--without",
            f"--without {odd}",
            f"--without {rng.choice(PASSES)},{odd}",
            "--without layout_assignment",
            "--sweep",
            f"--sweep {odd}",
            f"--sweep BLOCK={odd}",
            f"--sweep {rng.choice(('BLOCK=0,-1', 'BLOCK=3,5', 'BLOCK=0.5,1.5', 'nothing=1,2', 'x=1,2', 'BLOCK=[]', 'BLOCK=1..10**9..1'))}",
            f"--sweep {rng.choice(('BLOCK=2..1', 'BLOCK=a..b', 'BLOCK=1..2..3..4', 'n=1,2', 'num_warps=3,64', 'BLOCK=1/0', 'BLOCK=None'))}",
            f"--sweep {rng.choice(('BLOCK=64,64', 'BLOCK=[64]*300', 'n=10**30', 'BLOCK=1<<40', 'BLOCK=True', 'BLOCK={1:2}'))}",
            "--quiet=1",
            "--checked yes",
            "--interpret --checked --check False",
        )
    )


def line_magic(rng: Random, cell: Filled) -> str:
    """A line magic about the kernel of a cell; about half of them are wrong in some way."""
    k, odd = cell.kernel, rng.choice(ODD)
    side = rng.choice((k, f"{k}@1", f"{k}@2", f"{k}:parse", f"{k}:simplify", f"{k}@1:parse", f"{k}:nothing", f"{k}@99"))
    other = rng.choice(
        (k, f"{k}@1", f"{k}:simplify", "nothing", odd, "np", f"{k}@", f"{k}:", "@1", ":", f"{k}.fn", f"{k}@x")
    )
    return rng.choice(
        (
            f"%blockview {k}",
            f"%blockview {side}",
            f"%blockview {other}",
            "%blockview",
            f"%blockdiff {side} {other}",
            f"%blockdiff {side} {side}",
            f"%blockdiff {other}",
            f"%blockbench np.exp(x) {rng.choice(('x+1', odd, '1/0', 'undefined', 'x.sum()'))}",
            f'%blockbench "{cell.launch}" np.exp(x)',
            f"%blockbench {odd}",
            "%blockbench",
            f"%roofline {rng.choice(('', 'nothing', odd, 'np', '--baseline', f'--nothing {k}'))}",
            f"%blockkernel {rng.choice(('', '--quiet', odd, '--target nothing'))}",
            "%%blockkernel?",
            "%blockdiff?",
            f"{k}?",
            k,
            f"{k}.notes",
            f"print({k}.latest)",
        )
    )
