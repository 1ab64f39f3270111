"""Plays what a real client said to a real broker to a broker of ours, in the recorded order.

The bytes are those that were recorded, but for what only the recorded broker could know: where a
message lies in its log, and how long a pull may wait: one that waited to its end without effect
does not wait here. The store's clock shows the recorded time, so messages have the recorded times,
and delayed ones come when they did.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from rmqstore_spark.layout.record.encode import MessageFields, encode_messages
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command, Form
from rmqstore_spark.remoting.codec.frames import FrameReader, encode_frame
from tests.broker.broker import Served, pull, records_in
from tests.broker.clients.records import StoredRecord, read_record
from tests.remoting.reading import read_frames
from tests.support.recordings import Closed, Exchange, Frame, events, exchanges
from tests.support.waiting import eventually

__all__ = ["SENDS", "Clock", "Conversation", "Said"]

SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
_PLACED = {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.VIEW_MESSAGE_BY_ID}
Queue: TypeAlias = tuple[str, int]
_LONG = 30.0
_HOLD_MS = 60_000
_AT_ONCE = 0.5
_PULL_WAITS = 2  # a bit of sysFlag
_REFUSED = pull(0, consumerGroup="no group!")
_REFUSED.opaque = 1 << 30
_AGAIN = 1 << 29
"""The number of a pull that no recorded client sent."""


class Said(NamedTuple):
    """What the recorded broker said, and what ours did.

    Attributes:
        request: of a client, that both answer; None if the broker itself asked or told something.
        waited: whether the request waited for its answer.
        theirs, ours: as they came.
    """

    request: Command | None
    waited: bool
    theirs: Command
    ours: Command


def decoded(frame: Frame) -> Command:
    (found,) = read_frames(frame.wire)
    return found


def rewritten(frame: Frame, name: str, value: int) -> Frame:
    """A frame with another number in its JSON header, which stays a text if it was one."""
    pattern = rb'("%s":"?)-?\d+' % name.encode()
    header, count = re.subn(pattern, rb"\g<1>%d" % value, frame.raw_header)
    assert count == 1, frame
    return frame._replace(raw_header=header)


class _Client:
    """A connection of a client: its answers by number, and what the broker asks or tells."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.answers: dict[int, Command] = {}
        self._changed = asyncio.Event()

    async def open(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        frames = FrameReader()
        while data := await self._reader.read(1 << 20):
            found, error = frames.feed(data)
            assert error is None
            for command in found:
                if command.is_response:
                    self.answers[command.opaque] = command
                else:
                    self.told.append(command)
            self._changed.set()

    async def send(self, frame: Frame) -> None:
        self._writer.write(frame.wire)
        await self._writer.drain()

    async def ask(self, request: Command) -> Command:
        self._writer.write(encode_frame(request))
        return await self.answer(request.opaque)

    async def answer(self, opaque: int) -> Command:
        while opaque not in self.answers:
            await self._more()
        return self.answers.pop(opaque)

    async def next_told(self) -> Command:
        while not self.told:
            await self._more()
        return self.told.pop(0)

    async def _more(self) -> None:
        self._changed.clear()
        await asyncio.wait_for(self._changed.wait(), _LONG)

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._task, self._writer.wait_closed(), return_exceptions=True)


class Clock:
    """Milliseconds since the epoch, while recordings continue."""

    def __init__(self) -> None:
        self._now = 0

    def __call__(self) -> int:
        return self._now

    def advance(self, to: float) -> None:
        """Show a time, unless it has gone by."""
        self._now = max(self._now, round(to))


