# ruff: noqa: E501 (a row of a table is a line)
"""Random edits and launches: a kernel stores what Python computes, here and in other processes.

A state machine edits helpers, methods, defaults, decorators, globals, constexprs and attributes, and runs cells again. The oracle is
Python itself on the same objects. Another process runs the same cells with the same disk cache, and is its own oracle.
"""

import os
import shutil
import tempfile

import pytest
from cells import Cells, Other
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from blocknb.runtime import cache
from blocknb.runtime import compile as compiler
from blocknb.runtime.cache import Cache

FIRST = """
import collections, dataclasses, enum, functools, types
def deco(f):
    @functools.wraps(f)
    def wrapper(*args): return f(*args) + 1
    return wrapper
N, T, D, CX = 1, (0, [1, 2]), {"k": 1}, tl.constexpr(2)
M = types.ModuleType("M")
M.N = 1
S = types.SimpleNamespace(n=1, inner=[1])
"""
CLASS = """
class A:
    a = {v}
    def m(self): return {body}
    def twice(self): return self.m() * 2
class C(A):
    b = {w}
    @classmethod
    def cm(cls): return cls.a + cls.b
    @staticmethod
    def s(): return g() + {w}
    @property
    def p(self): return self.a * 10 + self.b
    def __call__(self): return self.m() + {v}
c = C()
"""
RECORDS = """
@dataclasses.dataclass
class R:
    n: int = {v}
    def get(self): return self.n + {w}
class E(enum.Enum):
    X = {v}
    Y = {w} + 10
    def get(self): return self.value + N
P = collections.namedtuple("P", "x y")
r, q = R(), P({v}, {w})
def of_r(x): return x.get()
"""
HELPER = """
@blocknb.kernel
def kh(x, y={w}):
    return {body}
"""
DECORATORS = ("", "@functools.lru_cache\n", "@functools.cache\n", "@deco\n", "@functools.lru_cache\n@deco\n")
BODIES = ("{v}", "N + {v}", "g() + {v}", "c.m() + {v}", "C.a + c.p", "T[1][0] + D['k']", "CX.value + {v}", "M.N + S.n",
          "sum([N for N in (1, 2)]) + N", "(lambda x: x + N)({v})", "of_r(r) + E.X.get()", "getattr(c, 'a') + c.twice()")  # fmt: skip
PLAIN = ("{v}", "N + {v}", "D['k'] + {v}", "S.inner[0]", "M.N * 2")
METHODS = ("self.a", "self.a + N", "{v}", "getattr(self, 'a')", "self.b if hasattr(self, 'b') else {v}")
KERNELS = ("x * {v}", "x + N + y", "x * CX + f()", "x + S.n", "x + c.m()")
EXPRESSIONS = ("f()", "f() + g()", "c.m() + C.a", "kh(3) + f()", "N * CX", "T[1][0] + D['k'] + N", "c.p + c.twice()", "C.s() + C.cm()",
               "part() + f()", "c() + M.N", "S.n + S.inner[0]", "fs[0]() + fs[1]()", "kh(2) * kh(1)", "of_r(r) + q.x", "E.X.value + E.Y.get()",
               "r.n + r.get()", "bound() + f()")  # fmt: skip
NUMBERS = st.integers(1, 4)  # few, so that earlier states come back


