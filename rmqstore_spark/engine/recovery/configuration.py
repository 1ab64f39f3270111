"""Looks at all files of `config/` when a store is opened, before anything of it is used or changed.

A damaged file whose backup is damaged too stops the start, as it stops a broker's: an empty table
in its place would let consumer groups start again, or lose the settings of topics. A file that is
gone with its backup cannot be told from one that never was, except by what else the store holds:
that is only a warning, because removing both is how a user gives up what they held.

The offsets of consumer groups are compared with the ends of their queues. What was consumed was in
the log once. If the log ends before it, as after a restore of an older copy of all but `config/`,
nothing else in the store may tell so. It is only a warning, because an offset proves nothing: a
broker takes any from its clients, and keeps those of a topic that is deleted and created again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterator, Mapping
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.engine.recovery.clean_close import recorded_config
from rmqstore_spark.files.configfiles import SHAPES, read_config
from rmqstore_spark.files.names import OWN_FOLDER
from rmqstore_spark.files.systems.local import LocalFiles
from rmqstore_spark.layout.constants import is_system_topic
from rmqstore_spark.reader.groups import offsets_past_end

_log = logging.getLogger(__name__)

_TOPICS: Final = "topics.json"
_PROGRESS: Final = "consumerOffset.json"
_WARNING: Final = (
    "%s: offsets of consumer groups lie past the ends of their queues (groups: %d, queues: %d). "
    "The farthest: group %s is at offset %d of queue %s/%d, which ends at %d. If the log lost its "
    "end, messages are lost: stop the process, and restore the store from a copy or a slave. If "
    "not (clients may report any offset, and a broker keeps those of a topic that is deleted and "
    "created again), set the offsets with `rmqstore reset-offset`: until the queues have grown "
    "past them, the groups may miss new messages."
)


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
    yield from SHAPES.keys() & recorded_config(store)
    queues = os.path.join(store, "consumequeue")
    if os.path.isdir(queues) and not all(map(is_system_topic, os.listdir(queues))):
        yield _TOPICS
        if _TOPICS in there and not os.path.isdir(os.path.join(store, OWN_FOLDER)):
            yield _PROGRESS  # a broker writes it every five seconds, also without a group


def check_progress(
    store: str,
    table: Mapping[str, Mapping[int, int]],
    ranges: Mapping[str, Mapping[int, tuple[int, int]]],
    topics: Container[str],
) -> None:
    """Log one warning if groups have consumed more than a recovered store has.

    Args:
        store: the store directory.
        table: offsets by queueId, by `TOPIC@GROUP`.
        ranges: minOffset and maxOffset of the queues, by topic and queueId.
        topics: the topics that exist.
    """
    ends = {(topic, n): end for topic, of in ranges.items() for n, (_, end) in of.items()}
    past = offsets_past_end(table, ends, topics)
    if not past:
        return
    worst = max(past, key=lambda each: each.offset - each.max_offset)
    groups = {each.group for each in past}
    queues = {(each.topic, each.queue_id) for each in past}
    _log.warning(
        _WARNING, store, len(groups), len(queues), escaped(worst.group), worst.offset,
        escaped(worst.topic), worst.queue_id, worst.max_offset,
    )  # fmt: skip
