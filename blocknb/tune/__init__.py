"""Chooses launch constants by measurement (`autotune`), or computes them from the arguments (`heuristics`)."""

from blocknb.tune.autotuner import Autotuner, autotune
from blocknb.tune.config import Config
from blocknb.tune.heuristics_decorator import Heuristics, heuristics
from blocknb.tune.pruning import AutotunerError

__all__ = ["Autotuner", "AutotunerError", "Config", "Heuristics", "autotune", "heuristics"]
