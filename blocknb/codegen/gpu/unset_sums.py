"""Finds the accumulators that a loop need not set to zero: its first wgmma ignores what they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blocknb.codegen.gpu import warp_specialization
from blocknb.codegen.gpu.element_types import num_registers
from blocknb.ir.core import Func, Op, Value, walk
from blocknb.layouts import wgmma

#: Sums of a thread, and ops with them after their loop, above which ptxas spills where a branch sets the sums to zero: it begins with all
#: of them at once.
MANY_SUMS, MANY_OPS = 64, 5


class UnsetSums:
    """Decides which carried values of a loop may be unset in its first iteration."""

    def __init__(self, func: Func, defs: Mapping[Value, Op], users: Mapping[Value, Sequence[tuple[Op, int]]]):
        self.func, self.defs, self.users = func, defs, users

    def of(self, op: Op, nested: bool) -> set[int]:
        """The carried values, by number, that begin as zero and to which only wgmma adds. `nested` says that the loop is in another one."""
        found: set[int] = set()
        body, persistent = op.blocks[0], self.func.attrs.get("persistent")
        # In a kernel's own loop over tiles ptxas would set the next sums to zero before the wait for these (C7514).
        over_tiles = nested and warp_specialization.find(self.func) is not None and not persistent
        if (
            not (warp_specialization.is_alone(self.func) or over_tiles)
            or op.args[0].type.dtype.bits != 32
            or sum(x.name == "dot" for x in walk(body)) != 1
        ):
            return found  # ptxas would serialize several dots (C7515); without roles it spills
        for i, (first, inner) in enumerate(zip(op.args[3:], body.args[1:], strict=True)):
            made, users = self.defs.get(first), self.users.get(inner, ())
            if made is None or made.name != "const" or made.attrs["value"] or len(users) != 1:
                continue
            if num_registers(inner) > MANY_SUMS and self.ops_with(op.results[i]) > MANY_OPS:
                continue
            user, place = users[0]
            if user.name == "dot" and place == 2 and user in body.ops and wgmma.is_name(user.attrs.get("instr", "")):
                found.add(i)
        return found

    def ops_with(self, value: Value) -> int:
        """How many ops compute with a tile and with what comes of it. Each vector that they take counts too: it needs registers beside the
        sums."""
        todo, seen = [value], set[Op]()
        vectors = set[Value]()
        while todo:
            for user, _ in self.users.get(todo.pop(), ()):
                tiles = [x for x in user.results if getattr(x.type, "shape", None) == value.type.shape]
                if user not in seen and tiles:
                    seen.add(user)
                    todo += tiles
                    vectors.update(x for x in user.args if x in self.defs and self.defs[x].name == "broadcast")
        return sum(op.name not in ("dot_wait", "cast", "convert") for op in seen) + len(vectors)
