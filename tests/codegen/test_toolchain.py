"""Targets, the search for NVIDIA's tools, parsing of their output, and the mapping of machine code to source lines."""

import functools
import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from blocknb.codegen import toolchain
from blocknb.codegen.batch_assembly import assemble_many, merge_ptx
from blocknb.codegen.llvm import compile_cpu, compile_cuda, list_cpu
from blocknb.codegen.sass import Listing, assembly_lines, disassemble, sass_lines
from blocknb.codegen.toolchain import PtxasResources, choose_ptxas, find_nvdisasm, find_ptxas, read_ptxas_log
from blocknb.errors import KernelError
from blocknb.target import Target, known

SM90A = Target.parse("sm_90a")
GPUS = [name for name in known() if name.startswith("sm_")]
needs_ptxas = pytest.mark.skipif(find_ptxas(SM90A) is None, reason="there is no ptxas on this machine")
needs_nvdisasm = pytest.mark.skipif(find_nvdisasm(SM90A) is None, reason="there is no nvdisasm on this machine")

DEBUG = """
!llvm.dbg.cu = !{!0}
!llvm.module.flags = !{!2}
!0 = distinct !DICompileUnit(language: DW_LANG_C, file: !1, producer: "blocknb", emissionKind: DebugDirectivesOnly)
!1 = !DIFile(filename: "cell.py", directory: "/nb")
!2 = !{i32 2, !"Debug Info Version", i32 3}
!3 = !DIFile(filename: "<ipython-input-3-abc>", directory: "")
!4 = distinct !DISubprogram(name: "k", scope: !1, file: !1, line: 3, type: !5, unit: !0, spFlags: DISPFlagDefinition)
!5 = !DISubroutineType(types: !6)
!6 = !{}
!7 = distinct !DISubprogram(name: "h", scope: !3, file: !3, line: 30, type: !5, unit: !0, spFlags: DISPFlagDefinition)
!10 = !DILocation(line: 4, column: 2, scope: !4)
!11 = !DILocation(line: 32, column: 2, scope: !7, inlinedAt: !12)
!12 = distinct !DILocation(line: 5, column: 2, scope: !4)
!13 = !DILocation(line: 6, column: 2, scope: !4)
"""
# Loads in line 4, adds in line 32 of a helper in another cell, stores in line 6.
GPU_TEXT = (
    """define ptx_kernel void @k(ptr addrspace(1) %p) !dbg !4 {
  %v = load float, ptr addrspace(1) %p, !dbg !10
  %w = fadd float %v, 1.0, !dbg !11
  store float %w, ptr addrspace(1) %p, !dbg !13
  ret void, !dbg !13
}"""
    + DEBUG
)
CPU_TEXT = GPU_TEXT.replace("ptx_kernel ", "").replace(" addrspace(1)", "")


def code_at(lines, word):
    """(line, file) of the only line of code that contains the word."""
    (found,) = [line for line in lines if word in line.text]
    return found.line, found.file


# ---- targets -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_target_compiles_and_assembles(name):
    target = Target.parse(name)
    if find_ptxas(target) is None:
        pytest.skip(f"there is no ptxas for {name} on this machine")
    code = compile_cuda(GPU_TEXT, target).result()
    assert f".target {name}" in code.ptx
    assert ".version {}.{}".format(*target.ptx_version) in code.ptx
    assert code.resources["k"].registers > 0


@pytest.mark.parametrize("name", [n for n in known() if n.startswith("cpu:")])
def test_named_cpus_compile_with_the_features_of_the_target_table(name):
    target = Target.parse(name)
    assert "k:" in list_cpu(CPU_TEXT, target).result()
    assert str(target) == name


def test_features_of_a_named_cpu_agree_with_llvm():
    text = "declare float @llvm.fma.f32(float, float, float)\ndefine float @f(float %x) {\n"
    text += "  %y = call float @llvm.fma.f32(float %x, float %x, float %x)\n  ret float %y\n}"
    for target in map(Target.parse, (n for n in known() if n.startswith("cpu:"))):
        bare = replace(target, features="")  # LLVM's own idea of that CPU
        if target.has("fma") or target.has("neon"):
            assert re.search("v?fmadd", list_cpu(text, bare).result())
        else:
            with pytest.raises(KernelError, match="fmaf"):
                compile_cpu(text, bare).result()


