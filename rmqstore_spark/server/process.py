"""`rmqstore serve`: runs a store process from start to shutdown, as a writer or read-only.

SIGTERM, SIGINT, SIGHUP, `rmqstore stop` or the end of its standard input ends the process. It then
refuses new calls, finishes and acknowledges those in progress, and flushes and closes the store. A
second signal shortens the wait for calls, never the rest.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.files.durable import replace_file
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.server.server import StoreServer
from rmqstore_spark.server.status.guard import check_protection
from rmqstore_spark.server.stores.served import ServedPort
from rmqstore_spark.server.system import memory_given_back, prepare, use_idle_io

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.server.stores.served import StoreService
    from rmqstore_spark.server.stores.sidecar import StorePlace
    from rmqstore_spark.server.stores.written import FollowerWatch

_log = logging.getLogger(__name__)

_DRAIN_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.1

_NOWHERE: Final = (
    "listenPort=-1 leaves nothing to listen on: give listenSocket, or another listenPort."
)
_MUCH: Final = 16 << 20
"""Bytes of RocketMQ's clients in memory that count as a call at work, after which some is freed."""


def serve(
    config: StoreConfig,
    *,
    ready_file: str | os.PathLike[str] | None = None,
    until_stdin_ends: bool = False,
    watch: FollowerWatch | None = None,
    announce: Callable[[str], None] = print,
    progress: Callable[[str, int, int], object] = lambda *_: None,
) -> None:
    """Open a store, serve it until the process is stopped, and close it.

    Call this from the main thread, which receives the signals.

    Args:
        config: the store's configuration.
        ready_file: JSON with `endpoint` (null without a port and a socket for Spark),
            `endpoints`, `store` (its path), `stores` (the path by name), `pid`, `metrics`, `slaves`
            and `broker` (where to scrape, and where slaves and RocketMQ's clients connect, as
            `host:port`; null without), written once the store is served, and removed at the end.
        until_stdin_ends: also end when standard input ends.
        watch: looks at the follower of a slave a few times a second, and may end the process.
        announce: called with one line once the store is served.
        progress: called with the progress of a recovery; see `StoreWriter.open`.

    Raises:
        StoreLockedError: another process has the store open.
        OptionError, ServiceError: the store cannot be served with this configuration, or the
            process was stopped during recovery.
        StoreWriteError, CorruptStoreError: the store cannot be opened.
    """
    from rmqstore_spark.engine.store import StoreWriter
    from rmqstore_spark.server.stores.written import WriterService

    if config.listen_port < 0 and config.clients != "spark":
        raise OptionError(f"clients={config.clients} needs a port, and listenPort is -1.")
    if config.listen_port < 0 and not config.listen_socket and not _replicates(config):
        raise OptionError(_NOWHERE)
    run = _Run(config, ready_file, until_stdin_ends, announce)
    config = run.config
    with run.started() as opened:
        store = opened.enter_context(
            StoreWriter.open(
                config.store_path_root_dir, config, progress=run.end.telling(progress),
                protection=run.protection.member,
            )
        )  # fmt: skip
        store.role.settle()
        lines = [*store.recovery.lines()]
        if not store.recovery.clean or len(lines) > 1:  # the first says how it was closed
            for line in lines:
                _log.info("%s", line)
        run.serve(opened, WriterService(store, watch))


