"""Replication with RocketMQ: each side follows the other."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.tables.topics import TopicConfig
from rmqstore_spark.ha.follower import LogFollower
from rmqstore_spark.ha.master import Master
from rmqstore_spark.ha.replication import Replication
from tests.broker.broker import running_broker
from tests.cli.processes import ROOT, run
from tests.ha.peers import log_bytes
from tests.pipelines.processes import environment
from tests.rocketmq.processes import SIZES, Broker, Client, RocketMq
from tests.rocketmq.reading import bodies_of, ends, verify
from tests.support.messages.batches import bodies, commit_batch, expected, rows_block
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

Brokers = Callable[..., Broker]
_BOTH = 90.0


def config(**others: Any) -> StoreConfig:
    """A store with the sizes of the brokers of these tests."""
    given = {**SIZES, "diskMaxUsedSpaceRatio": 99, **others}
    return StoreConfig().with_overrides({key: str(value) for key, value in given.items()})


@pytest.mark.parametrize("way", ["haMasterAddress", "name server"])
def test_a_slave_broker_serves_what_a_store_of_ours_has_committed(
    rocketmq: RocketMq,
    client: Client,
    broker: Brokers,
    name_server: str,
    tmp_path: Path,
    way: str,
) -> None:
    """It finds its master by a key of its configuration, or because that is a broker, too."""
    if way == "haMasterAddress" and rocketmq.version >= (5,):
        pytest.skip("slaves of RocketMQ 5.3 pass over haMasterAddress: they ask name servers")
    settings: dict[str, Any] = {"haListenPort": 0, "slaveTimeout": 20_000}
    wanted: dict[str, Any] = {"brokerId": 1, "haSendHeartbeatInterval": 500}
    if way == "name server":
        settings |= {
            "clients": "rocketmq",
            "listenPort": free_port(),
            "namesrvAddr": name_server,
        }
    made = config(brokerRole="SYNC_MASTER", **settings)
    with StoreWriter.open(tmp_path / "ours", made) as store, ExitStack() as cleanup:
        master = Master(store)
        cleanup.callback(master.close)
        if way == "name server":
            cleanup.enter_context(running_broker(store, ha_address=lambda: master.address))
        else:
            wanted["haMasterAddress"] = master.address
        with broker(tmp_path / "slave", brokerRole="SLAVE", **wanted) as slave:
            eventually(lambda: store.slaves.is_available(store.published_end), _BOTH)
            for number in range(5):
                assert commit_batch(store, number).status == "COMMITTED"
                put = store.put(rows_block(bodies(f"put{number}")))
                assert put.status is PutStatus.PUT_OK, put.remark
            slave.kill()
        eventually(lambda: not store.slaves.is_available(store.published_end), _BOTH)
        assert store.put(rows_block([b"alone"])).status is PutStatus.SLAVE_NOT_AVAILABLE
        # It comes back, and gets the rest.
        with broker(tmp_path / "slave", brokerRole="SLAVE", **wanted) as slave:
            eventually(lambda: store.slaves.held() == store.published_end, _BOTH)
            end = store.published_end
            assert log_bytes(tmp_path / "slave", 0, end) == log_bytes(tmp_path / "ours", 0, end)
            slave.stop()
    # A slave knows no topics without its master's configuration: it is started as a master.
    topics = tmp_path / "slave" / "config" / "topics.json"
    topics.write_bytes((tmp_path / "ours" / "config" / "topics.json").read_bytes())
    topics.with_name("topics.json.bak").unlink(missing_ok=True)
    with broker(tmp_path / "slave") as promoted:
        for topic in ("orders", "bills"):
            assert client.offsets(topic).items() >= ends(tmp_path / "ours", topic).items()
        pulled = bodies_of([*client.pull("orders"), *client.pull("bills")])
        promoted.stop()
    sent = [b"alone"]
    for number in range(5):
        sent += [*expected(number), *bodies(f"put{number}")]
    assert sorted(pulled) == sorted(sent)


@pytest.mark.fault
def test_a_follower_keeps_up_with_a_broker_under_load_killed_on_both_sides(
    client: Client, broker: Brokers, port: int, tmp_path: Path
) -> None:
    follower = [
        *(sys.executable, "-m", "rmqstore_spark.cli", "follow", f"127.0.0.1:{port + 1}"),
        str(tmp_path / "ours"),
        *(f"--set={key}={value}" for key, value in SIZES.items()),
    ]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            follower, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )

    ours = started()
    acknowledged: list[dict[str, Any]] = []
    try:
        with broker(tmp_path / "theirs") as running:
            client.ask("topic", "orders", 4, 4, 6)
            for answer in client.answers("flood", "orders", 4):
                acknowledged.append(answer)
                if len(acknowledged) in (1500, 3000):
                    ours.send_signal(signal.SIGKILL)
                    ours.communicate()
                    ours = started()
                if len(acknowledged) == 4000:
                    running.kill()
        with broker(tmp_path / "theirs") as running:
            client.ask("send", "orders", 0, 50, "after-", 0)
            count = sum(end for _, end in client.offsets("orders").values())
            assert ours.poll() is None
            eventually(lambda: _held(tmp_path / "ours") == count, _BOTH)
            running.stop()
    finally:
        ours.send_signal(signal.SIGTERM)
        _, errors = ours.communicate(timeout=60)
    assert ours.returncode == 0, errors.decode()
    assert run("recover", tmp_path / "theirs").returncode == 0
    assert ends(tmp_path / "ours", "orders") == ends(tmp_path / "theirs", "orders")
    with StoreWriter.open(tmp_path / "ours", config()) as store:
        end = store.published_end
    assert log_bytes(tmp_path / "ours", 0, end) == log_bytes(tmp_path / "theirs", 0, end)
    verify(tmp_path / "ours")


def _is_complete(follower: LogFollower) -> bool:
    return follower.standing().is_complete


def _held(path: Path) -> int:
    try:
        return sum(end for _, end in ends(path, "orders").values())
    except (OSError, LookupError):
        return -1


def test_a_store_follows_a_slave_of_a_broker_no_put_waits_for(
    rocketmq: RocketMq, client: Client, broker: Brokers, port: int, tmp_path: Path
) -> None:
    """An observer of a SYNC_MASTER acknowledges nothing; a slave that counts does."""
    # 5.3 waits for slaves only if more than itself shall be in sync, also if there are none.
    wanted = {"brokerRole": "SYNC_MASTER", "slaveTimeout": 2000, "inSyncReplicas": 2}
    without = "FLUSH_SLAVE_TIMEOUT" if rocketmq.version >= (5,) else "SLAVE_NOT_AVAILABLE"
    with broker(tmp_path / "theirs", **wanted):
        client.ask("topic", "orders", 4, 4, 6)
        (alone,) = client.ask("send", "orders", 0, 1, "alone-", 0)
        assert alone["status"] == without
        for acknowledge, status in (("false", "FLUSH_SLAVE_TIMEOUT"), ("true", "SEND_OK")):
            settings = config(
                brokerRole="SLAVE", haMasterAddress=f"127.0.0.1:{port + 1}",
                haAcknowledge=acknowledge,
            )  # fmt: skip
            with StoreWriter.open(tmp_path / acknowledge, settings) as store:
                follower = LogFollower(store)
                try:
                    eventually(partial(_is_complete, follower), _BOTH)
                    (sent,) = client.ask("send", "orders", 0, 1, "one-", 0)
                    assert sent["status"] == status
                finally:
                    follower.close()


def test_a_follower_asks_a_broker_for_its_beginning_its_topics_and_its_groups(
    client: Client, broker: Brokers, port: int, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    with broker(theirs) as running:
        client.ask("topic", "orders", 4, 4, 6)
        client.ask("topic", "bills", 2, 3, 4)
        client.ask("send", "orders", 0, 2000, "x" * 200, 0)  # more than a segment
        running.stop()
    first, second, *_ = sorted((theirs / "commitlog").iterdir())
    first.unlink()  # as expiry does
    offsets = theirs / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{"orders@billing":{0:7,1:2}}}')
    with broker(theirs) as running:
        settings = config(
            brokerRole="SLAVE", haMasterAddress=f"127.0.0.1:{port + 1}",
            haMasterRemotingAddress=f"127.0.0.1:{port}",
        )  # fmt: skip
        with StoreWriter.open(tmp_path / "ours", settings) as store:
            replication = Replication(store)
            try:
                assert replication.follower is not None
                eventually(partial(_is_complete, replication.follower), _BOTH)
                eventually((tmp_path / "ours/config/subscriptionGroup.json").exists, _BOTH)
            finally:
                replication.close()
            assert store.replica.begin == int(second.name)
            held = store.topics.get("bills")
            assert held is not None
            assert replace(held, rest={}) == replace(TopicConfig("bills", 2, 3, 4), rest={})
        running.stop()
    assert ends(tmp_path / "ours", "orders") == ends(theirs, "orders")
    assert re.search(r"billing +orders +0 +7 ", run("groups", tmp_path / "ours").stdout)


def test_the_example_streams_a_topic_of_a_broker(
    client: Client, broker: Brokers, port: int, tmp_path: Path
) -> None:
    offsets = tmp_path / "theirs" / "config" / "consumerOffset.json"
    offsets.parent.mkdir(parents=True)
    offsets.write_text('{"offsetTable":{"orders@billing":{0:7,1:0}}}')
    with broker(tmp_path / "theirs"):
        client.ask("topic", "orders", 2, 2, 6)
        client.ask("send", "orders", 0, 50, "many-", 0)
        sizes = (part for key, value in SIZES.items() for part in ("--set", f"{key}={value}"))
        shown = subprocess.run(
            [
                *(sys.executable, "examples/follow_broker.py", f"127.0.0.1:{port}", "orders"),
                *("billing", str(tmp_path / "ours"), "--available-now", *sizes),
            ],
            cwd=ROOT, env=environment(), capture_output=True, text=True, check=True, timeout=300,
        ).stdout  # fmt: skip
    assert re.search(r"\| +0\| +43\| +7\| +49\|", shown), shown
    assert re.search(r"spark +orders +0 +50 ", run("groups", tmp_path / "ours").stdout)