def test_an_unknown_target_names_the_known_ones():
    for name in ("sm_42", "gpu", "cpu:pentium", ""):
        with pytest.raises(ValueError, match=r"sm_90a|cpu:haswell") as caught:
            Target.parse(name)
        assert isinstance(caught.value, KernelError)


def test_targets_are_values():
    assert Target.parse("sm_90a") == Target.parse("sm_90a") != Target.parse("sm_90")
    assert len({Target.parse("cpu"), Target.parse("cpu"), Target.parse(SM90A)}) == 2
    assert SM90A.max_shared == 232448 and SM90A.capability == 90 and SM90A.specific


def test_host_target_has_a_vector_width():
    assert Target.parse("cpu").vector_bits in (128, 256, 512)
    assert [Target.parse(n).vector_bits for n in ("cpu:x86-64", "cpu:haswell", "cpu:skylake-avx512")] == [128, 256, 512]


# ---- tools ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def searching(monkeypatch, tmp_path):
    """A machine with nothing but the ptxas that the test puts there: `searching("13.0.88")` puts one on PATH. It has no driver."""
    monkeypatch.setattr(toolchain, "driver_cuda", functools.cache(lambda: None))
    for variable in ("BLOCKNB_PTXAS", "BLOCKNB_PTXAS12", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not str(path).startswith("/usr/local/cuda") and real(path, mode)
    )
    toolchain.forget()

    def put(version, folder="bin"):
        path = tmp_path / folder / "ptxas"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\necho Cuda compilation tools, release x, V{version}\n")
        path.chmod(0o755)
        toolchain.forget()
        return path

    yield put
    toolchain.forget()


def test_without_any_ptxas_none_is_found(searching):
    assert find_ptxas(SM90A) is None


def test_ptxas_on_path_is_found_with_its_version(searching):
    path = searching("13.0.88")
    tool = find_ptxas(SM90A)
    assert (tool.path, tool.version, tool.origin) == (str(path), (13, 0, 88), "PATH")


def test_ptxas_too_old_for_our_ptx_is_skipped(searching):
    searching("12.4.99")
    assert find_ptxas(SM90A) is None
    assert find_ptxas(Target.parse("sm_80")).version == (12, 4, 99)


def test_explicitly_named_ptxas_has_priority(searching, monkeypatch):
    searching("13.0.88")
    monkeypatch.setenv("BLOCKNB_PTXAS", str(searching("13.1.2", "mine")))
    assert find_ptxas(SM90A).origin == "BLOCKNB_PTXAS"


def test_sm_70_uses_a_ptxas_before_13_anywhere_in_the_search(searching, monkeypatch):
    searching("13.0.88")
    assert find_ptxas(Target.parse("sm_70")) is None
    monkeypatch.setenv("BLOCKNB_PTXAS12", str(searching("12.9.86", "old")))
    assert find_ptxas(Target.parse("sm_70")).version == (12, 9, 86)
    assert find_ptxas(SM90A).version == (13, 0, 88)


def test_versions_of_pip_packages_are_read_without_running_them(searching, tmp_path, monkeypatch):
    path = searching("99.9.9", "site/nvidia/cu13/bin")
    (tmp_path / "site" / "nvidia_cuda_nvcc-13.5.37.dist-info").mkdir()
    toolchain.forget()
    monkeypatch.setattr(subprocess, "run", None)
    tool = find_ptxas(SM90A)
    assert (tool.path, tool.version, tool.origin) == (str(path), (13, 5, 37), "PyPI")


def with_a_driver(monkeypatch, newest):
    monkeypatch.setattr(toolchain, "driver_cuda", functools.cache(lambda: newest))
    toolchain.forget()


def test_a_ptxas_that_the_driver_supports_comes_before_a_newer_one(searching, monkeypatch):
    searching("13.0.88")
    monkeypatch.setenv("BLOCKNB_PTXAS12", str(searching("12.9.86", "old")))
    assert find_ptxas(SM90A).version == (13, 0, 88), "without a driver, the first that fits"
    with_a_driver(monkeypatch, 12)
    found = choose_ptxas(SM90A)
    assert found.tool.version == find_ptxas(SM90A).version == (12, 9, 86) and found.loads
    assert found.reason == "the driver supports CUDA 12, and loads no code of ptxas 13.0.88 (PATH)"
    with_a_driver(monkeypatch, 13)
    assert choose_ptxas(SM90A).tool.version == (13, 0, 88) and choose_ptxas(SM90A).loads


