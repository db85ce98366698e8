"""Every rule of the verifier, violated once."""

from __future__ import annotations

import pytest

from blocknb.errors import CompilerBug, Loc
from blocknb.ir.core import Block, Func, Hint, Op, Value
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify
from blocknb.language import types as t
from blocknb.language.types import Tile

LAYOUTS = """
#one = <128: reg - lane 1,2,4,8,16 warp 32,64>
#wide = <128: reg 1,2 lane 4,8,16,32,64 warp 0,0>
#rows = <4x32: reg - lane 1,2,4,8,16 warp 32,64>
#columns = <4x32: reg 1,2 lane 4,8,16,32,64 warp 0,0>
#row = <1x32: reg - lane 1,2,4,8,16 warp 0,0>
#reversed = <1x32: reg - lane 16,8,4,2,1 warp 0,0>
#eight = <128: reg - lane 1,2,4,8,16 warp 32,64,0>
#half = <128: reg 64 lane 1,2,4,8 warp 16,32>
#parts = <4x32: reg 1,2 lane 4,8,16,0,0 warp 32,64>
#pair = <2x32: reg 32 lane 1,2,4,8,16 warp 0,0>
#line = <128: shared 1,2,4,8,16,32,64>
"""


def text(body: str, level: str = "tile", attrs: str = "{num_warps=4}") -> str:
    layouts = "" if level == "tile" else LAYOUTS
    return f"{layouts}func @f(%p: ptr<f32>, %n: i32, %c: i1) {level} {attrs} {{\n{body}\n}}"


def refuses(func: Func | str, message: str) -> CompilerBug:
    with pytest.raises(CompilerBug) as caught:
        verify(parse_func(func) if isinstance(func, str) else func)
    assert message in str(caught.value)
    return caught.value


GOOD = {
    "tile": """
      %z = const 0 : i32
      %r = for %i = %z to %n step %n iter(%a = %z) { yield %a }
      %q = while (%w = %n) { condition %c, %w } do (%v: i32) { yield %v }
      %s = if %c : i32 { yield %r } else { yield %q }
      %x = arange 0 128
      %m = reduce %x {axis=0} max
      store %p, %f""".replace("store", "%f = load %p\nstore"),
    "distributed": """
      %x = arange 0 128 : tile<128xi32, #one>
      %y = convert %x : tile<128xi32, #wide>
      %s = reduce %y {axis=0} add
      %t = reduce %x {axis=0} add
      %r = splat %s : tile<1x32xi32, #row>
      %b = broadcast %r : tile<4x32xi32, #rows>
      %k = reduce %b {axis=0, keep=4, layout=#rows} add""",
    "memory": """
      %x = arange 0 128 : tile<128xi32, #one>
      %buffer = alloc {offset=512} : buffer<128xi32, #line>
      local_store %buffer, %x
      barrier
      %y = local_load %buffer : tile<128xi32, #wide>
      %s = reduce %y {axis=0} add
      %i = arange 0 128 {emit="in_pieces"} : tile<128xi32, #wide>
      %t = reduce %i {axis=0, piece=2} add""",
}


