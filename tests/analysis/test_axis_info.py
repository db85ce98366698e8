"""Axis info of typical addresses and masks: the contiguous runs that determine the width of an access."""

from __future__ import annotations

import pytest
from frontend_helpers import ir, kernel

import blocknb.language as bl
from blocknb.analysis import affine, ranges
from blocknb.ir.reader import parse_func


def accesses(func):
    """Facts, and the loads and stores in order."""
    return affine.analyze(func), [op for op in func.ops() if op.name in ("load", "store")]


def runs(facts, op, axis=-1):
    """(contiguity of the pointers, divisibility in bytes, constancy of the mask) along an axis."""
    pointer, mask = op.args[0], op.args[-1]
    axis %= len(pointer.type.shape)
    return facts.contiguity(pointer, axis), facts.divisibility(pointer, axis), facts.constancy(mask, axis)


@kernel
def copy(x, y, n, B: bl.constexpr):
    at = bl.program_id(0) * B + bl.arange(0, B)
    bl.store(y + at, bl.load(x + at, mask=at < n), mask=at < n)


def test_ragged_copy_offsets_are_contiguous_and_its_mask_is_constant_in_groups():
    facts, (load, store) = accesses(ir(copy, x="*f32", y="*f32", n="i32", B=128))
    assert runs(facts, load) == runs(facts, store) == (128, 16, 1)
    aligned = ir(copy, x="*f32", y="*f32", n="i32", B=128)
    hints = tuple(h if h.name != "n" else type(h)("n", 16) for h in aligned.hints)
    facts, (load, _) = accesses(aligned.replace(hints=hints))
    assert runs(facts, load) == (128, 16, 16)
    assert str(facts.form(load.args[0])).replace("at", "x") == "d0 + 128*v3"


MATMUL = """
func @product(%a: ptr<f16> div 16, %m: i32 div 16, %k: i32 div 16, %s: i32 div {stride}) tile {{
  %pid = program_id 0 : i32
  %size = const 64 : i32
  %first = mul %pid, %size : i32
  %firsts = splat %first : tile<64xi32>
  %count = arange 0 64 : tile<64xi32>
  %row = add %firsts, %count : tile<64xi32>
  %ms = splat %m : tile<64xi32>
  %wrapped = rem %row, %ms : tile<64xi32>
  %across = expand_dims %wrapped {{axis={axis}}} : tile<{shape}xi32>
  %inner = arange 0 32 : tile<32xi32>
  %down = expand_dims %inner {{axis={other}}} : tile<{thin}xi32>
  %strides = splat %s : tile<{thin}xi32>
  %scaled = mul %down, %strides : tile<{thin}xi32>
  %i = broadcast %across : tile<{full}xi32>
  %j = broadcast %scaled : tile<{full}xi32>
  %offset = add %i, %j : tile<{full}xi32>
  %base = splat %a : tile<{full}xptr<f16>>
  %start = ptradd %base, %offset : tile<{full}xptr<f16>>
  %zero = const 0 : i32
  %one = const 1 : i32
  %step = mul %s, %size : i32
  %steps = splat %step : tile<{full}xi32>
  %end = for %t = %zero to %k step %one iter(%p = %start) : tile<{full}xptr<f16>> {{
    %x = load %p : tile<{full}xf16>
    %q = ptradd %p, %steps : tile<{full}xptr<f16>>
    yield %q
  }}
}}
"""


def product(stride=16, rows=True):
    shapes = {"axis": 1, "other": 0, "shape": "64x1", "thin": "1x32", "full": "64x32"}
    if not rows:
        shapes = {"axis": 0, "other": 1, "shape": "1x64", "thin": "32x1", "full": "32x64"}
    return parse_func(MATMUL.format(stride=stride, **shapes).replace("func @", "func @", 1))


def test_contiguity_of_wrapped_indices_follows_the_divisibility_of_the_modulus():
    facts, (load,) = accesses(product(rows=False))
    pointer = load.args[0]
    assert facts.contiguity(pointer, 1) == 16
    assert facts.divisibility(pointer, 1) == 16
    assert facts.contiguity(pointer, 0) == 1
    assert str(facts.stride(pointer, 0)) == "s"
    assert facts.stride(pointer, 1) is None


def test_unknown_stride_limits_alignment_to_one_element():
    facts, (load,) = accesses(product(stride=1, rows=False))
    assert facts.divisibility(load.args[0], 1) == 2


def test_carried_pointers_are_their_start_plus_iterations_times_the_step():
    func = product(rows=False)
    facts, (load,) = accesses(func)
    (loop,) = (op for op in func.ops() if op.name == "for")
    form, iteration = facts.form(load.args[0]), facts.iteration(loop)
    assert facts.root(load.args[0]) is func.params[0]
    assert [(m, c) for m, c in form.terms.items() if iteration in m] == [
        (tuple(sorted([iteration, *_symbols(facts, func.params[3])])), 64)
    ]
    after = facts.form(loop.results[0])
    assert iteration not in set(after.symbols())
    assert any(s.value is loop for s in after.symbols())


def _symbols(facts, value):
    return list(facts.form(value).symbols())


