"""`rmqstore namesrv`: runs a name server."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqstore_spark.cli.shared.settings import Settings, split_settings
from rmqstore_spark.errors import OptionError

_Config = typer.Option(
    "--config",
    metavar="FILE",
    help="Configuration file, such as that of RocketMQ's name server.",
    show_default=False,
)
_Port = typer.Option(
    "--port",
    metavar="N",
    help="Port to listen on (key listenPort, 9876); 0 for any free port.",
    show_default=False,
)
_Host = typer.Option(
    "--host", metavar="ADDRESS", help="Address to listen on (key bindAddress).", show_default=False
)
_LogFormat = typer.Option("--log-format", metavar="text|json", help="Format of the log on stderr.")


def namesrv(
    config_file: Annotated[str | None, _Config] = None,
    host: Annotated[str | None, _Host] = None,
    port: Annotated[int | None, _Port] = None,
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
    from rmqstore_spark.server.logs import FORMATS, configure_logging
    from rmqstore_spark.server.process import allow_many_files

    if log_format not in FORMATS:
        raise OptionError(f"--log-format must be {' or '.join(FORMATS)}, not {log_format!r}.")
    configure_logging(log_format)
    config = NamesrvConfig() if config_file is None else NamesrvConfig.from_file(config_file)
    config = config.with_overrides(split_settings(settings), source="--set: ")
    for flag, key, given in (("--host", "bindAddress", host), ("--port", "listenPort", port)):
        if given is not None:
            config = config.with_overrides({key: str(given)}, source=f"{flag}: ")
    allow_many_files()
    serve(config, announce=typer.echo)
