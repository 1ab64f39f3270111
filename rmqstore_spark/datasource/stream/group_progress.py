"""Record a stream's progress as the offsets of a consumer group.

The offsets are for those who watch the query; it restarts from its checkpoint. So whatever keeps
them from being recorded is told, and does not stop the query.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Final

from rmqstore_spark.datasource.offsets import Offsets, QueueKey
from rmqstore_spark.datasource.spec import AnySource, SourceBroker
from rmqstore_spark.errors import RemotingError, RmqStoreError, ServiceError
from rmqstore_spark.remoting.codec.codes import ResponseCode

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.datasource.pulled.store import PulledStore

__all__ = ["GroupProgress"]

_log = logging.getLogger("rmqstore_spark")

_LONGEST_SECONDS: Final = 10.0
"""How long a store process may take: the query waits for it."""
_RETRIES: Final = 6
"""How often it is tried again: for about 6 s, as long as one takes to restart."""
_PAUSE: Final = 30.0
"""Seconds until one that has not answered is told again."""
_QUIET: Final = 600.0
"""Seconds between two warnings about the same store."""
_Queues = Mapping[str, Mapping[int, int]]
"""Next offsets by topic and queueId."""


class GroupProgress:
    """The offsets of one consumer group at some store processes and brokers.

    Args:
        group: its name.
        stores: their stores, and the brokers, which stay open.
        clock: returns seconds since any moment.
    """

    def __init__(self, group: str, stores: Sequence[AnySource], clock: Callable[[], float]) -> None:
        self._recorders: dict[str, _Recorder] = {}
        self._clients: list[StoreClient] = []
        for of in stores:
            commit: Callable[[_Queues], object]
            if isinstance(of, SourceBroker):
                commit = _AtBroker(group, of.store).commit
            else:
                client = of.spec.with_limits(_LONGEST_SECONDS, retries=_RETRIES).client()
                self._clients.append(client)
                commit = partial(client.commit_offsets, group)
            self._recorders[of.store.broker_name] = _Recorder(group, commit, clock)

    def record(self, reached: Offsets, silent: AbstractSet[str]) -> None:
        """Move the offsets of the group to those of a finished micro-batch.

        What cannot be recorded is logged, and tried again at later calls.

        Args:
            reached: the next offsets to read.
            silent: brokers that do not answer: they are told at a later call.
        """
        wanted: dict[str, dict[QueueKey, int]] = {}
        for key, mark in reached.items():
            if key.broker in self._recorders and key.broker not in silent:
                wanted.setdefault(key.broker, {})[key] = mark.next
        for broker, offsets in wanted.items():
            self._recorders[broker].record(offsets)

    def close(self) -> None:
        """Close the connections."""
        for client in self._clients:
            client.close()


class _Recorder:
    """Records the offsets of a group at one store, as far as that is possible.

    Args:
        group: its name.
        commit: sends next offsets to the store.
        clock: returns seconds since any moment.
    """

    def __init__(
        self, group: str, commit: Callable[[_Queues], object], clock: Callable[[], float]
    ) -> None:
        self._group = group
        self._commit = commit
        self._clock = clock
        self._recorded: dict[QueueKey, int] = {}
        self._again_at = clock()
        self._failures = 0
        self._warn_at = clock()

    def record(self, offsets: Mapping[QueueKey, int]) -> None:
        """Record next offsets. Those that have not changed since are not sent again."""
        new = {key: offset for key, offset in offsets.items() if self._recorded.get(key) != offset}
        if not new or self._clock() < self._again_at:
            return
        queues: dict[str, dict[int, int]] = {}
        for key, offset in new.items():
            queues.setdefault(key.topic, {})[key.queue_id] = offset
        try:
            self._commit(queues)
        except RmqStoreError as error:
            if isinstance(error, ServiceError):
                self._again_at = self._clock() + _PAUSE
            self._tell(error)
            return
        self._recorded.update(new)
        if self._failures:
            _log.warning("The progress of the consumer group %s is recorded again.", self._group)
            self._failures = 0

    def _tell(self, error: RmqStoreError) -> None:
        """Warn of what could not be recorded: once, and then from time to time."""
        self._failures += 1
        now = self._clock()
        if self._failures > 1 and now < self._warn_at:
            return
        self._warn_at = now + _QUIET
        _log.warning(
            "The progress of the consumer group %s could not be recorded (%d times in a row). %s "
            "The query continues, and a restart continues from its checkpoint; only those who "
            "watch the group see an older position.",
            self._group, self._failures, f"{str(error).rstrip('.')}.",
        )  # fmt: skip


class _AtBroker:
    """Commits offsets at a broker, which is first asked to create the group.

    Args:
        group: its name.
        store: the broker.
    """

    def __init__(self, group: str, store: PulledStore) -> None:
        self._group = group
        self._store = store
        self._is_introduced = False

    def commit(self, queues: _Queues) -> None:
        """Set next offsets.

        Raises:
            ServiceError: the broker does not answer.
            RemotingError: it refuses that.
        """
        if not self._is_introduced and not self._store.has_group(self._group):
            self._introduce()
        self._is_introduced = True
        try:
            self._store.commit_offsets(self._group, queues)
        except RemotingError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._introduce()  # its retry topic was there, but the group was deleted
            self._commit_again(queues)

    def _commit_again(self, queues: _Queues) -> None:
        try:
            self._store.commit_offsets(self._group, queues)
        except RemotingError as error:
            raise RemotingError(error.code, f"{error.remark} {self._remedy}") from None

    def _introduce(self) -> None:
        """Have the group created; what keeps the broker from it may still let offsets pass."""
        try:
            self._store.introduce(self._group)
            reason = "" if self._store.has_group(self._group) else "The broker did not create it."
        except RemotingError as error:
            reason = str(error)
        if reason and not self._is_introduced:
            _log.warning(
                "RocketMQ's tools do not show the consumer group %s at %s, where it has no retry "
                "topic. %s %s",
                self._group, self._store.path, reason, self._remedy,
            )  # fmt: skip

    @property
    def _remedy(self) -> str:
        return (
            f"Create the group with `mqadmin updateSubGroup -g {self._group}`, and let the "
            "account consume as it (SUB)."
        )
