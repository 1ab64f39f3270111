"""info, topics, groups and offsets report the same as RocketMQ."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.errors import ServiceError
from tests.cli.conftest import Golden, Rmqstore, shown_time
from tests.consensus.driver.members import (
    GROUP,
    GroupClient,
    MemberProcess,
    addresses,
    as_peers,
    record,
)
from tests.engine.group.stores import StoreProcess
from tests.support.stores.expected import expected_rows
from tests.support.stores.golden import GOLDEN_NAMES, QueueReport, load_queues, load_records
from tests.support.waiting import eventually

StoreOf = Callable[[str], list[str]]

KINDS = {"multipath": "multipath", "dledger": "dledger"}
# Their queues.json is taken after a recovery, which a reader does not do.
BEFORE_RECOVERY = {"unclean-crc", "unclean-nocq", "unclean-tail", "unclean-torn"}
SOUND = [name for name in GOLDEN_NAMES if name not in BEFORE_RECOVERY]


def reports_of(golden: Golden, name: str) -> dict[tuple[str, int], QueueReport]:
    file = "queues.settled.json" if name == "trimmed-raw" else "queues.json"
    queues = load_queues(golden(name), file).queues
    # Others are in the broker's memory only.
    return {key: queue for key, queue in queues.items() if queue.max_offset}


@pytest.mark.parametrize("name", SOUND)
def test_info(name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    document = rmqstore("info", "--json", *store_of(name)).document
    report = load_queues(golden(name))
    records = load_records(golden(name))
    queues = reports_of(golden, name)
    assert document["minPhysicalOffset"] == report.min_physical_offset
    assert document["maxPhysicalOffset"] == report.max_physical_offset
    assert document["queues"] == len(queues)
    assert document["messages"] == sum(queue.readable for queue in queues.values())
    assert document["indexFiles"] == len(report.index_files)
    assert document["kind"] == KINDS.get(name, "plain")
    assert bool(document["signsOf5"]) == name.startswith("v5")
    assert document["state"] == ("killed" if name.startswith("unclean") else "closed")
    assert document["skipped"] == []
    times = [shown_time(record.store_timestamp) for record in records]
    assert document["firstStoreTimestamp"] == times[0]
    assert document["lastStoreTimestamp"] == times[-1]


def test_info_for_people(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    lines = rmqstore("info", *store_of("multipath")).lines
    facts = dict(line.split(maxsplit=1) for line in lines)
    assert facts["kind"] == "multipath"
    assert facts["state"] == "closed cleanly"
    assert facts["messages"] == "400"
    assert not any(line.endswith(" ") for line in lines)


def test_info_of_a_store_without_queues(
    rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    document = rmqstore("info", "--json", *store_of("unclean-nocq")).document
    records = load_records(golden("unclean-nocq"))
    last = records[-1]
    assert document["maxPhysicalOffset"] == last.physical_offset + last.store_size
    assert document["lastStoreTimestamp"] == shown_time(last.store_timestamp)
    # The one report that needs no queues refers to the others.
    assert document["lacksQueues"] == "it has no ConsumeQueues"
    assert document["queues"] is document["topics"] is document["messages"] is None
    text = rmqstore("info", *store_of("unclean-nocq")).text
    assert "none: it has no ConsumeQueues" in text
    assert "`rmqstore topics`" in text


def test_topics_of_a_store_without_queues_are_those_of_its_log(
    rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    expected: dict[tuple[str, int], list[int]] = {}
    for each in load_records(golden("unclean-nocq")):
        expected.setdefault((each.topic, each.queue_id), []).append(each.queue_offset)
    ended = rmqstore("topics", "--all", "--json", *store_of("unclean-nocq"))
    assert "reading its CommitLog instead" in ended.stderr
    assert ended.document["hasQueues"] is False
    found = {
        (topic["topic"], queue["queueId"]): tuple(queue.values())[1:]
        for topic in ended.document["topics"]
        for queue in topic["queues"]
    }
    assert found == {
        key: (min(offsets), max(offsets) + 1, len(offsets)) for key, offsets in expected.items()
    }


@pytest.mark.parametrize("rule", ["--earliest", "--latest", "--at=2026-11-21", "--group=cg"])
def test_offsets_of_a_store_without_queues_are_refused(
    rule: str, rmqstore: Rmqstore, store_of: StoreOf
) -> None:
    ended = rmqstore("offsets", rule, *store_of("unclean-nocq"), code=2)
    assert "needs the queues" in ended.stderr
    assert ended.stdout == b""


def test_a_store_that_never_had_a_message(rmqstore: Rmqstore, tmp_path: Path) -> None:
    log = tmp_path / "store" / "commitlog"
    log.mkdir(parents=True)
    (log / ("0" * 20)).write_bytes(bytes(4096))
    assert rmqstore("offsets", tmp_path / "store").document == {}
    document = rmqstore("info", "--json", tmp_path / "store").document
    assert document["lacksQueues"] is None
    assert document["messages"] == document["topics"] == 0


def test_info_counts_the_topics_that_topics_lists(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    info = rmqstore("info", "--json", *store_of("live")).document
    topics = rmqstore("topics", "--all", "--json", *store_of("live")).document["topics"]
    assert info["topics"] == len(topics)
    assert info["systemTopics"] == sum(topic["system"] for topic in topics)
    assert info["topicsWithQueues"] == sum(bool(topic["queues"]) for topic in topics)
    assert 0 < info["systemTopicsWithQueues"] < info["topicsWithQueues"] < info["topics"]
    listed = rmqstore("topics", *store_of("live")).lines[1:]
    (line,) = (n for n in rmqstore("info", *store_of("live")).lines if n.startswith("topics"))
    assert line.split()[1] == f"{len(listed)},"


def test_info_names_what_it_passed_over(rmqstore: Rmqstore, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("tiny") / "store", store)
    strays = [
        store / "commitlog" / "core.1234",
        store / "consumequeue" / "notes.txt",
        store / "index" / "README",
    ]
    for stray in strays:
        stray.write_text("not of the store")
    (store / "checkpoint").write_bytes(b"short")
    document = rmqstore("info", "--json", store).document
    assert {item["path"] for item in document["skipped"]} == {
        *map(str, strays),
        str(store / "checkpoint"),
    }
    assert all(item["reason"] for item in document["skipped"])
    assert document["checkpoint"] is None
    for_people = rmqstore("info", store).text
    assert all(str(stray) in for_people for stray in strays)


def test_info_does_without_the_topics_settings(
    rmqstore: Rmqstore, golden: Golden, tmp_path: Path
) -> None:
    shutil.copytree(golden("live") / "store", tmp_path / "store")
    settings = tmp_path / "store" / "config" / "topics.json"
    settings.write_text("{")
    settings.with_suffix(".json.bak").unlink(missing_ok=True)
    document = rmqstore("info", "--json", tmp_path / "store").document
    assert document["topics"] == document["topicsWithQueues"] == 9
    assert [item["path"] for item in document["skipped"]] == [str(settings)]


@pytest.mark.parametrize("name", SOUND)
def test_topics(name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    document = rmqstore("topics", "--all", "--json", *store_of(name)).document
    found = {
        (topic["topic"], queue["queueId"]): (queue["maxOffset"], queue["messages"])
        for topic in document["topics"]
        for queue in topic["queues"]
    }
    expected = {
        key: (queue.max_offset, queue.readable) for key, queue in reports_of(golden, name).items()
    }
    assert found == expected


def test_topics_leaves_system_topics_out(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    store = store_of("live")
    some = rmqstore("topics", *store).lines
    every = rmqstore("topics", "--all", *store).lines
    assert some[0].split() == ["topic", "queues", "messages", "perm", "order", "system"]
    assert "LiveTopic" in some[5]
    assert some[5].split() == ["LiveTopic", "0-3", "900", "RW-", "no", "no"]
    hidden = {line.split()[0] for line in every} - {line.split()[0] for line in some}
    assert {"%RETRY%cg_live", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"} <= hidden
    assert len(every) > len(some)


def test_a_line_for_each_queue(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    lines = rmqstore("topics", "--queues", *store_of("multipath")).lines
    assert lines[0].split() == ["topic", "queue", "min", "max", "messages"]
    assert [line.split()[:2] for line in lines[1:]] == [["TopicTest", str(n)] for n in range(4)]


def test_groups(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    # As config/consumerOffset.json has it, and the ends as RocketMQ reports them.
    ends = {key: queue.max_offset for key, queue in reports_of(golden, "live").items()}
    document = rmqstore("groups", "--json", *store_of("live")).document
    assert [group["group"] for group in document["groups"]] == ["CID_RMQ_SYS_TRANS", "cg_live"]
    found = {
        (group["group"], topic["topic"]): {
            queue["queueId"]: queue["offset"] for queue in topic["queues"]
        }
        for group in document["groups"]
        for topic in group["topics"]
    }
    assert found["cg_live", "LiveTopic"] == {0: 225, 1: 225, 2: 225, 3: 225}
    assert found["cg_live", "LiveDelay"] == {0: 1, 1: 0, 2: 0, 3: 1}
    assert found["CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC"] == {0: 36}
    system = document["groups"][0]
    half = ends["RMQ_SYS_TRANS_HALF_TOPIC", 0]
    assert system["lag"] == half - 36
    assert [level["level"] for level in document["delays"]] == [1, 3, 18]


def test_groups_for_people(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    store = store_of("live")
    lines = rmqstore("groups", "--group", "cg_live", "--topic", "LiveTopic", *store).lines
    assert lines[0].split() == ["group", "topic", "queue", "offset", "max", "lag"]
    assert lines[1].split() == ["cg_live", "LiveTopic", "0", "225", "225", "0"]
    assert lines[-1].split() == ["cg_live", "(all)", "0"]
    totals = rmqstore("groups", "--totals", *store).lines
    assert totals[3].split() == ["CID_RMQ_SYS_TRANS", "(all)", "2", "3"]
    delays = rmqstore("groups", "--delays", *store).lines
    assert delays[1].split() == ["1", "0", "1", "1", "0"]


def test_transactions_that_wait(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    # The broker has done all half messages before 36, and has ended none after them.
    waiting = [
        record
        for record in load_records(golden("live"))
        if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC" and record.queue_offset >= 36
    ]
    found = rmqstore("transactions", "--json", *store_of("live")).document["transactions"]
    assert [
        (one["queueOffset"], one["physicalOffset"], one["uniqKey"], one["storeTimestamp"])
        for one in found
    ] == [
        (r.queue_offset, r.physical_offset, r.properties["UNIQ_KEY"], r.store_timestamp)
        for r in waiting
    ]
    lines = rmqstore("transactions", "--group", "pg_live_tx", *store_of("live")).lines
    assert lines[0].split() == [
        "offset", "group", "topic", "queue", "uniqKey", "stored", "checks"
    ]  # fmt: skip
    key = waiting[0].properties["UNIQ_KEY"]
    assert lines[1].split()[:5] == [
        "36",
        "pg_live_tx",
        "LiveTran",
        waiting[0].properties["REAL_QID"],
        key,
    ]
    assert lines[1].split()[-1] == "6"
    ended = rmqstore("transactions", "--group", "nobody", *store_of("live"))
    assert "No transaction waits" in ended.stderr


def test_an_unknown_group_lists_those_there_are(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("groups", "--group", "nobody", *store_of("live"), code=2)
    assert "cg_live" in ended.stderr
    ended = rmqstore("offsets", "--group", "nobody", *store_of("live"), code=2)
    assert "cg_live" in ended.stderr


def test_groups_of_a_topic_that_no_group_reads_or_that_is_none(
    rmqstore: Rmqstore, store_of: StoreOf
) -> None:
    ended = rmqstore("groups", "--topic", "nothing", *store_of("live"), code=2)
    assert "has no topic 'nothing'. It has: LiveBatch" in ended.stderr
    ended = rmqstore("groups", "--topic", "TBW102", *store_of("live"))
    assert "no offsets of such a group in such a topic" in ended.stderr


def test_groups_of_a_store_without_queues_know_no_end(
    rmqstore: Rmqstore, golden: Golden, tmp_path: Path
) -> None:
    shutil.copytree(golden("live") / "store", tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    ended = rmqstore("groups", "--group", "cg_live", "--topic", "LiveTopic", tmp_path / "store")
    assert "ends and lags are unknown" in ended.stderr
    assert ended.lines[1].split() == ["cg_live", "LiveTopic", "0", "225", "0", "0"]


@pytest.mark.parametrize("name", SOUND)
def test_offsets(name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    store = store_of(name)
    ends: dict[str, dict[str, int]] = {}
    for (topic, queue_id), queue in reports_of(golden, name).items():
        ends.setdefault(topic, {})[str(queue_id)] = queue.max_offset
    ended = rmqstore("offsets", "--all", *store)
    assert len(ended.lines) == 1
    assert ended.document == ends
    assert rmqstore("offsets", "--all", "--latest", "--json", *store).document == ends
    starts = {topic: dict(queues) for topic, queues in ends.items()}  # where no message is left
    for row in reversed(expected_rows(golden(name))):
        starts[row["topic"]][str(row["queueId"])] = row["queueOffset"]
    assert rmqstore("offsets", "--all", "--earliest", *store).document == starts


def test_offsets_at_a_time(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    rows = [row for row in expected_rows(golden("basic")) if row["topic"] == "TopicTest"]
    moment = sorted(row["storeTimestamp"] for row in rows)[len(rows) // 2]
    expected = {
        str(queue): min(
            row["queueOffset"]
            for row in rows
            if row["queueId"] == queue and row["storeTimestamp"] >= moment
        )
        for queue in range(4)
    }
    iso = moment.isoformat()
    millis = str(round(moment.timestamp() * 1000))
    for text in (iso, iso.replace("+00:00", "Z"), millis):
        ended = rmqstore("offsets", "-t", "TopicTest", "--at", text, *store_of("basic"))
        assert ended.document == {"TopicTest": expected}
    late = rmqstore("offsets", "-t", "TopicTest", "--at", "2999-01-01", *store_of("basic"))
    ends = reports_of(golden, "basic")
    assert late.document == {
        "TopicTest": {str(queue): ends["TopicTest", queue].max_offset for queue in range(4)}
    }


def test_offsets_of_a_group(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    document = rmqstore("offsets", "--group", "cg_live", *store_of("live")).document
    assert set(document) == {"LiveDelay", "LiveTopic", "LiveTran"}
    assert document["LiveTopic"] == {"0": 225, "1": 225, "2": 225, "3": 225}


def test_a_group_beyond_what_the_store_holds(
    rmqstore: Rmqstore, golden: Golden, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden("trimmed") / "store", store)
    report = reports_of(golden, "trimmed")
    topic, first = next((t, q) for (t, n), q in report.items() if q.min_offset and not n)
    (store / "config").mkdir(exist_ok=True)
    table = {f"{topic}@old": {"0": 0}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
    ended = rmqstore("offsets", "--group", "old", store)
    assert ended.document[topic]["0"] == first.min_offset
    assert f"{topic}/0" in ended.stderr


def test_offsets_of_several_stores(rmqstore: Rmqstore, store_of: StoreOf, golden: Golden) -> None:
    both = [*store_of("basic"), *store_of("live")]
    document = rmqstore("offsets", *both).document
    assert set(document["TopicTest"]) == {"basic"}
    assert document["LiveTopic"] == {"live": {str(n): 225 for n in range(4)}}
    names = ["--broker-name", "broker-a", "--broker-name", "broker-b"]
    document = rmqstore("offsets", "-t", "LiveTopic", *names, *both).document
    assert document == {"LiveTopic": {"broker-b": {str(n): 225 for n in range(4)}}}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--earliest", "--latest"], "contradict"),
        (["--at", "soon"], "ISO-8601"),
        (["--broker-name", "a", "--broker-name", "b"], "--broker-name"),
        (["-t", "Nope"], "TopicTest"),
    ],
)
def test_wrong_questions_about_offsets(
    arguments: list[str], words: str, rmqstore: Rmqstore, store_of: StoreOf
) -> None:
    ended = rmqstore("offsets", *arguments, *store_of("basic"), code=2)
    assert words in ended.stderr
    assert ended.stdout == b""


def test_stores_of_one_name(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("offsets", *store_of("basic"), *store_of("basic"), code=2)
    assert "--broker-name" in ended.stderr


def test_offsets_are_what_the_options_take(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    from rmqstore_spark.datasource.options.values import AtOffsets, parse_offsets

    one = parse_offsets(rmqstore("offsets", *store_of("basic")).text)
    assert isinstance(one, AtOffsets)
    assert one.offsets.get("any", "TopicTest", 3) == 166
    two = parse_offsets(rmqstore("offsets", *store_of("basic"), *store_of("live")).text)
    assert isinstance(two, AtOffsets)
    assert two.offsets.get("live", "LiveTopic", 0) == 225
    assert two.offsets.get("basic", "LiveTopic", 0) is None


def test_a_url_of_fsspec(rmqstore: Rmqstore, golden: Golden, tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "tiny"), "zip", golden("tiny"))
    here = rmqstore("offsets", golden("tiny") / "store").document
    assert rmqstore("offsets", f"zip://store::{archive}").document == here
    assert rmqstore("info", f"zip://store::{archive}", "--json").document["state"] == "closed"


def gives(store: StoreProcess, count: int) -> bool:
    """Whether a store gives consumers so many messages; False if it does not serve yet."""
    try:
        return len(store.pulled()) == count
    except ServiceError:
        return False


def test_info_of_a_member_that_served_no_clients(rmqstore: Rmqstore, tmp_path: Path) -> None:
    """It leaves `abort`, or a broker of RocketMQ 5 on its store would not build the queues."""
    members = addresses(3)
    with ExitStack() as ends:
        ran = [ends.enter_context(MemberProcess(tmp_path, me, members)) for me in members]
        last = GroupClient(members).append(*(record(str(n), n) for n in range(20)))[-1]
        eventually(lambda: all(member.committed >= last for member in ran), 60)
        for member in ran:
            assert rmqstore("info", "--json", member.store).document["state"] == "being written"
            member.stop()
            document = rmqstore("info", "--json", member.store).document
            assert (document["state"], document["kind"]) == ("without queues", "dledger")
            assert (member.store / "abort").exists()
            assert "a member that served no clients" in rmqstore("verify", member.store).text
            assert "belongs to a DLedger group" in rmqstore("recover", member.store, code=2).stderr
        stores = [ends.enter_context(StoreProcess(tmp_path, me, members)) for me in members]
        eventually(lambda: all(gives(store, 20) for store in stores), 60)
        for store in stores:
            store.stop()
            assert rmqstore("info", "--json", store.store).document["state"] == "closed"
            assert not (store.store / "abort").exists()
            group = (
                f"--set=dLegerGroup={GROUP}",
                f"--set=dLegerSelfId={store.me}",
                f"--set=dLegerPeers={as_peers(members)}",
            )
            refused = rmqstore("member", "--store", store.store, *group, code=2).stderr
            assert "it has served clients" in refused
            assert not (store.store / "abort").exists()
