"""Processes that begin where the imports end.

A Python that has imported NumPy, pyarrow and the package has used half a second of processor time,
and the tests start hundreds of them to kill them. One process of this module imports, once for each
process of pytest; the others are its forks, which become what `python -m MODULE ARGUMENT ...`, or
`python -c PROGRAM ARGUMENT ...`, would be. Each has its own session, environment, streams and
arguments, in an interpreter that has done nothing yet, and that ends as any other.

What is tested for how it starts, or for the memory that it takes, starts as a user starts it. So
does everything where the kernel has no descriptors of processes: Linux has them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

import rmqstore_spark
from rmqstore_spark.engine import failpoints
from tests.support.processes.surroundings import path_without_pandas

__all__ = ["Forked", "is_stopped", "run", "start"]

_ROOT: Final = Path(__file__).parents[3]
_WITH_SPARK: Final = ("rmqstore_spark.datasource", "rmqstore_spark.pipelines")
_OF_TESTS: Final = ("tests.fault.messages", "tests.support.messages.batches")
_LARGEST: Final = 1 << 17  # bytes of a command and its environment


class Forked:
    """A process that was forked: what of `subprocess.Popen` the tests use.

    Args:
        command: `[sys.executable, "-m", MODULE, ARGUMENT, ...]`, or "-c" and a program.
        cwd, env, stdin, stdout, stderr: as `subprocess.Popen` takes them. Pipes are not buffered,
            and carry bytes. It is the leader of a session of its own.

    Attributes:
        pid: its id, and that of its process group.
        returncode: see `subprocess.Popen`.
        stdin, stdout, stderr: this side of its pipes.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        self.stderr: IO[bytes] | None = None
        self._heard: dict[IO[bytes], list[bytes]] = {}
        self._ending = threading.Lock()
        told = {
            "command": list(command[1:]),
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }
        theirs: list[int] = []
        try:
            for number, given in enumerate((stdin, stdout, stderr)):
                theirs.append(self._stream(number, given, theirs))
            self._status, end = os.pipe()
            theirs.append(end)
            self.pid = _Origin.of_this_process().fork(json.dumps(told).encode(), theirs)
        finally:
            for fd in theirs:
                os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError):  # it was not started
            os.close(self._status)

    def _stream(self, number: int, given: Any, theirs: list[int]) -> int:
        """Its end of one of its streams."""
        if given == subprocess.PIPE:
            read, write = os.pipe()
            mine, other = (write, read) if number == 0 else (read, write)
            name, mode = ("stdin", "stdout", "stderr")[number], "wb" if number == 0 else "rb"
            setattr(self, name, open(mine, mode, buffering=0))  # noqa: SIM115 - as Popen does
            return other
        if given == subprocess.DEVNULL:
            return os.open(os.devnull, os.O_RDWR)
        if given == subprocess.STDOUT:
            return os.dup(theirs[1])
        if given is None:
            return os.dup(number)
        return os.dup(given if isinstance(given, int) else given.fileno())

    def poll(self) -> int | None:
        """Its exit code if it has ended, as `subprocess.Popen` has it."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns its exit code."""
        if self.returncode is None:
            if not _can_read([self._status], timeout):
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            with self._ending:
                if self.returncode is None:  # else another thread was told
                    self.returncode = int(os.read(self._status, 16))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def communicate(
        self,
        input: bytes = b"",  # noqa: A002 - as Popen has it
        timeout: float | None = None,
    ) -> tuple[bytes, bytes]:
        """Read what it writes until it has ended; if it has not in time, call it again."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None and not self.stdin.closed:
            threading.Thread(target=_feed, args=(self.stdin, input), daemon=True).start()
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        waiting = [pipe for pipe in pipes if not pipe.closed]
        while waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = _can_read([pipe.fileno() for pipe in waiting], left)
            if not ready:
                raise subprocess.TimeoutExpired("a fork", timeout or 0)
            for pipe in [pipe for pipe in waiting if pipe.fileno() in ready]:
                part = os.read(pipe.fileno(), 1 << 16)
                self._heard.setdefault(pipe, []).append(part)
                if not part:
                    waiting.remove(pipe)
                    pipe.close()
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        out, errors = (
            b"" if pipe is None else b"".join(self._heard.get(pipe, []))
            for pipe in (self.stdout, self.stderr)
        )
        return out, errors

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def start(command: Sequence[str], **streams: Any) -> Forked | subprocess.Popen[bytes]:
    """Start a process in a session of its own: one of Python as a fork where that can be.

    Args:
        command: what it runs.
        streams: see `Forked`.
    """
    is_python = command[0] == sys.executable and command[1] in ("-c", "-m")
    if is_python and hasattr(os, "pidfd_open"):
        return Forked(command, **streams)
    return subprocess.Popen(command, bufsize=0, start_new_session=True, **streams)


def run(
    command: Sequence[str | Path],
    *,
    input: str = "",  # noqa: A002 - as subprocess.run has it
    timeout: float = 120.0,
    **streams: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a process until it ends; see `start` and `subprocess.run`, of which it captures text."""
    words = [os.fspath(word) for word in command]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = start(words, **{**pipes, **streams})
    try:
        out, errors = process.communicate(input.encode(), timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(
        words, process.returncode, (out or b"").decode(), (errors or b"").decode()
    )


def is_stopped(pid: int) -> bool:
    """Whether a process stands still, or has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return state.rpartition(") ")[2][0] in "TtZX"


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with suppress(BrokenPipeError), pipe:
        pipe.write(data)


def _can_read(files: Sequence[int], seconds: float | None) -> set[int]:
    """Which of some descriptors have something, or have ended; empty if none has in time."""
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        return {int(key.fd) for key, _ in selector.select(seconds)}


class _Origin:
    """The process whose forks the others are, seen from the one that wants them."""

    _lock = threading.Lock()
    _this: _Origin | None = None

    @classmethod
    def of_this_process(cls) -> _Origin:
        """That of this process; starts it if there is none."""
        with cls._lock:
            if cls._this is None or cls._this._owner != os.getpid():
                cls._this = cls()
            return cls._this

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path_without_pandas()},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self._end, process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if self._owner == os.getpid():
            self._control.close()
            process.wait()

    def fork(self, request: bytes, fds: Sequence[int]) -> int:
        """Have it fork; returns the id of the new process.

        Args:
            request: what that becomes.
            fds: its standard streams, and where its exit code is written.
        """
        with self._lock:
            socket.send_fds(self._control, [request], fds)
            return int(self._control.recv(16))


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until there are no more; returns in each fork, with its request."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    pid, status = key.data
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with suppress(BrokenPipeError):
                        os.write(status, b"%d" % code)
                    selector.unregister(key.fd)
                    os.close(status)
                    os.close(key.fd)
                    continue
                request, fds, _, _ = socket.recv_fds(control, _LARGEST, 4)
                if not request:
                    sys.exit()
                pid = os.fork()
                if pid == 0:
                    for other in selector.get_map().values():
                        if other.data is not None:
                            os.close(other.fd)
                            os.close(other.data[1])
                    os.setsid()
                    with control:  # only now, for its group may be killed at once
                        control.send(b"%d" % os.getpid())
                    return json.loads(request), fds
                for fd in fds[:3]:
                    os.close(fd)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, fds[3]))


def _become(request: dict[str, Any], fds: Sequence[int]) -> None:
    """Be the process that was asked for."""
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    # Their buffers know whether the files of before could seek.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    # This looks into the environment when it is imported.
    importlib.reload(failpoints)
    flag, what, *arguments = request["command"]
    sys.argv[:] = [flag if flag == "-c" else what, *arguments]
    if flag == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    for _module in pkgutil.walk_packages(rmqstore_spark.__path__, "rmqstore_spark."):
        if not _module.name.startswith(_WITH_SPARK) and not _module.name.endswith("__main__"):
            importlib.import_module(_module.name)
    for _name in _OF_TESTS:
        importlib.import_module(_name)
    gc.collect()
    gc.freeze()  # or each fork would copy all of the memory when it collects garbage or ends
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
