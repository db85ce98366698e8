"""Warp roles in the interpreter: products are right in any order of warps and copies, and every omitted or swapped op is detected."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from warp_specialized_kernels import HOPPER, PRODUCTS, Product

from blocknb.errors import AccessError, CompilerBug
from blocknb.ir.build import rebuild
from blocknb.ir.core import Func, Op
from blocknb.ir.interp import run
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.passes.memory.barriers import barriers
from blocknb.passes.memory.shared_memory_allocation import shared_memory_allocation
from blocknb.trace import Notes

ORDERED = ("barrier", "await", "arrive", "expect", "fence", "store_wait", "dot_wait", "copy_bulk", "store_bulk")


def check(product: Product, func: Func, sizes: Sequence[int], seed: int, **options) -> None:
    """Runs the product on new arguments and compares. C has padding, which must stay unchanged."""
    m, n, k = sizes
    if product.bulk:
        n = -(-n // 8) * 8  # rows that TMA can clip
    arguments = product.arguments(m, n, k, seed)
    run(func, arguments, product.programs(m, n), seed=seed, **options)
    a, b, c = (x.astype(np.float64) for x in arguments[:3])
    np.testing.assert_allclose(c, a @ b, rtol=2e-3, atol=2e-2)
    assert np.isnan(arguments[2].base[:, n:]).all()


def deep(product: Product) -> tuple[int, int, int]:
    """Two tiles, and so many steps along K that each stage is used more than once."""
    return 128, 64, 64 * (2 * product.stages - 1)


def fails(product: Product, func: Func, seeds: Sequence[int] = (0, 1)) -> None:
    options = {"ctas": 1} if product.persistent else {}
    with pytest.raises((CompilerBug, AssertionError)):
        for seed in seeds:
            check(product, func, deep(product), seed, **options)


def changed(text: str, old: str = "", new: str = "") -> Func:
    """The finished function of a text with replacements."""
    assert old in text
    return barriers(
        shared_memory_allocation(parse_func(text.replace(old, new) if old else text), HOPPER, Notes("a")),
        HOPPER,
        Notes("b"),
    )


@pytest.mark.sampled(4, each=["product", "sizes"])
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
@pytest.mark.parametrize("sizes", [(64, 64, 64), (100, 72, 200), (192, 128, 320), (1, 1, 0), (70, 1, 1)])
def test_products_are_correct_with_explicit_and_implicit_barriers(product: Product, sizes: tuple) -> None:
    written = product.written()
    assert print_func(parse_func(print_func(written))) == print_func(written)
    check(product, product.finished(), sizes, seed=1)
    if sizes[2] == 200:
        check(product, written, sizes, seed=2, implicit_barriers=True)


@pytest.mark.parametrize("product", [PRODUCTS[1], PRODUCTS[4]], ids=lambda p: p.name)
def test_shared_memory_offsets_and_barriers_equal_the_golden_file(product: Product, golden) -> None:
    golden(f"barriers/roles_{product.name}.ir", print_func(product.finished()))


@pytest.mark.sampled(2, each=["product", "ctas"])
@pytest.mark.parametrize("product", PRODUCTS[3:], ids=lambda p: p.name)
@pytest.mark.parametrize("ctas", [1, 2, 5, 9])
def test_any_number_of_ctas_runs_every_program(product: Product, ctas: int) -> None:
    check(product, product.finished(), (128, 150, 64), seed=ctas, ctas=ctas)


def test_a_persistent_function_runs_whole_grids_only() -> None:
    product = PRODUCTS[3]
    with pytest.raises(ValueError, match="run all programs"):
        run(product.finished(), product.arguments(64, 64, 64), 1, programs=[(0, 0, 0)])


def removable() -> list:
    cases = []
    for product in PRODUCTS:
        ops = [op for op in product.finished().ops() if op.name in ORDERED]
        seen: dict[str, int] = {}
        for op in ops:
            seen[op.name] = number = seen.get(op.name, -1) + 1
            cases.append(pytest.param(product, op.id, id=f"{product.name}-{op.name}-{number}"))
    return cases


@pytest.mark.sampled(2, each=["product"])
@pytest.mark.parametrize(("product", "number"), removable())
def test_removing_any_synchronization_or_copy_is_detected(product: Product, number: int) -> None:
    def visit(op: Op, _) -> object:
        return (op.args if op.results else ()) if op.id == number else NotImplemented

    fails(product, rebuild(product.finished(), visit, "test"))


PARITIES = [("%turn = %zero", "%turn = %one"), ("%round = %one", "%round = %zero")]
CARRIED = [("%phase_consumer = %zero", "%phase_consumer = %one"), ("%phase_producer = %one", "%phase_producer = %zero")]


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
@pytest.mark.parametrize("side", [0, 1])
def test_swapped_parities_are_detected(product: Product, side: int) -> None:
    fails(product, changed(product.text, *(CARRIED if product.persistent else PARITIES)[side]))


WRONG = [
    ("await %full, %at, %turn", "await %full, %zero, %turn", "another stage's mbarrier"),
    ("await %full, %at, %turn", "await %empty, %at, %turn", "the wrong mbarrier"),
    ("arrive %empty, %before, %second", "arrive %empty, %at, %second", "a stage that is still read"),
    ("arrive %empty, %before, %second", "arrive %empty, %before", "one arrival too many"),
    ("arrivals=4", "arrivals=3", "a warp that is not awaited"),
    ("arrivals=4", "arrivals=5", "an arrival that never happens"),
    ("bytes=16384", "bytes=8192", "bytes of one operand"),
    ("bytes=16384", "bytes=16400", "bytes that never arrive"),
    (
        "%turn_next = select %at_over, %turn_other",
        "%turn_next = select %second, %turn_other",
        "a phase that turns early",
    ),
    ("%tb = stage %rb, %to", "%tb = stage %rb, %zero", "a stage that is not free"),
    ("%sa = stage %ra, %at", "%sa = stage %ra, %zero", "a stage that has not arrived"),
    ("%product = dot_wait %total", "", "a product that is not awaited"),
]


@pytest.mark.parametrize(("old", "new", "what"), WRONG, ids=[what for *_, what in WRONG])
def test_errors_in_a_circular_buffer_are_detected(old: str, new: str, what: str) -> None:
    product = Product("tn", persistent=True)
    text = product.text
    if not new:
        text = text.replace("cast %product", "cast %total")
    fails(product, changed(text, old, new))


def test_deadlock_error_names_the_waiting_warps_and_barriers() -> None:
    product = PRODUCTS[1]
    func = changed(product.text, "expect %full, %to {bytes=16384}", "")
    with pytest.raises(
        CompilerBug,
        match=r"deadlock: no warp can continue[^$]*warp 3 waits at await %full, [^$]*the producer waits at await %empty",
    ):
        check(product, func, (64, 64, 64 * 5), 0)


def test_releasing_a_slot_during_its_product_is_detected() -> None:
    """The previous product is awaited, this one is not."""
    product = Product()
    text = product.text.replace("arrive %empty, %before, %second", "arrive %empty, %at")
    func = changed(text, "%second = cmp gt %step, %zero", "")
    with pytest.raises(
        CompilerBug, match="copies to shared memory that another warp reads|the copy engine writes|in flight"
    ):
        check(product, func, (64, 64, 64 * 7), 0)


@pytest.mark.parametrize(("order", "name"), [("nn", "%m"), ("nn", "%k"), ("nt", "%n"), ("tn", "%k")])
def test_box_beyond_its_array_is_an_access_error(order: str, name: str) -> None:
    """The map claims more elements than the array has, so TMA would read memory of no array."""
    product = Product(order)
    more = f"%more = mul {name}, %size\n"
    lines = [
        re.sub(rf"{name}\b", "%more", line) if "tensor_map" in line else line for line in product.text.splitlines()
    ]
    at = next(i for i, line in enumerate(lines) if "tensor_map" in line)
    func = changed("\n".join([*lines[:at], more.strip(), *lines[at:]]))
    verify(func)
    with pytest.raises(AccessError, match="loads? element"):
        check(product, func, (100, 72, 200), 0)


def test_strides_that_tma_does_not_support_are_refused() -> None:
    product = Product()
    arguments = product.arguments(64, 64, 64)
    arguments[6] = 68
    with pytest.raises(CompilerBug, match="strides of multiples of 16 bytes"):
        run(product.finished(), arguments, 1)


def test_rows_that_tma_does_not_clip_are_not_stored_by_tma() -> None:
    product = Product("nt", bulk=True)
    run(product.finished(), product.arguments(64, 128, 64), 2)
    with pytest.raises(CompilerBug, match="stores rows of 220 bytes"):
        run(product.finished(), product.arguments(64, 110, 64), 2)


AGAIN = """
store_wait {in_flight=0}
%i = arange 0 64 : tile<64xi32, #rows>
%pc = splat %c : tile<64xptr<f16>, #rows>
%qc = ptradd %pc, %i
%back = load %qc
"""


def test_reading_back_a_tma_store_is_an_error() -> None:
    product = Product("nt", bulk=True)
    text = product.text
    at = text.rindex("store_wait")
    func = changed(text[:at] + AGAIN + text[at:])
    with pytest.raises(CompilerBug, match="the copy engine writes"):
        check(product, func, (64, 64, 64), 0)


def test_overwriting_an_operand_before_it_was_read_is_a_race() -> None:
    """C is A. With one tile, the result is stored after all of A was copied; with two tiles, the second one needs all of A, too."""
    for product in (Product("nt", bulk=True), Product("nt")):
        over_a(product, (64, 64, 64), 0)
    for seed in range(4):
        with pytest.raises(CompilerBug, match="`a` that (the copy engine reads|another warp writes)"):
            over_a(Product("nt", persistent=True, stages=4), (64, 128, 128), seed)


def over_a(product: Product, sizes: tuple[int, int, int], seed: int) -> None:
    """Runs a product that stores its result to A."""
    text = product.text.replace("tensor_map %c", "tensor_map %a").replace("splat %c :", "splat %a :")
    arguments = product.arguments(*sizes)
    expected = arguments[0].astype(np.float64) @ arguments[1].astype(np.float64)
    run(
        changed(text), arguments, product.programs(*sizes[:2]), seed=seed, **({"ctas": 1} if product.persistent else {})
    )
    np.testing.assert_allclose(arguments[0].astype(np.float64), expected, rtol=2e-3, atol=2e-2)
