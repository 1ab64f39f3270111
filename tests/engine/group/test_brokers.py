"""Where the brokers of a group's members are: what a follower copies comes from the leader's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.broker.protection import Protection
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine.config.properties_file import read_properties
from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.engine.group.store_group import brokers_of_group
from rmqstore_spark.engine.store import StoreWriter
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from tests.consensus.driver.members import addresses
from tests.engine.group.stores import PATIENCE, StoreProcess, group_of
from tests.support.processes.halving import as_block
from tests.support.processes.ports import free_port
from tests.support.stores.storing import messages
from tests.support.waiting import eventually

THREE = "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911"
PAGE = Path(__file__).parents[3] / "docs" / "dledger.md"


def member(peers: str = THREE, **changed: Any) -> StoreConfig:
    given: dict[str, Any] = {
        "clients": "all", "enable_d_leger_commit_log": True, "d_leger_group": "g",
        "d_leger_self_id": "n0", "d_leger_peers": peers, "bind_address": "10.0.0.1",
        "broker_ip1": "10.0.0.1",
    }  # fmt: skip
    return StoreConfig(**{**given, **changed})


@pytest.mark.parametrize(
    "reachable",
    [
        {},
        {"bind_address": "0.0.0.0"},
        {"listen_port": -1, "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1"},
        {"peers": "n0-127.0.0.1:1;n1-127.0.0.1:2", "broker_ip1": "127.0.0.1"},
        {"peers": "n0-box:1;n1-box:2", "broker_ip1": "127.0.0.1", "bind_address": "127.0.0.1"},
    ],
)
def test_a_broker_that_the_others_reach_is_taken(reachable: dict[str, Any]) -> None:
    brokers_of_group(member(**reachable))


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"broker_ip1": "127.0.0.1"}, "brokerIP1"),
        ({"broker_ip1": "127.0.0.1", "clients": "spark"}, "brokerIP1"),
        ({"broker_ip1": "0.0.0.0"}, "brokerIP1"),
        ({"bind_address": "127.0.0.1"}, "bindAddress"),
        ({"broker_ip1": "::1", "peers": "n0-[fd00::1]:1;n1-[fd00::2]:1"}, "brokerIP1"),
        ({"broker_ip1": "127.0.0.1", "peers": "n0-one:1;n1-two:1;n2-one:2"}, "brokerIP1"),
    ],
)
def test_a_broker_on_loopback_is_refused_if_others_are_on_other_machines(
    tmp_path: Path, wrong: dict[str, Any], key: str
) -> None:
    with StoreWriter.open(tmp_path, StoreConfig()) as store:
        assert store.put(as_block(messages([b"old"]))).ok
    with pytest.raises(OptionError, match=rf"{key} is .* cannot reach.*the member n1") as raised:
        StoreWriter.open(tmp_path, member(**wrong))
    assert "an address of n0 that they reach" in str(raised.value)
    with StoreWriter.open(tmp_path, StoreConfig()) as store:  # it has not become a member
        assert store.put(as_block(messages([b"more"]))).ok


@pytest.mark.parametrize("key", ["dLegerPeers=n0-127.0.0.1:1", "dLegerSelfId=n0"])
def test_keys_of_a_group_without_its_switch_are_refused_unless_a_file_says_so(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, _, value = key.partition("=")
    config = StoreConfig().with_overrides({"dLegerGroup": "g", name: value})
    with pytest.raises(OptionError, match=rf"has {name}, .* enableDLegerCommitLog=true\. Set"):
        StoreWriter.open(tmp_path / "store", config)
    assert not (tmp_path / "store").exists()
    file = tmp_path / "broker.conf"
    file.write_text(f"enableDLegerCommitLog=false\ndLegerGroup=g\n{key}\n")
    changed = StoreConfig.from_file(file).with_environment({}).with_overrides({"listenPort": "0"})
    StoreWriter.open(tmp_path / "store", changed).close()
    assert f"enableDLegerCommitLog is false, so {name} is passed over" in caplog.text


def test_the_example_of_the_page_is_complete_for_three_machines(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(PAGE.read_text().split("```properties\n")[1].split("```")[0])
    given = read_properties(file)
    hosts = {peer[:2]: peer[3:].partition(":")[0] for peer in given["dLegerPeers"].split(";")}
    assert given["brokerIP1"] == given["bindAddress"] == hosts[given["dLegerSelfId"]]
    config = StoreConfig.from_file(file)
    Protection.of(config)  # accepts clients
    assert len(brokers_of_group(config).group.ids) == 3


def test_a_leader_whose_broker_is_this_member_is_not_copied_from() -> None:
    brokers = brokers_of_group(member())
    assert brokers.learn("n1", "10.0.0.2:10921") == "10.0.0.2:10921"
    assert brokers.place("n1") == "n1, whose broker is at 10.0.0.2:10921"
    assert brokers.learn("n1", "") == ""
    assert brokers.place("n1") == "n1, whose port for other members is 10.0.0.2:40911"
    for wrong in ("10.0.0.1:10921", "127.0.0.1:10999", "[::1]:10921"):
        with pytest.raises(ServiceError, match=r"The member n1 .* brokerIP1 of its own"):
            brokers.learn("n1", wrong)
    with pytest.raises(ServiceError, match="HOST:PORT"):
        brokers.learn("n1", "somewhere")


def test_a_follower_tells_where_the_leaders_broker_is(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        leader, follower = group.leader(), group.followers()[0]
        group.await_answers()

        def refusal() -> str:
            with StoreClient(follower.endpoint) as client, pytest.raises(RefusedError) as raised:
                client.create_topic("t")
            return str(raised.value)

        told = f"is {leader.me}, whose broker is at {leader.broker}: write there."
        assert eventually(lambda: told in refusal(), PATIENCE)


def test_a_member_without_a_port_tells_that_nobody_copies_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers_of_group(member("n0-127.0.0.1:1", listen_port=-1))
    assert not caplog.text
    brokers_of_group(member(listen_port=-1))
    assert "listenPort is -1, so the other members cannot copy topics" in caplog.text


def test_a_follower_that_would_copy_from_itself_says_so(tmp_path: Path) -> None:
    """All have one brokerIP1 and one port, as with one file for members on several machines."""
    members, port = addresses(3), free_port()
    stores = [
        StoreProcess(
            tmp_path, me, members, dLegerHeartbeatInterval=400,
            bindAddress=f"127.0.1.{number + 1}", listenPort=port,
        )
        for number, me in enumerate(members)
    ]  # fmt: skip
    try:
        told = "which is where this member's own is"
        eventually(lambda: sum(told in store.output for store in stores) == 2, PATIENCE)
    finally:
        for store in stores:
            store.__exit__()