def test_without_a_ptxas_that_the_driver_supports_the_first_is_used_and_said_not_to_load(searching, monkeypatch):
    searching("13.0.88")
    monkeypatch.setenv("BLOCKNB_PTXAS12", str(searching("12.4.99", "old")))  # too old for the PTX of sm_90a
    with_a_driver(monkeypatch, 12)
    found = choose_ptxas(SM90A)
    assert found.tool.version == (13, 0, 88) and not found.loads and "supports only CUDA 12" in found.reason


def test_a_named_ptxas_is_used_with_any_driver(searching, monkeypatch):
    monkeypatch.setenv("BLOCKNB_PTXAS", str(searching("13.1.2", "mine")))
    searching("12.9.86")
    with_a_driver(monkeypatch, 12)
    found = choose_ptxas(SM90A)
    assert (found.tool.version, found.reason, found.loads) == ((13, 1, 2), "BLOCKNB_PTXAS names it", False)


@pytest.mark.parametrize(
    ("answer", "number", "newest"), [(0, 12040, 12), (0, 13000, 13), (0, 0, None), (3, 12040, None)]
)
def test_the_driver_is_asked_for_its_cuda_version_without_being_initialized(monkeypatch, answer, number, newest):
    class Library:
        def __init__(self, name):
            assert "cuda" in name

        def cuDriverGetVersion(self, to):
            to._obj.value = number
            return answer

    monkeypatch.setattr(toolchain.ctypes, "CDLL", Library)
    toolchain.forget()
    assert toolchain.driver_cuda() == newest
    toolchain.forget()


