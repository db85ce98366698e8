"""LLVM in worker processes: its output, its error messages, and that a failure affects one job only."""

import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from host_cpus import BASELINE, NEWER
from support import running

from blocknb.codegen import worker
from blocknb.codegen.llvm import Workers, compile_cpu, compile_cuda, list_cpu, shared
from blocknb.codegen.loader import load_object
from blocknb.codegen.process import WorkerEnded, WorkerProcess, llvmlite_folder
from blocknb.codegen.toolchain import find_ptxas
from blocknb.errors import AssemblyError, CompilerBug, OutOfResources, Unsupported
from blocknb.target import Target

SM90A = Target.parse("sm_90a")
CPU = Target.parse("cpu")
needs_ptxas = pytest.mark.skipif(find_ptxas(SM90A) is None, reason="there is no ptxas on this machine")


def kernel(body: str, declarations: str = "") -> str:
    """LLVM text of a GPU kernel `k(ptr %p, float %x)`."""
    return f"define ptx_kernel void @k(ptr addrspace(1) %p, float %x) {{\n{body}\n  ret void\n}}\n{declarations}\n"


STORE = kernel("  store float %x, ptr addrspace(1) %p")
# The NVPTX back end has no lowering for exp and aborts its process.
ABORTS = kernel(
    "  %y = call float @llvm.exp.f32(float %x)\n  store float %y, ptr addrspace(1) %p",
    "declare float @llvm.exp.f32(float)",
)


@pytest.fixture(scope="module")
def one():
    """A pool of one process, so that the next job runs in the process of the last one."""
    with Workers(1) as workers:
        yield workers


def test_an_llvm_abort_fails_only_its_own_job(one):
    before = one.warm().result()["pid"]
    with pytest.raises(CompilerBug, match="no libcall available for fexp"):
        compile_cuda(ABORTS, SM90A, workers=one).result()
    assert "st.global" in compile_cuda(STORE, SM90A, workers=one).result().ptx
    assert one.warm().result()["pid"] != before


def test_crash_of_gvn_repeats_the_job_without_gvn(one, monkeypatch):
    jobs, words = [], "llvm/lib/Transforms/Scalar/NewGVN.cpp:3053: Assertion `++ProcessedCount[V] < 100' failed."

    def call(process, job):
        jobs.append(job.get("gvn", True))
        if jobs[-1]:
            process.end()
            raise WorkerEnded(-signal.SIGABRT, words)
        return real(process, job)

    real = WorkerProcess.call
    monkeypatch.setattr(WorkerProcess, "call", call)
    assert compile_cuda(STORE, SM90A, workers=one).result().ptx
    assert jobs == [True, False]
    with pytest.raises(CompilerBug, match="2.5"):
        compile_cpu("define i32 @f() {\n ret i32 2.5\n}", CPU, workers=one).result()


def test_jobs_queued_after_an_abort_still_run(one):
    futures = [compile_cuda(ABORTS if i == 1 else STORE, SM90A, workers=one) for i in range(4)]
    assert [type(f.exception()) for f in futures] == [type(None), CompilerBug, type(None), type(None)]


def test_an_instruction_of_another_architecture_is_unsupported_by_name(one):
    text = kernel(
        "  call void @llvm.nvvm.setmaxnreg.inc.sync.aligned.u32(i32 240)",
        "declare void @llvm.nvvm.setmaxnreg.inc.sync.aligned.u32(i32)",
    )
    with pytest.raises(Unsupported, match="sm_80 has no instruction for llvm.nvvm.setmaxnreg"):
        compile_cuda(text, Target.parse("sm_80"), workers=one).result()


def test_a_syntax_error_in_llvm_text_names_the_line_and_shows_it(one):
    text = "define void @f() {\n  %x = add i32 1, 2\n  %y = add i32 %x, 2.5\n  ret void\n}\n"
    with pytest.raises(CompilerBug) as caught:
        compile_cuda(text, SM90A, workers=one).result()
    assert "line 3" in caught.value.message and "%y = add i32 %x, 2.5" in caught.value.message


