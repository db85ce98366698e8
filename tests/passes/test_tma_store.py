"""TMA stores: which results get them, how the pass lowers them, and that the interpreter finds every missing part."""

from __future__ import annotations

import numpy as np
import pytest
from fuzz import reports
from fuzz.races import Race
from kernels import CASES
from kernels.base import Case, copied

import blocknb
import blocknb.language as bl
from blocknb.codegen import batch_assembly, gpu, llvm, sass
from blocknb.errors import CompilerBug
from blocknb.ir import interp
from blocknb.ir.core import Block, Func, Op, walk
from blocknb.ir.verify import verify
from blocknb.target import Target

HOPPER = Target.parse("sm_90a")


def lowered(name="boxed_fp16", without=(), seed=0, together=False, **options):
    """Lowers a kernel; with `together`, each warp has 32 rows of a tile, which all consumer warps store together."""
    case = CASES[name]
    arguments = case.make(np.random.default_rng(seed))
    arguments |= {"BM": 128} if together else {}
    func, stages = case.lower(arguments, "sm_90a", without, **options)
    return func, stages, arguments


def notes(stages, name="tma_store") -> list[str]:
    return [note.text for stage in stages if stage.name == name for note in stage.notes]


def consumers(func: Func) -> list[Op]:
    (roles,) = (op for op in func.body.ops if op.name == "roles")
    return list(walk(roles.blocks[0]))


def edited(func: Func, change) -> Func:
    def block(old: Block) -> Block:
        new = [change(op.replace(blocks=tuple(map(block, op.blocks))) if op.blocks else op) for op in old.ops]
        return Block(old.args, tuple(op for op in new if op is not None))

    return func.replace(body=block(func.body))


@pytest.mark.sampled(2, each=["without", "name"])
@pytest.mark.parametrize("without", [(), ("persistent_grid",), ("epilogue_subtiling",)], ids=str)
@pytest.mark.parametrize("name", ["boxed_fp16", "boxed_fp32"])
def test_tma_stores_give_right_results(name, without):
    func, stages, arguments = lowered(name, without)
    verify(func)
    assert any("store: by TMA" in text for text in notes(stages))
    assert not any(op.name in ("store", "local_load") for op in consumers(func))
    CASES[name].interpret(func, arguments)


def test_subtiles_alternate_between_two_buffers():
    func, stages, _ = lowered(without=("persistent_grid",), together=True)
    assert notes(stages) == ["store: by TMA from one of 2 buffers of 16384 bytes, 128-byte swizzle"]
    names = ("store_wait", "barrier", "local_store", "fence", "store_bulk")
    ops = [op for op in consumers(func) if op.name in names]
    once = ["local_store", "fence", "barrier", "store_bulk"]
    assert [op.name for op in ops] == ["store_wait", "barrier", *once, *once, "store_wait"]
    assert [op.attrs["in_flight"] for op in ops if op.name == "store_wait"] == [0, 0]
    first, second = (op.args[1] for op in ops if op.name == "store_bulk")
    assert first is not second
    (kind,) = {op.args[0].type for op in ops if op.name == "store_bulk"}
    assert (kind.box, kind.swizzle) == ((128, 64), 128)


def test_with_two_consumer_groups_each_warp_stores_its_own_rows():
    """While one consumer group stores, the TMA engine has to copy for the other one."""
    func, stages, arguments = lowered(together=True)
    assert notes(stages)[0].startswith("store: not by TMA: TMA copies for the other group of warps")
    names = [op.name for op in consumers(func)]
    assert "store_bulk" not in names and "barrier" not in names and names.count("warp_barrier") == 2
    CASES["boxed_fp16"].interpret(func, arguments)


def test_the_third_subtile_waits_until_tma_has_read_the_first():
    func, _, arguments = lowered("boxed_fp16_wide")
    waits = [op.attrs["in_flight"] for op in consumers(func) if op.name == "store_wait"]
    assert waits == [0, 1, 1, 0]
    CASES["boxed_fp16_wide"].interpret(func, arguments)


def test_each_warp_may_store_its_own_rows():
    """Boxes of 16 rows, without a barrier of the consumer warps."""
    func, stages, arguments = lowered("boxed_fp16_wide")
    assert [text.rpartition(", ")[2] for text in notes(stages)] == ["each warp its own rows"]
    names = [op.name for op in consumers(func)]
    assert "barrier" not in names and names.count("warp_barrier") == 7
    assert {op.args[0].type.box for op in consumers(func) if op.name == "store_bulk"} == {(16, 64)}
    CASES["boxed_fp16_wide"].interpret(func, arguments)


