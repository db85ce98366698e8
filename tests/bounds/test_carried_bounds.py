"""`passes.support.carried_bounds` on short IR texts: the owners that it adds, and the bounds that each access is compared with."""

from __future__ import annotations

import pytest

from blocknb.analysis.provenance import NUMBER
from blocknb.ir.core import Func
from blocknb.ir.provenance import UNOWNED
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.passes.support.carried_bounds import Guard, guards
from blocknb.trace import Notes

X, Y, TABLE = 0, 1, 2  # numbers of the arguments
HEAD = (
    "func @f(%x: ptr<i32> div 16, %y: ptr<i32> div 16, %table: ptr<i64> div 16, %n: i32 div 1, %c: i1 div 1) tile {\n"
)
SELECT = "%p = select %c, %x, %y\n"
#: The text that the pass adds.
OWNER = "%own0 = const 0 : i32\n%own1 = const 1 : i32\n%own = select %c, %own0, %own1\n"
TILES = """
  %i = arange 0 4
  %lane = splat %c : tile<4xi1>
  %xs = splat %x : tile<4xptr<i32>>
  %ys = splat %y : tile<4xptr<i32>>
"""
BOUNDS = """
  %lo = const 0 : i32
  %step = const 1 : i32
"""
#: The first of the three arguments whose array holds the address of %p.
LOOKED_UP = """
  %own0 = const -1 : i32
  %own1 = inside %p {argument=2}
  %own2 = const 2 : i32
  %own3 = select %own1, %own2, %own0
  %own4 = inside %p {argument=1}
  %own5 = const 1 : i32
  %own6 = select %own4, %own5, %own3
  %own7 = inside %p {argument=0}
  %own8 = const 0 : i32
  %own9 = select %own7, %own8, %own6
"""


def parsed(text: str) -> Func:
    func = parse_func(HEAD + text + "}\n")
    verify(func)
    return func


def guarded(text: str) -> tuple[Func, list[Guard], Notes]:
    func, notes = parsed(text), Notes("checks")
    made, found = guards(func, notes)
    verify(made)
    return made, list(found.values()), notes


def adds(before: str, after: str) -> None:
    """Checks that the pass turns one text into the other, except for the names of values `own...`."""
    wanted = parsed(after)
    for op in wanted.ops():
        for value in op.results:
            value.name = "" if value.name.startswith("own") else value.name
    assert print_func(guarded(before)[0], ids=False) == print_func(wanted, ids=False)


# -- straight code ---------------------------------------------------------------------------------------------------------


def test_selecting_pointers_also_selects_their_owners():
    access = "%q = ptradd %p, %n\nstore %q, %n\n"
    adds(SELECT + access, SELECT + OWNER + access)


def test_the_owner_of_a_selected_pointer_may_be_selected_again():
    again = "%t = bitcast %table : ptr<i32>\n%q = select %c, %p, %t\n"
    owner = "%own2 = const 2 : i32\n%own3 = select %c, %own, %own2\n"
    adds(SELECT + again + "store %q, %n\n", SELECT + OWNER + again + owner + "store %q, %n\n")


def test_all_lanes_of_a_selected_pointer_have_one_owner():
    access = "%ps = splat %p : tile<4xptr<i32>>\n%q = ptradd %ps, %i\nstore %q, %i\n"
    adds(TILES + SELECT + access, TILES + SELECT + OWNER + access)


def test_per_lane_selection_gives_each_lane_an_owner():
    adds(
        TILES
        + """
        %p = select %lane, %xs, %ys
        %q = expand_dims %p {axis=0}
        %r = reshape %q : tile<2x2xptr<i32>>
        %g = gather %p, %i {axis=0}
        store %g, %i
        %v = load %r
        """,
        TILES
        + """
        %p = select %lane, %xs, %ys
        %own0 = const 0 : tile<4xi32>
        %own1 = const 1 : tile<4xi32>
        %own2 = select %lane, %own0, %own1
        %q = expand_dims %p {axis=0}
        %own3 = expand_dims %own2 {axis=0}
        %r = reshape %q : tile<2x2xptr<i32>>
        %own4 = reshape %own3 : tile<2x2xi32>
        %g = gather %p, %i {axis=0}
        %own5 = gather %own2, %i {axis=0}
        store %g, %i
        %v = load %r
        """,
    )


def test_lanes_may_select_between_a_selected_pointer_and_an_argument():
    selected = TILES + SELECT
    splat = "%ps = splat %p : tile<4xptr<i32>>\n"
    adds(
        selected + splat + "%q = select %lane, %ps, %xs\nstore %q, %i\n",
        selected
        + OWNER
        + splat
        + """
        %q = select %lane, %ps, %xs
        %own2 = splat %own : tile<4xi32>
        %own3 = const 0 : tile<4xi32>
        %own4 = select %lane, %own2, %own3
        store %q, %i
        """,
    )


