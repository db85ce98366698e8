"""How a launch selects interpretation as Python, and which arguments it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from kernels.base import host_address

import blocknb
import blocknb.language as tl
from blocknb.errors import AccessError, LaunchError
from blocknb.runtime.launch_context import interpreted


@pytest.fixture
def ran():
    """The names of kernels that ran as Python, in order."""
    return []


@pytest.fixture
def double(ran):
    @blocknb.kernel
    def double(x, out, n, BLOCK: tl.constexpr):
        ran.append(int(tl.program_id(0)))
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

    return double


@pytest.fixture
def arrays():
    x = np.arange(10, dtype=np.float32)
    return x, np.zeros_like(x)


def test_a_launch_keyword_interprets(double, ran, arrays):
    run = double[(3,)](*arrays, 10, BLOCK=4, interpret=True)
    assert ran == [0, 1, 2] == [p[0] for p in run.programs]
    np.testing.assert_array_equal(arrays[1], 2 * arrays[0])
    run = double[lambda c: (blocknb.cdiv(c["n"], c["BLOCK"]),)](
        *arrays, 10, BLOCK=8, interpret={"program": 1, "watch": ["at"]}
    )
    assert run.programs == [(1, 0, 0)] and run["at"][0][1].tolist() == list(range(8, 16))


def test_the_decorator_interprets_and_the_launch_keyword_overrides_it(ran, arrays):
    @blocknb.kernel(interpret=True)
    def k(x):
        ran.append(x)
        tl.store(x, 1.0)

    k[1](arrays[0])
    assert len(ran) == 1 and arrays[0][0] == 1


def test_kernels_are_compiled_by_default(arrays):
    @blocknb.kernel
    def k(x):
        tl.static_print("compiled once")
        tl.store(x, 1.0)

    assert k[1](arrays[0], interpret=False).trace.stages


@pytest.mark.parametrize("name", ["BLOCKNB_INTERPRET", "TRITON_INTERPRET"])
def test_an_environment_variable_interprets_kernels(name, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, blocknb, blocknb.language as tl\n"
        "@blocknb.kernel\n"
        "def k(x):\n"
        "    print('value', tl.load(x + 1))\n"
        "k[1](np.arange(3))\n"
    )
    import os

    done = subprocess.run(
        [sys.executable, script], env={**os.environ, name: "1"}, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("value 1\n", "")


def test_launches_within_interpreted_are_counted(double, ran, arrays):
    with interpreted() as counted:
        double[1](*arrays, 10, BLOCK=16)
        double[2](*arrays, 10, BLOCK=8)
    assert counted == {"double": 2} and ran == [0, 0, 1]


def test_interpreted_autotuners_and_heuristics_choose_without_measuring(ran, arrays):
    @blocknb.autotune([blocknb.Config({"BLOCK": 4}), blocknb.Config({"BLOCK": 8})], key=["n"])
    @blocknb.heuristics({"EVEN": lambda c: c["n"] % c["BLOCK"] == 0})
    @blocknb.kernel
    def k(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        ran.append((BLOCK, EVEN))
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)

    k.interpret(lambda c: (blocknb.cdiv(c["n"], c["BLOCK"]),), record=0)(*arrays, 10)
    k[(3,)](*arrays, 10, interpret=True)
    assert ran == [(4, False)] * 6
    np.testing.assert_array_equal(arrays[1], arrays[0] + 1)


def test_wrong_calls_raise_the_errors_of_other_launches(double, arrays):
    with pytest.raises(LaunchError, match="misses the argument `n`"):
        double.interpret(1)(*arrays, BLOCK=4)
    with pytest.raises(LaunchError, match="list of names"):
        double.interpret(1, watch="at")(*arrays, 10, BLOCK=4)
    with pytest.raises(LaunchError, match="neither an array nor a number"):
        double.interpret(1)([1, 2], arrays[1], 10, BLOCK=4)


def test_views_are_used_in_place(ran):
    @blocknb.kernel
    def k(x, out, stride, n):
        at = tl.arange(0, 4)
        tl.store(out + at * stride, tl.load(x - at * 2))

    whole = np.arange(16, dtype=np.int16)
    k.interpret(1)(whole[::-2], whole[1::2], 2, 4)
    assert whole.tolist() == [0, 15, 2, 13, 4, 11, 6, 9, 8, 9, 10, 11, 12, 13, 14, 15]


def test_read_only_arrays_do_not_change(arrays):
    @blocknb.kernel
    def k(x):
        tl.store(x, 1.0)

    arrays[0].flags.writeable = False
    with pytest.raises(AccessError, match="read-only"):
        k.interpret(1)(arrays[0])


def test_addresses_in_a_table_refer_to_the_arrays(arrays):
    @blocknb.kernel
    def k(table, out):
        p = tl.load(table).to(tl.pointer_type(tl.float32))
        tl.store(out, tl.load(p + 3))
        print(p)

    table = np.array([host_address(arrays[0])], np.int64)

    @blocknb.kernel
    def both(table, x, out):
        k(table, out)

    both.interpret(1)(table, *arrays)
    assert arrays[1][0] == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "uint8"])
def test_torch_tensors_on_the_host_are_used_in_place(dtype):
    torch = pytest.importorskip("torch")

    @blocknb.kernel
    def k(x, out):
        at = tl.arange(0, 8)
        tl.store(out + at, tl.load(x + at * 2))

    x = torch.arange(16).remainder(2 if dtype == "bool" else 100).to(getattr(torch, dtype))
    out = torch.zeros(8, dtype=x.dtype)
    k.interpret(1)(x, out)
    assert torch.equal(out, x[::2])
    with pytest.raises(AccessError, match="element 8 of `x`, which has 8"):
        k.interpret(1)(x[:8], out)


def test_an_autograd_function_interprets_its_kernels(double, ran):
    torch = pytest.importorskip("torch")

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = torch.empty_like(x)
            double[(2,)](x, out, x.numel(), BLOCK=4, interpret=True)
            return out

        @staticmethod
        def backward(ctx, grad):
            out = torch.empty_like(grad)
            double[(2,)](grad.contiguous(), out, grad.numel(), BLOCK=4, interpret=True)
            return out

    x = torch.arange(8.0, requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0] * 8 and ran == [0, 1, 0, 1]


# -- arrays of a GPU, played by arrays of the host -------------------------------------------------------------------------------


class Remote:
    """Simulates an array in device memory: `transfer` finds its memory by its address."""

    def __init__(self, array, strides=None):
        self.array, self.shape, self.strides = array, array.shape, array.strides


@pytest.fixture
def remote(monkeypatch):
    import ctypes

    from blocknb.runtime import interpreted as room
    from blocknb.runtime.arguments import DESCRIBE, dtype_of
    from blocknb.runtime.kinds import pointer_kind

    def transfer(device, far, host, size, back):
        assert device == 0
        transfers.append((size, back))
        ctypes.memmove(*((far, host) if back else (host, far)), size)

    transfers = []
    monkeypatch.setattr(room, "transfer", transfer)
    monkeypatch.setitem(
        DESCRIBE,
        Remote,
        lambda r: (pointer_kind(dtype_of(r.array.dtype), False, 0), r.array.ctypes.data),
    )
    return transfers


def test_overlapping_arrays_of_a_gpu_are_copied_once(remote):
    @blocknb.kernel
    def k(a, b, c, table):
        at = tl.arange(0, 4)
        tl.store(a + at * 2, -1.0)
        tl.store(b + at, tl.load(b + at) * 2)
        tl.store(c, tl.load(tl.load(table).to(tl.pointer_type(tl.float32)) + 1))

    whole, single = np.arange(8, dtype=np.float32), np.zeros(1, np.float32)
    table = np.array([host_address(whole)], np.int64)
    k.interpret(1)(Remote(whole[::2]), Remote(whole[:5]), Remote(single), table)
    assert whole.tolist() == [-2, 2, -2, 6, -1, 5, -1, 7] and single[0] == 2
    assert sorted(remote) == [(4, False), (4, True), (28, False), (28, True)]


def test_stores_before_an_error_reach_the_gpu(remote):
    @blocknb.kernel
    def k(x):
        tl.store(x, 5.0)
        tl.load(x + 4)

    x = np.zeros(4, np.float32)
    with pytest.raises(AccessError, match="element 4 of `x`, which has 4"):
        k.interpret(1)(Remote(x))
    assert x.tolist() == [5, 0, 0, 0]


# -- what is new in the language ---------------------------------------------------------------------------------------------------


def test_a_new_op_of_the_table_works_without_changes_here(monkeypatch):
    from blocknb.frontend.scope import HANDLERS
    from blocknb.language import declarations, ops, rules, semantics

    spec = ops.OpSpec(
        "hypot",
        "elementwise",
        rules.same("float"),
        ops.Help(""),
        operands="a b",
        numpy=semantics.wide(np.hypot),
    )
    monkeypatch.setitem(ops.OPS, "hypot", spec)
    monkeypatch.setitem(
        HANDLERS,
        "hypot",
        lambda frame, a, b: frame.emit.value("hypot", *frame.emit.agree(tl.float32, a, b)),
    )
    monkeypatch.setattr(declarations, "BUILTINS", dict(declarations.BUILTINS))

    def hypot(a, b): ...

    hypot.__qualname__ = "hypot"
    hypot = declarations.builtin(hypot)

    @blocknb.kernel
    def k(x, out):
        tl.store(out + tl.arange(0, 4), hypot(tl.load(x + tl.arange(0, 4)), 4))

    x, out = np.array([3, 0, 4, 3], np.float32), np.zeros(4, np.float32)
    k.interpret(1)(x, out)
    np.testing.assert_allclose(out, np.hypot(x, 4))
