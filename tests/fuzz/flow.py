"""Generates loops, branches and the values that they carry, for the random block programs of `generator`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from blocknb.language import types as t
from fuzz.program import Line
from fuzz.writer import DIGITS, LARGEST, Var, Writer, epsilon, int_bound, spelled

PREDICATES = ["==", "!=", "<", "<=", ">", ">="]


class Flow(Writer):
    """Compound statements; the generator provides `steps(count)`."""

    def nested(self, steps: int) -> list[Line]:
        """Random lines in a new scope, which stays open until `close`."""
        self.blocks.append([])
        self.scopes.append([])
        self.depth += 1
        self.steps(steps)
        return self.blocks[-1]

    def close(self) -> list[Line]:
        self.depth -= 1
        self.scopes.pop()
        return self.blocks.pop() or [Line("pass")]

    def condition(self) -> str:
        rng = self.rng
        scalars = [v for v in self.visible() if not v.shape and v.exact]
        x = rng.choice(scalars)
        if x.dtype == t.int1:
            return x.name
        return f"{x.name} {rng.choice(PREDICATES)} {rng.choice(['0', '1', '2', '3'])}"

    def changeable(self, count: int) -> list[Var]:
        found = [v for v in self.visible() if v.name not in ("pid",) and not v.name.startswith("k")]
        return self.rng.sample(found, min(count, len(found)))

    def carried(self, iterations: int) -> list[tuple[Var, Var]]:
        """(name before the loop, name in it) for some names that a loop carries; the bounds of the latter hold in every iteration."""
        names: list[tuple[Var, Var]] = []
        if self.rng.random() < 0.6:
            dtype, shape = self.rng.choice(self.dtypes), self.shape()
            text = f"bl.zeros({shape}, {spelled(dtype)})"
            self.define(text, dtype=dtype, shape=shape, bound=0, whole=True, nonnegative=True)
        for var in self.changeable(self.rng.randint(1, 3)):
            if var.dtype.is_float:
                bound = (
                    2.0 ** min(DIGITS[var.dtype], 13) if var.whole else min(LARGEST[var.dtype] / 4, 64 + 8 * var.bound)
                )
                if var.bound > bound:
                    continue
                error = 0.0 if var.whole else 64 * epsilon(var.dtype) * bound + 4 * var.error
                inside = replace(var, bound=bound, error=error, nonnegative=False)
            else:
                inside = replace(var, bound=int_bound(var.dtype, math.inf), nonnegative=False)
            names.append((var, inside))
        return names

    def assume(self, names: list[tuple[Var, Var]]) -> None:
        """From here on, the names have the bounds that hold inside and after the loop."""
        for before, inside in names:
            for scope in self.scopes:
                if before in scope:
                    scope[scope.index(before)] = inside

    def update(self, before: Var, inside: Var, iterations: int) -> None:
        """A new value for a carried name, within its promised bounds."""
        rng, dtype = self.rng, inside.dtype
        fitting = []
        for v in self.visible():
            if v.dtype == dtype and v.name != inside.name and (text := self.fit(v.name, v.shape, inside.shape)):
                fitting.append((v, text))
        rng.shuffle(fitting)
        for v, text in fitting:
            same = v.shape == inside.shape
            whole = v.whole or not inside.whole
            way = rng.choice(["add", "add", "set", "max", "where"])
            sum_error = (
                before.error + iterations * (v.error + 4 * (0 if inside.whole else epsilon(dtype)) * inside.bound)
                if dtype.is_float
                else 0
            )
            fits = not dtype.is_float or (v.bound <= inside.bound and v.error <= inside.error and whole)
            sums = not dtype.is_float or (
                before.bound + iterations * v.bound <= inside.bound and sum_error <= inside.error and whole
            )
            if way == "add" and sums and dtype.bits > 1:
                self.line(
                    f"{inside.name} = {inside.name} + {text}" if rng.random() < 0.7 else f"{inside.name} += {text}"
                )
            elif way == "set" and fits and same:
                self.line(f"{inside.name} = {text}")
            elif way == "max" and fits and dtype.bits > 1 and dtype != t.bfloat16:
                self.line(f"{inside.name} = bl.maximum({inside.name}, {text})")
            elif way == "where" and fits and same:
                self.line(f"{inside.name} = bl.where({self.condition()}, {text}, {inside.name})")
            else:
                continue
            return

    def loop(self) -> None:
        """A counted loop that carries names and sometimes a pointer."""
        rng = self.rng
        iterations, step = rng.choice([0, 1, 2, 3, 4]), rng.choice([1, 1, 1, 2, 16, -1, -3])
        start = rng.choice([0, 0, 0, 1, 16])
        names = self.carried(iterations)
        pointer = self.pointer(iterations) if rng.random() < 0.5 else None
        self.assume(names)
        stop = start + iterations * step
        i = self.fresh("k")
        if (start, step) == (0, 1) and rng.random() < 0.7:
            head = f"range({self.maybe_number(stop)})"
        elif step == 1 and rng.random() < 0.5:
            head = f"range({self.maybe_number(start)}, {self.maybe_number(stop)})"
        else:
            head = f"range({self.maybe_number(start)}, {self.maybe_number(stop)}, {self.maybe_number(step)})"
        if rng.random() < 0.2:
            head = f"bl.static_range({start}, {stop}, {step})"
        self.nested(0)
        if "static" not in head:
            self.keep(Var(i, t.int32, (), 80, nonnegative=step > 0))
        if pointer:
            pointer()
        self.steps(rng.randint(1, 4))
        for before, inside in names:
            self.update(before, inside, max(iterations, 1))
        if len(names) > 1 and rng.random() < 0.1:
            (_, a), (_, b) = rng.sample(names, 2)
            if a == replace(b, name=a.name):
                self.line(f"{a.name}, {b.name} = {b.name}, {a.name}")
        self.line(f"for {i} in {head}:", self.close())

    def pointer(self, iterations: int) -> Callable[[], None]:
        """A tile of pointers before the loop; the returned function emits a load through it and its step."""
        rng = self.rng
        dtype, shape = rng.choice(self.dtypes), self.shape()
        array = self.array(dtype, "whole")
        offsets, _, reach = self.offsets(shape, injective=False)
        stride = rng.choice([1, 16, 32, shape[-1]])
        self.reach(array, reach + stride * iterations)
        name, scalar = self.fresh("p"), rng.random() < 0.4
        self.line(f"{name} = {array}" if scalar else f"{name} = {array} + {offsets}")
        step = self.maybe_number(stride)

        def inside() -> None:
            mask = self.mask(shape)
            where = f"{name} + {offsets}" if scalar else name
            text = f"bl.load({where}{f', mask={mask}' if mask else ''})"
            self.define(text, dtype=dtype, shape=shape, bound=6, whole=True)
            self.line(f"{name} += {step}")

        return inside

    def repeat(self) -> None:
        """A while loop."""
        rng, k = self.rng, self.fresh("k")
        iterations = rng.randint(0, 3)
        names = self.carried(iterations)
        self.assume(names)
        self.line(f"{k} = {rng.choice(['pid * 0', 'bl.program_id(1)'])}")
        self.nested(0)
        self.keep(Var(k, t.int32, (), 10, nonnegative=True))
        self.steps(rng.randint(1, 3))
        for before, inside in names:
            self.update(before, inside, max(iterations, 1))
        self.line(f"{k} += 1")
        self.line(f"while {k} < {self.maybe_number(iterations)}:", self.close())

    def branch(self) -> None:
        """An `if` that assigns some names in one arm or both."""
        rng = self.rng
        names = self.changeable(rng.randint(1, 3))
        condition = self.condition()
        after = {var.name: var for var in names}
        arms = []
        for arm in range(rng.choice([1, 2])):
            self.nested(rng.randint(1, 3))
            for var in names:
                found = [
                    v for v in self.visible() if (v.dtype, v.shape) == (var.dtype, var.shape) and v.name != var.name
                ]
                if found:
                    v, old = rng.choice(found), after[var.name]
                    self.line(f"{var.name} = {v.name}")
                    after[var.name] = replace(
                        old, bound=max(old.bound, v.bound), error=max(old.error, v.error), whole=old.whole and v.whole,
                        nonnegative=old.nonnegative and v.nonnegative,
                    )  # fmt: skip
                    for scope in self.scopes:  # later copies in this arm use the new bounds
                        scope[:] = [after.get(x.name, x) for x in scope]
            arms.append(self.close())
        self.line(f"if {condition}:", arms[0])
        if len(arms) == 2:
            self.line("else:", arms[1])
        for scope in self.scopes:
            scope[:] = [after.get(v.name, v) for v in scope]

    def leave(self) -> None:
        """An early return."""
        if self.depth == 0:
            self.line(f"if {self.condition()}:", [Line("return")])
