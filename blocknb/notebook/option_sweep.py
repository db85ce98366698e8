"""`--sweep NAME=VALUES`: measures the kernel over a tile size, or the launch over a problem size.

If NAME is a constant of the kernel or an option (num_warps), the cell's last launch is repeated with other values. If it is a variable of
the `--launch` expression, that expression is evaluated for each value of the variable, and so is `--check`. The user's data does not
change: launches write to copies, and variables and arrays get their old values back. Two options `--sweep` make a heat map. VALUES are
`64,128,256`, `2**10..2**24` (powers of two), `0..100..10` (with a step), or an expression that returns them.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from blocknb.errors import KernelError, LaunchError
from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted

MOST_VALUES = 200


@dataclass(frozen=True)
class SweepAxis:
    name: str
    values: tuple[Any, ...]


def prepare(given: Any, shell: Any) -> tuple[SweepAxis, ...]:
    """The one or two axes that the options name. Raises UsageError for one that cannot be read or has no values, and for a third."""
    found = tuple(axis(unquoted(words), shell) for words in given or ())
    if len(found) > 2:
        raise UsageError(f"--sweep is given {len(found)} times; a sweep has one axis, or two for a heat map")
    if len({one.name for one in found}) < len(found):
        raise UsageError(
            f"--sweep {found[0].name} is given twice; write all values in one option: {found[0].name}=1,2,4"
        )
    if (count := math.prod(len(one.values) for one in found)) > MOST_VALUES:
        raise UsageError(f"--sweep: {count} points; a sweep takes at most {MOST_VALUES}")
    return found


def axis(text: str, shell: Any) -> SweepAxis:
    name, separator, rest = (part.strip() for part in _split(text))
    if not separator or not name.isidentifier() or not rest:
        raise UsageError(f"--sweep takes NAME=VALUES, such as BLOCK=256,512,1024 or n=2**10..2**24, not {text!r}")
    ends = [Expression(part.strip(), shell, "--sweep")() for part in rest.split("..")] if ".." in rest else []
    if ends:
        values = _range(text, ends)
    else:
        found = Expression(rest, shell, "--sweep")()
        values = list(found) if hasattr(found, "__iter__") and not isinstance(found, str) else [found]
    if not 0 < len(values) <= MOST_VALUES:
        raise UsageError(f"--sweep {text}: {len(values)} values; a sweep takes 1 to {MOST_VALUES} values")
    return SweepAxis(name, tuple(values))


def _split(text: str) -> tuple[str, str, str]:
    at = min((i for i in (text.find("="), text.find(":")) if i >= 0), default=-1)
    return (text[:at], text[at], text[at + 1 :]) if at >= 0 else (text, "", "")


def _range(text: str, ends: list[Any]) -> Any:
    if len(ends) > 3 or any(not isinstance(end, int) for end in ends) or (len(ends) == 3 and ends[2] <= 0):
        raise UsageError(f"--sweep {text}: a range is FIRST..LAST or FIRST..LAST..STEP, with integers")
    first, last = ends[:2]
    if len(ends) == 3:
        return range(first, last + 1, ends[2])  # no list, which could fill the memory
    if first < 1:
        raise UsageError(
            f"--sweep {text}: FIRST..LAST doubles its values from 1 or more; FIRST..LAST..STEP counts in steps"
        )
    values = []
    while first <= last:
        values.append(first)
        first *= 2
    return values


def after(axes: tuple[SweepAxis, ...], record: Any, shell: Any, found: Found) -> None:
    launch = Expression(found.launch, shell, "--launch") if found.launch else None
    names = [one.name for one in axes]
    swept = [name for name in names if launch is not None and name in launch.names]
    if swept and len(swept) < len(names):
        other = next(name for name in names if name not in swept)
        raise UsageError(
            f"--sweep {other}: use it in --launch, too; both axes of a sweep are variables there, or neither is"
        )
    points = [*itertools.product(*(one.values for one in axes))] if len(axes) > 1 else list(axes[0].values)
    measure = _here if found.cluster is None else _on_cluster
    made = measure(found, record, names, points, launch if swept else None, shell)
    found.facts.append(("sweep", made.answer))
    found.parts["sweep"] = made.part


def _here(found: Found, record: Any, names: list[str], points: list[Any], launch: Expression | None, shell: Any) -> Any:
    """The sweep of this process, of a launch expression or of the cell's last launch."""
    from blocknb.notebook import sweep, sweep_answer
    from blocknb.notebook.observe import without_recording
    from blocknb.notebook.sweep_launches import ConstantSweep, LaunchSweep, assigned

    def settings(point: Any) -> dict[str, Any]:
        return dict(zip(names, point if len(names) > 1 else (point,), strict=True))

    with without_recording(record.kernel):
        source: ConstantSweep | LaunchSweep
        more: dict[str, Any] = {}
        if launch is not None:
            source = LaunchSweep(record.kernel, launch, found.check, found.checked)
        else:
            try:
                source = ConstantSweep(record, names)
            except KernelError as error:
                raise UsageError(f"--sweep: {error.message}" + (f"; {error.hint}" if error.hint else "")) from None
            more["ahead"] = source.compile_ahead
        made = sweep.run(
            record.kernel.__name__,
            names[0] if len(names) == 1 else (names[0], names[1]),
            points,
            source,
            lambda point: {e.text: e.on_copies() for e in found.expressions},
            setting=lambda point: assigned(shell.user_ns, settings(point)),
            **more,
        )
        made.notes += source.notes
        sweep_answer.answer(made, source if isinstance(source, ConstantSweep) else None)
    return made


def _on_cluster(
    found: Found, record: Any, names: list[str], points: list[Any], launch: Expression | None, shell: Any
) -> Any:
    """The sweep of one worker for each kind of device."""
    from blocknb.notebook.cluster import remote_sweep as remote

    try:
        if launch is None:
            task = remote.task_of_launch(record, names, points)
        else:
            check = Expression(found.checked, shell, "--check") if found.checked else None
            task = remote.task_of_expression(record, names, points, launch, check)
        made = remote.on_each_kind(found.cluster, task)
    except LaunchError as error:
        raise UsageError(f"--sweep: {error.message}" + (f"; {error.hint}" if error.hint else "")) from None
    made.notes += ["Baselines were not measured on the cluster."] if found.expressions else []
    return made


OPTION = Option(
    "--sweep",
    {
        "metavar": "NAME=VALUES",
        "nargs": "+",
        "action": "append",
        "help": "Measure the kernel for several values of a constant, an option, or a variable of --launch, interleaved with "
        "the baselines. Examples: --sweep BLOCK=256,512,1024, --sweep num_warps=1,2,4,8, --sweep n=2**10..2**24 --launch run(n). Two "
        "of them make a heat map.",
    },
    after,
    prepare,
)
