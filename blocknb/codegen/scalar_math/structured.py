"""Structured control flow in LLVM text: counted loops and guarded code. Their state lives in stack slots, so no phi node is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blocknb.codegen.text import Writer


@contextmanager
def counted(w: Writer, start: str, stop: str, step: int, hint: str = "i") -> Iterator[str]:
    """A loop of an i64 counter from `start` to `stop`, which may run zero times; yields the counter's name.

    The test stands at the end of the loop. LLVM would otherwise rotate each loop itself, which takes long in kernels of many loops.
    """
    slot = w.slot("i64", hint)
    body, done = (w.fresh(hint + s) for s in (".body", ".done"))
    w.do(f"store i64 {start}, ptr {slot}")
    if not (start.isdigit() and stop.isdigit() and int(start) < int(stop)):
        w.branch(w.value(f"icmp slt i64 {start}, {stop}"), body, done)
    w.place(body)
    counter = w.value(f"load i64, ptr {slot}")
    yield counter
    after = w.value(f"add nsw i64 {counter}, {step}")
    w.do(f"store i64 {after}, ptr {slot}")
    w.branch(w.value(f"icmp slt i64 {after}, {stop}"), body, done)
    w.place(done)


def when(w: Writer, condition: str, action: Callable[[], object]) -> None:
    """Runs the code that `action` emits if the i1 holds."""
    yes, after = w.fresh("then"), w.fresh("after")
    w.branch(condition, yes, after)
    w.place(yes)
    action()
    w.place(after)


def guarded(w: Writer, condition: str, type: str, other: str, action: Callable[[], str]) -> str:
    """The value that `action` emits if the i1 holds, else `other`."""
    slot = w.slot(type)
    w.do(f"store {type} {other}, ptr {slot}")
    when(w, condition, lambda: w.do(f"store {type} {action()}, ptr {slot}"))
    return w.value(f"load {type}, ptr {slot}")