class Conversation:
    """A recording, and what ours answers.

    Args:
        name: of the recording.
        places: where messages are in their log, and in ours; more are added.

    Attributes:
        name, places: as given.
        begin: when the recording began, in milliseconds; 0 if it does not say.
        said: what both brokers said, in the recorded order.
        surplus: what only ours said: requests, and answers to requests that theirs left waiting.
        before: where ours has the messages that were there before.
    """

    def __init__(self, name: str, places: dict[int, int]) -> None:
        self.name = name
        self.said: list[Said] = []
        self.surplus: list[Command] = []
        self.before: set[int] = set()
        self.places = places
        self._exchanges = exchanges(name, "broker")
        self._in_vain = {
            (each.request.connection, each.request.header["opaque"])
            for each in self._exchanges
            if _waited_in_vain(each)
        }
        self._there = dict(map(_count_there, self._exchanges))
        self.begin = _begin(self._exchanges)
        self._clients: dict[int, _Client] = {}
        self._requests: dict[tuple[int, int], Frame] = {}

    def play(self, served: Served, clock: Clock) -> None:
        """Play it to a broker whose store has this clock."""
        clock.advance(self.begin)
        self._prepare(served)
        asyncio.run(self._play(served, clock, clock()))

    # ---- what was before

    def _prepare(self, served: Served) -> None:
        """Store what was in the queues before, and what groups had consumed of it."""
        counts: dict[Queue, int] = {}
        stored: dict[Queue, dict[int, StoredRecord]] = {}
        consumed: dict[tuple[str, Queue], int] = {}
        for fields, code, answer in _answered(self._exchanges):
            if code in SENDS and "DELAY" not in str(fields):
                queue = fields.get("b") or fields["topic"], int(answer.ext["queueId"])
                counts.setdefault(queue, int(answer.ext["queueOffset"]))
            elif code == RequestCode.PULL_MESSAGE:
                for record in map(read_record, records_in(answer.body)):
                    queue = record.topic, record.queue_id
                    if record.store_timestamp < self.begin:
                        stored.setdefault(queue, {})[record.queue_offset] = record
            elif code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET):
                queue = fields["topic"], int(fields["queueId"])
                # A report before the first question: what is told later was not there before.
                consumed.setdefault(
                    (fields["consumerGroup"], queue), int(answer.ext.get("offset", 0))
                )
        for (_, queue), offset in consumed.items():
            counts[queue] = max(counts.get(queue, 0), offset)
        for queue in counts.keys() | stored.keys():
            count = max(counts.get(queue, 0), 1 + max(stored.get(queue, ()), default=-1))
            for offset in range(_end(served, queue), count):
                self._store(served, queue, stored.get(queue, {}).get(offset))
        for (group, (topic, queue_id)), offset in consumed.items():
            if offset:
                served.store.commit_offsets(group, {topic: {queue_id: offset}})

    def _store(self, served: Served, queue: Queue, record: StoredRecord | None) -> None:
        topic, queue_id = queue
        served.store.create_topic(topic, read_queue_nums=1 if topic.startswith("%") else 4)
        host = "127.0.0.1:1"
        if record is None:  # none of the clients got it
            made = MessageFields(topic.encode(), b"", b"TAGS\x01?", host, 0, queue_id, 0, 0, 0)
        else:
            parts = record.properties.split(b"\x02")
            properties = b"\x02".join(part for part in parts if not part.startswith(b"DELAY"))
            made = MessageFields(
                topic.encode(), record.body, properties, host, record.born_timestamp, queue_id,
                record.flag, record.sys_flag, record.reconsume_times,
            )  # fmt: skip
        result = served.store.put(encode_messages([made], served.store.config.host[0]).data)
        assert result.status.is_stored
        place = int(result.physical_offset[0])
        self.before.add(place)
        if record is not None:
            self.places[record.physical_offset] = place

    # ---- the conversation

    async def _play(self, served: Served, clock: Clock, begin: int) -> None:
        for event in events(self.name, "broker"):
            clock.advance(begin + event.at * 1000)
            if event.connection not in self._clients:
                self._clients[event.connection] = _Client()
                await self._clients[event.connection].open(served.address)
            client = self._clients[event.connection]
            if isinstance(event, Closed):
                await client.close()
            elif event.is_from_client:
                if event.header["code"] == RequestCode.PULL_MESSAGE:
                    await asyncio.to_thread(self._arrived, served, event)
                await client.send(self._asked(event))
                if event.header["code"] == RequestCode.PULL_MESSAGE:
                    await client.ask(_REFUSED)  # the pull is held now, or has its answer
            elif event.header["flag"] & 1:
                await self._compare_answer(served, client, event)
            else:
                self.said.append(Said(None, False, decoded(event), await client.next_told()))
        for client in self._clients.values():
            await client.close()
            self.surplus += [*client.told, *client.answers.values()]

    def _arrived(self, served: Served, pulling: Frame) -> None:
        """Wait for messages that were there when they were pulled: delayed ones take some time."""
        fields = pulling.header["extFields"]
        needed = self._there[pulling.connection, pulling.header["opaque"]]
        queue = fields["topic"], int(fields["queueId"])
        eventually(lambda: _end(served, queue) >= needed)

    def _asked(self, frame: Frame) -> Frame:
        """A request as ours must get it."""
        key = frame.connection, frame.header["opaque"]
        self._requests[key] = frame
        if key in self._in_vain:
            return rewritten(frame, "suspendTimeoutMillis", 0)
        if frame.header["code"] == RequestCode.PULL_MESSAGE and frame.form == Form.JSON:
            return rewritten(frame, "suspendTimeoutMillis", _HOLD_MS)  # on a slow machine too
        if frame.header["code"] in _PLACED:
            place = int(frame.header["extFields"]["offset"])
            return rewritten(frame, "offset", self.places.get(place, place))
        return frame

    async def _compare_answer(self, served: Served, client: _Client, frame: Frame) -> None:
        asked, theirs = self._requests[frame.connection, frame.header["opaque"]], decoded(frame)
        request = decoded(asked)
        ours = await client.answer(theirs.opaque)
        waited = frame.at - asked.at > _AT_ONCE
        if waited and request.code == RequestCode.PULL_MESSAGE:
            ours = await _with_the_rest(client, asked, theirs, ours)
        self.said.append(Said(request, waited, theirs, ours))
        if request.code in SENDS:
            await asyncio.to_thread(served.store.flush)  # it is in its queue now
            ids = [each.ext.get("msgId", "").split(",") for each in (theirs, ours)]
            pairs = zip(*ids, strict=True)
            self.places |= {int(one[-16:], 16): int(two[-16:], 16) for one, two in pairs if one}
        elif request.code == RequestCode.PULL_MESSAGE:
            records = [map(read_record, records_in(each.body)) for each in (theirs, ours)]
            for one, two in zip(*records, strict=False):
                self.places[one.physical_offset] = two.physical_offset


