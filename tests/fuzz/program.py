"""A random block program as data: its source as a tree of lines, its arguments, and the error bounds of its results.

The source is Python text, which is readable when a program fails; it enters the compiler through linecache, like a notebook cell. The
interpreter on the front end's IR gives the reference. The IR after every pass for every target and the machine code on the CPU must agree
with it. In tests/gpu, the machine code on a GPU must, too.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from kernels.base import Case, copied, poison
from support import UNPLACED

from blocknb import passes
from blocknb.codegen import batch_assembly, gpu, llvm
from blocknb.ir import interp
from blocknb.ir.core import Func
from blocknb.ir.text import parse_func, print_func
from blocknb.ir.verify import verify
from blocknb.language.types import BY_SHORT, DType, bfloat16
from blocknb.target import Target
from fuzz import simt
from fuzz.helpers import HELPERS, NAMES

HEADER = """\
import blocknb
import blocknb.language as bl


{helpers}

@blocknb.kernel
def {name}({parameters}):
"""


@dataclass(frozen=True)
class Line:
    """A statement, and the statements nested under it."""

    text: str
    body: tuple[Line, ...] = ()

    def render(self, indent: str) -> str:
        return f"{indent}{self.text}\n" + "".join(line.render(indent + "    ") for line in self.body)


@dataclass(frozen=True)
class Array:
    """An array argument: `shift` elements of it lie before the first, so that its address is not a multiple of 16.

    `content`: "whole" (small integers, in any dtype), "normal" (floats around zero), "special" (with infinities and NaN) or
    "poison" (an output). `error`: the allowed error of the result; 0 for an exact one.
    """

    name: str
    dtype: DType
    size: int
    content: str
    shift: int = 0
    error: float = 0.0

    def make(self, rng: np.random.Generator) -> np.ndarray:
        dtype, size = self.dtype.numpy, self.size + self.shift
        if self.content == "special":
            whole = rng.choice([0.0, 1.5, -2.0, 3.0, -1.0, 7.0, np.nan, np.inf, -np.inf], size).astype(dtype)
        elif self.content == "normal":
            whole = rng.standard_normal(size).clip(-4, 4).astype(dtype)
        elif self.content == "whole":
            low = 0 if self.dtype.kind in ("uint", "bool") else -6
            whole = rng.integers(low, 2 if self.dtype.kind == "bool" else 7, size).astype(dtype)
        elif self.dtype.kind == "bool":
            whole = np.zeros(size, bool)
        else:
            whole = poison(size, dtype)
        return whole[self.shift :]


@dataclass(frozen=True)
class Program:
    """One kernel with its arguments: `arrays` and `numbers` in the order of the parameters."""

    seed: int
    body: tuple[Line, ...]
    arrays: tuple[Array, ...]
    numbers: Mapping[str, int] = field(default_factory=dict)
    grid: int = 1
    num_warps: int = 4

    @property
    def name(self) -> str:
        return f"random_{self.seed}"

    @cached_property
    def source(self) -> str:
        parameters = ", ".join([*(a.name for a in self.arrays), *self.numbers])
        lines = "".join(line.render("    ") for line in self.body)
        helpers = HELPERS if NAMES.search(lines) else ""
        return HEADER.format(name=self.name, parameters=parameters, helpers=helpers) + lines

    @cached_property
    def case(self) -> Case:
        """The kernel and how to make its arguments, as tests/kernels has them."""
        file = f"<random program {self.seed} {hash(self.source) & 0xFFFFFFFF:08x}>"
        linecache.cache[file] = len(self.source), None, self.source.splitlines(keepends=True), file
        names: dict[str, Any] = {"__name__": __name__}
        exec(compile(self.source, file, "exec"), names)
        return Case(
            self.name, names[self.name], self.make, lambda arguments: {}, (self.grid,), {"num_warps": self.num_warps}
        )

    def make(self, rng: np.random.Generator) -> dict[str, Any]:
        return {array.name: array.make(rng) for array in self.arrays} | dict(self.numbers)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return self.make(np.random.default_rng(self.seed))

    @cached_property
    def func(self) -> Func:
        return self.case.parse(self.arguments)

    @cached_property
    def expected(self) -> dict[str, Any]:
        """The arrays after the interpreter ran the front end's IR."""
        return self.interpret(self.func)

    def interpret(self, func: Func, **options: Any) -> dict[str, Any]:
        after = {name: copied(value) for name, value in self.arguments.items()}
        interp.run(func, [after[hint.name] for hint in func.hints], self.grid, **options)
        return after

    def check(self, found: Mapping[str, Any], what: str) -> None:
        """Compares arrays with the expected ones. Raises AssertionError."""
        for array in self.arrays:
            actual, wanted = np.asarray(found[array.name]), self.expected[array.name]
            a, b = actual.astype(np.float64), wanted.astype(np.float64)
            if array.dtype.is_integer:
                bad = actual != wanted
            else:
                with np.errstate(invalid="ignore"):
                    near = (np.abs(a - b) <= array.error) | (a == b)
                bad = ~near & ~(np.isnan(a) & np.isnan(b))
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                raise AssertionError(
                    f"{what}: {array.name}[{first}] is {actual[first]}, not {wanted[first]} "
                    f"({int(bad.sum())} of {bad.size} elements are wrong, {array.error:.3g} is allowed)"
                )

    def __str__(self) -> str:
        lines = [f"# seed {self.seed}: grid {self.grid}, {self.num_warps} warps", self.source]
        lines += [
            f"# {a.name}: {a.size} x {a.dtype.short}, {a.content}, shifted by {a.shift}, within {a.error}"
            for a in self.arrays
        ]
        return "\n".join([*lines, *(f"# {name} = {value}" for name, value in self.numbers.items())])


