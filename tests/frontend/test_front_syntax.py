"""Unsupported Python syntax: the error names each construct, its place, and what to write instead."""

import pytest
from frontend_helpers import failure, kernel, place

import blocknb.language as tl
from blocknb.errors import SyntaxUnsupported

SCALE = 1


@kernel
def try_(out):
    try:
        tl.store(out, 1)
    except ValueError:
        pass


@kernel
def break_(out, n):
    for i in range(n):
        break


@kernel
def continue_(out, n):
    while n > 0:
        continue


@kernel
def class_(out):
    class Inner:
        pass


@kernel
def def_(out):
    def inner():
        pass


@kernel
def lambda_(out):
    f = lambda x: x  # noqa: E731, F841


@kernel
def comprehension(out):
    x = [i for i in range(3)]  # noqa: C416, F841


@kernel
def generator(out):
    sum(i for i in range(3))


@kernel
def walrus(out, n):
    if (m := n) > 2:
        tl.store(out, m)


@kernel
def star(out):
    first, *rest = (0, 1)
    tl.store(out, first + rest[0])


@kernel
def with_(out):
    with open("x"):
        pass


@kernel
def import_(out):
    import math  # noqa: F401


@kernel
def global_(out):
    global SCALE
    SCALE = 1


@kernel
def dict_(out):
    x = {}  # noqa: F841


@kernel
def delete(out):
    del out


@kernel
def for_else(out, n):
    for i in range(n):
        tl.store(out, i)
    else:
        tl.store(out, 1)


@kernel
def for_over_tile(out):
    for i in tl.arange(0, 4):
        tl.store(out, i)


@kernel
def return_in_loop(out, n):
    for i in range(n):
        if i > 3:
            return
        tl.store(out, i)


@kernel
def attribute_target(out):
    out.x = 1


@pytest.mark.parametrize(
    ("k", "line", "begins", "what"),
    [
        (try_, 2, "try:", "`try`"),
        (break_, 3, "break", "`break`"),
        (continue_, 3, "continue", "`continue`"),
        (class_, 2, "class Inner:", "a class"),
        (def_, 2, "def inner():", "another function"),
        (lambda_, 2, "lambda x: x", "a lambda"),
        (comprehension, 2, "[i for i in range(3)]", "a list comprehension"),
        (generator, 2, "(i for i in range(3))", "a generator expression"),
        (walrus, 2, "m := n", "`:=`"),
        (star, 2, "*rest", "`*`"),
        (with_, 2, "with", "`with`"),
        (import_, 2, "import math", "`import`"),
        (global_, 2, "global SCALE", "`global`"),
        (dict_, 2, "{}", "a dict"),
        (delete, 2, "del out", "`del`"),
        (for_else, 5, "tl.store(out, 1)", "`else` of a loop"),
        (for_over_tile, 2, "tl.arange(0, 4)", "a `for` over int32 of shape (4,)"),
        (return_in_loop, 4, "return", "`return` inside a loop"),
        (attribute_target, 2, "out.x", "only names can be assigned"),
    ],
    ids=lambda x: x.source.name if isinstance(x, kernel) else "",
)
def test_unsupported_syntax_is_named_at_its_place(k, line, begins, what):
    arguments = {"out": "*f32"} | ({"n": "i32"} if any(p.name == "n" for p in k.source.parameters) else {})
    error = failure(k, SyntaxUnsupported, **arguments)
    assert error.message.startswith(what)
    assert error.hint
    at, text = place(k, error)
    assert at == line
    assert text.startswith(begins)
