"""Differences of machine code: names do not count, and the sentences count instructions by class, widths and resources."""

from __future__ import annotations

import pytest

from blocknb.ir_diff import compare_code
from blocknb.ir_diff.code_alignment import access_bits, instruction_class
from blocknb.trace import Resources

SASS = """softmax:
    S2R R0, SR_TID.X
    LDG.E.128 R4, desc[UR4][R2.64]
    @P0 BRA `(.L_x_1)
    FFMA R8, R4, R5, RZ
    STG.E.128 desc[UR4][R2.64], R4
    EXIT"""


def test_renamed_registers_predicates_and_labels_are_no_difference():
    renamed = SASS.replace("R4", "R12").replace("R8", "R20").replace("P0", "P3").replace(".L_x_1", ".L_x_7")
    found = compare_code(SASS, renamed, "sass")
    assert found.is_same and found.sentences == () and len(found.same) == len(SASS.split("\n"))


def test_a_wider_load_is_a_sentence_with_its_source_line():
    narrow = SASS.replace("LDG.E.128", "LDG.E")
    found = compare_code(narrow, SASS, "sass", [0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 5, 6])
    assert [(s.text, s.lines) for s in found.sentences] == [("global loads of 128 bits instead of 32 bits", (2,))]
    assert (2, 2) in found.pairs or (2, 2) not in found.same


def test_instructions_are_counted_by_class():
    more = SASS.replace("    EXIT", "    LDSM.16.M88.4 R4, [R2]\n    LDSM.16.M88.4 R8, [R3]\n    EXIT")
    texts = [sentence.text for sentence in compare_code(SASS, more, "sass").sentences]
    assert texts == ["+2 ldmatrix (0 → 2)", "8 instructions instead of 6"]
    assert compare_code(more, SASS, "sass").sentences[0].text == "−2 ldmatrix (2 → 0)"


def test_floating_point_arithmetic_and_the_largest_change_are_sentences_of_their_own():
    scaled = (
        "\n".join(f"    FADD R{i}, R{i}, R{i}" for i in range(8)) + "\n    ISETP.GE.AND P0, PT, R0, UR4, PT\n    EXIT"
    )
    found = compare_code(SASS, SASS.replace("    EXIT", scaled), "sass").sentences
    assert [(s.text, s.weight) for s in found] == [
        ("+8 FADD (0 → 8)", 60),
        ("other instructions: +1 ISETP", 20),
        ("15 instructions instead of 6", 40),
    ]
    moved = SASS.replace("    EXIT", "    IMAD R1, R1, R1, R1\n    IMAD R2, R2, R2, R2\n    FADD R3, R3, R3\n    EXIT")
    assert [s.text for s in compare_code(SASS, moved, "sass").sentences][:2] == ["+2 IMAD (0 → 2)", "+1 FADD (0 → 1)"]
    ptx = "\tadd.s32 \t%r1, %r2, 5;\n"
    more = ptx + "\tadd.rn.f32 \t%f1, %f2, %f3;\n\tadd.s64 \t%rd1, %rd2, 8;\n"
    texts = [s.text for s in compare_code(ptx, more, "ptx").sentences]
    assert texts[:2] == ["+1 add.f32 (0 → 1)", "other instructions: +1 add"]


def test_reuse_flags_are_no_difference():
    assert compare_code(SASS, SASS.replace("R4, R5, RZ", "R4.reuse, R5, RZ.reuse"), "sass").is_same


def test_registers_and_spills_come_first():
    resources = (Resources(registers=96, spill_bytes=0), Resources(registers=255, spill_bytes=64))
    texts = [s.text for s in compare_code(SASS, SASS, "sass", resources=resources).sentences]
    assert texts == ["64 bytes of spilled registers per thread instead of 0", "255 registers per thread instead of 96"]


@pytest.mark.parametrize(
    ("opcode", "language", "bits", "kind"),
    [
        ("ld.global.v4.b32", "ptx", 128, "global load"),
        ("ld.global.nc.v2.u64", "ptx", 128, "global load"),
        ("st.global.b16", "ptx", 16, "global store"),
        ("cp.async.cg.shared.global", "ptx", 0, "cp.async"),
        ("cp.async.bulk.tensor.2d.shared::cluster.global", "ptx", 0, "TMA copy"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "ptx", 0, "wgmma"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "ptx", 0, "mma"),
        ("LDG.E.128", "sass", 128, "global load"),
        ("LDG.E.64.CONSTANT", "sass", 64, "global load"),
        ("LDG.E.U16", "sass", 16, "global load"),
        ("STG.E", "sass", 32, "global store"),
        ("HGMMA.64x64x16.F32", "sass", 0, "wgmma"),
    ],
)
def test_width_and_class_of_an_instruction(opcode, language, bits, kind):
    assert access_bits(opcode, language) == bits
    assert instruction_class(opcode, language) == kind


def test_ptx_and_llvm_ignore_the_names_of_values():
    ptx = "\tadd.s32 \t%r1, %r2, 5;\n$L__BB0_1:\n\t@%p1 bra \t$L__BB0_1;"
    assert compare_code(ptx, ptx.replace("%r1", "%r9").replace("BB0_1", "BB0_4"), "ptx").is_same
    llvm = "  %3 = add i32 %1, 5\n  br label %4"
    assert compare_code(llvm, llvm.replace("%3", "%sum").replace("%4", "%7"), "llvm").is_same
    assert not compare_code(llvm, llvm.replace(" 5", " 6"), "llvm").is_same
