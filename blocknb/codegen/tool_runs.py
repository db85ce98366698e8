"""Runs ptxas and nvdisasm for a worker: `run_tool` starts one, and a `WaitingTool` is one that was started before its input exists.

On a small kernel, ptxas needs half of its time to start. It relocates 50 MB and fills its tables before it opens its input. A `WaitingTool`
does that while the worker is idle or LLVM runs, and then waits for the input on a pipe. `worker.py` is a script that imports this file from
its own folder, so this file imports nothing of blocknb.
"""

import os
import signal


def write_all(fd: int, data: bytes) -> None:
    """Writes all bytes to a file or a blocking pipe; raises BrokenPipeError if the reading end is closed."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def memory_file(name: str, content: bytes = b"") -> int:
    """Creates a file in memory, which a child process opens as /proc/self/fd/N. It disappears with its last owner."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, 0)  # not close-on-exec: children shall have it
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="blocknb-" + name)
        os.unlink(path)
        os.set_inheritable(fd, True)
    write_all(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def end_with_tools() -> None:
    """Ends this process and the tool that it runs, which would otherwise run to its end without a reader. A worker leads its own group."""
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _named(fd: int) -> str:
    """The path by which a child process opens a file that it inherits."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    return f"{folder}/{fd}"


def run_tool(arguments: list[str], source: bytes, suffix: list[str]) -> tuple[int, bytes, str]:
    """Runs a tool on `source`; `{in}` and `{out}` stand for the files. Returns (exit status, output file, log).

    Raises OSError if the tool does not start.
    """
    source_fd, out_fd, log_fd = memory_file("in", source), memory_file("out"), memory_file("log")
    try:
        names = {"{in}": _named(source_fd), "{out}": _named(out_fd)}
        argv = [names.get(a, a) for a in [*arguments, *suffix]]
        writes_file = "{out}" in suffix
        actions = [
            (os.POSIX_SPAWN_DUP2, log_fd if writes_file else out_fd, 1),
            (os.POSIX_SPAWN_DUP2, log_fd, 2),
        ]
        pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, _content(out_fd), _content(log_fd).decode("utf-8", "replace").strip()
    finally:
        for fd in (source_fd, out_fd, log_fd):
            os.close(fd)


class WaitingTool:
    """A run of ptxas that waits for its input: `arguments` are the command line without input and output.

    One run serves one input. The process ends by itself when the worker ends, because its input ends then. Raises OSError if it does not
    start.
    """

    def __init__(self, arguments: list[str]):
        self.arguments = arguments
        self._out, self._log = memory_file("out"), memory_file("log")
        source, self._source = os.pipe()
        actions = [
            (os.POSIX_SPAWN_DUP2, source, 0),
            (os.POSIX_SPAWN_DUP2, self._log, 1),
            (os.POSIX_SPAWN_DUP2, self._log, 2),
        ]
        argv = [*arguments, _named(0), "-o", _named(self._out)]
        try:
            self._pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
        except OSError:
            self._close(self._source, self._out, self._log)
            raise
        finally:
            os.close(source)

    def finish(self, source: bytes) -> tuple[int, bytes, str]:
        """Gives the tool its input and waits for its end. Returns (exit status, output file, log)."""
        try:
            write_all(self._source, source)
        except BrokenPipeError:
            pass  # it has ended already, which its status tells
        finally:
            os.close(self._source)
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        answer = status, _content(self._out), _content(self._log).decode("utf-8", "replace").strip()
        self._close(self._out, self._log)
        return answer

    def discard(self) -> None:
        """Ends the tool without input."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._close(self._source, self._out, self._log)

    @staticmethod
    def _close(*files: int) -> None:
        for fd in files:
            os.close(fd)
