"""The entry point of the command: finds its commands, and handles how they end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from rmqstore_spark import __version__
from rmqstore_spark.cli.imports import spare_slow_imports
from rmqstore_spark.cli.shared.parameters import Credentials, use_credentials, with_groups
from rmqstore_spark.cli.shared.terminal import HELP_NAMES, INTERRUPTED, ending, usage_errors

_MODULES: Final = {
    "info": "info",
    "topics": "topics",
    "groups": "groups",
    "transactions": "transactions",
    "offsets": "offsets",
    "read": "read",
    "tail": "tail",
    "query": "query",
    "verify": "verify",
    "serve": "serve",
    "follow": "follow",
    "put": "put",
    "create-topic": "administration",
    "delete-topic": "administration",
    "reset-offset": "offsets",
    "expire": "administration",
    "flush": "administration",
    "stats": "stats",
    "top": "top",
    "stop": "administration",
    "promote": "administration",
    "demote": "administration",
    "recover": "verify",
    "namesrv": "serve",
    "member": "member",
}
"""The module in `commands` of each command, in the order of the help. The command is a function
there, named as it is, with underscores."""

_LOCAL: Final = frozenset({"serve", "follow", "recover", "namesrv", "member"})
"""Commands that call no store process, and need no credentials."""


class _ByName(Mapping[str, Any]):
    """The commands by their names. One is imported when it is asked for, and the others are not."""

    def __getitem__(self, name: str) -> Any:
        if name not in _MODULES:
            raise KeyError(name)
        return _made(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _made(name: str) -> Any:
    """Import a command, and let typer derive its arguments and options."""
    module = import_module(f"rmqstore_spark.cli.commands.{_MODULES[name]}")
    command = getattr(module, name.replace("-", "_"))
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name)(with_groups(command, remote=name not in _LOCAL))
    return typer.main.get_command(alone)


class _Commands(TyperGroup):
    """The group of all commands: `ending` and `usage_errors` handle how each of them ends."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _ByName()})

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # of typer's interface
        return list(_MODULES)  # typer would import them all

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        with usage_errors("rmqstore"):
            sys.exit(super().main(args, **{**options, "standalone_mode": False}))

    def invoke(self, ctx: Any) -> Any:
        with ending():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    name="rmqstore",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs no import of rich
    context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 100},
)


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
    serve, follow, member and recover change a store's files; put and the others ask a store
    process to. The options for accounts and TLS are for store processes that require them.
    """
    use_credentials(credentials)


def main() -> None:
    """Run the command with the process's arguments, and end the process."""
    # NumPy's OpenBLAS starts a thread for each processor as it is loaded, and these spin for a
    # while. No command multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    spare_slow_imports()
    try:
        app(prog_name="rmqstore")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
