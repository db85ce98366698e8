"""Code for 64-bit Arm, made on any machine: what the assembly of NEON holds, and that no machine of another kind runs it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from host_cpus import X86
from kernels import CASES
from zoo import ZOO
from zoo.launches import only_compiled
from zoo.test_zoo import ON_CPU, QUICK

import blocknb
import blocknb.language as tl
from blocknb import passes
from blocknb.codegen import cpu, llvm
from blocknb.codegen.elf_objects import elf_instruction_set, elf_symbols
from blocknb.codegen.llvm import LIBRARY
from blocknb.codegen.loader import load_object
from blocknb.codegen.scalar_math.instructions import TargetFeatures
from blocknb.errors import Unsupported
from blocknb.notebook.sections import code_sections
from blocknb.target import Target, instruction_set, known

ARM = "cpu:aarch64"
ARM_CPUS = [name for name in known() if name.startswith("cpu:") and Target.parse(name).isa == "aarch64"]


def listing(kernel, *kinds, target=ARM, **constants):
    """The assembly of a kernel for Arm: one instruction per line, such as "fadd v0.4s, v1.4s, v2.4s"."""
    text = kernel.trace(*kinds, target=target, **constants).assembly
    return [" ".join(line.split()) for line in text.splitlines() if line.startswith("\t") and line[1] != "."]


def named(lines, pattern):
    return [line for line in lines if re.match(pattern, line)]


def elementwise(compute):
    """A kernel that applies a function of the language to each element."""

    @blocknb.kernel
    def each(x, y, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        result = compute(tl.load(x + at, mask=inside), tl.load(y + at, mask=inside))
        tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)

    return each


@blocknb.kernel
def total(x, y):
    return x + y


@blocknb.kernel
def first(x, y):
    return x


@blocknb.kernel
def larger(x, y):
    return tl.maximum(x, y)


@blocknb.kernel
def exponential(x, y):
    return tl.exp(x)


@blocknb.kernel
def hyperbolic(x, y):
    return tl.log(x) + tl.sin(y)


@blocknb.kernel
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, K)
    x, y = tl.load(a + m * K + k[None, :]), tl.load(b + k[:, None] * N + n)
    tl.store(c + m * N + n, tl.dot(x, y))


def test_a_vector_add_has_vectors_of_four_and_no_scalar_additions():
    lines = listing(elementwise(total), "*fp32", "*fp32", "*fp32", "i32", BLOCK=1024)
    assert named(lines, r"fadd v\d+\.4s")
    assert not named(lines, r"fadd s\d")
    assert not named(lines, r"stnp ")  # Arm's CPUs need no non-temporal stores


def test_a_product_accumulates_in_sixteen_registers_of_four_lanes():
    lines = listing(product, "*fp32", "*fp32", "*fp32", M=32, N=32, K=32)
    accumulators = {line.split()[1] for line in named(lines, r"fmla v\d+\.4s")}
    assert len(accumulators) == 16
    assert not named(lines, r"f(madd|mul) s\d")


def test_fp16_is_converted_in_vectors():
    lines = listing(elementwise(total), "*fp16", "*fp16", "*fp16", "i32", BLOCK=1024)
    assert named(lines, r"fcvtl v\d+\.4s, v\d+\.4h")
    assert named(lines, r"fcvtn v\d+\.4h, v\d+\.4s")


@pytest.mark.parametrize("function", [exponential, hyperbolic], ids=lambda made: made.__name__)
def test_functions_are_polynomials_on_vectors(function):
    lines = listing(elementwise(function), "*fp32", "*fp32", "*fp32", "i32", BLOCK=1024)
    assert len(named(lines, r"fmla v\d+\.4s")) >= 6
    assert not named(lines, r"(fmadd|fmul|fadd) s\d")


def test_arms_conversions_saturate_by_themselves():
    lines = listing(elementwise(first), "*fp32", "*fp32", "*i32", "i32", BLOCK=1024)
    assert named(lines, r"fcvtzs v\d+\.4s")
    assert not named(lines, r"(fcmgt|fcmge|bif|bit|bsl) ")


def test_arms_extrema_order_zeros_and_nans_by_themselves():
    lines = listing(elementwise(larger), "*fp32", "*fp32", "*fp32", "i32", BLOCK=1024)
    assert named(lines, r"fmaxnm v\d+\.4s")
    assert not named(lines, r"(fcmgt|fcmge|bif|bit|bsl) ")


@pytest.mark.parametrize("target", ARM_CPUS)
def test_every_named_arm_cpu_has_code_of_its_own(target):
    trace = elementwise(total).trace("*fp32", "*fp32", "*fp32", "i32", BLOCK=64, target=target)
    assert elf_instruction_set(trace.artifacts["object"]) == "aarch64"
    assert str(trace.target) == target


def test_the_card_names_the_assembly_and_links_it_with_the_lines_of_the_kernel():
    trace = product.trace("*fp32", "*fp32", "*fp32", M=16, N=16, K=16, target=ARM)
    (section,) = (made for made in code_sections(trace, "product", "code") if made.key == "assembly")
    assert (section.title, section.about) == ("Arm assembly", "Assembly for cpu:aarch64")
    source = trace.source.splitlines()
    loads = {line.line for line in section.lines if re.match(r"\tldr\tq", line.text)} - {None}
    assert any("tl.load" in source[line - trace.first_line] for line in loads)


@pytest.mark.skipif(not X86, reason="this machine runs Arm's code")
def test_this_machine_refuses_arms_code_by_name():
    trace = elementwise(total).trace("*fp32", "*fp32", "*fp32", "i32", BLOCK=64, target=ARM)
    with pytest.raises(Unsupported, match="the code is for aarch64 CPUs, and this machine has an x86_64 CPU"):
        load_object(trace.artifacts["object"])


def test_apples_name_of_the_instruction_set_is_known():
    assert instruction_set("arm64-apple-darwin23.6.0") == "aarch64"
    assert instruction_set("x86_64-unknown-linux-gnu") == "x86_64"


def test_a_cpu_of_no_known_kind_gets_no_instructions_of_x86():
    features = TargetFeatures.of(Target("cpu", "sifive-u74", "+d", isa="riscv64"))
    assert not (features.x86 or features.neon or features.fma or features.f16c)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.full) for name in ON_CPU]
)
@pytest.mark.sampled(20)
def test_the_kernels_of_the_zoo_compile_for_arm(name):
    with only_compiled(ARM) as found:
        ZOO[name].run(ZOO[name].make(np.random.default_rng(0)), "numpy", "cpu")
    for compiled in found:
        data = compiled.trace.artifacts["object"]
        assert elf_instruction_set(data) == "aarch64"
        assert set(elf_symbols(data)[1]) <= set(LIBRARY)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_of_the_tests_compile_for_arm(name):
    target = Target.parse(ARM)
    func = passes.run(CASES[name].parse(CASES[name].make(np.random.default_rng(7)), target), target)[0]
    module = cpu.generate(func, target)
    assert module.entry in llvm.compile_cpu(module.text, target).result().exports
