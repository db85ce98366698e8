"""Cells that misuse kernels: wrong arguments and grids, exceptions, unusual definitions, text that is hard to parse, endless loops."""

from __future__ import annotations

from random import Random

from blocknb.cell_fuzz.kernels import Filled

ARGUMENTS = (
    "None", "[1, 2]", "'text'", "1.5", "-1", "2**40", "2**70", "True", "object()", "{}", "()", "(x, x)", "float('nan')", "b'x'",
    "np", "x.astype(complex)", "x.astype(object)", "x.astype('U3')", "x.astype(np.float16)", "x.astype(np.float64)",
    "x.astype(bool)", "x[::2]", "x[::-1]", "x[:0]", "x[None]", "x.reshape(-1, 1)", "np.float32(3)", "np.array(3)",
    "np.zeros((0, 5))", "np.broadcast_to(x, (2,) + x.shape)", "read_only", "np.ma.masked_array(x)", "memoryview(x)",
    "np.zeros(4, '>f4')", "np.zeros(3, [('a', 'i4')])", "lambda: 1", "int", "tl.float32", "np.datetime64('2020-01-01')",
    "np.zeros(5, 'm8[s]')", "iter([1])", "range(3)", "np.float16(1)", "np.longdouble(1)", "1j", "...", "x.T", "out",
    "np.frombuffer(bytearray(12), np.float32)", "np.lib.stride_tricks.as_strided(x, (4,), (0,))", "np.random.default_rng(0)",
)  # fmt: skip
GRIDS = (
    "()", "0", "-1", "1.5", "(0,)", "(1, 1, 1)", "(1, 1, 1, 1)", "None", "'1'", "2**31", "2**40", "(2**20, 2**20)", "(-1, 2)",
    "[1]", "True", "np.int64(2)", "np.array([1])", "np.array(2)", "lambda meta: 1/0", "lambda: 1", "lambda meta: None",
    "lambda meta: meta['nothing']", "float('inf')", "lambda meta: (1.5,)", "lambda meta: undefined", "(None,)", "x", "...",
    "lambda meta: (_ for _ in ())", "1:2", "range(2)", "(1, 'a')", "np.float32(2)", "{1}", "lambda meta: meta", "lambda a, b: 1",
)  # fmt: skip
OPTIONS = (
    "num_warps=3", "num_warps=0", "num_warps='4'", "num_warps=2**20", "num_stages=-1", "num_stages=1.5", "BLOCK=0", "BLOCK=3",
    "BLOCK=-16", "BLOCK=None", "BLOCK='64'", "BLOCK=64.0", "BLOCK=2**25", "BLOCK=True", "BLOCK=np.int32(64)", "BLOCK=x",
    "nothing=1", "checked=True", "checked='race?'", "without=('simplify',)", "without='nothing'", "without=3", "interpret=True",
    "interpret={'programs': [0]}", "interpret={'nothing': 1}", "num_warps=np.int64(4)", "maxnreg=3", "num_ctas=2", "stream=0",
    "grid=(1,)", "warmup=True", "**{'': 1}", "**{'a b': 1}",
)  # fmt: skip
RAISES = (
    "1/0", "raise ValueError('no')", "undefined_name", "raise KeyboardInterrupt", "assert False, 'no'", "[][1]", "raise Exception",
    "int('x')", "raise type('Own', (Exception,), {})('own')", "(lambda: {}['k'])()", "import nothing_of_this_name",
    "raise StopIteration", "raise GeneratorExit", "def f(): f()\nf()", "raise blocknb.KernelError('mine')",
    "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])", "raise SystemExit(1)", "raise ValueError('a') from KeyError('b')",
    "try:\n    1/0\nexcept ZeroDivisionError:\n    undefined_name", "raise Warning('🙂')",
)  # fmt: skip


def wrong_launch(rng: Random, cell: Filled) -> str:
    """The launch of a cell with some arguments, the grid or options replaced by wrong or unusual ones."""
    text = cell.launch
    for _ in range(rng.choice((1, 1, 2))):
        inner = text[text.rindex("](") + 2 : -1]
        words = [word.strip() for word in inner.split(",")]
        match rng.randrange(5):
            case 0 | 1:
                at = rng.randrange(len(words))
                name = words[at].partition("=")[0] + "=" if "=" in words[at] else ""
                words[at] = name + rng.choice(ARGUMENTS)
            case 2:
                text = f"{cell.kernel}[{rng.choice(GRIDS)}]({inner})"
                continue
            case 3:
                words.append(rng.choice(OPTIONS))
            case 4 if rng.random() < 0.5:
                del words[rng.randrange(len(words))]
            case _:
                words.insert(0, rng.choice(ARGUMENTS))
        text = f"{text[: text.rindex('](')]}]({', '.join(words)})"
    prefix = "read_only = np.zeros(64, np.float32); read_only.flags.writeable = False\n"
    return (prefix if "read_only" in text else "") + text


