"""Errors of the folders that jobs write to: what happened, where, and what to do.

Python raises them as OSError, in the driver and in tasks; Spark's JVM as exceptions of Java and of
Hadoop. The reader has its own errors for the files of a store. Tasks import this.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.files.systems.schemes import local_path

_ROOM: Final = "Free some space there, and repeat the command."
_ACCESS: Final = "Let the job's user write there, or use another folder."
_OTHER: Final = "Use another folder."
_REMEDIES: Final = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.EROFS: _ACCESS,
    errno.ENOTDIR: _OTHER,
    errno.EISDIR: _OTHER,
    errno.EEXIST: _OTHER,
    errno.ENAMETOOLONG: _OTHER,
    errno.ELOOP: _OTHER,
    errno.EIO: "Check its disk or mount, and repeat the command.",
}
# Where a file system of fsspec gives no number.
_NUMBERS: Final = (
    (PermissionError, errno.EACCES),
    (NotADirectoryError, errno.ENOTDIR),
    (IsADirectoryError, errno.EISDIR),
    (FileExistsError, errno.EEXIST),
)


@contextmanager
def writing(*places: str) -> Iterator[None]:
    """Report an error of a folder or of its disk as one of ours; leave other errors as they are.

    Args:
        places: paths or URLs of the folders that are written.

    Raises:
        RmqStoreError: one of them cannot be written.
    """
    try:
        yield
    except RmqStoreError:  # some of them are OSErrors too
        raise
    except OSError as error:
        text = _described(error, places)
        if text is None:
            raise
        raise RmqStoreError(text) from error


def _described(error: OSError, places: Sequence[str]) -> str | None:
    """Return what is wrong with a place; None for an error of something else."""
    number = error.errno
    if number is None:
        number = next((known for kind, known in _NUMBERS if isinstance(error, kind)), None)
    remedy = _REMEDIES.get(number or 0)
    if remedy is None or not places:
        return None
    if error.filename is None:
        where = " or ".join(places)
    else:
        where = os.fsdecode(error.filename)
        if not any(_belongs(PurePath(os.path.abspath(where)), place) for place in places):
            return None
    return f"{where} cannot be written: {error.strerror or error}. {remedy}"


def _belongs(file: PurePath, place: str) -> bool:
    """Return whether a file is in a place, or is a folder around it, which may have to be made."""
    folder = PurePath(os.path.abspath(local_path(place) or place))
    return file.is_relative_to(folder) or folder.is_relative_to(file)


# Each exception of a Java stack trace and what caused it; not those that were suppressed.
_CAUSES: Final = re.compile(
    r"^(?!\s)(?:.*?[:\]] )??((?:java|org\.apache)\.[\w.$]+(?:Exception|Error)): (.+)$",
    re.MULTILINE,
)
_HADOOP: Final = "org.apache.hadoop."
_PATH: Final = re.compile(r"(?<![\w.])((?:[a-z][a-z0-9]*:)?/[^\s(),\"]+)")
_NOT_OF_FILES: Final = ("java.net.", "java.lang.")
_PROGRAM: Final = "Cannot run program"
_WORDS: Final = {os.strerror(number).lower(): number for number in _REMEDIES} | {
    "mkdirs failed": errno.EACCES,
    "mkdir of": errno.EACCES,
}


def describe_java(trace: str, places: Sequence[str]) -> str | None:
    """Describe an error of files that Spark's JVM has met; None for any other.

    Args:
        trace: the exception's stack trace.
        places: paths or URLs of the folders that Spark writes.
    """
    causes = _CAUSES.findall(trace)
    for kind, message in reversed(causes):
        if kind.startswith(_NOT_OF_FILES) or message.startswith(_PROGRAM):
            continue
        number = next((_WORDS[words] for words in _WORDS if words in message.lower()), None)
        if number is None:
            continue
        # `java.io.IOException: No space left on device` does not say where that is. Hadoop wraps
        # those of its files, but Spark has files of its own.
        found = _PATH.search(message)
        if found is not None:
            where = found[1].removeprefix("file:")
        else:
            by_hadoop = any(each.startswith(_HADOOP) for each, _ in causes)
            own = () if by_hadoop else ("Spark's own folder (spark.local.dir)",)
            where = " or ".join((*places, *own)) or "A file"
        return f"{where} cannot be read or written: {os.strerror(number)}. {_REMEDIES[number]}"
    return None
