"""`footprint(launch)`: the static account of a launch, or the recorded one where data decide, with its findings."""

from __future__ import annotations

from blocknb.analysis.partial_evaluation.evaluator import TooMuch
from blocknb.footprint.account import Account, Beyond, Budget, NotStatic
from blocknb.footprint.findings import footprint_of
from blocknb.footprint.launch import MemoryLaunch
from blocknb.footprint.recorded import record
from blocknb.footprint.static import follow
from blocknb.footprint.value import Footprint


def footprint(launch: MemoryLaunch, budget: Budget | None = None) -> Footprint:
    """Follows the programs of a launch within a budget, by default about two seconds, and a sample of them beyond it."""
    return footprint_of(account_of(launch, budget or Budget()))


def account_of(launch: MemoryLaunch, budget: Budget) -> Account:
    try:
        return follow(launch, budget)
    except NotStatic as error:
        return record(launch, budget, str(error))
    except (TooMuch, Beyond):
        return record(launch, budget, "one program alone is too long to follow")
