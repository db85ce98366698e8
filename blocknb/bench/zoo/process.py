"""The worker processes of `blocknb bench zoo`, as the process that compares them sees them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from typing import Any

from blocknb.bench.rows import Row

OURS, TRITON = "blocknb", "triton"


class CompilerProcess:
    """The worker of a compiler, started again if it dies: a kernel that reads invalid memory ends its process.

    `configs` is the most configurations of an autotuner (0: all), `limit` the seconds until an answer must come. With a `target` the
    process compiles for it, and needs no GPU. BLOCKNB_ZOO_LOG names a file for what the process writes to stderr."""

    def __init__(self, compiler: str, configs: int = 0, limit: float = 600.0, target: str = "") -> None:
        self.compiler, self.configs, self.limit, self.target = compiler, configs, limit, target
        self.process: subprocess.Popen[str] | None = None
        self.listed: list[str] = []

    def ask(self, do: str, **request: Any) -> Row:
        """The answer to a request; {"error": text} if the process died of it."""
        self.send(do, **request)
        return self.receive()

    def send(self, do: str, **request: Any) -> None:
        """Sends a request, whose answer `receive` waits for."""
        process = self._running()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` finds out
            process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            process.stdin.flush()

    def receive(self) -> Row:
        """The answer to the oldest request."""
        process = self._running()
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], self.limit)
        if not ready:
            self.stop()
            return {"error": f"no answer within {self.limit:g} seconds"}
        line = process.stdout.readline()
        if not line:
            self.stop()
            return {"error": "the process died"}
        answer: Row = json.loads(line)
        if "error" in answer and _fatal(answer["error"]):
            self.stop()
        return answer

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            command = [sys.executable, "-m", "blocknb.bench.zoo.worker", self.compiler, self.target or "-"]
            command.append(str(self.configs))
            with open(os.environ.get("BLOCKNB_ZOO_LOG", os.devnull), "a") as errors:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
            for library in self.listed:
                self.ask("list", library=library)
        return self.process

    def stop(self) -> None:
        """Ends the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


#: In the errors after which CUDA refuses all further work of a process.
FATAL = ("illegal memory", "outside of its arrays", "misaligned address", "launch failure", "illegal instruction")


def _fatal(error: str) -> bool:
    return any(words in error.lower() for words in FATAL)
