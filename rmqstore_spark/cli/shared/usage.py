"""Reports mistakes in a command line, for the command and for the jobs of `pipelines`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import typer

from rmqstore_spark.base.printable import escaped

HELP_NAMES: Final = ("-h", "--help")

_INTERRUPTED: Final = 130

# Typer does not export the class of these errors, only this subclass.
_UsageError: Final[type[Any]] = typer.BadParameter.__mro__[1]


@contextmanager
def usage_errors(prefix: str) -> Iterator[None]:
    """Report a wrong command line in two lines: what is wrong, and how to get help.

    Args:
        prefix: what the first line begins with.

    Raises:
        SystemExit: the command line is wrong; the exit code is 2.
    """
    try:
        yield
    except typer.Abort:  # Ctrl-C while the command line is parsed
        sys.exit(_INTERRUPTED)
    except _UsageError as error:
        if type(error).show is not _UsageError.show:
            error.show()  # the help itself, of a command that needs arguments and has none
        else:
            print(f"{prefix}: {escaped(_described(error))}", file=sys.stderr)  # noqa: T201
            if error.ctx is not None:
                command = error.ctx.command_path
                print(f"Try '{command} {HELP_NAMES[-1]}'.", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


def _described(error: Any) -> str:
    name, near = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if not near:
        return str(error.format_message())
    return f"No such option: {name}. Did you mean {near[0]}?"
