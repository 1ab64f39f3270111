"""What a backfill keeps of its plan: pieces and tallies."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from rmqstore_spark.client.brokers.server_group import Addresses
from rmqstore_spark.datasource.sources.broker import BrokerSpec, PulledPartition
from rmqstore_spark.datasource.sources.store import EndpointSpec, StorePartition, StoreSpec
from rmqstore_spark.pipelines.parquet.output import Tally, describe_difference
from rmqstore_spark.pipelines.parquet.task import piece_of, planned_rows, stored_piece
from rmqstore_spark.reader.options import (
    KeySplit,
    LogSplit,
    QueueRange,
    QueueSplit,
    ScanSplit,
    Split,
)
from rmqstore_spark.remoting.access.identity import IdentityFiles

RANGES = (QueueRange("a", 0, 5, 25), QueueRange("%RETRY%主题", 3, 0, 7))
SPLITS: list[Split] = [
    QueueSplit(RANGES[0], 1000),
    LogSplit(0, 4096, RANGES, continued=(1,), unfinished=(0, 1)),
    LogSplit(4096, 8192, RANGES, continued=(0, 1)),
    ScanSplit(0, 100),
    ScanSplit(0, 100, frozenset({"b", "a"})),
    KeySplit(0, 100, RANGES),
]
SPEC = StoreSpec("/data/store", "broker-a", ("/disk1/log", "/disk2/log"))
BEHIND_A_PROCESS = EndpointSpec("rmq://h:1#a", None, options=(("acl_file", None), ("retries", 17)))


@pytest.mark.parametrize("spec", [SPEC, BEHIND_A_PROCESS], ids=["directory", "endpoint"])
def test_pieces_come_back_as_they_were(spec: StoreSpec) -> None:
    piece = StorePartition("x", spec, SPLITS)
    back = piece_of(json.loads(json.dumps(stored_piece(piece))), "y")
    assert isinstance(back, StorePartition)
    assert (back.store, list(back.splits), back.value) == (spec, SPLITS, "y")
    assert hash(back.store) == hash(spec)
    assert back.is_waited_for == piece.is_waited_for == (spec is BEHIND_A_PROCESS)


def test_pieces_of_brokers_come_back_as_they_were() -> None:
    identity = IdentityFiles("/key.yml", True, "/ca.pem")
    places = Addresses(("h:1", "h:2"), has_master=True)
    spec = BrokerSpec("broker-b", places, ("n:1", "n:2"), 60.0, 5.0, identity)
    piece = PulledPartition("x", spec, SPLITS[:1])
    back = piece_of(json.loads(json.dumps(stored_piece(piece))), "y")
    assert isinstance(back, PulledPartition)
    assert (back.broker, list(back.splits), back.value) == (spec, SPLITS[:1], "y")
    assert planned_rows([piece]) == {("broker-b", "a", 0): 20}


def test_a_range_in_several_stretches_of_the_log_counts_once() -> None:
    planned = planned_rows([StorePartition("x", SPEC, [split]) for split in SPLITS[1:3]])
    assert planned == {("broker-a", "a", 0): 20, ("broker-a", "%RETRY%主题", 3): 7}


def test_ranges_of_one_queue_add_up() -> None:
    parts = [QueueSplit(QueueRange("a", 0, start, start + 5), 1) for start in (0, 5, 10)]
    assert planned_rows([StorePartition("x", SPEC, parts)]) == {("broker-a", "a", 0): 15}


def test_nobody_knows_what_a_scan_gives() -> None:
    assert planned_rows([StorePartition("x", SPEC, SPLITS[:4])]) is None


def test_rows_are_counted_by_queue() -> None:
    tally = Tally()
    for topics, ids in ((["a", "b", "a"], [0, 2**31 - 1, 0]), (["a", "a"], [0, 1]), ([], [])):
        tally.add(
            pa.RecordBatch.from_pydict(
                {
                    "brokerName": pa.array(["broker-a"] * len(topics), pa.string()),
                    "topic": pa.array(topics, pa.string()),
                    "queueId": pa.array(ids, pa.int32()),
                }
            )
        )
    assert tally == {
        ("broker-a", "a", 0): 3,
        ("broker-a", "a", 1): 1,
        ("broker-a", "b", 2**31 - 1): 1,
    }
    assert Tally.from_json(json.loads(json.dumps(tally.to_json()))) == tally


@pytest.mark.parametrize(
    ("written", "less_is_fine", "words"),
    [
        ({0: 10, 1: 5}, False, ""),
        ({0: 9, 1: 5}, False, "t/0 of b: 9 of 10 rows"),
        ({0: 9, 1: 5}, True, ""),
        ({1: 5}, False, "t/0 of b: 0 of 10 rows"),
        ({0: 11, 1: 5}, True, "t/0 of b: 11 of 10 rows"),
        ({0: 10, 1: 5, 2: 1}, True, "t/2 of b: 1 of 0 rows"),
    ],
)
def test_differences(written: dict[int, int], less_is_fine: bool, words: str) -> None:
    planned = Tally({("b", "t", 0): 10, ("b", "t", 1): 5})
    found = Tally({("b", "t", queue_id): count for queue_id, count in written.items()})
    assert describe_difference(planned, found, less_is_fine=less_is_fine) == words


def test_many_differences_are_not_all_listed() -> None:
    planned = Tally({("b", "t", queue_id): 1 for queue_id in range(30)})
    assert describe_difference(planned, Tally(), less_is_fine=False).endswith("20 more queues")
