"""The worker process that runs LLVM and ptxas: LLVM text in, PTX, cubin or object code out, one frame per job.

LLVM aborts its process on code that it cannot select, so code generation never runs in the notebook's process (`loader` runs only LLVM's
linker there). This file is a *script*. Apart from two files of its own folder it imports neither blocknb nor NumPy, so a worker is ready
within 70 ms (`python -I -S worker.py <folder of llvmlite>`; `blocknb.codegen.llvm` starts it). At the start it moves file descriptor 1 away
and replaces it by standard error, so a library that prints cannot break the frames. A thread reads the requests, so the process notices the
end of its parent during a long job.

`run(job)` is the whole service. Any process that may die can call it. A job is a dict with `kind`:

    `ptx`       text, arch, features, opt, select (how hard the back end tries, 0 to 3; default opt) -> ptx, ms
    `cubin`     the same and ptxas (a path) -> ptx, cubin, log, ms
    `assemble`  ptx, arch, ptxas -> cubin, log, ms
    `object`    text, cpu, features, [isa], opt, allowed (names) -> object, exports, ms
    `listing`   text, cpu, features, [isa], opt -> asm, ms: the same code as text, which takes as long again
    `sass`      cubin, nvdisasm (a path) -> sass, ms
    `ping`      [arch, features, ptxas] -> llvm (version), cpu, features; with an arch it compiles an empty kernel to be warm

With `llvm=True` the first three that take text also return the optimised LLVM text as `llvm`. `gvn=False` leaves out the pass that
looks for equal values. `ms` maps stage to milliseconds.
A job that fails in an orderly way returns `error`: one of parse, undefined, ptxas, nvdisasm, internal, with `message`.
"""

import contextlib
import json
import os
import re
import struct
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

if __name__ != "__main__":
    from blocknb.codegen.elf_objects import elf_symbols
    from blocknb.codegen.tool_runs import WaitingTool, end_with_tools, run_tool, write_all
else:
    sys.path.append(os.path.dirname(__file__))
    from elf_objects import elf_symbols  # type: ignore[no-redef,import-not-found]
    from tool_runs import WaitingTool, end_with_tools, run_tool, write_all  # type: ignore[no-redef,import-not-found]

# ---- frames: 8 bytes of length, then a JSON header, then the long values one after another -----------------------------

_LENGTHS = struct.Struct("<QI")


def pack(message: dict) -> bytes:
    """Encodes a dict of JSON values, bytes and long strings; bytes and long strings travel raw behind the header."""
    header, blobs, parts = {}, [], []
    for name, value in message.items():
        if isinstance(value, bytes):
            blobs.append((name, "b", len(value)))
            parts.append(value)
        elif isinstance(value, str) and len(value) > 256:
            parts.append(value.encode("utf-8", "surrogateescape"))
            blobs.append((name, "s", len(parts[-1])))
        else:
            header[name] = value
    head = json.dumps([header, blobs], separators=(",", ":")).encode()
    size = len(head) + sum(map(len, parts))
    return b"".join([_LENGTHS.pack(size, len(head)), head, *parts])


def unpack(size: int, head_size: int, body: bytes) -> dict:
    """Decodes the body of a frame; raises ValueError if the lengths do not add up."""
    message, blobs = json.loads(body[:head_size])
    at = head_size
    for name, kind, length in blobs:
        raw = body[at : at + length]
        message[name] = raw if kind == "b" else raw.decode("utf-8", "surrogateescape")
        at += length
    if at != size or len(body) != size:
        raise ValueError("damaged frame")
    return message


