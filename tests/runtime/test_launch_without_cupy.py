"""Launches on torch tensors where CuPy is not installed: torch has the devices, streams and memory, and ctypes calls the driver.

The driver's library is simulated by C callbacks, so the calls pass through the types that `torch_cuda` declares. tests/gpu runs the same on
a GPU, in a process that cannot import CuPy.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pretend_gpu import CupyArray, TorchTensor

import blocknb
import blocknb.language as bl
from blocknb.errors import AccessError, KernelError, LaunchError
from blocknb.runtime import cuda, driver, machine, reports, torch_cuda
from blocknb.target import Target

NO_CUPY = "launching on a GPU needs CuPy, or torch with CUDA"
CONTEXT, MODULE, FUNCTION, EVENT, STREAM = 0xC0, 0x30, 0xF0, 0xE0, 0x57


def body(x, out, n, factor, BLOCK: bl.constexpr):
    at = bl.program_id(0) * BLOCK + bl.arange(0, BLOCK)
    bl.store(out + at, bl.load(x + at, mask=at < n) * factor, mask=at < n)


class DriverLibrary:
    """libcuda for one GPU of compute capability 9.0. `status` is what the next launch returns; `calls` are the names of all calls."""

    def __init__(self) -> None:
        self.calls, self.launches, self.images = list[str](), list[SimpleNamespace](), list[bytes]()
        self.status, self.capturing, self.thread = 0, 0, threading.local()
        self.thread.context = CONTEXT

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        types = torch_cuda._FUNCTIONS.get(name, (ctypes.c_int, ctypes.c_void_p))

        def called(*arguments: Any) -> int:
            self.calls.append(name)
            handler = getattr(type(self), f"do_{name}", None)
            return (handler(self, *arguments) if handler else 0) or 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)
        setattr(self, name, made)
        return made

    @staticmethod
    def answer(address: int, value: Any, type_: Any = ctypes.c_int) -> None:
        type_.from_address(address).value = value

    def do_cuGetErrorName(self, status: int, to: int) -> None:
        names = {201: b"CUDA_ERROR_INVALID_CONTEXT", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS"}
        self.answer(to, names.get(status, b"CUDA_ERROR_INVALID_VALUE"), ctypes.c_char_p)

    def do_cuGetErrorString(self, status: int, to: int) -> None:
        self.answer(to, b"what it means", ctypes.c_char_p)

    def do_cuDeviceGetAttribute(self, to: int, which: int, device: int) -> None:
        self.answer(to, {75: 9, 76: 0, 16: 132, 97: 232448, 12: 65536, 10: 32}.get(which, 1000 + which))

    def do_cuDevicePrimaryCtxRetain(self, to: int, device: int) -> None:
        self.answer(to, CONTEXT + (device or 0), ctypes.c_void_p)

    def do_cuCtxSetCurrent(self, context: int) -> None:
        self.thread.context = context

    def do_cuModuleLoadData(self, to: int, image: bytes) -> None:
        self.images.append(image)
        self.answer(to, MODULE, ctypes.c_void_p)

    def do_cuModuleGetFunction(self, to: int, module: int, name: bytes) -> int:
        self.answer(to, FUNCTION, ctypes.c_void_p)
        return 0 if module == MODULE else 400

    def do_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, to: int, *rest: int) -> None:
        self.answer(to, 2)

    def do_cuEventCreate(self, to: int, flags: int) -> None:
        self.answer(to, EVENT, ctypes.c_void_p)

    def do_cuEventElapsedTime(self, to: int, begin: int, end: int) -> None:
        self.answer(to, 2.5, ctypes.c_float)

    def do_cuPointerGetAttribute(self, to: int, which: int, address: int) -> int:
        self.answer(to, 0)
        return 0 if which == 9 else 1

    def do_cuStreamIsCapturing(self, stream: int, to: int) -> None:
        self.answer(to, self.capturing)

    def do_cuMemcpyAsync(self, target: int, source: int, size: int, stream: int) -> None:
        ctypes.memset(target, 0, size)

    def do_cuLaunchKernel(self, function: int, x: int, y: int, z: int, *rest: Any) -> int:
        if getattr(self.thread, "context", None) != CONTEXT:
            return 201
        if self.status:
            return self.status
        block, (shared, stream, table, extra) = rest[:3], rest[3:]
        values = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        assert function == FUNCTION and not extra

        def value(i: int, type_: Any) -> Any:
            return type_.from_address(values[i]).value

        pointers = [value(i, ctypes.c_uint64) for i in (0, 1)]
        made = SimpleNamespace(
            grid=(x, y, z), block=block, shared=shared, stream=stream, value=value, pointers=pointers
        )
        self.launches.append(made)
        return 0


class TorchModule(ModuleType):
    """torch with one GPU, as far as `torch_cuda` uses it."""

    def __init__(self, library: DriverLibrary) -> None:
        super().__init__("torch")
        self.Tensor, self.uint8, self.memory = TorchTensor, "uint8", list[np.ndarray]()

        @contextlib.contextmanager
        def device(number: int) -> Any:
            yield

        properties = SimpleNamespace(name="NVIDIA H200", uuid="0a1b2c3d-0000-0000-0000-00000000000f")
        self.cuda = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, init=lambda: None, device=device, device_count=lambda: 1,
            current_device=lambda: 0, set_device=lambda number: None, synchronize=lambda number: None,
            mem_get_info=lambda: (1 << 30, 1 << 37), get_device_properties=lambda number: properties,
            current_stream=lambda number=None: SimpleNamespace(cuda_stream=STREAM),
        )  # fmt: skip
        self._C = SimpleNamespace(_cuda_getDevice=lambda: 0, _cuda_getCurrentRawStream=lambda number: STREAM)

    def empty(self, size: int, dtype: str, device: str) -> Any:
        assert (dtype, device) == ("uint8", "cuda")
        self.memory.append(np.zeros(size, np.uint8))
        return SimpleNamespace(data_ptr=lambda array=self.memory[-1]: array.ctypes.data)


CACHES = (
    cuda._cupy, cuda.target, machine._cupy_sees_gpu, torch_cuda.library, torch_cuda._sees_gpu, torch_cuda._context, torch_cuda._attributes,
    torch_cuda.api, torch_cuda.driver_api,
)  # fmt: skip


@pytest.fixture
def no_cupy(monkeypatch):
    """A process that cannot import CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(reports, "_buffers", {})
    monkeypatch.setattr(driver, "_recent", driver._recent.copy())
    monkeypatch.setattr(torch_cuda, "available", lambda: False)
    for cache in CACHES:
        cache.cache_clear()
    yield
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def gpu(no_cupy, monkeypatch):
    """The same with torch and a GPU."""
    library = DriverLibrary()
    monkeypatch.setattr(torch_cuda, "available", AVAILABLE)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setitem(sys.modules, "torch", TorchModule(library))
    return library