def test_a_machine_without_a_driver_has_no_cuda_version(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(toolchain.ctypes, "CDLL", absent)
    toolchain.forget()
    assert toolchain.driver_cuda() is None
    toolchain.forget()


def test_ptxas_that_does_not_run_is_skipped(searching):
    searching("13.0.88").write_text("not a program")
    assert find_ptxas(SM90A) is None


# ---- ptxas ---------------------------------------------------------------------------------------------------------------

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x in function 'matmul'
ptxas info    : Compiling entry function 'matmul' for 'sm_90a'
ptxas info    : Function properties for matmul
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers, 16 bytes cumulative stack size, 1024 bytes smem, 396 bytes cmem[0]
ptxas info    : Compile time = 18.585 ms
ptxas info    : Compiling entry function 'add' for 'sm_90a'
ptxas info    : Function properties for add
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas /proc/self/fd/6, line 19; warning : Instruction 'foo' is deprecated
"""


def test_ptxas_output_is_parsed_per_kernel():
    resources, warnings = read_ptxas_log(LOG)
    assert resources == {
        "matmul": PtxasResources(registers=168, spill_stores=24, spill_loads=32, stack=16, shared=1024, barriers=2),
        "add": PtxasResources(registers=8),
    }
    assert len(warnings) == 2 and "C7514" in warnings[0] and "deprecated" in warnings[1]
    assert "/proc" not in " ".join(warnings)


def ptx_of(name, body="", globals_=""):
    text = f"{globals_}\ndefine ptx_kernel void @{name}(ptr addrspace(1) %p) {{\n{body}\n  ret void\n}}\n"
    return compile_cuda(text, SM90A).result().ptx


@needs_ptxas
def test_many_kernels_assemble_in_one_call_although_their_globals_share_names():
    shared = "@buffer = addrspace(3) global [{} x i32] undef, align 16"
    use = "  %v = load volatile i32, ptr addrspace(3) @buffer\n  store i32 %v, ptr addrspace(1) %p"
    dynamic = "@buffer = external addrspace(3) global [0 x i32], align 16"
    modules = [
        ptx_of("first", use, shared.format(64)),
        ptx_of("second", use, shared.format(128)),
        ptx_of("third", use, dynamic),
        compile_cuda(GPU_TEXT, SM90A).result().ptx,
    ]
    assembly = assemble_many(modules, SM90A)
    assert {name: r.shared for name, r in assembly.resources.items()} == {
        "first": 256,
        "second": 512,
        "third": 0,
        "k": 0,
    }
    assert assembly.cubin[:4] == b"\x7fELF" and assembly.warnings == ()


def test_merging_refuses_two_kernels_of_one_name_and_mixed_targets():
    header = ".version 8.8\n.target {}\n.address_size 64\n.visible .entry {}()\n{{\n ret;\n}}\n"
    with pytest.raises(ValueError, match="'k' is defined twice"):
        merge_ptx([header.format("sm_90a", "k")] * 2)
    with pytest.raises(ValueError, match="different targets"):
        merge_ptx([header.format("sm_90a", "k"), header.format("sm_80", "l")])


# ---- lines ---------------------------------------------------------------------------------------------------------------


def test_assembly_lines_map_to_source_lines_without_loc_directives():
    code = compile_cuda(GPU_TEXT, SM90A).result()
    lines = assembly_lines(code.ptx)
    assert code_at(lines, "ld.global") == (4, "/nb/cell.py")
    assert code_at(lines, "add.rn.f32") == (32, "<ipython-input-3-abc>")
    assert code_at(lines, "st.global") == (6, "/nb/cell.py")
    assert code_at(lines, ".visible .entry") == (None, None)
    text = Listing("ptx", lines).text
    assert ".loc" not in text and "$L__tmp" not in text and "Generated" not in text


def test_assembly_lines_map_to_source_lines():
    lines = assembly_lines(list_cpu(CPU_TEXT, Target.parse("cpu:haswell")).result())
    assert code_at(lines, "vaddss") == (32, "<ipython-input-3-abc>")
    assert code_at(lines, "vmovss	%xmm0") == (6, "/nb/cell.py")


@needs_ptxas
@needs_nvdisasm
def test_sass_lines_map_to_source_lines():
    listing = disassemble(compile_cuda(GPU_TEXT, SM90A).result().cubin, SM90A).result()
    assert code_at(listing.lines, "LDG.E") == (4, "/nb/cell.py")
    assert code_at(listing.lines, "FADD") == (32, "<ipython-input-3-abc>")
    assert code_at(listing.lines, "STG.E") == (6, "/nb/cell.py")
    assert "NOP" not in listing.text and "/*" not in listing.text


@needs_nvdisasm
def test_damaged_cubin_error_quotes_nvdisasm():
    with pytest.raises(KernelError, match="nvdisasm"):
        disassemble(b"not a cubin", SM90A).result()


def test_padding_is_removed_and_loop_labels_stay():
    rows = [
        ".text.a:",
        "/*0*/ X",
        ".L_x_1:",
        ".L_x_2:",
        "NOP",
        "EXIT",
        ".L_x_3:",
        "NOP",
        ".text.b:",
        "EXIT",
        "NOP",
        ".L_x_4:",
    ]
    text = "\n".join(row if row[0] == "." else f"        /*0000*/       {row} ;" for row in rows)
    kept = [line.text.strip() for line in sass_lines(text)]
    assert kept == ["a:", "/*0*/ X", ".L_x_1:", ".L_x_2:", "NOP", "EXIT", "b:", "EXIT"]


def test_inlined_calls_of_both_formats_map_to_every_line_of_the_call_chain():
    ptx = "\n".join(
        [
            ".visible .entry k()",
            "{",
            "\t.loc\t1 7 2",
            "\tmov.u32 %r0, 0;",
            "\t.loc\t2 31 2, function_name $L__info_string0, inlined_at 1 7 2",
            "\tmov.u32 %r1, 1;",
            "\t.loc\t2 41 2, function_name $L__info_string1, inlined_at 2 31 2",
            "\tmov.u32 %r2, 2;",
            "}",
            '\t.file\t1 "/nb/cell.py"',
            '\t.file\t2 "helper"',
        ]
    )
    sass = "\n".join(
        [
            ".text.k:",
            '\t//## File "/nb/cell.py", line 7',
            "        /*0000*/                   MOV R0, 0 ;",
            '\t//## File "helper", line 31 inlined at "/nb/cell.py", line 7',
            '\t//## File "/nb/cell.py", line 7',
            "        /*0010*/                   MOV R1, 1 ;",
            '\t//## File "helper", line 41 inlined at "helper", line 31',
            '\t//## File "helper", line 31 inlined at "/nb/cell.py", line 7',
            '\t//## File "/nb/cell.py", line 7',
            "        /*0020*/                   MOV R2, 2 ;",
        ]
    )
    chain = (("helper", 31), ("/nb/cell.py", 7))
    for lines, word in ((assembly_lines(ptx), "%r{},"), (sass_lines(sass), "R{},")):
        rows = [next(line for line in lines if word.format(i) in line.text) for i in range(3)]
        assert [(r.file, r.line) for r in rows] == [("/nb/cell.py", 7), ("helper", 31), ("helper", 41)]
        assert [r.callers for r in rows] == [(), chain[1:], chain]
        made = Listing("x", tuple(lines)).line_map("/nb/cell.py")[7]
        assert [lines[i] for i in made] == rows
