"""The op table is complete: each op has a cost, a meaning, an example and a lowering, and its help lists only valid arguments."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu, gpu
from blocknb.errors import Unsupported
from blocknb.ir.build import Builder
from blocknb.ir.core import Block, Func, Hint, Value
from blocknb.language import types as t
from blocknb.language.declarations import BUILTINS
from blocknb.language.op_spec import TRAITS, OpSpec
from blocknb.language.ops import OPS, TypeRule, named
from blocknb.language.types import Pointer, Tile
from blocknb.profile.work import FLOPS
from blocknb.target import Target
from blocknb.testing.examples import Example

SIZE = 128
ELEMENTWISE = sorted(named("elementwise"))
ADDRESSES = {"ptradd", "inside"}  # their meaning needs the addresses of arrays: ir/interp.py computes them
BY_PASSES = {"inside", "outside", "shadow", "clock_lock", "clock_join"}  # ops of the tile level that only passes make
LOWERINGS = "write it in codegen/gpu/math.py and codegen/cpu/elementwise.py, or in codegen/scalar_math/elementary.py"
NEEDED = {
    "cmp": {"pred": "lt"},
    "cast": {"dtype": t.float16},
    "bitcast": {"dtype": t.uint32},
    "inside": {"argument": 0},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_ops_have_cost_and_meaning(name: str) -> None:
    spec = OPS[name]
    assert spec.cost is not None, (
        "give the row a Cost: flops per float element, and the time on a CPU relative to an addition"
    )
    assert spec.cost.flops >= 0
    assert spec.cost.cpu >= 1
    assert spec.numpy is not None or name in ADDRESSES


@pytest.mark.parametrize("name", sorted(named("special_function")))
def test_the_roofline_counts_every_special_function(name: str) -> None:
    assert FLOPS[name] >= 1


@pytest.mark.parametrize(
    "name", sorted(n for n, spec in OPS.items() if "tile" in spec.levels and n not in BY_PASSES | {"asm"})
)
def test_example_of_an_op_emits_it_and_gives_the_stated_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, emitted, emit = Example(name, OPS[name].help.example), set(), Builder.op

    def recorded(self: Builder, op: str, *args: Any, **rest: Any) -> Any:
        emitted.add(op)
        return emit(self, op, *args, **rest)

    assert example.claims, "give the row an example with a claim"
    monkeypatch.setattr(Builder, "op", recorded)
    example.run("interpreter")
    assert name in emitted


def program(spec: OpSpec, dtype: t.DType) -> Func | None:
    """A kernel that loads tiles of a dtype, applies an elementwise op and stores the result; None if the op refuses the dtype."""
    emit, attrs = Builder("parse"), NEEDED.get(spec.name, {})
    source, target = Value(Tile(Pointer(dtype)), "x"), Value(Tile(Pointer(t.int32)), "out")
    index = emit.value("arange", start=0, end=SIZE)

    def addresses(base: Value) -> Value:
        return emit.value("ptradd", emit.value("splat", base, shape=(SIZE,)), index)

    loaded = emit.value("load", addresses(source))
    ready = {"pointer": lambda: addresses(source), "offset": lambda: index}
    ready["condition"] = lambda: emit.value(
        "cmp", index, emit.value("splat", emit.const(3, t.int32), shape=(SIZE,)), pred="lt"
    )
    try:
        result = emit.value(
            spec.name, *(ready.get(operand, lambda: loaded)() for operand in spec.operands.split()), **attrs
        )
    except TypeRule:
        return None
    if result.type.is_pointer:
        result = emit.value("load", result)
    if result.type.dtype != t.int32:
        bits = {8: t.uint8, 16: t.uint16, 32: t.uint32, 64: t.uint64}.get(result.type.dtype.bits)
        if result.type.dtype.is_float and bits is not None:
            result = emit.value("bitcast", result, dtype=bits)
        result = emit.value("cast", result, dtype=t.int32)
    emit.op("store", addresses(target), result)
    return Func(spec.name, (source, target), Block((), emit.finish()), hints=(Hint("x", 16), Hint("out", 16)))


@pytest.mark.parametrize("machine", ["sm_80", "cpu"])
@pytest.mark.parametrize("name", sorted({*ELEMENTWISE} - BY_PASSES))
def test_elementwise_ops_have_a_lowering_for_every_dtype_of_their_rule(name: str, machine: str) -> None:
    target, found = Target.parse(machine), 0
    for dtype in (t.float32, t.float64, t.int32, t.uint32, t.int1):
        func = program(OPS[name], dtype)
        if func is not None:
            found += 1
            lowered = passes.run(func, target)[0]
            try:
                made = gpu.generate(lowered, target) if target.is_gpu else cpu.generate(lowered, target, True)
            except (LookupError, NotImplementedError, Unsupported) as error:
                raise AssertionError(f"{machine} has no lowering of {name} for {dtype}: {LOWERINGS}") from error
            assert "store" in made.text
    assert found, "the op takes no dtype that is tried here"


# -- text


@pytest.mark.parametrize("name", sorted(OPS))
def test_every_op_has_help_text(name: str) -> None:
    text = OPS[name].help.text
    assert text.endswith(".")
    assert text[0].isupper()
    assert all(len(line.split()) <= 25 for line in re.split(r"(?<=\.) ", text))


@pytest.mark.parametrize(
    "name", sorted(n for n in BUILTINS if n in OPS and OPS[n].help.text in (BUILTINS[n].__doc__ or ""))
)
def test_help_lists_only_arguments_of_the_kernel_language(name: str) -> None:
    help_text, declared = inspect.getdoc(getattr(tl, name)) or "", inspect.signature(getattr(tl, name)).parameters
    quoted = set(re.findall(r"`(\w+)`", help_text.split("Example:")[0]))
    assert quoted <= set(declared), "IR attributes belong into Help.ir"
    assert OPS[name].help.ir == "" or OPS[name].help.ir not in help_text


# -- traits


def test_every_trait_is_used_by_an_op() -> None:
    assert [trait for trait in TRAITS if not named(trait)] == []


def test_code_tests_only_existing_traits() -> None:
    asked = set()
    for path in Path(tl.__file__).parents[1].rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if re.search(r"\.has\(|\.traits\b", text) else ():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "has"
                and "OPS[" in ast.unparse(node)
            ):
                asked |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]).endswith(".traits"):
                asked |= {node.left.value} if isinstance(node.left, ast.Constant) else set()
    assert asked <= TRAITS.keys()
    with pytest.raises(KeyError):
        named("no such trait")


def test_a_row_with_an_unknown_trait_is_refused() -> None:
    with pytest.raises(ValueError, match="hypot has traits that TRAITS does not name: quick"):
        OpSpec("hypot", "elementwise", OPS["add"].infer, OPS["add"].help, traits=frozenset({"quick"}))
