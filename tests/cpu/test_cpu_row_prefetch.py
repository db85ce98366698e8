"""Row prefetch on the CPU: it fetches exactly the cache lines that the next program or iteration loads, or that later stores write."""

import itertools
import re

import numpy as np
import pytest
from frontend_helpers import argument, kernel, parse
from host_cpus import OLDER
from native import compile_native, launch_native

import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu, llvm
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.runtime.host import HostKernel
from blocknb.target import Target

LOG = """
define internal void @fetched(ptr %place) noinline nounwind {{
  %counter = inttoptr i64 {at} to ptr
  %n = atomicrmw add ptr %counter, i64 1 seq_cst
  %next = add i64 %n, 1
  %slot = getelementptr i64, ptr %counter, i64 %next
  %address = ptrtoint ptr %place to i64
  store i64 %address, ptr %slot
  ret void
}}
"""


READ, WRITE = r"i32 0, i32 [23], i32 1\)", r"i32 1, i32 3, i32 1\)"  # to the L2 or to the L1 cache


def fetched(k, programs, target="cpu", hint=READ, **arguments):
    """Runs the programs in order; returns the addresses of all prefetches for reading, or of those with another hint."""
    parsed, log = Target.parse(target), np.zeros(1 << 16, np.int64)
    func = parse(k.source, {n: argument(k, n, v) for n, v in arguments.items()}, {})
    module = cpu.generate(passes.run(func, parsed, passes.optional())[0], parsed)
    call = rf"call void @llvm\.prefetch\.p0\(ptr ([^,]+), {hint}"
    text = re.sub(call, r"call void @fetched(ptr \1)", module.text)
    made = llvm.compile_cpu(text + LOG.format(at=log.ctypes.data), parsed).result()
    parameters = [(hint.name, value.type.dtype) for hint, value in zip(func.hints, func.params, strict=True)]
    native = HostKernel(made.object, module.entry, parameters, module.sites, module.scratch_bytes, True)
    launch_native(native, [arguments[hint.name] for hint in func.hints], programs)
    assert log[0] < len(log)
    return log[1 : 1 + log[0]].tolist()


def lines(address, size):
    """The addresses of the prefetches that cover `size` bytes: one per cache line, or per iteration of two vectors of fp32, if shorter."""
    return list(range(address, address + size, min(64, 2 * TargetFeatures.of(Target.parse("cpu")).vector_bytes)))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    monkeypatch.setenv("BLOCKNB_NUM_THREADS", "1")


@kernel
def normalise(x, y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < n, other=0).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * stride + i, e / tl.sum(e, axis=0), mask=i < n)


@pytest.mark.parametrize("target", ["cpu", *OLDER])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_every_cache_line_of_a_row_is_prefetched_once_per_iteration(dtype, target):
    rows, block = 8, 1024
    x = np.zeros((rows, block), dtype)
    y = np.zeros((rows, block), np.float32)
    found = fetched(normalise, rows, target, x=x, y=y, stride=block, n=block, BLOCK=block)
    vector = (
        TargetFeatures.of(Target.parse(target)).vector_bytes // 4
    )  # elements, as fp32; an iteration takes two vectors
    row = list(range(0, block * x.itemsize, min(64, 2 * vector * x.itemsize)))
    # Each program here is the first of its thread. It cannot predict the next row, so it prefetches its own row.
    assert found == [x.ctypes.data + r * block * x.itemsize + at for r in range(rows) for at in row]


def test_row_of_the_next_program_is_prefetched_within_a_thread():
    rows, block = 64, 512
    x, y = np.zeros((2, rows, block), np.float32)
    found = fetched(normalise, rows, x=x, y=y, stride=block, n=block, BLOCK=block)
    size, first, share = block * 4, x.ctypes.data, rows // 8  # a thread takes an eighth at a time
    wanted = [row if row % share == 0 else row + 1 for row in range(rows)]
    assert found == list(itertools.chain.from_iterable(lines(first + row * size, size) for row in wanted))


