"""The role of a store: where it comes from, what it allows, and how it changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreConfig, StoreWriter
from rmqstore_spark.engine.role import (
    KeptRole,
    Promotion,
    Role,
    load_role,
    promotions_of,
    save_role,
)
from rmqstore_spark.errors import CorruptStoreError, RefusedError
from rmqstore_spark.layout.spans import U1
from tests.ha.peers import log_bytes
from tests.support.messages.batches import commit_batch, rows_block
from tests.support.processes.delaying import delayed, delivered, rows_of
from tests.support.processes.halving import ends, put_halves
from tests.support.stores.storing import Clock, config, in_queues, messages, until
from tests.support.waiting import eventually

PACKAGE = Path(__file__).resolve().parents[2] / "rmqstore_spark"
GIVEN = {
    "mappedFileSizeCommitLog": 65536, "messageDelayLevel": "1s 1h",
    "flushDelayOffsetInterval": 100, "transactionCheckInterval": 3_600_000,
}  # fmt: skip
MASTER, SLAVE = config(**GIVEN), config(**GIVEN, brokerRole="SLAVE", haMasterAddress="h:1")


def log_of(store: StoreWriter) -> U1:
    """The log of a store, as its slaves get it."""
    return np.frombuffer(log_bytes(Path(store.path), 0, store.published_end), np.uint8)


def copied(store: StoreWriter, data: U1) -> None:
    """Give a slave what it lacks of its master's log."""
    while len(left := data[store.replica.held :]):
        assert store.replica.append(left)