AVAILABLE = torch_cuda.available


@pytest.fixture
def scale():
    return blocknb.kernel(body)


def test_torch_tensors_launch_on_torchs_stream_at_first_and_repeatedly(gpu, scale):
    for number in range(5):
        x, out = TorchTensor(), TorchTensor()
        scale[(5 + number,)](x, out, 101 + 2 * number, 0.5 * number, BLOCK=64, num_warps=2)
        launched = gpu.launches[-1]
        assert launched.pointers == [x.address, out.address]
        assert launched.value(2, ctypes.c_int32) == 101 + 2 * number
        assert launched.value(3, ctypes.c_float) == 0.5 * number
        assert (launched.grid, launched.block, launched.stream) == ((5 + number, 1, 1), (64, 1, 1), STREAM)
    assert len(gpu.launches) == 5 and len(gpu.images) == 1
    assert scale._launch.__name__ == "_launch"  # the fast path
    assert gpu.calls.index("cuCtxSetCurrent") < gpu.calls.index("cuModuleLoadData")


def test_a_thread_without_a_context_gets_the_primary_one(gpu, scale):
    x = TorchTensor()
    scale[(1,)](x, x, 64, 2.0, BLOCK=64)
    failures = []

    def launch() -> None:
        try:
            scale[(2,)](x, x, 64, 2.0, BLOCK=64)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert not failures and gpu.launches[-1].grid == (2, 1, 1)


