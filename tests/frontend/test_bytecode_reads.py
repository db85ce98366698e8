"""The outer names that a function's bytecode reads, which decide whether a host function is unchanged."""

import pytest

from blocknb.frontend.bytecode_reads import digest, reads

N = M = 1


class Base:
    def get(self):
        return 1


class Reader(Base):
    def attributes(self):
        return self.k + self.get() + N.a.b

    def twice(self, other):
        return other.x + self.k * self.k

    def passed_on(self):
        return M(self)

    def base(self):
        return super().get()

    def captured(self):
        return (lambda: self.k)()

    def stored(self):
        self.z = 1
        return self.z

    def assigned(self):
        self = N
        return self.k


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("attributes", (("get",), ("k",))),
        ("twice", (("k",),)),
        ("passed_on", None),
        ("base", None),
        ("captured", None),
        ("stored", None),
        ("assigned", None),
    ],
)
def test_attributes_read_by_a_method_are_known_unless_self_escapes(name, first):
    assert reads(getattr(Reader, name).__code__).first == first


def test_outer_names_are_those_the_function_does_not_bind():
    def outer():
        import os.path  # noqa: F401

        def inner():
            M = 2
            return M + captured.x

        return inner, sum([N * 2 for N in (1, 2)]) + M.value

    captured = Base()
    found = reads(outer.__code__)
    assert found.names == (("M", "value"), ("sum",))
    assert found.cells == (("captured", "x"),)
    assert found.modules == ("os.path",)
    assert reads(Reader.attributes.__code__).names == (("N", "a", "b"),)
    assert reads(Reader.base.__code__).cells == (("__class__",),)


def test_digest_depends_on_the_code_and_not_on_its_location():
    space = {}
    for number, text in enumerate(
        ["def f(): return 1", "\n\ndef f(): return 1", "def f(): return 1.0", "def f(): return True"]
    ):
        exec(compile(text, f"<{number}>", "exec"), space)
        space[number] = digest(space["f"].__code__)
    assert space[0] == space[1] and len({space[n] for n in range(4)}) == 3
    sets = [digest(f.__code__) for f in (lambda x: x in {"a", "b"}, lambda x: x in {"b", "a"})]
    assert sets[0] == sets[1]