def test_only_the_role_compares_the_key() -> None:
    """Other parts would have the role of the start, and not the one of now."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "broker_role" in path.read_text(encoding="utf-8")
    }
    assert found == {"cli/commands/follow.py", "engine/config/table.py", "engine/role.py"}


@pytest.mark.parametrize(
    ("role", "port", "may"),
    [
        ("ASYNC_MASTER", -1, {"accepts", "delivers", "checks", "knows_what_waits"}),
        ("ASYNC_MASTER", 0, {"accepts", "delivers", "checks", "knows_what_waits", "serves_slaves"}),
        (
            "SYNC_MASTER",
            -1,
            {"accepts", "delivers", "checks", "knows_what_waits", "serves_slaves"}
            | {"waits_for_slaves"},
        ),
        ("SLAVE", 0, {"follows", "waits_for_slaves"}),
    ],
)
def test_what_a_role_allows(tmp_path: Path, role: str, port: int, may: set[str]) -> None:
    made = Role(str(tmp_path), StoreConfig(broker_role=role, ha_listen_port=port))
    asked = (
        "accepts", "follows", "delivers", "checks", "knows_what_waits", "serves_slaves",
        "waits_for_slaves",
    )  # fmt: skip
    assert {name for name in asked if getattr(made, name)} == may


def test_nothing_of_a_former_master_gets_into_the_log_of_the_new_one(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "master", MASTER) as master:
        assert master.put_batch(messages([b"1", b"2"])).ok
        half = log_of(master)
        assert master.put_batch(messages([b"3"])).ok
        whole = log_of(master)
    with StoreWriter.open(tmp_path / "slave", SLAVE) as slave:
        copied(slave, half)
        with pytest.raises(RefusedError, match="is a slave"):
            slave.create_topic("U")
        assert slave.promote() == len(half)
        assert slave.state == "RUNNING"
        for take in (
            lambda: slave.replica.append(whole[len(half) :]),
            slave.replica.reconnected,
            lambda: slave.replica.begin_at(0),
        ):
            with pytest.raises(RefusedError, match="is the master now"):
                take()
        assert slave.published_end == len(half)
        result = slave.put_batch(messages([b"4"]))
        assert result.physical_offset is not None
        assert result.physical_offset.tolist() == [len(half)]
        with pytest.raises(RefusedError, match="a master already"):
            slave.promote()
    assert in_queues(tmp_path / "slave") == {("T", 0): [b"1", b"2", b"4"]}


def test_a_put_that_was_accepted_before_is_not_in_the_log_of_a_slave(tmp_path: Path) -> None:
    """It waits for the append lock while the role changes."""
    with StoreWriter.open(tmp_path / "s", MASTER) as store:
        assert store.put_batch(messages([b"1"])).ok
        end = store.published_end
        results: list[PutResult] = []
        appender = store._appender
        thread = threading.Thread(
            target=lambda: results.append(store.put(rows_block([b"2", b"3"])))
        )
        with appender.appending():
            thread.start()
            eventually(appender.lock._turnstile.locked)  # it was checked, and comes next
            store.role.become_slave("h:1", "", end)
        thread.join()
        assert results[0].status == PutStatus.SERVICE_NOT_AVAILABLE
        assert "has just become a slave" in results[0].remark
        assert store.published_end == end


def test_a_deletion_that_was_accepted_before_deletes_nothing_of_a_slave(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", MASTER) as store:
        assert store.put_batch(messages([b"1"])).ok
        errors: list[RefusedError] = []

        def delete() -> None:
            try:
                store.delete_topic("T")
            except RefusedError as error:
                errors.append(error)

        appender = store._appender
        thread = threading.Thread(target=delete)
        with appender.appending():
            thread.start()
            eventually(appender.lock._turnstile.locked)
            store.role.become_slave("h:1", "", store.published_end)
        thread.join()
        assert "is a slave" in str(errors)
        assert "T" in {topic.name for topic in store.topics}


def test_a_slave_remembers_nothing_of_what_waits(tmp_path: Path) -> None:
    """Who asked when it was a master may come later than its demotion."""
    with (
        StoreWriter.open(tmp_path / "s", SLAVE) as store,
        pytest.raises(RefusedError, match="is a slave"),
    ):
        store.transactions.oldest()


def test_a_change_of_the_configuration_keeps_the_role(tmp_path: Path) -> None:
    """It was begun before the role changed."""
    with StoreWriter.open(tmp_path, MASTER) as store:
        before = store.config
        store.demote("h:9", "h:8")
        store.reconfigure(replace(before, broker_permission=4))
        now = store.config
        assert (now.broker_role, now.ha_master_address) == ("SLAVE", "h:9")
        assert (now.broker_id, now.broker_permission) == (1, 4)


def test_a_put_that_no_slave_has_is_not_acknowledged_because_of_a_demotion(tmp_path: Path) -> None:
    given = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 60_000}
    with StoreWriter.open(tmp_path / "s", config(**GIVEN, **given)) as store:
        slave = store.slaves.join()
        results: list[PutResult] = []
        thread = threading.Thread(target=lambda: results.append(store.put_batch(messages([b"1"]))))
        thread.start()
        until(lambda: store.slaves._waiting == 1)
        store.demote("h:1")
        result = store.put_batch(messages([b"2"]))
        assert result.status == PutStatus.SERVICE_NOT_AVAILABLE
        slave.leave()
        thread.join(0.05)
        assert thread.is_alive()  # another slave may come with it
        other = store.slaves.join()
        other.report(store.published_end)
        thread.join()
        assert results[0].ok


def test_the_new_master_delivers_ends_and_knows_what_the_former_one_began(tmp_path: Path) -> None:
    """Nothing is opened again: what the log says counts, and not what the slave read at its start.

    The slave is promoted, demoted, and promoted again, and each time the log has grown.
    """
    clock = Clock()
    with (
        StoreWriter.open(tmp_path / "one", MASTER, clock=clock) as one,
        StoreWriter.open(tmp_path / "two", SLAVE, clock=clock) as two,
    ):
        stores = [one, two]
        for turn in range(4):
            master, slave = stores
            clock.now += 5000  # also where the clock of the other one would have been behind
            (kept, ended) = put_halves(master, [b"kept-%d" % turn, b"ended-%d" % turn])
            assert ends(master, [ended], is_commit=False) == ["ROLLED_BACK"]
            assert master.put_batch(delayed([b"late-%d" % turn, b"far-%d" % turn], [1, 2])).ok
            assert commit_batch(master, turn).status == "COMMITTED"
            assert master.put_batch(messages([b"plain-%d" % turn])).ok
            copied(slave, log_of(master))
            master.demote("h:1")
            assert slave.promote() == master.published_end
            assert commit_batch(slave, turn, attempt=1).status == "ALREADY_COMMITTED"
            assert ends(slave, [kept], is_commit=True) == ["COMMITTED"]
            assert ends(slave, [kept, ended], is_commit=True) == ["ENDED_BEFORE"] * 2
            before = slave.stats()["delayedDelivered"]
            clock.now += 1000
            delivered(slave, before + 1)
            assert slave.put_batch(messages([b"after-%d" % turn])).ok
            copied(master, log_of(slave))
            assert log_of(master).tobytes() == log_of(slave).tobytes()
            stores.reverse()
        clock.now += 3_600_000
        before = stores[0].stats()["delayedDelivered"]
        delivered(stores[0], before + 4)
        assert stores[1].state == "SLAVE"
        copied(stores[1], log_of(stores[0]))
    wanted = sorted(
        b"%b-%d" % (name, turn)
        for name in (b"plain", b"after", b"late", b"far", b"kept")
        for turn in range(4)
    )
    for path in (tmp_path / "one", tmp_path / "two"):
        rows = rows_of(path, "T")
        assert sorted(row["body"] for row in rows) == wanted
        for queue in {row["queueId"] for row in rows}:
            mine = [row for row in rows if row["queueId"] == queue]
            assert [row["queueOffset"] for row in mine] == list(range(len(mine)))
            times = [row["storeTimestamp"] for row in mine]
            assert times == sorted(times)


def test_a_deletion_behind_the_end_deletes_nothing_of_the_new_master(tmp_path: Path) -> None:
    """The former master had more, and its deletion of a topic came before that."""
    with StoreWriter.open(tmp_path / "master", MASTER) as master:
        assert master.put_batch(messages([b"1"])).ok
        data = log_of(master)
    with StoreWriter.open(tmp_path / "slave", SLAVE) as slave:
        copied(slave, data)
        slave.replica.tables.take_topics(
            {"topicConfigTable": {}, "deletedTopics": {"T": len(data) + 10_000}}, len(data)
        )
        slave.promote()
        assert slave.put_batch(messages([b"2"])).ok
    StoreWriter.open(tmp_path / "slave", MASTER, rebuild=True).close()
    assert in_queues(tmp_path / "slave") == {("T", 0): [b"2"]}


def test_progress_of_transactions_that_the_log_lacks_is_not_taken(tmp_path: Path) -> None:
    """The former master had ended them all, and one that the slave gets later has their place."""
    with StoreWriter.open(tmp_path / "master", MASTER) as master:
        assert master.put_batch(messages([b"1"])).ok
        data = log_of(master)
        halves = put_halves(master, [b"lost"])
        assert ends(master, halves, is_commit=True) == ["COMMITTED"]
        whole = log_of(master)
    told = {"offsetTable": {
        "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 1},
        "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS": {"0": 1},
        "T@g": {"0": 2},
    }}  # fmt: skip
    with StoreWriter.open(tmp_path / "slave", SLAVE) as slave:
        copied(slave, data)
        slave.replica.tables.take_consumer_offsets(told, len(whole))
        assert set(slave.consumer_offsets.table()) == {"T@g"}
        slave.promote()
        waiting = put_halves(slave, [b"kept"])
        slave.demote("h:1")
        slave.promote()  # what waits is found in the log
        assert len(slave.transactions.waiting()) == 1
        assert ends(slave, waiting, is_commit=True) == ["COMMITTED"]


def test_progress_of_transactions_is_taken_when_the_log_has_them(tmp_path: Path) -> None:
    name = "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS"
    with StoreWriter.open(tmp_path / "master", MASTER) as master:
        put_halves(master, [b"1", b"2"])
        data = log_of(master)
    with StoreWriter.open(tmp_path / "slave", SLAVE) as slave:
        tables = slave.replica.tables
        tables.take_consumer_offsets({"offsetTable": {name: {"0": 1}}}, len(data))
        copied(slave, data)
        assert slave.consumer_offsets.table() == {}
        slave.flush()
        tables.take_consumer_offsets({"offsetTable": {name: {"0": 2}}}, len(data) + 1)
        assert slave.consumer_offsets.table() == {name: {0: 1}}


def test_a_store_time_is_not_before_those_of_the_former_master(tmp_path: Path) -> None:
    ahead, behind = Clock(1_700_000_900_000), Clock(1_700_000_000_000)
    with StoreWriter.open(tmp_path / "master", MASTER, clock=ahead) as master:
        assert master.put_batch(messages([b"1"])).ok
        data = log_of(master)
    with StoreWriter.open(tmp_path / "slave", SLAVE, clock=behind) as slave:
        copied(slave, data)
        slave.promote()
        assert slave.put_batch(messages([b"2"])).ok
    times = [row["storeTimestamp"].timestamp() for row in rows_of(tmp_path / "slave", "T")]
    assert times == [1_700_000_900.0] * 2


# ---- where it comes from -------------------------------------------------------------------------


@contextmanager
def served(path: Path, given: StoreConfig) -> Iterator[StoreWriter]:
    """Open a store as a process does that serves it."""
    with StoreWriter.open(path, given) as store:
        store.role.settle()
        yield store


def test_a_command_counts_until_the_configuration_says_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, SLAVE) as store:
        store.promote()
    for _ in range(2):
        caplog.clear()
        with served(path, SLAVE) as store:
            assert store.state == "RUNNING"
        assert "is ASYNC_MASTER, as `rmqstore promote` made it" in caplog.text
    caplog.clear()
    with served(path, config(**GIVEN, brokerRole="SYNC_MASTER")) as store:
        assert str(store.role) == "SYNC_MASTER"
    assert "rmqstore promote" not in caplog.text
    with served(path, SLAVE) as store:  # it was changed since
        assert store.state == "SLAVE"


def test_who_does_not_serve_a_store_takes_no_command_back(tmp_path: Path) -> None:
    """`rmqstore recover` without the store's configuration has the default one."""
    path = tmp_path / "s"
    with StoreWriter.open(path, SLAVE) as store:
        store.promote()
    StoreWriter.open(path).close()
    with served(path, SLAVE) as store:
        assert store.state == "RUNNING"


