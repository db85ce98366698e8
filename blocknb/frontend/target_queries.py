"""The builtins that query the target of the compilation: `tl.target_info` and `tl.extra.cuda`."""

from __future__ import annotations

from typing import Any

from blocknb.errors import Unsupported
from blocknb.frontend.scope import Frame, emits
from blocknb.frontend.shapes import constant_int
from blocknb.ir.core import Value
from blocknb.language import types as t


def capability(frame: Frame) -> int:
    """The compute capability of the target GPU, or 0 for a CPU."""
    target = frame.emit.target
    return target.capability if target is not None and target.is_gpu else 0


@emits("is_cuda")
def is_cuda(frame: Frame) -> bool:
    return capability(frame) > 0


@emits("cuda_capability_geq")
def cuda_capability_geq(frame: Frame, major: Any, minor: Any = 0) -> bool:
    wanted = 10 * constant_int(frame, major, "major") + constant_int(frame, minor, "minor")
    return is_cuda(frame) and capability(frame) >= wanted


@emits("is_hip", "is_hip_cdna3", "is_hip_cdna4")
def is_hip(frame: Frame) -> bool:
    return False


class CurrentTarget:
    """The part of Triton's GPUTarget that kernels use."""

    def __init__(self, backend: str, arch: Any):
        self.backend, self.arch, self.warp_size = backend, arch, 32


@emits("current_target")
def current_target(frame: Frame) -> CurrentTarget:
    target = frame.emit.target
    return CurrentTarget("cuda", capability(frame)) if is_cuda(frame) else CurrentTarget("cpu", target and target.arch)


@emits("num_warps")
def num_warps(frame: Frame) -> int:
    options = frame.emit.options
    # The query fixes the number of warps before the compiler chooses one.
    options["num_warps"] = options.get("num_warps") or 4
    return int(options["num_warps"])


@emits("num_threads")
def num_threads(frame: Frame) -> int:
    return 32 * num_warps(frame)


def _register(name: str, text: str, constraint: str, dtype: t.DType, pure: bool) -> None:
    def handler(frame: Frame) -> Value:
        if frame.emit.target is not None and not is_cuda(frame):
            hint = "guard it with `if tl.target_info.is_cuda():`, which is decided while compiling"
            raise Unsupported(f"`{name}` reads a special register of the GPU, and the target is a CPU", hint=hint)
        return frame.emit.value("asm", text=text, constraints=constraint, dtypes=(dtype,), pure=pure, pack=1)

    emits(name)(handler)


_register("globaltimer", "mov.u64 $0, %globaltimer;", "=l", t.int64, False)
_register("smid", "mov.u32 $0, %smid;", "=r", t.int32, True)


def _grid_control(name: str, text: str) -> None:
    def handler(frame: Frame) -> None:
        if cuda_capability_geq(frame, 9):
            text_ = f"griddepcontrol.{text}; mov.u32 $0, 0;"
            frame.emit.op("asm", text=text_, constraints="=r", dtypes=(t.int32,), pure=False, pack=1)

    emits(name)(handler)


_grid_control("gdc_wait", "wait")
_grid_control("gdc_launch_dependents", "launch_dependents")
