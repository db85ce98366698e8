"""Matrix products for the random block programs of `generator`: alone, one after another, and in a loop along K."""

from __future__ import annotations

from blocknb.language import types as t
from blocknb.language.types import DType
from fuzz.program import Line
from fuzz.writer import DIGITS, LARGEST, MAX_SIZE, Refused, Var, Writer, epsilon, int_bound, spelled

DOT_DTYPES = [t.float16, t.float16, t.bfloat16, t.float32, t.float32, t.int8, t.float64]


class Products(Writer):
    """Statements with `dot`."""

    def dot(self) -> None:
        """A product of new or existing operands; sometimes a second one is accumulated."""
        rng = self.rng
        dtype = rng.choice(DOT_DTYPES)
        m, n, k = (rng.choice(self.sizes(dtype)) for _ in range(3))
        if rng.random() < 0.1:
            m = rng.choice([1, 2, 8])
        if rng.random() < 0.1:
            n = rng.choice([1, 4, 8])
        here = [v for v in self.visible() if v.dtype == dtype and len(v.shape) == 2 and 16 <= v.shape[1] <= 128]
        if here and rng.random() < 0.6:
            a = rng.choice(here)
            m, k = a.shape
        else:
            a = self.operand(dtype, (m, k))
        if m * n > MAX_SIZE or k * n > MAX_SIZE:
            raise Refused
        b = self.operand(dtype, (k, n))
        self.product(a, b, m, n, k)

    @staticmethod
    def sizes(dtype: DType) -> list[int]:
        """Sizes of operands that fit into the shared memory of every target."""
        return [16, 16, 32] if dtype == t.float64 else [16, 16, 32, 64]

    def operand(self, dtype: DType, shape: tuple[int, int]) -> Var:
        content = "normal" if dtype.is_float and self.rng.random() < 0.3 else "whole"
        return self.read(self.array(dtype, content), dtype, shape, content)

    def product(self, a: Var, b: Var, m: int, n: int, k: int) -> None:
        rng, dtype = self.rng, a.dtype
        result = {t.int8: t.int32, t.float64: t.float64}.get(dtype, t.float32)
        precision, options = dtype, ""
        if dtype == t.float32:
            mode = rng.choice(["", ', input_precision="ieee"', ', input_precision="tf32"'])
            options, precision = mode, t.float32 if "ieee" in mode else t.float16  # tf32 has as many digits as fp16
        bound, error = k * a.bound * b.bound, k * (a.error * b.bound + b.error * a.bound)
        accumulators = [v for v in self.visible() if v.dtype == result and v.shape == (m, n)]
        acc = rng.choice(accumulators) if accumulators and rng.random() < 0.5 else None
        if acc:
            bound, error = bound + acc.bound, error + acc.error
        text = f"bl.dot({a.name}, {b.name}{f', {acc.name}' if acc else ''}{options})"
        if result == t.int32:
            self.define(text, dtype=result, shape=(m, n), bound=int_bound(result, bound))
            return
        whole = a.whole and b.whole and (acc is None or acc.whole)
        whole = whole and max(a.bound, b.bound) <= 2 ** DIGITS[precision]
        facts = self.rounded(result, bound, error, whole)
        if facts["error"]:  # tensor cores cut off rather than round; operands may be rounded to fewer digits
            lost = 2.0**-9 if precision != dtype else 0.0
            facts["error"] += bound * (64 * epsilon(result) + lost)
        self.define(text, shape=(m, n), **facts)

    def follow(self) -> None:
        """A product whose result, cast, is an operand of another one, as in attention."""
        dtype = self.rng.choice([t.float16, t.bfloat16, t.float32])
        m, n, k = (self.rng.choice([16, 16, 32, 64]) for _ in range(3))
        self.product(self.operand(dtype, (m, k)), self.operand(dtype, (k, n)), m, n, k)
        first = self.scopes[-1][-1]
        wide = self.rng.choice([16, 32])
        if first.bound > LARGEST[dtype]:
            raise Refused
        error = first.error + 2 * epsilon(dtype) * first.bound
        whole = first.whole and first.bound <= 2 ** DIGITS[dtype]
        left = self.define(
            f"{first.name}.to({spelled(dtype)})", dtype=dtype, shape=(m, n), bound=first.bound,
            error=0.0 if whole else error, whole=whole,
        )  # fmt: skip
        self.product(left, self.operand(dtype, (n, wide)), m, wide, n)

    def matmul(self) -> None:
        """A loop along K that advances pointers, as in every matrix product."""
        rng = self.rng
        dtype, content = rng.choice(DOT_DTYPES), rng.choice(["whole", "whole", "normal"])
        content = "whole" if dtype == t.int8 else content
        (m, n, k), iterations = (rng.choice(self.sizes(dtype)) for _ in range(3)), rng.randint(1, 3)
        pointers, steps = [], []
        for shape, axis in (((m, k), 1), ((k, n), 0)):
            array = self.array(dtype, content)
            sizes = [s * (iterations if i == axis else 1) for i, s in enumerate(shape)]
            strides = [sizes[1], 1] if rng.random() < 0.6 else [1, sizes[0]]
            self.reach(array, sizes[0] * sizes[1])
            name = self.fresh("p")
            parts = self.spread([f"bl.arange(0, {s})" for s in shape])
            terms = [f"{p} * {self.maybe_number(s, 's')}" for p, s in zip(parts, strides, strict=True)]
            self.line(f"{name} = {array} + {' + '.join(terms)}")
            pointers.append(name)
            steps.append(self.maybe_number(strides[axis] * shape[axis], "s"))
        result = {t.int8: t.int32, t.float64: t.float64}.get(dtype, t.float32)
        option = rng.choice(["", ', input_precision="ieee"']) if dtype == t.float32 else ""
        loads = [
            name if rng.random() < 0.5 else f"{name}, mask=bl.arange(0, {n})[None, :] < {n}" for name in pointers[1:]
        ]
        acc = self.fresh()
        self.line(f"{acc} = bl.zeros({(m, n)}, {spelled(result)})")
        left, right, loop = self.fresh(), self.fresh(), self.fresh("k")
        body = [
            f"{left} = bl.load({pointers[0]})", f"{right} = bl.load({loads[0]})",
            f"{acc} = bl.dot({left}, {right}, {acc}{option})", f"{pointers[0]} += {steps[0]}", f"{pointers[1]} += {steps[1]}",
        ]  # fmt: skip
        self.line(f"for {loop} in range({self.maybe_number(iterations)}):", [Line(text) for text in body])
        size = {"whole": 6.0, "normal": 4.0}[content]
        bound = iterations * k * size * size
        if result == t.int32:
            self.keep(Var(acc, result, (m, n), bound))
            return
        facts = self.rounded(result, bound, 0.0, content == "whole")
        if facts["error"]:
            facts["error"] += bound * (64 * epsilon(result) + (2.0**-9 if dtype == t.float32 else 0.0))
        self.keep(Var(acc, shape=(m, n), **facts))
