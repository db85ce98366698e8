"""Canonicalization, common subexpression elimination, loop-invariant code motion and dead code elimination.

One walk in program order does the first three, and a walk backwards (`support/dce`) the last. The walk keeps a stack of scopes. A scope
holds the ops of a block under construction and a table of their values. An op whose operands come from outside of its loop moves to the
end of the enclosing scope, which is just before the loop. An op with an equal one in a table is dropped. The affine analysis decides
masks. The walk is repeated, a few times at most, while a change may enable further changes in earlier ops. Source: Aho et al.,
"Compilers", chapters 8 and 9.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from blocknb.analysis import affine
from blocknb.ir.build import current_origin
from blocknb.ir.core import EMPTY, Block, Func, Op, Value
from blocknb.ir.fold import fold
from blocknb.language import ops as table
from blocknb.language.check_modes import parse_checks
from blocknb.language.ops import OPS, REDUCTIONS
from blocknb.language.types import Tile
from blocknb.passes.registry import tile_pass
from blocknb.passes.support.dce import sweep
from blocknb.passes.support.peephole import identity
from blocknb.target import Target
from blocknb.trace import Notes

ROUNDS = 4


@tile_pass(optional=True)
def simplify(func: Func, target: Target, notes: Notes) -> Func:
    """Folds constants, merges equal ops and moves invariant ops out of loops

    When: always, and other passes apply it to the ops that they make.

    What: ops on constants are computed. Algebraic identities are applied where they are exact, for floats to the bit. Equal ops are
    merged (CSE), ops without effects leave loops in which their operands do not change (LICM), and unused ops are removed (DCE). Branches
    and masks whose condition is known are decided. An op on repeated values is applied before they are repeated.

    Why: later passes read simpler addresses and masks, and a load without a mask is wider.

    Limits: floating-point arithmetic is not reassociated, except that `dot(a, b) + c` becomes `dot(a, b, c)`.

    Before:

        for %i = %zero to %n step %one {
          %offset = mul %row, %stride : i32
          %mask = cmp lt %at, %size : tile<64xi1>   // at most 63 < 64
          %v = load %pointers, %mask : tile<64xf32>
          %q = div %v, %four : tile<64xf32>
        }

    After:

        %offset = mul %row, %stride : i32
        for %i = %zero to %n step %one {
          %v = load %pointers : tile<64xf32>
          %q = mul %v, %quarter : tile<64xf32>
        }
    """
    counts: dict[str, Counter] = {}
    func = rounds(func, counts, notes)
    for kind, text in SUMMARIES.items():
        if found := counts.get(kind):
            notes(None, f"{text}: {', '.join(f'{n} {name}' if n > 1 else name for name, n in found.most_common())}")
    return func


def checks_masked_values(func: Func) -> bool:
    """Whether a launch looks for values of masked-off elements, so that a load must keep its `other`."""
    return "init" in parse_checks(func.attrs.get("checked"))


def tidy(func: Func) -> Func:
    """Simplifies the ops that the running pass has made, and removes unused ops; other ops stay as they are."""
    return rounds(func, {}, None, only=current_origin())


def rounds(func: Func, counts: dict[str, Counter], notes: Notes | None, only: str | None = None) -> Func:
    """Repeats the walk until no change can affect earlier ops, ROUNDS times at most."""
    noted: set[tuple[int, str]] = set()
    for _ in range(ROUNDS):
        rewriter = SimplifyRewriter(func, counts, notes, noted, only)
        func = rewriter.run()
        if not rewriter.another_round:
            break
    return func


SUMMARIES = {
    "folded": "folded to constants",
    "known": "replaced by an existing value",
    "before": "computed before they are repeated",
    "merged": "merged with an equal op",
    "dead": "removed as unused",
}


@dataclass(slots=True, eq=False)
class SimplifyScope:
    """A block under construction: its ops, and a table of reusable ops by key."""

    transparent: bool  # pure ops may move from it to the enclosing scope
    ops: list[Op] = field(default_factory=list)
    seen: dict[Any, tuple[Value, ...]] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)


class SimplifyRewriter:
    """One round over a Func. `run` returns the Func itself if nothing changed."""

    def __init__(self, func: Func, counts: dict, notes: Notes | None, noted: set, only: str | None = None):
        self.func, self.counts, self.notes, self.noted, self.only = func, counts, notes, noted, only
        self.next_id = func.next_id
        self.mapping: dict[Value, Value] = {}
        self.definition: dict[Value, Op] = {}
        self.level: dict[Value, int] = dict.fromkeys(func.params, 0)
        self.scopes: list[SimplifyScope] = []
        self.uses = Counter(a for op in func.ops() for a in op.args)
        self.at: Op | None = None
        self.moved: Counter[str] = Counter()  # moved out of the block that was rebuilt last
        self.changed = False
        self.another_round = False  # a change may enable further changes in earlier ops

    def run(self) -> Func:
        scope = self.block(self.func.body.ops, transparent=False)
        before = len(scope.ops)
        ops = sweep(scope.ops, set(), lambda op: self.count("dead", op.name))
        if not self.changed and len(ops) == before and identical(ops, self.func.body.ops):
            return self.func
        return self.func.replace(body=Block(self.func.body.args, tuple(ops)))

    # -- the interface of the rules ----------------------------------------------------------------------------------------

    def constant(self, value: Value) -> Any:
        """The number that every element of a value is, None when it is not constant."""
        op = self.definition.get(value)
        return op.attrs["value"] if op is not None and op.name == "const" else None

    def fold(self, op: Op, constants: Sequence[Any]) -> Any:
        """The constant result of an elementwise op, from its operands or from the facts about a comparison."""
        if None not in constants and (value := fold(op, constants)) is not None:
            self.count("folded", op.name)
            return value
        if op.name == "cmp" and op.id < self.func.next_id:
            return self.facts.truth(op.result)
        return None

    @cached_property
    def facts(self) -> affine.Facts:
        return affine.analyze(self.func)

    def used_here_only(self, value: Value) -> bool:
        """Whether the current op is the only user of a value, and runs as often as the op that made it."""
        return self.uses[value] == 1 and self.level[value] == len(self.scopes) - 1

    def count(self, kind: str, name: str) -> None:
        self.counts.setdefault(kind, Counter())[name] += 1

    def note(self, op: Op, text: str, kind: str = "info") -> None:
        if self.notes is not None and (op.id, text) not in self.noted:
            self.noted.add((op.id, text))
            self.notes(op, text, kind)

    def const(self, value: Any, type: Tile) -> Value:
        return self.make("const", value=value, type=type)

    def make(self, name: str, *args: Value, **attrs: Any) -> Value:
        """Emits a new op in the place of the current one, and simplifies it in turn."""
        (type,) = table.infer(name, tuple(a.type for a in args), attrs)
        at = self.at
        assert at is not None, "a rule runs while an op is at hand"
        op = Op(
            name,
            args,
            (Value(type),),
            MappingProxyType(attrs) if attrs else EMPTY,
            (),
            at.loc,
            current_origin(),
            self.next_id,
            (at.id,),
        )
        self.next_id += 1
        found = identity(op, self)
        return self.place(op)[0] if found is None else found

    # -- the walk ----------------------------------------------------------------------------------------------------------

    def get(self, value: Value) -> Value:
        return self.mapping.get(value, value)

    def block(self, ops: Sequence[Op], transparent: bool, args: Sequence[Value] = ()) -> SimplifyScope:
        scope = SimplifyScope(transparent)
        self.scopes.append(scope)
        for value in args:
            self.level[value] = len(self.scopes) - 1
        for op in ops:
            self.one(op)
        self.scopes.pop()
        return scope

    def one(self, op: Op) -> None:
        args = tuple(self.get(a) for a in op.args)
        if args != op.args:
            op = op.replace(args=args)
            self.changed = True
        self.at = op
        match op.name:
            case "if":
                self.branch(op)
            case "for":
                self.loop(op)
            case "load" | "store" | "atomic":
                self.access(op)
            case "while":
                self.repeat(op)
            case "roles":
                blocks = [self.rebuilt(block, False) for block in op.blocks]
                self.append(self.with_blocks(op, blocks), len(self.scopes) - 1)
            case name if name in REDUCTIONS:
                op = self.with_blocks(op, [self.combine(block) for block in op.blocks])
                self.replaced(op, self.place(op))
            case _ if self.of_another_pass(op):
                self.append(op, len(self.scopes) - 1)
                if OPS[op.name].pure:
                    self.scopes[-1].seen.setdefault(_key(op), op.results)
            case _:
                found = identity(op, self)
                self.replaced(op, self.place(op) if found is None else (found,))

    def of_another_pass(self, op: Op) -> bool:
        """Whether an op belongs to another pass, so that this run must not simplify it."""
        return self.only is not None and op.origin != self.only

    def replaced(self, op: Op, values: Sequence[Value]) -> None:
        for old, new in zip(op.results, values, strict=True):
            if old is not new:
                self.mapping[old] = new
                self.changed = True
                if not new.name and new in self.definition and self.definition[new].id >= self.func.next_id:
                    new.name = old.name

    def place(self, op: Op) -> tuple[Value, ...]:
        """Places an op: drops it for an equal op, moves it before the loops on which it does not depend, or appends it here."""
        here = len(self.scopes) - 1
        if not OPS[op.name].pure and OPS[op.name].kind != "reduce":
            return self.append(op, here)
        key = None if op.blocks else _key(op)
        if key is not None:
            for scope in self.scopes:
                if (found := scope.seen.get(key)) is not None:
                    self.count("merged", op.name)
                    return found
        deepest = max((self.level[a] for a in op.args), default=0)
        level = here
        while level > deepest and self.scopes[level].transparent:
            level -= 1
        if level < here:
            self.scopes[level + 1].moved[op.name] += 1
            self.changed = True
        if key is not None:
            self.scopes[level].seen[key] = op.results
        return self.append(op, level)

    def append(self, op: Op, level: int) -> tuple[Value, ...]:
        self.scopes[level].ops.append(op)
        for value in op.results:
            self.definition[value], self.level[value] = op, level
        return op.results

    # -- ops with effects and blocks ---------------------------------------------------------------------------------------

    def access(self, op: Op) -> None:
        """Simplifies known masks, and removes an `other` that equals the default."""
        first = 1 if op.name == "load" else 2
        if len(op.args) <= first or self.of_another_pass(op):
            self.append(op, len(self.scopes) - 1)
            return
        known = self.constant(op.args[first])
        if known is True:
            self.note(op, "the mask is always true: removed")
            op, self.changed = op.replace(args=op.args[:first]), True
        elif known is False:
            self.changed = True
            self.note(op, f"the mask is never true: the {op.name} is removed")
            if op.results:
                other = op.args[2] if op.name == "load" and len(op.args) > 2 else None
                self.replaced(op, [other or self.const(_zero(op.result.type), op.result.type)])
            return
        elif op.name == "load" and len(op.args) > 2:
            other = self.constant(op.args[2])
            if other is not None and other == 0 and str(other) != "-0.0" and not checks_masked_values(self.func):
                op, self.changed = op.replace(args=op.args[:2]), True  # zero is the default for masked-off elements
        self.append(op, len(self.scopes) - 1)

    def branch(self, op: Op) -> None:
        known = self.constant(op.args[0])
        if known is not None:
            self.note(op, f"the condition is always {'true' if known else 'false'}: one arm stays")
            self.changed = self.another_round = True
            taken = op.blocks[0 if known else 1]
            for inner in taken.ops[:-1]:
                self.one(inner)
            self.replaced(op, [self.get(a) for a in taken.terminator.args])
            return
        blocks = [self.rebuilt(block, False) for block in op.blocks]
        kept = self.append(self.with_blocks(op, blocks), len(self.scopes) - 1)
        outside = len(self.scopes) - 1
        for value, a, b in zip(kept, blocks[0].terminator.args, blocks[1].terminator.args, strict=True):
            if a is b and self.level[a] <= outside:
                self.mapping[value] = a
                self.changed = self.another_round = True

    def loop(self, op: Op) -> None:
        bounds = [self.constant(a) for a in op.args[:3]]
        if None not in bounds and bounds[2] and len(range(*bounds)) == 0:
            self.note(op, "the loop never runs: removed")
            self.changed = self.another_round = True
            self.replaced(op, op.args[3:])
            return
        body = op.blocks[0]
        for arg, init, after, result in zip(body.args[1:], op.args[3:], body.terminator.args, op.results, strict=True):
            if after is arg and (self.uses[arg] > 1 or self.uses[result]):
                self.mapping[arg] = self.mapping[result] = init
                self.changed = self.another_round = True
                self.note(op, "a carried value never changes: used directly")
        block = self.rebuilt(body, True)
        op = self.with_blocks(op, [block])
        self.append(op, len(self.scopes) - 1)
        self.note_moved(op)

    def repeat(self, op: Op) -> None:
        blocks, moved = [], Counter[str]()
        for block in op.blocks:
            blocks.append(self.rebuilt(block, True))
            moved += self.moved
        self.moved = moved
        op = self.with_blocks(op, blocks)
        self.append(op, len(self.scopes) - 1)
        self.note_moved(op)

    def combine(self, block: Block) -> Block:
        """Copies the combine block of a reduction, with replaced outside values."""
        if not any(a in self.mapping for op in block.ops for a in op.args):
            return block
        return Block(block.args, tuple(op.replace(args=tuple(map(self.get, op.args))) for op in block.ops))

    def rebuilt(self, block: Block, transparent: bool) -> Block:
        scope = self.block(block.ops, transparent, block.args)
        self.moved = scope.moved
        if identical(scope.ops, block.ops):
            return block
        self.changed = True
        return Block(block.args, tuple(scope.ops))

    def with_blocks(self, op: Op, blocks: Sequence[Block]) -> Op:
        return op if identical(blocks, op.blocks) else op.replace(blocks=tuple(blocks))

    def note_moved(self, op: Op) -> None:
        if self.moved:
            names = ", ".join(f"{n} {name}" if n > 1 else name for name, n in self.moved.most_common())
            self.note(op, f"moved out of the loop: {names}")


def identical(new: Sequence[Any], old: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(new) == len(old) and all(map(operator.is_, new, old))


def _zero(type: Tile) -> bool | int | float:
    return 0.0 if type.dtype.is_float else False if type.dtype.kind == "bool" else 0


def _key(op: Op) -> tuple:
    """The key on which two equal ops agree. Python equates 0.0 with -0.0 and 1 with True, but not NaN with NaN; texts avoid all three."""
    if op.name == "const":
        return "const", repr(op.attrs["value"]), op.results[0].type
    attrs = tuple(sorted(op.attrs.items(), key=operator.itemgetter(0))) if op.attrs else ()
    return op.name, op.args, attrs, op.results[0].type
