"""Python processes of Spark that begin where the imports end.

Spark starts a process for each module with which it plans, reads and writes, some seven for the
source and the sink, and they import pyspark and pyarrow again and again. The first one of a JVM
leaves a process behind here that imports both, once; all of them are its forks, which do what
`python -m MODULE` would, without pandas. The package itself is not imported beforehand: workers
load it as they do elsewhere.

The process that Spark has started stays until its fork ends. If the process that forks has just
begun, or is about to end, it continues as if there were none.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import traceback
import zlib
from contextlib import suppress
from typing import Any, Final, NoReturn

__all__ = ["hand_over"]

_LARGEST: Final = 1 << 17
"""Bytes of a command and its environment."""

_WITHOUT_PANDAS: Final = os.path.join(os.path.dirname(__file__), os.pardir, "without_pandas")
_DECIDE_IMPORTS: Final = ("PYTHONPATH", "PYTHONHASHSEED")


def hand_over(command: list[str]) -> None:
    """Have a fork run a module until it ends, and end this process; or return, and at once.

    Args:
        command: the module, and its arguments.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            _connect(connection)
            told = json.dumps({"command": command, "env": dict(os.environ)}).encode()
            socket.send_fds(connection, [told], [0, 1, 2])
            fork = int(connection.recv(_LARGEST) or 0)
        except OSError:
            return
        if fork:
            # Spark ends a process so, or by closing its stdin or its socket.
            signal.signal(signal.SIGTERM, lambda number, _: _send(fork, number))
            connection.recv(1)
            os._exit(0)


def _send(fork: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has just ended
        os.kill(fork, number)


def _connect(connection: socket.socket) -> None:
    """Connect with the process that forks, which begins here if there was none."""
    kind = "\n".join([sys.executable, *(os.environ.get(name, "") for name in _DECIDE_IMPORTS)])
    name = f"\0rmqstore-tests-workers-{os.getppid()}-{zlib.crc32(kind.encode()):x}"
    with suppress(ConnectionRefusedError):
        connection.connect(name)
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(name)
        listener.listen()
        if os.fork() == 0:
            _import_and_fork(listener)
        connection.connect(name)


def _import_and_fork(listener: socket.socket) -> NoReturn:
    """Fork for each connection, until the JVM ends: it has the other end of this one's stdin."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # what Spark reads there is the fork's
    sys.path[:0] = [os.getcwd(), _WITHOUT_PANDAS]  # the first as with -m
    _import()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    awaited = select.poll()
    awaited.register(0, 0)
    awaited.register(listener, select.POLLIN)
    while all(number != 0 for number, _ in awaited.poll()):
        connection, _ = listener.accept()
        told, streams, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        fork = os.fork()
        if fork == 0:
            listener.close()
            _run(json.loads(told), streams)  # the connection ends with it, and its own forks
        with suppress(BrokenPipeError):
            connection.send(b"%d" % fork)
        connection.close()
        for each in streams:
            os.close(each)
    os._exit(0)


def _import() -> None:
    """Import what workers import, but the package."""
    for name in ("pyarrow.compute", "pyspark.worker"):
        importlib.import_module(name)
    steps = importlib.import_module("pyspark.sql.worker")
    for each in pkgutil.iter_modules(steps.__path__, f"{steps.__name__}."):
        importlib.import_module(each.name)
    gc.collect()
    gc.freeze()


def _run(told: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be the process that Spark has started, with its streams, environment and command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(told["env"])
    module, *arguments = told["command"]
    sys.argv[:] = [module, *arguments]
    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code if isinstance(code, int) else 1)