def odd_call(rng: Random, cell: Filled) -> str:
    """A wrong use of an attribute or a method of a kernel."""
    k, argument, grid = cell.kernel, rng.choice(ARGUMENTS), rng.choice(GRIDS)
    call = rng.choice(
        (
            f"{k}({argument})",
            f"{k}[{grid}]",
            f"{k}.trace({argument})",
            f"{k}.trace('*fp32', '*fp32', 'i32', BLOCK=64, target={argument})",
            f"{k}.compile({argument}, target='cpu')",
            f"{k}.interpret({grid})({argument})",
            f"{k}.warmup({argument}, grid=(1,))",
            f"{k}.latest.retarget({argument})",
            f"{k}.latest.trace.stage({argument})",
            f"{k}.export_html({argument})",
            f"{k} == {argument}, hash({k}), repr({k}), str({k})",
            f"blocknb.kernel({argument})",
            f"blocknb.kernel(lambda x: x)[1]({argument})",
            f"blocknb.autotune([], key=[])({k})",
            f"blocknb.autotune([{argument}], key=['n'])({k})[1]({argument})",
            f"blocknb.heuristics({{'BLOCK': lambda a: {rng.choice(('64', '1/0', 'a[0]', 'None'))}}})({k})[1](x, out)",
            f"tl.load({argument})",
            f"tl.arange(0, {argument})",
            f"{k}.{rng.choice(('notes', 'latest', 'source', 'nothing', 'fn', '__wrapped__', 'last_launch', 'options'))}",
            f"inside.page({k}, {{'what': {rng.choice(WHATS)!r}, 'knobs': {argument if argument not in ('x', 'out') else 1}}})",
        )
    )
    return (
        "read_only = np.zeros(64, np.float32); read_only.flags.writeable = False\n" if "read_only" in call else ""
    ) + call


WHATS = ("turn", "whole", "tiles", "version", "blob", "edit", "stage_text", "nothing", "")


def page_request(rng: Random) -> str:
    """A request of a page about its card, as text of a dict; most are wrong in some way."""
    constants = f"{{'BLOCK': {rng.choice(('64', '32', '0', '-1', '3', 'None', repr('x'), '2**40'))}}}"
    without = rng.choice(("[]", "[1]", "['nothing']", "['simplify']"))
    warps = rng.choice(("None", "2", "3", "'a'"))
    knobs = f"{{'constants': {constants}, 'num_warps': {warps}, 'num_stages': None, 'without': {without}}}"
    program = rng.choice(("0", "1", "-1", "10**9", "0.5", "None", "[]", "'x'"))
    view, stage = rng.choice(("0", "1", "-1", "99")), rng.choice(("'parse'", "'simplify'", "'no'", "None"))
    text = rng.choice(("''", "'func'", "'x' * 99", "3"))
    return rng.choice(
        (
            "{'what': 'whole'}",
            f"{{'what': 'tiles', 'program': {program}}}",
            f"{{'what': 'blob', 'hash': {rng.choice(('0', '[]', '{}', repr('ab')))}}}",
            f"{{'what': 'turn', 'knobs': {knobs}}}",
            f"{{'what': 'stage_text', 'view': {view}, 'stage': {stage}}}",
            f"{{'what': 'edit', 'view': 0, 'stage': 'parse', 'text': {text}}}",
            f"{{'what': 'version', 'version': {rng.choice(('1', repr('no'), 'None', '[]'))}}}",
            "{'what': 'nothing'}",
            "{}",
        )
    )


def raising(rng: Random, cell: Filled) -> str:
    """A cell with an exception before, in or after its launch."""
    error = rng.choice(RAISES)
    indented = error.replace("\n", "\n    ")
    return rng.choice(
        (
            f"{cell.launch}\n{error}",
            f"{error}\n{cell.launch}",
            f"def deep():\n    {indented}\ndeep()",
            f"for i in range(3):\n    {cell.launch}\n    if i == 1:\n        {error.replace(chr(10), chr(10) + ' ' * 8)}",
            f"try:\n    {cell.launch}\nfinally:\n    {indented}",
            f"class Raises:\n    def __repr__(self):\n        {error.replace(chr(10), chr(10) + ' ' * 8)}\nRaises()",
            f"class Raises:\n    def __call__(self, meta):\n        {error.replace(chr(10), chr(10) + ' ' * 8)}\n{cell.kernel}[Raises()]()",
            f"def grid(meta):\n    {indented}\n    return 1\n{cell.kernel}[grid]{cell.launch[cell.launch.rindex('](') + 1 :]}",
            f"async def wait():\n    {indented}\nawait wait()",
            f"import threading\nt = threading.Thread(target=lambda: {cell.launch})\nt.start()\nt.join()",
        )
    )


