"""`blocknb bisect FILE`: names the pass that makes a wrong result, for the launches of a script.

The interpreter runs the IR after every pass on the inputs of each launch. The first pass whose output computes something else than its
input is wrong. If no pass is, the result of the machine code is compared with that of the last IR. Passes may change the order of a sum,
so floats may differ by a tolerance; integers may not differ at all.
"""

from __future__ import annotations

import difflib
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from blocknb.errors import KernelError, Loc, display_file
from blocknb.fuzz.blame import before_barriers, first_wrong_stage, named, raised
from blocknb.ir.core import Func
from blocknb.ir.interp import run as interpret
from blocknb.ir.reader import read_func
from blocknb.ir.verify import verify
from blocknb.runtime.edited_kernel import EditedKernel
from blocknb.testing import captured
from blocknb.testing.captured import CapturedLaunch
from blocknb.trace import Stage

#: The tolerances by the bytes of a float: how far two values may differ, relative to the largest finite one of the array.
TOLERANCES = {8: 1e-9, 4: 1e-4, 2: 1e-2, 1: 0.25}
BFLOAT16 = 0.03
MOST_HUNKS, MOST_LINES = 40, 40  # changes that are undone one by one, and lines that are shown


@dataclass(frozen=True)
class BisectOptions:
    """The script to run, the target whose passes are checked ("": that of the launch), and the tolerance of floats (0: by dtype). Also how
    many launches are checked."""

    file: str
    target: str = ""
    rtol: float = 0.0
    launches: int = 20


