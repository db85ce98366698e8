"""`analysis.provenance` on short IR texts: the arrays that a pointer may come from, and where these may differ between lanes."""

from __future__ import annotations

import pytest

from blocknb.analysis.provenance import ASSEMBLY, LOADED, MIXED, NUMBER, Provenance
from blocknb.ir.core import Value
from blocknb.ir.text import parse_func
from blocknb.ir.verify import verify

X, Y, TABLE = 0, 1, 2  # numbers of the arguments
HEAD = """func @f(%x: ptr<i32> div 16, %y: ptr<i32> div 16, %table: ptr<i64> div 16, %n: i32 div 1, %c: i1 div 1) tile {
  %xa = bitcast %x : i64
  %ya = bitcast %y : i64
  %eight = const 8 : i64
  %i = arange 0 4
  %lane = splat %c : tile<4xi1>
"""


class Analysed:
    """The provenance of an IR text; values are accessed by name."""

    def __init__(self, text: str):
        func = parse_func(HEAD + text + "}\n")
        verify(func)
        blocks = [block for op in func.ops() for block in op.blocks]
        values = (*func.params, *(r for op in func.ops() for r in op.results), *(a for b in blocks for a in b.args))
        self.values: dict[str, Value] = {value.name: value for value in values if value.name}
        self.provenance = Provenance(func)

    def of(self, name: str) -> set[int | str]:
        return set(self.provenance.of(self.values[name]))

    def varies(self, name: str) -> bool:
        return self.values[name] in self.provenance.varying

    def carried(self, *names: str) -> list[str]:
        return [name for name in names if self.provenance.carried(self.values[name])]


# -- straight code ---------------------------------------------------------------------------------------------------------

ORIGINS = {
    "moved": ("%p = ptradd %x, %n", {X}),
    "promised": ("%p = promise %x {multiple_of=(4,)}", {X}),
    "of_another_type": ("%p = bitcast %x : ptr<f32>", {X}),
    "a_tile": ("%s = splat %x : tile<4xptr<i32>>\n%p = ptradd %s, %i", {X}),
    "moved_by_an_address": ("%p = ptradd %x, %ya", {X}),
    "either": ("%p = select %c, %x, %y", {X, Y}),
    "either_or_a_number": ("%z = const 0 : ptr<i32>\n%p = select %c, %x, %z", {X, NUMBER}),
    "an_address_and_back": ("%p = bitcast %xa : ptr<i32>", {X}),
    "an_unsigned_address": ("%u = cast %xa : u64\n%p = bitcast %u : ptr<i32>", {X}),
    "an_address_plus_a_number": ("%a = add %eight, %xa\n%p = bitcast %a : ptr<i32>", {X}),
    "twice_the_address": ("%a = add %xa, %xa\n%p = bitcast %a : ptr<i32>", {X, MIXED}),
    "the_distance_of_two": ("%d = sub %ya, %xa\n%p = bitcast %d : ptr<i32>", {X, Y, MIXED}),
    "a_sum_of_addresses": (
        "%s = splat %xa : tile<4xi64>\n%a = reduce %s {axis=0} add : i64\n%p = bitcast %a : ptr<i32>",
        {X, MIXED},
    ),
    "a_sum_of_numbers": (
        "%s = splat %eight : tile<4xi64>\n%a = reduce %s {axis=0} add : i64\n%p = bitcast %a : ptr<i32>",
        {NUMBER},
    ),
    "an_address_by_way_of_a_float": (
        "%g = bitcast %xa : f64\n%a = bitcast %g : i64\n%p = bitcast %a : ptr<i32>",
        {NUMBER},
    ),
    "an_address_of_32_bits": ("%h = cast %xa : i32\n%a = cast %h : i64\n%p = bitcast %a : ptr<i32>", {NUMBER}),
    "a_number": ("%p = bitcast %eight : ptr<i32>", {NUMBER}),
    "a_loaded_number": ("%v = load %table\n%p = bitcast %v : ptr<i32>", {NUMBER}),
    "an_exchanged_address": (
        '%v = atomic %table, %xa {kind="xchg", sem="relaxed", scope="gpu"}\n%p = bitcast %v : ptr<i32>',
        {NUMBER},
    ),
    "a_loaded_pointer": ("%t = bitcast %table : ptr<ptr<i32>>\n%p = load %t", {LOADED}),
    "assembly": (
        '%p = asm %xa {text="", constraints="=l,l", dtypes=(ptr<i32>,), pure=True, pack=1} : ptr<i32>',
        {ASSEMBLY},
    ),
    "a_number_from_assembly": (
        '%v = asm %xa {text="", constraints="=l,l", dtypes=(i64,), pure=True, pack=1} : i64\n%p = bitcast %v : ptr<i32>',
        {NUMBER},
    ),
    "gathered": ("%s = splat %x : tile<4xptr<i32>>\n%j = cast %i : tile<4xi64>\n%p = gather %s, %j {axis=0}", {X}),
}


