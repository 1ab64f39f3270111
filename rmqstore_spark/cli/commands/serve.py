"""`rmqstore serve`: runs the process that holds a store open for writing."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from typing import Annotated, Final

import typer

from rmqstore_spark.cli.shared.settings import ConfigFile, Settings, read_config
from rmqstore_spark.errors import OptionError

__all__ = ["serve"]

_log = logging.getLogger(__name__)

_Store = typer.Option(
    "--store", metavar="PATH", help="Store directory (key storePathRootDir).", show_default=False
)
_Host = typer.Option(
    "--host", metavar="ADDRESS", help="Address to listen on (key bindAddress).", show_default=False
)
_Port = typer.Option(
    "--port",
    metavar="N",
    help="Port to listen on (key flightPort); 0 for any free port, -1 for none.",
    show_default=False,
)
_Socket = typer.Option(
    "--socket",
    metavar="PATH",
    help="Unix socket to also listen on (key flightSocket).",
    show_default=False,
)
_ReadyFile = typer.Option(
    "--ready-file",
    metavar="FILE",
    help="File to write when the process is ready: JSON with endpoint, store, pid.",
    show_default=False,
)
_UntilStdinEnds = typer.Option(
    "--until-stdin-ends",
    help="Stop at the end of standard input, for programs that start this one.",
)
_LogFormat = typer.Option("--log-format", metavar="text|json", help="Format of the log on stderr.")


def serve(
    config_file: ConfigFile = None,
    store: Annotated[str | None, _Store] = None,
    host: Annotated[str | None, _Host] = None,
    port: Annotated[int | None, _Port] = None,
    socket: Annotated[str | None, _Socket] = None,
    settings: Settings = None,
    ready_file: Annotated[str | None, _ReadyFile] = None,
    until_stdin_ends: Annotated[bool, _UntilStdinEnds] = False,
    log_format: Annotated[str, _LogFormat] = "text",
) -> None:
    """Hold a store open for writing, and serve it to clients.

    Creates the store if it does not exist, recovers it if it was not closed, prints one line when
    it is ready, and runs until SIGTERM, Ctrl-C or `rmqstore stop`. Flags override RMQSTORE_...
    variables, which override the file of --config (docs/configuration.md).
    """
    from rmqstore_spark.server.logs import FORMATS, configure_logging
    from rmqstore_spark.server.process import serve as serve_store

    if log_format not in FORMATS:
        raise OptionError(f"--log-format must be {' or '.join(FORMATS)}, not {log_format!r}.")
    configure_logging(log_format)
    flags = {
        "--store": ("storePathRootDir", store),
        "--host": ("bindAddress", host),
        "--port": ("flightPort", port),
        "--socket": ("flightSocket", socket),
    }
    config = read_config(config_file, settings, flags)
    if not config.store_path_root_dir:
        raise OptionError(
            "No store given: give --store PATH, or set storePathRootDir in the file of --config."
        )
    if "://" in config.store_path_root_dir:
        raise OptionError(
            f"{config.store_path_root_dir} is a URL, but a store can only be served from a folder "
            "of this machine. Give the path of a folder."
        )
    config = replace(config, store_path_root_dir=os.path.abspath(config.store_path_root_dir))
    serve_store(
        config,
        ready_file=ready_file,
        until_stdin_ends=until_stdin_ends,
        announce=typer.echo,
        progress=_Said(),
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
