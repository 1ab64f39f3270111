"""read, query and tail print the messages that RocketMQ lists."""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rmqstore_spark.layout.record.columns import COLUMNS
from tests.cli.conftest import Golden, Rmqstore, shown_time
from tests.support.stores.expected import expected_rows, expected_scan, queue_key
from tests.support.stores.golden import GOLDEN_NAMES, load_queues, load_records

StoreOf = Callable[[str], list[str]]
Row = dict[str, Any]

# A reader does not recover queues, and RocketMQ's walk continues after the end of these logs.
UNRECOVERED = {"unclean-crc", "unclean-nocq", "unclean-tail", "unclean-torn"}
SOUND = [name for name in GOLDEN_NAMES if name not in UNRECOVERED]


def undone(message: Row) -> Row:
    """A line of JSON, for a row of the reader."""
    row = dict(message)
    row.pop("brokerName")
    encoding = row.pop("bodyEncoding")
    body = row["body"]
    row["body"] = base64.b64decode(body) if encoding == "base64" else body.encode()
    for name in ("bornTimestamp", "storeTimestamp"):
        row[name] = dt.datetime.fromisoformat(row[name].replace("Z", "+00:00"))
    return row


def places(messages: Iterable[Row]) -> list[tuple[str, int, int]]:
    return [queue_key(message) for message in messages]


