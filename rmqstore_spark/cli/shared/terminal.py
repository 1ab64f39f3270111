"""How a command ends, and what it prints on stderr: errors, mistakes, progress and a log.

Only results go to stdout. Every other message is one line on stderr, which begins with the
command's name. The jobs of `pipelines` report mistakes in their command lines by it, too.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, Final

import typer

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.errors import OptionError, RmqStoreError

PROBLEMS: Final = 1
"""`verify` found damage."""
FAILED: Final = 2
"""The command could not do its work."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell reports it."""
PIPE_CLOSED: Final = 141
"""The reader of the output has gone, as a shell reports it."""

HELP_NAMES: Final = ("-h", "--help")

_PACKAGE: Final = "rmqstore_spark"
_LOG_FORMATS: Final = ("text", "json")


def say(text: str) -> None:
    """Print one line on stderr."""
    print(f"rmqstore: {escaped(text)}", file=sys.stderr)  # noqa: T201


@contextmanager
def ending() -> Iterator[None]:
    """Turn what ends a command early into an exit code, with a line on stderr for an error.

    Raises:
        typer.Exit: with one of the codes above.
    """
    warnings = _Warnings()
    logger = logging.getLogger(_PACKAGE)
    logger.addHandler(warnings)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for a terminal without UTF-8
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _discard_output()
        raise typer.Exit(PIPE_CLOSED) from None
    except RmqStoreError as error:
        _flush_before_error()
        say(str(error))
        raise typer.Exit(FAILED) from None
    except OSError as error:
        # The reader has its own errors for the store's files, so this is about the output.
        say(f"could not write the output: {error.strerror or error}.")
        _discard_output()
        raise typer.Exit(FAILED) from None
    finally:
        logger.removeHandler(warnings)


def _flush_before_error() -> None:
    """Print the rows that came before an error, so that they precede it."""
    try:
        sys.stdout.flush()
    except OSError:
        _discard_output()


def _discard_output() -> None:
    """Redirect stdout to the null device, so that the flush at exit succeeds."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


class _Warnings(logging.Handler):
    """Prints each warning of the reader once."""

    _MOST: Final = 1_000

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text in self._said:
            return
        if len(self._said) < self._MOST:
            self._said.add(text)
        say(text)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], object] | None]:
    """Yield a function that takes progress: a description, the bytes done, the total; or None."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


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
        sys.exit(INTERRUPTED)
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


def configure_logging(form: str) -> None:
    """Send this package's log to stderr, and nowhere else: a line for each event.

        2026-11-21T04:42:31.123Z INFO store: 3 topics, log 0 to 104857600
        {"time":"2026-11-21T04:42:31.123Z","level":"INFO","logger":"...","message":"..."}

    Topics, file names and addresses come from others, so unprintable characters are escaped. A
    traceback stays within the line of its event.

    Args:
        form: text or json, the value of --log-format.

    Raises:
        OptionError: it is neither.
    """
    if form not in _LOG_FORMATS:
        raise OptionError(f"--log-format must be {' or '.join(_LOG_FORMATS)}, not {form!r}.")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if form == "json" else _TextLines())
    logger = logging.getLogger(_PACKAGE)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.INFO)


def _moment(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return escaped(f"{_moment(record)} {record.levelname} {text}")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        event = {
            "time": _moment(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, separators=(",", ":"))
