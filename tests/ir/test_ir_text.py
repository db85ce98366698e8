"""The text form of the IR: it is readable, and parsing it restores everything."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocknb.errors import Loc
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Op, Value
from blocknb.ir.text import parse_func, print_func, print_lines, print_op
from blocknb.language import types as t
from blocknb.language.types import Buffer, Pointer, Tile
from blocknb.layouts.linear import Layout
from blocknb.layouts.shared import SharedLayout

EVERY_FORM = """\
#a = <1024: reg 1,2 lane 4,8,16,32,64 warp 128,256,512>
#b = <32: shared 1,2,4,8,16>

func @everything(%x: ptr<f32> div 16, %n: i32 div 1 "size") memory {name="a \\"b\\"", deep=(1, (2.5, -inf), None, f32, tile<f32>, #a)} {
  %pid = program_id 0 : i32  // 0
  %offsets = arange 0 1024 : tile<1024xi32, #a>  // 1 was 7,8
  %n.2 = splat %n : tile<1024xi32, #a>  // 2
  %3 = cmp lt %offsets, %n.2 : tile<1024xi1, #a>  // 3
  %4 = splat %x : tile<1024xptr<f32>, #a>  // 4
  %v = load %4, %3 {cache=".cg", vec=4} : tile<1024xf32, #a>  // 5
  %zero = const 0 : i32  // 6
  %low = const -inf : f32  // 9
  %s = reduce %v {axis=0} max {nan=True} : f32  // 12 was 1 (13 was 4; 14)
  %value, %index = reduce %v, %offsets {axis=0} (%a: f32, %b: i32, %c: f32, %d: i32) : f32, i32 {  // 15
    yield %c, %d  // 16
  }
  %17, %17.1 = for %i = %zero to %n step %pid iter(%acc = %s, %17.4 = %low) {num_stages=3} : f32, f32 {  // 17
    %sum = add %acc, %acc : f32  // 18
    yield %sum, %17.4  // 19
  }
  %q = while (%w = %zero) : i32 {  // 20
    %21 = cmp lt %w, %n : i1  // 21
    condition %21, %w  // 22
  } do (%w.20.2: i32) {
    yield %w.20.2  // 24
  }
  %25 = cmp eq %q, %n : i1  // 25
  if %25 {  // 26
    yield  // 27
  } else {
    barrier  // 28
    yield  // 29
  }
  %h = if %25 : f32 {  // 31
    yield %value  // 32
  } else {
    yield %low  // 33
  }
  %half = cast %h : f16  // 34
  %buffer = alloc {offset=128} : buffer<32xf16, #b>  // 35
}
"""


def assert_same(a: Func, b: Func) -> None:
    """Equal in everything that text carries; values correspond one to one."""
    values: dict[Value, Value] = {}

    def value(x: Value, y: Value, what: object) -> None:
        assert (x.type, x.name) == (y.type, y.name), what
        assert values.setdefault(x, y) is y, what

    def block(x: Block, y: Block) -> None:
        assert len(x.ops) == len(y.ops)
        for p, q in zip(x.args, y.args, strict=True):
            value(p, q, x)
        for p, q in zip(x.ops, y.ops, strict=True):
            op(p, q)

    def op(x: Op, y: Op) -> None:
        fields = [(z.name, z.id, z.was, z.origin, z.loc, sorted(z.attrs.items())) for z in (x, y)]
        assert repr(fields[0]) == repr(fields[1])  # text, so that a NaN equals itself
        for p, q in zip(x.args + x.results, y.args + y.results, strict=True):
            value(p, q, x)
        for p, q in zip(x.blocks, y.blocks, strict=True):
            block(p, q)

    own = [(f.name, f.level, f.hints, sorted(f.attrs.items()), f.loc) for f in (a, b)]
    assert repr(own[0]) == repr(own[1])
    for p, q in zip(a.params, b.params, strict=True):
        value(p, q, "parameter")
    block(a.body, b.body)


def test_parsed_text_prints_unchanged() -> None:
    assert print_func(parse_func(EVERY_FORM)) == EVERY_FORM


def test_every_op_and_field_survives_the_round_trip() -> None:
    func = parse_func(EVERY_FORM)
    assert_same(parse_func(print_func(func)), func)
    reduction = next(op for op in func.ops() if op.id == 12)
    assert [(op.name, op.id, op.was) for op in reduction.blocks[0].ops] == [("max", 13, (4,)), ("yield", 14, ())]
    assert reduction.blocks[0].ops[0].attrs == {"nan": True}
    assert list(func.hints) == [Hint("x", 16), Hint("size", 1)]


def test_attributes_implied_by_result_types_are_restored() -> None:
    ops = {op.id: op for op in parse_func(EVERY_FORM).ops()}
    layout = Layout((1024,), (1, 2), (4, 8, 16, 32, 64), (128, 256, 512))
    assert ops[1].attrs == {"start": 0, "end": 1024, "layout": layout}
    assert ops[2].attrs == {"shape": (1024,), "layout": layout}
    assert ops[34].attrs == {"dtype": t.float16}
    buffer = Buffer(t.float16, (32,), SharedLayout((32,), (1, 2, 4, 8, 16)))
    assert ops[35].attrs == {"type": buffer, "offset": 128}
    assert ops[31].attrs == {"types": (Tile(t.float32),)}


def test_locations_and_origins_are_printed_on_request_and_read_back() -> None:
    call = Loc('a "cell"', 9, 4, 9, 20, "kernel")
    loc = Loc("helpers.py", 3, 2, 4, 7, "helper", call)
    op = Op("const", (), (Value(Tile(t.int32), "c"),), {"value": 1, "type": Tile(t.int32)}, (), loc, "parse", 3, (1, 2))
    func = Func("f", (), Block((), (op,)), loc=call)
    text = print_func(func, locs=True)
    assert 'by parse at "helpers.py":3:2-4:7 in "helper" from "a \\"cell\\"":9:4-9:20 in "kernel"' in text
    assert_same(parse_func(text), func)
    assert "helpers.py" not in print_func(func)


def test_unnamed_value_gets_a_stable_name_from_its_op() -> None:
    func = parse_func("func @f(%n: i32) tile {\n%0 = add %n, %n : i32 // 4\n%1 = add %n, %n : i32 // 9\n}")
    shorter = func.replace(body=Block((), func.body.ops[1:]))
    assert "  %9 = add %n, %n : i32  // 9" in print_func(func).splitlines()
    assert "  %9 = add %n, %n : i32  // 9" in print_func(shorter).splitlines()


def test_without_ids_the_text_depends_only_on_the_program() -> None:
    texts = [
        "%n.{0} = add %n, %n : i32 // {0}\n %1 = add %n.{0}, %n : i32 // {1}".format(*ids) for ids in [(4, 9), (50, 7)]
    ]
    first, second = (parse_func(f"func @f(%n: i32) tile {{\n{text}\n}}") for text in texts)
    assert print_func(first) != print_func(second)
    assert print_func(first, ids=False) == print_func(second, ids=False)
    assert "//" not in print_func(first, ids=False)


def test_ids_and_inferable_types_may_be_left_out_and_comments_are_skipped() -> None:
    func = parse_func(
        """
      // A comment of its own line, and one // behind.
      func @f(%p: ptr<f32>, %n: i32) tile {
        %a = add %n, %n   // what this does
        %z = const 0 : i32  // 5
        %s = for %i = %z to %n step %n iter(%acc = %z) { yield %acc }
        %v = load %p
        %w = reduce %v4 {axis=0} add
      }""".replace("%w = reduce", "%v4 = splat %v : tile<4xf32>\n%w = reduce")
    )
    ops = func.body.ops
    assert [op.name for op in ops] == ["add", "const", "for", "load", "splat", "reduce"]
    assert ops[3].result.type == Tile(t.float32) and ops[5].result.type == Tile(t.float32)
    ids = [op.id for op in func.ops()]
    assert ops[1].id == 5 and len(set(ids)) == len(ids) and min(ids) >= 0


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("%a = add %n, %m", 2, "%m is not defined"),
        ("\n%a = frobnicate %n", 3, "no op is called frobnicate"),
        ("%a = add %n, %n\n%a = add %n, %n", 3, "%a is defined twice"),
        ("%a = add %n, %n : tile<4xi33>", 2, "no dtype is called i33"),
        ("%a = convert %n : tile<4xi32, #q>", 2, "no layout is called #q"),
        ("%a = add %n ; %n", 2, "cannot read"),
        ("%a = add %n, %n : i32, i32", 2, "1 results of 2 types"),
        ("%f = cast %n", 2, "cannot be inferred"),
        ("%f = if %n {\nyield\n}", 5, "expected 'else'"),
    ],
)
def test_invalid_text_is_refused_with_its_line(body: str, line: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^line {line}: ") as caught:
        parse_func(f"func @f(%n: i32) tile {{\n{body}\n}}")
    assert message in str(caught.value)


def test_printed_lines_map_to_ops_and_source_lines() -> None:
    own, call = Loc("cell", 3, 0, 3, 9), Loc("cell", 5, 0, 5, 9)
    helper = Loc("helpers.py", 77, 0, 77, 9, "helper", call)
    builder = Builder("parse")
    n = Value(Tile(t.int32), "n")
    with builder.at(loc=own):
        a = builder.value("add", n, n)
    with builder.at(loc=helper):
        builder.value("add", a, n)
    func = Func("f", (n,), Block((), builder.finish()), loc=Loc("cell", 1))
    lines = print_lines(func)
    assert [line for line, _, _ in lines] == print_func(func).splitlines()
    assert [(op, source) for _, op, source in lines] == [(None, None), (0, 3), (1, 5), (None, None)]


def test_single_op_prints_as_in_the_whole_function() -> None:
    func = parse_func(EVERY_FORM)
    op = next(op for op in func.ops() if op.id == 18)
    assert print_op(func, op) == "%sum = add %acc, %acc : f32  // 18"


def test_invalid_ir_can_be_printed() -> None:
    loose = Value(Tile(t.int32), "loose")
    op = Op("neg", (loose,), (Value(Tile(t.int32)),), id=0)
    assert "neg %undefined.loose" in print_func(Func("f", (), Block((), (op,))))


layouts = st.sampled_from([Layout((4,), (1,), (2, 0, 0, 0, 0), (0,)), SharedLayout((4,), (2, 1))])
dtypes = st.sampled_from([*t.DTYPES, Pointer(t.float32)])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    layouts,
    dtypes,
    st.builds(Tile, dtypes, st.sampled_from([(), (4, 1)])),
)
attributes = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(), inner, max_size=2)),
    max_leaves=5,
)


@given(
    attrs=st.dictionaries(st.from_regex("[a-z_]{1,8}", fullmatch=True), attributes, max_size=3),
    names=st.lists(st.one_of(st.just(""), st.from_regex(r"[^\W\d]\w*", fullmatch=True)), max_size=6),
)
def test_any_attributes_and_any_names_survive_the_round_trip(attrs: dict, names: list[str]) -> None:
    pointer = Value(t.Tile(t.Pointer(t.float32)), "pointer")
    ops = [
        Op("load", (pointer,), (Value(Tile(t.float32), name),), MappingProxyType(attrs), id=i)
        for i, name in enumerate(names)
    ]
    func = Func("f", (pointer,), Block((), tuple(ops)), attrs=MappingProxyType(attrs))
    assert_same(parse_func(print_func(func)), func)
