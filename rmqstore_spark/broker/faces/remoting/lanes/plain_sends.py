"""Stores the messages of plain requests to send: the kernel turns their frames into records.

Such a request is for a topic that exists and takes messages, and asks for nothing else: no delay,
no transaction. All that came together are one block, and none of these messages is an object of
Python. Other requests are read one by one (`sending`), which gives the same records and answers.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.messages import Send
from rmqstore_spark.broker.core.producing import refusal
from rmqstore_spark.broker.faces.remoting.lanes.send_rounds import SendRounds
from rmqstore_spark.broker.faces.remoting.results import REGION, sent
from rmqstore_spark.broker.faces.remoting.row import refused
from rmqstore_spark.engine.admission import CLIENTS_SYS_FLAG
from rmqstore_spark.engine.append.appender import SinglePlace
from rmqstore_spark.engine.append.commit import HeldUpError
from rmqstore_spark.engine.status import PutResult
from rmqstore_spark.layout import kernel
from rmqstore_spark.layout.constants import (
    MAX_PROPERTIES_LENGTH,
    NAME_VALUE_SEPARATOR,
    PROPERTY_CLUSTER,
)
from rmqstore_spark.layout.fields import HOST_V6_SIZE
from rmqstore_spark.layout.hosts import encode_host
from rmqstore_spark.layout.kernel.reference.answers import QUEUE, ROWS, SIZE
from rmqstore_spark.layout.record.block import Block, Route
from rmqstore_spark.layout.record.single import SingleRecord
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import VERSION
from rmqstore_spark.remoting.codec.plain import PlainSend
from rmqstore_spark.remoting.connection import RemotingConnection, Request, reply_all

_MOST_TOPICS: Final = 4096
_MOST_QUEUES: Final = 1 << 18
_RECORD_BYTES: Final = 128
"""Bytes that a record has beside texts of its frame and the name of the cluster, at most."""
_BATCH: Final = RequestCode.SEND_BATCH_MESSAGE
_MOST_KEYS: Final = 256
_KEYS: Final = 4
"""Keys of a message that room is made for, beside _MOST_KEYS of all; with more, it is odd."""
_QUEUED: Final = np.ones(1024, np.bool_)
_QUEUED.flags.writeable = False
_LEAST_ENTRY: Final = 22
"""Bytes that a message in a batch has at least."""
MOST_BYTES: Final = 4 << 20
"""Bytes of requests that are stored at once, if there is more than one."""
_MOST_RECORDS: Final = 64 << 20
"""Most bytes of records that room is made for."""
_MOST_PEERS: Final = 16_384


class _Topics:
    """n topics that take messages, with k queues in all.

    Attributes:
        names: n.
        numbers: the number of each, by its name as bytes.
        queues: int32[n], how many queues each has.
        marks: int32[k], zeros; see `write_sends`.
    """

    def __init__(self, queues: dict[str, int]) -> None:
        self.names = list(queues)
        self.numbers = {name.encode(): number for number, name in enumerate(queues)}
        self.queues = np.array([*queues.values()], np.int32)
        self.marks = np.zeros(sum(queues.values()), np.int32)
        self._firsts = [*accumulate(queues.values(), initial=0)][:-1]
        self._routes: dict[int, Route] = {}

    def routes(self, places: Sequence[int]) -> tuple[Route, ...]:
        """Return queues by their places among those of all topics."""
        known = self._routes
        for place in places:
            if place not in known:
                number = bisect_right(self._firsts, place) - 1
                known[place] = Route(self.names[number], place - self._firsts[number])
        return tuple([known[place] for place in places])


class _KnownTopics:
    """The topics of requests that were stored as they came, until topics change. Thread-safe.

    Attributes:
        queues: how many queues each has. It is replaced, and never changed.
    """

    def __init__(self, core: Core) -> None:
        self._producing = core.producing
        self._lock = threading.Lock()
        self._changes = 0
        self.queues: dict[str, int] = {}
        self._topics = _Topics({})

    def topics_changed(self) -> None:
        """Look each topic up again."""
        with self._lock:
            self._changes += 1
            self.queues, self._topics = {}, _Topics({})

    def with_all(self, names: set[str]) -> _Topics:
        """Return the topics, with those of some names as far as they take messages."""
        changes = self._changes  # first: what is read after a change must not count as older
        topics, queues = self._topics, self.queues
        new = names - queues.keys()
        if not new:
            return topics
        found = {name: self._producing.open_queues(name) for name in new}
        if not any(found.values()):
            return topics
        count = sum(queues.values()) + sum(found.values())
        if len(queues) + len(found) > _MOST_TOPICS or count > _MOST_QUEUES:
            queues = {}
        queues = {**queues, **{name: count for name, count in found.items() if count}}
        topics = _Topics(queues)
        with self._lock:
            if changes == self._changes:
                self.queues, self._topics = queues, topics
        return topics


class PlainSends:
    """Stores such messages. Thread-safe.

    Args:
        core: stores the messages.
    """

    def __init__(self, core: Core) -> None:
        self._catalog = core.catalog
        self._producing = core.producing
        self._watched = core.store.topics
        config = core.store.config
        self._cluster = (
            f"{PROPERTY_CLUSTER}{NAME_VALUE_SEPARATOR}{config.broker_cluster_name}".encode()
        )
        self._host = config.store_host
        self._max_body = config.max_message_size
        self._max_bytes = config.max_block_bytes
        self._max_rows = config.max_block_rows
        self._topics = _KnownTopics(core)
        self._watched.watch(self._topics)

    def close(self) -> None:
        """Watch topics no more."""
        self._watched.unwatch(self._topics)

    def store(
        self, requests: Sequence[Request], *, patient: bool, rounds: SendRounds | None = None
    ) -> Sequence[Request]:
        """Store the messages of plain requests, and answer these.

        Args:
            requests: the requests.
            rounds: is told which of them are answered later, and when they are.
            patient: wait for a commit to the same queues. If False, the requests that were to be
                stored together with one that it holds up are among the others.

        Returns:
            The other requests, and those of their connections that came after them: the messages
            of a connection are stored in their order.
        """
        if not self._catalog.is_writable:
            return requests
        left, plain, size = list[Request](), list[Request](), 0
        behind = set[RemotingConnection]()
        if _are_plain(requests):  # as nearly always
            self._store(requests, left, behind, patient, rounds)
            return left
        for request in requests:
            if not isinstance(request.command, PlainSend) or request.connection in behind:
                left.append(request)
                behind.add(request.connection)
                continue
            if plain and size + request.command.size > MOST_BYTES:
                self._store(plain, left, behind, patient, rounds)
                plain, size = [], 0
                if request.connection in behind:
                    left.append(request)
                    continue
            plain.append(request)
            size += request.command.size
        if plain:
            self._store(plain, left, behind, patient, rounds)
        return left

    def store_single(self, request: Request) -> bool:
        """Store the message of a request that has come alone, and answer it.

        Returns:
            Whether that is done; else nothing is, and `store` is to be asked.
        """
        command = request.command
        if type(command) is not PlainSend or not self._catalog.is_writable:
            return False
        name = command.topic
        queues = self._topics.queues.get(name)
        if queues is None:
            return False
        written = kernel.active.write_send(
            command.frame, self._max_body, CLIENTS_SYS_FLAG, queues,
            _packed(request.connection.peer), self._host, self._cluster,
        )  # fmt: skip
        if written is None:
            return False
        data, queue_id, tags_code, keys = written
        if len(data) > self._max_bytes:
            return False
        found = self._producing.store_single(
            SingleRecord(data, Route(name, queue_id), tags_code, keys)
        )
        if isinstance(found, SinglePlace):
            answer: bytes = kernel.active.write_answer(
                VERSION, self._host, command.opaque, command.form, queue_id, found.queue_offset,
                found.physical_offset,
            )  # fmt: skip
            request.reply(answer)
            return True
        return found is not None and self._answered_one(request, queue_id, found)

    def _answered_one(self, request: Request, queue_id: int, result: PutResult) -> bool:
        """Answer a request; return False if it is to be tried as others are, as it is to blame."""
        status = result.status
        if status.is_stored:
            send = Send("", queue_id, "", 0, 0, 0, 0, "", 0, -1, b"", told_queue=queue_id)
            send.status, send.remark = status, result.remark
            send.msg_ids, send.offset = ",".join(result.msg_ids()), int(result.queue_offset[0])
            request.reply(sent(request.command, send))
        elif status.is_transient or result.is_open:
            error = refused(refusal(result))
            request.reply(request.command.answer(error.code, error.remark, dict(REGION)))
        else:
            return False
        return True

    def _store(
        self,
        requests: Sequence[Request],
        left: list[Request],
        behind: set[RemotingConnection],
        patient: bool,
        rounds: SendRounds | None,
    ) -> None:
        """Store the messages of requests, or add these, and their connections, to those left."""
        commands = [cast(PlainSend, request.command) for request in requests]
        topics = self._topics.with_all({command.topic for command in commands})
        group = _Group(requests, [command.frame for command in commands], topics)
        block = group.block(self._host, self._cluster, self._max_body, self._max_rows)
        is_stored = False
        if 0 < len(block.data) <= self._max_bytes and group.keeps_order():
            with suppress(HeldUpError):
                later = None
                if self._producing.puts_later is not None:
                    later = _Later(self, group, rounds)
                result = self._producing.store_written(
                    block, group.topics(), patient=patient, later=later
                )
                if later is not None and result.ok:
                    later.began()
                    is_stored = True
                else:
                    is_stored = self.answered(group, result)
        others = group.others() if is_stored else requests
        if others:
            left += others
            behind.update(request.connection for request in others)

    def answered(self, group: _Group, result: PutResult) -> bool:
        """Answer requests; return False if each is to be tried alone, as one is to blame."""
        status, taken = result.status, group.taken()
        if result.ok:
            reply_all(taken, group.answers(self._host, result))
        elif status.is_stored:
            ids, offsets, first = result.msg_ids(), result.queue_offset.tolist(), 0
            for request, queue, rows in zip(taken, group.queue_ids(), group.rows(), strict=True):
                send = Send("", queue, "", 0, 0, 0, 0, "", 0, -1, b"", told_queue=queue)
                send.status, send.remark = status, result.remark
                send.msg_ids, send.offset = ",".join(ids[first : first + rows]), offsets[first]
                request.reply(sent(request.command, send))
                first += rows
        elif status.is_transient or result.is_open:
            error = refused(refusal(result))
            for request in taken:
                request.reply(request.command.answer(error.code, error.remark, dict(REGION)))
        else:
            return False
        return True


class _Later:
    """Plain requests whose messages are in the log, and are answered when a quorum has them.

    Args:
        sends: answers them.
        group: the requests.
        rounds: is told of them.
    """

    def __init__(self, sends: PlainSends, group: _Group, rounds: SendRounds | None) -> None:
        self._sends = sends
        self._group = group
        self._rounds = rounds

    def began(self) -> None:
        """Take note that they are stored."""
        if self._rounds is not None:
            self._rounds.began(len(self._group.taken()))

    def settled(self, result: PutResult) -> None:
        """Answer the requests."""
        try:  # answers all: none was to blame when they were stored
            self._sends.answered(self._group, result)
        finally:
            if self._rounds is not None:
                self._rounds.ended(len(self._group.taken()))


class _Group:
    """Plain requests that are stored together.

    Args:
        requests: n.
        frames: n, all of each.
        topics: those that take messages.
    """

    def __init__(
        self, requests: Sequence[Request], frames: Sequence[bytes], topics: _Topics
    ) -> None:
        self._requests = requests
        self._frames = frames
        self._topics = topics
        self._counts = np.zeros(len(topics.names), np.int32)
        self._asked = np.zeros(len(topics.names), np.int32)
        self._told = np.empty((len(requests), 5), np.int32)
        self._taken_count = self._rows_count = 0

    def block(self, host: bytes, cluster: bytes, max_body: int, max_rows: int) -> Block:
        """Return the records of those that are plain indeed.

        Args:
            host: of the store.
            cluster: the property that names the cluster.
            max_body: most bytes of a body.
            max_rows: most records.
        """
        frames, count = self._frames, len(self._frames)
        lengths = [*map(len, frames)]
        size, text, most = sum(lengths), max(lengths) + len(cluster) + 1, count
        room = size + count * (_RECORD_BYTES + len(cluster))
        if _BATCH in [request.command.code for request in self._requests]:
            most = min(size // _LEAST_ENTRY + count, max_rows)
            room = min(2 * (room + most * (_RECORD_BYTES + len(cluster))), _MOST_RECORDS)
            text = 2 * text + MAX_PROPERTIES_LENGTH + 1
        peers = b"".join([_packed(request.connection.peer) for request in self._requests])
        topics, out = self._topics, np.empty(room, np.uint8)
        starts, tags = np.empty(most, np.int64), np.empty(most, np.int64)
        sizes, route_of, places = (np.empty(most, np.int32) for _ in range(3))
        hashes, key_rows = (np.empty(_MOST_KEYS + _KEYS * most, np.int32) for _ in range(2))
        written, self._taken_count, rows, routes, keys, compressed = kernel.active.write_sends(
            frames, topics.numbers, max_body, CLIENTS_SYS_FLAG, topics.queues, topics.marks, peers,
            host, cluster, self._counts, self._asked, self._told, starts, tags, sizes, route_of,
            places, hashes, key_rows, np.empty(text, np.uint8), out,
        )  # fmt: skip
        self._rows_count = rows
        units = self._told[:, ROWS] if rows > self._taken_count else None
        return Block(
            out[:written],
            starts[:rows],
            sizes[:rows],
            topics.routes(places[:routes].tolist()),
            route_of[:rows],
            tags[:rows],
            _QUEUED[:rows] if rows <= len(_QUEUED) else np.ones(rows, np.bool_),
            compressed,
            unit_ends=None if units is None else units[units > 0].cumsum(dtype=np.int64),
            hashes=(hashes[:keys], key_rows[:keys]),
        )

    def taken(self) -> Sequence[Request]:
        """Return the requests whose messages are among the records."""
        if self._are_all_taken:
            return self._requests
        return [self._requests[at] for at in self._is_taken().nonzero()[0].tolist()]

    def others(self) -> Sequence[Request]:
        """Return the other requests."""
        if self._are_all_taken:
            return ()
        return [self._requests[at] for at in (~self._is_taken()).nonzero()[0].tolist()]

    def keeps_order(self) -> bool:
        """Whether no message would be stored before one that its connection sent before."""
        if self._are_all_taken:
            return True
        behind = set[RemotingConnection]()
        for request, is_taken in zip(self._requests, self._is_taken().tolist(), strict=True):
            if is_taken and request.connection in behind:
                return False
            if not is_taken:
                behind.add(request.connection)
        return True

    def topics(self) -> dict[str, tuple[int, int]]:
        """Return how many messages, and how many requests, are for each topic."""
        names = self._topics.names
        if len(names) == 1:
            return {names[0]: (self._rows_count, self._taken_count)}
        numbers = self._counts.nonzero()[0].tolist()
        return {names[at]: (int(self._counts[at]), int(self._asked[at])) for at in numbers}

    def queue_ids(self) -> list[int]:
        """Return the queue of each message."""
        found: list[int] = self._told[self._is_taken(), QUEUE].tolist()
        return found

    def rows(self) -> list[int]:
        """Return how many messages each request has."""
        found: list[int] = self._told[self._is_taken(), ROWS].tolist()
        return found

    def answers(self, host: bytes, result: PutResult) -> list[bytes]:
        """Return the frames of the answers to requests whose messages are stored."""
        found: list[bytes] = kernel.active.write_answers(
            VERSION, host, self._told, result.queue_offset, result.physical_offset
        )
        return found

    @property
    def _are_all_taken(self) -> bool:
        return self._taken_count == len(self._requests)

    def _is_taken(self) -> npt.NDArray[np.bool_]:
        return self._told[:, SIZE] > 0


def _are_plain(requests: Sequence[Request]) -> bool:
    """Return whether all requests are plain, and may be stored at once."""
    sizes = [each.command.size for each in requests if type(each.command) is PlainSend]
    return len(sizes) == len(requests) and sum(sizes) <= MOST_BYTES


@lru_cache(_MOST_PEERS)
def _packed(peer: str) -> bytes:
    """Return the host of a record, as long as the longest, and a byte: whether it is IPv6."""
    found = encode_host(peer)
    return found.ljust(HOST_V6_SIZE, b"\0") + bytes([len(found) == HOST_V6_SIZE])