def test_a_master_that_waits_for_slaves_is_not_weakened_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    with StoreWriter.open(path, SLAVE) as store:
        store.promote(waits_for_slaves=True)
    for _ in range(2):
        caplog.clear()
        with served(path, MASTER) as store:
            assert str(store.role) == "SYNC_MASTER"
        assert "is SYNC_MASTER, as `rmqstore promote` made it" in caplog.text
        assert "brokerRole=ASYNC_MASTER, which does not count" in caplog.text
    for given in (config(**GIVEN, brokerRole="SYNC_MASTER"), MASTER):  # it was changed since
        with served(path, given) as store:
            assert store.role.waits_for_slaves == (given is not MASTER)


def test_a_master_that_a_command_named_counts_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, named = tmp_path / "s", config(**GIVEN, brokerRole="SLAVE", haMasterAddress="new:2")
    with StoreWriter.open(path, MASTER) as store:
        store.demote("new:2", "new:3")
        assert store.state == "SLAVE"
    for given in (MASTER, SLAVE):
        caplog.clear()
        with served(path, given) as store:
            assert store.state == "SLAVE"
            assert store.config.ha_master_address == "new:2"
            assert store.config.ha_master_remoting_address == "new:3"
        assert "following new:2, as `rmqstore demote` made it" in caplog.text
    for given in (named, SLAVE):
        with served(path, given) as store:
            assert store.config.ha_master_address == given.ha_master_address


