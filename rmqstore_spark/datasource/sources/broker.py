"""A broker of RocketMQ's own as a source: its messages are pulled over its protocol.

A broker that does not answer falls silent: a stream continues without it, and asks it again from
time to time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.routes import RegisteredBroker
from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.datasource.offsets import QueueKey
from rmqstore_spark.datasource.options.table import QueueOptions
from rmqstore_spark.datasource.sources.pulled_store import PulledStore
from rmqstore_spark.datasource.sources.queues import chosen_names
from rmqstore_spark.datasource.sources.source import (
    ChosenQueue,
    Clock,
    QueueName,
    Source,
    SourcePartition,
    SourceWatch,
)
from rmqstore_spark.errors import RemotingError, ServiceError
from rmqstore_spark.layout.constants import RETRY_GROUP_TOPIC_PREFIX
from rmqstore_spark.remoting.access.identity import ClientIdentity, IdentityFiles
from rmqstore_spark.remoting.codec.codes import ResponseCode

if TYPE_CHECKING:
    import pyarrow as pa

    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.sources.pulled_queue import PulledQueue
    from rmqstore_spark.reader.before import Before
    from rmqstore_spark.reader.options import QueueRange, QueueSplit, ReadOptions, Split
    from rmqstore_spark.reader.plan import PlanLimits

_log = logging.getLogger("rmqstore_spark")

_LOOK: Final = 0.1
_TOPICS: Final = 10.0
_ROUTES: Final = 30.0
"""How often RocketMQ's clients ask where brokers are."""
_BUSY: Final = 20
"""The wait between two looks, as a multiple of what one takes: a twentieth of a core."""
_SILENT: Final = 1.0
"""Seconds at least between two tries at a broker that does not answer."""


@dataclass(frozen=True)
class BrokerSpec:
    """What a task needs to pull from a broker.

    Args:
        broker_name: its name.
        addresses: the master and then its slaves.
        name_servers: where to look for them when they have moved.
        timeout_s: seconds after which none of them has answered.
        answer_s: seconds that one may take for an answer.
        identity: names of the files with which to talk to them; contains no secrets.
        only_master: whether slaves are not asked.
        connect_s, retries: see `ServerGroup`.
    """

    broker_name: str
    addresses: Addresses
    name_servers: tuple[str, ...]
    timeout_s: float
    answer_s: float
    identity: IdentityFiles
    only_master: bool = False
    connect_s: float | None = None
    retries: int | None = None

    @property
    def url(self) -> str:
        """What it is, for messages."""
        return f"{self.broker_name} at {' or '.join(self.addresses.listed)}"

    def open_master(self) -> Broker:
        """Open it at its master alone: its offsets count.

        A slave may be behind, and takes no progress.

        Raises:
            ServiceError: no master is registered.
        """
        if not self.addresses.has_master:
            raise ServiceError(
                f"The broker {self.url} has no master now, only slaves. A stream asks the master "
                "for new messages. Start it; the stream then continues from its checkpoint.",
                can_pass=True,
            )
        first = self.addresses._replace(listed=self.addresses.listed[:1])
        alone = replace(self, addresses=first, answer_s=self.timeout_s, only_master=True)
        return Broker(self, alone._client(0.0))

    def led_by(self, found: Addresses) -> BrokerSpec:
        """Return the same broker for tasks: it was reached, where its processes are now."""
        if found.listed[0] == self.addresses.listed[0]:
            return replace(self, connect_s=None)
        others = [one for one in self.addresses.listed if one not in found.listed]
        addresses = found._replace(listed=(*found.listed, *others))
        return replace(self, addresses=addresses, connect_s=None)

    def open(self, *, patience_s: float = 0.0) -> Broker:
        """Open it, with connections of its own.

        Args:
            patience_s: for how many seconds to try the master before its slaves are asked.

        Raises:
            OptionError: a file with keys or certificates is missing or wrong.
        """
        return Broker(self, self._client(patience_s))

    def _client(self, patience_s: float) -> BrokerClient:
        identity = ClientIdentity.of(self.identity)
        registered = RegisteredBroker(
            self.name_servers, self.broker_name, identity, only_master=self.only_master
        )
        return BrokerClient(
            self.broker_name,
            self.addresses,
            self.timeout_s,
            self.answer_s,
            identity,
            patience_s=patience_s,
            finder=registered,
            connect_s=self.connect_s,
            retries=self.retries,
        )


