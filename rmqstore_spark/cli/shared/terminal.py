"""How the command ends, and what it prints on stderr.

Only results go to stdout. Every other message is one line on stderr, which begins with the
command's name.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import typer

from rmqstore_spark.cli.shared.text import escaped
from rmqstore_spark.errors import RmqStoreError

PROBLEMS: Final = 1
"""`verify` found damage."""
FAILED: Final = 2
"""The command could not do its work."""
INTERRUPTED: Final = 130
"""Ctrl-C, as a shell reports it."""
PIPE_CLOSED: Final = 141
"""The reader of the output has gone, as a shell reports it."""


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
    logger = logging.getLogger("rmqstore_spark")
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
