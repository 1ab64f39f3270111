"""Messages by key, id and time, as RocketMQ and its own account of the log have them."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest

from rmqstore_spark.errors import (
    OptionError,
    SegmentExpiredError,
    TopicNotFoundError,
)
from rmqstore_spark.layout.record.columns import COLUMNS
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.key_search import KeyWanted
from rmqstore_spark.reader.lookup import (
    query_by_key,
    query_by_msg_id,
    query_by_time,
    read_by_key,
    uniq_key_wanted,
)
from rmqstore_spark.reader.options import ReadOptions
from tests.support.sampling import one_in
from tests.support.stores.expected import expected_row, expected_rows, queue_key
from tests.support.stores.golden import GOLDEN_NAMES, load_queues, load_records
from tests.support.stores.keys import (
    IDENTITY,
    PLACE,
    asked,
    assert_complete,
    every_key,
    has_key,
    identities,
    indexed,
    keyed,
    places,
    popular,
    reopened,
    with_key,
)
from tests.support.stores.records import log_files
from tests.support.stores.storebuilder import StoreBuilder

Golden = Callable[[str], Path]
OpenStore = Callable[[str], Store]

LOOKED_AT = 32  # no query of a broker answers more, whatever it asks for
Copy = Callable[[str], Path]


def by_uniq_key(
    store: Store, topic: str | None, key: str, options: ReadOptions = ReadOptions()
) -> pa.Table:
    """The messages with a UNIQ_KEY; of all topics that the store knows, unless one is given."""
    wanted = uniq_key_wanted(store, None if topic is None else [topic], key)
    schema = pa.schema([(name, COLUMNS[name]) for name in options.columns])
    return pa.Table.from_batches(read_by_key(store, wanted, options), schema)


# --- by key ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_keys_give_what_rocketmq_gives(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, records = open_store(name), load_records(golden(name))
    end = store.scan_end()
    for report in load_queues(golden(name)).keys:
        found = places(query_by_key(store, report.topic, report.key, options=PLACE))
        assert found == with_key(records, report.topic, report.key, end)
        if report.with_key is None:
            has = {r.physical_offset for r in records if has_key(r, report.key)}
            assert has & set(report.physical_offsets) <= set(found)
        else:
            assert found[-LOOKED_AT:] == sorted(set(report.with_key))


@pytest.mark.parametrize("name", ["basic", "transactions", "lmq", "v5v2topic", "dledger"])
def test_every_key_of_a_store_is_found(name: str, golden: Golden) -> None:
    records = load_records(golden(name))
    with Store.open(golden(name) / "store") as store:
        assert_complete(store, records, every_key(records)[:: 1 + len(records) // 300])


def test_rows_are_the_records_own(golden: Golden) -> None:
    records = {r.physical_offset: r for r in load_records(golden("delayed"))}
    with Store.open(golden("delayed") / "store") as store:
        for report in load_queues(golden("delayed")).keys:
            for row in query_by_key(store, report.topic, report.key).to_pylist():
                row["properties"] = dict(row["properties"])
                assert row.pop("brokerName") == "delayed"
                assert row == expected_row(records[row["physicalOffset"]])


@pytest.mark.parametrize("name", ["tiny", "basic", "v5v2topic", "unclean"])
def test_limits_give_the_newest(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, (topic, key) = open_store(name), popular(golden(name))
    whole = with_key(load_records(golden(name)), topic, key)
    assert len(whole) > 2
    for count in (0, 1, 2, *one_in(9, range(3, len(whole))), len(whole), len(whole) + 1):
        found = query_by_key(store, topic, key, max_num=count, options=PLACE)
        assert places(found) == (whole[-count:] if count else [])
    with pytest.raises(OptionError, match="max_num must be at least 0, not -1"):
        query_by_key(store, topic, key, max_num=-1)


@pytest.mark.parametrize("name", ["tiny", "basic", "trimmed", "unclean"])
def test_times_are_those_of_the_records(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, (topic, key) = open_store(name), popular(golden(name))
    stored = {r.physical_offset: r.store_timestamp for r in load_records(golden(name))}
    whole = with_key(load_records(golden(name)), topic, key)
    times = sorted({stored[place] + d for place in whole for d in (-1, 0, 1)})
    for begin, end in combinations(times[:: 1 + len(times) // 7], 2):
        found = query_by_key(store, topic, key, begin_ms=begin, end_ms=end, options=PLACE)
        assert places(found) == [place for place in whole if begin <= stored[place] <= end]


def test_options_narrow_down_and_choose_columns(golden: Golden) -> None:
    records = load_records(golden("basic"))
    topic, key = popular(golden("basic"))
    records = [r for r in records if r.topic == topic and has_key(r, key)]
    tag = next(r.properties["TAGS"] for r in records if "TAGS" in r.properties)
    options = ReadOptions(columns=("body", "tags"), tags=frozenset({tag}), body_as_text=True)
    with Store.open(golden("basic") / "store") as store:
        found = query_by_key(store, topic, key, options=options)
        newest = query_by_key(store, topic, key, max_num=1, options=options)
        none = query_by_key(store, "no such topic", key, options=options)
        assert query_by_key(store, "x", "y").schema == pa.schema(list(COLUMNS.items()))
    assert none.schema == pa.schema([("body", pa.string()), ("tags", pa.string())])
    assert none.num_rows == 0
    bodies = [r.body.decode("utf-8", "replace") for r in records if r.properties.get("TAGS") == tag]
    assert found.to_pylist() == [{"body": body, "tags": tag} for body in bodies]
    assert newest == found.slice(len(bodies) - 1)


@pytest.mark.parametrize("text", ["", " ", "\ud800", "a b", "no such key"])
def test_keys_that_no_record_has(golden: Golden, text: str) -> None:
    with Store.open(golden("tiny") / "store") as store:
        assert query_by_key(store, "T", text).num_rows == 0
        assert query_by_key(store, text, "k0").num_rows == 0
        assert by_uniq_key(store, None, text).num_rows == 0


def test_keys_of_one_hash_code_are_told_apart(tmp_path: Path) -> None:
    # "Aa" and "BB" are the classic pair: both hash to 2112.
    keys = ["Aa", "BB", "Aa BB", "x"] * 10
    with StoreBuilder(tmp_path / "store", index=(3, 500)) as builder:
        builder.append(keyed(keys))
    with Store.open(tmp_path / "store") as store:
        for key in ("Aa", "BB"):
            found = query_by_key(store, "T", key, options=ReadOptions(columns=("keys",)))
            lists = found["keys"].to_pylist()
            assert lists == [text.split(" ") for text in keys if key in text.split(" ")]


# --- stores that change ---------------------------------------------------------------------------


def test_expired_records_are_left_out(copy: Copy) -> None:
    folder = copy("basic")
    records, keys = load_records(folder), asked(folder)
    files = [path for _, path, _ in log_files(folder)]
    with reopened(folder) as store:
        for path in files[:4]:
            path.unlink()
        left = [r for r in records if r.physical_offset >= int(files[4].name)]
        assert_complete(store, left, keys)
        assert store.min_offset == int(files[4].name)


def test_a_segment_missing_in_the_middle_is_an_error(copy: Copy) -> None:
    folder = copy("basic")
    shutil.rmtree(folder / "store" / "index")
    with reopened(folder) as store:
        [path for _, path, _ in log_files(folder)][4].unlink()
        with pytest.raises(SegmentExpiredError):
            query_by_key(store, *asked(folder)[0])


@pytest.mark.parametrize("name", ["basic", "v5v2topic", "dledger"])
def test_batch_by_batch_they_are_the_same(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, (topic, key) = open_store(name), popular(golden(name))
    tags = [r.properties.get("TAGS") for r in load_records(golden(name)) if has_key(r, key)]
    wanted = KeyWanted(frozenset({key}), frozenset({topic}))
    for options in (
        ReadOptions(batch_rows=3),
        ReadOptions(batch_bytes=500, columns=("body", "topic")),
        ReadOptions(tags=frozenset(tag for tag in tags[:1] if tag), columns=("body", "tags")),
    ):
        for count in (None, 0, 1, 5):
            whole = query_by_key(store, topic, key, max_num=count, options=options)
            batches = list(read_by_key(store, wanted, options, count))
            assert pa.Table.from_batches(batches, whole.schema).to_pylist() == whole.to_pylist()
            assert all(len(batch) <= options.batch_rows for batch in batches)


def test_what_expires_while_it_is_read_is_left_out(copy: Copy) -> None:
    folder = copy("basic")
    topic, key = popular(folder)
    whole = with_key(load_records(folder), topic, key)
    wanted = KeyWanted(frozenset({key}), frozenset({topic}))
    files = [path for _, path, _ in log_files(folder)]
    with reopened(folder) as store:
        batches = read_by_key(store, wanted, replace(PLACE, batch_rows=1))
        found = places(pa.Table.from_batches([next(batches)]))
        gone = [path for path in files if int(path.name) < whole[len(whole) // 2]]
        for path in gone[:-1]:
            path.unlink()
        store.directory.files.close()  # what is open could still be read
        for batch in batches:
            found += places(pa.Table.from_batches([batch]))
        begin = int(gone[-1].name)
        assert found == [whole[0], *(place for place in whole[1:] if place >= begin)]
        assert len(found) < len(whole)


# --- by id ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "ipv6", "dledger", "v5v2topic", "trimmed", "lmq"])
def test_offset_message_ids(name: str, open_store: OpenStore, golden: Golden) -> None:
    store = open_store(name)
    options = ReadOptions(columns=("physicalOffset", "msgId", "body"))
    for record in load_records(golden(name))[::7]:
        found = query_by_msg_id(store, record.msg_id, options).to_pylist()
        assert [(r["physicalOffset"], r["msgId"]) for r in found] == [
            (record.physical_offset, record.msg_id)
        ]
        assert found[0]["body"] == record.plain_body
        assert query_by_msg_id(store, record.msg_id.lower(), options).num_rows == 1
        head, place = record.msg_id[:-16], record.physical_offset
        for other in (place + 1, place - 1, place + 2**40):
            assert query_by_msg_id(store, f"{head}{other % 2**63:016X}").num_rows == 0
        host = bytearray.fromhex(head)
        host[-1] ^= 1
        assert query_by_msg_id(store, f"{host.hex()}{place:016X}", options).num_rows == 0


def test_ids_of_expired_messages(copy: Copy) -> None:
    folder = copy("basic")
    first = load_records(folder)[0]
    next(path for _, path, _ in log_files(folder)).unlink()
    with reopened(folder) as store:
        assert query_by_msg_id(store, first.msg_id).num_rows == 0


@pytest.mark.parametrize("text", ["", "x", "0A", "Z" * 32, "7F000001" + "F" * 24, "\ud800" * 32])
def test_what_is_no_offset_message_id(golden: Golden, text: str) -> None:
    with (
        Store.open(golden("tiny") / "store") as store,
        pytest.raises(OptionError, match="is not an offset message id"),
    ):
        query_by_msg_id(store, text)


@pytest.mark.parametrize("name", ["basic", "live", "delayed", "transactions", "unclean-nocq"])
def test_uniq_keys(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, records = open_store(name), load_records(golden(name))
    known = sorted({r.properties["UNIQ_KEY"] for r in records if "UNIQ_KEY" in r.properties})
    for uniq in known[:: 1 + len(known) // 20]:
        mine = [r for r in records if r.properties.get("UNIQ_KEY") == uniq]
        mine = [r for r in mine if indexed(r)]
        found = by_uniq_key(store, None, uniq, PLACE)
        assert places(found) == [r.physical_offset for r in mine]
        for topic in {r.topic for r in mine}:
            found = by_uniq_key(store, topic, uniq, PLACE)
            assert places(found) == [r.physical_offset for r in mine if r.topic == topic]
    keys = {key for r in records for key in r.properties.get("KEYS", "").split(" ")} - {*known, ""}
    for key in sorted(keys)[:3]:
        assert by_uniq_key(store, None, key).num_rows == 0


# --- by time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic", "delayed", "lmq", "trimmed", "dledger"])
def test_spans_of_time(name: str, open_store: OpenStore, golden: Golden) -> None:
    store, rows = open_store(name), expected_rows(golden(name))
    topic = max({r["topic"] for r in rows}, key=lambda t: sum(r["topic"] == t for r in rows))
    rows = [r for r in rows if r["topic"] == topic]
    times = sorted({ms(r["storeTimestamp"]) for r in rows})
    picked = times[:: 1 + len(times) // 6]
    for begin, end in [*combinations([0, *picked, 2**63 - 1], 2), (picked[-1], picked[0])]:
        found = identities(
            query_by_time(store, topic, begin_ms=begin, end_ms=end, options=IDENTITY)
        )
        assert sorted(found) == [
            queue_key(r) for r in rows if begin <= ms(r["storeTimestamp"]) <= end
        ]
    one = rows[0]["queueId"]
    batches = list(query_by_time(store, topic, [one], options=IDENTITY))
    assert {queue for _, queue, _ in identities(batches)} == {one}
    assert all(batch.schema.names == list(IDENTITY.columns) for batch in batches)
    with pytest.raises(TopicNotFoundError, match="has no topic 'none'"):
        list(query_by_time(store, "none"))
    with pytest.raises(TopicNotFoundError, match="has no queue 12345"):
        list(query_by_time(store, topic, [12345]))


def ms(time: dt.datetime) -> int:
    return round(time.timestamp() * 1000)


def test_a_clock_that_went_back_gives_no_wrong_row(tmp_path: Path) -> None:
    times = [1000 * n for n in range(1, 41)]
    times[25:27] = [5000] * 2
    messages = pa.RecordBatch.from_pydict({"topic": ["T"] * 40, "storeTimestamp": times})
    with StoreBuilder(tmp_path / "store", segment_size=1 << 16) as builder:
        builder.append(messages)
    options = ReadOptions(columns=("queueOffset",))
    with Store.open(tmp_path / "store") as store:
        batches = list(query_by_time(store, "T", begin_ms=15_000, end_ms=32_000, options=options))
    found = [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
    assert found == [n for n, time in enumerate(times) if 15_000 <= time <= 32_000]
