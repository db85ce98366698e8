"""`--client EXPR`: kernels of this cell run on the workers of a Dask cluster, and the card has a row for each worker.

EXPR is a client in the user's namespace. Without the option, a cell uses no client, even if the namespace has one. While the cell runs,
the workers observe their launches. At its end the notebook compiles the same kernels for the targets of the workers, without a launch, so
that a card shows their stages. With `--sweep`, one worker of each kind of device measures the values.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from IPython.core.error import UsageError

from blocknb.notebook.expressions import Expression
from blocknb.notebook.options import Found, Option, unquoted


@dataclass(eq=False)
class ClusterCell(AbstractContextManager["ClusterCell"]):
    """A cell with `--client`: as a context manager, it observes the workers. `rows` are their launches by the kernel of the notebook."""

    client: Any
    text: str
    token: str = ""
    rows: dict[Any, list[dict[str, Any]]] = field(default_factory=dict)

    def __enter__(self) -> ClusterCell:
        from blocknb.notebook.cluster import workers

        self.token = workers.start(self.client)
        return self

    def __exit__(self, *error: object) -> None:
        from blocknb.notebook.cluster import workers

        if self.token:
            workers.stop(self.client, self.token)  # after an error of the cell; else `collect` has stopped them
            self.token = ""

    def collect(self) -> None:
        """Passes the launches of the workers to the observers of this process, and keeps their rows."""
        from blocknb.notebook.cluster import workers

        token, self.token = self.token, ""
        self.rows = workers.collect(self.client, token)


def prepare(words: Any, shell: Any) -> ClusterCell | None:
    if not words:
        return None
    text = unquoted(words)
    client = Expression(text, shell, "--client")()
    if not (hasattr(client, "submit") and hasattr(client, "scheduler_info")):
        raise UsageError(
            f"--client: {text} is a {type(client).__name__}, and not a client of Dask: "
            "client = dask.distributed.Client(...), then --client client"
        )
    return ClusterCell(client, text)


def run(cell: ClusterCell, shell: Any, text: str) -> None:
    cell.collect()


def after(cell: ClusterCell, record: Any, shell: Any, found: Found) -> None:
    from blocknb.notebook.cluster import workers

    found.cluster = cell.client
    if rows := cell.rows.get(record.kernel):
        part = workers.part(cell.client, rows)
        found.parts["workers"] = part
        found.facts += workers.facts(part)
        if record.latest.snapshot is None and not record.latest.why:
            record.latest.why = "it ran on a worker of the cluster"


OPTION = Option(
    "--client",
    {
        "metavar": "CLIENT",
        "nargs": "+",
        "help": "A Dask client: the card also shows the launches on its workers, with a row for each worker. With --sweep, one worker of "
        "each kind of device measures the values: --client client --sweep BLOCK=256,512,1024.",
    },
    after,
    prepare,
    run=run,
)
