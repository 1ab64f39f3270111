"""Reads which records of a store's log belong to deleted topics: they are in no queue.

    <store>/rmqstore/deleted.json      by topic, where the log ended when it was deleted

The store's writer keeps the file; see `engine.tables.deleted_topics`.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from rmqstore_spark.errors import StoreAccessError
from rmqstore_spark.files.names import DELETED_NAME, OWN_FOLDER
from rmqstore_spark.files.systems.base import Files, join

_log = logging.getLogger(__name__)

_MOST: Final = 64 << 20  # bytes that are read of the file


def deleted_ends(files: Files, store: str) -> dict[str, int]:
    """Return the physical offset up to which records are deleted, by topic.

    Without the file, and if it is invalid, there are none; the latter is logged.

    Args:
        files: the file system.
        store: the store directory.
    """
    path = join(store, OWN_FOLDER, DELETED_NAME)
    try:
        raw: Any = json.loads(files.read(path, 0, _MOST))
        for topic, end in raw.items():
            if type(end) is not int or not 0 < end < 1 << 63:
                raise ValueError(f"{topic!r:.100} has {end!r:.100}, which is not an offset")
        return dict(raw)
    except FileNotFoundError:
        return {}
    except (OSError, StoreAccessError, ValueError, AttributeError, RecursionError) as error:
        _log.warning(
            "%s cannot be read (%s). Deleted topics may be back if the store was not closed "
            "cleanly: delete them again.", path, error,
        )  # fmt: skip
        return {}
