"""Turn the positions in the options into an offset of each queue."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import PositionOptions
from rmqstore_spark.datasource.options.values import (
    EARLIEST,
    AtOffsets,
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    OfGroup,
    PerQueue,
    Position,
)
from rmqstore_spark.datasource.sources.source import ChosenQueue, QueueName, Source
from rmqstore_spark.errors import DataLossError, OptionError

_log = logging.getLogger("rmqstore_spark")


def starting_offsets(
    queues: Sequence[ChosenQueue], positions: PositionOptions
) -> dict[QueueKey, int]:
    """Return where to start each queue; never before its first message, nor past its end.

    Raises:
        OptionError: a position omits a queue, names others, or lies past an end.
        DataLossError: messages after a position have expired, and `failOnDataLoss` is set.
    """
    resolver = _Resolver(queues, positions, positions.starting, positions.starting_option)
    return {chosen.key: resolver.start(chosen) for chosen in queues}


def ending_offsets(
    queues: Sequence[ChosenQueue], positions: PositionOptions, starts: Mapping[QueueKey, int]
) -> dict[QueueKey, int]:
    """Return where to end each queue; never past its end, nor before its start.

    Raises:
        OptionError: as `starting_offsets`, or a queue would start after its end.
        DataLossError: a queue ends before its position, and `failOnDataLoss` is set.
    """
    resolver = _Resolver(queues, positions, positions.ending, positions.ending_option)
    return {chosen.key: resolver.end(chosen, starts[chosen.key]) for chosen in queues}


def lose(
    positions: PositionOptions,
    text: str,
    then: str = "",
    otherwise: str = "Set failOnDataLoss=false to continue with the messages that are left.",
) -> None:
    """Raise for a loss of messages, or log it if the user allows it.

    Args:
        positions: say whether it is allowed.
        text: a sentence that describes the loss.
        then: a sentence about how the query continues, for the log.
        otherwise: what to do about the loss, for the error.

    Raises:
        DataLossError: `failOnDataLoss` is set.
    """
    if positions.fail_on_data_loss:
        raise DataLossError(f"{text} {otherwise}")
    _log.warning("failOnDataLoss=false: %s", f"{text} {then}".rstrip())


class _Resolver:
    """Finds the offsets of one position.

    Args:
        name: the option that holds the position.
    """

    def __init__(
        self,
        queues: Sequence[ChosenQueue],
        positions: PositionOptions,
        position: Position,
        name: str,
    ) -> None:
        self._positions = positions
        self._position = position
        self._name = name
        self._progress: dict[QueueKey, int] = {}
        if isinstance(position, OfGroup):
            is_own = position.group == positions.commit_group  # which begins with this stream
            self._progress = _group_progress(position.group, queues, name, is_own)
        elif isinstance(position, AtOffsets):
            _check_coverage(position.offsets, queues, name)
        elif isinstance(position, AtTimes):
            _check_coverage(position.timestamps, queues, name)

    def start(self, chosen: ChosenQueue) -> int:
        key, queue = chosen.key, chosen.queue
        wanted = self._wanted(chosen)
        if wanted is None:
            if not isinstance(self._position, OfGroup) and not self._positions.no_match_is_latest:
                raise OptionError(
                    f"{self._name}: {key} has no message stored at or after the given time. Use "
                    "an earlier time, or set startingOffsetsByTimestampStrategy=latest to start "
                    "such queues at their end."
                )
            return queue.min_offset if isinstance(self._position, OfGroup) else queue.max_offset
        if wanted > queue.max_offset:
            text = f"{self._name} is {wanted} for {key}, which ends at {queue.max_offset}."
            if not isinstance(self._position, OfGroup):
                raise OptionError(f"{text} Set an offset of at most {queue.max_offset}.")
            lose(self._positions, f"{text} The queue was cut, or deleted and recreated.")
            return queue.max_offset
        if wanted < queue.min_offset:
            lose(
                self._positions,
                f"{queue.min_offset - wanted} messages of {key} have expired: {self._name} is "
                f"{wanted}, but the queue now begins at {queue.min_offset}.",
            )
            return queue.min_offset
        return wanted

    def end(self, chosen: ChosenQueue, start: int) -> int:
        key, queue = chosen.key, chosen.queue
        wanted = self._wanted(chosen)
        if isinstance(self._position, OfGroup) and not wanted:
            wanted = start  # The group has read nothing, for which a broker may say 0.
        if wanted is None:
            wanted = queue.max_offset  # No message is that late.
        if wanted > queue.max_offset:
            lose(
                self._positions,
                f"{self._name} is {wanted} for {key}, which ends at {queue.max_offset}.",
            )
            return queue.max_offset
        if wanted < start:
            if self._start_was_given(key):
                raise OptionError(
                    f"{key} would start after its end: {self._positions.starting_option} gives "
                    f"{start}, {self._name} gives {wanted}."
                )
            # It starts at its first message, and all messages before the end have expired.
            return start
        return wanted

    def _wanted(self, chosen: ChosenQueue) -> int | None:
        """Return the offset that the position means, or None if it means none."""
        key, queue, position = chosen.key, chosen.queue, self._position
        if isinstance(position, Earliest):
            return queue.min_offset
        if isinstance(position, Latest):
            return queue.max_offset
        if isinstance(position, OfGroup):
            return self._progress.get(key)
        if isinstance(position, AtTime):
            return queue.offset_at(position.timestamp)
        if isinstance(position, AtTimes):
            return queue.offset_at(_of(position.timestamps, key))
        offset = _of(position.offsets, key)
        if offset < 0:
            return queue.min_offset if offset == EARLIEST else queue.max_offset
        return offset

    def _start_was_given(self, key: QueueKey) -> bool:
        starting = self._positions.starting
        if isinstance(starting, AtOffsets):
            return _of(starting.offsets, key) >= 0
        return not isinstance(starting, Earliest)


def _of(numbers: PerQueue, key: QueueKey) -> int:
    found = numbers.get(key.broker, key.topic, key.queue_id)
    if found is None:
        raise OptionError(f"No offset or time given for {key}.")
    return found


def _check_coverage(numbers: PerQueue, queues: Sequence[ChosenQueue], name: str) -> None:
    """Check that a JSON names exactly the chosen queues, as Kafka's source does."""
    keys = [chosen.key for chosen in queues]
    missing = [key for key in keys if numbers.get(*key) is None]
    if missing:
        raise OptionError(
            f"{name} does not list {some(missing)}. List every queue that the query reads, or "
            "choose queues with option assign."
        )
    known = {(key.topic, broker, key.queue_id) for key in keys for broker in (key.broker, None)}
    others = [
        f"{topic}/{queue_id}" + (f" of {broker}" if broker is not None else "")
        for topic, broker, queue_id in numbers.values
        if (topic, broker, queue_id) not in known
    ]
    if others:
        raise OptionError(
            f"{name} lists {some(others)}, which this query does not read. It reads: {some(keys)}."
        )


def _group_progress(
    group: str, queues: Sequence[ChosenQueue], name: str, may_be_new: bool
) -> dict[QueueKey, int]:
    names: dict[Source, list[QueueName]] = {}
    for chosen in queues:
        names.setdefault(chosen.source, []).append(chosen.key[1:])
    progress: dict[QueueKey, int] = {}
    groups: set[str] = set()
    for source, own in names.items():
        offsets, known = source.group_progress(group, own, is_own=may_be_new)
        progress.update((QueueKey(source.broker_name, *of), at) for of, at in offsets.items())
        groups |= known
    if names and group not in groups and not may_be_new:
        raise OptionError(
            f"{name}: unknown consumer group {group!r}. The store has: {some(sorted(groups))}."
        )
    return progress