def difference(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], rtol: float = 0.0) -> str:
    """The first array that differs, how many elements do, and the first one: "" if none does."""
    for name, array in got.items():
        other = want[name]
        kind = str(array.dtype)
        if array.dtype.kind in "iub" or kind == "bool":
            wrong = array != other
        else:
            near = rtol or (BFLOAT16 if kind == "bfloat16" else TOLERANCES[array.dtype.itemsize])
            a, b = array.astype(np.float64), other.astype(np.float64)
            with np.errstate(all="ignore"):
                bound = near * np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
                wrong = ~((np.abs(a - b) <= bound) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            at = ", ".join(map(str, place))
            values = f"{name}[{at}] is {array[place]}, and {other[place]} before"
            return f"{int(wrong.sum())} of {wrong.size} elements of {name} differ: {values}"
    return ""


@dataclass
class PassCheck:
    """The comparison of one launch, stage after stage. `reference` holds the arrays that the IR before a stage computes."""

    launch: CapturedLaunch
    rtol: float
    reference: dict[str, np.ndarray] = field(default_factory=dict)
    reason: str = ""

    def computed(self, func: Func, finished: bool) -> dict[str, np.ndarray]:
        """The arrays after an interpretation of a function."""
        args, arrays = self.launch.arguments(func)
        with np.errstate(all="ignore"):
            interpret(func, args, self.launch.grid, check_races=finished, implicit_barriers=not finished)
        return {name: array.copy() for name, array in arrays.items()}

    def differs(self, stage: Stage, finished: bool) -> bool:
        """Whether a stage's output computes something else than its input. The front end's output is the first reference."""
        if self.reference and stage.after is stage.before and not finished:
            return False
        found = self.computed(stage.after, finished)
        self.reason = difference(found, self.reference, self.rtol) if self.reference else ""
        if not self.reason:
            self.reference = found
        return bool(self.reason)

    def right(self, text: str, finished: bool) -> bool:
        """Whether a text is valid IR that computes what the stage's input does."""
        try:
            func = read_func(text)[0]
            verify(func)
            return not difference(self.computed(func, finished), self.reference, self.rtol)
        except (ValueError, KernelError):
            return False


@dataclass
class Bisection:
    """The launches of a script so far. `found` is true after the first wrong stage."""

    options: BisectOptions
    count: int = 0
    found: bool = False

    def take(self, launch: CapturedLaunch) -> None:
        """Checks one launch, and prints the outcome."""
        compiled, target = launch.compiled, self.options.target
        own = not target or target == str(compiled.target)
        if self.found or self.count >= self.options.launches or (isinstance(compiled, EditedKernel) and not own):
            return  # edited IR is for one target
        self.count += 1
        trace = compiled.trace if own else compiled.retarget(target, compiled.options["without"]).trace
        check = PassCheck(launch, self.options.rtol)
        title = f"{compiled.name}, grid {launch.grid}, {trace.target}"
        stages = [stage for stage in trace.stages if stage.name != "codegen"]  # it has the IR of the last pass
        stages = stages[
            max((i for i, stage in enumerate(stages) if stage.edited), default=0) :
        ]  # an edit may change results
        wrong = first_wrong_stage(stages, check.differs)
        if wrong is not None:
            self.found = True
            stage, error = wrong
            print(f"{title}: {named(stage.name)} is wrong")
            print(f"  {check.reason if error is None else raised(error)}")
            if isinstance(error, KernelError) and error.loc is not None:
                print(f"  {_line(error.loc)}")
            print("\n".join(changed(stage, check)))
            return
        if launch.error is not None and own:
            self.found = True
            print(f"{title}: all {len(stages)} stages are right, and code generation is wrong")
            print(f"  the launch raises {type(launch.error).__name__}: {launch.error.args[0]}")
            return
        if launch.results is None or not own:
            print(f"{title}: right in all {len(stages)} stages; the machine code did not run")
            return
        if reason := difference(launch.results, check.reference, self.options.rtol):
            self.found = True
            print(f"{title}: all {len(stages)} stages are right, and code generation is wrong")
            print(f"  {reason.replace(' before', ' by the last IR')}")
            return
        print(f"{title}: right in all {len(stages)} stages and in machine code")


def changed(stage: Stage, check: PassCheck) -> list[str]:
    """The change that makes the result wrong, as lines with - and +, each change with its source line.

    Undoing one change of the pass at a time shows which one it is, if the IR without it is valid. Otherwise all changes are shown.
    """
    before, after = stage.text_before.splitlines(), stage.text.splitlines()
    plain = [
        [re.sub(r" +// .*", "", line) for line in lines] for lines in (before, after)
    ]  # an op's number is no change
    matcher = difflib.SequenceMatcher(a=plain[0], b=plain[1], autojunk=False)
    hunks = [opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"]
    finished = stage.after.level == "memory" and stage.name not in before_barriers()

    def undone(hunk: Sequence) -> str:
        _, i, j, k, m = hunk
        return "\n".join([*after[:k], *before[i:j], *after[m:]]) + "\n"

    if not hunks:
        return ["  the pass changed nothing, so it left out a change that the IR needs"]
    if 1 < len(hunks) <= MOST_HUNKS:
        culprits = [hunk for hunk in hunks if check.right(undone(hunk), finished)]
        hunks = culprits[:1] or hunks
    lines = []
    for _, i, j, k, m in hunks:
        lines += _source(stage, [*before[i:j], *after[k:m]])
        lines += [f"  - {line.strip()}" for line in before[i:j]] + [f"  + {line.strip()}" for line in after[k:m]]
    hidden = len(lines) - MOST_LINES
    return lines[:MOST_LINES] + ([f"  and {hidden} more lines"] if hidden > 0 else [])


def _source(stage: Stage, lines: Sequence[str]) -> list[str]:
    """The source line of the first op among some lines of IR."""
    known = {op.id: op.loc for func in (stage.before, stage.after) for op in func.ops() if op.loc}
    for line in lines:
        number = re.search(r"// (\d+)", line)
        if number and (loc := known.get(int(number[1]))):
            return [f"  {_line(loc)}"]
    return []


def _line(loc: Loc) -> str:
    place = loc.outermost
    return f"{display_file(place.file)}, line {place.line}: {linecache.getline(place.file, place.line).strip()}"


def run(options: BisectOptions) -> int:
    """Runs the command. Returns 1 if a stage is wrong, 0 if none is, and 2 if the script launches nothing."""
    bisection = Bisection(options)
    with captured.fresh_cache():
        status = captured.run_script(options.file, bisection.take, print)
    if not bisection.count:
        print(f"{options.file} launches no kernel; launch one with arrays, on any device")
        return 2
    if not bisection.found and status:
        print(
            f"no stage is wrong, but {options.file} ends with status {status}: the front end may be, or the script's expectation"
        )
    return int(bisection.found)
