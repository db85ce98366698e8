"""Generates docs/language.md, the table of the language: every name, its summary, and the backends on which its example runs.

`blocknb reference` runs the examples in the interpreters and on the CPU, and writes the table. `blocknb reference --gpu` runs them on a
GPU, and records the results in docs/language_gpu.json with a hash of each example. So a changed example counts as not run, until
`blocknb reference --gpu --new` runs the examples that have no record. A test keeps the table up to date.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from blocknb.language.ops import named
from blocknb.language.refused import REFUSED
from blocknb.language.versions import NEWEST, OLDEST, triton_version
from blocknb.testing import examples
from blocknb.testing.examples import Example

DOCS = Path(__file__).resolve().parents[2] / "docs"
TABLE, GPU = DOCS / "language.md", DOCS / "language_gpu.json"
COLUMNS = examples.BACKENDS

#: The names of each group. Dtypes and functions of libdevice are recognized by `group`.
GROUPS: dict[str, str] = {
    "Programs": "program_id num_programs swizzle2d cdiv debug_barrier current_target is_cuda cuda_capability_geq is_hip is_hip_cdna3 "
    "is_hip_cdna4 num_threads num_warps smid globaltimer gdc_wait gdc_launch_dependents",
    "Making tiles": "arange full zeros zeros_like to_tensor cast to where",
    "Shapes": "reshape view ravel broadcast broadcast_to expand_dims squeeze unsqueeze trans permute join split interleave cat item",
    "Memory": "load store make_block_ptr advance make_tensor_descriptor load_tensor_descriptor store_tensor_descriptor",
    "Matrix products": "dot dot_scaled",
    "Arithmetic": "add sub mul fdiv div_rn fma umulhi maximum minimum clamp abs floor ceil sqrt sqrt_rn rsqrt exp exp2 log log2 sin cos "
    "tanh erf sigmoid softmax logical_and logical_or inline_asm_elementwise map_elementwise",
    "Reductions": "sum max min argmax argmin xor_sum reduce_or reduce",
    "Scans, sorting and moves": "cumsum cumprod associative_scan sort topk bitonic_merge flip gather histogram xor_shuffle",
    "Atomics": "atomic_add atomic_max atomic_min atomic_and atomic_or atomic_xor atomic_xchg atomic_cas atomic_poll",
    "Random numbers": "rand randn randint rand4x randn4x randint4x philox philox_impl uint_to_uniform_float pair_uniform_to_normal",
    "Loops and hints": "range static_range condition assume multiple_of max_contiguous max_constancy static_assert static_print "
    "device_print device_assert",
    "Dtypes": "",
    "libdevice": "",
    "Other names": "",
}

HEAD = f"""\
# The language

This page lists every name of the language by its name in Triton. The columns say where its example runs. They stand for the interpreter of
the IR, the kernel's own Python (`kernel.interpret`), the CPU, and a GPU.

| entry | meaning |
|---|---|
| yes | the example in the docstring ran there and gave the result that it claims |
| needs a GPU | the name has a meaning on a GPU only |
| not run | no run is recorded since the name was added; `blocknb reference --gpu --new` runs it |
| other text | the error that the name raises there |

The column "Triton" says since which version Triton has the name. The versions {OLDEST} to {NEWEST} were compared.

`help(tl.load)` shows shapes, dtypes, errors and the example of a name. `blocknb reference` writes this page, so do not edit it.

`libdevice` is reached as `tl.extra.libdevice`, `tl.extra.cuda.libdevice`, `tl.libdevice` and `tl.math`. Names under *tensor* are methods of
tiles. Most functions of one tile are methods, too.
"""


def group(name: str) -> str:
    """The group of a name as `examples.documented` spells it."""
    place, _, last = name.rpartition(".")
    if place == "libdevice":
        return "libdevice"
    if name.removeprefix("tl.") in examples.dtypes():
        return "Dtypes"
    others = "Arithmetic" if last in named("elementwise") else "Other names"
    return next((title for title, names in GROUPS.items() if last in names.split()), others)


def digest(example: Example) -> str:
    return hashlib.sha256(example.text.encode()).hexdigest()[:12]


def state(example: Example | None, backend: str, recorded: Mapping[str, Any] | None = None) -> str:
    """The table's entry for an example and a backend: "yes", "not run", "needs a GPU" or an error message.

    Runs the example, except on the GPU, whose results are in `recorded`.
    """
    if example is None:
        return "not run"
    if backend == "gpu":
        before = (recorded or {}).get("names", {}).get(example.name)
        return before[1] if before and before[0] == digest(example) else "not run"
    if example.gpu_only:
        return "needs a GPU"
    return examples.outcome(example, backend)


def recorded() -> dict[str, Any]:
    """The recorded results of a GPU. `device` has its name. `names` has the digest and the outcome of each example, and the name of the GPU
    if it was another one."""
    return json.loads(GPU.read_text()) if GPU.exists() else {}


def device_name() -> str:
    """The name of this machine's GPU."""
    from blocknb.runtime.cuda import cupy as load_cupy

    return str(load_cupy().cuda.runtime.getDeviceProperties(0)["name"].decode())