@pytest.mark.parametrize(
    "content",
    [
        "", "{}", "[]",
        '{"role": "KING", "decides": true, "master": "", "master_broker": "", "promotions": []}',
        '{"role": "SLAVE", "decides": 1, "master": "", "master_broker": "", "promotions": []}',
        '{"role": "SLAVE", "decides": true, "master": "", "master_broker": "", "promotions": [1]}',
    ],
)  # fmt: skip
def test_a_store_whose_role_cannot_be_read_is_not_opened(tmp_path: Path, content: str) -> None:
    StoreWriter.open(tmp_path, SLAVE).close()
    path = tmp_path / "rmqstore" / "role.json"
    assert not path.exists()  # no command was given
    path.write_text(content)
    with pytest.raises(CorruptStoreError, match=r"role\.json.*Remove the file to let brokerRole"):
        StoreWriter.open(tmp_path, SLAVE)
    assert path.read_text() == content
    path.unlink()
    StoreWriter.open(tmp_path, SLAVE).close()


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    promotions = (Promotion(0, "0" * 32), Promotion(1 << 40, "f" * 32))
    kept = KeptRole("SLAVE", True, "h:1", "h:2", promotions)
    save_role(str(tmp_path), kept)
    assert load_role(str(tmp_path)) == kept


def test_a_master_cannot_fill_the_file_of_its_slave(tmp_path: Path) -> None:
    told = [[number, f"{number:032}"] for number in range(1001)]
    with pytest.raises(ValueError, match="are not promotions"):
        promotions_of(told)
    with StoreWriter.open(tmp_path, SLAVE) as store:
        store.replica.tables.take_promotions(promotions_of(told[:1000]))
        store.replica.tables.take_promotions(promotions_of(told[:10]))  # no continuation
        store.promote()
    with StoreWriter.open(tmp_path, SLAVE) as store:
        assert len(store.role.promotions) == 1001


def test_promotions_are_kept_and_one_without_a_message_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def kept() -> list[Any]:
        value: dict[str, Any] = json.loads((path / "rmqstore" / "role.json").read_text())
        return [begin for begin, _ in value["promotions"]]

    with StoreWriter.open(path, SLAVE) as store:
        store.promote()
        assert kept() == [0]
        store.demote("h:1")
        assert kept() == []
        store.promote()
        assert store.put_batch(messages([b"1"])).ok
        store.demote("h:1")
        assert kept() == [0]
        store.promote()
        assert kept() == [0, store.published_end]
    with served(path, MASTER) as store:  # the configuration counts again
        assert [each.begin for each in store.role.promotions] == [0, store.published_end]
