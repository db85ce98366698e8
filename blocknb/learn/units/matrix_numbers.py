"""The numbers of a product that passed: its instructions, registers, modelled timeline, and its error against float64."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from blocknb.learn.code_rules import NO_PTXAS, TARGET
from blocknb.learn.running import Attempt
from blocknb.learn.units.matrix_rules import SIZE, square_timeline
from blocknb.trace import Trace


def numbers_of_product(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Sentences about a product that passed its rules. The code is that for a square product, on sm_90a."""
    trace, found = square_timeline(attempts[0])
    needs = trace.resources
    yield products_in(trace)
    if needs.registers is None:
        yield f"the registers and spills are unknown, because {NO_PTXAS}"
    else:
        yield f"{needs.registers} registers per thread, {needs.spill_bytes or 0} bytes of spills"
    yield f"products are under way for {found.busy:.0%} of the modelled time for {SIZE} x {SIZE} x {SIZE}"
    errors = [(largest_error(made), made.case.name) for made in attempts]
    error, case = max(errors)
    yield f"the largest error against float64 is {error:.2g} of the element, in the case {case}"


def products_in(trace: Trace) -> str:
    """How many wgmma instructions the SASS has, where they are named HGMMA; those of the PTX without a disassembler."""
    if trace.sass is None:
        return f"the PTX for {TARGET} has {len(re.findall(r'wgmma.mma_async', trace.ptx or ''))} wgmma"
    names = Counter(re.findall(r"\bHGMMA[\w.]*", trace.sass.text))
    listed = " and ".join(f"{count} {name}" for name, count in names.items())
    return f"wgmma in the SASS for {TARGET}: {listed or 'none'}"


def largest_error(made: Attempt) -> float:
    """The largest relative error of an attempt's outputs; where float64 has 0, the absolute one."""
    found = 0.0
    for name, want in made.want.items():
        off = np.abs(np.asarray(made.left[name], np.float64) - want)
        found = max(found, float((off / np.where(want == 0, 1.0, np.abs(want))).max(initial=0.0)))
    return found