def record(new: bool = False) -> dict[str, Any]:
    """Runs every example on this machine's GPU and writes the results; with `new` only those without a record. The outcome of a wrong claim
    begins with "wrong"."""
    before = recorded() if new else {}
    device = device_name()
    known = before.get("names", {})
    another = [device] if before and before["device"] != device else []
    found: dict[str, Any] = {}
    for name, example in examples.examples().items():
        if example is None:
            continue
        if name in known and known[name][0] == digest(example):
            found[name] = known[name]
            continue
        try:
            found[name] = [digest(example), examples.outcome(example, "gpu"), *another]
        except AssertionError as error:
            found[name] = [digest(example), f"wrong: {' '.join(str(error).split())[:120]}", *another]
    result = {"device": before.get("device", device), "names": found}
    GPU.write_text(json.dumps(result, indent=0) + "\n")
    return result


def devices(before: Mapping[str, Any]) -> str:
    """The sentence of the page on the GPUs of the recorded runs."""
    others: dict[str, list[str]] = {}
    for name, (_, _, *device) in before["names"].items():
        for each in device:
            others.setdefault(each, []).append(f"`{name}`")
    more = "".join(f" For {', '.join(names)} it was an {device}." for device, names in others.items())
    return f"The GPU was an {before['device']}.{more}"


def summary(function: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())
    end = text.find(". ")
    return (text if end < 0 else text[: end + 1]).replace("|", "\\|")


def rows() -> dict[str, str]:
    """Every name of the table with its summary, by group."""
    found = {name: summary(function) for name, function in examples.documented()}
    kinds = {"bool": "a condition", "int": "signed integers", "uint": "unsigned integers", "float": "floats"}
    import blocknb.language as tl

    for name in examples.dtypes():
        dtype = getattr(tl, name)
        found[f"tl.{name}"] = f"{kinds[dtype.kind].capitalize()} of {dtype.bits} bit{'s' if dtype.bits > 1 else ''}."
    order = list(GROUPS)
    place = {last: i for names in GROUPS.values() for i, last in enumerate(names.split())}

    def position(name: str) -> tuple[int, int]:
        return order.index(group(name)), place.get(name.rpartition(".")[2], 999)

    return {name: found[name] for name in sorted(found, key=position)}


def states() -> dict[str, tuple[str, ...]]:
    """The entries of every name, one per column. Runs the examples."""
    before, all_examples = recorded(), examples.examples()
    return {n: tuple(state(example, backend, before) for backend in COLUMNS) for n, example in all_examples.items()}


def render(found: Mapping[str, tuple[str, ...]]) -> str:
    """The table with these entries."""
    before = recorded()
    lines = [HEAD]
    if before:
        lines.append(devices(before) + "\n")
    last = ""
    for name, text in rows().items():
        if group(name) != last:
            last = group(name)
            lines += [
                f"\n## {last}\n",
                "| name | IR | Python | CPU | GPU | Triton | meaning |",
                "|---|---|---|---|---|---|---|",
            ]
        cells = " | ".join(cell.replace("|", "\\|") for cell in found[name])
        lines.append(f"| `{name}` | {cells} | {triton_version(name)} | {text} |")
    lines += ["\n## Names of Triton that are left out\n", "| name | instead |", "|---|---|"]
    lines += [f"| `tl.{name}` | {hint} |" for name, hint in sorted(REFUSED.items())]
    return "\n".join(lines) + "\n"


def read(text: str) -> dict[str, tuple[str, ...]]:
    """The entries of a table."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").split("|")]
        if len(cells) == 9 and cells[1].startswith("`"):
            found[cells[1].strip("`")] = tuple(cell.replace("\0", "|") for cell in cells[2:6])
    return found


def write() -> Path:
    """Runs the examples and writes the table."""
    with redirect_stdout(io.StringIO()):  # some examples print
        found = states()
    TABLE.write_text(render(found))
    return TABLE