def test_an_address_keeps_the_owner_of_its_pointer():
    access = """
        %a = bitcast %p : i64
        %eight = const 8 : i64
        %b = add %eight, %a
        %q = bitcast %b : ptr<i32>
        store %q, %n
    """
    adds(SELECT + access, SELECT + OWNER + access)


@pytest.mark.parametrize(
    "pointer",
    [
        "%a = bitcast %x : i64\n%b = bitcast %y : i64\n%d = sub %a, %b\n%p = bitcast %d : ptr<i32>\n",
        "%v = load %table\n%p = bitcast %v : ptr<i32>\n",
        "%t = bitcast %table : ptr<ptr<i32>>\n%p = load %t\n",
        "%p = const 0 : ptr<i32>\n",
        "%ps = splat %x : tile<4xptr<i32>>\n%p = reduce %ps {axis=0} (%u: ptr<i32>, %v: ptr<i32>) : ptr<i32> {\nyield %u\n}\n",
    ],
)
def test_owner_of_a_pointer_made_from_an_address_is_looked_up(pointer):
    adds(pointer + "store %p, %n\n", pointer + LOOKED_UP + "store %p, %n\n")


def test_offsets_of_64_bits_to_a_selected_pointer_do_not_wrap():
    adds(
        """
        %far = cast %n : i64
        %a = ptradd %x, %far
        %b = ptradd %y, %n
        %p = select %c, %a, %b
        %q = ptradd %p, %far
        %elsewhere = ptradd %x, %far
        store %q, %n
        store %elsewhere, %n
        """,
        """
        %far = cast %n : i64
        %a = ptradd %x, %far {saturate=True}
        %b = ptradd %y, %n
        %p = select %c, %a, %b
        %own0 = const 0 : i32
        %own1 = const 1 : i32
        %own2 = select %c, %own0, %own1
        %q = ptradd %p, %far {saturate=True}
        %elsewhere = ptradd %x, %far
        store %q, %n
        store %elsewhere, %n
        """,
    )


# -- control flow ----------------------------------------------------------------------------------------------------------


def test_for_loop_carries_an_owner_per_pointer_and_none_per_number():
    adds(
        BOUNDS
        + """
        %rp, %rk, %rq = for %j = %lo to %n step %step iter(%p = %x, %k = %n, %q = %y) : ptr<i32>, i32, ptr<i32> {
          %more = add %k, %n
          yield %q, %more, %p
        }
        store %rp, %rk
        """,
        BOUNDS
        + """
        %own0 = const 0 : i32
        %own1 = const 1 : i32
        %rp, %rk, %rq, %rp_owner, %rq_owner = for %j = %lo to %n step %step
            iter(%p = %x, %k = %n, %q = %y, %p_owner = %own0, %q_owner = %own1) : ptr<i32>, i32, ptr<i32>, i32, i32 {
          %more = add %k, %n
          yield %q, %more, %p, %q_owner, %p_owner
        }
        store %rp, %rk
        """,
    )


def test_owner_of_an_unnamed_pointer_is_unnamed():
    body = "yield %7, %6\n}\nstore %4, %n\n"
    loop = "%4, %5 = for %j = %lo to %n step %step iter(%6 = %x, %7 = %y) : ptr<i32>, ptr<i32> {\n"
    made, (guard,), _ = guarded(BOUNDS + loop + body)
    assert [value.name for op in made.ops() if op.name == "for" for value in op.results] == [""] * 4
    assert guard.carried is not None and guard.carried.name == ""


def test_while_loop_carries_owners_through_condition_and_body():
    adds(
        """
        %rk, %rp, %rq = while (%k = %n, %p = %x, %q = %y) : i32, ptr<i32>, ptr<i32> {
          %test = cmp lt %k, %n
          condition %test, %k, %p, %q
        } do (%bk: i32, %bp: ptr<i32>, %bq: ptr<i32>) {
          %more = add %bk, %n
          yield %more, %bq, %bp
        }
        store %rp, %rk
        """,
        """
        %own0 = const 0 : i32
        %own1 = const 1 : i32
        %rk, %rp, %rq, %rp_owner, %rq_owner = while (%k = %n, %p = %x, %q = %y, %p_owner = %own0, %q_owner = %own1)
            : i32, ptr<i32>, ptr<i32>, i32, i32 {
          %test = cmp lt %k, %n
          condition %test, %k, %p, %q, %p_owner, %q_owner
        } do (%bk: i32, %bp: ptr<i32>, %bq: ptr<i32>, %bp_owner: i32, %bq_owner: i32) {
          %more = add %bk, %n
          yield %more, %bq, %bp, %bq_owner, %bp_owner
        }
        store %rp, %rk
        """,
    )


