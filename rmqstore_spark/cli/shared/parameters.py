"""Defines arguments and options that several commands share, and opens the store that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rmqstore_spark.cli.shared.connection import given_credentials
from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader.texts import parse_timestamp_ms

if TYPE_CHECKING:
    from rmqstore_spark.reader.store import Store

StorePath = Annotated[
    str,
    typer.Argument(
        metavar="STORE",
        help="Store directory, URL that fsspec supports, or endpoint of a store process.",
        show_default=False,
    ),
]
BrokerName = Annotated[
    str | None,
    typer.Option(
        "--broker-name",
        metavar="NAME",
        help="Name of the store. By default the name of its folder.",
        show_default=False,
    ),
]
CommitLogPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--commitlog-path",
        metavar="PATH",
        help="CommitLog folder, if it is not STORE/commitlog. Repeat it for several.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AllTopics = Annotated[
    bool,
    typer.Option("--all", "-a", help="Include system topics (retries, schedule, RMQ_SYS_...)."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="Only this topic. Repeat it for several.",
        show_default=False,
    ),
]
QueueIds = Annotated[
    list[int] | None,
    typer.Option(
        "--queue",
        "-q",
        metavar="ID",
        min=0,
        help="Only this queue. Repeat it for several.",
        show_default=False,
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Only messages with this tag, or one of several: 'A || B'. Repeat it for several.",
        show_default=False,
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Only messages with this key. Repeat it for several.",
        show_default=False,
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        "-c",
        metavar="A,B,...",
        help="Columns to print, in this order.  [default: all in JSON, the main ones in a table]",
        show_default=False,
    ),
]
AsRaw = Annotated[
    bool, typer.Option("--raw", help="Print only the bodies, byte for byte, even to a terminal.")
]
Separator = Annotated[
    str,
    typer.Option(
        "--separator",
        metavar="TEXT",
        help="Text that --raw prints after each body; \\n, \\t, \\0 and \\\\ are understood.",
        show_default="nothing",
    ),
]
SkipDamaged = Annotated[
    bool,
    typer.Option("--skip-damaged", help="Skip damaged and missing records instead of failing."),
]


def open_store(path: str, broker_name: str | None, commitlog_paths: Sequence[str] | None) -> Store:
    """Open the store that a command's arguments name."""
    from rmqstore_spark.files.open import is_endpoint
    from rmqstore_spark.reader.store import Store

    return Store.open(
        path,
        broker_name=broker_name,
        commitlog_paths=commitlog_paths or None,
        storage_options=given_credentials().options() if is_endpoint(path) else None,
    )


def parse_time(option: str, text: str | None) -> int | None:
    """Parse a time as milliseconds; return None if none was given.

    Raises:
        OptionError: the text is not a time; the error names the option.
    """
    if text is None:
        return None
    try:
        return parse_timestamp_ms(text)
    except ValueError as error:
        raise OptionError(f"{option} {error}, not {text!r}.") from None
