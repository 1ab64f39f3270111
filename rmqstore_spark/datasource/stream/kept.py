"""Keep the positions of what a stream does not read now, so that it continues there later.

A store that is left out, a topic or queue that the options do not choose any more, and one that is
gone: each keeps its position in the checkpoint. When it is read again, the record before the
position tells whether it is still the same.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import Offsets, QueueKey
from rmqstore_spark.datasource.options.table import PositionOptions, QueueOptions
from rmqstore_spark.datasource.resolve import lose
from rmqstore_spark.datasource.sources.source import ChosenQueue
from rmqstore_spark.reader.before import UNKNOWN

_log = logging.getLogger("rmqstore_spark")


class KeptPositions:
    """The positions of queues that the stream does not read."""

    def __init__(self, chosen: QueueOptions, stores: AbstractSet[str]) -> None:
        self._chosen = chosen
        self._stores = stores
        self._gone: set[QueueKey] = set()
        self._told: set[QueueKey] = set()

    def reads(self, key: QueueKey) -> bool:
        """Return whether the stream reads a queue, as far as it is known."""
        if key.broker not in self._stores or key in self._gone:
            return False
        return self._chosen.wants_queue(key.topic, key.queue_id)

    def of(
        self,
        marks: Offsets,
        queues: Mapping[QueueKey, ChosenQueue],
        silent: AbstractSet[str],
        positions: PositionOptions,
    ) -> Offsets:
        """Return the positions to keep.

        Args:
            marks: the positions of the stream.
            queues: the queues that it reads.
            silent: the brokers that do not answer, of whose queues nothing is known.
            positions: say whether a loss is allowed.

        Raises:
            DataLossError: a queue does not exist any more, and `failOnDataLoss` is set.
        """
        kept: Offsets = {}
        unchosen: list[QueueKey] = []
        self._gone -= queues.keys()
        self._told -= queues.keys()
        for key, mark in marks.items():
            if key in queues:
                continue
            if key.broker not in self._stores or key.broker in silent:
                kept[key] = mark
            elif not self._chosen.wants_queue(key.topic, key.queue_id):
                kept[key] = mark
                unchosen.append(key)
            else:
                self._lose(key, mark.next, positions)
                if mark.last_physical != UNKNOWN or not mark.next:
                    kept[key] = mark  # else nothing would show that it was created again
        self._tell(unchosen, queues)
        return kept

    def _lose(self, key: QueueKey, reached: int, positions: PositionOptions) -> None:
        if key in self._gone:
            return
        lose(
            positions,
            f"Queue {key} no longer exists, or may not be read any more (readQueueNums, perm); the "
            f"stream had read it up to {reached}.",
            "Its position is kept: if it is there again, the stream continues there.",
        )
        self._gone.add(key)

    def _tell(self, keys: list[QueueKey], queues: Mapping[QueueKey, ChosenQueue]) -> None:
        """Warn once of what is not chosen any more."""
        new = [key for key in keys if key not in self._told]
        if not new:
            return
        self._told.update(new)
        topics = {key.topic for key in queues}
        names = dict.fromkeys(
            f"queue {key}" if key.topic in topics else f"topic {key.topic} of {key.broker}"
            for key in sorted(new)
        )
        _log.warning(
            "Not chosen any more: %s. The stream does not read it, and keeps its position in the "
            "checkpoint: if the options (%s) choose it again, the stream continues there.",
            some(names),
            self._chosen.chosen_by,
        )
