"""`rmqstore verify`, `recover`: find the damage of a store, and repair it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmqstore_spark.base.printable import escaped, in_words
from rmqstore_spark.cli.shared.parameters import AsJson, ConfigFile, Settings, StoreAt, read_config
from rmqstore_spark.cli.shared.tables import json_text
from rmqstore_spark.cli.shared.terminal import PROBLEMS, progress_bar
from rmqstore_spark.errors import OptionError, StoreNotFoundError
from rmqstore_spark.files.links import refuse_links

if TYPE_CHECKING:
    from rmqstore_spark.verify import VerifyReport

_LISTED: Final = 20
_DelayLevels = typer.Option(
    "--delay-levels",
    metavar="LEVELS",
    help="The broker's messageDelayLevel, if it is not RocketMQ's default.",
)
_Listed = typer.Option(
    "--list", "-n", min=0, metavar="N", help="List up to N problems of each kind; count the others."
)


def verify(
    listed: Annotated[int, _Listed] = _LISTED,
    delay_levels: Annotated[str | None, _DelayLevels] = None,
    as_json: AsJson = False,
    *,
    where: StoreAt,
) -> None:
    """Check all records, queues, index files and settings.

    The exit code is 0 if there is no damage, 1 if there is, and 2 if the store could not be
    verified. Notes, and what a crash left after the end of the log, are not damage.
    """
    from rmqstore_spark.layout.record.delayed import DELAY_LEVELS, delays
    from rmqstore_spark.verify import verify as verify_store

    levels = DELAY_LEVELS if delay_levels is None else delay_levels
    try:
        delays(levels)
    except ValueError as error:
        raise OptionError(f"--delay-levels: {error}.") from None
    with where.open() as store, progress_bar() as bar:
        progress = None if bar is None else partial(bar, "")
        report = verify_store(store, progress=progress, delay_levels=levels, listed=listed)
    if as_json:
        names = {"path": store.path, "brokerName": store.broker_name}
        typer.echo(json_text(names | report.to_dict(), indent=2))
    else:
        for line in _lines(store.path, report):
            typer.echo(escaped(line))
    if not report.ok:
        raise typer.Exit(PROBLEMS)


def _lines(path: str, report: VerifyReport) -> Iterator[str]:
    """Yield the lines of the report for people."""
    yield from map(str, report.problems)
    shown: dict[str, int] = {}
    for problem in report.problems:
        shown[problem.kind] = shown.get(problem.kind, 0) + 1
    for kind, total in report.totals.items():
        if total > shown.get(kind, 0):
            yield f"... and {total - shown.get(kind, 0)} more [{kind}]"
    torn = report.torn_tail
    if torn is not None:
        among = ", although they contain whole records" if torn.holds_records else ""
        yield (
            f"torn tail: {torn.file} at {torn.offset}: {torn.cause}; {torn.size} bytes from there "
            f"on are not part of the log{among}"
        )
    counts = ", ".join(f"{count} {in_words(name)}" for name, count in report.counts.items())
    until = ", the end that its queues knew" if report.being_written else ""
    yield f"{path}: log {report.log_begin} to {report.log_end}{until}: {counts or 'nothing'}"
    notes = f"{report.notes} note(s)"
    yield f"{report.errors} error(s), {notes}" if report.errors else f"no damage found, {notes}"


_Store = typer.Argument(metavar="STORE", help="Store directory.")
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
    from rmqstore_spark.files.directory import StoreDirectory
    from rmqstore_spark.files.systems.local import LocalFiles

    path = os.path.abspath(store_path)
    config = read_config(config_file, settings, {"STORE": ("storePathRootDir", path)})
    log = config.store_path_commit_log or os.path.join(path, "commitlog")
    has_log = os.path.isdir(log)
    if os.path.isdir(path):
        refuse_links(path)
        has_log = has_log or StoreDirectory(LocalFiles(), path).is_member
    if not has_log:
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
