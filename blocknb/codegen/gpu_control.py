"""Control flow of the GPU code generator: loops and branches, every register that they carry a phi.

A phi's line stands before its edges are known, so the lines of a loop's phis have a chunk of their own, which is filled at its end.
What a loop loads for its next trip is carried in the words in which it arrives: taken apart, halves would need a register each, and
to take them apart is to wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from blocknb.codegen import gpu_memory, gpu_roles
from blocknb.codegen.gpu_math import llvm_type
from blocknb.ir.core import Op, Value, walk
from blocknb.layouts import wgmma

if TYPE_CHECKING:
    from blocknb.codegen.gpu import Generator


#: Sums a thread, and ops with them behind their loop, above which ptxas spills where the sums are set to zero behind a branch: it begins
#: with all of them at once.
MANY_SUMS, MANY_OPS = 64, 5
#: Accesses to global memory in one basic block above which it is split: ptxas compares each with all before it.
MANY_ACCESSES = 256


def split(g: Generator, number: str = "") -> None:
    """Ends a basic block with a branch that is never taken, and of which neither LLVM nor ptxas knows that: n * (n + 1) is even.

    Within a block ptxas puts a load as late as its use allows, and what is loaded for the next trip is not used in this one: it
    would be issued when the trip has done its work. Past the end of a block it does not go. `number` is n, else the clock, which takes
    longer to read.
    """
    odd = g.emit(f"icmp ne i32 {unknown_zero(g, number)}, 0")
    never, on = g.new_label("never"), g.new_label("on")
    g.do(f"br i1 {odd}, label %{never}, label %{on}")
    g.start(never)
    g.do("ret void")
    g.start(on)


def split_if(g: Generator, rare: str) -> None:
    """Ends a basic block while products of wgmma are under way, for which ptxas would wait before the program could end (as it could in
    `split`): by an instruction that nobody else has a use for, and that is harmless where the condition, a rare one, holds."""
    seldom, on = g.new_label("seldom"), g.new_label("on")
    g.do(f"br i1 {rare}, label %{seldom}, label %{on}")
    g.start(seldom)
    g.do('call void asm sideeffect "pmevent 1;", ""()')
    g.do(f"br label %{on}")
    g.start(on)


def unknown_zero(g: Generator, number: str = "") -> str:
    """A zero of which neither LLVM nor ptxas knows that it is one."""
    n = number or g.call("i32", "llvm.nvvm.read.ptx.sreg.clock")
    product = g.emit(f"mul i32 {n}, {g.emit(f'add i32 {n}, 1')}")
    return g.emit(f"and i32 {product}, 1")


def turn(g: Generator) -> str:
    """A number that is another one in each trip and thread: the index alone would tell LLVM that it counts."""
    kind, index = g.indices[-1]
    return g.emit(f"xor i32 %tid, {g.emit(f'trunc i64 {index} to i32') if kind == 'i64' else index}")


def phis(g: Generator, values: Sequence[Value]) -> list[list[str]]:
    """Names for the registers of carried values; the phi lines themselves are written when all edges are known."""
    return [[g.name() for _ in range(g.num_registers(v))] for v in values]


def write_phis(
    g: Generator,
    sink: list[str],
    values: Sequence[Value],
    names: Sequence[Sequence[str]],
    edges: Sequence[tuple[str, Sequence[Sequence[str]]]],
) -> None:
    for i, (value, own) in enumerate(zip(values, names, strict=True)):
        kind = llvm_type(value.type.dtype)
        for r, name in enumerate(own):
            arms = ", ".join(f"[ {incoming[i][r]}, %{label} ]" for label, incoming in edges)
            sink.append(f"  {name} = phi {kind} {arms}")


Words = tuple[tuple[int, ...], ...]


def arriving(g: Generator, op: Op) -> dict[int, Words]:
    """The carried values of a loop, by number, that are loads before it and in it (or those of another trip, passed on), in the same
    words of several registers each."""
    body = op.blocks[0]
    number = {value: i for i, value in enumerate(body.args[1:])}
    found: dict[int, Words] = {}
    for i, first in enumerate(op.args[3:]):
        words = words_of(g, first)
        if any(len(word) > 1 for word in words):
            found[i] = words
    inside = {x.result for x in body.ops if x.name == "load"}
    while True:
        kept = {}
        for i, words in found.items():
            after = body.terminator.args[i]
            same = words_of(g, after) if after in inside else found.get(number.get(after, -1))
            if same == words:
                kept[i] = words
        if len(kept) == len(found):
            return kept
        found = kept


def multiplied(g: Generator, op: Op) -> dict[int, Words]:
    """The carried values of a loop, by number, of 16-bit floats that only wgmma uses, in the words that it reads."""
    found: dict[int, Words] = {}
    for i, (inner, outer) in enumerate(zip(op.blocks[0].args[1:], op.results, strict=True)):
        users = [*g.users.get(inner, ()), *g.users.get(outer, ())]
        if users and all(user.attrs.get("registers") and place == 0 for user, place in users):
            count = g.num_registers(inner) if inner.type.dtype.bits == 16 else 0
            found |= {i: tuple((r, r + 1) for r in range(0, count, 2))} if count else {}
    return found


def words_of(g: Generator, value: Value) -> Words:
    """The words in which a load brings its value; none for anything else."""
    op = g.defs.get(value)
    if op is None or op.name != "load" or value in g.streamed:
        return ()
    bits = gpu_memory.memory_bits(value.type.dtype)
    return tuple(word for registers in gpu_memory.accesses(g.facts, op) for word in gpu_memory.split(registers, bits))


def carry_words(
    g: Generator,
    sink: list[str],
    value: Value,
    words: Words,
    names: Sequence[str],
    edges: Sequence[tuple[str, Value]],
) -> None:
    """The phi lines of a value that is carried in words; `edges` are the labels with what comes from there."""
    bits = gpu_memory.memory_bits(value.type.dtype)
    for word, name in zip(words, names, strict=True):
        arms = ", ".join(f"[ {g.words[source][word]}, %{label} ]" for label, source in edges)
        sink.append(f"  {name} = phi i{bits * len(word)} {arms}")


def begun(g: Generator, op: Op) -> set[int]:
    """The carried values of a loop, by number, that are nothing at first and of which nothing is done but to add a product by wgmma: in the
    first trip that does not read them."""
    found: set[int] = set()
    body = op.blocks[0]
    # in a loop that the kernel itself makes over tiles, ptxas would set the next sums to zero before the wait for these (C7514)
    over_tiles = bool(g.indices) and gpu_roles.find(g.func) is not None and not g.func.attrs.get("persistent")
    if (
        not (gpu_roles.is_alone(g.func) or over_tiles)
        or op.args[0].type.dtype.bits != 32
        or sum(x.name == "dot" for x in walk(body)) != 1
    ):
        return found  # of several products ptxas would run one after the other (C7515), and elsewhere it spills
    for i, (first, inner) in enumerate(zip(op.args[3:], body.args[1:], strict=True)):
        made, users = g.defs.get(first), g.users.get(inner, ())
        if made is None or made.name != "const" or made.attrs["value"] or len(users) != 1:
            continue
        if g.num_registers(inner) > MANY_SUMS and following(g, op.results[i]) > MANY_OPS:
            continue
        user, place = users[0]
        if user.name == "dot" and place == 2 and user in body.ops and wgmma.is_name(user.attrs.get("instr", "")):
            found.add(i)
    return found


def following(g: Generator, value: Value) -> int:
    """How many ops compute with a tile and with what comes of it, each vector that they take counted, too: it is held beside the sums."""
    todo, seen = [value], set[Op]()
    vectors = set[Value]()
    while todo:
        for user, _ in g.users.get(todo.pop(), ()):
            tiles = [x for x in user.results if getattr(x.type, "shape", None) == value.type.shape]
            if user not in seen and tiles:
                seen.add(user)
                todo += tiles
                vectors.update(x for x in user.args if x in g.defs and g.defs[x].name == "broadcast")
    return sum(op.name not in ("dot_wait", "cast", "convert") for op in seen) + len(vectors)


def loop_for(g: Generator, op: Op) -> None:
    worded, words, fresh = arriving(g, op), multiplied(g, op), begun(g, op)
    if fresh and not worded and not words:
        loop_begun(g, op, fresh)
        return
    lower, upper, step = (g.reg(v) for v in op.args[:3])
    kind, body = llvm_type(op.args[0].type.dtype), op.blocks[0]
    plain = [i for i in range(len(op.results)) if i not in worded and i not in words]
    values = [body.args[0], *(body.args[1 + i] for i in plain)]
    initial, before = [[lower], *(g.regs(op.args[3 + i]) for i in plain)], g.label
    header, inside, done = (g.new_label(x) for x in ("for", "body", "done"))
    carried = phis(g, values)
    packed = {i: [g.name() for _ in found] for i, found in worded.items()}
    named = {i: [g.name() for _ in found] for i, found in words.items()}
    first = {i: [gpu_memory.word(g, op.args[3 + i], x) for x in found] for i, found in words.items()}
    g.do(f"br label %{header}")
    g.start(header)
    phi_sink = g.open_chunk()
    g.open_chunk()
    more = in_range(g, kind, carried[0][0], upper, step, op.args[2])
    g.do(f"br i1 {more}, label %{inside}, label %{done}")
    g.start(inside)
    for value, names in zip(values, carried, strict=True):
        g.set(value, names)
    for i, names in packed.items():
        gpu_memory.arrive(g, g.defs[op.args[3 + i]], dict(zip(worded[i], names, strict=True)), body.args[1 + i])
    for i, names in named.items():
        g.words[body.args[1 + i]] = g.words[op.results[i]] = dict(zip(words[i], names, strict=True))
    g.indices.append((kind, carried[0][0]))
    g.block(body)
    g.indices.pop()
    following_words = {i: [gpu_memory.word(g, body.terminator.args[i], x) for x in found] for i, found in words.items()}
    following = [
        [g.emit(f"add i{op.args[0].type.dtype.bits} {carried[0][0]}, {step}")],
        *(g.regs(body.terminator.args[i]) for i in plain),
    ]
    latch = g.label
    g.do(f"br label %{header}")
    write_phis(g, phi_sink, values, carried, [(before, initial), (latch, following)])
    for i, names in named.items():
        for name, start, after in zip(names, first[i], following_words[i], strict=True):
            phi_sink.append(f"  {name} = phi i32 [ {start}, %{before} ], [ {after}, %{latch} ]")
    for i, names in packed.items():
        edges = [(before, op.args[3 + i]), (latch, body.terminator.args[i])]
        carry_words(g, phi_sink, body.args[1 + i], worded[i], names, edges)
    g.open_chunk()
    g.start(done)
    for i, names in zip(plain, carried[1:], strict=True):
        g.set(op.results[i], names)
    for i, names in packed.items():
        if op.results[i] in g.users:  # under names of their own: what the body took apart is not there on every path
            bits = gpu_memory.memory_bits(op.results[i].type.dtype)
            kinds = [f"i{bits * len(word)}" for word in worded[i]]
            again = [g.emit(f"bitcast {kind} {name} to {kind}") for kind, name in zip(kinds, names, strict=True)]
            gpu_memory.arrive(g, g.defs[op.args[3 + i]], dict(zip(worded[i], again, strict=True)), op.results[i])


def loop_begun(g: Generator, op: Op, fresh: set[int]) -> None:
    """A loop with `fresh` sums, which nobody sets to zero. Without a trip they are zeros: behind the wait, where products outlast it."""
    (lower, upper, step), body = (g.reg(v) for v in op.args[:3]), op.blocks[0]
    zeros = [g.regs(value) for value in op.args[3:]]
    initial = [["undef"] * len(names) if i in fresh else names for i, names in enumerate(zeros)]
    inside, none, done = (g.new_label(x) for x in ("body", "none", "done"))
    carried, before = phis(g, body.args), g.label
    some = in_range(g, "i32", lower, upper, step, op.args[2])
    g.do(f"br i1 {some}, label %{inside}, label %{none}")
    g.start(inside)
    phi_sink = g.open_chunk()
    g.open_chunk()
    for value, names in zip(body.args, carried, strict=True):
        g.set(value, names)
    trips = g.emit(f"sub i32 {carried[0][0]}, {lower}")
    g.begun.update((body.args[1 + i], trips) for i in fresh)
    g.indices.append(("i32", carried[0][0]))
    g.block(body)
    g.indices.pop()
    index = g.emit(f"add i32 {carried[0][0]}, {step}")
    following, more = [g.regs(v) for v in body.terminator.args], in_range(g, "i32", index, upper, step, op.args[2])
    latch = g.label
    g.do(f"br i1 {more}, label %{inside}, label %{done}")
    write_phis(g, phi_sink, body.args, carried, [(before, [[lower], *initial]), (latch, [[index], *following])])
    g.open_chunk()
    g.start(none)
    late = {i for i in fresh if any(user.name == "dot_wait" for user, _ in g.users.get(op.results[i], ()))}
    g.unset.update((op.results[i], some) for i in late)
    g.do(f"br label %{done}")
    g.start(done)
    merged = phis(g, op.results)
    ends = [initial[i] if i in late else names for i, names in enumerate(zeros)]
    write_phis(g, g.sink, op.results, merged, [(latch, following), (none, ends)])
    for value, names in zip(op.results, merged, strict=True):
        g.set(value, names)
    g.open_chunk()


def set_to_zero(g: Generator, values: Sequence[Value], some: str) -> None:
    """Sets tiles to zero unless there was `some` trip of the loop that would have set them."""
    none, done = g.new_label("none"), g.new_label("done")
    before, had = g.label, [g.regs(value) for value in values]
    g.do(f"br i1 {some}, label %{done}, label %{none}")
    g.start(none)
    zero = unknown_zero(g)  # a constant would be set before it is asked whether to, and once for each register
    kinds = {
        kind: g.emit(f"bitcast i32 {zero} to {kind}") for kind in {llvm_type(value.type.dtype) for value in values}
    }
    g.do(f"br label %{done}")
    g.start(done)
    merged = phis(g, values)
    zeros = [[kinds[llvm_type(value.type.dtype)]] * len(names) for value, names in zip(values, had, strict=True)]
    write_phis(g, g.sink, values, merged, [(before, had), (none, zeros)])
    for value, names in zip(values, merged, strict=True):
        g.set(value, names)
    g.open_chunk()


def in_range(g: Generator, kind: str, index: str, upper: str, step: str, value: Value) -> str:
    """Whether a loop goes on: below the bound for a positive step, above it for a negative one."""
    signed = "s" if value.type.dtype.kind == "int" else "u"
    op = g.defs.get(value)
    if op is not None and op.name == "const":
        return g.emit(f"icmp {signed}{'lt' if op.attrs['value'] > 0 else 'gt'} {kind} {index}, {upper}")
    up, down = (g.emit(f"icmp {signed}{pred} {kind} {index}, {upper}") for pred in ("lt", "gt"))
    rising = g.emit(f"icmp sgt {kind} {step}, 0")
    return g.emit(f"select i1 {rising}, i1 {up}, i1 {down}")


def loop_while(g: Generator, op: Op) -> None:
    test, body = op.blocks
    initial, before = [g.regs(v) for v in op.args], g.label
    header, inside, done = (g.new_label(x) for x in ("while", "body", "done"))
    carried = phis(g, test.args)
    g.do(f"br label %{header}")
    g.start(header)
    phi_sink = g.open_chunk()
    g.open_chunk()
    for value, names in zip(test.args, carried, strict=True):
        g.set(value, names)
    g.block(test)
    passed = [g.regs(v) for v in test.terminator.args[1:]]
    g.do(f"br i1 {g.reg(test.terminator.args[0])}, label %{inside}, label %{done}")
    g.start(inside)
    for value, names in zip(body.args, passed, strict=True):
        g.set(value, names)
    g.block(body)
    following, latch = [g.regs(v) for v in body.terminator.args], g.label
    g.do(f"br label %{header}")
    write_phis(g, phi_sink, test.args, carried, [(before, initial), (latch, following)])
    g.open_chunk()
    g.start(done)
    for value, names in zip(op.results, passed, strict=True):
        g.set(value, names)


def branch(g: Generator, op: Op) -> None:
    labels = [g.new_label(x) for x in ("then", "else")]
    done = g.new_label("endif")
    g.do(f"br i1 {g.reg(op.args[0])}, label %{labels[0]}, label %{labels[1]}")
    edges: list[tuple[str, Any]] = []
    for label, block in zip(labels, op.blocks, strict=True):
        g.open_chunk()
        g.start(label)
        g.block(block)
        edges.append((label, [g.regs(v) for v in block.terminator.args]))
        edges[-1] = (g.label, edges[-1][1])
        g.do(f"br label %{done}")
    g.open_chunk()
    g.start(done)
    merged = phis(g, op.results)
    write_phis(g, g.sink, op.results, merged, edges)
    for value, names in zip(op.results, merged, strict=True):
        g.set(value, names)
    g.open_chunk()