@pytest.mark.parametrize("level", GOOD)
def test_valid_ir_passes_at_each_level(level: str) -> None:
    verify(parse_func(text(GOOD[level], level, "{num_warps=4, shared_bytes=1024}")))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%a = add %n, %n : i64", "the results are i64 where the op table has i32"),
        ("%a = add %n, %c : i32", "operands differ: i32 and i1"),
        ("%a = arange 0 100 : tile<100xi32>", "power of two elements, not 100"),
        ("%a = reduce %n {axis=0} add : i32", "axis 0 of rank 0"),
        ("%a = expand_dims %n : tile<1xi32>", "operands or attributes are missing or wrong: KeyError('axis')"),
        ("%a = convert %n {layout=#one} : i32", "convert does not belong to the tile level"),
        ("barrier\n%a = local_load %n : i32", "local_load does not belong to the tile level"),
        ("%a = arange 0 128 : tile<128xi32, #one>", "has a layout before layouts are assigned"),
        ("%a = splat %n : tile<4194304xi32>", "a tile of 4194304 elements"),
        ("yield %n", "yield must be the last op of a nested block"),
        ("if %c { barrier } else { yield }", "a nested block must end with yield or condition"),
        ("if %c { } else { yield }", "a nested block must end with yield or condition"),
        ("if %c { yield\n barrier\n yield } else { yield }", "yield must be the last op of a nested block"),
        ("if %c { condition %c } else { yield }", "a block of if ends with yield"),
        ("%r = if %c : i32 { yield %n } else { yield }", "the values that end a block of if are none instead of i32"),
        ("%r = for %i = %n to %n step %n iter(%a = %n) { yield %c }", "that end a block of for are i1 instead of i32"),
        ("%r = for %i: i64 = %n to %n step %n iter(%a = %n) { yield %a }", "block arguments are i64, i32 instead of i32, i32"),
        ("%r = for %i = %n to %n step %n iter(%a: i1 = %n) { yield %n }", "block arguments are i32, i1 instead of i32, i32"),
        ("%f = load %p\nfor %i = %f to %f step %f { yield }", "loop bounds are"),
        ("%q = while (%w = %n) { condition %n, %w } do (%v: i32) { yield %v }",
         "that end a block of while are i32, i32 instead of i1, i32"),
        ("%q = while (%w = %n) { condition %c, %w } do (%v: i1) { yield %n }", "arguments of the second block are i1 instead of i32"),
        ("%q = while (%w = %n) { condition %c, %w } do (%v: i32) { yield %c }", "that end a block of while are i1 instead of i32"),
        ("%x = arange 0 8\n%s = reduce %x {axis=0} (%a: i32, %b: i1) : i32 { yield %a }",
         "block arguments are i32, i1 instead of i32, i32"),
        ("%x = arange 0 8\n%s = reduce %x {axis=0} (%a: i32, %b: i32) : i32 { yield %c }",
         "that end a block of reduce are i1 instead of i32"),
        ("%x = arange 0 8\n%s = reduce %x {axis=0} (%a: i32, %b: i32) : i32 { %f = load %p\n yield %a }",
         "computes with scalars and has no effects"),
        ("%x = arange 0 8\n%y = arange 0 4\n"
         "%s, %u = reduce %x, %y {axis=0} (%a: i32, %b: i32, %d: i32, %e: i32) : i32, i32 { yield %a, %b }",
         "operands of different shapes"),
        ("%r = if %c : i32 { %a = add %n, %n\n yield %a } else { yield %a }", "the operand %a is not defined here"),
        ("%r = for %i = %n to %n step %n iter(%a = %n) { yield %a }\n%b = add %a, %n", "the operand %a is not defined here"),
        ("%f = load %p\nstore %p, %f {nontemporal=0}", "nontemporal is 0, which is no number of bytes"),
    ],
)  # fmt: skip
def test_invalid_tile_ir_is_refused(body: str, message: str) -> None:
    refuses(LAYOUTS + text(body), message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%x = arange 0 128 : tile<128xi32>", "has no layout that fits"),
        ("%x = arange 0 64 : tile<64xi32, #one>", "has no layout that fits"),
        ("%x = arange 0 128 : tile<128xi32, #line>", "has no layout that fits"),
        ("%x = arange 0 128 : tile<128xi32, #eight>", "a layout for 8 warps in a program of 4"),
        ("%x = arange 0 128 : tile<128xi32, #half>", "a layout for warps of 16 lanes"),
        ("%x = arange 0 128 : tile<128xi32, #one>\n%y = neg %x : tile<128xi32, #wide>", "the results are"),
        ("%r = splat %n : tile<1x32xi32, #reversed>\n%b = broadcast %r : tile<4x32xi32, #rows>", "move data between threads"),
        ("%r = splat %n : tile<4x32xi32, #rows>\n%s = reduce %r {axis=0, keep=2, layout=#pair} add", "keep=2 with 4 warps"),
        ("%a = alloc {offset=0} : buffer<128xi32, #line>", "alloc does not belong to the distributed level"),
    ],
)  # fmt: skip
def test_invalid_distributed_ir_is_refused(body: str, message: str) -> None:
    refuses(text(body, "distributed"), message)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%x = arange 0 128 : tile<128xi32, #one>\n%y = convert %x : tile<128xi32, #wide>", "a conversion between warps is left"),
        ("%x = splat %n : tile<4x32xi32, #rows>\n%y = reduce %x {axis=0} add", "a reduction across warps is left"),
        ("%a = alloc {offset=600} : buffer<128xi32, #line>", "bytes 600 to 1112 of 1024 of shared memory"),
        ("%a = alloc {offset=2} : buffer<128xi32, #line>", "the offset 2 is not aligned to int32"),
        ("%a = alloc : buffer<128xi32, #line>", "a buffer without an offset"),
        ("%a = alloc {offset=0} : buffer<64xi32, #line>", "does not fit the buffer"),
        ("%a = alloc {offset=0} : buffer<128xi32, #one>", "does not fit the buffer"),
        ("%a = alloc {offset=0} : buffer<128xi32, #line>\n%x = arange 0 128 : tile<128xi32, #one>\n"
         "%y = cast %x : tile<128xf32, #one>\nlocal_store %a, %y", "stores tile<128xf32"),
        ('%x = arange 0 128 {emit="later"} : tile<128xi32, #one>', "emit is 'later', not one of in_pieces, at_use"),
        ('%a = alloc {offset=0, emit="at_use"} : buffer<128xi32, #line>', "alloc has an attribute emit='at_use'"),
        ('%x = arange 0 128 {emit="in_pieces"} : tile<128xi32, #wide>\n%s = reduce %x {axis=0} add', "piece is None where an"),
        ("%x = arange 0 128 : tile<128xi32, #wide>\n%s = reduce %x {axis=0, piece=4} add", "piece is 4 where no operand"),
        ('%x = arange 0 128 {emit="in_pieces"} : tile<128xi32, #one>\n%y = cast %x : tile<128xf32, #one>', "takes an operand that is"),
    ],
)  # fmt: skip
def test_invalid_memory_ir_is_refused(body: str, message: str) -> None:
    refuses(text(body, "memory", "{num_warps=4, shared_bytes=1024}"), message)


