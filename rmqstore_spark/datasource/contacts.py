"""Let the processes of a Spark application know what the others have reached.

Spark runs each planning and each commit in a Python process of its own. What a micro-batch has
reached may be restarting when the next one is planned, and is then waited for. So the processes of
one JVM on this machine share a folder (`client.contact`).
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from typing import Final

from rmqstore_spark.datasource.failures import is_spark_worker

__all__ = ["share_contacts"]

_JAVA: Final = "java"
_MOST_PARENTS: Final = 8


def share_contacts() -> None:
    """Share them, if Spark has started this process."""
    if not is_spark_worker():
        return
    # Not before the packages that it needs are checked.
    from rmqstore_spark.client.contact import remember_in

    root = os.path.join(tempfile.gettempdir(), f"rmqstore-contacts-{os.getuid()}")
    with suppress(OSError):
        _make_own(root)
        _forget_ended(root)
        folder = os.path.join(root, _application())
        _make_own(folder)
        remember_in(folder)


def _make_own(folder: str) -> None:
    """Create a folder that nobody else can write.

    Raises:
        OSError: somebody else has created it.
    """
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")


def _application() -> str:
    """Return the number and start of the JVM that this process works for."""
    number = os.getppid()
    for _ in range(_MOST_PARENTS):
        name, parent, start = _process(number)
        if name == _JAVA:
            return f"{number}-{start}"
        if parent <= 1:
            break
        number = parent
    return f"{os.getppid()}-{_process(os.getppid())[2]}"


def _process(number: int) -> tuple[str, int, str]:
    """Return the name, the parent and the start of a process; nothing if the system tells none."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
            before, _, behind = file.read().rpartition(")")
    except OSError:
        return "", 0, "0"
    fields = behind.split()
    return before.partition("(")[2], int(fields[1]), fields[19]


def _forget_ended(root: str) -> None:
    """Remove the folders of JVMs that have ended."""
    for name in os.listdir(root):
        number, _, start = name.partition("-")
        if number.isdecimal() and os.path.isdir("/proc/self") and _process(int(number))[2] != start:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
