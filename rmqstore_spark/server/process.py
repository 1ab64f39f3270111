"""`rmqstore serve`: a store process from its start to its end.

It ends when it is told to (SIGTERM, SIGINT, SIGHUP, `rmqstore stop`, the end of its standard
input), and then in order: no new calls, those at work are finished and acknowledged, the store is
flushed and closed. A second signal shortens the waiting, never the rest.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.files.durable import replace_file
from rmqstore_spark.server import memory
from rmqstore_spark.server.server import StoreServer

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

__all__ = ["serve"]

_log = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1

_FILES: Final = 1 << 16
_SWITCH_SECONDS: Final = 0.001
"""A put must not wait for the 5 ms that each of a hundred other threads may take by default."""


def serve(
    config: StoreConfig,
    *,
    ready_file: str | os.PathLike[str] | None = None,
    until_stdin_ends: bool = False,
    announce: Callable[[str], None] = print,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> None:
    """Open a store, serve it until the process is told to end, and close it.

    To be called by the main thread, which gets the signals.

    Args:
        config: the store's.
        ready_file: JSON with `endpoint`, `endpoints`, `store`, `pid` and `metrics` (`host:port`;
            null without), written when it serves, and removed at the end.
        until_stdin_ends: end too when standard input does.
        announce: told one line when it serves.
        progress: told how a recovery goes on; see `StoreWriter.open`.

    Raises:
        StoreLockedError: another process has the store open.
        OptionError, ServiceError: it cannot be served as it is configured; or the process was told
            to end while the store was recovered.
        StoreWriteError, CorruptStoreError: it cannot be opened.
    """
    from rmqstore_spark.engine.store import StoreWriter

    ready_path = None if ready_file is None else _ready_path(ready_file)
    memory.use_little()
    sys.setswitchinterval(_SWITCH_SECONDS)
    _allow_many_files()
    end = _End()
    with end.on_signals(), ExitStack() as opened:
        if until_stdin_ends:
            end.watch_stdin()
        store = opened.enter_context(
            StoreWriter.open(config.store_path_root_dir, config, progress=end.telling(progress))
        )
        if not store.recovery.clean:
            for line in store.recovery.lines():
                _log.info("%s", line)
        server = StoreServer(store, end.ask)
        opened.callback(_end, server, end)
        opened.enter_context(
            memory.given_back(lambda: server.calls_at_work, lambda: server.calls_ended)
        )
        metrics = None
        if config.metrics_prom_exporter_port >= 0:
            from rmqstore_spark.server.monitoring import Monitoring

            host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
            monitoring = Monitoring(lambda: {**store.stats(), **server.stats()}, host, port)
            opened.callback(monitoring.close)
            metrics = monitoring.address
        endpoints = [str(endpoint) for endpoint in server.endpoints]
        if ready_path is not None:
            _write_ready(ready_path, endpoints, store.path, metrics)
            opened.callback(_remove, ready_path)
        told = f"; metrics on http://{metrics}/metrics" if metrics else ""
        announce(f"rmqstore: serving {store.path} on {', '.join(endpoints)}{told}")
        end.wait()
        _log.info("Ending: no new calls, %d under way.", server.calls_under_way)


def _allow_many_files() -> None:
    """Take as many open files as the process may have.

    Each connection is one, also of those who show no token, and the usual 1,024 are soon used up.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if most == resource.RLIM_INFINITY else min(_FILES, most)
    with suppress(OSError, ValueError):
        if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class _End:
    """Knows whether the process is to end, and how soon.

    A pipe, and no `threading.Event`: a signal can come while the main thread begins to wait and
    holds the event's lock, which its handler would then wait for, for ever.
    """

    def __init__(self) -> None:
        self._asked, self._ask = os.pipe()
        os.set_blocking(self._ask, False)
        self._is_asked = False
        self._signals = 0

    def ask(self) -> None:
        """Let the process end."""
        self._is_asked = True
        with suppress(BlockingIOError):  # full: it has been asked often enough
            os.write(self._ask, b".")

    def wait(self) -> None:
        """Wait until it is to end."""
        os.read(self._asked, 1)

    def telling(self, progress: Callable[[str, int, int], object]) -> Callable[..., None]:
        """The same progress, which breaks a recovery off when the process is to end."""

        def told(what: str, done: int, total: int) -> None:
            progress(what, done, total)
            if self._is_asked:
                raise ServiceError(
                    "The process was told to end while it recovered the store. The next start "
                    "recovers it anew."
                )

        return told

    @property
    def is_urgent(self) -> bool:
        """Whether it was told so twice."""
        return self._signals > 1

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take the signals that end the process.

        Python calls handlers between two steps of the main thread alone. A signal that comes
        just before that thread begins to read, or to another thread, must end the reading too.
        """
        woken = signal.set_wakeup_fd(self._ask, warn_on_full_buffer=False)
        before = {number: signal.signal(number, self._signal) for number in _signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(woken)

    def _signal(self, _number: int, _frame: Any) -> None:
        self._signals += 1
        self.ask()

    def watch_stdin(self) -> None:
        """Let the process end when its standard input does."""
        threading.Thread(target=self._read_stdin, name="rmqstore-stdin", daemon=True).start()

    def _read_stdin(self) -> None:
        with suppress(OSError, ValueError):
            while os.read(sys.stdin.fileno(), 1 << 16):
                pass
        self.ask()


def _signals() -> list[signal.Signals]:
    """Those that end the process: the end of its terminal too, unless nohup keeps that away."""
    told = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    return [n for n in told if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


def _end(server: StoreServer, end: _End) -> None:
    """Drain and close the server."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not server.drain(_LOOK_SECONDS):
        if end.is_urgent or time.monotonic() > deadline:
            _log.warning("%d calls are still under way; they are ended.", server.calls_under_way)
            break
    server.close()


def _ready_path(given: str | os.PathLike[str]) -> str:
    """Where the ready file goes; looked at before the store is opened, which can take long.

    Raises:
        OptionError: there is no such folder, or something that is not to be replaced is there.
    """
    path = os.path.abspath(given)
    if not os.path.isdir(os.path.dirname(path)):
        raise OptionError(f"The ready file {path} cannot be written: its folder is not there.")
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OptionError(f"The ready file {path} cannot be written: there is no plain file.")
    return path


def _write_ready(path: str, endpoints: list[str], store: str, metrics: str | None) -> None:
    ready = {
        "endpoint": endpoints[0],
        "endpoints": endpoints,
        "store": store,
        "pid": os.getpid(),
        "metrics": metrics,
    }
    replace_file(path, json.dumps(ready).encode())


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
