"""Simulates the LLVM text of a GPU kernel in NumPy, with all threads of a CTA in lockstep, so that tests need no GPU.

A value is an array with one row per thread. Control flow of a block program is uniform, so all threads take a branch or none does. Anything
else is an error. Shuffles permute rows. The fragments of tensor-core instructions follow the PTX ISA, independently of the compiler's
tables. As on hardware, every access must lie inside an array and be aligned. Barriers do nothing in lockstep; `races` finds missing ones.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from blocknb.codegen.gpu import GpuModule
from blocknb.language import semantics, types
from fuzz import simt_bulk
from fuzz.simt_machine import Env, Function, Machine
from fuzz.simt_memory import Memory

TYPES = {
    "i1": np.dtype(bool), "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64), "half": np.dtype(np.float16), "bfloat": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32), "double": np.dtype(np.float64), "ptr": np.dtype(np.int64),
}  # fmt: skip
CTAS = 2  # that a persistent kernel has
Get = Callable[[Env], Any]


def run(
    module: GpuModule,
    arguments: Sequence[Any],
    grid: Sequence[int],
    reachable: Sequence[np.ndarray] = (),
    apart: bool = False,
) -> None:
    """Runs all programs of a grid, one after another, on NumPy arrays (for pointers) and numbers; in place.

    `reachable` are arrays whose addresses the kernel loads from memory; `apart`: no program may access bytes that another one writes.
    Raises Race.
    """
    memory = Memory([a for a in (*arguments, *reachable) if isinstance(a, np.ndarray)], apart)
    values = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    sizes = (*grid, 1, 1)[:3]
    tensor_maps = [simt_bulk.Map.encode(spec, values) for spec in module.maps]
    if module.persistent:
        values += sizes
        sizes = (min(CTAS, math.prod(sizes)), 1, 1)
    values += [simt_bulk.MAP_ADDRESS + 128 * i for i in range(len(tensor_maps))]
    functions = functools.cache(lambda threads: {f.name: f for f in parse(module.text, threads)})
    kinds = [TYPES[kind] for kind, _ in functions(module.threads)[module.entry].parameters]
    with np.errstate(all="ignore"):
        threads = [np.full(module.threads, v).astype(kind) for v, kind in zip(values, kinds, strict=True)]
        for number, program in enumerate(np.ndindex(*sizes)):
            memory.watch.begin(number)
            machine = Machine(functions, memory, module, program, sizes, simt_bulk.Engine(tensor_maps))
            simt_bulk.together(machine.start(machine.functions[module.entry], threads))
            machine.engine.end()
    memory.write_back()


# -- parsing -------------------------------------------------------------------------------------------------------------

TYPE = re.compile(r"<\d+ x \w+>|ptr(?: addrspace\(\d+\))?|\{.*?\}|\w+")
ARGUMENT = re.compile(r"^(<\d+ x \w+>|ptr(?: addrspace\(\d+\))?(?: align \d+)?|\{.*?\}|\w+)\s+(.*)$")


def parse(text: str, threads: int) -> list[Function]:
    found: list[Function] = []
    lines = iter(text.splitlines())
    for line in lines:
        # `reduce` reduces large angles, in 128-bit integers; tests stand in for the functions on shadow memory.
        if not line.startswith("define") or ".reduce(" in line or ".shadow." in line:
            continue
        head = re.match(r"define .*?@([\w.]+)\((.*?)\)[^()]*\{$", line)
        assert head, line
        parameters = []
        for p in pieces(head[2]):
            parameters.append((p.split()[0], p.split()[-1]))
        function = Function(head[1], parameters, threads)
        label, phis, body = "entry", [], []
        for raw in lines:
            code = re.sub(r", !dbg !\d+$", "", raw.rstrip()).strip()
            if code == "}":
                break
            if code.endswith(":"):
                label, phis, body = code[:-1], [], []
            elif code.startswith(("br ", "ret")):
                function.blocks[label] = (phis, body, terminator(code, threads))
            elif code:
                name, _, expression = code.partition(" = ") if code.startswith("%") else ("", "", code)
                if expression.startswith("phi"):
                    phis.append((name, phi(expression, threads)))
                else:
                    body.append((name, instruction(expression, threads)))
        found.append(function)
    return found


def pieces(text: str) -> list[str]:
    """Splits a text at commas outside brackets."""
    found, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "<({[":
            depth += 1
        elif c in ">)}]":
            depth -= 1
        elif c == "," and depth == 0:
            found.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return [*found, last] if last else found


def terminator(code: str, threads: int) -> tuple:
    if code.startswith("ret"):
        rest = code[4:].strip()
        return ("ret", None if rest == "void" else typed(rest, threads))
    targets = re.findall(r"label %([\w.]+)", code)
    if len(targets) == 1:
        return ("br", None, targets[0])
    condition = re.match(r"br i1 (\S+),", code)
    assert condition
    return ("br", operand("i1", condition[1], threads), *targets)


def phi(code: str, threads: int) -> dict[str, Get]:
    kind = TYPE.match(code, 4)
    assert kind
    arms = re.findall(r"\[ (.*?), %([\w.]+) \]", code)
    return {label: operand(kind[0], value, threads) for value, label in arms}


def typed(text: str, threads: int) -> Get:
    """`i32 %x`."""
    found = ARGUMENT.match(text)
    assert found, text
    return operand(found[1], found[2], threads)


def operand(kind: str, text: str, threads: int) -> Get:
    if text.startswith("%"):
        return lambda env: env[text]
    if text == "@shared":
        return lambda env: np.full(threads, env["@"].base, np.int64)
    if kind.startswith("<"):
        n, element = kind[1:-1].split(" x ")
        inner = re.match(r"splat \(\w+ (.*)\)", text)
        if text.startswith("<"):
            columns = [literal(element, x.split()[-1]) for x in pieces(text[1:-1])]
            vector = np.stack([np.full(threads, c) for c in columns], 1)
        else:
            vector = np.full((threads, int(n)), literal(element, inner[1] if inner else text))
        return lambda env: vector
    if kind.startswith("{"):
        assert text in ("undef", "poison"), text
        return lambda env: [None] * len(pieces(kind[1:-1]))
    value = np.full(threads, literal(kind, text))
    return lambda env: value


def literal(kind: str, text: str) -> Any:
    dtype = TYPES[kind.split()[0]]
    if text in ("undef", "poison"):
        return np.full(1, 0x5A, np.uint8).repeat(dtype.itemsize).view(dtype)[0] if dtype.kind != "b" else np.bool_(True)
    if text in ("zeroinitializer", "null", "false"):
        return dtype.type(0)
    if text == "true":
        return np.bool_(True)
    if text.startswith(("0xH", "0xR")):
        return np.array([int(text[3:], 16)], np.uint16).view(dtype)[0]
    if text.startswith("0x"):
        return np.array([int(text[2:], 16)], np.uint64).view(np.float64)[0].astype(dtype)
    if dtype.kind == "i":
        return np.array([int(text) & (1 << 8 * dtype.itemsize) - 1], f"u{dtype.itemsize}").view(dtype)[0]
    if dtype.kind == "b":
        return np.bool_(int(text) & 1)
    return dtype.type(float(text))


# -- instructions ----------------------------------------------------------------------------------------------------------


def unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(np.uint8) if x.dtype.kind == "b" else x.view(f"u{x.dtype.itemsize}")


def signed_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = a // b
    return (quotient + ((a - quotient * b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def shift(function: Callable) -> Callable:
    """Shifts by the amount modulo the width; LLVM leaves larger shifts undefined."""
    return lambda a, b: function(a, (unsigned(b) % (8 * a.dtype.itemsize)).astype(a.dtype))


def modular(function: Callable) -> Callable:
    return lambda a, b: function(unsigned(a), unsigned(b)).astype(unsigned(a).dtype).view(a.dtype)


BINARY: dict[str, Callable] = {
    "add": modular(np.add), "sub": modular(np.subtract), "mul": modular(np.multiply), "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "sdiv": signed_divide, "srem": np.fmod,
    "udiv": modular(np.floor_divide), "urem": modular(np.fmod), "ashr": shift(np.right_shift),
    "lshr": lambda a, b: shift(np.right_shift)(unsigned(a), b).view(a.dtype),
    "shl": lambda a, b: shift(np.left_shift)(unsigned(a), b).view(a.dtype),
    "fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide,
}  # fmt: skip
COMPARE: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
CASTS = (
    "trunc",
    "zext",
    "sext",
    "fptrunc",
    "fpext",
    "sitofp",
    "uitofp",
    "fptosi",
    "fptoui",
    "bitcast",
    "ptrtoint",
    "inttoptr",
)
FLAGS = {
    "nsw",
    "nuw",
    "contract",
    "exact",
    "disjoint",
    "afn",
    "fast",
    "reassoc",
    "nnan",
    "ninf",
    "nsz",
    "arcp",
    "nneg",
    "volatile",
}


def instruction(code: str, threads: int) -> Get:
    code = re.sub(r"^tail ", "", code)
    name, _, rest = code.partition(" ")
    while rest.split(" ", 1)[0] in FLAGS:
        rest = rest.split(" ", 1)[1]
    if name in BINARY:
        first, second = pieces(rest)
        kind, a = split_type(first)
        x, y, function = operand(kind, a, threads), operand(kind, second, threads), BINARY[name]
        return lambda env: function(x(env), y(env))
    if name in CASTS:
        source, _, target = rest.rpartition(" to ")
        x = typed(source, threads)
        if name == "inttoptr" and "addrspace(3)" in target:
            return lambda env: shared_pointer(x(env), env["@"].base)
        return lambda env: cast(name, x(env), target)
    return OTHERS[name](rest, threads)


def shared_pointer(address: np.ndarray, base: int) -> np.ndarray:
    """Pointers to the shared memory at `base` from 32 bits of their addresses: on a GPU shared memory has addresses of 32 bits."""
    return base + ((address.astype(np.int64) - base) & 0xFFFFFFFF)


def split_type(text: str) -> tuple[str, str]:
    found = ARGUMENT.match(text)
    assert found, text
    return found[1], found[2]


def cast(name: str, x: np.ndarray, target: str) -> np.ndarray:
    if target.startswith("<"):
        dtype = TYPES[target[1:-1].split(" x ")[1]]
    else:
        dtype = TYPES[target.split()[0]]
    if name == "bitcast":
        columns = np.ascontiguousarray(x).reshape(len(x), -1).view(np.uint8).view(dtype)
        return columns if target.startswith("<") else columns[:, 0]
    if name == "zext" or name == "uitofp":
        x = unsigned(x)
    if dtype.kind == "b":
        return (x & 1).astype(bool)
    if name == "sext" and x.dtype.kind == "b":
        return -x.astype(dtype)
    if name == "fptoui":
        return x.astype(f"u{dtype.itemsize}").view(dtype)
    if name == "fptrunc" and x.dtype == np.float64 and target.split()[0] == "bfloat":
        return semantics.cast({}, types.bfloat16, x)  # rounded once, unlike in ml_dtypes
    return x.astype(dtype)


def comparison(rest: str, threads: int) -> Get:
    predicate, _, rest = rest.partition(" ")
    first, second = pieces(rest)
    kind, a = split_type(first)
    x, y = operand(kind, a, threads), operand(kind, second, threads)
    floats = TYPES[kind.split()[0]].kind == "f" or kind == "bfloat"
    if predicate in ("uno", "ord"):
        return lambda env: (np.isnan(x(env)) | np.isnan(y(env))) == (predicate == "uno")
    base = COMPARE[predicate if predicate in COMPARE else predicate[1:]]
    if floats:
        ordered = predicate[0] == "o"

        def compare(env: Env) -> np.ndarray:
            a, b = x(env), y(env)
            nan = np.isnan(a) | np.isnan(b)
            return base(a, b) & ~nan if ordered else base(a, b) | nan

        return compare
    if predicate[0] == "u" or kind == "i1":
        return lambda env: base(unsigned(x(env)), unsigned(y(env)))
    return lambda env: base(x(env), y(env))


def select(rest: str, threads: int) -> Get:
    c, x, y = (typed(p, threads) for p in pieces(rest))
    return lambda env: np.where(c(env), x(env), y(env))


def pointer(rest: str, threads: int) -> Get:
    rest = rest.removeprefix("inbounds ")
    element, base, index = pieces(rest)
    p, i, size = typed(base, threads), typed(index, threads), TYPES[element.split()[0]].itemsize
    return lambda env: p(env) + i(env).astype(np.int64) * size


class Slot:
    """A local variable of each thread."""

    def __init__(self) -> None:
        self.value: Any = None


def local(rest: str, threads: int) -> Get:
    return lambda env: Slot()


def memory_of(text: str) -> Callable[[Env], Memory]:
    return (lambda env: env["@"].shared) if "addrspace(3)" in text else (lambda env: env["@"].memory)


def load(rest: str, threads: int) -> Get:
    kind, address, align = pieces(rest)
    if found := re.fullmatch(r"ptr addrspace\(4\) (@\S+)", address):
        return lambda env: env["@"].constant(kind, found[1])
    p, where, alignment = typed(address, threads), memory_of(address), int(align.split()[1])
    n, element = kind[1:-1].split(" x ") if kind.startswith("<") else ("1", kind)
    dtype, count = TYPES[element], int(n)

    def step(env: Env) -> np.ndarray:
        if isinstance(slot := p(env), Slot):
            return slot.value
        on = env["@"].active
        data = where(env).load(p(env)[on], dtype.itemsize * count, alignment, rest, np.flatnonzero(on)).view(dtype)
        got = np.zeros((threads, count), dtype)
        got[on] = data
        return got if kind.startswith("<") else got[:, 0]

    return step


def store(rest: str, threads: int) -> Get:
    value, address, align = pieces(rest)
    x, p, where, alignment = typed(value, threads), typed(address, threads), memory_of(address), int(align.split()[1])

    def step(env: Env) -> None:
        if isinstance(slot := p(env), Slot):
            slot.value = np.where(env["@"].active, x(env), x(env) if slot.value is None else slot.value)
            return
        data = np.ascontiguousarray(x(env)).reshape(threads, -1).view(np.uint8)
        on = env["@"].active
        where(env).store(p(env)[on], data[on], alignment, rest, np.flatnonzero(on))

    return step


def extract(rest: str, threads: int) -> Get:
    aggregate, index = pieces(rest)
    x, i = typed(aggregate, threads), int(index.split()[-1])
    return lambda env: x(env)[:, i]


def insert(rest: str, threads: int) -> Get:
    aggregate, value, index = pieces(rest)
    x, v, i = typed(aggregate, threads), typed(value, threads), int(index.split()[-1])

    def step(env: Env) -> np.ndarray:
        result = x(env).copy()
        result[:, i] = v(env)
        return result

    return step


def extract_value(rest: str, threads: int) -> Get:
    aggregate, index = pieces(rest)
    x, i = typed(aggregate, threads), int(index)
    return lambda env: x(env)[i]


def negate(rest: str, threads: int) -> Get:
    x = typed(rest, threads)
    return lambda env: -x(env)


def call(rest: str, threads: int) -> Get:
    from fuzz import simt_calls

    return simt_calls.call(rest, threads)


OTHERS: dict[str, Callable[[str, int], Get]] = {
    "icmp": comparison, "fcmp": comparison, "select": select, "getelementptr": pointer, "load": load, "store": store,
    "alloca": local, "extractelement": extract, "insertelement": insert, "extractvalue": extract_value, "fneg": negate, "call": call,
}  # fmt: skip
