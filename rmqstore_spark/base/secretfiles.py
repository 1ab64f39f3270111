"""Reads files that hold secrets: only those that other users of the machine cannot read."""

from __future__ import annotations

import os
import stat
from typing import Final

from rmqstore_spark.errors import OptionError

MAX_BYTES: Final = 1 << 20
"""Most bytes that are read of a file."""


def read_file(path: str | os.PathLike[str], what: str, *, secret: bool) -> bytes:
    """Read a small file; of a larger one, the first `MAX_BYTES`.

    Args:
        path: the file.
        what: what it holds, for errors.
        secret: whether others must not be able to read it.

    Raises:
        OptionError: the file is missing, not a plain file, or accessible to others.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise OptionError(f"The {what} file {name} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise OptionError(f"The {what} file {name} cannot be read: {error}.") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OptionError(f"The {what} file {name} is not a plain file.")
        if secret and status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
            raise OptionError(
                f"The {what} file {name} is accessible to others (mode "
                f"{stat.S_IMODE(status.st_mode):04o}). Restrict it: chmod 600 {name}."
            )
        return os.read(descriptor, MAX_BYTES)
    except OSError as error:
        raise OptionError(f"The {what} file {name} cannot be read: {error.strerror}.") from None
    finally:
        os.close(descriptor)