def test_a_module_that_does_not_verify_is_refused(one):
    text = "define i32 @f(i1 %c) {\n br i1 %c, label %a, label %b\na:\n %x = add i32 1, 2\n br label %b\nb:\n ret i32 %x\n}\n"
    with pytest.raises(CompilerBug, match="does not dominate"):
        compile_cuda(text, SM90A, workers=one).result()


@needs_ptxas
def test_ptxas_error_gives_its_message_and_the_ptx_line(one):
    text = 'module asm "nosuch.instruction;"\n' + kernel("")
    with pytest.raises(CompilerBug) as caught:
        compile_cuda(text, SM90A, workers=one).result()
    assert "Parsing error near 'nosuch'" in caught.value.message
    assert caught.value.message.rstrip().endswith("nosuch.instruction;")
    assert compile_cuda(STORE, SM90A, workers=one).result().cubin


@needs_ptxas
def test_ptxas_error_in_inline_assembly_is_an_assembly_error(one):
    text = kernel('  call void asm sideeffect "nosuch.instruction;", ""()')
    with pytest.raises(AssemblyError, match="ptxas rejects the assembly: .*instruction"):
        compile_cuda(text, SM90A, workers=one).result()


@needs_ptxas
def test_error_of_too_much_shared_memory_gives_both_sizes(one):
    text = "@s = addrspace(3) global [300000 x i8] undef\n" + kernel("  store volatile i8 1, ptr addrspace(3) @s")
    with pytest.raises(OutOfResources, match="300000 bytes of shared data, and sm_90a has 232448"):
        compile_cuda(text, SM90A, workers=one).result()


@needs_ptxas
def test_instruction_that_only_ptxas_rejects_is_unsupported(one):
    text = kernel(
        "  %a = call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float %x, float %x)\n  store <2 x bfloat> %a, ptr addrspace(1) %p",
        "declare <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float, float)",
    )
    with pytest.raises(Unsupported, match="needs sm_80"):
        compile_cuda(text, Target.parse("sm_75"), workers=one).result()


@needs_ptxas
def test_a_kernel_compiles_to_ptx_cubin_and_resources_with_times_by_stage(one):
    code = compile_cuda(STORE, SM90A, llvm=True, workers=one).result()
    assert ".target sm_90a" in code.ptx and ".version 8.8" in code.ptx
    assert code.cubin[:4] == b"\x7fELF"
    assert code.resources["k"].registers > 0 and code.resources["k"].spill_stores == 0
    assert code.warnings == ()
    assert "define ptx_kernel void @k" in code.llvm
    assert {"parse", "optimise", "emit", "ptxas"} <= code.ms.keys()


def test_without_ptxas_there_is_ptx_and_no_cubin(one, monkeypatch):
    monkeypatch.setattr("blocknb.codegen.llvm.find_ptxas", lambda target: None)
    code = compile_cuda(STORE, SM90A, workers=one).result()
    assert "st.global" in code.ptx and code.cubin is None and code.resources == {}


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_optimisation_level_makes_working_code(one, level):
    body = "  %a = fmul float %x, 1.0\n  store float %a, ptr addrspace(1) %p"
    code = compile_cuda(kernel(body), SM90A, opt=level, llvm=True, workers=one).result()
    assert "st.global" in code.ptx
    assert ("fmul" in code.llvm) == (level == 0)


# ---- CPU objects ---------------------------------------------------------------------------------------------------------

