"""Operands A of wgmma that a loop does not change keep their registers until its end, whatever ptxas assembles it."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
from launches_for_gpus import captured

from blocknb.codegen import llvm, sass, toolchain
from blocknb.kernels import attention_backward, heads
from blocknb.target import Target

HOPPER = Target.parse("sm_90a")
USE = re.compile(r'asm sideeffect "\{ \.reg \.pred never;.*?"\((.*?)\)')
#: SASS without a register as its first operand's result.
WRITES_NONE = ("ST", "BAR", "SYNCS", "BRA", "WARPGROUP", "RED", "UTMA", "EXIT", "NOP", "HGMMA", "BSYNC", "BSSY", "R2UR")


@pytest.fixture(scope="module")
def gradients():
    """The kernel of dk and dv: its loop multiplies keys and values, and waits for dout after the first product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importlib.import_module("blocknb.kernels.heads"), "on_host", lambda array: False)
        patch.setattr(heads, "capability", lambda array: 90)
        x, found = np.zeros((1, 2, 320, 64), np.float16), []
        with captured(found.append):
            attention_backward(x, x, x, x, np.zeros((1, 2, 320), np.float32), x, deterministic=True)
    (launch,) = (x for x in found if x.kernel.__name__ == "gradients_kernel")
    return launch.retarget("sm_90a", launch.compiled.options.get("without", ()))


def test_a_loop_ends_with_a_use_of_the_operands_that_it_does_not_change(gradients):
    text = gradients.llvm
    (use,) = USE.finditer(text)
    calls = [call.split('"(')[-1] for call in text.splitlines() if "wgmma.mma_async" in call]
    fresh = [
        re.findall(r"i32 (%\w+)", call)[:-1] for call in calls if "float" not in call
    ]  # without the descriptor of B
    assert [len(words) for words in fresh] == [16, 16]  # keys, values
    assert re.findall(r"i32 (%\w+)", use[1]) == fresh[0] + fresh[1]
    assert text.rindex("wgmma.wait_group.sync.aligned 0;") < use.start()


def listings(text: str) -> Iterator[tuple[str, list[str]]]:
    """The machine code of each ptxas on this machine that knows the version of the PTX, as labels and instructions."""
    for tool in toolchain.candidates("ptxas"):
        if tool.version[:2] >= (12, 9):
            cubin = llvm.compile_cuda(text, HOPPER, tool=tool).result().cubin
            lines = sass.disassemble(cubin, HOPPER).result().text.splitlines()
            yield str(tool), [line.strip() for line in lines if line.strip()]


@pytest.mark.full
def test_no_ptxas_reuses_their_registers_in_the_loop(gradients):
    found = dict(listings(gradients.llvm))
    assert found
    for name, lines in found.items():
        mixed, products = mixed_operands(lines)
        assert products == 16 and not mixed, f"{name} overwrites operands of {mixed}"


def mixed_operands(lines: list[str]) -> tuple[list[str], int]:
    """The wgmma whose operand A comes from shared memory on one path and from arithmetic on another, and how many wgmma there are."""
    label = {line.rstrip(":"): i for i, line in enumerate(lines) if line.endswith(":")}
    reaching: list[dict[int, frozenset[int]]] = [{} for _ in lines]
    work = [0]
    seen = set[int]()
    while work:
        i = work.pop()
        seen.add(i)
        state = dict(reaching[i])
        state.update((register, frozenset([i])) for register in written(lines[i]))
        for after in following(lines, label, i):
            merged = {
                r: reaching[after].get(r, frozenset()) | state.get(r, frozenset()) for r in reaching[after] | state
            }
            if merged != reaching[after] or after not in seen:
                reaching[after] = merged
                work.append(after)
    mixed, products = [], 0
    for i, line in enumerate(lines):
        if product := re.match(r"HGMMA\S+ R\d+, R(\d+),", line):
            products += 1
            makers = {x for r in range(int(product[1]), int(product[1]) + 4) for x in reaching[i].get(r, ())}
            if len({lines[x].startswith("LDSM") for x in makers}) != 1:
                mixed.append(line)
    return mixed, products


def following(lines: list[str], label: dict[str, int], i: int) -> list[int]:
    """The instructions that may run after one."""
    branch = re.search(r"BRA.*?\(?(\.L_x_\d+)", lines[i])
    always = not lines[i].startswith("@") and (branch or lines[i].startswith("EXIT"))
    after = [i + 1] if not always and i + 1 < len(lines) else []
    return [*after, label[branch[1]]] if branch else after


def written(line: str) -> range:
    """The registers that an instruction writes; none if it may be skipped."""
    op, _, operands = line.partition(" ")
    result = re.match(r"R(\d+)\b", operands)
    if result is None or op.startswith(("@", *WRITES_NONE)):
        return range(0)
    wide = 4 if ".128" in op or ".M88.4" in op else 2 if ".64" in op or op.startswith(("CS2R", "IMAD.WIDE")) else 1
    return range(int(result[1]), int(result[1]) + wide)