@pytest.mark.parametrize("name", ORIGINS)
def test_origins_of_a_pointer(name):
    text, origins = ORIGINS[name]
    assert Analysed(text).of("p") == origins


def test_numbers_that_are_not_addresses_have_no_origin():
    found = Analysed(
        "%d = const 2.0 : f64\n%s = splat %eight : tile<4xi64>\n%a = reduce %s {axis=0} add : i64\n%v = load %table"
    )
    assert [found.of(name) for name in ("n", "eight", "i", "d", "s", "a", "v")] == [set()] * 7


def test_possibly_foreign_pointer_lists_its_reasons_in_a_fixed_order():
    found = Analysed(
        "%t = bitcast %table : ptr<ptr<i32>>\n%l = load %t\n%z = const 0 : ptr<i32>\n%p = select %c, %z, %l\n%q = select %c, %p, %x"
    )
    assert [found.provenance.foreign(found.values[name]) for name in ("q", "z", "x")] == [
        [LOADED, NUMBER],
        [NUMBER],
        [],
    ]


def test_owners_unknown_at_compile_time_are_carried():
    found = Analysed(
        "%p = select %c, %x, %y\n%a = bitcast %p : i64\n%d = sub %a, %xa\n%q = bitcast %d : ptr<i32>\n%z = const 0 : ptr<i32>"
    )
    assert found.carried("p", "a", "d", "q", "z", "x", "xa", "eight", "n") == ["p", "a", "q", "z"]
    argument = found.provenance.argument
    assert [argument(found.values[name]) for name in ("x", "ya", "p", "z", "eight")] == [X, Y, None, None, None]


# -- control flow ----------------------------------------------------------------------------------------------------------

ROTATION = """
  %lo = const 0 : i32
  %one = const 1 : i32
  if %c {
    %ra, %rb, %rc, %rd = for %k = %lo to %n step %one iter(%a = %x, %b = %x, %d = %x, %e = %x) : ptr<i32>, ptr<i32>, ptr<i32>, ptr<i32> {
      %inner = ptradd %a, %n
      yield %b, %d, %e, %y
    }
    %after = ptradd %ra, %n
    %last = const 0 : i32
    yield
  } else {
    yield
  }
  %end = const 0 : i32
"""


def test_origins_propagate_through_a_rotation_of_loop_carried_pointers():
    """The last pointer takes `y` at the end of an iteration, and three iterations later the first one has it."""
    found = Analysed(ROTATION)
    for name in ("a", "b", "d", "e", "ra", "rb", "rc", "rd", "inner", "after"):
        assert found.of(name) == {X, Y}, name


def test_each_loop_carried_value_has_its_own_origins():
    found = Analysed(
        """
  %lo = const 0 : i32
  %one = const 1 : i32
  %rp, %rq, %rv = for %k = %lo to %n step %one iter(%p = %x, %q = %y, %v = %xa) : ptr<i32>, ptr<i32>, i64 {
    %next = ptradd %p, %n
    %z = const 0 : ptr<i32>
    yield %next, %z, %eight
  }
"""
    )
    assert [found.of(name) for name in ("p", "rp", "q", "rq", "v", "rv")] == [
        {X},
        {X},
        {Y, NUMBER},
        {Y, NUMBER},
        {X},
        {X},
    ]


def test_while_loop_values_have_the_origins_from_condition_and_body():
    found = Analysed(
        """
  %rp, %rq, %rs = while (%p = %x, %q = %x, %s = %y) : ptr<i32>, ptr<i32>, ptr<i32> {
    %z = const 0 : ptr<i32>
    condition %c, %p, %z, %s
  } do (%p.2: ptr<i32>, %bq: ptr<i32>, %bs: ptr<i32>) {
    %t = bitcast %table : ptr<i32>
    yield %t, %bq, %bs
  }
"""
    )
    assert [found.of(name) for name in ("rp", "q", "bq", "rq", "s", "bs", "rs")] == [
        {X, TABLE},
        *[{X, NUMBER}] * 3,
        *[{Y}] * 3,
    ]


def test_branch_results_have_the_origins_of_both_arms():
    found = Analysed("%p, %q = if %c : ptr<i32>, ptr<i32> {\n yield %x, %x\n} else {\n yield %y, %x\n}")
    assert (found.of("p"), found.of("q")) == ({X, Y}, {X})


def test_pointers_in_a_combine_block_keep_their_own_origins():
    found = Analysed(
        """
  %s = splat %eight : tile<4xi64>
  %r = reduce %s {axis=0} (%u: i64, %v: i64) : i64 {
    %inner = bitcast %u : ptr<i32>
    %w = bitcast %inner : i64
    yield %w
  }
"""
    )
    assert (found.of("inner"), found.of("r")) == (set(), set())


