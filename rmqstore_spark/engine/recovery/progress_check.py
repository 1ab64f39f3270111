"""Compares the offsets of consumer groups with the ends of their queues, when a store is opened.

What was consumed was in the log once. If the log ends before it, as after a restore of an older
copy of all but `config/`, nothing else in the store may tell so. It is only a warning, because an
offset proves nothing: a broker takes any from its clients, and keeps those of a topic that is
deleted and created again.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from typing import Final

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.reader.groups import offsets_past_end

_log = logging.getLogger(__name__)

_WARNING: Final = (
    "%s: offsets of consumer groups lie past the ends of their queues (groups: %d, queues: %d). "
    "The farthest: group %s is at offset %d of queue %s/%d, which ends at %d. If the log lost its "
    "end, messages are lost: stop the process, and restore the store from a copy or a slave. If "
    "not (clients may report any offset, and a broker keeps those of a topic that is deleted and "
    "created again), set the offsets with `rmqstore reset-offset`: until the queues have grown "
    "past them, the groups may miss new messages."
)


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
