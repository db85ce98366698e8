"""Many compiles at a time: `gathered` takes down what would be compiled, `compile_all` compiles it on all workers.

This process writes the text of one kernel after another while the workers make machine code of those before. Nothing of it needs a
thread, so an interrupt arrives where it can be handled: the workers that are busy for us are stopped, and nothing waits for them. A
kernel that cannot be compiled is an answer like any other.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from blocknb.errors import KernelError
from blocknb.runtime import compile as compiler
from blocknb.runtime.compile import Compiled
from blocknb.runtime.progress import on_terminal
from blocknb.runtime.request import Request

if TYPE_CHECKING:
    from blocknb.runtime.job import Job

#: Called for long work with the number of its steps and a label; the context manager gives a function that is told of each step that
#: begins. The notebook puts its own in, which shows a bar; a terminal gets a line, anything else nothing.
Shows = Callable[[int, str], contextlib.AbstractContextManager[Callable[[str], None]]]
shows: Shows = on_terminal


class _Gathering(threading.local):
    requests: list[Request] | None = None


gathering = _Gathering()


@contextlib.contextmanager
def gathered() -> Iterator[list[Request]]:
    """Inside, `warmup` of a kernel compiles nothing and returns None: what it would compile is put into the list."""
    before, gathering.requests = gathering.requests, []
    try:
        yield gathering.requests
    finally:
        gathering.requests = before


def compile_all(
    requests: Sequence[Request], label: str = "compiling", show: Shows | None = None
) -> list[Compiled | KernelError]:
    """Compiles all, or finds them compiled; who asks for one of them then finds it in memory. Returns for each what was made, or the
    error. An interrupt ends it, and what is done until then stays. `show` stands in for `shows`."""
    answers: dict[Request, Compiled | KernelError] = {}
    first: dict[tuple[str, str], Request] = {}
    for request in requests:
        first.setdefault(request.key, request)
    missing = []
    for request in first.values():
        if (found := compiler.find(request)) is not None:
            answers[request] = found
        else:
            missing.append(request)
    if missing:
        with (show or shows)(len(missing), label) as step:
            _compile(missing, answers, step)
    return [answers[first[request.key]] for request in requests]


def _compile(
    requests: Sequence[Request], answers: dict[Request, Compiled | KernelError], step: Callable[[str], None]
) -> None:
    job = compiler.load()
    begun: collections.deque[Job] = collections.deque()
    known = len(answers)

    def finish() -> None:
        one = begun[0]
        step(f"{len(answers) - known + 1} of {len(requests)}")
        try:
            answers[one.request] = compiler.keep(one.request, compiler.stored(one, *one.finish()))
        except KernelError as error:
            answers[one.request] = error
        begun.popleft()

    try:
        for request in requests:
            one = job.Job(request)
            try:
                one.begin()
            except KernelError as error:
                answers[request] = error
                continue
            begun.append(one)
            while begun and begun[0].done:
                finish()
        while begun:
            finish()
    except BaseException:
        for one in begun:
            one.abandon()
        raise
