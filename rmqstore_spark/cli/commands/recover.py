"""`rmqstore recover`: repairs a store that was not closed cleanly, or is damaged."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from rmqstore_spark.cli.shared.bar import progress_bar
from rmqstore_spark.cli.shared.parameters import AsJson
from rmqstore_spark.cli.shared.settings import ConfigFile, Settings, read_config
from rmqstore_spark.cli.shared.text import escaped, json_text
from rmqstore_spark.errors import StoreNotFoundError
from rmqstore_spark.files.links import refuse_links

_Store = typer.Argument(metavar="STORE", help="Store directory.", show_default=False)
_Cut = typer.Option(
    "--cut", help="Cut the log at damage that no crash explains. The cut bytes are kept."
)
_Rebuild = typer.Option(
    "--rebuild",
    help="Rebuild all queues and the index from the log. Use it if `verify` reports problems "
    "in them.",
)


def recover(
    store_path: Annotated[str, _Store],
    cut: Annotated[bool, _Cut] = False,
    rebuild: Annotated[bool, _Rebuild] = False,
    config_file: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Repair a store that was not closed cleanly or is damaged.

    Cuts the log at its last whole record, makes queues and index agree with it, and closes the
    store. The cut bytes are kept below STORE/rmqstore/cut. No other process may have the store
    open.
    """
    from rmqstore_spark.engine.store import StoreWriter

    path = os.path.abspath(store_path)
    config = read_config(config_file, settings, {"STORE": ("storePathRootDir", path)})
    log = config.store_path_commit_log or os.path.join(path, "commitlog")
    if os.path.isdir(path):
        refuse_links(path)
    if not os.path.isdir(log):
        raise StoreNotFoundError(
            f"There is no store to recover at {path}: {log} is not a folder. Give a store "
            "directory."
        )
    with progress_bar() as bar:
        progress = bar or (lambda *_: None)
        opening = StoreWriter.open(path, config, cut=cut, rebuild=rebuild, progress=progress)
        with opening as store:
            summary = store.recovery
    if as_json:
        typer.echo(json_text(summary.as_dict(), indent=2))
    else:
        for line in summary.lines():
            typer.echo(escaped(line))