async def _with_the_rest(client: _Client, asked: Frame, theirs: Command, ours: Command) -> Command:
    """All that theirs gave to a pull that waited.

    Delayed messages are stored one by one, and a pull that waits may be woken between two. The
    recorded client went on after the last; ours is asked for the others too.
    """
    while 0 < len(records_in(ours.body)) < len(records_in(theirs.body)):
        again = rewritten(asked, "queueOffset", int(ours.ext["nextBeginOffset"]))
        rest = await client.ask(decoded(rewritten(again, "opaque", _AGAIN)))
        ours = replace(rest, body=ours.body + rest.body)
    return ours


def _end(served: Served, queue: Queue) -> int:
    """How many messages a queue has had."""
    served.store.flush()
    queues = served.store.stats()["queues"]
    return queues.get(queue[0], {}).get(str(queue[1]), [0, 0])[1]


def _answered(asked: list[Exchange]) -> Iterator[tuple[dict[str, Any], int, Command]]:
    """The fields and codes of requests, each with its answer; a report needs none."""
    for each in asked:
        header = each.request.header
        if each.answer is not None and not each.answer.header["code"]:
            yield header.get("extFields") or {}, header["code"], decoded(each.answer)
        elif header["code"] == RequestCode.UPDATE_CONSUMER_OFFSET:
            yield header["extFields"], header["code"], Command(0)


def _begin(asked: list[Exchange]) -> int:
    """When a recording began: producers say when their messages were born."""
    found = []
    for each in asked:
        if each.request.header["code"] in SENDS:
            fields = each.request.header["extFields"]
            born = fields.get("g") or fields["bornTimestamp"]
            found.append(int(born) - each.request.at * 1000)
    return round(max(found, default=0))


def _count_there(exchange: Exchange) -> tuple[tuple[int, int], int]:
    """A request, and if it is a pull, how many messages its queue must have had."""
    request, answer = exchange
    key = request.connection, request.header["opaque"]
    fields = request.header.get("extFields") or {}
    if request.header["code"] != RequestCode.PULL_MESSAGE:
        return key, 0
    if answer is None:  # it waits for the next message
        return key, int(fields["queueOffset"])
    most = int((answer.header.get("extFields") or {}).get("maxOffset", 0))
    was_at_once = answer.at - request.at < _AT_ONCE
    return key, most if was_at_once else min(most, int(fields["queueOffset"]))


def _waited_in_vain(exchange: Exchange) -> bool:
    fields, answer = exchange.request.header.get("extFields") or {}, exchange.answer
    return (
        exchange.request.header["code"] == RequestCode.PULL_MESSAGE
        and answer is not None
        and answer.header["code"] == ResponseCode.PULL_NOT_FOUND
        and bool(int(fields["sysFlag"]) & _PULL_WAITS)
    )
