"""What a launch does when it is like the one before: one function, written for these kinds, looks at the arguments.

Describing an argument means to look up how its type is described, and a key out of all Kinds then finds the plan. A launch in a loop
has the same Kinds every time, and to see that they are the same is less work than to find out what they are: for each argument one
test, written out. A function of all the tests is made when a plan is used for the second time; where it says no, the launch goes
the general way, so that nothing depends on it but time. It must never say yes where `arguments.describe` gives another Kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blocknb.language.types import DType, Pointer
from blocknb.runtime import arguments
from blocknb.runtime.arguments import HOST, NONE, ONE, Kind
from blocknb.runtime.plan import Plan

Raws = Sequence[Any]


@dataclass(frozen=True, eq=False)
class Repeated:
    """`raws(values)` gives the raw values of arguments whose Kinds are those of the plan, None where one has another (or
    may have: the general way decides)."""

    plan: Plan
    raws: Callable[[tuple[Any, ...]], Raws | None]


def nothing(values: tuple[Any, ...]) -> None:
    """The `raws` of a plan with an argument whose Kind is not seen at a glance."""


def repeated(plan: Plan, values: tuple[Any, ...], fixed: Sequence[bool]) -> Repeated:
    """The Repeated of a plan, from values that have its Kinds; `fixed` says which of them are constants."""
    names = {"read": arguments._read_address}
    tests, raws = [], []
    for i, (value, kind, constant) in enumerate(zip(values, plan.kinds, fixed, strict=True)):
        found = _constant(f"v{i}", value, names) if constant else _test(f"v{i}", value, kind, names)
        if found is None:
            return Repeated(plan, nothing)
        tests.append(found[0])
        raws.append(found[1])
    lines = [
        "def raws(values):",
        f"    [{', '.join(f'v{i}' for i in range(len(values)))}] = values",
        "    try:",
        f"        return [{', '.join(raws)}] if {' and '.join(tests) or True} else None",
        "    except RuntimeError:  # a tensor without memory: the general way says so",
        "        return None",
    ]
    exec("\n".join(lines), names)
    return Repeated(plan, names["raws"])  # type: ignore[arg-type]


def _named(value: Any, names: dict[str, Any]) -> str:
    """The name under which the function finds an object."""
    name = f"c{len(names)}"
    names[name] = value
    return name


def _constant(name: str, value: Any, names: dict[str, Any]) -> tuple[str, str] | None:
    """(the test whether an argument is the same constant, its raw value)."""
    if value is None or isinstance(value, DType):
        return f"{name} is {_named(value, names)}", "None"
    # Floats that are equal may differ in the sign of a zero, and a NaN is not equal to itself.
    if type(value) in (int, str, bool) or (type(value) is float and value and value == value):
        return f"type({name}) is {_named(type(value), names)} and {name} == {_named(value, names)}", "None"
    return None


def _test(name: str, value: Any, kind: Kind, names: dict[str, Any]) -> tuple[str, str] | None:
    """(the test whether an argument has the same Kind, its raw value)."""
    if kind is NONE:
        return f"{name} is None", "None"
    type_ = _named(type(value), names)
    same = f"type({name}) is {type_}"
    if kind is ONE:
        return (f"{same} and {name} == 1", name) if type(value) is int else None
    if isinstance(kind.type, Pointer):
        return _array(name, value, kind, names, same)
    if type(value) is float or type(value) is bool:
        return same, name
    if type(value) is int and kind.type.name == "int32":
        multiple = f"not {name} & 15" if kind.divisibility == 16 else f"{name} & 15 and {name} != 1"
        return f"{same} and -2147483648 <= {name} < 2147483648 and {multiple}", name
    return None


def _array(name: str, value: Any, kind: Kind, names: dict[str, Any], same: str) -> tuple[str, str] | None:
    address, mask = f"a{name}", kind.type.element.bytes - 1
    match arguments.DESCRIBE.get(type(value)):
        case arguments._numpy if not kind.readonly and arguments.numpy_address is arguments._quickly:
            where = f"{name}.flags.writeable"
            read = f"read(id({name}) + {arguments._ADDRESS_AT}).value or 0"
        case arguments._cupy:
            where = f"(m{name} := {name}.data).device_id == {kind.device}"
            read = f"m{name}.ptr"
        case arguments._torch:
            where = (
                f"{name}.is_cpu" if kind.device == HOST else f"{name}.is_cuda and {name}.get_device() == {kind.device}"
            )
            where += f" and not {name}.is_neg()"
            read = f"{name}.data_ptr()"
        case _:
            return None
    found = f"({address} := {read})"
    aligned = f"not {found} & 15" if kind.divisibility == 16 else f"{found} & 15 and not {address} & {mask}"
    return f"{same} and {name}.dtype is {_named(value.dtype, names)} and {where} and {aligned}", address