@pytest.mark.parametrize("lost", ["fence", "warp_barrier", "store_wait"])
def test_a_missing_step_of_a_warp_store_is_detected(lost):
    """The interpreter, which runs a warp in lockstep, or the simulated code detects it."""
    name = "boxed_fp16_wide"
    func, _, arguments = lowered(name)
    inside = {op.id for op in consumers(func) if op.name == lost}
    func = edited(func, lambda op: None if op.id in inside else op)
    if lost == "warp_barrier":
        with pytest.raises(Race, match="two threads at one place"):
            reports.run(func, {key: copied(value) for key, value in arguments.items()}, CASES[name].grid)
    else:
        with pytest.raises(CompilerBug, match=lost.split("_")[0]):
            CASES[name].interpret(func, arguments)


@pytest.mark.parametrize(("lost", "trouble"), [("fence", "fence"), ("barrier", "warp"), ("store_wait", "store")])
def test_a_missing_step_of_a_tma_store_is_detected(lost, trouble):
    name = "boxed_fp16"
    func, _, arguments = lowered(name, ("persistent_grid",), together=True)
    inside = {op.id for op in consumers(func) if op.name == lost}
    with pytest.raises(CompilerBug, match=trouble):
        CASES[name].interpret(edited(func, lambda op: None if op.id in inside else op), arguments)


def test_without_the_pass_each_warp_stores_its_rows():
    func, _, arguments = lowered(without=("tma_store",))
    names = [op.name for op in consumers(func)]
    assert "store_bulk" not in names and "barrier" not in names and names.count("warp_barrier") == 2
    CASES["boxed_fp16"].interpret(func, arguments)