DOUBLE = """@two = internal global float 2.0
define void @double_all(ptr %p, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %q = getelementptr float, ptr %p, i64 %i
  %v = load float, ptr %q
  %t = load float, ptr @two
  %w = fmul float %v, %t
  store float %w, ptr %q
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


def call_double(loaded, array):
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("double_all"))
    function(array.ctypes.data, array.size)


@pytest.mark.parametrize("name", ["cpu", NEWER, BASELINE])
def test_object_code_runs_in_this_process(name):
    code = compile_cpu(DOUBLE, Target.parse(name)).result()
    assert code.exports == ("double_all",)
    assert "double_all:" in list_cpu(DOUBLE, Target.parse(name)).result()
    array = np.arange(100, dtype=np.float32)
    call_double(load_object(code.object), array)
    np.testing.assert_array_equal(array, 2 * np.arange(100))


def test_two_objects_may_use_the_same_names():
    first = compile_cpu("define i32 @f() {\n ret i32 1\n}", CPU).result()
    second = compile_cpu("define i32 @f() {\n ret i32 2\n}", CPU).result()
    loaded = [load_object(code.object) for code in (first, second, first)]
    assert [ctypes.CFUNCTYPE(ctypes.c_int)(one.address("f"))() for one in loaded] == [1, 2, 1]


def test_unloading_one_object_leaves_the_others():
    code = compile_cpu(DOUBLE, CPU).result()
    kept = load_object(code.object)
    for _ in range(50):
        del_me = load_object(code.object)
        del del_me
    array = np.ones(5, np.float32)
    call_double(kept, array)
    np.testing.assert_array_equal(array, 2)


def test_objects_that_call_unknown_functions_are_refused_by_name(one):
    text = "declare float @nosuchf(float)\ndefine float @f(float %x) {\n %y = call float @nosuchf(float %x)\n ret float %y\n}"
    with pytest.raises(CompilerBug, match="nosuchf"):
        compile_cpu(text, CPU, workers=one).result()


@pytest.mark.parametrize("name", ["cpu:haswell", "cpu:x86-64"])
def test_a_hidden_runtime_call_is_refused_where_the_cpu_lacks_the_instruction(one, name):
    text = (
        "define void @f(ptr %p, float %x) {\n %y = fptrunc float %x to bfloat\n store bfloat %y, ptr %p\n ret void\n}"
    )
    with pytest.raises(CompilerBug, match="__truncsfbf2"):
        compile_cpu(text, Target.parse(name), workers=one).result()


def test_the_loader_refuses_undefined_names_by_itself(one):
    # As in a foreign object: the worker is told that the name is allowed.
    text = "declare void @nosuch()\ndefine void @f() {\n call void @nosuch()\n ret void\n}"
    job = {"kind": "object", "text": text, "cpu": CPU.llvm_cpu, "features": CPU.features, "allowed": ["nosuch"]}
    data = one.submit(job).result()["object"]
    with pytest.raises(CompilerBug, match="nosuch"):
        load_object(data)


def test_code_may_copy_and_clear_memory_through_the_c_library():
    text = """declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    define void @clear(ptr %p, i64 %n) {
      call void @llvm.memset.p0.i64(ptr %p, i8 0, i64 %n, i1 false)
      ret void
    }"""
    loaded = load_object(compile_cpu(text, CPU).result().object)
    array = np.arange(1000, dtype=np.float64)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(loaded.address("clear"))(array.ctypes.data, array.nbytes)
    assert not array.any()


def test_unknown_function_error_names_the_existing_ones():
    loaded = load_object(compile_cpu(DOUBLE, CPU).result().object)
    with pytest.raises(KeyError, match="double_all"):
        loaded.address("triple_all")


def test_code_is_freed_with_its_last_reference_and_silently_at_exit():
    script = textwrap.dedent(f"""
        from blocknb.codegen.llvm import compile_cpu, shared
        from blocknb.codegen.loader import load_object
        from blocknb.target import Target
        loaded = load_object(compile_cpu({DOUBLE!r}, Target.parse("cpu")).result().object)
    """)
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- the pool ------------------------------------------------------------------------------------------------------------


def test_submit_does_not_wait_for_the_start_of_a_process(monkeypatch):
    may_start, start = threading.Event(), Workers._start

    def waiting(workers):
        may_start.wait(120)
        return start(workers)

    monkeypatch.setattr(Workers, "_start", waiting)
    with Workers(1) as workers:
        future = workers.warm()
        assert not future.done()
        may_start.set()
        assert future.result()["llvm"]


def test_two_workers_run_concurrently_and_start_on_demand(tmp_path):
    with Workers(2) as workers:
        first = workers.warm().result()["pid"]
        while not workers._idle._value:  # the thread says that it is idle after it has delivered
            time.sleep(0.001)
        assert workers.warm().result()["pid"] == first
        tool, go_on = tmp_path / "ptxas", tmp_path / "go on"
        tool.write_text(f"#!/bin/sh\nwhile [ ! -e '{go_on}' ]; do sleep 0.02; done\n")
        tool.chmod(0o755)
        waiting = workers.submit({"kind": "assemble", "ptx": "", "arch": "sm_90a", "ptxas": str(tool)})
        futures = [compile_cuda(STORE, SM90A, workers=workers) for _ in range(6)]
        try:
            assert all(f.result(timeout=300).ptx for f in futures)
            assert not waiting.done() and len(workers._processes) == 2
        finally:
            go_on.touch()


def test_output_of_a_library_does_not_corrupt_the_frames():
    requests = worker.pack({"kind": "ping"})
    noisy = (
        f"import os, sys; sys.path[:0] = [{os.path.dirname(worker.__file__)!r}, {llvmlite_folder()!r}]\n"
        "import worker\n"
        "run = worker.run\n"
        "def loud(job):\n    print('hello'); os.write(1, b'raw'); return run(job)\n"
        "worker.run = loud\n"
        "worker.main()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", noisy], stdin=-1, stdout=-1, stderr=-1)
    process.stdin.write(requests * 2)
    process.stdin.flush()
    try:
        for _ in range(2):
            assert worker.read_frame(process.stdout.fileno())["llvm"]
    finally:
        _, stderr = process.communicate(timeout=120)
    assert stderr.count(b"hello") == 2 and stderr.count(b"raw") == 2


def test_a_worker_ends_when_its_parent_does():
    script = textwrap.dedent("""
        import os
        from blocknb.codegen.llvm import Workers
        print(Workers(1).warm().result()["pid"], flush=True)
        os.kill(os.getpid(), 9)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    pid = int(done.stdout)
    deadline = time.monotonic() + 120
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(pid)