def read_exactly(fd: int, count: int, read: Callable[[int, int], bytes] = os.read) -> bytes:
    """Reads `count` bytes from a pipe; raises EOFError if the other end has closed the pipe."""
    parts = []
    while count:
        part = read(fd, min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_frame(fd: int, read: Callable[[int, int], bytes] = os.read) -> dict:
    size, head_size = _LENGTHS.unpack(read_exactly(fd, _LENGTHS.size, read))
    return unpack(size, head_size, read_exactly(fd, size, read))


# ---- LLVM ---------------------------------------------------------------------------------------------------------------


class WorkerRefused(Exception):
    """A job that failed in an expected way: `error` is the kind of failure, the message explains it."""

    def __init__(self, error: str, message: str, **more: object):
        super().__init__(message)
        self.answer = {"error": error, "message": message, **more}


class Clock:
    """Milliseconds by stage: `clock.lap("emit")` books the time since the lap before."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.ms[stage] = self.ms.get(stage, 0.0) + round((now - self._last) * 1e3, 3)
        self._last = now


_machines: dict[Any, Any] = {}


def _binding() -> Any:
    import llvmlite.binding as binding

    if not _machines:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        _machines[None] = None
    return binding


def _host_triple(binding: Any) -> str:
    # Objects are loaded by LLVM's own linker in the parent, which takes ELF on every system.
    triple = binding.get_process_triple()
    return triple if "linux" in triple or triple.endswith("-elf") else triple + "-elf"


def _triple(binding: Any, isa: str) -> str:
    """The triple of an instruction set ("" for that of this machine). Code for another one is only read, so its system is Linux."""
    host = _host_triple(binding)
    own = host.partition("-")[0].replace("arm64", "aarch64")
    return host if isa in ("", own) else f"{isa}-unknown-linux-gnu"


def _machine(triple: str, cpu: str, features: str, opt: int, reloc: str = "default") -> Any:
    key = (triple, cpu, features, opt, reloc)
    if key not in _machines:
        target = _binding().Target.from_triple(triple)
        _machines[key] = target.create_target_machine(
            cpu=cpu, features=features, opt=opt, reloc=reloc, codemodel="default"
        )
    return _machines[key]


def _parse(text: str, machine: Any) -> Any:
    """Parses and verifies LLVM text. The data layout goes in front of the first line: types are aligned while parsing."""
    binding = _binding()
    head = text[:4096]
    if "target triple" not in head:
        text = f'target triple = "{machine.triple}" ' + text
    if "target datalayout" not in head:
        text = f'target datalayout = "{machine.target_data}" ' + text
    try:
        module = binding.parse_assembly(text, binding.create_context())
    except RuntimeError as error:
        found = re.search(r":(\d+):(\d+): error: (.*)", str(error))
        line = int(found[1]) if found else 0
        source = text.split("\n")[line - 1].strip() if line else ""
        why = found[3] if found else str(error)
        raise WorkerRefused(
            "parse", f"LLVM cannot read line {line} of its text: {why}", line=line, source=source
        ) from None
    try:
        module.verify()
    except RuntimeError as error:
        raise WorkerRefused("parse", f"LLVM refuses the module: {error}", line=0, source="") from None
    return module


def _optimise_lightly(module: Any, machine: Any, gvn: bool) -> None:
    """Enough for text that was expanded element by element: dead code first, then equal values, then arithmetic.

    On an expanded 128x128x64 matmul (6800 lines) this takes 18 ms, where the O1 pipeline takes 47 and hoists so much that ptxas
    spills; with instcombine first it takes 28. Loops, scheduling and unrolling are left to ptxas, which does them anyway.
    """
    binding = _binding()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=1))
    passes = binding.create_new_module_pass_manager()
    if any("alwaysinline" in str(a) for f in module.functions for a in f.attributes):
        passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_aggressive_dce_pass()
    if gvn:
        passes.add_new_gvn_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, builder)


def _optimise_for_host(module: Any, machine: Any, gvn: bool) -> None:
    """Runs a short pipeline of LLVM passes. The code generator has already vectorized and unrolled the loops, and hoisted invariant code.

    The O2 pipeline would unroll and rotate loops once more, in a time that grows with the square of their number. For 250 loads and stores
    it takes 19 s. This pipeline takes 1.7 s, and leaves code of the same size.
    """
    binding = _binding()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes = binding.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    if gvn:
        passes.add_new_gvn_pass()
    passes.add_aggressive_dce_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)


def _optimise(module: Any, machine: Any, opt: int, gvn: bool) -> None:
    if opt == 0:
        return
    if opt == 1:
        _optimise_lightly(module, machine, gvn)
        return
    if "nvptx" not in machine.triple:
        _optimise_for_host(module, machine, gvn)
        return
    binding = _binding()
    options = binding.create_pipeline_tuning_options(speed_level=opt)
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


def _emit_ptx(job: dict, clock: Clock) -> dict:
    opt = job.get("opt", 1)
    machine = _machine("nvptx64-nvidia-cuda", job["arch"], job.get("features", ""), min(job.get("select", opt), 3))
    clock.lap("start")
    module = _parse(job["text"], machine)
    clock.lap("parse")
    _optimise(module, machine, opt, job.get("gvn", True))
    clock.lap("optimise")
    answer: dict[str, Any] = {"llvm": str(module)} if job.get("llvm") else {}
    clock.lap("print")
    answer["ptx"] = spell_negations(machine.emit_assembly(module))
    clock.lap("emit")
    return answer


_NEGATION = re.compile(r"^\tneg\.s(16|32) \t(%\w+), (%\w+);", re.MULTILINE)
_EXTREME = re.compile(r"\b(?:max|min)\.s(?:16|32) ")


def spell_negations(ptx: str) -> str:
    """PTX in which -x stands as ~x + 1 where a kernel has extremes of signed numbers.

    For sm_90, ptxas of CUDA 12.9 and 13.0 makes one VIMNMX3 of max(max(-a, -b), c), and forgets the sign of b. This happens in 32 and in 16
    bits; ptxas of 13.5 is right. A driver's may be of any version, so all PTX is written this way.
    """
    if len(_EXTREME.findall(ptx)) < 2:  # no three operands
        return ptx
    return _NEGATION.sub(r"\tnot.b\1 \t\2, \3;\n\tadd.s\1 \t\2, \2, 1;", ptx)


def _for_host(job: dict, clock: Clock) -> tuple[Any, Any]:
    """The optimised module of a job for a CPU, and the machine that emits it."""
    opt = job.get("opt", 2)
    triple = _triple(_binding(), job.get("isa", ""))
    machine = _machine(triple, job["cpu"], job.get("features", ""), min(opt, 3), reloc="pic")
    clock.lap("start")
    module = _parse(job["text"], machine)
    clock.lap("parse")
    _optimise(module, machine, opt, job.get("gvn", True))
    clock.lap("optimise")
    return module, machine


def _emit_object(job: dict, clock: Clock) -> dict:
    module, machine = _for_host(job, clock)
    answer: dict[str, Any] = {"llvm": str(module)} if job.get("llvm") else {}
    clock.lap("print")
    answer["object"] = machine.emit_object(module)
    clock.lap("emit")
    answer["exports"], undefined = elf_symbols(answer["object"])
    if missing := sorted(set(undefined) - set(job.get("allowed", ()))):
        raise WorkerRefused("undefined", "the code calls undefined functions: " + ", ".join(missing), names=missing)
    return answer


def _list(job: dict, clock: Clock) -> dict:
    module, machine = _for_host(job, clock)
    answer = {"asm": machine.emit_assembly(module)}
    clock.lap("emit")
    return answer


# ---- ptxas and nvdisasm ------------------------------------------------------------------------------------------------


_waiting: list[WaitingTool] = []  # at most one: the ptxas that waits for the next kernel


def _ptxas(job: dict) -> list[str]:
    """The command line of ptxas for a job, without input and output."""
    return [job["ptxas"], "-v", "-lineinfo", "-arch=" + job["arch"], *job.get("flags", ())]


def start_waiting(job: dict) -> None:
    """Starts the ptxas that a job needs, if it needs one and none waits with the same options."""
    if not job.get("ptxas") or (_waiting and _waiting[0].arguments == _ptxas(job)):
        return
    while _waiting:
        _waiting.pop().discard()
    with contextlib.suppress(OSError):  # the run of the job itself says that the tool does not start
        _waiting.append(WaitingTool(_ptxas(job)))


def _assemble(ptx: str, job: dict, clock: Clock) -> dict:
    cubin, log = _assembled(ptx, job)
    if _gave_up(log) and (roomy := _for_one_cta(ptx)) != ptx:
        status, again, log_again = run_tool(_ptxas(job), roomy.encode(), ["{in}", "-o", "{out}"])
        if not status and not _gave_up(log_again):
            cubin, log = again, log_again
    clock.lap("ptxas")
    return {"cubin": cubin, "log": log}


def _assembled(ptx: str, job: dict) -> tuple[bytes, str]:
    """The cubin of a PTX text and the log of ptxas, by the waiting ptxas if it has the options of the job."""
    arguments, source = _ptxas(job), ptx.encode()
    if _waiting and _waiting[0].arguments == arguments:
        status, cubin, log = _waiting.pop().finish(source)
        if status == 0 and cubin:
            return cubin, log
    # Also after a failure, which may be that of the waiting process: something can have killed it.
    try:
        status, cubin, log = run_tool(arguments, source, ["{in}", "-o", "{out}"])
    except OSError as error:
        raise WorkerRefused("ptxas", f"{job['ptxas']} does not run: {error}", ptx=ptx) from None
    if status:
        raise WorkerRefused("ptxas", log or f"ptxas ended with status {status}", ptx=ptx)
    return cubin, log


def _gave_up(log: str) -> bool:
    """Whether ptxas has kept nearly all values of a kernel in memory, as it does where its first plan for the registers fails."""
    words = log.split()
    stored = [int(words[i - 1]) for i in range(1, len(words) - 2) if words[i : i + 3] == ["bytes", "spill", "stores,"]]
    used = [int(words[i + 1]) for i in range(len(words) - 2) if words[i] == "Used"]
    return len(stored) == len(used) == 1 and used[0] <= 40 and stored[0] >= 4096


def _for_one_cta(ptx: str) -> str:
    """The PTX of a kernel, with the promise that one CTA per SM is enough: then ptxas makes another plan for the registers."""
    return ptx if ".minnctapersm" in ptx else re.sub(r"\n\.reqntid .*", r"\g<0>\n.minnctapersm 1", ptx, count=1)


def _disassemble(job: dict, clock: Clock) -> dict:
    flags = job.get("flags", ["-c", "-gi"])
    try:
        status, text, log = run_tool([job["nvdisasm"], *flags], job["cubin"], ["{in}"])
    except OSError as error:
        raise WorkerRefused("nvdisasm", f"{job['nvdisasm']} does not run: {error}") from None
    clock.lap("nvdisasm")
    if status:
        raise WorkerRefused("nvdisasm", log or f"nvdisasm ended with status {status}")
    return {"sass": text.decode("utf-8", "replace")}


# ---- the service --------------------------------------------------------------------------------------------------------


# Initialises instruction selection and the optimiser's tables, so that the first kernel does not wait for them.
_FIRST = """define ptx_kernel void @first(ptr addrspace(1) %p) {
  %t = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %q = getelementptr float, ptr addrspace(1) %p, i32 %t
  %v = load float, ptr addrspace(1) %q
  %s = fadd float %v, 1.0
  store float %s, ptr addrspace(1) %q
  ret void
}
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
"""


_FIRST_FOR_HOST = """define void @first(ptr %p) {
  %v = load <4 x float>, ptr %p
  %s = fadd <4 x float> %v, %v
  store <4 x float> %s, ptr %p
  ret void
}
"""


def _first_jobs() -> Iterator[dict]:
    """The work of an idle worker: LLVM builds its tables at first use, for each machine."""
    yield {"kind": "ptx", "text": _FIRST, "arch": "sm_90a", "features": "+ptx88"}
    binding = _binding()
    host = {"cpu": binding.get_host_cpu_name(), "features": binding.get_host_cpu_features().flatten()}
    yield {"kind": "object", "text": _FIRST_FOR_HOST, **host}


def _ping(job: dict, clock: Clock) -> dict:
    binding = _binding()
    if job.get("arch"):
        answer = _emit_ptx(job | {"text": _FIRST}, clock)
        if job.get("ptxas"):
            _assemble(answer["ptx"], job, clock)
    features = binding.get_host_cpu_features().flatten()
    version = ".".join(map(str, binding.llvm_version_info))
    return {"llvm": version, "cpu": binding.get_host_cpu_name(), "features": features, "pid": os.getpid()}


def run(job: dict) -> dict:
    """Does one job (see the head of this file). May abort the process: that is what workers are for."""
    clock = Clock()
    try:
        match job["kind"]:
            case "ptx":
                answer = _emit_ptx(job, clock)
            case "cubin":
                answer = _emit_ptx(job, clock)
                answer |= _assemble(answer["ptx"], job, clock)
            case "assemble":
                answer = _assemble(job["ptx"], job, clock)
            case "object":
                answer = _emit_object(job, clock)
            case "listing":
                answer = _list(job, clock)
            case "sass":
                answer = _disassemble(job, clock)
            case "ping":
                answer = _ping(job, clock)
            case kind:
                raise WorkerRefused("internal", f"no such job: {kind!r}")
    except WorkerRefused as refusal:
        answer = refusal.answer
    except Exception as error:
        answer = {"error": "internal", "message": f"{type(error).__name__}: {error}"}
    answer["ms"] = clock.ms
    return answer


def main() -> None:
    import queue
    import threading

    requests_fd, answers_fd = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    jobs: queue.SimpleQueue[dict] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                jobs.put(read_frame(requests_fd))
        except EOFError:
            end_with_tools()  # the parent is gone or is done with us, whatever we are busy with

    threading.Thread(target=receive, daemon=True).start()
    try:
        _binding()
    except Exception as error:
        print(f"LLVM cannot be loaded: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    for job in _first_jobs():
        if not jobs.empty():
            break
        run(job)
    while True:
        job = jobs.get()
        start_waiting(job)  # it starts while LLVM runs
        answer = run(job)
        sys.stdout.flush()
        write_all(answers_fd, pack(answer))
        start_waiting(job)  # for the next kernel, while the parent has work of its own


if __name__ == "__main__":
    sys.path.append(sys.argv[1])
    main()
