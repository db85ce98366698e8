"""The kinds of devices of a Dask cluster: the name of each worker's GPU, or of its CPU.

Times are comparable only within one kind of device. So a measurement on a cluster runs once per kind, on one worker of the kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from blocknb.errors import LaunchError
from blocknb.profile.ceilings import name_of
from blocknb.runtime import machine
from blocknb.runtime.kinds import HOST

CONNECT = "10s"  # to wait for the answer of a scheduler


@dataclass(frozen=True)
class WorkerDevice:
    """The device that kernels of a worker run on: its number in the worker (-1 for the CPU), and its name, which is its kind."""

    worker: str
    number: int
    name: str


def own_device() -> tuple[int, str]:
    """The number and the name of the default device of this process: the current GPU, else the CPU."""
    gpu = machine.current_gpu()
    number = HOST if gpu is None else gpu
    return number, name_of(number)


def devices(client: Any) -> list[WorkerDevice]:
    """The device of each worker of a Dask client, by the address of the worker. Raises LaunchError for a cluster without workers."""
    found = client.run(own_device)
    if not found:
        raise LaunchError(
            "the cluster of this client has no workers", hint="start some, or wait: client.wait_for_workers(1)"
        )
    return [WorkerDevice(worker, *device) for worker, device in sorted(found.items())]


def one_per_kind(client: Any) -> list[WorkerDevice]:
    """One worker of each kind of device, in the order of their names."""
    kinds: dict[str, WorkerDevice] = {}
    for device in devices(client):
        kinds.setdefault(device.name, device)
    return [kinds[name] for name in sorted(kinds)]


@contextmanager
def connected(client: Any) -> Iterator[Any]:
    """A Dask client: the one that is given, or a new one for an address such as "tcp://127.0.0.1:8786", which is closed at the end.

    Raises LaunchError if Dask is missing or no scheduler answers."""
    if not isinstance(client, str):
        yield client
        return
    try:
        import distributed
    except ImportError:
        raise LaunchError(f"{client} needs Dask, which is not installed", hint='pip install "blocknb[dask]"') from None
    try:
        made = distributed.Client(client, timeout=CONNECT)
    except (OSError, ValueError, TimeoutError) as error:
        hint = "start one with `dask scheduler`, and write the address that it prints"
        raise LaunchError(f"no Dask scheduler answers at {client}: {error}", hint=hint) from None
    with made:
        yield made


def run_on(client: Any, device: WorkerDevice, function: Any, *arguments: Any) -> Any:
    """Runs a function on one worker and returns its result, or raises its exception. No other worker may take it over."""
    future = client.submit(
        function, *arguments, workers=[device.worker], allow_other_workers=False, pure=False, retries=0
    )
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
