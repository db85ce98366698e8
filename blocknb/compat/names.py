"""A table of Triton's host API: every module with its names, and where blocknb implements each of them.

A name in `MISSING` exists in Triton and not here: it can be imported, and its first use raises an error that names the alternative. Any
other name raises ImportError or AttributeError, as in any module.
"""

from __future__ import annotations

VERSION = "3.6.0"

_JIT = {
    "JITFunction": "blocknb.runtime.kernel:Kernel",
    "KernelInterface": "blocknb.runtime.interface:KernelInterface",
    "MockTensor": "blocknb.runtime.interface:MockTensor",
    "TensorWrapper": "blocknb.runtime.interface:TensorWrapper",
    "reinterpret": "blocknb.runtime.interface:reinterpret",
}
_TUNE = {
    "Config": "blocknb.tune:Config",
    "autotune": "blocknb.tune:autotune",
    "heuristics": "blocknb.tune:heuristics",
}
_TUNERS = {"Autotuner": "blocknb.tune:Autotuner", "Heuristics": "blocknb.tune:Heuristics"}
_LIMITS = {
    "OutOfResources": "blocknb.errors:OutOfResources",
    "InterpreterError": "blocknb.errors:KernelError",
}
_COMPILE = {
    "ASTSource": "blocknb.compat.host:ASTSource",
    "CompilationError": "blocknb.errors:CompilationError",
    "CompiledKernel": "blocknb.runtime.compile:Compiled",
    "OutOfResources": "blocknb.errors:OutOfResources",
    "compile": "blocknb.compat.host:compile",
}
_TARGET = {"GPUTarget": "blocknb.runtime.machine:GPUTarget"}
_DRIVER = {"driver": "blocknb.compat.host:driver"}
_KEY = {"triton_key": "blocknb.compat.host:triton_key"}
_CONSTEXPR = {"constexpr_function": "blocknb.compat.host:constexpr_function"}

#: Maps module to name to "module:attribute" ("module:" is the module itself).
NAMES: dict[str, dict[str, str]] = {
    "triton": {
        **_JIT,
        **_TUNE,
        **_LIMITS,
        **_CONSTEXPR,
        "CompilationError": "blocknb.errors:CompilationError",
        "TritonError": "blocknb.errors:KernelError",
        "cdiv": "blocknb:cdiv",
        "compile": "blocknb.compat.host:compile",
        "jit": "blocknb.runtime.kernel:jit",
        "language": "blocknb.language:",
        "must_use_result": "blocknb.compat.host:must_use_result",
        "next_power_of_2": "blocknb:next_power_of_2",
        "set_allocator": "blocknb.compat.host:set_allocator",
        "testing": "blocknb.testing:",
    },
    "triton.runtime": {**_JIT, **_TUNE, **_TUNERS, **_LIMITS, **_DRIVER},
    "triton.runtime.jit": {
        **_JIT,
        **_CONSTEXPR,
        "KernelParam": "blocknb.runtime.triton_attributes:KernelParam",
        "type_canonicalisation_dict": "blocknb.compat.host:type_canonicalisation_dict",
        "jit": "blocknb:jit",
    },
    "triton.runtime.autotuner": {**_TUNE, **_TUNERS, **_LIMITS, **_DRIVER, "KernelInterface": _JIT["KernelInterface"]},
    "triton.runtime.cache": _KEY,
    "triton.runtime.interpreter": {"InterpretedFunction": "blocknb.compat.host:InterpretedFunction"},
    "triton.runtime.driver": _DRIVER,
    "triton.runtime.errors": {**_LIMITS, "PTXASError": "blocknb.errors:CompilerBug"},
    "triton.compiler": _COMPILE,
    "triton.compiler.compiler": {**_COMPILE, **_KEY},
    "triton.compiler.errors": {
        "CompilationError": "blocknb.errors:CompilationError",
        "CompileTimeAssertionFailure": "blocknb.errors:StaticAssertionFailed",
        "UnsupportedLanguageConstruct": "blocknb.errors:SyntaxUnsupported",
    },
    "triton.backends": {"Backend": "blocknb.compat.host:Backend", "backends": "blocknb.compat.host:backends"},
    "triton.knobs": {
        name: f"blocknb.compat.knobs:{name}" for name in ("autotuning", "compilation", "nvidia", "runtime")
    },
    "triton.backends.compiler": _TARGET,
    "triton.errors": {"TritonError": "blocknb.errors:KernelError"},
    "triton.tools": {},
    "triton.tools.experimental_descriptor": {
        "create_1d_tma_descriptor": "blocknb.compat.descriptors:create_1d_tma_descriptor",
        "create_2d_tma_descriptor": "blocknb.compat.descriptors:create_2d_tma_descriptor",
    },
    "triton.tools.mxfp": {
        name: f"blocknb.compat.mxfp:{name}" for name in ("MXFP4Tensor", "MXScaleTensor", "fp8e8m0_to_float32")
    },
    "triton.tools.tensor_descriptor": {"TensorDescriptor": "blocknb.runtime.descriptor:TensorDescriptor"},
}

