"""Let the processes of a Spark application know what the others have reached.

Spark runs each planning and each commit in a Python process of its own. What a micro-batch has
reached may be restarting when the next one is planned, and is then waited for. So the processes of
one driver share a folder (`client.contact`). It is among the files of the application, which Spark
removes when the application ends.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

from rmqstore_spark.datasource.failures import is_spark_worker

_FILES: Final = "userFiles-"
_FOLDER: Final = "rmqstore-contacts"


def share_contacts() -> None:
    """Share them, if Spark has started this process."""
    if not is_spark_worker():
        return
    # Not before the packages that it needs are checked.
    from rmqstore_spark.client.contact import remember_in

    folder = os.path.join(_files_of_the_application(), _FOLDER)
    with suppress(OSError):
        _make_own(folder)
        remember_in(folder)


def _files_of_the_application() -> str:
    """Return the folder of the files that all tasks of the application may read.

    A process may be told a folder in it instead, for what one session or all streams have added:
    that need not exist.
    """
    from pyspark import SparkFiles

    told = os.path.abspath(SparkFiles.getRootDirectory())
    around = os.path.dirname(told)
    return around if os.path.basename(around).startswith(_FILES) else told


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