def test_branch_yields_owners_from_both_arms():
    adds(
        """
        %k, %p = if %c : i32, ptr<i32> {
          %more = add %n, %n
          yield %more, %x
        } else {
          yield %n, %y
        }
        store %p, %k
        """,
        """
        %k, %p, %p_owner = if %c : i32, ptr<i32>, i32 {
          %more = add %n, %n
          %own0 = const 0 : i32
          yield %more, %x, %own0
        } else {
          %own1 = const 1 : i32
          yield %n, %y, %own1
        }
        store %p, %k
        """,
    )


def test_loop_whose_pointers_have_one_owner_is_unchanged():
    loop = "%r = for %j = %lo to %n step %step iter(%q = %x) : ptr<i32> {\nyield %q\n}\nstore %p, %n\nstore %r, %n\n"
    adds(BOUNDS + SELECT + loop, BOUNDS + SELECT + OWNER + loop)


def test_loop_with_per_lane_selection_carries_a_tile_of_owners():
    before = TILES + BOUNDS
    adds(
        before
        + """
        %r = for %j = %lo to %n step %step iter(%p = %xs) : tile<4xptr<i32>> {
          %q = select %lane, %p, %ys
          yield %q
        }
        store %r, %i
        """,
        before
        + """
        %own0 = const 0 : tile<4xi32>
        %r, %r_owner = for %j = %lo to %n step %step iter(%p = %xs, %p_owner = %own0) : tile<4xptr<i32>>, tile<4xi32> {
          %q = select %lane, %p, %ys
          %own1 = const 1 : tile<4xi32>
          %own2 = select %lane, %p_owner, %own1
          yield %q, %own2
        }
        store %r, %i
        """,
    )


def test_number_used_as_an_address_is_checked_against_the_array_there():
    """The same holds in the first iteration, so the owner is a constant."""
    before = BOUNDS + "%eight = const 8 : i64\n%r = for %j = %lo to %n step %step iter(%v = %eight) : i64 {\n"
    pointer, access = "%p = bitcast %v : ptr<i32>\n", "store %p, %n\n%a = bitcast %x : i64\nyield %a\n}\n"
    adds(before + pointer + access, before + pointer + "%own0 = const 0 : i32\n" + access)


def test_function_whose_accesses_have_known_owners_is_unchanged():
    func = parsed("%p = select %c, %x, %y\n%q = ptradd %x, %n\n%v = load %q\nstore %y, %v")
    made, found = guards(func, Notes("checks"))
    assert made is func
    assert list(found.values()) == [Guard(X, (X,), (), False), Guard(Y, (Y,), (), True)]
    assert [guard.carried for guard in found.values()] == [None, None]


# -- guards ----------------------------------------------------------------------------------------------------------------

FOUND = {
    "selected": ("%p = select %c, %y, %x", (X, Y), ()),
    "looked_up": ("%a = bitcast %x : i64\n%b = add %a, %a\n%p = bitcast %b : ptr<i32>", (X, Y, TABLE, UNOWNED), ()),
    "foreign": ("%b = const 8 : i64\n%p = bitcast %b : ptr<i32>", (X, Y, TABLE, UNOWNED), (NUMBER,)),
}


@pytest.mark.parametrize("name", FOUND)
def test_access_guard_names_its_possible_owners(name):
    """Only a store through a looked-up pointer tests at run time whether the array is read-only."""
    text, possible, foreign = FOUND[name]
    _, (load, store, atomic), _ = guarded(
        text + '\n%v = load %p\nstore %p, %n\n%w = atomic %p, %n {kind="add", sem="relaxed", scope="gpu"}'
    )
    for guard, writes in ((load, False), (store, True), (atomic, True)):
        assert guard.carried is guard.owner and not isinstance(guard.owner, int)
        assert (guard.possible, guard.foreign, guard.writes) == (possible, foreign, writes)
        assert guard.asks_readonly == (writes and name != "selected")


def test_store_to_a_known_argument_needs_no_run_time_read_only_check():
    (guard,) = guarded("store %x, %n")[1]
    assert not guard.asks_readonly and guard.writes


# -- notes -----------------------------------------------------------------------------------------------------------------


def test_notes_count_the_checked_accesses_and_name_the_others():
    foreign = "%b = const 8 : i64\n%p = bitcast %b : ptr<i32>\nstore %p, %n\n"
    missed = f"the store is not checked if its address lies in no array argument: {NUMBER}"

    def said(text: str) -> list[tuple[str, str]]:
        return [(note.text, note.kind) for note in guarded(text)[2].list]

    assert said("store %x, %n") == [("1 of 1 access checked against the bounds of the arrays", "info")]
    assert said(foreign + "store %x, %n") == [
        (missed, "missed"),
        ("1 of 2 accesses checked against the bounds of the arrays", "info"),
    ]
    assert said("%p = ptradd %x, %n") == []
