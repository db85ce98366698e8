"""Parallel compilation: `gathered` collects requests, and `compile_all` compiles them on all workers.

This process generates the LLVM text of one kernel while the workers produce machine code of earlier ones. It uses no threads, so an
interrupt reaches the caller, which stops the busy workers and waits for none. A kernel that fails to compile yields its error.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from blocknb.errors import KernelError
from blocknb.runtime import compile as compiler
from blocknb.runtime.compile import Compiled
from blocknb.runtime.launch_context import this_thread
from blocknb.runtime.progress import on_terminal
from blocknb.runtime.request import Request

if TYPE_CHECKING:
    from blocknb.runtime.job import Job

#: Shows the progress of long work, from its number of steps and a label. The context manager yields a function that is called with each
#: step that begins. The notebook installs one that draws a bar; a terminal shows a line; other outputs show nothing.
Shows = Callable[[int, str], contextlib.AbstractContextManager[Callable[[str], None]]]
shows: Shows = on_terminal


@contextlib.contextmanager
def gathered() -> Iterator[list[Request]]:
    """Makes `warmup` of kernels append its request to the list that is yielded. It then compiles nothing and returns None."""
    before, this_thread.gathered = this_thread.gathered, []
    try:
        yield this_thread.gathered
    finally:
        this_thread.gathered = before


def compile_all(
    requests: Sequence[Request], label: str = "compiling", show: Shows | None = None
) -> list[Compiled | KernelError]:
    """Compiles the requests that no cache holds. Returns for each request its Compiled or its error.

    The results stay in the memory cache. After an interrupt, finished kernels stay there too. `show` replaces `shows`."""
    answers: dict[Request, Compiled | KernelError] = {}
    first: dict[tuple[str, str], Request] = {}
    for request in requests:
        first.setdefault(request.key, request)
    for request in first.values():
        if (found := compiler.find(request)) is not None:
            answers[request] = found
    if missing := [request for request in first.values() if request not in answers]:
        with (show or shows)(len(missing), label) as step:
            _compile(missing, answers, step)
    return [answers[first[request.key]] for request in requests]


def _compile(
    requests: Sequence[Request], answers: dict[Request, Compiled | KernelError], step: Callable[[str], None]
) -> None:
    job = compiler.load()
    running: collections.deque[Job] = collections.deque()
    known = len(answers)

    def finish() -> None:
        step(f"{len(answers) - known + 1} of {len(requests)}")
        request = running[0].request
        try:
            answers[request] = compiler.keep(request, compiler.stored(running[0], *running[0].finish()))
        except KernelError as error:
            answers[request] = error
        running.popleft()

    try:
        for request in requests:
            one = job.Job(request)
            try:
                one.begin()
            except KernelError as error:
                answers[request] = error
                continue
            running.append(one)
            while running and running[0].done:
                finish()
        while running:
            finish()
    except BaseException:
        for one in running:
            one.abandon()
        raise
