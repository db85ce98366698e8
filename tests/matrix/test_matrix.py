"""Every name of the language, over dtypes and shapes: results on interpreter and CPU, GPU code, and rejected arguments."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import seeds
from cpu.native import run_native
from frontend_helpers import launch
from fuzz import simt
from kernels.base import copied, parameters, poison
from sampling import part

import blocknb
import blocknb.language as tl
from blocknb.codegen import batch_assembly, gpu, llvm
from blocknb.errors import CompilerBug, KernelError
from blocknb.language import libdevice
from blocknb.language.declarations import BUILTINS, MEMBERS
from blocknb.language.library import LIBRARY
from blocknb.language.ops import OPS as OP_TABLE
from blocknb.target import Target
from matrix import ENTRIES, others
from matrix.build import GLOBALS, Batch, batch, compiled, refusal
from matrix.entry import DTYPES, INTEGERS, Entry
from matrix.groups import batches

TARGETS = ("sm_80", "sm_90a", "sm_120a")
PARTS = 8  # a test of all kernels for one target takes minutes


def tried(case: Batch, opt: int | None) -> None:
    """One kernel, with fresh numbers, in the interpreter and as machine code, if LLVM is to work on it."""
    arguments = case.make(seeds.rng())
    func = case.parse(arguments)
    case.interpret(func, arguments)
    if opt is None:
        return
    got = {name: copied(value) for name, value in arguments.items()}
    run_native(func, parameters(func, got), 1, opt=opt)
    case.check(arguments, got)


SAMPLE = {case.name: case for case in batches("cpu", full=False)}
NAMES = {case.name: case for case in batches("interpreter", full=False, most=1)}
WHOLE = {case.name: case for case in batches("cpu", full=True)}


def batched(cases: dict[str, Batch]) -> list[Any]:
    """The names of batches as parameters. `-k NAME` selects each batch that holds an entry of the name."""
    return [pytest.param(name, marks=pytest.mark.entries(*case.names)) for name, case in cases.items()]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", batched(SAMPLE))
def test_each_name_computes_what_numpy_says(name):
    tried(SAMPLE[name], opt=0)


@pytest.mark.parametrize("name", batched(NAMES))
def test_methods_and_second_names_compute_the_same(name):
    tried(NAMES[name], opt=None)


@pytest.mark.full
@pytest.mark.parametrize("name", batched(WHOLE))
def test_each_name_computes_what_numpy_says_in_every_dtype_and_shape(name):
    tried(WHOLE[name], opt=2)


# -- code for GPUs ---------------------------------------------------------------------------------------------------------------


def assemble(name: str, full: bool, number: int, parts: int) -> None:
    """PTX of one part of the kernels by LLVM, and one call of ptxas for all of them."""
    target = Target.parse(name)
    jobs = {}
    kernels = [case for case in batches("gpu", full, most=1) if part(case.name, parts) == number]
    for index, case in enumerate(kernels):
        func, _ = case.lower(case.make(np.random.default_rng(0)), name)
        text = gpu.generate(func.replace(name=f"matrix_{index}"), target).text
        job = {"kind": "ptx", "text": text, "opt": 1, "llvm": False, "arch": target.arch, "features": target.features}
        jobs[f"matrix_{index}"] = llvm.shared().submit(job)
    found = batch_assembly.assemble_many([job.result()["ptx"] for job in jobs.values()], target)
    assert set(found.resources) == set(jobs)
    assert not found.warnings


#: What `simt` does not run.
BEYOND = (
    "libdevice.fmod",
    "libdevice.remainder",
    "operator %",
    "umulhi",
    "libdevice.mulhi",
    "philox",
    "philox_impl",
    "inline_asm_elementwise",
)


@pytest.mark.full
@pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES if e.name.split(" of ")[0] not in BEYOND and "cpu" in e.runs],
    ids=lambda entry: entry.name,
)
def test_the_code_for_gpus_computes_what_numpy_says(entry: Entry):
    x = entry.dtypes[ENTRIES.index(entry) % len(entry.dtypes)]
    case = batch(entry.name, [(entry, x)], most=1, on_gpu=True)
    arguments = case.make(seeds.rng())
    func, _ = case.lower(arguments, "sm_90a")
    got = {name: copied(value) for name, value in arguments.items()}
    simt.run(gpu.generate(func, Target.parse("sm_90a")), parameters(func, got), (1,), list(got.values()))
    case.check(arguments, got)


def test_a_sample_of_names_assembles():
    assemble("sm_90a", full=False, number=0, parts=6)


@pytest.mark.full
@pytest.mark.parametrize("number", range(PARTS))
@pytest.mark.parametrize("name", TARGETS)
def test_each_name_assembles_in_every_dtype_and_shape(name, number):
    assemble(name, full=True, number=number, parts=PARTS)


# -- what is refused ---------------------------------------------------------------------------------------------------------------

REFUSING = [entry for entry in ENTRIES if entry.refuses and set(DTYPES) - set(entry.dtypes)]


@pytest.mark.parametrize("entry", REFUSING, ids=lambda entry: entry.name)
def test_other_dtypes_are_refused_with_a_place_and_a_hint(entry: Entry):
    for x in set(DTYPES) - set(entry.dtypes):
        source, arguments = refusal(entry, x)
        kernel = compiled(source, GLOBALS | dict(entry.names))
        with pytest.raises(KernelError) as caught:
            Batch("refused", kernel, None, None).parse(arguments)
        error = caught.value
        assert not isinstance(error, CompilerBug), x
        assert error.hint, (x, error)
        assert error.loc is not None, (x, error)
        if error.loc.file != kernel.source.file:  # in a function that was passed
            continue
        line = source.splitlines()[error.loc.line - 1]
        called = re.findall(r"\.(\w+)\(", entry.code)
        assert any(name in line for name in called) or not called, line


@blocknb.kernel
def undefined(x, y, q, r, s, f, o, X: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(q + i, a // b)
    tl.store(r + i, a % b)
    tl.store(s + i, (a << b) + (a >> b))
    tl.store(o + i, tl.load(f + i).to(X))


@pytest.mark.parametrize("opt", [0, 2])
@pytest.mark.parametrize("dtype", INTEGERS, ids=repr)
def test_results_that_are_undefined_are_numbers_all_the_same(dtype: Any, opt: int):
    """Division by zero, the least integer by -1, shifts by the width, floats beyond the integers: nothing stops or is left out."""
    info = np.iinfo(dtype.numpy)
    x = np.resize(np.array([info.min, info.max, 0, 1], dtype.numpy), 64)
    y = np.repeat(np.array([0, 1 if info.min == 0 else -1, min(dtype.bits, info.max), info.max], dtype.numpy), 16)
    f = np.resize(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, 2.5, -2.5]), 64)
    arguments = {
        "x": x,
        "y": y,
        "q": poison(64, dtype.numpy),
        "r": poison(64, dtype.numpy),
        "s": poison(64, dtype.numpy),
        "f": f,
        "o": poison(64, dtype.numpy),
        "X": dtype,
        "BLOCK": 64,
    }
    func = launch(Kernel(undefined), 1, **{k: copied(v) for k, v in arguments.items()})
    got = [copied(arguments[hint.name]) for hint in func.hints]
    run_native(func, got, 1, opt=opt)
    found = dict(zip((hint.name for hint in func.hints), got, strict=True))
    fine = (y != 0) & ~((x == info.min) & (y.astype(int) == -1))
    np.testing.assert_array_equal(found["r"][fine], np.fmod(x[fine], y[fine]))
    if info.min <= -2 or dtype.kind == "int":
        assert set(found["o"][f == -2.5]) == {-2}
    assert set(found["o"][f == 2.5]) == {2}


class Kernel:
    """What `front` wants of a kernel."""

    def __init__(self, made: Any):
        self.source = made.source


# -- over a grid --------------------------------------------------------------------------------------------------------------------


@blocknb.kernel
def programs(out):
    i, j, k = tl.program_id(0), tl.program_id(1), tl.program_id(axis=2)
    m, n = tl.num_programs(1), tl.num_programs(axis=2)
    tl.store(out + (i * m + j) * n + k, i * 100 + j * 10 + k + 1000 * tl.num_programs(0))


def test_programs_know_their_place_in_the_grid():
    out = poison(2 * 3 * 4, np.int32)
    programs[2, 3, 4](out)
    i, j, k = np.indices((2, 3, 4))
    np.testing.assert_array_equal(out.reshape(2, 3, 4), 2000 + i * 100 + j * 10 + k)


# -- nothing is left out ---------------------------------------------------------------------------------------------------------------

CODE = "\n".join(entry.code for entry in ENTRIES)
MISSING = "add an `entry` with a reference, as in tests/matrix/pointwise.py"


def named(prefix: str, name: str) -> bool:
    return re.search(rf"{prefix}{re.escape(name)}\b", CODE) is not None


@pytest.mark.parametrize("name", sorted({*tl.__all__, *BUILTINS} - MEMBERS - set(others.ELSEWHERE)))
def test_every_name_of_the_language_is_in_the_table(name):
    assert named(r"tl\.", name) or named(r"d\.", name.removeprefix("tensor_descriptor.")), MISSING


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_every_method_of_a_tile_is_in_the_table(name):
    assert named(r"[\w)]\.(?<!tl\.)", name), MISSING


@pytest.mark.parametrize("name", sorted(libdevice.FUNCTIONS))
def test_every_function_of_libdevice_is_in_the_table(name):
    assert named(r"libdevice\.", name)


def test_every_op_is_in_the_table_by_a_name_of_the_language():
    symbols = {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "div": "/",
        "rem": "%",
        "and": "&",
        "or": "|",
        "xor": "^",
        "shl": "<<",
        "shr": ">>",
        "neg": "unary -",
        "not": "~",
    }
    names = {entry.name for entry in ENTRIES}
    for op in OP_TABLE:
        assert (
            op in others.OPS
            or op in names
            or any(n.startswith(f"{op} ") for n in names)
            or f"operator {symbols.get(op)}" in names
        ), f"{op}: {MISSING}"


def test_what_is_tested_elsewhere_exists():
    assert set(others.ELSEWHERE) <= {*tl.__all__, *BUILTINS, *LIBRARY}
    assert set(others.OPS) <= set(OP_TABLE)
