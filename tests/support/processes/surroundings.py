"""What a process of the tests inherits from its parent, set to what the tests expect."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = [
    "log_restored", "path_with_quick_workers", "path_without_pandas", "settle_surroundings"
]  # fmt: skip

_UMASK = 0o022
_KEPT = {"RMQSTORE_KERNEL"}  # chooses the kernel that the suite is run with
_SPARK_SETTINGS = ("SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS")
_SLOW_STARTS = "PYTHONDONTWRITEBYTECODE"  # a process that is started compiles every module


def settle_surroundings() -> None:
    """Make this process, and those that it starts, independent of what started it.

    A shell lets what runs behind it ignore Ctrl-C, and nohup the end of the terminal; children
    inherit that, and those that are tested for what they do at these signals must not. They start
    with the defaults where this process has handlers of its own: so it has one for SIGHUP that
    does nothing, and still outlives its terminal.

    Settings of stores and of Spark in the environment, a umask that is not the usual one, and what
    forbids Python to keep compiled modules are left out too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(_UMASK)
    for name in list(os.environ):
        ours = name.startswith("RMQSTORE_") and name not in _KEPT
        if ours or name in (*_SPARK_SETTINGS, _SLOW_STARTS):
            del os.environ[name]


def path_without_pandas() -> str:
    """The PYTHONPATH of a process that has no use for pandas; see `without_pandas/pandas.py`."""
    return _path_with("without_pandas")


def path_with_quick_workers() -> str:
    """The PYTHONPATH of a program that starts Spark; see `quick_workers/worker_forks.py`."""
    return _path_with("quick_workers")


def _path_with(folder: str) -> str:
    before = os.environ.get("PYTHONPATH")
    here = str(Path(__file__).with_name(folder))
    return os.pathsep.join([here, before] if before else [here])


@contextmanager
def log_restored() -> Iterator[None]:
    """Undo what a command changes in the log of this process.

    `serve`, `follow` and `namesrv` take it over and never return it: they expect to be alone. In a
    test that is a file that is closed when the command ends, and the next warning would fail.
    """
    log = logging.getLogger("rmqstore_spark")
    handlers, propagate, level = log.handlers[:], log.propagate, log.level
    try:
        yield
    finally:
        log.handlers[:] = handlers
        log.propagate = propagate
        log.setLevel(level)