_ONE_PROCESS = "compiled kernels are kept by blocknb's own cache; BLOCKNB_CACHE_DIR says where"
_ANY_TARGET = "kernel.compile(*args, target='sm_90a') compiles for any target"
_TRACE = "kernel.trace(*args) shows every stage of a compilation"
#: Names and modules of Triton that blocknb does not have, with the alternative. Importing triton.experimental raises ImportError,
#: since libraries with kernels in Gluon look for it and have others in Triton.
MISSING: dict[str, str] = {
    "triton.aggregate": "pass the fields as a tuple",
    "triton.knobs": "options are given at the launch (num_warps=8), or on the decorator",
    "triton.AsyncCompileMode": "kernels compile when they are first launched, or by kernel.warmup",
    "triton.FutureKernel": "kernels compile when they are first launched, or by kernel.warmup",
    "triton.ops": "Triton itself has dropped it; blocknb.kernels has ready-made kernels",
    "triton.profiler": "%%blockkernel shows times and what bounds them",
    "triton.experimental": "Gluon is another language; write the kernel in Triton's",
    "triton.instrumentation": _TRACE,
    "triton.runtime.cache": _ONE_PROCESS,
    "triton.runtime.RedisRemoteCacheBackend": _ONE_PROCESS,
    "triton.runtime.RemoteCacheBackend": _ONE_PROCESS,
    "triton.runtime.build": "kernels run without a C compiler here",
    "triton.runtime.interpreter.GridExecutor": "kernel.interpret runs a kernel as Python",
    "triton.compiler.IRSource": "compile the kernel itself: kernel.compile(*args, target='sm_90a')",
    "triton.compiler.LazyDict": _TRACE,
    "triton.compiler.make_backend": _ANY_TARGET,
    "triton.compiler.get_cache_key": _ONE_PROCESS,
    "triton.compiler.compiler.make_backend": _ANY_TARGET,
    "triton.compiler.code_generator": _TRACE,
    "triton.backends.nvidia": "kernel.compile(*args, target='sm_90a') compiles for any NVIDIA target",
    "triton.backends.amd": "targets are NVIDIA's GPUs and the CPU",
    "triton.backends.compiler.BaseBackend": _ANY_TARGET,
    "triton.backends.driver": "triton.runtime.driver.active tells about the machine",
    "triton.tools.compile": "kernel.compile(*args, target='sm_90a').artifacts['cubin']",
    "triton.tools.disasm": "kernel.trace(*args).sass",
    "triton.tools.link": "kernel.compile(*args, target='sm_90a').artifacts['cubin']",
    "triton._C": "there is no C++ part",
}
MISSING_MODULES = frozenset(
    {
        "triton.knobs",
        "triton.ops",
        "triton.profiler",
        "triton.instrumentation",
        "triton.runtime.cache",
        "triton.runtime.build",
        "triton.compiler.code_generator",
        "triton.backends.nvidia",
        "triton.backends.amd",
        "triton.backends.driver",
        "triton.tools.compile",
        "triton.tools.disasm",
        "triton.tools.link",
        "triton._C",
    }
)