def test_a_conversion_within_warps_is_valid_at_the_memory_level() -> None:
    verify(
        parse_func(text("%x = splat %n : tile<1x32xi32, #row>\n%y = convert %x : tile<1x32xi32, #reversed>", "memory"))
    )


def test_buffers_need_the_shared_memory_size_of_the_function() -> None:
    refuses(text("%a = alloc {offset=0} : buffer<128xi32, #line>", "memory"), "has no attribute shared_bytes")


def op(name: str, *args: Value, id: int = 0, results: tuple = (), **attrs) -> Op:
    return Op(name, args, results, attrs, id=id)


def test_a_value_used_before_its_definition_is_refused() -> None:
    n, x, y = (Value(Tile(t.int32), name) for name in "nxy")
    ops = (op("neg", x, results=(y,)), op("neg", n, id=1, results=(x,)))
    refuses(Func("f", (n,), Block((), ops)), "the operand %x is not defined here")


def test_a_value_defined_twice_is_refused() -> None:
    n, x = (Value(Tile(t.int32), name) for name in "nx")
    ops = tuple(op("neg", n, id=i, results=(x,)) for i in range(2))
    refuses(Func("f", (n,), Block((), ops)), "%x is defined twice")


def test_ids_must_be_unique_also_across_blocks() -> None:
    refuses(text("if %c { yield // 3\n } else { yield // 3\n }"), "the id 3 is not unique")


def test_unknown_ops_and_missing_blocks_are_refused() -> None:
    n = Value(Tile(t.int1), "n")
    refuses(Func("f", (n,), Block((), (op("frobnicate", n),))), "no op is called frobnicate")
    refuses(Func("f", (n,), Block((), (op("if", n, types=()),))), "0 blocks instead of 2")


def test_parameters_are_scalars_with_one_hint_each() -> None:
    tile, scalar = Value(Tile(t.int32, (4,)), "x"), Value(Tile(t.int32), "n")
    refuses(Func("f", (tile,), Block((), ())), "parameters are scalars")
    refuses(Func("f", (scalar,), Block((), ()), hints=(Hint("n"), Hint("m"))), "2 hints for 1 parameters")


def test_the_error_shows_the_line_of_ir_and_the_place_in_the_source() -> None:
    loc = Loc("cell", 7, 4)
    n, x = Value(Tile(t.int32), "n"), Value(Tile(t.int64), "x")
    bad = op("neg", n, id=5, results=(x,)).replace(loc=loc)
    error = refuses(Func("kernel", (n,), Block((), (bad,))), "invalid IR in kernel (tile level)")
    assert error.loc == loc
    assert "%x = neg %n : i64  // 5" in str(error)