def test_changing_step_is_predicted_by_the_previous_step():
    @kernel
    def jumping(x, y, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        at = 0
        for k in range(4):
            v = tl.load(x + at + i)
            tl.store(y + k * BLOCK + i, tl.exp(v - tl.max(v, axis=0)))
            at += (k + 1) * BLOCK

    block = 256
    x, y = np.zeros(8 * block, np.float32), np.zeros(8 * block, np.float32)
    found = fetched(jumping, 1, x=x, y=y, BLOCK=block)
    rows = [0, 1 + 1, 3 + 2, 6 + 3]  # tiles 0, 1, 3 and 6 are loaded
    assert found == list(itertools.chain.from_iterable(lines(x.ctypes.data + r * block * 4, block * 4) for r in rows))


@kernel
def softmax(x, y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * stride + i, e / tl.sum(e, axis=0), mask=i < n)


def test_row_that_ends_early_prefetches_only_whole_vectors():
    rows, block, n = 8, 512, 200
    x, y = np.zeros((2, rows, block), np.float32)
    found = fetched(softmax, rows, x=x, y=y, stride=block, n=n, BLOCK=block)
    places = np.array(found) - x.ctypes.data
    assert len(found)
    assert (places % (block * 4) < n * 4).all()


def test_prefetch_changes_no_result():
    rows, block = 16, 512
    x = np.random.default_rng(7).standard_normal((rows, block)).astype(np.float32)
    results = []
    for off in ((), ("row_prefetch",)):
        y = np.zeros_like(x)
        values = {"x": x, "y": y, "stride": block, "n": 400, "BLOCK": block}
        func = parse(normalise.source, {n: argument(normalise, n, v) for n, v in values.items()}, {})
        launch_native(compile_native(func, off=off), [values[hint.name] for hint in func.hints], rows)
        results.append(y.tobytes())
    assert results[0] == results[1]


@kernel
def multiplied(a, b, out, stride, n, K: tl.constexpr, N: tl.constexpr, M: tl.constexpr):
    rows, columns, inner = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for step in range(n):
        x = tl.load(a + rows[:, None] * stride + inner[None, :] + step * K)
        y = tl.load(b + (inner[:, None] + step * K) * stride + columns[None, :])
        total = tl.dot(x, y, total)
    tl.store(out + rows[:, None] * N + columns[None, :], total)


@pytest.mark.parametrize(("k", "n", "m"), [(64, 64, 64), (32, 128, 64), (128, 32, 256)])
def test_a_product_prefetches_the_tiles_of_the_next_iteration(k, n, m):
    steps, stride = 4, 1024
    memory = np.zeros(4 * 1024 * 1024 + 16, np.float32)
    start = -memory.ctypes.data % 64 // 4
    a, b = memory[start : start + 512 * 1024], memory[start + 1024 * 1024 : start + 2 * 1024 * 1024]
    found = fetched(multiplied, 1, a=a, b=b, out=np.zeros(m * n, np.float32), stride=stride, n=steps, K=k, N=n, M=m)
    size = len(found) // steps

    def lines_of(array, row, rows, column, columns):
        first = array.ctypes.data
        return {
            first + 4 * (r * stride + column) + at for r in range(row, row + rows) for at in range(0, 4 * columns, 64)
        }

    for step in range(1, steps - 1):  # the first iteration does not know the distance
        expected = lines_of(a, 0, m, (step + 1) * k, k) | lines_of(b, (step + 1) * k, k, 0, n)
        assert set(found[step * size : (step + 1) * size]) == expected


@kernel
def transposed(x, y, columns, M: tl.constexpr, N: tl.constexpr):
    rows, inner = tl.arange(0, M), tl.arange(0, N)
    v = tl.load(x + inner[None, :] * M + rows[:, None])
    tl.store(y + rows[:, None] * columns + inner[None, :], v)


def test_rows_that_are_stored_from_scratch_memory_are_prefetched_two_rows_ahead():
    m, n, columns = 32, 128, 1000
    x, y = np.zeros(n * m, np.float32), np.zeros(40 * columns + 16, np.float32)
    y = y[-y.ctypes.data % 64 // 4 :]
    found = fetched(transposed, 1, hint=WRITE, x=x, y=y, columns=columns, M=m, N=n)
    row = range(0, 4 * n, 64)
    assert found == [y.ctypes.data + 4 * columns * (r + 2) + at for r in range(m) for at in row]


@pytest.mark.parametrize(("m", "n"), [(8, 128), (32, 32), (32, 2048)])
def test_few_short_or_long_rows_are_stored_without_prefetches(m, n):
    x, y = np.zeros(n * m, np.float32), np.zeros(m * n, np.float32)
    assert fetched(transposed, 1, hint=WRITE, x=x, y=y, columns=n, M=m, N=n) == []


@pytest.mark.parametrize(("n", "m"), [(128, 128), (512, 64), (64, 256)])
def test_a_microkernel_prefetches_the_next_accumulators_of_a_large_result(n, m):
    a, b, out = np.zeros((3, 1 << 18), np.float32)
    found = fetched(multiplied, 1, hint=WRITE, a=a, b=b, out=out, stride=512, n=1, K=32, N=n, M=m)
    stored = range(out.ctypes.data, out.ctypes.data + out.nbytes)
    scratch = {at // 64 for at in found if at not in stored}
    machine = TargetFeatures.of(Target.parse("cpu"))
    rows = min(m, machine.vector_registers // 4)
    assert len(scratch) >= (m - rows) * n * 4 // 64  # all register tiles but the first row of them


def test_a_microkernel_of_a_small_result_prefetches_no_accumulators():
    a, b, out = np.zeros((3, 1 << 18), np.float32)
    assert fetched(multiplied, 1, hint=WRITE, a=a, b=b, out=out, stride=512, n=1, K=32, N=32, M=8) == []


@kernel
def multiplied_to_rows(a, b, numbers, out, N: tl.constexpr):
    i, rows = tl.arange(0, N), tl.load(numbers + tl.arange(0, N))
    found = tl.dot(tl.load(a + i[:, None] * N + i[None, :]), tl.load(b + i[:, None] * N + i[None, :]))
    tl.store(out + rows[:, None] * N + i[None, :], found)


def test_rows_stored_at_loaded_numbers_have_no_prefetches():
    n, generator = 64, np.random.default_rng(3)
    a, b = generator.integers(-9, 9, (2, n, n)).astype(np.float32)
    numbers, out = generator.permutation(n).astype(np.int32), np.zeros((n, n), np.float32)
    assert fetched(multiplied_to_rows, 1, hint=WRITE, a=a, b=b, numbers=numbers, out=out, N=n) == []
    assert (out[numbers] == a @ b).all()