def serve_read_only(
    config: StoreConfig,
    places: Sequence[StorePlace],
    *,
    spares_page_cache: bool = True,
    max_read_rate: int | None = None,
    idle_io: bool = False,
    ready_file: str | os.PathLike[str] | None = None,
    until_stdin_ends: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve stores that other processes write, or that nobody writes, until the process is stopped.

    No lock is taken, and nothing is written into the stores' folders.

    Args:
        config: where to listen, credentials and limits.
        places: the stores.
        spares_page_cache: whether reading leaves the page cache as it was.
        max_read_rate: bytes per second that are read of all stores together; None for no limit.
        idle_io: read only while no other process uses the disk.
        ready_file, until_stdin_ends, announce: as for `serve`; the ready file also has `stores`,
            the paths of all stores by name.

    Raises:
        OptionError, ServiceError: the stores cannot be served with this configuration.
        RmqStoreError: there is no store at a path, or it cannot be read.
    """
    from rmqstore_spark.server.stores.sidecar import Sidecar

    config = replace(config, enable_d_leger_commit_log=False)  # a sidecar of a member is none
    if config.clients != "spark":
        raise OptionError(
            f"clients is {config.clients}, and a store that is served read-only is for Spark and "
            "the command alone: RocketMQ's clients use the broker that writes it."
        )
    if config.listen_port < 0 and not config.listen_socket:
        raise OptionError(_NOWHERE)
    _keep_out(config, places, ready_file)
    run = _Run(config, ready_file, until_stdin_ends, announce)
    if idle_io:
        use_idle_io()  # before the server starts its threads, which inherit it
    with run.started() as opened:
        sidecar = Sidecar(
            places, config, spares_page_cache=spares_page_cache, max_read_rate=max_read_rate
        )
        run.serve(opened, sidecar)


def _replicates(config: StoreConfig) -> bool:
    """Return whether slaves can connect to the process, or it follows a master."""
    from rmqstore_spark.engine.role import Role

    role = Role(config.store_path_root_dir, config)
    return bool(role.applied(config).ha_master_address) if role.follows else role.serves_slaves


def _keep_out(
    config: StoreConfig, places: Sequence[StorePlace], ready_file: str | os.PathLike[str] | None
) -> None:
    """Refuse to write a socket or a ready file into a store that is served read-only."""
    given = {"ready file": ready_file, "listenSocket": config.listen_socket}
    for what, path in given.items():
        real = os.path.realpath(path) if path else ""
        for place in places:
            for folder in map(os.path.realpath, (place.path, *(place.log_folders or ()))):
                if real and os.path.commonpath((real, folder)) == folder:
                    raise OptionError(
                        f"The {what} {path} would lie in {folder}, and a store that is served "
                        "read-only is not changed. Give a path outside of it."
                    )


class _Run:
    """One run of a store process: what does not depend on who writes the stores.

    Args:
        config, ready_file, until_stdin_ends, announce: as for `serve`.

    Attributes:
        config: the configuration, with the port that the process has got.
        end: when the process should end.
        protection: accounts and TLS.
    """

    def __init__(
        self,
        config: StoreConfig,
        ready_file: str | os.PathLike[str] | None,
        until_stdin_ends: bool,
        announce: Callable[[str], None],
    ) -> None:
        self._ready_path = None if ready_file is None else _ready_path(ready_file)
        self._until_stdin_ends = until_stdin_ends
        self._announce = announce
        self.end = _End()
        # What is wrong with these shows before a store is opened, and recovered for minutes.
        self.protection = Protection.of(config)
        check_protection(config)
        self._bound: socket.socket | None = None
        if config.listen_port >= 0:
            self._bound = bound_port(config.bind_address, config.listen_port)
            config = config.listening_on(self._bound.getsockname()[1])
        self.config = config

    @contextmanager
    def started(self) -> Iterator[ExitStack]:
        """Prepare the process; its stack is closed at the end of the context."""
        prepare()
        with self.end.on_signals(), ExitStack() as opened:
            if self._until_stdin_ends:
                self.end.watch_stdin()
            if self._bound is not None:
                opened.callback(self._bound.close)
            opened.enter_context(self.protection.watched())
            yield opened

    def serve(self, opened: ExitStack, service: StoreService) -> None:
        """Serve stores until the process should end.

        Args:
            opened: closes what is opened here.
            service: the stores. They are closed when no call can reach them.
        """
        config, end, stores = self.config, self.end, service.stores
        bound, protection = self._bound, self.protection
        server = StoreServer(stores, config, protection, bound, end.ask)
        opened.callback(server.close)
        opened.callback(_end, server, end, service)
        other = server.protocol if config.serves_spark else None
        # A broker stops to listen before it closes the store, and `rmqstore stop` waits for both.
        own = bound.dup() if bound is not None and config.is_broker else None
        service.start(ServedPort(own, protection, server.endpoints, other))
        opened.enter_context(
            memory_given_back(
                lambda: server.calls_at_work + service.broker_held // _MUCH,
                lambda: server.calls_ended,
            )
        )
        metrics = None
        if config.metrics_prom_exporter_port >= 0:
            from rmqstore_spark.server.monitoring import Monitoring

            host, port = config.metrics_prom_exporter_host, config.metrics_prom_exporter_port
            site = None
            if config.status_page_enable:
                from rmqstore_spark.server.status.site import StatusSite

                site = StatusSite(service, server.stats, protection.accounts)
                opened.callback(site.close)
            monitoring = Monitoring(lambda: {**service.stats(), **server.stats()}, host, port, site)
            opened.callback(monitoring.close)
            metrics = monitoring.address
        endpoints = [str(endpoint) for endpoint in server.endpoints]
        names = ", ".join(store.path for store in stores)
        if len(stores) > 1:
            names = ", ".join(f"{store.path} as #{store.name}" for store in stores)
        places = [f"on {', '.join(endpoints)}"] if endpoints else []
        places += [f"slaves on {service.slaves}"] if service.slaves else []
        if service.broker and config.serves_rocketmq:
            places.append(f"broker on {service.broker}")
        places += [f"metrics on http://{metrics}/metrics"] if metrics else []
        places += [f"pages on http://{metrics}/status"] if config.status_page_enable else []
        begin = f"serving {names} " if endpoints else f"running {names}; "
        self._announce(f"rmqstore: {begin}{'; '.join(places)}".rstrip("; "))
        if self._ready_path is not None:  # when it is there, so is the line above
            _write_ready(self._ready_path, endpoints, metrics, service)
            opened.callback(_remove, self._ready_path)
        while not end.wait(service.look_seconds) and service.continues():
            pass
        _log.info("Stopping: no new calls, %d in progress.", server.calls_under_way)


class _End:
    """Whether the process should end, and how soon.

    This is a pipe instead of a `threading.Event`: a signal can arrive while the main thread starts
    to wait and holds the event's lock. The signal's handler would wait for that lock forever.
    """

    def __init__(self) -> None:
        self._asked, self._ask = os.pipe()
        os.set_blocking(self._ask, False)
        self._is_asked = False
        self._signals = 0

    def ask(self) -> None:
        """Ask the process to end."""
        self._is_asked = True
        with suppress(BlockingIOError):  # a full pipe holds enough requests
            os.write(self._ask, b".")

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the process should end, for some seconds; return whether it should."""
        return bool(select.select([self._asked], [], [], seconds)[0])

    def telling(self, progress: Callable[[str, int, int], object]) -> Callable[..., None]:
        """Wrap `progress` so that a recovery stops when the process should end."""

        def wrapped(what: str, done: int, total: int) -> None:
            progress(what, done, total)
            if self._is_asked:
                raise ServiceError(
                    "The process was stopped while it recovered the store. The next start "
                    "recovers it again."
                )

        return wrapped

    @property
    def is_urgent(self) -> bool:
        """Whether a second signal arrived."""
        return self._signals > 1

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Handle the signals that end the process, within the context.

        Python runs handlers only between two steps of the main thread. A signal that arrives just
        before that thread starts to read, or in another thread, must end the read too.
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
        """Ask the process to end when its standard input ends."""
        threading.Thread(target=self._read_stdin, name="rmqstore-stdin", daemon=True).start()

    def _read_stdin(self) -> None:
        with suppress(OSError, ValueError):
            while os.read(sys.stdin.fileno(), 1 << 16):
                pass
        self.ask()


def _signals() -> list[signal.Signals]:
    """Return the signals that end the process: SIGHUP too, unless nohup made it ignored."""
    ending = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
    return [n for n in ending if n != signal.SIGHUP or signal.getsignal(n) != signal.SIG_IGN]


def _end(server: StoreServer, end: _End, service: StoreService) -> None:
    """Let calls finish, then end them and close the stores."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while not server.drain(_LOOK_SECONDS):
        if end.is_urgent or time.monotonic() > deadline:
            _log.warning(
                "%d calls are still in progress. The process aborts them.", server.calls_under_way
            )
            break
    server.end_calls()
    # The server refuses calls until the store is closed: `rmqstore stop` waits until it has gone.
    service.close()


def _ready_path(given: str | os.PathLike[str]) -> str:
    """Return the path of the ready file, checked before the store is opened, which can take long.

    Raises:
        OptionError: the folder does not exist, or the path exists and is not a plain file.
    """
    path = os.path.abspath(given)
    if not os.path.isdir(os.path.dirname(path)):
        raise OptionError(f"The ready file {path} cannot be written: its folder does not exist.")
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise OptionError(f"The ready file {path} cannot be written: it is not a plain file.")
    return path


def _write_ready(
    path: str,
    endpoints: list[str],
    metrics: str | None,
    service: StoreService,
) -> None:
    stores = service.stores
    ready = {
        "endpoint": endpoints[0] if endpoints else None,
        "endpoints": endpoints,
        "store": stores[0].path,
        "stores": {store.name: store.path for store in stores},
        "pid": os.getpid(),
        "metrics": metrics,
        "slaves": service.slaves,
        "broker": service.broker,
    }
    replace_file(path, json.dumps(ready).encode())


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
