"""The calls in GPU code, for `simt`: intrinsics, inline PTX, tensor cores.

Fragments are written by hand from the PTX ISA ("Matrix fragments for mma.m16n8k..."), so that an error in the compiler's tables does not
repeat here. g is the lane's group (lane / 4), t its place in it (lane % 4).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from blocknb.language import semantics
from blocknb.language.types import from_numpy
from fuzz import simt_bulk, simt_numbers, simt_wgmma
from fuzz.simt import Env, Get, pieces, typed, unsigned

Indices = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]
# (row, column) of element i in A, (k, n) in B.
FRAGMENTS: dict[str, tuple[Indices, Indices, int, int, int]] = {
    # name: A, B, elements of A and of B per thread, K
    "m16n8k16": (
        lambda g, t, i: (g + 8 * (i >> 1 & 1), 2 * t + (i & 1) + 8 * (i >> 2)),
        lambda g, t, i: (2 * t + (i & 1) + 8 * (i >> 1), g), 8, 4, 16,
    ),
    "m16n8k8": (
        lambda g, t, i: (g + 8 * (i >> 1), 2 * t + (i & 1)),
        lambda g, t, i: (2 * t + i, g), 4, 2, 8,
    ),
    "m16n8k8.tf32": (
        lambda g, t, i: (g + 8 * (i & 1), t + 4 * (i >> 1)),
        lambda g, t, i: (t + 4 * i, g), 4, 2, 8,
    ),
    "m16n8k32": (
        lambda g, t, i: (g + 8 * (i >> 2 & 1), 4 * t + (i & 3) + 16 * (i >> 3)),
        lambda g, t, i: (4 * t + (i & 3) + 16 * (i >> 2), g), 16, 8, 32,
    ),
}  # fmt: skip
ELEMENTS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "s8": np.int8}


def call(rest: str, threads: int) -> Get:
    kind = r"(?:<\d+ x \w+>|\{.*?\}|[\w ]+?)"
    if found := re.match(kind + r' asm (?:sideeffect )?"(.*?)", "(.*?)"\((.*)\)(?: #\d+)?$', rest):
        return assembly(found[1], found[2], [typed(p, threads) for p in pieces(found[3])], threads)
    found = re.match(kind + r" @([\w.]+)\((.*)\)(?: #\d+)?$", rest)
    assert found, rest
    name, args = found[1], [typed(p, threads) for p in pieces(found[2])]
    for pattern, function in INTRINSICS.items():
        if match := re.fullmatch(pattern, name):
            return lambda env: function(env, match, *(a(env) for a in args))
    assert not name.startswith("llvm."), f"simt does not know {name}"
    return lambda env: env["@"].call(env["@"].functions[name], [a(env) for a in args])


# -- intrinsics ------------------------------------------------------------------------------------------------------------


def plain(function: Callable) -> Callable:
    return lambda env, match, *args: np.asarray(function(*args)).astype(args[0].dtype)


def wide(function: Callable) -> Callable:
    """Computed in float64 and rounded."""
    return lambda env, match, x, *rest: function(x.astype(np.float64), *(r.astype(np.float64) for r in rest)).astype(
        x.dtype
    )


def flushed(function: Callable) -> Callable:
    """As `wide`, with subnormal fp32 results flushed to zero."""

    def run(env: Env, match: re.Match, x: np.ndarray) -> np.ndarray:
        found = function(x.astype(np.float64))
        return np.where(np.abs(found) < 2.0**-126, 0.0, found).astype(x.dtype)

    return run


def fused(env: Env, match: re.Match, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    dtype = from_numpy(a.dtype)
    return semantics.fma({}, dtype, a, b, c).astype(a.dtype)


def permuted_bytes(env: Env, match: re.Match, a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
    """prmt without a mode: each nibble of the selector names a byte of a (0 to 3) or b (4 to 7)."""
    both = np.stack([a, b], 1).astype(np.int32).view(np.uint8)
    chosen = [both[np.arange(len(both)), selector >> 4 * i & 7] for i in range(4)]
    return np.stack(chosen, 1).view(np.int32)[:, 0]


def register(env: Env, match: re.Match, *_: Any) -> np.ndarray:
    machine = env["@"]
    name, _, axis = match[1].partition(".")
    if name == "clock":  # any number, another in each thread
        return machine.ids.astype(np.int32) * 77 + 12345
    (x, y, z), (across, *others), together = machine.program, machine.sizes, machine.together
    values = {
        "tid": (machine.ids, x % together, 0), "ntid": (machine.all, together, 1),
        "ctaid": (x // together, y, z), "nctaid": (across // together, *others),
    }  # fmt: skip
    return np.broadcast_to(np.asarray(values[name]["xyz".index(axis)], np.int32), machine.threads)


def shuffle(env: Env, match: re.Match, mask: Any, x: np.ndarray, other: np.ndarray, clamp: Any) -> np.ndarray:
    thread = np.arange(len(x))
    lane = thread % 32 ^ other if match[1] == "bfly" else other % 32
    return x[thread // 32 * 32 + lane]


def matrix(env: Env, match: re.Match, address: np.ndarray) -> Any:
    """ldmatrix: matrix i has its rows at the addresses of lanes 8 i to 8 i + 7."""
    count, transposed = int(match[1]), bool(match[2])
    thread = np.arange(len(address))
    lane, first = thread % 32, thread // 32 * 32
    results = []
    for i in range(count):
        if transposed:  # elements of rows 2 t and 2 t + 1 in column g
            halves = []
            for half in range(2):
                row = address[first + 8 * i + 2 * (lane % 4) + half]
                whole = env["@"].shared.load(row, 16, 16, match[0], thread).view(np.int16)
                halves.append(whole[np.arange(len(lane)), lane // 4])
            results.append(np.stack(halves, 1).view(np.int32)[:, 0])
        else:
            whole = env["@"].shared.load(address[first + 8 * i + lane // 4], 16, 16, match[0], thread).view(np.int32)
            results.append(whole[np.arange(len(lane)), lane % 4])
    return results[0] if count == 1 else results


def warp_barrier(env: Env, match: re.Match, mask: Any) -> None:
    for memory in (env["@"].memory, env["@"].shared):
        memory.watch.warp_barrier()


def store_matrix(env: Env, match: re.Match, address: np.ndarray, *words: np.ndarray) -> None:
    """stmatrix, the inverse of ldmatrix."""
    thread, machine = np.arange(len(address)), env["@"]
    lane, first = thread % 32, thread // 32 * 32
    for i, word in enumerate(words):
        halves = np.ascontiguousarray(word).view(np.int16).reshape(-1, 2)
        for half in range(2):
            row, column = (2 * (lane % 4) + half, lane // 4) if match[2] else (lane // 4, 2 * (lane % 4) + half)
            where, data = address[first + 8 * i + row], halves[:, half : half + 1].copy().view(np.uint8)
            if (where % 16).any():
                raise ValueError(f"a row of a matrix that is no multiple of 16 bytes: {match[0]}")
            machine.shared.store(where + 2 * column, data, 2, match[0], thread)


def copy_async(text: str, args: list[Get], threads: int) -> Get:
    """cp.async: the bytes are read now and arrive at the wait; the destination is invalid until then."""
    where, last = r"\[\$(\d)(?:\+(-?\d+))?\]", r", \$\d(?=;)" if HINTED in text else ""
    ptx = rf"(?:@\$(\d) )?cp\.async\.c[ag]\.shared\.global(?:{HINTED})? {where}, {where}, (\d+)(?:, \$(\d))?{last};"
    found = re.fullmatch(ptx, text)
    assert found, f"simt does not know {text}"
    size = int(found[6])

    def step(env: Env) -> None:
        machine = env["@"]
        target, source = (args[int(found[i])](env) + int(found[i + 1] or 0) for i in (2, 4))
        on = args[int(found[1])](env) if found[1] else np.ones(threads, bool)
        whole = on & ~args[int(found[7])](env) if found[7] else on
        data = np.zeros((threads, size), np.uint8)
        data[whole] = machine.memory.load(source[whole], size, size, text, np.flatnonzero(whole))
        who = np.flatnonzero(on)
        machine.shared.store(target[on], np.full((len(who), size), 0xA5, np.uint8), size, text, who)
        machine.copies[-1].append((target[on], data[on], size, text, who))

    return step


def commit(env: Env, match: re.Match) -> None:
    env["@"].copies.append([])


def wait(env: Env, match: re.Match, pending: np.ndarray) -> None:
    machine = env["@"]
    while len(machine.copies) - 1 > pending[0]:
        for copied in machine.copies.pop(0):
            machine.shared.store(*copied)


def leading_zeros(env: Env, match: re.Match, x: np.ndarray, *_: Any) -> np.ndarray:
    return np.array([8 * x.itemsize - int(v).bit_length() for v in unsigned(x)], x.dtype)


def extremum(function: Callable) -> Callable:
    return lambda env, match, a, b: function(unsigned(a), unsigned(b)).view(a.dtype)


EIGHT = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def saturated(low: np.ndarray, high: np.ndarray, name: str) -> np.ndarray:
    """Two numbers as 8-bit floats packed in an i16; too large numbers saturate, a NaN is 0x7F."""
    both = np.stack((low, high), 1).astype(np.float32)
    most = float(ml_dtypes.finfo(EIGHT[name]).max)
    bits = np.clip(both, -most, most).astype(EIGHT[name]).view(np.uint8)
    return np.where(np.isnan(both), np.uint8(0x7F), bits).astype(np.uint8).view(np.int16)[:, 0]


INTRINSICS: dict[str, Callable] = {
    r"llvm\.nvvm\.read\.ptx\.sreg\.(.*)": register,
    r"llvm\.nvvm\.barrier\.cta\.sync\.aligned\.all": lambda env, match, _: env["@"].barrier(),
    r"llvm\.nvvm\.barrier\.cta\.sync\.aligned\.count": lambda env, match, _, n: env["@"].barrier(int(n[0])),
    r"llvm\.nvvm\.prmt": permuted_bytes,
    r"llvm\.nvvm\.elect\.sync": simt_bulk.elect,
    r"llvm\.nvvm\.bar\.warp\.sync": warp_barrier,
    r"llvm\.nvvm\.cp\.async\.commit\.group": commit, r"llvm\.nvvm\.cp\.async\.wait\.group": wait,
    r"llvm\.nvvm\.shfl\.sync\.(bfly|idx)\.i32": shuffle,
    r"llvm\.nvvm\.stmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16\.p3": store_matrix,
    r"llvm\.nvvm\.ldmatrix\.sync\.aligned\.m8n8\.x(\d)(\.trans)?\.b16\.p3": matrix,
    r"llvm\.smin\..*": plain(np.minimum), r"llvm\.smax\..*": plain(np.maximum),
    r"llvm\.umin\..*": extremum(np.minimum), r"llvm\.umax\..*": extremum(np.maximum),
    r"llvm\.abs\..*": lambda env, match, x, _: np.abs(x),
    r"llvm\.fabs\..*": plain(np.abs), r"llvm\.floor\..*": plain(np.floor), r"llvm\.ceil\..*": plain(np.ceil),
    r"llvm\.trunc\..*": plain(np.trunc), r"llvm\.rint\..*": plain(np.rint), r"llvm\.sqrt\..*": wide(np.sqrt),
    r"llvm\.(max|min)imum(num)?\..*": simt_numbers.extreme, r"llvm\.copysign\..*": plain(np.copysign),
    r"llvm\.fma\..*": fused, r"llvm\.nvvm\.div\.full": plain(np.divide),
    r"llvm\.nvvm\.ex2\.approx\.f": wide(np.exp2), r"llvm\.nvvm\.rsqrt\.approx\.f": wide(lambda x: 1 / np.sqrt(x)),
    r"llvm\.nvvm\.ex2\.approx\.ftz\.f": flushed(np.exp2),
    r"llvm\.nvvm\.saturate\.f": plain(lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1)),
    r"llvm\.nvvm\.lg2\.approx\.f": wide(np.log2), r"llvm\.ctlz\..*": leading_zeros,
    r"llvm\.nvvm\.(e[45]m[23])x2\.to\.f16x2\.rn": lambda env, match, x: (
        x.view(np.uint8).reshape(-1, 2).view(EIGHT[match[1]]).astype(np.float16)
    ),
    r"llvm\.nvvm\.ff\.to\.(e[45]m[23])x2\.rn": lambda env, match, high, low: saturated(low, high, match[1]),
    r"llvm\.nvvm\.f16x2\.to\.(e[45]m[23])x2\.rn": lambda env, match, x: saturated(x[:, 0], x[:, 1], match[1]),
    r"llvm\.nvvm\.[fd]2(u?)(i|ll)\.rz": simt_numbers.intrinsic,
    r"llvm\.roundeven\..*": plain(np.rint), r"llvm\.nvvm\.rcp\.approx\.ftz\.f": wide(lambda x: 1 / x),
}  # fmt: skip


# -- inline PTX ------------------------------------------------------------------------------------------------------------


HINTED = ".L2::cache_hint"
#: What `createpolicy.fractional` gives for a fraction of 1.0 (CUTLASS, `TMA::CacheHintSm90`).
POLICIES = {"evict_first": 0x12F0000000000000, "evict_last": 0x14F0000000000000}


def assembly(text: str, constraints: str, args: list[Get], threads: int) -> Get:
    """A statement of inline PTX. The last operand of an access with a cache hint must be a policy, and that of L1 if the text has one."""
    step = statement(text, constraints, args, threads)
    if HINTED not in text:
        return step
    last, l1 = re.findall(r"\$(\d+)", text.split(" //")[0])[-1], re.search(r"\.L1::(\w+)", text)
    policy = args[int(last) - constraints.count("=")]
    valid = {POLICIES[l1[1]]} if l1 else {*POLICIES.values()}

    def checked(env: Env) -> Any:
        if not {int(x) for x in np.unique(policy(env))} <= valid:
            raise ValueError(f"an operand that is not the policy of {text}")
        return step(env)

    return checked


def statement(text: str, constraints: str, args: list[Get], threads: int) -> Get:
    if text.startswith("mma.sync"):
        return multiply(text, args)
    if "wgmma." in text:
        return simt_wgmma.block(text, constraints, args, threads)
    if text.startswith(("shl.", "shr.")):
        return lambda env: simt_numbers.shifted(text, args[0](env), args[1](env))
    if text.startswith("cvt.rzi."):
        return lambda env: simt_numbers.conversion(text, args[0](env))
    if text.startswith("cvt.rna.tf32.f32"):
        return lambda env: nearest_tf32(args[0](env))
    if not text and constraints == "=r,0,l":
        return args[0]
    if (known := simt_bulk.assembly(text, args, threads)) is not None:
        return known
    if text == "fence.proxy.async.shared::cta;":
        return lambda env: env["@"].shared.unseen.fill(False)
    if text.startswith(("fence.", "pmevent ", "{ .reg .pred never;")):  # the last one: see `loop_operands`
        return lambda env: None
    if "cp.async." in text:
        return copy_async(text, args, threads)
    if re.match(r"(@\$\d+ )?red\.\w+\.\w+\.global\.add\.v\d\.", text):
        return add_vector(text, args, threads)
    if re.match(r"(@\$\d+ )?(red|atom)\.", text):
        return atomic(text, constraints, args, threads)
    found = re.fullmatch(r"(?:@\$(\d+) )?(ld|st)(?:\.volatile)?\.global[\w.:]*?(?:\.v(\d))?\.b(\d+) (.*);", text)
    assert found, f"simt does not know {text}"
    outputs = constraints.count("=")
    hinted = int(HINTED in text)  # the last operand is the policy
    address = re.search(r"\[\$(\d+)(?:\+(-?\d+))?\]", text)
    assert address
    where, offset = args[int(address[1]) - outputs], int(address[2] or 0)
    guard = args[int(found[1]) - outputs] if found[1] else None
    count, size = int(found[3] or 1), int(found[4]) // 8

    def active(env: Env) -> np.ndarray:
        return np.ones(threads, bool) if guard is None else guard(env)

    if found[2] == "ld":
        defaults = args[len(args) - outputs - hinted : len(args) - hinted] if guard else []
        return lambda env: read(env, text, where(env) + offset, active(env), [d(env) for d in defaults], count, size)
    numbers = [int(n) for n in re.findall(r"\$(\d+)", found[5].split("],")[1])]
    numbers = numbers[: len(numbers) - hinted]
    values = [args[n] for n in numbers]

    def write(env: Env) -> None:
        on = active(env)
        columns = [np.ascontiguousarray(v(env)).reshape(threads, 1).view(np.uint8)[:, :size] for v in values]
        data = np.concatenate(columns, 1)
        env["@"].memory.store((where(env) + offset)[on], data[on], size * count, text, np.flatnonzero(on))

    return write


UPDATES: dict[str, Callable] = {
    "add": lambda a, b: a + b, "min": min, "max": max, "and": lambda a, b: a & b, "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b, "exch": lambda a, b: b,
}  # fmt: skip


def atomic(text: str, constraints: str, args: list[Get], threads: int) -> Get:
    """`red` and `atom`, one thread after another."""
    found = re.search(r"\.global\.(\w+)(?:\.noftz)?\.(\w)(\w*?)(\d+) (?:\$0, )?\[\$\d+(?:\+(-?\d+))?\]", text)
    assert found, f"simt does not know {text}"
    letters = {"s": f"int{found[4]}", "u": f"uint{found[4]}", "b": f"int{found[4]}", "f": f"float{found[4]}"}
    bfloat = found[2] + found[3] == "bf"
    dtype = np.dtype(ml_dtypes.bfloat16) if bfloat else np.dtype(letters[found[2]])
    guarded, returns = text.startswith("@"), constraints.startswith("=")
    operands = 2 if found[1] == "cas" else 1

    def step(env: Env) -> np.ndarray | None:
        values = [a(env) for a in args]
        address = values[0] + int(found[5] or 0)
        on = values[1 + operands] if guarded else np.ones(threads, bool)
        old = values[2 + operands].copy() if guarded and returns else values[1].copy()
        new = [np.ascontiguousarray(v).view(dtype) for v in values[1 : 1 + operands]]
        memory = env["@"].memory
        for i in np.flatnonzero(on):
            place = memory.places(address[i : i + 1], dtype.itemsize, dtype.itemsize, text)[0]
            memory.watch.access(place[None], np.array([i]), text, write=True, atomic=True)
            before = memory.bytes[place].view(dtype)[0]
            if found[1] == "cas":
                after = new[1][i] if before == new[0][i] else before
            else:
                after = UPDATES[found[1]](before, new[0][i])
            memory.bytes[place] = np.array([after], dtype).view(np.uint8)
            old[i] = np.array([before]).view(old.dtype)[0]
        return old if returns else None

    return step


def add_vector(text: str, args: list[Get], threads: int) -> Get:
    """`red` of several contiguous fp32 numbers."""
    found = re.fullmatch(r"(?:@\$\d+ )?red\.\w+\.\w+\.global\.add\.v(\d)\.f32 \[\$0(?:\+(-?\d+))?\], \{(.*)\};", text)
    assert found, f"simt does not know {text}"
    count, guarded = int(found[1]), text.startswith("@")
    assert found[3] == ", ".join(f"${1 + i}" for i in range(count))

    def step(env: Env) -> None:
        address, *values = (a(env) for a in args)
        address = address + int(found[2] or 0)
        on = values.pop() if guarded else np.ones(threads, bool)
        numbers = np.stack([np.ascontiguousarray(v).view(np.float32) for v in values], 1)
        memory = env["@"].memory
        for i in np.flatnonzero(on):
            place = memory.places(address[i : i + 1], 4 * count, 4 * count, text)[0]
            memory.watch.access(place[None], np.array([i]), text, write=True, atomic=True)
            memory.bytes[place] = (memory.bytes[place].view(np.float32) + numbers[i]).view(np.uint8)

    return step


def read(
    env: Env, text: str, address: np.ndarray, on: np.ndarray, defaults: Sequence[np.ndarray], count: int, size: int
) -> Any:
    data = env["@"].memory.load(address[on], size * count, size * count, text, np.flatnonzero(on))
    dtype = {1: np.int32, 2: np.int16, 4: np.int32, 8: np.int64}[size]
    results = []
    for i in range(count):
        value = defaults[i].copy() if defaults else np.full(len(on), 0x5A5A, dtype)
        value[on] = np.ascontiguousarray(data[:, i * size : (i + 1) * size]).view(f"u{size}")[:, 0].astype(dtype)
        results.append(value)
    return results[0] if count == 1 else results


def nearest_tf32(x: np.ndarray) -> np.ndarray:
    """To nearest, ties away from zero; infinities and NaN stay."""
    rounded = (x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), rounded, x.view(np.uint32)).view(np.int32)


def multiply(text: str, args: list[Get]) -> Get:
    found = re.match(r"mma\.sync\.aligned\.(m\d+n8k\d+)\.row\.col\.(\w+)\.(\w+)\.\w+\.\w+ ", text)
    assert found, text
    name = found[1] + (".tf32" if found[3] == "tf32" else "")
    in_a, in_b, size_a, size_b, depth = FRAGMENTS[name]
    element = np.dtype(ELEMENTS[found[3]])
    words_a, words_b = size_a * element.itemsize // 4, size_b * element.itemsize // 4
    dtype = np.int32 if found[2] == "s32" else np.float32

    def step(env: Env) -> list[np.ndarray]:
        values = [a(env) for a in args]
        threads = len(values[0])
        warp, lane = np.arange(threads) // 32, np.arange(threads) % 32
        g, t = lane // 4, lane % 4
        a, b, c = (np.zeros((threads // 32, *shape)) for shape in ((16, depth), (depth, 8), (16, 8)))
        first = np.stack(values[:words_a], 1).view(element)
        second = np.stack(values[words_a : words_a + words_b], 1).view(element)
        for i in range(size_a):
            a[(warp, *in_a(g, t, i))] = first[:, i]
        for i in range(size_b):
            b[(warp, *in_b(g, t, i))] = second[:, i]
        places = [(warp, g + 8 * (i >> 1), 2 * t + (i & 1)) for i in range(4)]
        for place, value in zip(places, values[words_a + words_b :], strict=True):
            c[place] = value
        product = a @ b + c
        return [product[place].astype(dtype) for place in places]

    return step