def read(text: str) -> Program:
    """Parses a program that `str` printed."""
    head = re.search(r"^# seed (\d+): grid (\d+), (\d+) warps$", text, re.MULTILINE)
    assert head, "no program"
    seed, grid, warps = map(int, head.groups())
    lines = [line for line in text[text.index("def random_") :].splitlines()[1:] if line.startswith("    ")]
    arrays = re.findall(r"^# (\w+): (\d+) x (\w+), (\w+), shifted by (\d+), within (\S+)$", text, re.MULTILINE)
    return Program(
        seed,
        _tree(lines, 4),
        tuple(Array(n, BY_SHORT[d], int(size), c, int(shift), float(e)) for n, size, d, c, shift, e in arrays),
        {name: int(value) for name, value in re.findall(r"^# (\w+) = (-?\d+)$", text, re.MULTILINE)},
        grid,
        warps,
    )


def _tree(lines: list[str], indent: int) -> tuple[Line, ...]:
    """Removes the leading lines of this indentation, with the lines nested under them, from the list."""
    found = []
    while lines and len(lines[0]) - len(lines[0].lstrip()) == indent:
        text = lines.pop(0).strip()
        found.append(Line(text, _tree(lines, indent + 4)))
    return tuple(found)


# -- checks ------------------------------------------------------------------------------------------------------------


def asking(func: Func, **options: Any) -> Func:
    """A Func with more launch options."""
    return func.replace(attrs={**func.attrs, **options})


def check_passes(program: Program, target: str, without: Iterable[str] = (), **options: Any) -> Func:
    """After every pass the IR is valid, survives its text form, and computes the same. Returns the last IR."""
    func, stages = passes.run(asking(program.func, **options), Target.parse(target), without)
    verify(program.func)
    for stage in stages:
        verify(stage.after)
        if stage.after is stage.before and stage.name != "barriers":  # only now it must run without implicit barriers
            continue
        text = print_func(stage.after, locs=True)
        assert print_func(parse_func(text), locs=True) == text, f"{stage.name}: the text form reads back differently"
        for seed in (0, 1) if stage.name == "barriers" else (0,):
            found = program.interpret(stage.after, seed=seed, implicit_barriers=stage.name in UNPLACED)
            program.check(found, f"after {stage.name} for {target}")
    return func


def check_native(program: Program) -> None:
    """Machine code for the host's CPU computes the same."""
    from cpu.native import run_native

    func, _ = passes.run(program.func, Target.parse("cpu"))
    found = {name: copied(value) for name, value in program.arguments.items()}
    run_native(func, [found[hint.name] for hint in func.hints], program.grid)
    program.check(found, "on the CPU")


def ptx(program: Program, target: str) -> Callable[[], str]:
    """Starts the compilation of a program to PTX; the function returned waits for it."""
    parsed = Target.parse(target)
    func, _ = passes.run(program.func, parsed)
    job = {"kind": "ptx", "text": gpu.generate(func, parsed).text, "opt": 1, "llvm": False}
    future = llvm.shared().submit(job | {"arch": parsed.arch, "features": parsed.features})
    return lambda: future.result()["ptx"]


def check_simt(program: Program, target: str = "sm_90a", **options: Any) -> None:
    """The LLVM text for a GPU computes the same when NumPy runs it."""
    parsed = Target.parse(target)
    func, _ = passes.run(asking(program.func, **options), parsed)
    module = gpu.generate(func, parsed)
    found = program.make(np.random.default_rng(program.seed))  # not copies, which would lose the intended misalignment
    simt.run(module, [found[hint.name] for hint in func.hints], (program.grid,), apart=True)
    program.check(found, f"LLVM text for {target}")


def check_assembles(program: Program, target: str = "sm_90a") -> None:
    """LLVM and ptxas take the kernel."""
    batch_assembly.assemble_many([ptx(program, target)()], Target.parse(target))


def check_gpu(program: Program) -> None:
    """A GPU computes the same, on arrays with the misalignment that the program requests."""
    import cupy

    on_device: dict[str, Any] = dict(program.numbers)
    for array in program.arrays:
        data = program.arguments[array.name]
        if array.dtype == bfloat16:  # CuPy does not have it
            import torch

            memory = torch.empty(array.shift + len(data), dtype=torch.bfloat16, device="cuda")[array.shift :]
            memory.view(torch.int16).copy_(torch.from_numpy(data.view(np.int16).copy()))
        else:
            memory = cupy.empty(array.shift + len(data), data.dtype)[array.shift :]
            memory.set(data)
        on_device[array.name] = memory
    cupy.cuda.Device().synchronize()  # two libraries, perhaps two streams
    program.case.kernel[program.grid,](**on_device, num_warps=program.num_warps)
    cupy.cuda.Device().synchronize()
    found: dict[str, Any] = {}
    for array in program.arrays:
        memory = on_device[array.name]
        if array.dtype == bfloat16:
            found[array.name] = memory.view(torch.int16).cpu().numpy().view(array.dtype.numpy)
        else:
            found[array.name] = memory.get()
    program.check(found, "on the GPU")


def checked(program: Program, check: Callable[[Program], Any]) -> Any:
    """Runs a check; any failure shows the program."""
    try:
        return check(program)
    except Exception as error:
        error.add_note(f"\n{program}")
        raise
