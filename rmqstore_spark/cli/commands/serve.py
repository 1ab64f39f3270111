"""`rmqstore serve`, `namesrv`: run a store process, or a name server."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.cli.shared.parameters import (
    ConfigFile,
    Settings,
    overridden,
    read_config,
    require_folder,
)
from rmqstore_spark.cli.shared.terminal import configure_logging
from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader.texts import parse_bytes

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig

_log = logging.getLogger(__name__)

_SPARE: Final = "spare"
_PAGE_CACHE: Final = (_SPARE, "use")

_Store = typer.Option(
    "--store",
    metavar="PATH",
    help="Store directory (key storePathRootDir). With --read-only, repeat it for several, also as "
    "NAME=PATH.",
)
_ReadOnly = typer.Option(
    "--read-only",
    help="Serve stores that another process writes, or nobody: without a lock, and without "
    "changing a file.",
)
_PageCache = typer.Option(
    "--page-cache",
    metavar="spare|use",
    help="With --read-only: whether reading leaves the page cache as it was.  [default: spare]",
)
_MaxReadRate = typer.Option(
    "--max-read-rate",
    metavar="SIZE",
    help="With --read-only: maximum bytes per second that are read from all stores together, such "
    "as 50m; at least 1m.  [default: no limit]",
)
_IdleIo = typer.Option(
    "--idle-io", help="With --read-only: read only while no other process uses the disk."
)
_Host = typer.Option("--host", metavar="ADDRESS", help="Address to listen on (key bindAddress).")
_Port = typer.Option(
    "--port",
    metavar="N",
    help="Port to listen on (key listenPort); 0 for any free port, -1 for none.",
)
_Socket = typer.Option(
    "--socket", metavar="PATH", help="Unix socket to also listen on (key listenSocket)."
)
_Clients = typer.Option(
    "--clients",
    metavar="spark|rocketmq|all",
    help="Who is served on the port: Spark and the command, RocketMQ's clients, or all of them "
    "(key clients).",
)
_ReadyFile = typer.Option(
    "--ready-file",
    metavar="FILE",
    help="File to write when the process is ready: JSON with endpoint, store, pid.",
)
_UntilStdinEnds = typer.Option(
    "--until-stdin-ends",
    help="Stop at the end of standard input, for programs that start this one.",
)
_LogFormat = typer.Option("--log-format", metavar="text|json", help="Format of the log on stderr.")


def serve(
    config_file: ConfigFile = None,
    store: Annotated[list[str] | None, _Store] = None,
    host: Annotated[str | None, _Host] = None,
    port: Annotated[int | None, _Port] = None,
    socket: Annotated[str | None, _Socket] = None,
    clients: Annotated[str | None, _Clients] = None,
    settings: Settings = None,
    ready_file: Annotated[str | None, _ReadyFile] = None,
    until_stdin_ends: Annotated[bool, _UntilStdinEnds] = False,
    log_format: Annotated[str, _LogFormat] = "text",
    read_only: Annotated[bool, _ReadOnly] = False,
    page_cache: Annotated[str | None, _PageCache] = None,
    max_read_rate: Annotated[str | None, _MaxReadRate] = None,
    idle_io: Annotated[bool, _IdleIo] = False,
) -> None:
    """Hold a store open for writing, and serve it to clients.

    Creates the store if it does not exist, recovers it if it was not closed, prints one line when
    it is ready, and runs until SIGTERM, Ctrl-C or `rmqstore stop`. Flags override RMQSTORE_...
    variables, which override the file of --config (docs/configuration.md).

    With --read-only, serves stores that brokers write (docs/operate.md, "A sidecar beside a
    broker"). Clients name one of several stores in the endpoint: rmq://127.0.0.1:10921#broker-a.
    """
    from rmqstore_spark.server.process import serve as serve_store

    configure_logging(log_format)
    sidecar = {"--page-cache": page_cache, "--max-read-rate": max_read_rate, "--idle-io": idle_io}
    flags: dict[str, tuple[str, object]] = {
        "--host": ("bindAddress", host),
        "--port": ("listenPort", port),
        "--socket": ("listenSocket", socket),
        "--clients": ("clients", clients),
    }
    if read_only:
        _serve_read_only(
            read_config(config_file, settings, flags),
            store or (),
            page_cache or _SPARE,
            max_read_rate,
            idle_io=idle_io,
            ready_file=ready_file,
            until_stdin_ends=until_stdin_ends,
        )
        return
    for flag, given in sidecar.items():
        if given:
            raise OptionError(f"Option {flag} needs --read-only.")
    if store and len(store) > 1:
        raise OptionError("A process writes one store: give one --store, or --read-only.")
    flags["--store"] = ("storePathRootDir", store[0] if store else None)
    config = read_config(config_file, settings, flags)
    if not config.store_path_root_dir:
        raise OptionError(
            "No store given: give --store PATH, or set storePathRootDir in the file of --config."
        )
    require_folder(config.store_path_root_dir)
    config = replace(config, store_path_root_dir=os.path.abspath(config.store_path_root_dir))
    serve_store(
        config,
        ready_file=ready_file,
        until_stdin_ends=until_stdin_ends,
        announce=typer.echo,
        progress=_Said(),
    )


def _serve_read_only(
    config: StoreConfig,
    stores: Sequence[str],
    page_cache: str,
    max_read_rate: str | None,
    *,
    idle_io: bool,
    ready_file: str | None,
    until_stdin_ends: bool,
) -> None:
    from rmqstore_spark.files.systems.reads import LEAST_RATE
    from rmqstore_spark.server.process import serve_read_only
    from rmqstore_spark.server.stores.sidecar import store_places

    if page_cache not in _PAGE_CACHE:
        raise OptionError(f"--page-cache must be {' or '.join(_PAGE_CACHE)}, not {page_cache!r}.")
    rate = None
    if max_read_rate is not None:
        try:
            rate = parse_bytes(max_read_rate)
        except ValueError as error:
            raise OptionError(f"--max-read-rate {error}, not {max_read_rate!r}.") from None
        if rate < LEAST_RATE:
            raise OptionError(
                f"--max-read-rate must be at least 1m, not {max_read_rate!r}: requests of clients "
                "would time out."
            )
    serve_read_only(
        config,
        store_places(stores, config),
        spares_page_cache=page_cache == _SPARE,
        max_read_rate=rate,
        idle_io=idle_io,
        ready_file=ready_file,
        until_stdin_ends=until_stdin_ends,
        announce=typer.echo,
    )


class _Said:
    """Logs the progress of a recovery from time to time."""

    _SECONDS: Final = 5.0

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._said >= self._SECONDS:
            self._said = time.monotonic()
            _log.info("Recovery: %s, %d of %d bytes.", what, done, total)


_NamesrvConfig = typer.Option(
    "--config", metavar="FILE", help="Configuration file, such as that of RocketMQ's name server."
)
_NamesrvPort = typer.Option(
    "--port", metavar="N", help="Port to listen on (key listenPort, 9876); 0 for any free port."
)


def namesrv(
    config_file: Annotated[str | None, _NamesrvConfig] = None,
    host: Annotated[str | None, _Host] = None,
    port: Annotated[int | None, _NamesrvPort] = None,
    settings: Settings = None,
    log_format: Annotated[str, _LogFormat] = "text",
) -> None:
    """Tell RocketMQ's clients which brokers have a topic.

    Brokers, clients and mqadmin of RocketMQ 4.9 use it like their own name server. It prints one
    line when it listens, and runs until SIGTERM or Ctrl-C. Flags override the file of --config
    (docs/namesrv.md).
    """
    from rmqstore_spark.namesrv.config import NamesrvConfig
    from rmqstore_spark.namesrv.process import serve
    from rmqstore_spark.server.system import allow_many_files

    configure_logging(log_format)
    config = NamesrvConfig() if config_file is None else NamesrvConfig.from_file(config_file)
    flags = {"--host": ("bindAddress", host), "--port": ("listenPort", port)}
    config = overridden(config, settings, flags)
    allow_many_files()
    serve(config, announce=typer.echo)
