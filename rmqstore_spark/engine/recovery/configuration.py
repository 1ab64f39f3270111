"""Looks at all files of `config/` when a store is opened, before anything of it is used or changed.

A damaged file whose backup is damaged too stops the start, as it stops a broker's: an empty table
in its place would let consumer groups start again, or lose the settings of topics. A file that is
gone with its backup cannot be told from one that never was, except by what else the store holds:
that is only a warning, because removing both is how a user gives up what they held.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Final

from rmqstore_spark.engine.recovery.clean_close import StoreState
from rmqstore_spark.files.configfiles import SHAPES, read_config
from rmqstore_spark.files.local import LocalFiles
from rmqstore_spark.files.names import OWN_FOLDER
from rmqstore_spark.layout.constants import is_system_topic

_log = logging.getLogger(__name__)

_TOPICS: Final = "topics.json"
_PROGRESS: Final = "consumerOffset.json"


def check_configuration(store: str) -> None:
    """Check the known files of a store. Uses of a backup, and files that are gone, are logged.

    Args:
        store: the store directory.

    Raises:
        CorruptStoreError: a file is damaged, and so is its backup, or it has none.
    """
    files, folder = LocalFiles(), os.path.join(store, "config")
    there = {name for name in SHAPES if read_config(files, os.path.join(folder, name)) is not None}
    for name in sorted(set(_had(store, there)) - there):
        _log.warning(
            "%s is missing, and so is its copy .bak, though the store has been used. If it held "
            "anything, that is lost: %s. If that is not intended, stop the process and restore the "
            "file.",
            os.path.join(folder, name), SHAPES[name].holds,
        )  # fmt: skip


def _had(store: str, there: set[str]) -> Iterator[str]:
    """Yield the names of files that a store had, as far as something tells it.

    Args:
        there: the names of those that it has.
    """
    yield from SHAPES.keys() & StoreState.load(store).config
    queues = os.path.join(store, "consumequeue")
    if os.path.isdir(queues) and not all(map(is_system_topic, os.listdir(queues))):
        yield _TOPICS
        if _TOPICS in there and not os.path.isdir(os.path.join(store, OWN_FOLDER)):
            yield _PROGRESS  # a broker writes it every five seconds, also without a group