@pytest.mark.parametrize("name", SOUND)
def test_every_message_as_json(
    name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    ended = rmqstore("read", "--all", "--json", *store_of(name))
    assert ended.stderr == ""
    messages = ended.messages
    expected = expected_rows(golden(name))
    assert sorted(map(undone, messages), key=queue_key) == expected
    if messages:
        names = [column for column in messages[0] if column != "bodyEncoding"]
        assert names == list(COLUMNS)
    offsets = [message["physicalOffset"] for message in messages]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("name", ["transactions", "multipath", "dledger", "unclean-nocq"])
def test_a_scan(name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    ended = rmqstore("read", "--scan", "--json", *store_of(name))
    assert list(map(undone, ended.messages)) == expected_scan(golden(name))


def test_a_scan_of_a_topic(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    ended = rmqstore("read", "--scan", "--json", "-t", "orders_v2-EU", *store_of("basic"))
    expected = [row for row in expected_scan(golden("basic")) if row["topic"] == "orders_v2-EU"]
    assert list(map(undone, ended.messages)) == expected


def test_a_store_without_queues_is_scanned(
    rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    ended = rmqstore("read", "--json", *store_of("unclean-nocq"))
    assert list(map(undone, ended.messages)) == expected_scan(golden("unclean-nocq"))
    assert "no queues" in ended.stderr


def test_a_scan_knows_no_queue(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("read", "--scan", "--offset", "3", *store_of("basic"), code=2)
    assert "--offset" in ended.stderr
    ended = rmqstore("tail", *store_of("unclean-nocq"), code=2)
    assert "no ConsumeQueues" in ended.stderr


def test_topics_queues_and_offsets(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    arguments = ["-t", "TopicTest", "-q", "1", "-q", "3", "--offset", "160", "--end-offset", "165"]
    ended = rmqstore("read", "--json", *arguments, *store_of("basic"))
    assert sorted(places(ended.messages)) == [
        ("TopicTest", queue, offset) for queue in (1, 3) for offset in range(160, 165)
    ]


def test_times(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    rows = [row for row in expected_rows(golden("basic")) if row["topic"] == "TopicTest"]
    times = sorted({row["storeTimestamp"] for row in rows})
    since, until = times[len(times) // 3], times[len(times) // 2]
    expected = [row for row in rows if since <= row["storeTimestamp"] < until]
    assert expected
    span = ["-t", "TopicTest", "--from", since.isoformat(), "--to", until.isoformat()]
    for command in ("read", "query"):
        ended = rmqstore(command, "--json", *span, *store_of("basic"))
        assert sorted(map(undone, ended.messages), key=queue_key) == expected


def test_tags_and_keys(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    rows = [row for row in expected_rows(golden("basic")) if row["topic"] == "TopicTest"]
    tagged = [row for row in rows if row["tags"] in ("TagA", "TagB")]
    ended = rmqstore(
        "read", "--json", "-t", "TopicTest", "--tag", "TagA", "--tag", "TagB", *store_of("basic")
    )
    assert sorted(map(undone, ended.messages), key=queue_key) == tagged
    for either in (["--tag", "TagA || TagB"], ["--tag", '["TagA"]', "--tag", "TagB"]):
        again = rmqstore("read", "--json", "-t", "TopicTest", *either, *store_of("basic"))
        assert again.messages == ended.messages
    keyed = [row for row in rows if row["keys"] and {"key9", "order1"} & set(row["keys"])]
    assert len(keyed) >= 2
    ended = rmqstore(
        "read", "--json", "-t", "TopicTest", "--key", "key9", "--key", "order1", *store_of("basic")
    )
    assert sorted(map(undone, ended.messages), key=queue_key) == keyed


def test_a_limit_takes_the_oldest(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    expected = [r for r in expected_scan(golden("basic")) if not r["topic"].startswith("%")]
    ended = rmqstore("read", "--json", "-n", "7", *store_of("basic"))
    assert list(map(undone, ended.messages)) == expected[:7]
    assert ended.stderr == ""


def test_raw_bodies(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    rows = [row for row in expected_scan(golden("flags")) if not row["topic"].startswith("%")]
    bodies = [row["body"] for row in rows]
    assert rmqstore("read", "--raw", *store_of("flags")).stdout == b"".join(bodies)
    ended = rmqstore("read", "--raw", "--separator", r"\n--\0\\", *store_of("flags"))
    assert ended.stdout == b"".join(body + b"\n--\0\\" for body in bodies)
    one = rmqstore(
        "read", "--raw", "-t", rows[0]["topic"], "-q", str(rows[0]["queueId"]),
        "-o", str(rows[0]["queueOffset"]), "-n", "1", *store_of("flags"),
    )  # fmt: skip
    assert one.stdout == bodies[0]


def test_chosen_columns(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("read", "--json", "-n", "1", "-c", "queueOffset, topic", *store_of("live"))
    assert ended.text == '{"queueOffset":0,"topic":"LiveTopic"}\n'
    table = rmqstore("read", "-n", "1", "-c", "queueOffset,topic", *store_of("live")).lines
    assert table == ["offset  topic", "     0  LiveTopic"]


def test_a_table(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    ended = rmqstore("read", *store_of("live"))
    records = [r for r in load_records(golden("live")) if r.topic == "LiveTopic"]
    assert ended.lines[0].split() == [
        "topic", "queue", "offset", "storeTimestamp", "tags", "keys", "body",
    ]  # fmt: skip
    assert len(ended.lines) == 1 + 20
    assert "--limit" in ended.stderr
    first = records[0]
    assert re.split(" {2,}", ended.lines[1]) == [
        "LiveTopic", str(first.queue_id), "0", shown_time(first.store_timestamp),
        "TagA", "k0 grp0", "live message 0 \u2013 körper 消息",
    ]  # fmt: skip
    columns = [line.index("2026-") for line in ended.lines[1:]]
    assert len(set(columns)) == 1
    assert not any(line.endswith(" ") for line in ended.lines)


def test_a_table_of_one_topic_leaves_it_out(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("read", "-t", "LiveTopic", "-n", "2", *store_of("live"))
    assert ended.lines[0].split()[0] == "queue"


def test_nothing_found(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    for arguments in (["read", "--tag", "None"], ["query", "--key", "none"]):
        ended = rmqstore(*arguments, *store_of("live"))
        assert ended.stdout == b""
        assert "no message found" in ended.stderr
        assert rmqstore(*arguments, "--json", *store_of("live")).stdout == b""


@pytest.mark.parametrize("name", ["basic", "live", "flags", "v5basic", "unclean"])
def test_keys_that_rocketmq_was_asked_for(
    name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    records = load_records(golden(name))
    asked = {(report.topic, report.key) for report in load_queues(golden(name)).keys}
    for topic, key in sorted(asked)[:12]:
        expected = [
            record.physical_offset
            for record in records
            if record.topic == topic
            and (
                key in record.properties.get("KEYS", "").split(" ")
                or record.properties.get("UNIQ_KEY") == key
            )
        ]
        ended = rmqstore("query", "--json", "--all", "-t", topic, "--key", key, *store_of(name))
        assert [message["physicalOffset"] for message in ended.messages] == expected


def test_the_newest_with_a_key_of_all_topics(
    rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    expected = [
        row for row in expected_scan(golden("basic"))
        if row["keys"] and "common" in row["keys"] and not row["topic"].startswith("%")
    ]  # fmt: skip
    assert len({row["topic"] for row in expected[-40:]}) == 2
    ended = rmqstore("query", "--json", "--key", "common", "-n", "40", *store_of("basic"))
    assert list(map(undone, ended.messages)) == expected[-40:]
    bodies = rmqstore("query", "--raw", "--key", "common", "-n", "2", *store_of("basic"))
    assert bodies.stdout == expected[-2]["body"] + expected[-1]["body"]


def test_ids(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    row = expected_scan(golden("ipv6"))[7]
    ended = rmqstore("query", "--json", "--id", row["msgId"], *store_of("ipv6"))
    assert list(map(undone, ended.messages)) == [row]
    with_uniq = [row for row in expected_scan(golden("live")) if row["uniqKey"]]
    ended = rmqstore("query", "--json", "--uniq-key", with_uniq[0]["uniqKey"], *store_of("live"))
    assert list(map(undone, ended.messages)) == [
        row for row in with_uniq if row["uniqKey"] == with_uniq[0]["uniqKey"]
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["query"], "--key"),
        (["query", "--key", "a", "--id", "b"], "--key and --id contradict each other"),
        (["query", "--id", "7F00000100002A9F0000000000000000", "--from", "0"], "--from"),
        (["query", "--id", "7F00000100002A9F0000000000000000", "-t", "LiveTopic"], "--topic"),
        (["query", "--id", "nonsense"], "nonsense"),
        (["query", "--from", "2", "--to", "1"], "--to"),
        (["read", "--from", "yesterday"], "ISO-8601"),
        (["read", "--from", "2", "--to", "1"], "--to"),
        (["read", "-o", "2", "--end-offset", "1"], "--end-offset"),
        (["read", "-t", "Nope"], "LiveTopic"),
        (["read", "-q", "99"], "has a queue 99"),
        (["tail", "-q", "99"], "has a queue 99"),
        (["query", "--uniq-key", "x", "-t", "Nope"], "LiveTopic"),
        (["read", "--tag", "A && B"], "--tag must be"),
        (["tail", "--tag", "A,B"], "--tag must be"),
        (["read", "--key", "a,b"], "--key must be keys"),
        (["read", "--from", "1700000000"], "looks like seconds"),
        (["offsets", "--at", "1700000000"], "looks like seconds"),
        (["read", "-t", "LiveTopic", "-q", "4"], "0, 1, 2, 3"),
        (["read", "-t", "LiveTopic", "-o", "9999"], "0 to 224"),
        (["read", "-c", "nope"], "preparedTransactionOffset"),
        (["read", "-c", ","], "--columns"),
        (["read", "-c", "topic,topic"], "--columns"),
        (["read", "--raw", "--json"], "--raw"),
        (["read", "--separator", "x"], "--raw"),
        (["tail", "-t", "Nope"], "LiveTopic"),
    ],
)
def test_wrong_questions(
    arguments: list[str], words: str, rmqstore: Rmqstore, store_of: StoreOf
) -> None:
    ended = rmqstore(*arguments, *store_of("live"), code=2)
    assert words in ended.stderr
    assert ended.stdout == b""


def test_a_topic_without_queues_has_no_messages(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("read", "-t", "DefaultCluster", *store_of("live"))
    assert ended.stdout == b""


@pytest.mark.parametrize("count", [0, 1, 25, 5000])
def test_the_newest_messages(
    count: int, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    expected = [r for r in expected_scan(golden("basic")) if not r["topic"].startswith("%")]
    ended = rmqstore("tail", "--json", "-n", str(count), *store_of("basic"))
    assert (
        list(map(undone, ended.messages)) == expected[len(expected) - min(count, len(expected)) :]
    )


def test_the_newest_with_a_tag(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    rows = [row for row in expected_scan(golden("basic")) if row["topic"] == "TopicTest"]
    rare = [row for row in rows if row["keys"] == ["key9"]]
    tagged = [row for row in rows if row["tags"] == "TagB"]
    topic = ["-t", "TopicTest", "--json"]
    ended = rmqstore("tail", *topic, "--tag", "TagB", "-n", "15", *store_of("basic"))
    assert list(map(undone, ended.messages)) == tagged[-15:]
    ended = rmqstore("tail", *topic, "--key", "key9", *store_of("basic"))
    assert list(map(undone, ended.messages)) == rare
