"""GPU code of warp-specialized kernels: the results in the `simt` simulator, and assembly by ptxas."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from fuzz import reports, simt
from fuzz.races import Race
from kernels.base import Case
from warp_specialized_kernels import HOPPER, PRODUCTS, Product

import blocknb
import blocknb.language as bl
from blocknb.codegen import batch_assembly, gpu, llvm, sass


def ran(
    product: Product, m: int, n: int, k: int, change: Callable[[str], str] = lambda text: text, swizzle: int = 128
) -> tuple[np.ndarray, np.ndarray]:
    """The stored and the expected results."""
    arguments = product.arguments(m, n, k)
    module = gpu.generate(product.finished(), HOPPER)
    maps = tuple(replace(spec, swizzle=swizzle if i == 1 else spec.swizzle) for i, spec in enumerate(module.maps))
    simt.run(replace(module, text=change(module.text), maps=maps), arguments, [product.programs(m, n)])
    a, b, c = arguments[:3]
    return c.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("product", PRODUCTS, ids=lambda p: p.name)
@pytest.mark.parametrize("extents", [(64, 64, 64), (100, 72, 200), (130, 8, 520)], ids=str)
def test_handwritten_products_are_correct(product: Product, extents: tuple[int, int, int]) -> None:
    got, expected = ran(product, *extents)
    np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-2)


#: The error that each change of a line of code causes. The third product uses TMA stores.
MISTAKES = {
    "bytes": (0, lambda text: text.replace(", 16384;", ", 16400;"), "everybody waits"),
    "arrivals": (0, lambda text: re.sub(r"(\[\$0\+491(?:76|84|92)\]), 4;", r"\1, 5;", text), "everybody waits"),
    "order": (0, lambda text: "\n".join(line for line in text.split("\n") if "again: mbarrier" not in line), None),
    "early": (0, lambda text: text.replace("wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;"), "Not equal"),
    "barrier": (2, lambda text: text.replace("count(i32 1, i32 128)", "count(i32 1, i32 160)"), "a barrier of 160"),
    "fence": (2, lambda text: re.sub(r"[^\n]*fence\.proxy\.async[^\n]*\n", "", text), "no fence has shown"),
    "read": (2, lambda text: re.sub(r"[^\n]*wait_group\.read[^\n]*\n", "", text), "before its stores have read"),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_code_is_detected(mistake: str) -> None:
    number, change, message = MISTAKES[mistake]
    with pytest.raises((ValueError, AssertionError, Race), match=message):
        got, expected = ran(PRODUCTS[number], 100, 72, 264, change)
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-2)


def test_a_swizzle_that_differs_from_the_descriptor_is_detected() -> None:
    with pytest.raises(AssertionError, match="longer than the swizzle"):
        ran(PRODUCTS[0], 64, 64, 64, swizzle=64)
    got, expected = ran(PRODUCTS[0], 64, 64, 64, swizzle=0)
    assert not np.allclose(got, expected, rtol=2e-3, atol=2e-2)


# -- machine code


@blocknb.kernel
def multiply(a, b, c, m, n, k, pitch, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, SAY: bl.constexpr = False):
    left = bl.make_tensor_descriptor(a, [m, k], [pitch, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [n, k], [pitch, 1], [BN, BK])
    across = bl.cdiv(n, BN)
    row, column = bl.program_id(0) // across * BM, bl.program_id(0) % across * BN
    total = bl.zeros((BM, BN), bl.float32)
    for step in range(bl.cdiv(k, BK)):
        total = bl.dot(left.load([row, step * BK]), right.load([column, step * BK]).T, total)
    if SAY:
        bl.device_print("row", row)
    bl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN]).store([row, column], total.to(bl.float16))


#: tile, warps, stages, disabled pass; and in the machine code: products per iteration, CTAs per multiprocessor, threads
TILES = [
    ((128, 256, 64), 8, 4, "", 4, 1, 384),
    ((128, 128, 64), 4, 4, "", 8, 1, 384),  # two alternating consumer groups
    ((64, 128, 64), 4, 4, "", 4, 1, 288),
    ((128, 128, 64), 4, 3, "persistent_grid", 8, 2, 160),
    ((64, 128, 64), 4, 4, "persistent_grid", 4, 2, 160),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("tile", "warps", "stages", "without", "count", "resident", "threads"), TILES, ids=str)
def test_loop_of_a_product_has_the_expected_instructions(
    tile: tuple[int, int, int], warps: int, stages: int, without: str, count: int, resident: int, threads: int
) -> None:
    blocks = dict(zip(("BM", "BN", "BK"), tile, strict=True))
    arrays, numbers = dict.fromkeys("abc", "*fp16:16"), dict.fromkeys(("m", "n", "k", "pitch"), "i32:16")
    options = {"num_warps": warps, "num_stages": stages, "without": (without,) * bool(without)}
    compiled = multiply.compile(**arrays, **numbers, **blocks, target="sm_90a", **options)
    found = compiled.trace.resources
    assert not found.warnings
    assert not found.spill_bytes
    ptx = compiled.artifacts["ptx"]
    assert f".reqntid {threads}" in ptx
    assert f".minnctapersm {resident}" in ptx
    assert found.registers * threads * resident <= 1 << 16
    listing = sass.disassemble(compiled.artifacts["cubin"], HOPPER).result().text
    loops = [part for part in re.split(r"\.L_x_\d+:", listing) if "GMMA" in part]
    assert len(loops) == 1
    assert len(re.findall(r"HGMMA\.", loops[0])) == count
    assert len(loops[0].splitlines()) < 60
    assert not re.search(r"\bMOV R\d+, R\d+", loops[0])  # accumulators stay in their registers
    assert listing.count("UTMALDG") == 2
    assert "UTMACCTL.PF" in listing
    assert "SYNCS.PHASECHK" in listing
    assert "R2UR" not in loops[0]  # addresses and descriptors are uniform


def test_registers_are_redistributed_between_roles() -> None:
    product = Product("nt", bulk=True, registers=(240, 24), producers=4)
    func = product.finished()
    module = gpu.generate(func, HOPPER)
    assert module.threads == 256
    job = {"kind": "ptx", "opt": 1, "llvm": False, "arch": HOPPER.arch, "features": HOPPER.features}
    ptx = llvm.shared().submit(job | {"text": module.text}).result()["ptx"]
    assembly = batch_assembly.assemble_many([ptx], HOPPER)
    assert not assembly.warnings
    listing = sass.disassemble(assembly.cubin, HOPPER).result().text
    assert "USETMAXREG.TRY_ALLOC" in listing
    assert "USETMAXREG.DEALLOC" in listing
    assert "UTMASTG.2D" in listing
    assert re.search(r"BAR\.SYNC\S* 0x1, 0x80", listing)  # the barrier of the consumer warps
    arguments = product.arguments(64, 64, 128)
    simt.run(module, arguments, [1])
    a, b, c = (x.astype(np.float64) for x in arguments[:3])
    np.testing.assert_allclose(c, a @ b, rtol=2e-3, atol=2e-2)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("say", [False, True])
def test_kernel_compiled_for_a_launch_is_correct(say: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 144), (80, 144)))
    numbers = {"m": 128, "n": 80, "k": 144, "pitch": 144, "BM": 64, "BN": 64, "BK": 64, "SAY": say}
    arguments = {"a": a, "b": b, "c": np.full((128, 80), np.nan, np.float16), **numbers}
    case = Case(
        "multiply", multiply, lambda rng: {}, lambda x: {"c": a.astype(float) @ b.astype(float).T}, rtol=2e-3, atol=2e-2
    )
    func, _ = case.lower(arguments, "sm_90a")
    assert any(op.name == "roles" for op in func.ops())
    assert bool(func.attrs.get("persistent")) == (not say)  # prints are counted per program
    said = reports.run(func, arguments, (4,))
    case.check(arguments, arguments)
    assert [p for p in said.text.splitlines() if "row" in p] == [
        f"pid ({i}, 0, 0) idx () row: {i // 2 * 64}" for i in range(4)
    ] * say


@pytest.mark.sampled(3)
@pytest.mark.parametrize("k", [0, 40, 64, 200])
@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 8)])
def test_accumulators_without_explicit_initialization_start_at_zero(k: int, rows: int, warps: int) -> None:
    """Without an iteration the sums are zeros, and a first product does not read old register contents."""
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal((n, k)).astype(np.float16) for n in (2 * rows, 512))
    numbers = {"m": 2 * rows, "n": 512, "k": k, "pitch": 208, "BM": rows, "BN": 256 * warps // 8, "BK": 64}
    wide = [np.zeros((x.shape[0], 208), np.float16) for x in (a, b)]
    for x, to in zip((a, b), wide, strict=True):
        to[:, :k] = x
    arguments = {"a": wide[0], "b": wide[1], "c": np.full((2 * rows, 512), np.nan, np.float16), **numbers, "SAY": False}
    case = Case(
        "multiply", multiply, lambda rng: {}, lambda x: {"c": a.astype(float) @ b.astype(float).T}, rtol=2e-3, atol=2e-2
    )
    func, _ = case.lower(arguments, "sm_90a", num_warps=warps)
    text = gpu.generate(func, HOPPER).text
    assert len(re.findall(r"setp\.ne\.s32 first, \$\d+, 0;", text)) == 1
    assert "phi float [ undef, " in text
    reports.run(func, arguments, (2 * 512 // numbers["BN"],))
    case.check(arguments, arguments)