def test_errors_of_the_driver_have_its_names(gpu, scale):
    x = TorchTensor()
    gpu.status = 1
    with pytest.raises(KernelError, match="the driver refuses to launch body: CUDA_ERROR_INVALID_VALUE: what it means"):
        scale[(1,)](x, x, 64, 2.0, BLOCK=64)
    gpu.status = 700
    with pytest.raises(AccessError, match="accessed memory outside of its arrays on the GPU"):
        scale[(1,)](x, x, 64, 2.0, BLOCK=64)


def test_reports_of_checked_launches_lie_in_torchs_memory(gpu, scale):
    x, out = TorchTensor(), TorchTensor()
    scale[(1,)](x, out, 64, 2.0, BLOCK=64, checked=True)
    (memory,) = sys.modules["torch"].memory
    launched, names = gpu.launches[-1], ("cuMemsetD8Async", "cuLaunchKernel", "cuMemcpyAsync", "cuStreamSynchronize")
    assert launched.value(4, ctypes.c_uint64) == memory.ctypes.data
    assert [name for name in gpu.calls if name in names][:4] == list(names)
    gpu.capturing = 1
    with pytest.raises(LaunchError, match="a CUDA graph cannot capture body"):
        scale[(1,)](x, out, 64, 2.0, BLOCK=64, checked=True)


def test_the_machine_is_described_by_the_driver(gpu):
    assert cuda.target(0) == Target.parse("sm_90a")
    assert machine.has_gpu() and machine.current_gpu() == 0
    found = machine.properties()
    assert (found["multiprocessor_count"], found["max_shared_mem"], found["warpSize"]) == (132, 232448, 32)
    assert cuda.device_of(1 << 40) == 0
    assert cuda.api().runtime.getDeviceProperties(0) == {
        "name": b"NVIDIA H200",
        "uuid": bytes.fromhex("0a1b2c3d00000000000000000000000f"),
    }


def test_events_time_a_launch(gpu, scale):
    assert driver.timed(0, "torch", lambda: None) == 2.5
    assert gpu.calls.count("cuEventRecord") == 2 and gpu.calls.count("cuEventDestroy_v2") == 2
    cuda.wait_for(STREAM)
    assert "cuStreamWaitEvent" not in gpu.calls
    cuda.wait_for(STREAM + 1)
    assert gpu.calls[-1] == "cuEventDestroy_v2" and "cuStreamWaitEvent" in gpu.calls


def test_what_needs_cupys_arrays_says_so(gpu, scale):
    x = TorchTensor()
    x.__dlpack__, x.stride, x.element_size = None, lambda: (1,), lambda: 4
    with pytest.raises(LaunchError, match="checked='race' on a GPU needs CuPy, which is not installed") as caught:
        scale[(1,)](x, x, 64, 2.0, BLOCK=64, checked="race")
    assert caught.value.hint == "pip install 'blocknb[cuda13]' (or blocknb[cuda12])"
    with pytest.raises(LaunchError, match="do_bench_cudagraph needs CuPy"):
        blocknb.testing.do_bench_cudagraph(lambda: None)


@pytest.mark.parametrize("array", [CupyArray, TorchTensor])
def test_without_torchs_gpu_one_line_names_both_libraries(no_cupy, scale, array):
    assert not machine.has_gpu()
    with pytest.raises(LaunchError, match=NO_CUPY):
        scale[(1,)](array(), array(), 64, 2.0, BLOCK=64)
