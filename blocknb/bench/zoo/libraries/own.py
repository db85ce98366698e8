"""The zoo of this project's tests: kernels of the kinds that public projects contain, written for Triton.

It exists only in a clone of the repository, with tests/ on the path.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from blocknb.bench.zoo.cases import CaseList, RandomInputs


def register(cases: CaseList) -> None:
    """Adds a case for each specimen. Raises ImportError if tests/ is not on the path."""
    import numpy as np

    import blocknb

    if not hasattr(sys.modules["triton"], "theirs"):  # Triton itself: the files are run as they are
        blocknb.load = _as_it_is
    from zoo import ZOO
    from zoo.arrays import place

    for specimen in ZOO.values():
        names: list[str] = []

        def make(r: RandomInputs, specimen: Any = specimen, names: list[str] = names) -> dict[str, Any]:
            seed = int(r.integers(0, 2**31, 1).item())
            made = specimen.make(np.random.default_rng(seed))
            names[:] = made
            return {name: place(value, "torch", r.device) for name, value in made.items()}

        def call(*values: Any, specimen: Any = specimen, names: list[str] = names) -> Any:
            return specimen.call(**dict(zip(names, values, strict=True)))

        name, _, shape = specimen.name.rstrip("]").partition("[")
        cases.add(name, call, **{shape: make})


def _as_it_is(path: Any) -> Any:
    """Runs a file as a module."""
    name = "zoo_family_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
