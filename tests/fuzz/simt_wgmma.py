"""wgmma for `simt`: interprets the text of an asm block, and decodes matrix descriptors bit by bit.

Nothing here comes from the compiler's tables. A descriptor is decoded after the PTX ISA ("Matrix descriptor format", "Canonical
layouts"), and every element's address is computed and swizzled separately. So a descriptor with any wrong field gives wrong numbers, or
an access outside of shared memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

Env = dict[str, Any]
Get = Callable[[Env], Any]
GROUP = 128  # threads
DEPTH = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "e4m3": 32, "e5m2": 32}
ELEMENTS = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
WIDTH = {0: 16, 1: 128, 2: 64, 3: 32}  # bytes of a row under each swizzle
MULTIPLY = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|s32)\.(\w+)\.(\w+) \{(.*?)\}, (\{.*?\}|\S+), (\S+), (\w+)((?:, [01])*)"
)


def block(text: str, constraints: str, args: list[Get], threads: int) -> Get:
    """An asm block with wgmma, or with a wait for some: operands are the accumulators, which are results and may be operands, too, and
    others. A wait computes the products and reads shared memory; before it, the results are undefined."""
    parts = [p for p in constraints.split(",") if not p.startswith("~")]
    outputs = [p for p in parts if p.startswith("=")]
    (pending,) = (int(n) for n in re.findall(r"wgmma\.wait_group\.sync\.aligned (\d);", text))
    if text.startswith("wgmma.wait_group"):

        def wait(env: Env) -> list[np.ndarray]:
            values = [a(env) for a in args[: len(outputs)]]
            return env["@"].products.wait(pending, values)

        return wait
    lines = [line.strip() for line in text.strip("{ }").split(";") if line.strip()]

    def step(env: Env) -> list[np.ndarray]:
        products = env["@"].products
        values = {f"${len(outputs) + i}": a(env) for i, a in enumerate(args)}
        tied = {f"${p}": values[f"${len(outputs) + i}"] for i, p in enumerate(parts[len(outputs) :]) if p.isdigit()}
        unset = [np.full(threads, np.nan if p == "=f" else 0x5A5A5A5A) for p in outputs]
        results = [x.astype(np.float32 if p == "=f" else np.int32) for x, p in zip(unset, outputs, strict=True)]

        def compute() -> list[np.ndarray]:
            known = values | {f"${i}": x for i, x in enumerate(unset)} | {k: products.value(x) for k, x in tied.items()}
            return Block(env, known, threads).run(lines)[: len(outputs)]

        products.begin(compute, results)
        return products.wait(pending, results)

    return step


class Products:
    """The products of some threads in flight, in groups, and the results of completed ones. An array is the placeholder of a result."""

    def __init__(self) -> None:
        self.groups: list[tuple[Callable[[], list[np.ndarray]], list[np.ndarray]]] = []
        self.done: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def begin(self, compute: Callable[[], list[np.ndarray]], results: list[np.ndarray]) -> None:
        self.groups.append((compute, results))

    def wait(self, pending: int, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        while len(self.groups) > pending:
            compute, results = self.groups.pop(0)
            for result, found in zip(results, compute(), strict=True):
                self.done[id(result)] = result, found
        return [self.value(x) for x in values]

    def value(self, x: np.ndarray) -> np.ndarray:
        return self.done[id(x)][1] if id(x) in self.done else x


class Block:
    """One run of a block; `values` are operands and registers by name."""

    def __init__(self, env: Env, values: dict[str, Any], threads: int):
        self.env, self.values, self.threads = env, values, threads
        self.fenced = self.committed = False

    def run(self, lines: Sequence[str]) -> list[np.ndarray]:
        for line in lines:
            self.line(line)
        assert self.committed
        return [
            self.values[name] for name in sorted((n for n in self.values if n[1:].isdigit()), key=lambda n: int(n[1:]))
        ]

    def line(self, line: str) -> None:
        if line.startswith(".reg"):
            return
        if line == "wgmma.fence.sync.aligned":
            self.fenced = True
        elif line == "wgmma.commit_group.sync.aligned":
            self.committed = True
        elif line.startswith("wgmma.wait_group"):
            assert self.committed, "a wait for products that are in no group"
        elif found := re.fullmatch(r"setp\.(eq|ne)\.s32 (\w+), (\S+), (\d+)", line):
            (number,) = {int(x) for x in self.values[found[3]]} if found[3] in self.values else {int(found[3])}
            self.values[found[2]] = (number == int(found[4])) == (found[1] == "eq")
        elif found := re.fullmatch(r"add\.s32 (\w+), (\S+), (\d+)", line):
            self.values[found[1]] = self.values[found[2]] + np.int32(int(found[3]))
        elif found := re.fullmatch(r"mov\.b64 (\w+), \{(\w+), (\d+)\}", line):
            lower = self.values[found[2]].astype(np.uint32).astype(np.uint64)
            self.values[found[1]] = (lower | np.uint64(int(found[3]) << 32)).view(np.int64)
        else:
            found = MULTIPLY.fullmatch(line)
            assert found, f"simt does not know {line}"
            assert self.fenced, "wgmma without a fence before it"
            self.multiply(found)

    def multiply(self, found: re.Match) -> None:
        n, k, result, kinds = int(found[1]), int(found[2]), found[3], (found[4], found[5])
        assert k == DEPTH[kinds[0]] == DEPTH[kinds[1]], found[0]
        names, scale, flags = (
            found[6].split(","),
            self.values[found[9]],
            [int(x) for x in found[10].replace(",", "").split()],
        )
        assert len(names) == n // 2, found[0]
        integers, halves = result == "s32", kinds[0] in ("f16", "bf16")
        registers = found[7].startswith("{")
        scales, transposed = ([], flags) if integers else (flags[:2], flags[2:])
        assert scales == ([] if integers else [1, 1])
        assert len(transposed) == (2 - registers if halves else 0), found[0]
        majors = (*[0] * registers, *(transposed or [0] * (2 - registers)))
        held = np.stack([self.values[name] for name in names], 1).astype(np.float64)
        for first in range(0, self.threads, GROUP):
            group = slice(first, first + GROUP)
            if registers:
                words = [self.values[name][group] for name in found[7].strip("{}").split(",")]
                a = fragment(words, kinds[0], k)
            else:
                a = self.operand(found[7], group, kinds[0], 64, k, majors[0])
            b = self.operand(found[8], group, kinds[1], n, k, majors[1]).T
            product = a @ b
            row, column = accumulator(n)
            added = product[row, column]
            held[group] = added + held[group] if scale else added
        for i, name in enumerate(names):
            self.values[name] = held[:, i].astype(np.int32 if integers else np.float32)

    def operand(self, name: str, group: slice, kind: str, lines: int, k: int, mn_major: int) -> np.ndarray:
        """The rows of A or columns of B that a descriptor names, [lines, k], as float64."""
        (descriptor,) = {int(x) & (1 << 64) - 1 for x in self.values[name][group]}  # the same in all threads
        machine, element = self.env["@"], np.dtype(ELEMENTS[kind])
        start, leading, stride = (((descriptor >> low) & 0x3FFF) << 4 for low in (0, 16, 32))
        assert not descriptor >> 46 & 0xFFFF, "fields that have to be 0"
        assert not start & 15
        swizzle = WIDTH[descriptor >> 62]
        line, depth = np.meshgrid(np.arange(lines), np.arange(k), indexing="ij")
        if mn_major:
            distance = mn_major_place(line, depth, swizzle, leading, stride)
        else:
            distance = k_major_place(line, depth * element.itemsize, swizzle, leading, stride)
        address = start + distance
        address ^= (address >> 7 & (swizzle // 16 - 1)) << 4
        base = machine.base & 0x3FFFF
        where = machine.base + ((address - base) & 0x3FFFF)
        who = group.start + np.arange(where.size) % GROUP  # any of them; a barrier separates it from the writer
        data = machine.shared.load(where.reshape(-1), element.itemsize, element.itemsize, f"wgmma {name}", who)
        if kind == "tf32":  # the last 13 bits are ignored
            data = (np.ascontiguousarray(data).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.uint8)
        return np.ascontiguousarray(data).view(element).reshape(lines, k).astype(np.float64)


def k_major_place(line: np.ndarray, byte: np.ndarray, width: int, leading: int, stride: int) -> np.ndarray:
    """Eight lines of `width` bytes, the next eight `stride` further; without a swizzle the second 16 bytes are `leading` further."""
    within = byte if width > 16 else byte // 16 * leading + byte % 16
    return line // 8 * stride + line % 8 * width + within


def mn_major_place(line: np.ndarray, k: np.ndarray, width: int, leading: int, stride: int) -> np.ndarray:
    """Eight k of `width` bytes of neighbouring 16-bit lines; the next lines are `leading` further and the next eight k `stride`, or,
    without a swizzle, the other way round."""
    lines, ks = (leading, stride) if width > 16 else (stride, leading)
    per = width // 2
    return line // per * lines + line % per * 2 + k // 8 * ks + k % 8 * width


def accumulator(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each accumulator, [threads, accumulators]."""
    t, i = np.meshgrid(np.arange(GROUP), np.arange(n // 2), indexing="ij")
    return t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2), i // 4 * 8 + t % 4 * 2 + i % 2


def fragment(words: Sequence[np.ndarray], kind: str, k: int) -> np.ndarray:
    """A from four 32-bit registers a thread, [64, k]: each holds neighbours in a row; the next is eight rows below, and the third
    half the depth further."""
    element = np.dtype(ELEMENTS[kind])
    per = 4 // element.itemsize
    values = np.ascontiguousarray(np.stack(words, 1)).view(np.int32)
    if kind == "tf32":
        values = values & np.int32(-0x2000)
    held = np.ascontiguousarray(values).view(element).astype(np.float64)
    t, i = np.meshgrid(np.arange(GROUP), np.arange(4 * per), indexing="ij")
    word, place = i // per, i % per
    a = np.empty((64, k))
    a[t // 32 * 16 + t % 32 // 4 + 8 * (word % 2), word // 2 * (k // 2) + t % 4 * per + place] = held
    return a