def test_interrupt_during_a_wait_keeps_requests_and_answers_matched():
    with Workers(1) as workers:
        workers.warm(SM90A).result()
        big = kernel(
            "\n".join(
                f"  %a{i} = fadd float %x, {float(i)}\n  store float %a{i}, ptr addrspace(1) %p" for i in range(3000)
            )
        )
        timer = threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT])
        future = compile_cuda(big, SM90A, workers=workers)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            future.result()
            timer.join()  # on a fast machine the code is ready first
        timer.join()
        assert "st.global" in compile_cuda(STORE, SM90A, workers=workers).result().ptx
        assert future.result().ptx.count("st.global") >= 1  # the interrupted wait lost nothing


def test_idle_worker_that_was_killed_is_replaced_silently():
    with Workers(1) as workers:
        pid = workers.warm().result()["pid"]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # all its threads have ended unnoticed
        assert workers.warm().result()["pid"] != pid


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_starts_its_own_workers():
    mine = shared().warm().result()["pid"]
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=lambda: send.send(shared().warm().result()["pid"]))
    child.start()
    assert receive.poll(120)
    theirs = receive.recv()
    child.join(120)
    assert theirs != mine and child.exitcode == 0
    assert running(mine) and shared().warm().result()["llvm"]


def test_closed_workers_take_no_jobs():
    workers = Workers(1)
    workers.close()
    with pytest.raises(RuntimeError, match="closed"):
        workers.warm()


@pytest.mark.parametrize(
    "message",
    [{}, {"a": 1, "b": [1, None, "x"]}, {"text": "ä\n" * 1000, "raw": bytes(range(256)), "short": "é", "empty": b""}],
)
def test_frames_survive_a_round_trip(message):
    read, write = os.pipe()
    os.write(write, worker.pack(message))
    os.close(write)
    assert worker.read_frame(read) == json.loads(
        json.dumps({k: v for k, v in message.items() if not isinstance(v, bytes)})
    ) | {k: v for k, v in message.items() if isinstance(v, bytes)}
    with pytest.raises(EOFError):
        worker.read_frame(read)
    os.close(read)
