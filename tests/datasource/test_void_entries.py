"""Void entries, of the part of a batch that a group's leader left: no reader gives their records.

Which records get them is for `tests/engine/group`; here, some entries are made void.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.cli.commands.tail import Tail
from rmqstore_spark.cli.shared.choosing import Choice
from rmqstore_spark.client.brokers.broker import BrokerClient
from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.datasource.sources.pulled_store import PulledStore
from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.lookup import (
    query_by_key,
    query_by_msg_id,
    read_by_key,
    uniq_key_wanted,
)
from rmqstore_spark.reader.options import QueueRange, ReadOptions
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, name_server, number, pull, records_in
from tests.datasource.driving import Stream, batch_rows
from tests.namesrv.registering import registration
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import block_of, served, serving_brokers_clients
from tests.support.stores.voiding import make_void
from tests.support.waiting import eventually, next_millisecond

MESSAGES = 2000
PART = 40
VOID = [*range(3), *range(100, 105), *range(320, 420), 700, *range(990, 1000)]
"""Offsets in queue 0: at its ends, within an answer to a pull, and several answers whole."""


@dataclass
class Places:
    """Where the store is read.

    Attributes:
        directory, broker: of the store, and the address for clients.
        options: of a query, by what it reads from.
    """

    directory: Path
    broker: str
    options: dict[str, dict[str, str]]


@pytest.fixture
def places(tmp_path: Path) -> Iterator[Places]:
    path = tmp_path / "store"
    with (
        served(path, clients="all") as here,
        serving_brokers_clients(here) as runner,
        ExitStack() as ends,
    ):
        here.store.create_topic("orders", write_queue_nums=2)
        for first in range(0, MESSAGES, PART):  # each part a bit later
            traffic = Traffic(PART, topics={"orders": 2}, first=first)
            for block in encoded_traffic(traffic):
                assert here.store.put(block).ok
            next_millisecond()
        here.store.flush()
        make_void(path, VOID)
        servers = ends.enter_context(name_server(tmp_path))
        addresses = Addresses((servers,), has_master=False)
        registered = ServerGroup(addresses, "The name server", 20, 20, ClientIdentity())
        ends.callback(registered.close)  # a broker is known as long as its connection
        told = registration(["orders"], address=runner.address)
        assert registered.ask(told).command.code == ResponseCode.SUCCESS
        where = {
            "directory": {"path": str(path)},
            "endpoint": {"endpoint": here.endpoint},
            "broker": {"namesrvAddr": servers},
        }
        yield Places(path, runner.address, where)


def offsets_of(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(row["queueOffset"] for row in rows if row["queueId"] == 0)


SHOWN = sorted(set(range(MESSAGES // 2)) - set(VOID))


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize("where", ["directory", "endpoint", "broker"])
def test_a_query_gives_all_but_them(
    places: Places, where: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"subscribe": "orders", "startingOffsets": "earliest", "mode": mode}
    options |= places.options[where]
    path = options.pop("path", "")
    assert offsets_of(batch_rows(path, **options)) == SHOWN
    tagged = batch_rows(path, tags="TagA", **options)
    assert set() < set(offsets_of(tagged)) < set(SHOWN)
    stream = Stream(path, maxOffsetsPerTrigger=300, **options)
    found: list[dict[str, Any]] = []
    while (rows := stream.next_batch()) is not None:
        found += rows
        stream.clock.sleep(5)
    stream.reader.stop()
    assert offsets_of(found) == SHOWN
    assert not [text for text in caplog.messages if "left out" in text or "skipped" in text]


@pytest.mark.parametrize("where", ["directory", "broker"])
@pytest.mark.parametrize("start", [0, 1, 100, 320, 340, 419, 700, 990, 999])
def test_a_read_can_begin_with_them(places: Places, where: str, start: int) -> None:
    options: dict[str, Any] = {"subscribe": "orders", **places.options[where]}
    options["startingOffsets"] = json.dumps({"orders": {"0": start, "1": 0}})
    path = options.pop("path", "")
    assert offsets_of(batch_rows(path, **options)) == [one for one in SHOWN if one >= start]
    tagged = batch_rows(places.directory, subscribe="orders", tags="TagA")
    wanted = [one for one in offsets_of(tagged) if one >= start]
    assert offsets_of(batch_rows(path, tags="TagA", **options)) == wanted


@pytest.mark.parametrize("where", ["directory", "broker"])
def test_micro_batches_can_begin_with_them(places: Places, where: str) -> None:
    options: dict[str, Any] = {"subscribe": "orders", "tags": "TagA", **places.options[where]}
    path = options.pop("path", "")
    stream = Stream(path, startingOffsets="earliest", maxOffsetsPerTrigger=20, **options)
    found: list[dict[str, Any]] = []
    while (rows := stream.next_batch()) is not None:
        found += rows
        stream.clock.sleep(5)
    stream.reader.stop()
    tagged = batch_rows(places.directory, subscribe="orders", tags="TagA")
    assert offsets_of(found) == offsets_of(tagged)


def stored_times(rows: list[dict[str, Any]]) -> list[int]:
    return sorted({int(row["storeTimestamp"].timestamp() * 1000) for row in rows})


def test_times_are_those_of_the_path(places: Places) -> None:
    path = places.directory
    more = [*range(435, 600), *range(970, 1000)]
    broker: dict[str, Any] = {**places.options["broker"]}
    times = stored_times(batch_rows(path, subscribe="orders"))
    make_void(path, more)
    for time_ms in times[::2]:
        options: dict[str, Any] = {"assign": '{"orders":[0]}', "startingTimestamp": time_ms}
        if time_ms > stored_times(batch_rows(path, assign=options["assign"]))[-1]:
            with pytest.raises(OptionError, match="has no message stored at or after"):
                batch_rows("", **options, **broker)
        else:
            found = batch_rows("", **options, **broker)
            assert offsets_of(found) == offsets_of(batch_rows(path, **options))


def test_keys_are_found_between_them(places: Places) -> None:
    path = places.directory
    make_void(path, [*range(300), *range(700, 1000)])  # all that a plan samples of the queue
    rows = [row for row in batch_rows(path, subscribe="orders") if row["queueId"] == 0]
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        found = batch_rows(path, subscribe="orders", keys=row["keys"][0])
        assert row["queueOffset"] in offsets_of(found)


def test_searches_do_not_find_them(places: Places) -> None:
    path = places.directory
    rows = {row["queueOffset"]: row for row in batch_rows(path, assign='{"orders":[0]}')}
    made_void = [7, 430, 980]

    def found(offset: int) -> list[list[int]]:
        row = rows[offset]
        key, uniq_key = row["keys"][0], row["properties"]["UNIQ_KEY"]
        fields = {"topic": "orders", "key": key, "maxNum": "32"}
        times = {"beginTimestamp": "0", "endTimestamp": str(2**62)}
        asked = Command(RequestCode.QUERY_MESSAGE, fields | times)
        with Store.open(path) as store:
            by_key = query_by_key(store, "orders", key).to_pylist()
            wanted = uniq_key_wanted(store, None, uniq_key)
            options = ReadOptions(columns=("queueId", "queueOffset"))
            by_id = [
                row for part in read_by_key(store, wanted, options) for row in part.to_pylist()
            ]
            there = query_by_msg_id(store, row["msgId"]).to_pylist()
        assert offsets_of(there) == [offset]
        (answer,) = ask(places.broker, asked)
        told = [int.from_bytes(one[20:28], "big") for one in records_in(answer.body)]
        return [
            offsets_of(by_key), offsets_of(by_id), told,
            offsets_of(batch_rows(path, subscribe="orders", keys=key)),
        ]  # fmt: skip

    for offset in made_void:
        assert found(offset) == [[offset]] * 4
    make_void(path, made_void)
    for offset in made_void:
        assert found(offset) == [[]] * 4
    assert found(8) == [[8]] * 4


def test_the_newest_messages_are_those_before_them(places: Places) -> None:
    make_void(places.directory, [*range(900, 1000)])
    with Store.open(places.directory) as store:
        for count in (1, 20, 990):
            options = ReadOptions(columns=("queueOffset",))
            found = Tail(store, Choice(["orders"], [0]), options).last(count)
            wanted = [one for one in SHOWN if one < 900][-count:]
            assert [one for part in found for one in part["queueOffset"].to_pylist()] == wanted


def test_they_do_not_say_how_long_messages_are(places: Places) -> None:
    def store() -> PulledStore:
        addresses = Addresses((places.broker,), has_master=True)
        return PulledStore("b", BrokerClient("b", addresses, 20, 20, ClientIdentity()))

    with closing(store()) as first, closing(store()) as second:
        assert first.average_size(QueueRange("orders", 0, 330, 390)) == 0
        size = first.average_size(QueueRange("orders", 0, 500, 530))
        assert size > 100
        partly = second.average_size(QueueRange("orders", 0, 400, 600))
        assert partly == pytest.approx(size, rel=0.1)


def test_consumers_pass_over_them(places: Places) -> None:
    at, seen = 0, []
    while at < MESSAGES // 2:
        (answer,) = ask(places.broker, pull(at))
        if answer.code == ResponseCode.SUCCESS:
            seen += [int.from_bytes(one[20:28], "big") for one in records_in(answer.body)]
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.remark == "NO_MATCHED_MESSAGE"
        at = number(answer, "nextBeginOffset")
    assert seen == SHOWN


def test_a_time_is_found_among_them(places: Places) -> None:
    with Store.open(places.directory) as store:
        columns = ReadOptions(columns=("queueOffset", "storeTimestamp"))
        rows = [
            row for part in store.read("orders", 0, options=columns) for row in part.to_pylist()
        ]
        queue = store.queue("orders", 0)
        for row in rows[:: len(rows) // 20]:
            found = queue.offset_at(round(row["storeTimestamp"].timestamp() * 1000))
            assert found is not None
            assert found <= row["queueOffset"]


def test_those_of_expired_records_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with served(path, mapped_file_size_commit_log=64 << 10) as here:
        store = here.store
        store.create_topic("orders", write_queue_nums=2)
        assert store.put(block_of([b"void"] * 3)).ok
        assert store.put(block_of([bytes(1000)] * 200, queue_ids=[1] * 200)).ok
        store.flush()
        make_void(path, [*range(3)])
        with closing(store.queue_reader()) as reader:
            assert reader.read("orders", 0, 0, 32).void == 3
        store.expire(2**62)
        eventually(lambda: not store.expirable(2**62).is_working)
        with closing(store.queue_reader()) as reader:
            assert reader.range("orders", 0) == (3, 3)
            monkeypatch.setattr(reader, "range", lambda *_: (0, 3))  # until the queues are cleaned
            reading = reader.read("orders", 0, 0, 32)
        assert (reading.status, reading.next, reading.void) == ("NO_MATCHED_MESSAGE", 3, 0)
