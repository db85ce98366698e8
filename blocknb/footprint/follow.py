"""`footprint(launch)`: the static access log of a launch, or the recorded one where data decide, with its findings."""

from __future__ import annotations

from blocknb.errors import LaunchError
from blocknb.footprint.access_log import AccessLog, Budget, NotStatic
from blocknb.footprint.findings import footprint_of
from blocknb.footprint.launch import MemoryLaunch
from blocknb.footprint.recorded import record
from blocknb.footprint.static import follow
from blocknb.footprint.value import Footprint

MOST_PROGRAMS = 1 << 26  # of the grid: an access log has some numbers per program


def footprint(launch: MemoryLaunch, budget: Budget | None = None, kind: type[AccessLog] = AccessLog) -> Footprint:
    """Follows the programs of a launch within a budget, by default about two seconds; beyond it a sample. `kind` is the class of the
    log. Raises LaunchError for a grid of too many programs."""
    if launch.programs > MOST_PROGRAMS:
        hint = f"make the footprint of a smaller grid: at most {MOST_PROGRAMS} programs"
        raise LaunchError(f"a grid of {launch.programs} programs is too large for a footprint", launch.func.loc, hint)
    budget = budget or Budget()
    try:
        log = follow(launch, budget, kind)
    except NotStatic as error:
        log = record(launch, budget, str(error), kind)
    return footprint_of(log)