class PulledPartition(SourcePartition):
    """Ranges of queues of one broker that one task pulls in order."""

    def __init__(self, plan: str, broker: BrokerSpec, splits: Sequence[Split]) -> None:
        super().__init__(plan, broker.broker_name, splits, is_waited_for=True)
        self.broker = broker

    def to_json(self) -> dict[str, Any]:
        return {"broker": asdict(self.broker)}

    def read(self, wanted: ReadOptions, options: Options) -> Generator[pa.RecordBatch]:
        del options
        with closing(self.broker.open()) as broker:
            for split in self.splits:
                yield from broker.read(split, wanted)


class Broker(PulledStore, Source):
    """A broker that messages are pulled from.

    Its master and slaves stand in for each other, and are not replicas to choose from.
    """

    falls_silent = True

    def __init__(self, spec: BrokerSpec, client: BrokerClient) -> None:
        super().__init__(spec.broker_name, client)
        self._spec = spec
        self.url = spec.url

    def queues(self, names: Sequence[QueueName]) -> list[tuple[QueueName, PulledQueue]]:
        self.look(names)
        return [(name, self.queue(*name)) for name in self.used(names)]

    def before(self, asked: Sequence[tuple[PulledQueue, int]]) -> list[Before]:
        return [queue.before(offset) for queue, offset in asked]

    def group_progress(
        self, group: str, names: Sequence[QueueName], *, is_own: bool
    ) -> tuple[dict[QueueName, int], frozenset[str]]:
        found = self._client.group_offsets(group, names)
        told = zip(names, found, strict=True)
        offsets = {name: offset for name, offset in told if offset is not None}
        groups = frozenset((group,))
        if not is_own and not any(offsets.values()):
            try:
                groups = self._client.groups()
            except RemotingError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
        return offsets, groups

    def commits(self) -> _Commits:
        return _Commits(self, self._client)

    def plan(
        self, ranges: Sequence[QueueRange], limits: PlanLimits, options: Options
    ) -> list[QueueSplit]:
        del options  # `name_servers` has refused what pulls cannot do
        return self.cut(ranges, limits)

    def partitions(self, plan: str, groups: Sequence[Sequence[Split]]) -> Iterator[PulledPartition]:
        spec = self._spec.led_by(self.servers.addresses)
        return (PulledPartition(plan, spec, group) for group in groups)

    def follow(self, chosen: QueueOptions, hurry_s: float, clock: Clock) -> None:
        self.watched = BrokerWatch(chosen, self, hurry_s, clock)


