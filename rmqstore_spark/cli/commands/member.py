"""`rmqstore member`: runs a member of a DLedger group."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from rmqstore_spark.cli.shared.parameters import Settings, overridden, require_folder
from rmqstore_spark.cli.shared.terminal import configure_logging
from rmqstore_spark.errors import OptionError

_Config = typer.Option(
    "--config", metavar="FILE", help="Configuration file, such as that of a broker of the group."
)
_Store = typer.Option("--store", metavar="PATH", help="Store directory (key storePathRootDir).")
_LogFormat = typer.Option("--log-format", metavar="text|json", help="Format of the log on stderr.")


def member(
    config_file: Annotated[str | None, _Config] = None,
    store: Annotated[str | None, _Store] = None,
    settings: Settings = None,
    log_format: Annotated[str, _LogFormat] = "text",
) -> None:
    """Vote in a DLedger group, and keep a copy of its log.

    The other members can be brokers of RocketMQ. Each entry is on this member's disk before it
    acknowledges it. It serves neither producers nor consumers (docs/dledger.md). It prints one
    line when it listens, and runs until SIGTERM or Ctrl-C.
    """
    from rmqstore_spark.server.member.config import MemberConfig
    from rmqstore_spark.server.member.process import serve

    configure_logging(log_format)
    config = MemberConfig() if config_file is None else MemberConfig.from_file(config_file)
    config = overridden(config, settings, {"--store": ("storePathRootDir", store)})
    if not config.store_path_root_dir:
        raise OptionError(
            "No store given: give --store PATH, or set storePathRootDir in the file of --config."
        )
    require_folder(config.store_path_root_dir)
    config = replace(config, store_path_root_dir=os.path.abspath(config.store_path_root_dir))
    serve(config, announce=typer.echo)