class Notebook(RuleBasedStateMachine):
    """`script` holds the cells that ran, without the one of the kernel."""

    folder: str
    other: Other
    fresh = 0  # of how many of the questions to another process one goes to a new one; 0: none
    asked = played = launched = 0

    def __init__(self):
        super().__init__()
        Notebook.played += 1
        compiler.forget()
        self.here, self.script = Cells(), []
        self.cell(FIRST)
        self.cell("def g(): return N")
        self.cell(CLASS.format(v=1, w=2, body="self.a"))
        self.cell(RECORDS.format(v=1, w=2))
        self.default = None
        self.cell("def f(): return N + 1")
        self.cell(HELPER.format(w=1, body="x * 2"))
        self.cell("part, fs, bound = functools.partial(g), [f, g], c.m")
        self.expression = "f()"
        self.here.define(self.expression)

    def cell(self, text):
        self.script.append(text)
        self.here.run(text)

    # ---- edits

    @rule(v=NUMBERS, what=st.sampled_from(("N = {v}", "M.N = {v}", "S.n = {v}", "S.inner[0] = {v}", "S.inner = [{v}]", "T[1][0] = {v}",
        "D['k'] = {v}", "T = (0, [{v}, 2])", "CX.value = {v}", "CX = tl.constexpr({v})", "r.n = {v}", "q = P({v}, 1)", "r = R({v})")))  # fmt: skip
    def a_value(self, v, what):
        self.cell(what.format(v=v))

    @rule(v=NUMBERS, what=st.sampled_from(("C.a = {v}", "A.a = {v}", "C.b = {v}", "c.a = {v}", "vars(c).clear()", "c = C()",
        "A.m = lambda self: self.a + {v}", "C.m = lambda self: N + {v}", "if 'm' in vars(C): del C.m", "bound = c.m",
        "C.cm = classmethod(lambda cls: cls.a * {v})", "C.p = property(lambda self: self.b + {v})", "R.get = lambda self: self.n * {v}")))  # fmt: skip
    def an_attribute(self, v, what):
        self.cell(what.format(v=v))

    @rule(v=NUMBERS, w=NUMBERS, body=st.sampled_from(METHODS), instances=st.booleans())
    def a_class(self, v, w, body, instances):
        self.cell(CLASS.format(v=v, w=w, body=body.format(v=v)))
        if not instances:
            self.cell("bound = c.m")

    @rule(v=NUMBERS, w=NUMBERS)
    def records(self, v, w):
        self.cell(RECORDS.format(v=v, w=w))

    @rule(v=NUMBERS, body=st.sampled_from(BODIES), decorator=st.sampled_from(DECORATORS), default=st.booleans())
    def a_function(self, v, body, decorator, default):
        parameter, more = (f"d={v}", " + d") if default else ("", "")
        self.default = "f" if default and not decorator else None
        self.cell(f"{decorator}def f({parameter}): return {body.format(v=v)}{more}")

    @rule(
        v=NUMBERS,
        body=st.sampled_from(PLAIN),
        decorator=st.sampled_from(DECORATORS),
        where=st.sampled_from(("", "part", "fs")),
    )
    def a_function_that_others_call(self, v, body, decorator, where):
        self.cell(f"{decorator}def g(): return {body.format(v=v)}")
        if where:
            self.cell({"part": "part = functools.partial(g)", "fs": "fs[1] = g"}[where])

    @rule(v=NUMBERS)
    def defaults(self, v):
        self.cell(f"f.__defaults__ = ({v},)" if self.default else f"kh.fn.__defaults__ = ({v},)")

    @rule(name=st.sampled_from("fg"))
    def what_is_remembered(self, name):
        self.cell(f"if hasattr({name}, 'cache_clear'): {name}.cache_clear()")

    @rule(v=NUMBERS, name=st.sampled_from("fg"))
    def the_code_of_a_function(self, v, name):
        self.cell(
            f"if isinstance({name}, types.FunctionType) and not {name}.__closure__: {name}.__code__ = (lambda: N + {v}).__code__"
        )

    @rule(w=NUMBERS, v=NUMBERS, body=st.sampled_from(KERNELS))
    def a_kernel_that_is_called(self, v, w, body):
        self.cell(HELPER.format(w=w, body=body.format(v=v)))

    @rule(expression=st.sampled_from(EXPRESSIONS))
    def another_kernel(self, expression):
        self.expression = expression
        self.here.define(expression)

    # ---- launches

    @rule(times=st.integers(1, 3))
    def launch(self, times):
        for _ in range(times):
            Notebook.launched += 1
            stored = self.here.stored()
            assert stored == self.here.expected(self.expression)

    @rule()
    def run_the_kernels_cell_again(self):
        self.here.define(self.expression)
        self.launch(1)

    @rule()
    def forget_what_is_in_memory(self):
        compiler.forget()

    @rule()
    def ask_another_process(self):
        Notebook.asked += 1
        if self.fresh and Notebook.asked % self.fresh == 0:
            Notebook.other.close()
            Notebook.other = Other()
        stored, expected, _ = self.other.ask(self.script, self.expression)
        assert stored == expected


@pytest.fixture
def processes(monkeypatch):
    """Another process, and a disk cache that it shares with this one."""
    folder = tempfile.mkdtemp()
    monkeypatch.setenv("BLOCKNB_CACHE_DIR", folder)
    made = Cache(folder)
    monkeypatch.setattr(cache, "shared", lambda: made)
    Notebook.other = Other()
    yield
    Notebook.other.close()
    shutil.rmtree(folder, ignore_errors=True)


def play(examples: int, steps: int, fresh: int, number: int) -> None:
    Notebook.fresh = fresh
    phases = (Phase.generate, Phase.shrink)
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, phases=phases, print_blob=True
    )
    Notebook.played = Notebook.asked = Notebook.launched = 0
    print(f"seed {number}")
    run_state_machine_as_test(seed(number)(Notebook), settings=chosen)
    print(f"{Notebook.played} notebooks, {Notebook.launched} launches here, {Notebook.asked} in another process")
    assert Notebook.played >= examples


def test_no_order_of_edits_and_launches_gives_stale_code(processes):
    play(examples=15, steps=25, fresh=0, number=20)


@pytest.mark.full
def test_no_order_of_many_edits_and_launches_gives_stale_code(processes):
    """BLOCKNB_SEED repeats a run. BLOCKNB_EXAMPLES is the number of random notebooks."""
    number = int(os.environ.get("BLOCKNB_SEED") or int.from_bytes(os.urandom(4), "little"))
    play(examples=int(os.environ.get("BLOCKNB_EXAMPLES") or 500), steps=40, fresh=50, number=number)