class BrokerWatch(SourceWatch):
    """The queues of one broker, followed as `Source.follow` says."""

    def __init__(
        self,
        chosen: QueueOptions,
        store: Broker,
        hurry_s: float,
        clock: Clock,
    ) -> None:
        self._chosen = chosen
        self._hurry_s = hurry_s
        self._store = store
        self._clock = clock
        self.queues: dict[QueueKey, ChosenQueue] = {}
        self._names: list[QueueName] = []
        self._topics_at = self._look_at = clock()
        self._routes_at = clock() + _ROUTES
        self.check()

    def find_silence(self) -> None:
        if self.silence is None:
            self._look_at = self._clock()
            self.look()

    def hurried(self) -> AbstractContextManager[None]:
        return self._store.servers.limited_to(self._hurry_s, tries_again=self.silence is None)

    def look_before(self, offsets: Mapping[QueueKey, int]) -> None:
        broker = self._store.broker_name
        self._store.look_before({k[1:]: at for k, at in offsets.items() if k.broker == broker})

    def look(self) -> bool:
        """Ask the broker, if it is time; return whether anything changed.

        A broker that does not answer is not waited for long: others may have news. It is asked
        again from time to time.
        """
        now = self._clock()
        if now < self._look_at:
            return False
        try:
            with self.hurried():
                if now >= self._routes_at:
                    self._store.servers.find_again()
                    self._routes_at = now + _ROUTES
                changed = now >= self._topics_at and self._find_names()
                changed |= self._store.look(self._names)
        except ServiceError as error:
            if not error.can_pass:
                raise
            return self._fall_silent(error, self._clock() - now)
        changed |= self._answered()
        if changed:
            self._collect()
        took = self._clock() - now
        self._look_at = self._clock() + max(_LOOK, _BUSY * took)
        return changed

    def check(self, *, relist: bool = False) -> bool:
        del relist  # there are no folders to list
        changed = self._find_names()
        changed |= self._store.look(self._names)
        changed |= self._answered()
        if changed:
            self._collect()
        return changed

    def _fall_silent(self, error: ServiceError, took: float) -> bool:
        """Take note that the broker does not answer; return whether it did before."""
        is_new = self.silence is None
        now = self._clock()
        # The first time it was tried again and again, and now once each time.
        pause = _SILENT if is_new else max(_SILENT, min(_BUSY * took, _ROUTES))
        self._look_at = now + pause
        if is_new:
            self.silent_since = now
            _log.warning(
                "The stream continues without new messages of a broker, until it answers again. %s",
                error,
            )
        self.silence = error
        return is_new

    def _answered(self) -> bool:
        """Take note that the broker answers; return whether it did not before."""
        was_silent = self.silence is not None
        if was_silent:
            _log.warning("%s answers again.", self._store.path)
        self.silence = None
        return was_silent

    def _find_names(self) -> bool:
        """List topics and queues; return whether other queues are there than before."""
        began = self._clock()
        self._store.refresh()
        names = chosen_names(self._chosen, self._store.known_topics())
        self._topics_at = self._clock() + max(_TOPICS, _BUSY * (self._clock() - began))
        changed = names != self._names
        self._names = names
        return changed

    def _collect(self) -> None:
        broker = self._store.broker_name
        self.queues = {}
        for name in self._store.used(self._names):
            key = QueueKey(broker, *name)
            self.queues[key] = ChosenQueue(key, self._store, self._store.queue(*name))


class _Commits:
    """Commits offsets at a broker, which is first asked to create the group."""

    def __init__(self, broker: Broker, client: BrokerClient) -> None:
        self._broker = broker
        self._client = client
        self._is_introduced = False

    def commit_offsets(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        if not self._is_introduced and not self._is_shown(group):
            self._introduce(group)
        self._is_introduced = True
        try:
            self._client.commit_offsets(group, offsets)
        except RemotingError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._introduce(group)  # its retry topic was there, but the group was deleted
            self._commit_again(group, offsets)

    def close(self) -> None:
        pass

    def _commit_again(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> None:
        try:
            self._client.commit_offsets(group, offsets)
        except RemotingError as error:
            raise RemotingError(error.code, f"{error.remark} {_remedy(group)}") from None

    def _is_shown(self, group: str) -> bool:
        """Return whether RocketMQ's tools find a group, which is by its retry topic."""
        retry_topic = RETRY_GROUP_TOPIC_PREFIX + group
        return any(topic.name == retry_topic for topic in self._broker.known_topics())

    def _introduce(self, group: str) -> None:
        """Have the group created; what keeps the broker from it may still let offsets pass."""
        try:
            self._client.introduce(group)
            self._broker.refresh()
            reason = "" if self._is_shown(group) else "The broker did not create it."
        except RemotingError as error:
            reason = str(error)
        if reason and not self._is_introduced:
            _log.warning(
                "RocketMQ's tools do not show the consumer group %s at %s, where it has no retry "
                "topic. %s %s",
                group, self._broker.path, reason, _remedy(group),
            )  # fmt: skip


def _remedy(group: str) -> str:
    return (
        f"Create the group with `mqadmin updateSubGroup -g {group}`, and let the account consume "
        "as it (SUB)."
    )