@blocknb.kernel
def again(
    a, b, c, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, STEP: bl.constexpr, HOW: bl.constexpr
):
    """c = a b, whose partial sums are stored as well or loaded again, or whose columns are stored one tile after another."""
    left = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [k, n], [n, 1], [BK, BN])
    to = bl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    row = bl.program_id(0) * BM
    first = row if HOW == "own" else 0
    for place in range(first, first + (2 * n if HOW == "twice" else n), STEP):
        column = place % n if HOW == "twice" else place * 0 if HOW == "own" else place
        total = bl.zeros((BM, BN), bl.float32)
        for start in range(0, k, BK):
            total = bl.dot(left.load([row, start]), right.load([start, column]), total)
            if HOW == "sums":
                to.store([row, column], total.to(bl.float16))
        if HOW == "added":
            total += to.load([row, column])
        to.store([row, column], total.to(bl.float16))
        if HOW == "neighbour":
            to.store([row, column + BN], (total + 1).to(bl.float16))


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("tiles", ""),
        ("sums", "several iterations of the for at line"),
        ("twice", "several iterations of the for at line"),
        ("slid", "several iterations of the for at line"),
        ("own", "several iterations of the for at line"),
        ("neighbour", "the store at line"),
        ("added", "the load at line"),
    ],
)
def test_arrays_with_other_accesses_get_no_tma_store(how, why):
    """TMA stores are unordered, and a load does not wait for them."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 96), (96, 128)))
    blocks = {"BM": 64, "BN": 64, "BK": 32, "STEP": 32 if how == "slid" else 64, "HOW": how}
    arguments = {"a": a, "b": b, "c": np.ones((128, 128), np.float16), "m": 128, "n": 128, "k": 96, **blocks}
    case = Case("again", again, dict, dict, grid=(2,))
    func, stages = case.lower(arguments, "sm_90a", num_warps=4)
    refused = [text for text in notes(stages) if text.startswith("store: not by TMA: ")]
    assert any(why in text for text in refused) if why else not refused
    assert any(op.name == "store_bulk" for op in consumers(func)) == (not why)
    got = {key: copied(value) for key, value in arguments.items()}
    interp.run(func, [got[x.name].reshape(-1) if x.type.is_pointer else got[x.name] for x in func.params], (2, 1, 1))
    expected = a.astype(float) @ b.astype(float) + (how == "added")
    expected[:, 64 if how == "own" else 128 :] = 1
    np.testing.assert_allclose(got["c"], expected, rtol=2e-3, atol=2e-2)


@blocknb.kernel
def shared_out(a, b, c, first, m, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, HOW: bl.constexpr):
    """c = a b, with rows of tiles distributed over the programs, or with all tiles of a program stored to one place."""
    left = bl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    right = bl.make_tensor_descriptor(b, [k, n], [n, 1], [BK, BN])
    to = bl.make_tensor_descriptor(c, [m, n], [n, 1], [BM, BN])
    begin, step = bl.program_id(0), bl.num_programs(0)
    if HOW == "loaded":
        begin, step = bl.load(first + bl.program_id(0)), 2
    for tile in range(begin, bl.cdiv(m, BM), step):
        total = bl.zeros((BM, BN), bl.float32)
        for start in range(0, k, BK):
            total = bl.dot(left.load([tile * BM, start]), right.load([start, 0]), total)
        place = tile if HOW == "pieces" else tile % step if HOW == "own" else tile // 4 + begin
        to.store([place * BM, 0], total.to(bl.float16))


@pytest.mark.parametrize("how", ["pieces", "own", "loaded"])
def test_distributed_tiles_get_tma_stores_if_their_addresses_differ(how):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((256, 64), (64, 32)))
    blocks = {"BM": 64, "BN": 32, "BK": 32, "HOW": how}
    numbers = {"first": np.arange(2, dtype=np.int32), "m": 256, "n": 32, "k": 64}
    arguments = {"a": a, "b": b, "c": np.ones((256, 32), np.float16), **numbers, **blocks}
    expected = a.astype(float) @ b.astype(float)
    if how != "pieces":
        expected[:128], expected[128:] = expected[128:].copy(), 1
    case = Case("shared_out", shared_out, dict, lambda _: {"c": expected}, grid=(2,), rtol=2e-3, atol=2e-2)
    func, _ = case.lower(arguments, "sm_90a", num_warps=4)
    assert any(op.name == "store_bulk" for op in consumers(func)) == (how == "pieces")
    case.interpret(func, arguments)


@blocknb.kernel
def several(a, b, c, d, e, f, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, HOW: bl.constexpr):
    """c = a b and e = a b + 1; between the two, a tile with another layout, or an atomic that signals that c is complete."""
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.arange(0, BN)
    place = rows[:, None] * n + columns[None, :]
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        total = bl.dot(
            bl.load(a + rows[:, None] * k + inner[None, :]), bl.load(b + inner[:, None] * n + columns), total
        )
    bl.store(c + place, total.to(bl.float16))
    if HOW == "mixed":
        bl.store(d + place, bl.load(f + columns[None, :] * n + rows[:, None]))
    else:
        bl.atomic_add(d, 1.0, sem=HOW)
    bl.store(e + place, (total + 1).to(bl.float16))


def several_case(how: str) -> tuple[Case, dict]:
    rng = np.random.default_rng(0)
    a, b, f = (rng.integers(-3, 4, (128, 128)).astype(np.float16) for _ in range(3))
    b = b[:, :64].copy()
    outputs = {name: np.zeros((128, 64), np.float16) for name in "cde"}
    arguments = {"a": a, "b": b, **outputs, "f": f, "n": 64, "k": 128, "BM": 64, "BN": 64, "BK": 32, "HOW": how}
    product = a.astype(float) @ b.astype(float)
    between = (
        f.reshape(-1)[np.arange(64) * 64 + np.arange(128)[:, None]] if how == "mixed" else outputs["d"].astype(float)
    )
    if how != "mixed":
        between[0, 0] = 2
    return Case(
        "several", several, dict, lambda _: {"c": product, "d": between, "e": product + 1}, grid=(2,)
    ), arguments


def test_stores_per_warp_and_joint_stores_use_different_buffers():
    """The thread that waits for a store is the one that started it: the first thread of the consumer warps, or one per warp."""
    case, arguments = several_case("mixed")
    func, stages = case.lower(arguments, "sm_90a", ("persistent_grid",), num_warps=4)
    verify(func)
    kinds = {op.args[1]: "layout" in op.attrs for op in consumers(func) if op.name == "store_bulk"}
    assert sorted(kinds.values()) == [False, True], notes(stages)
    assert [op.attrs["in_flight"] for op in consumers(func) if op.name == "store_wait"] == [0, 0, 0, 0]
    for seed in range(4):
        case.interpret(func, arguments, seed=seed)
    got = {key: copied(value) for key, value in arguments.items()}
    reports.run(func, got, case.grid)
    case.check(arguments, got)


@pytest.mark.parametrize("sem", ["release", "acq_rel", "relaxed"])
def test_results_published_by_an_atomic_get_no_tma_store(sem):
    """Nothing waits for the TMA store before the atomic, so a reader of the flag would read the array too early."""
    case, arguments = several_case(sem)
    func, stages = case.lower(arguments, "sm_90a", ("persistent_grid",), num_warps=4)
    tells = sem != "relaxed"
    assert (
        any("(release) signals other programs" in text for text in notes(stages)) == tells
    )  # acq_rel does not count, because its result is unused
    stored = {func.params.index(op.args[0]) for op in func.ops() if op.name == "tensor_map"}
    assert (2 in stored, 4 in stored) == (not tells, True)  # c, and e, which is stored after the atomic
    case.interpret(func, arguments)
    if not tells:
        atomics = {op.id for op in consumers(func) if op.name == "atomic"}
        told = edited(func, lambda op: op.replace(attrs={**op.attrs, "sem": "release"}) if op.id in atomics else op)
        with pytest.raises(CompilerBug, match="may still write"):
            case.interpret(told, arguments)


@blocknb.kernel
def signalled_sums(a, b, c, flag, n, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr, SEM: bl.constexpr):
    """c += a b, and an atomic that may signal completion."""
    rows, columns = bl.program_id(0) * BM + bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        total = bl.dot(
            bl.load(a + rows[:, None] * k + inner[None, :]), bl.load(b + inner[:, None] * n + columns), total
        )
    bl.atomic_add(c + rows[:, None] * n + columns[None, :], total, sem="relaxed")
    bl.atomic_add(flag, 1, sem=SEM)


@pytest.mark.parametrize("sem", ["release", "relaxed"])
def test_sums_published_by_an_atomic_get_no_tma_reduction(sem):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 96), (96, 64)))
    arguments = {"a": a, "b": b, "c": np.ones((128, 64), np.float32), "flag": np.zeros(1, np.int32), "n": 64, "k": 96}
    arguments |= {"BM": 64, "BN": 64, "BK": 32, "SEM": sem}
    expected = {"c": 1 + a.astype(float) @ b.astype(float), "flag": np.array([2])}
    case = Case("signalled_sums", signalled_sums, dict, lambda _: expected, grid=(2,))
    func, stages = case.lower(arguments, "sm_90a", num_warps=4)
    told = notes(stages)
    assert any(text.startswith("sum: by TMA") for text in told) == (sem == "relaxed")
    assert any("(release) signals other programs that the store is done" in text for text in told) == (sem == "release")
    case.interpret(func, arguments)


@pytest.mark.parametrize(("columns", "boxes"), [(64, 1), (128, 2)])
def test_each_warp_adds_its_own_boxes(columns, boxes):
    """Four by two warps: a warp has 16 rows and half of the columns, in boxes of 128 bytes. No warp waits for another one."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((128, 96), (96, columns)))
    arguments = {"a": a, "b": b, "c": np.ones((128, columns), np.float32), "flag": np.zeros(1, np.int32)}
    arguments |= {"n": columns, "k": 96, "BM": 64, "BN": columns, "BK": 32, "SEM": "relaxed"}
    expected = {"c": 1 + a.astype(float) @ b.astype(float), "flag": np.array([2])}
    case = Case("signalled_sums", signalled_sums, dict, lambda _: expected, grid=(2,))
    func, stages = case.lower(arguments, "sm_90a", num_warps=8, num_stages=2)
    assert any(text.startswith("sum: by TMA") and text.endswith("each warp its own rows") for text in notes(stages))
    (stored,) = (op for op in func.ops() if op.name == "store_bulk")
    assert stored.attrs["adds"] and len(stored.attrs["layout"].warp) == 3
    assert stored.args[0].type.box == (16, 32) and columns // 2 // 32 == boxes
    before = consumers(func)[: consumers(func).index(stored)]
    assert [op.name for op in before if "barrier" in op.name][-2:] == ["warp_barrier", "warp_barrier"]
    case.interpret(func, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    got |= {"c": np.ones((128, columns), np.float32), "flag": np.zeros(1, np.int32)}
    reports.run(func, got, case.grid)
    case.check(arguments, got)


def test_each_arm_of_an_if_chooses_its_own_store():
    """Rows of a group: TMA stores the full tiles, and warps store the others."""
    func, stages, arguments = lowered("gemm_grouped_wgmma")
    told = notes(stages)
    assert sum("store: by TMA" in text for text in told) == 1
    assert "store: not by TMA: the bound of its rows is not known at launch" in told
    assert {"store", "store_bulk"} <= {op.name for op in consumers(func)}
    CASES["gemm_grouped_wgmma"].interpret(func, arguments)


def test_a_result_that_is_no_box_gets_no_tma_store():
    """Its rows are 36 elements apart, which is no multiple of 16 bytes."""
    case = CASES["boxed_fp16"]
    arguments = case.make(np.random.default_rng(0))
    arguments["b"], arguments["n"] = arguments["b"][:36], 36
    arguments["c"] = np.ascontiguousarray(arguments["c"][:, :36])
    func, stages = case.lower(arguments, "sm_90a")
    assert notes(stages) == ["store: not by TMA: its rows are not known to be a multiple of 16 bytes apart"]
    case.interpret(func, arguments)


@pytest.mark.parametrize(
    ("name", "without", "together"),
    [
        ("boxed_fp16", (), True),
        ("boxed_fp16", ("persistent_grid",), False),
        ("boxed_fp16", ("persistent_grid",), True),
        ("boxed_fp16_wide", (), False),
        ("boxed_fp16_wide", ("tma_store",), False),
        ("boxed_fp32", (), False),
        ("boxed_fp32", ("persistent_grid",), True),
    ],
)
def test_generated_code_stores_right_results(name, without, together):
    func, _, arguments = lowered(name, without, together=together)
    got = {key: copied(value) for key, value in arguments.items()}
    reports.run(func, got, CASES[name].grid)
    CASES[name].check(arguments, got)


def test_code_of_a_large_result_is_short():
    """16 stmatrix and 4 boxes for 128 x 256 halves by 8 warps; no loads of stored data, no addresses, no spills."""
    case = CASES["boxed_fp16"]
    arguments = case.make(np.random.default_rng(0)) | {"m": 256, "n": 512, "k": 512, "BM": 128, "BN": 256, "BK": 64}
    arguments |= {"a": np.zeros((256, 512), np.float16), "b": np.zeros((512, 512), np.float16)}
    arguments["c"] = np.zeros((256, 512), np.float16)
    for without, counts in (((), (16, 0, 0, 4)), (("tma_store",), (16, 16, 16, 0))):
        func, _ = case.lower(arguments, "sm_90a", without, num_warps=8)
        job = {"kind": "ptx", "opt": 1, "llvm": False, "arch": HOPPER.arch, "features": HOPPER.features}
        ptx = llvm.shared().submit(job | {"text": gpu.generate(func, HOPPER).text}).result()["ptx"]
        assembly = batch_assembly.assemble_many([ptx], HOPPER)
        assert not assembly.warnings and all(not found.spill_stores for found in assembly.resources.values())
        listing = sass.disassemble(assembly.cubin, HOPPER).result().text
        assert tuple(map(listing.count, ("STSM.16.M88.4", "LDS.128", "STG.E.128", "UTMASTG"))) == counts


@blocknb.kernel
def overlapping_sums(a, b, c, k, BM: bl.constexpr, BN: bl.constexpr, BK: bl.constexpr):
    """Adds a b to rows of c that begin four elements apart."""
    rows, columns = bl.arange(0, BM), bl.arange(0, BN)
    total = bl.zeros((BM, BN), bl.float32)
    for start in range(0, k, BK):
        inner = start + bl.arange(0, BK)
        total = bl.dot(
            bl.load(a + rows[:, None] * k + inner[None, :]), bl.load(b + inner[:, None] * BN + columns), total
        )
    bl.atomic_add(c + rows[:, None] * 4 + columns[None, :], total, sem="relaxed")


def test_overlapping_rows_are_added_correctly():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((64, 64), (64, 64)))
    expected, product = np.zeros(63 * 4 + 64), a.astype(float) @ b.astype(float)
    for row, numbers in enumerate(product):
        expected[4 * row : 4 * row + 64] += numbers
    arguments = {"a": a, "b": b, "c": np.zeros(len(expected), np.float32), "k": 64, "BM": 64, "BN": 64, "BK": 32}
    case = Case("overlapping_sums", overlapping_sums, dict, lambda _: {"c": expected})
    func, _ = case.lower(arguments, "sm_90a", num_warps=4)
    assert any(op.name == "store_bulk" and op.attrs.get("adds") for op in func.ops())
    case.interpret(func, arguments)
    got = {key: copied(value) for key, value in arguments.items()}
    reports.run(func, got, case.grid)
    case.check(arguments, got)