# -- lanes -----------------------------------------------------------------------------------------------------------------

TILES = """
  %xs = splat %x : tile<4xptr<i32>>
  %ys = splat %y : tile<4xptr<i32>>
  %one = select %c, %x, %y
  %ones = splat %one : tile<4xptr<i32>>
  %other = select %c, %y, %x
  %others = splat %other : tile<4xptr<i32>>
  %d = sub %ya, %xa
  %m = bitcast %d : ptr<i32>
  %ms = splat %m : tile<4xptr<i32>>
  %ds = splat %d : tile<4xi64>
  %xas = splat %xa : tile<4xi64>
  %eights = splat %eight : tile<4xi64>
"""
VARIES = {
    "one_pointer_for_all_lanes": ("%p = ptradd %ones, %i", False),
    "each_lane_one_of_two_arguments": ("%p = select %lane, %xs, %ys", True),
    "each_lane_a_place_in_one_argument": ("%o = ptradd %xs, %i\n%p = select %lane, %xs, %o", False),
    "each_lane_one_of_two_selected_pointers": ("%p = select %lane, %ones, %others", True),
    "moved_after_the_lanes_chose": ("%s = select %lane, %xs, %ys\n%p = ptradd %s, %i", True),
    "a_scalar": ("%p = select %c, %x, %y", False),
    "a_scalar_from_memory": ("%t = bitcast %table : ptr<ptr<i32>>\n%p = load %t", False),
    "from_memory": ("%t = bitcast %table : ptr<ptr<i32>>\n%ts = splat %t {shape=(4,)}\n%p = load %ts", True),
    "constants": ("%p = const 0 : tile<4xptr<i32>>", True),
    "assembly": (
        '%p = asm %xas {text="", constraints="=l,l", dtypes=(ptr<i32>,), pure=True, pack=1} : tile<4xptr<i32>>',
        True,
    ),
    "made_from_numbers": ("%p = bitcast %eights : tile<4xptr<i32>>", True),
    "numbers": ("%t = bitcast %eights : tile<4xf64>\n%p = bitcast %t : tile<4xi64>", False),
    "made_from_one_address": ("%p = bitcast %xas : tile<4xptr<i32>>", False),
    "made_from_distances": ("%p = bitcast %ds : tile<4xptr<i32>>", True),
    "one_distance_for_all_lanes": ("%p = ptradd %ms, %i", False),
    "combined": (
        "%w = broadcast %m2 : tile<2x4xptr<i32>>\n%p = reduce %w {axis=0} (%u: ptr<i32>, %v: ptr<i32>) : tile<4xptr<i32>> {\n yield %u\n}",
        True,
    ),
}


@pytest.mark.parametrize("name", VARIES)
def test_values_whose_owner_may_vary_between_lanes(name):
    text, varies = VARIES[name]
    found = Analysed(TILES + "%m2 = expand_dims %xs {axis=0}\n" + text)
    assert found.varies("p") is varies


def test_loop_carried_uniform_pointer_does_not_vary_between_lanes():
    loop = """
  %lo = const 0 : i32
  %step = const 1 : i32
  %r = for %k = %lo to %n step %step iter(%p = %{}) : tile<4xptr<i32>> {{
    %next = ptradd %p, %i
    yield %next
  }}
"""
    for init, varies in (("ms", False), ("xs", False), ("vs", True)):
        found = Analysed(TILES + "%vs = select %lane, %xs, %ys\n" + loop.format(init))
        assert [found.varies(name) for name in ("p", "next", "r")] == [varies] * 3


# -- what leads to a pointer -----------------------------------------------------------------------------------------------


def test_source_pointers_of_a_pointer():
    """Pointers converted to an address are not sources of a pointer that is made from it."""
    found = Analysed(
        """
  %lo = const 0 : i32
  %one = const 1 : i32
  %a = ptradd %x, %n
  %b = ptradd %y, %n
  %r = for %k = %lo to %n step %one iter(%p = %a) : ptr<i32> {
    %q = ptradd %p, %n
    yield %q
  }
  %both = select %c, %r, %b
  %end = ptradd %both, %n
  %elsewhere = ptradd %a, %n
  %address = bitcast %b : i64
  %again = bitcast %address : ptr<i32>
"""
    )

    def leading_to(name: str) -> set[str]:
        return {value.name for value in found.provenance.leading_to(lambda value: value.name == name)}

    assert leading_to("end") == {"end", "both", "r", "q", "p", "a", "b", "x", "y"}
    assert leading_to("b") == {"b", "y"}
    assert leading_to("again") == {"again"}
    assert leading_to("address") == set()
