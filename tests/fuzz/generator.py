"""Generates random block programs whose results are the same on every correct implementation, or differ within known bounds.

Divisors are positive, shifts in range, casts fit; `writer` bounds the values. Everything else is random: shapes that broadcast, and strides
in any order, known or not. Loops carry tiles, scalars and pointers, and arrays are read in another order than they were written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from blocknb.language import types as t
from blocknb.language.types import DType
from fuzz.calls import Calls
from fuzz.flow import Flow
from fuzz.moves import Moves
from fuzz.products import Products
from fuzz.program import Program
from fuzz.writer import DIGITS, LARGEST, Refused, Var, epsilon, int_bound, spelled

PREDICATES = ["==", "!=", "<", "<=", ">", ">="]


class Generator(Products, Moves, Calls, Flow):
    """Builds one program from a seed."""

    def program(self) -> Program:
        rng = self.rng
        self.line("pid = bl.program_id(0)")
        self.keep(Var("pid", t.int32, (), 2, nonnegative=True))
        for _ in range(rng.randint(1, 3)):
            self.attempt(self.load)
        self.steps(rng.randint(3, 12))
        stored = [v for v in self.visible() if v.name != "pid"]
        for var in dict.fromkeys(stored[-3:] + rng.sample(stored, min(3, len(stored)))):
            self.attempt(lambda var=var: self.store(var))
        warps = rng.choice([1, 2, 4, 4, 8])
        (lines,) = self.blocks
        return Program(self.seed, tuple(lines), tuple(self.arrays.values()), self.numbers, self.grid, warps)

    def steps(self, count: int) -> None:
        simple: list[tuple[int, Callable]] = [
            (3, self.load), (5, self.binary), (2, self.unary), (2, self.compare), (2, self.select), (2, self.cast),
            (3, self.reduce), (2, self.locate), (3, self.view), (2, self.store_any), (2, self.exchange), (2, self.dot),
            (1, self.follow), (1, self.matmul), (1, self.scan), (2, self.rearrange), (1, self.atomic), (1, self.make),
            (1, self.float_function), (1, self.scalar_load), (2, self.call),
        ]  # fmt: skip
        nested: list[tuple[int, Callable]] = [(4, self.loop), (2, self.branch), (1, self.repeat), (1, self.leave)]
        for _ in range(count):
            choices = simple + (nested if self.depth < 2 else [])
            (step,) = self.rng.choices([c for _, c in choices], [w for w, _ in choices])
            self.attempt(step)

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def binary(self) -> None:
        rng = self.rng
        x = self.pick(lambda v: v.name != "pid")
        if x.dtype.is_float:
            self.float_binary(x)
            return
        y, text = self.fitting(x.shape, lambda v: v.dtype == x.dtype)
        if rng.random() < 0.3 and x.dtype != t.int1:
            literal = rng.choice([1, 2, 3, 7, 16])
            y, text = Var("", x.dtype, (), literal, nonnegative=True), self.maybe_literal(literal, x.dtype)
        if x.dtype == t.int1:
            self.define(f"{x.name} {rng.choice('&|^')} {text}", dtype=t.int1, shape=x.shape, bound=1)
            return
        bits, positive = x.dtype.bits, x.nonnegative and y.nonnegative
        match rng.choice(["+", "+", "-", "*", "*", "&", "|", "^", "<<", ">>", "//", "%", "maximum", "minimum"]):
            case "+":
                bound = int_bound(x.dtype, x.bound + y.bound)
                fits = bound == x.bound + y.bound
                self.define(
                    f"{x.name} + {text}", dtype=x.dtype, shape=x.shape, bound=bound, nonnegative=fits and positive
                )
            case "-":
                bound = int_bound(x.dtype, x.bound + y.bound if x.dtype.kind == "int" else math.inf)
                self.define(f"{x.name} - {text}", dtype=x.dtype, shape=x.shape, bound=bound)
            case "*":
                bound = int_bound(x.dtype, x.bound * y.bound)
                fits = bound == x.bound * y.bound
                self.define(
                    f"{x.name} * {text}", dtype=x.dtype, shape=x.shape, bound=bound, nonnegative=fits and positive
                )
            case "<<" | ">>" as op:
                shift = f"({text} & {bits - 1})"
                self.define(f"{x.name} {op} {shift}", dtype=x.dtype, shape=x.shape, bound=int_bound(x.dtype, math.inf))
            case "//" | "%" as op:
                divisor = f"(({text} & 7) | 1)"
                self.define(
                    f"{x.name} {op} {divisor}", dtype=x.dtype, shape=x.shape, bound=x.bound, nonnegative=x.nonnegative
                )
            case "maximum" | "minimum" as op:
                bound = max(x.bound, y.bound)
                y_text = text if y.name else f"bl.full((), {text}, {spelled(x.dtype)})" if text.isdigit() else text
                if not y.name and not text.isdigit():
                    raise Refused
                self.define(
                    f"bl.{op}({x.name}, {y_text})", dtype=x.dtype, shape=x.shape, bound=bound, nonnegative=positive
                )
            case op:
                self.define(f"{x.name} {op} {text}", dtype=x.dtype, shape=x.shape, bound=int_bound(x.dtype, math.inf))

    def maybe_literal(self, value: int, dtype: DType) -> str:
        """A literal, which is weak, or a run-time number if that does not change the dtype."""
        return self.maybe_number(value) if dtype == t.int32 else str(value)

    def float_binary(self, x: Var) -> None:
        rng, dtype = self.rng, x.dtype
        y, text = self.fitting(x.shape, lambda v: v.dtype == dtype)
        if rng.random() < 0.25:
            literal = rng.choice([1, 2, 3, 0.5])
            y, text = Var("", dtype, (), literal, 0.0, literal != 0.5), str(literal)
        whole = x.whole and y.whole
        op = rng.choice(["+", "+", "-", "*", "*", "maximum", "minimum", "/", "fma"])
        match op:
            case "+" | "-":
                facts = self.rounded(dtype, x.bound + y.bound, x.error + y.error, whole)
            case "*":
                facts = self.rounded(dtype, x.bound * y.bound, x.error * y.bound + y.error * x.bound, whole)
            case "maximum" | "minimum":
                if not y.name:
                    raise Refused
                text = f"bl.{op}({x.name}, {text})"
                error = max(x.error, y.error)
                self.define(text, dtype=dtype, shape=x.shape, bound=max(x.bound, y.bound), error=error, whole=whole)
                return
            case "/":
                if dtype in (t.float16, t.bfloat16) or not y.name or y.bound == math.inf:
                    raise Refused
                facts = self.rounded(dtype, x.bound, x.error + x.bound * y.error, False)
                self.define(f"{x.name} / (bl.abs({text}) + 1)", shape=x.shape, **facts)
                return
            case _:
                if not y.name:
                    raise Refused
                z, last = self.fitting(x.shape, lambda v: v.dtype == dtype)
                error = x.error * y.bound + y.error * x.bound + z.error
                facts = self.rounded(dtype, x.bound * y.bound + z.bound, error, whole and z.whole)
                self.define(f"bl.fma({x.name}, {text}, {last})", shape=x.shape, **facts)
                return
        self.define(f"{x.name} {op} {text}", shape=x.shape, **facts)

    def float_function(self) -> None:
        """A function of a float, with its argument limited to a range where the function is well-conditioned."""
        x = self.pick(lambda v: v.dtype.is_float)
        name, argument, bound, slope = self.rng.choice([
            ("exp", "bl.clamp({}, -4.0, 4.0)", 55, 55), ("exp2", "bl.clamp({}, -4.0, 4.0)", 16, 12),
            ("log", "bl.abs({}) + 1", 100, 1), ("log2", "bl.abs({}) + 1", 100, 2), ("sqrt", "bl.abs({}) + 1", 0, 1),
            ("rsqrt", "bl.abs({}) + 1", 1, 1), ("sin", "bl.clamp({}, -9.0, 9.0)", 1, 1),
            ("cos", "bl.clamp({}, -9.0, 9.0)", 1, 1), ("tanh", "{}", 1, 1), ("erf", "{}", 1, 2),
        ])  # fmt: skip
        if x.bound > 1e4:
            raise Refused
        error = slope * (x.error + 4 * epsilon(x.dtype) * x.bound)
        dtype = (
            t.float32 if "clamp" in argument and x.dtype != t.float64 else x.dtype
        )  # its limits are no weak literals
        facts = self.rounded(dtype, bound or x.bound + 1, error, False)
        # fp32 functions are right to some units in the last place, tanh and erf of small arguments to less.
        facts["error"] += (
            16 * epsilon(t.float32 if dtype == t.float64 else dtype) * facts["bound"] * (dtype != t.float64)
        )
        facts["error"] += 1e-12
        self.define(f"bl.{name}({argument.format(x.name)})", shape=x.shape, **facts)

    def unary(self) -> None:
        x = self.pick(lambda v: v.name != "pid")
        facts = {"dtype": x.dtype, "shape": x.shape, "bound": x.bound, "error": x.error, "whole": x.whole}
        if x.dtype == t.int1:
            self.define(f"~{x.name}", **facts)
        elif x.dtype.is_float:
            name = self.rng.choice(["-{}", "bl.abs({})", "bl.floor({})", "bl.ceil({})"])
            if not x.exact and name[0] != "-" and "abs" not in name:
                raise Refused
            self.define(name.format(x.name), **{**facts, "whole": x.whole}, nonnegative="abs" in name)
        else:
            name = self.rng.choice(["~{}", "bl.abs({})", *(["-{}"] if x.dtype.kind == "int" else [])])
            facts["bound"] = int_bound(x.dtype, math.inf if name[0] == "~" else x.bound)
            smallest = 2.0 ** (x.dtype.bits - 1)
            self.define(name.format(x.name), **facts, nonnegative="abs" in name and x.bound < smallest)

    def compare(self) -> None:
        x = self.pick(lambda v: v.dtype.bits > 1 and v.exact)
        _, text = self.fitting(x.shape, lambda v: v.dtype == x.dtype and v.exact)
        if self.rng.random() < 0.4:
            text = str(self.rng.randint(0, 4))
        self.define(f"{x.name} {self.rng.choice(PREDICATES)} {text}", dtype=t.int1, shape=x.shape, bound=1)

    def select(self) -> None:
        x = self.pick(lambda v: v.dtype.bits > 1)
        _, condition = self.fitting(x.shape, lambda v: v.dtype == t.int1)
        y, text = self.fitting(x.shape, lambda v: v.dtype == x.dtype)
        arms = [x.name, text] if self.rng.random() < 0.5 else [text, x.name]
        self.define(
            f"bl.where({condition}, {', '.join(arms)})", dtype=x.dtype, shape=x.shape, bound=max(x.bound, y.bound),
            error=max(x.error, y.error), whole=x.whole and y.whole, nonnegative=x.nonnegative and y.nonnegative,
        )  # fmt: skip

    def cast(self) -> None:
        x, dtype = self.pick(), self.rng.choice([*self.dtypes, t.int1])
        text = f"{x.name}.to({spelled(dtype)})"
        if dtype == t.int1:
            if not x.exact:
                raise Refused
            self.define(text, dtype=dtype, shape=x.shape, bound=1)
        elif dtype.is_float and x.dtype.is_float:
            if x.bound > LARGEST[dtype] and not (x.exact and x.bound == math.inf):
                raise Refused
            keeps = x.bound <= 2 ** DIGITS[dtype]
            wider = DIGITS[dtype] >= DIGITS[x.dtype] and dtype.bits >= x.dtype.bits
            error = x.error if x.exact or wider else x.error + 2 * epsilon(dtype) * x.bound
            self.define(
                text, dtype=dtype, shape=x.shape, bound=x.bound, error=error, whole=x.whole and (keeps or wider)
            )
        elif dtype.is_float:
            self.define(text, shape=x.shape, **self.rounded(dtype, x.bound, 0.0, True), nonnegative=x.nonnegative)
        elif x.dtype.is_float:
            if not x.exact or x.bound >= 2 ** (dtype.bits - 1):
                raise Refused
            if dtype.kind == "uint" and not x.nonnegative:
                text = f"bl.abs({x.name}).to({spelled(dtype)})"
            self.define(text, dtype=dtype, shape=x.shape, bound=x.bound, nonnegative=x.nonnegative)
        else:
            bound = x.bound if x.nonnegative or dtype.kind == "int" else math.inf
            nonnegative = x.nonnegative and x.bound < 2 ** (dtype.bits - 1)
            self.define(text, dtype=dtype, shape=x.shape, bound=int_bound(dtype, bound), nonnegative=nonnegative)

    def make(self) -> None:
        dtype, shape, value = self.rng.choice(self.dtypes), self.shape(), self.rng.randint(0, 5)
        if self.rng.random() < 0.5:
            n = self.rng.choice([s for s in self.shapes if len(s) == 1])[0]
            start = self.rng.choice([0, 0, 3])
            self.define(
                f"bl.arange({start}, {start + n})", dtype=t.int32, shape=(n,), bound=start + n, nonnegative=True
            )
        else:
            text = f"bl.full({shape}, {value}, {spelled(dtype)})"
            self.define(text, dtype=dtype, shape=shape, bound=value, whole=True, nonnegative=True)

    # -- shapes and sums -----------------------------------------------------------------------------------------------

    def view(self) -> None:
        rng = self.rng
        x = self.pick(lambda v: bool(v.shape))
        shape, size = x.shape, math.prod(x.shape)
        match rng.choice(["trans", "reshape", "expand_dims", "broadcast"]):
            case "trans":
                perm = rng.sample(range(len(shape)), len(shape))
                text = f"bl.trans({x.name}, {', '.join(map(str, perm))})"
                if len(shape) == 2 and perm == [1, 0] and rng.random() < 0.5:
                    text = f"bl.trans({x.name})"
                if len(shape) == 1:
                    raise Refused
                result = tuple(shape[i] for i in perm)
            case "reshape":
                result = rng.choice([s for s in [*self.shapes, (size,)] if math.prod(s) == size])
                text = f"bl.reshape({x.name}, {result})"
            case "expand_dims":
                if len(shape) == 4:
                    raise Refused
                axis = rng.randint(0, len(shape))
                result = (*shape[:axis], 1, *shape[axis:])
                text = f"bl.expand_dims({x.name}, {axis})"
            case _:
                result = self.shape()
                text = f"bl.broadcast_to({self.fit(x.name, shape, result)}, {result})"
                if "None," in text.split("[")[0] or text.startswith("bl.broadcast_to(None"):
                    raise Refused
        self.keep(replace(x, name=self.define(text, dtype=x.dtype).name, shape=result))
        del self.scopes[-1][-2]

    def reduce(self) -> None:
        rng = self.rng
        x = self.pick(lambda v: bool(v.shape) and v.dtype.bits > 1)
        axis: int | None = rng.choice([*range(len(x.shape)), None])
        n = math.prod(x.shape) if axis is None else x.shape[axis]
        shape = () if axis is None else x.shape[:axis] + x.shape[axis + 1 :]
        arguments = f"{x.name}, axis={axis}" if rng.random() < 0.8 or axis is None else f"{x.name}, {axis}"
        if axis is not None and rng.random() < 0.2:
            arguments, shape = arguments + ", keep_dims=True", (*x.shape[:axis], 1, *x.shape[axis + 1 :])
        match rng.choice(["sum", "sum", "max", "min", *([] if x.dtype.is_float else ["xor_sum"])]):
            case "sum" if x.dtype.is_float:
                bound = x.bound * n
                facts = self.rounded(x.dtype, bound, n * x.error, x.whole)
                if facts["error"]:
                    facts["error"] += 16 * epsilon(x.dtype) * bound
                self.define(f"bl.sum({arguments})", shape=shape, **facts)
            case "sum":
                dtype = x.dtype if x.dtype.bits >= 32 else t.uint32 if x.dtype.kind == "uint" else t.int32
                bound = int_bound(dtype, x.bound * n)
                fits = x.nonnegative and bound == x.bound * n
                self.define(f"bl.sum({arguments})", dtype=dtype, shape=shape, bound=bound, nonnegative=fits)
            case "xor_sum":
                bound = int_bound(x.dtype, math.inf)
                self.define(f"bl.xor_sum({arguments})", dtype=x.dtype, shape=shape, bound=bound)
            case op:
                dtype = x.dtype
                if dtype.bits < 32:
                    dtype = t.float32 if dtype.is_float and dtype != t.float64 else t.int32
                self.define(
                    f"bl.{op}({arguments})", dtype=dtype, shape=shape, bound=x.bound, error=x.error, whole=x.whole,
                    nonnegative=x.nonnegative,
                )  # fmt: skip

    def locate(self) -> None:
        """The index and the value of the largest or smallest element."""
        x = self.pick(lambda v: bool(v.shape) and v.dtype.bits > 1 and v.exact and v.bound < math.inf)  # no NaN
        axis, name = self.rng.randrange(len(x.shape)), self.rng.choice(["max", "min"])
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        if self.rng.random() < 0.5:
            text = f"bl.arg{name}({x.name}, axis={axis})"
            self.define(text, dtype=t.int32, shape=shape, bound=x.shape[axis], nonnegative=True)
            return
        best, where = self.fresh(), self.fresh()
        self.line(f"{best}, {where} = bl.{name}({x.name}, axis={axis}, return_indices=True)")
        dtype = t.float32 if x.dtype == t.bfloat16 else x.dtype
        self.keep(Var(best, dtype, shape, x.bound, x.error, x.whole, x.nonnegative))
        self.keep(Var(where, t.int32, shape, x.shape[axis], nonnegative=True))


def generate(seed: int) -> Program:
    """The random program of a seed: the same one on every machine."""
    return Generator(seed).program()