@pytest.mark.parametrize(
    ("expression", "contiguity", "divisibility", "constancy"),
    [
        ("at", 64, 64, 1),
        ("at + 3", 64, 1, 1),
        ("at // 16", 1, 1, 16),
        ("(at - 64) // 16", 1, 1, 1),  # truncation: the groups around zero are not equal
        ("at // 64", 1, 1, 64),
        ("(at - 64) // 64", 1, 1, 1),
        ("at % 16", 16, 16, 1),
        ("at & 15", 16, 16, 1),
        ("(at - 64) & 15", 16, 16, 1),
        ("at >> 3", 1, 1, 8),
        ("at % n", 16, 16, 1),
        ("(at + n - 64) % n", 1, 1, 1),  # may be negative, where C's remainder counts down
        ("(at + n) % n", 16, 16, 1),
        ("at * 2 - bl.arange(0, 64)", 64, 64, 1),
        ("bl.minimum(at, n)", 1, 1, 1),
        ("bl.where(at < n, at, 0)", 1, 1, 1),
        ("bl.where(at < n, at, at + n)", 16, 16, 1),
        ("(at + 5).to(bl.int8)", 1, 1, 1),
        ("at.to(bl.int8)", 64, 64, 1),
        ("at.to(bl.int64) + 64", 64, 64, 1),
        ("bl.multiple_of(bl.max_contiguous((at * n) % m, 8), 4)", 8, 4, 1),
        ("bl.load(p + at // 8)", 1, 1, 8),
    ],
)
def test_axis_info_of_an_expression(expression, contiguity, divisibility, constancy):
    namespace = {"bl": bl}
    source = f"def f(p, n, m):\n    at = bl.program_id(0) * 64 + bl.arange(0, 64)\n    bl.store(p + at, ({expression}).to(bl.int32))\n"
    func = compiled(source, namespace)
    (store,) = (op for op in func.ops() if op.name == "store")
    value = store.args[1]
    makers = {r: op for op in func.ops() for r in op.results}
    if makers[value].name == "cast" and "to(" in expression:
        value = makers[value].args[0]
    facts = affine.analyze(func)
    assert facts.contiguity(value, 0) == contiguity
    assert facts.constancy(value, 0) == constancy
    assert facts.divisibility(value, 0) >= divisibility if divisibility > 1 else facts.divisibility(value, 0) == 1


def compiled(source, namespace):
    import linecache

    name = f"<test {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), namespace)
    func = ir(kernel(namespace["f"]), p="*i32", n="i32", m="i32")
    return func.replace(hints=tuple(type(h)(h.name, 16 if h.name != "m" else 1) for h in func.hints))


def test_chain_deeper_than_pythons_stack_is_analyzed():
    @kernel
    def network(x, y, B: bl.constexpr):
        at = bl.arange(0, B)
        v = bl.load(x + at).to(bl.uint64)
        for i in bl.static_range(600):
            v = bl.where((v & 1) == 0, v ^ (v >> 1), v | 2)
        bl.store(y + at, v, mask=v < 9)

    facts, (_, store) = accesses(ir(network, x="*i32", y="*u64", B=16))
    assert runs(facts, store) == (16, 16, 1)


@pytest.mark.parametrize("first", ["form", "base", "range", "contiguity"])
def test_any_query_may_come_first_on_a_deep_chain(first):
    @kernel
    def walk(x, n):
        at = bl.arange(0, 16)
        k = n & 7
        for i in bl.static_range(700):
            k = (k ^ i) & 15
            x += k
            at = bl.where(at < k, at, at + 1) & 31
        bl.store(x + at, 0.0)

    facts, (store,) = accesses(ir(walk, x="*f32", n="i32"))
    pointer = store.args[0]
    asked = {
        "range": lambda: facts.range(facts.definition[pointer].args[1]),
        "contiguity": lambda: facts.contiguity(pointer, 0),
    }
    asked.get(first, lambda: getattr(facts, first)(pointer))()
    assert facts.root(pointer) is facts.func.params[0]
    assert facts.range(facts.definition[pointer].args[1]) == (0, 31)
    assert facts.contiguity(pointer, 0) == 1


def test_float_constant_bounds_no_integer():
    func = parse_func("""
func @k(%n: i32 div 1) tile {
  %far = const inf : tile<16xf32>
  %i = arange 0 16 : tile<16xi32>
}
""")
    far, i = (op.result for op in func.body.ops)
    facts = affine.analyze(func)
    assert ranges.bounds(facts, far) == ranges.limits(far.type.dtype)
    assert ranges.bounds(facts, i) == (0, 15)


def test_quotient_by_a_possible_zero_is_at_most_the_dividend():
    func = parse_func("""
func @k(%n: i32 div 1) tile {
  %number = program_id 0 : i32
  %low = const 1000 : i32
  %small = rem %number, %low : i32
  %zero = const 0 : i32
  %by = max %n, %zero : i32
  %quotient = div %small, %by : i32
  %either = div %small, %n : i32
}
""")
    *_, quotient, either = (op.result for op in func.body.ops)
    facts = affine.analyze(func)
    assert facts.range(quotient) == (0, 999)
    assert facts.range(either) is None


def test_bounds_of_a_branch_cover_both_arms():
    func = parse_func(
        """func @f(%n: i32 div 1) tile {
  %p = program_id 0 : i32
  %seven = const 7 : i32
  %low = cmp lt %p, %n : i1
  %small = and %n, %seven : i32
  %q, %r = if %low : i32, i32 {
    yield %small, %n
  } else {
    yield %seven, %seven
  }
}
"""
    )
    facts = affine.analyze(func)
    q, r = next(op for op in func.ops() if op.name == "if").results
    assert ranges.bounds(facts, q) == (0, 7)
    assert ranges.bounds(facts, r) == ranges.limits(r.type.dtype)
