"""The entry point of the command: registers its commands, and handles how they end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rmqstore_spark import __version__
from rmqstore_spark.cli.commands.administration import (
    create_topic,
    delete_topic,
    demote,
    expire,
    flush,
    promote,
    stop,
)
from rmqstore_spark.cli.commands.follow import follow
from rmqstore_spark.cli.commands.groups import groups
from rmqstore_spark.cli.commands.info import info
from rmqstore_spark.cli.commands.offsets import offsets, reset_offset
from rmqstore_spark.cli.commands.put import put
from rmqstore_spark.cli.commands.query import query
from rmqstore_spark.cli.commands.read import read
from rmqstore_spark.cli.commands.serve import namesrv, serve
from rmqstore_spark.cli.commands.stats import stats
from rmqstore_spark.cli.commands.tail import tail
from rmqstore_spark.cli.commands.top import top
from rmqstore_spark.cli.commands.topics import topics
from rmqstore_spark.cli.commands.transactions import transactions
from rmqstore_spark.cli.commands.verify import recover, verify
from rmqstore_spark.cli.shared.parameters import Credentials, use_credentials, with_groups
from rmqstore_spark.cli.shared.terminal import HELP_NAMES, INTERRUPTED, ending, usage_errors


class _Commands(TyperGroup):
    """The group of all commands: `ending` and `usage_errors` handle how each of them ends."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        with usage_errors("rmqstore"):
            sys.exit(super().main(args, **{**options, "standalone_mode": False}))

    def invoke(self, ctx: Any) -> Any:
        with ending():
            return super().invoke(ctx)


class _WithoutPandas(MetaPathFinder):
    """Says that pandas is not installed.

    pyarrow imports pandas with its first scalar if it can. That takes more time and memory than
    all other modules of a command, and no command uses it.
    """

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


app = typer.Typer(
    cls=_Commands,
    name="rmqstore",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs no import of rich
    context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 100},
)
_LOCAL = (serve, follow, recover, namesrv)
for command in (
    *(info, topics, groups, transactions, offsets, read, tail, query, verify),
    *(
        serve,
        follow,
        put,
        create_topic,
        delete_topic,
        reset_offset,
        expire,
        flush,
        stats,
        top,
        stop,
    ),
    *(promote, demote, recover, namesrv),
):
    taken = with_groups(command, remote=command not in _LOCAL)
    app.command(command.__name__.replace("_", "-"))(taken)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rmqstore {__version__}")
        raise typer.Exit


@app.callback()
@with_groups
def _start(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
    *,
    credentials: Credentials,
) -> None:
    """Inspect, read, verify and write RocketMQ message stores.

    A store is a directory (storePathRootDir), live, copied or archived, or any URL that fsspec
    supports, or the endpoint of a store process (rmq://HOST:PORT). No broker is needed. Only
    serve, follow and recover change a store's files; put and the others ask a store process to. The
    options for accounts and TLS are for store processes that require them.
    """
    use_credentials(credentials)


def main() -> None:
    """Run the command with the process's arguments, and end the process."""
    sys.meta_path.insert(0, _WithoutPandas())
    try:
        app(prog_name="rmqstore")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