POOL = "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(1) as pool:\n"


def definition(rng: Random, cell: Filled) -> str:
    """The kernel of a cell defined or launched in an unusual place, with the same effect."""
    indented = "\n".join("    " + line if line else "" for line in cell.source.split("\n"))
    k = cell.kernel
    return rng.choice(
        (
            f"for turn in range(3):\n{indented}\n    {cell.launch}",
            f"def make():\n{indented}\n    return {k}\n{k} = make()\n{cell.launch}",
            f"class Holder:\n{indented}\n{k} = Holder.{k}\n{cell.launch}",
            f"if True:\n{indented}\nelse:\n    pass\n{cell.launch}",
            f"try:\n{indented}\n    {cell.launch}\nfinally:\n    pass",
            f"with np.errstate(all='ignore'):\n{indented}\n    {cell.launch}",
            f"{cell.source}\n[{cell.launch} for _ in range(2)];",
            f"{cell.source}\nexec({cell.launch!r})",
            f"exec({cell.source!r})\n{cell.launch}",
            f"{cell.source}\nimport threading\nt = threading.Thread(target=lambda: {cell.launch})\nt.start()\nt.join()",
            f"{cell.source}\nget_ipython().run_cell({cell.launch!r})",
            f"{cell.source}\nget_ipython().run_cell_magic('blockkernel', '--quiet', {cell.launch!r})",
            f"{cell.source}\n{POOL}    pool.submit(lambda: {cell.launch}).result()",
            f"{cell.source}\nimport copy, pickle\n{k} = copy.copy({k})\n{cell.launch}",
            f"{cell.source}\nimport asyncio\nasync def go():\n    await asyncio.sleep(0)\n    {cell.launch}\nawait go()",
            f"{cell.source}\n{k}_alias = {k}\ndel {k}\n{k} = {k}_alias\n{cell.launch}",
        )
    )


def text(rng: Random, cell: Filled) -> str:
    """The source of a cell with characters that are hard to read for tools: it stays correct Python."""
    source = f"{cell.source}\n{cell.launch}"
    lines = source.split("\n")
    match rng.randrange(8):
        case 0:
            return (
                source.replace("value", "Wert_ä")
                .replace("total", "σ")
                .replace("at ", "ⁱⁿ_ä ")
                .replace("at,", "ⁱⁿ_ä,")
                .replace("at)", "ⁱⁿ_ä)")
            )
        case 1:
            return "\r\n".join(lines)
        case 2:
            at = rng.randrange(1, len(lines))
            return "\n".join(
                [
                    *lines[:at],
                    rng.choice(("# 🙂 ünï", "    # \\", "#\x0c", "#" + "ß" * 3000, "# </script><!-- %s {x} $1")),
                    *lines[at:],
                ]
            )
        case 3:
            return "\n".join(line.replace("    ", "\t") for line in lines)
        case 4:
            return "\n\n\n" + source + "\n\n   \n"
        case 5:
            return source.replace("at = ", "at = \\\n        ", 1)
        case 6:
            return source.replace("):\n", "):\n    '''A docstring\n  with \"quotes\" and ünïcode 🙂\n    '''\n", 1)
        case _:
            return source + "  # ünï 🙂"


ENDLESS = (
    "@blocknb.kernel\ndef endless(out):\n    i = 0\n    while i < 1:\n        i = i * 1\n    tl.store(out, i)\nendless[1](out)",
    "@blocknb.kernel\ndef endless(out):\n    while tl.load(out) < 1000:\n        tl.store(out, 0)\nout[:] = 0\nendless[4](out)",
    "while True: pass",
    "import time\ntime.sleep(100)",
    "@blocknb.kernel\ndef endless(out, n):\n    s = 0\n    for i in range(n):\n        for j in range(n):\n"
    "            s = s * 3 + tl.load(out) * 0\n    tl.store(out, s)\nendless[8](np.zeros(8, np.int32), 1000000)",
    "while True:\n    try:\n        {launch}\n    except ValueError:\n        pass",
    "for i in range(100000):\n    {launch}",
)
