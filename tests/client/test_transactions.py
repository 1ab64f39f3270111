"""Producers of transactional messages: they put, end and check through a store process."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.base.types import HalfId
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.transactions import find_transactions, messages_of
from tests.support.processes.delaying import rows_of
from tests.support.processes.halving import as_block
from tests.support.processes.serving import Served, served
from tests.support.stores.storing import messages


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(
        tmp_path / "store", transaction_time_out=0, transaction_check_interval=3_600_000
    ) as found:
        yield found


class Outcomes:
    """Knows the outcome of some messages by their bodies."""

    def __init__(self, known: Mapping[bytes, bool]) -> None:
        self._known = known
        self.asked: list[bytes] = []

    def check(self, message: Mapping[str, Any]) -> bool | None:
        assert dict(message["properties"])["REAL_TOPIC"] == "orders"
        self.asked.append(message["body"])
        return self._known.get(message["body"])


def columns(*bodies: bytes) -> dict[str, pa.Array]:
    return {
        "topic": pa.array(["orders"] * len(bodies)),
        "body": pa.array(bodies, pa.binary()),
        "tags": pa.array(["t"] * len(bodies)),
        "queueId": pa.array([0] * len(bodies), pa.int64()),
    }


def test_they_are_put_ended_and_checked(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        producer = client.producer("pg")
        a, b, c, _, e = producer.put(columns(b"a", b"b", b"c", b"d", b"e"))
        assert producer.commit([a]).statuses == ("COMMITTED",)
        assert producer.roll_back([b]).statuses == ("ROLLED_BACK",)
        assert producer.commit([a, b]).statuses == ("ENDED_BEFORE",) * 2
        assert producer.commit([HalfId(0, 7)]).statuses == ("MESSAGE_ILLEGAL",)
        assert client.producer("other").commit([c]).statuses == ("MESSAGE_ILLEGAL",)
        assert producer.checks().num_rows == 0
        here.store.transactions.check()
        checker = Outcomes({b"c": True, b"d": False})
        assert client.producer("other").answer_checks(checker) == 0
        assert producer.answer_checks(checker) == 2
        assert producer.answer_checks(checker) == 0
        assert checker.asked == [b"c", b"d", b"e"]
        here.store.transactions.check()
        (again,) = producer.checks(1).to_pylist()
        assert HalfId(again["queueOffset"], again["physicalOffset"]) == e
        here.store.flush()
        with Store.open(here.endpoint) as reader:
            (waits,) = find_transactions(reader).waiting
        assert (waits.group, waits.topic, waits.queue_id) == ("pg", "orders", "0")
    rows = rows_of(Path(here.store.path), "orders")
    assert [(row["body"], row["tags"]) for row in rows] == [(b"a", "t"), (b"c", "t")]


def test_what_a_checker_knew_before_it_failed_counts(here: Served) -> None:
    class Failing(Outcomes):
        def check(self, message: Mapping[str, Any]) -> bool | None:
            if message["body"] == b"b":
                raise LookupError("the database is away")
            return super().check(message)

    with StoreClient(here.endpoint) as client:
        producer = client.producer("pg")
        a, b = producer.put(columns(b"a", b"b"))
        here.store.transactions.check()
        with pytest.raises(LookupError, match="the database is away"):
            producer.answer_checks(Failing({b"a": True}))
        assert producer.commit([a, b]).statuses == ("ENDED_BEFORE", "COMMITTED")


def test_more_transactions_are_ended_than_one_request_can_name(here: Served) -> None:
    with StoreClient(here.endpoint) as client:
        producer = client.producer("pg")
        halves = producer.put(columns(*(b"%d" % n for n in range(10_001))))
        reply = producer.commit(halves)
    assert reply.statuses == ("COMMITTED",) * 10_001
    assert len(reply.remarks) == 10_001


def test_a_check_unpacks_no_more_than_fits(here: Served) -> None:
    body = b"x" * 1_000_000
    packed = zlib.compress(body)
    batch = messages(
        [packed, packed],
        properties=pa.array([b"TRAN_MSG\x01true\x02PGROUP\x01pg"] * 2, pa.binary()),
        sysFlag=pa.array([0x301] * 2, pa.int32()),
    )
    assert here.store.transactions.puts.put(as_block(batch)).ok
    here.store.transactions.check()
    asked = here.store.transactions.take_asked("pg", 10)
    with Store.open(here.store.path) as reader:
        for room, bodies in (
            (4 << 20, [body, body]), (3 << 19, [body, packed]), (0, [packed, packed])
        ):  # fmt: skip
            assert messages_of(reader, asked, room)["body"].to_pylist() == bodies


def test_what_is_refused(here: Served) -> None:
    with StoreClient(here.endpoint, retries=0) as client:
        with pytest.raises(OptionError, match="name of a producer group"):
            client.producer("no group")
        producer = client.producer("pg")
        with pytest.raises(RefusedError, match="system topic"):
            producer.put({**columns(b"x"), "topic": pa.array(["RMQ_SYS_TRANS_HALF_TOPIC"])})
        with pytest.raises(RefusedError, match="were not stored"):
            producer.put(columns(b"x" * ((1 << 20) - 100)))
