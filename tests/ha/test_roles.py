"""A slave becomes the master while its process runs, and a master a slave; processes are killed."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError, RmqStoreError
from tests.broker.broker import name_server, route
from tests.cli.processes import run
from tests.ha.pairs import Member, bodies_of, following, members
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def promote(member: Member, *, waits_for_slaves: bool = False, force: bool = False) -> None:
    """Promote a slave."""
    with StoreClient(member.endpoint) as client:
        client.promote(waits_for_slaves=waits_for_slaves, force=force)


def demote(member: Member, master: Member) -> int:
    """Let a master follow another one; returns how many of its slaves lack something."""
    with StoreClient(member.endpoint) as client:
        return client.demote(master.address).lacking


def is_promoted(member: Member) -> bool:
    """Promote a slave to a SYNC_MASTER, unless it does not know yet that its master has left."""
    with suppress(RefusedError):
        promote(member, waits_for_slaves=True)
        return True
    return False


def refused(*command: str) -> str:
    """What a command says that the store process refuses."""
    done = run(*command)
    assert done.returncode == 2, done.stdout
    return done.stderr


def test_a_slave_whose_master_was_killed_is_promoted_and_stays_the_master(tmp_path: Path) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1", b"2") == "PUT_OK"
        end = slave.has_caught_up(master)
        assert "is connected" in refused("promote", slave.endpoint)
        with pytest.raises(RefusedError, match="is a slave"):
            slave.put(b"not yet")
        master.kill()
        slave.is_alone()
        done = run("promote", slave.endpoint)
        assert done.returncode == 0, done.stderr
        told = done.stdout
        assert f"its log continues at physical offset {end}\n" in told
        assert f"slaves can follow {slave.address}\n" in told
        assert slave.put(b"3") == "PUT_OK"
        assert "is a master already (ASYNC_MASTER)" in refused("promote", slave.endpoint)

        slave.kill()
        slave.start()  # its configuration still says SLAVE
        assert slave.stats()["state"] == "RUNNING"
        assert "as `rmqstore promote` made it" in slave.process.output
        assert slave.put(b"4") == "PUT_OK"
        assert bodies_of(slave.endpoint) == [b"1", b"2", b"3", b"4"]


def test_a_former_master_with_more_is_not_followed_and_follows_only_from_the_beginning(
    tmp_path: Path,
) -> None:
    """Its log has a message that the new master never got."""
    with members(tmp_path) as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        common = slave.has_caught_up(master)
        slave.kill()
        assert master.put(b"lost") == "PUT_OK"
        longer = master.end
        master.kill()
        slave.start()
        slave.is_alone()
        promote(slave)
        assert slave.put(b"2") == "PUT_OK"

        master.start()  # as a master: nothing tells it
        slave.kill()
        slave.start()
        assert slave.put(b"3") == "PUT_OK"
        assert bodies_of(slave.endpoint) == [b"1", b"2", b"3"]

        demote(master, slave)
        stopped = eventually(lambda: master.stats()["replicationState"] == "STOPPED")
        assert stopped
        assert "--restart-from earliest" in master.stats()["replicationError"]
        assert master.end == longer
        with pytest.raises(RefusedError, match="is a slave"):
            master.put(b"no")
        assert f"No longer follows {slave.address}" not in master.process.output
        with pytest.raises(RefusedError, match="may lack what that one has"):
            promote(master)
        master.stop()
        common_log = slave.log(common)
        assert master.log(common) == common_log

        small = [f"--set={pair}" for pair in master.sizes]
        given = ("--restart-from", "earliest", "--until-caught-up", *small)
        done = run("follow", slave.address, master.path, *given)
        assert done.returncode == 0, done.stderr
        end = slave.end
        assert master.log(end) == slave.log(end)
        assert not (master.path / "rmqstore" / "role.json").exists()  # it is kept with its log


def test_roles_are_exchanged_and_back(tmp_path: Path) -> None:
    """Each is the master for a while, and the other one its slave, which a SYNC_MASTER awaits."""
    with members(tmp_path, 1, "haAcknowledge=true") as (one, two):
        master, slave = one, two
        wanted = []
        for turn in range(3):
            body = b"before %d" % turn
            eventually(lambda body=body, master=master: master.put(body) == "PUT_OK")
            end = slave.has_caught_up(master)
            assert demote(master, slave) == 0  # none lacks anything
            eventually(lambda slave=slave: is_promoted(slave))
            eventually(lambda master=master: master.stats()["replicationState"] == "FOLLOWING")
            assert slave.put(b"after %d" % turn) == "PUT_OK"
            assert slave.end > end
            wanted.append(turn)
            master.has_caught_up(slave)
            with pytest.raises(RefusedError, match="is a slave"):
                master.put(b"no")
            master, slave = slave, master
        end = slave.has_caught_up(master)
        assert bodies_of(one.endpoint) == bodies_of(two.endpoint)
        assert {b"after %d" % turn for turn in wanted} <= set(bodies_of(one.endpoint))
        for each in (one, two):
            each.kill()
            each.start()
        assert two.stats()["state"] == "RUNNING"  # which its configuration does not say
        assert one.stats()["state"] == "SLAVE"
        eventually(lambda: one.stats()["replicationState"] == "FOLLOWING")
        assert one.log(end) == two.log(end)


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_promotion_that_is_killed_happened_or_did_not(tmp_path: Path, place: str) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        end = slave.has_caught_up(master)
        slave.stop()
        slave.start(f"promote.{place}_mark")
        with StoreClient(slave.endpoint) as client, pytest.raises(RmqStoreError):
            client.promote(force=True)
        assert slave.process.wait() == -signal.SIGKILL
        slave.kill()
        assert master.put(b"2") == "PUT_OK"
        slave.start()
        if place == "before":
            assert slave.stats()["state"] == "SLAVE"
            end = slave.has_caught_up(master)
            assert slave.log(end) == master.log(end)
            return
        assert slave.stats()["state"] == "RUNNING"
        assert slave.end == end
        assert slave.put(b"3") == "PUT_OK"
        assert bodies_of(slave.endpoint) == [b"1", b"3"]


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_demotion_that_is_killed_happened_or_did_not(tmp_path: Path, place: str) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        end = slave.has_caught_up(master)
        master.stop()
        slave.is_alone()
        promote(slave)
        assert slave.put(b"2") == "PUT_OK"
        master.start(f"demote.{place}_mark")
        with StoreClient(master.endpoint) as client, pytest.raises(RmqStoreError):
            client.demote(slave.address)
        assert master.process.wait() == -signal.SIGKILL
        master.kill()
        master.start()
        if place == "before":
            assert master.stats()["state"] == "RUNNING"
            assert master.end == end
            return
        end = master.has_caught_up(slave)
        assert master.log(end) == slave.log(end)
        assert master.stats()["state"] == "SLAVE"


def test_killed_while_it_accepts_as_a_new_master_it_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    with members(tmp_path, 1, "flushDiskType=SYNC_FLUSH") as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        slave.has_caught_up(master)
        master.kill()
        slave.stop()
        slave.start("put.after_dispatch:3")
        slave.is_alone()
        promote(slave)
        taken = []
        with suppress(RmqStoreError):
            for number in range(10):
                assert slave.put(b"own %d" % number) == "PUT_OK"
                taken.append(b"own %d" % number)
        assert 0 < len(taken) < 10
        assert slave.process.wait() == -signal.SIGKILL
        slave.kill()
        slave.start()
        assert slave.put(b"last") == "PUT_OK"
        found = bodies_of(slave.endpoint)
        assert {b"1", b"last", *taken} <= set(found)
        assert len(found) == len(set(found))


def test_a_slave_of_the_new_master_does_not_follow_the_former_one(tmp_path: Path) -> None:
    """It has nothing that the former master lacks: only the promotion tells."""
    ports = [free_port() for _ in range(2)]
    given = [("clients=all", f"listenPort={port}", "vipListenPort=0") for port in ports]
    with members(tmp_path, 1, masters=given[0], slaves_of=(*given[1], "brokerId=1")) as pair:
        master, slave = pair
        assert master.put(b"1") == "PUT_OK"
        end = slave.has_caught_up(master)
        master.stop()
        slave.is_alone()
        promote(slave)
        brokers = {
            each: f"haMasterRemotingAddress=127.0.0.1:{port}"
            for each, port in zip(pair, ports, strict=True)
        }
        third = Member(tmp_path / "third" / "store", *following(slave), brokers[slave])
        try:
            third.start()
            third.has_caught_up(slave)
            eventually((third.path / "rmqstore" / "role.json").exists)
            third.stop()
            master.start()
            third.settings = (*following(master), brokers[master])
            third.start()
            eventually(lambda: third.stats()["replicationState"] == "STOPPED")
            error = third.stats()["replicationError"]
            assert f"another store was promoted at physical offset {end}" in error
            third.stop()
            third.settings = (*following(slave), brokers[slave])
            third.start()
            assert slave.put(b"2") == "PUT_OK"
            end = third.has_caught_up(slave)
            assert third.log(end) == slave.log(end)
        finally:
            third.kill()


def test_name_servers_name_the_new_master(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(2)]
    more = ("vipListenPort=0", "registerNameServerPeriod=10000")
    with name_server(tmp_path) as address:
        given = [
            ("clients=all", f"listenPort={port}", f"namesrvAddr={address}", *more) for port in ports
        ]
        with members(tmp_path, 1, masters=given[0], slaves_of=(*given[1], "brokerId=1")) as pair:
            master, slave = pair

            def addresses() -> dict[str, str]:
                found = route(address, "orders")
                return dict(found["brokerDatas"][0]["brokerAddrs"]) if found else {}

            here = [f"127.0.0.1:{port}" for port in ports]
            assert master.put(b"1") == "PUT_OK"
            slave.has_caught_up(master)
            eventually(lambda: addresses() == {"0": here[0], "1": here[1]})
            master.kill()
            slave.is_alone()
            promote(slave)
            eventually(lambda: addresses() == {"0": here[1]})
            assert route(address, "orders")["queueDatas"]
            master.start()
            eventually(lambda: addresses()["0"] == here[0])  # the configuration is the old one
            demote(master, slave)
            eventually(lambda: addresses() == {"0": here[1], "1": here[0]})


def test_a_follower_that_was_promoted_is_not_followed_with_again(tmp_path: Path) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        slave.has_caught_up(master)
        promote(slave, force=True)
        assert slave.put(b"2") == "PUT_OK"
        slave.stop()
        small = [f"--set={pair}" for pair in slave.sizes]
        told = refused("follow", master.address, str(slave.path), "--until-caught-up", *small)
        assert "is a master, as `rmqstore promote` made it" in told
        demote(master, slave)
        master.stop()
        told = refused("follow", "127.0.0.1:1", str(master.path), "--until-caught-up", *small)
        assert f"follows {slave.address}, as `rmqstore demote` made it" in told


def test_what_cannot_be_promoted_or_demoted_is_told(tmp_path: Path) -> None:
    with members(tmp_path, 0) as (master,), StoreClient(master.endpoint) as client:
        with pytest.raises(RefusedError, match="is a master already"):
            client.promote(force=True)
        for wrong in (("nowhere", ""), ("host:0", ""), ("", ""), ("h:1", "h"), ("h:1" * 200, "")):
            with pytest.raises(RefusedError, match=r"must be host:port|more than 300"):
                client.demote(*wrong)
        assert master.put(b"1") == "PUT_OK"
        done = run("demote", master.endpoint, "127.0.0.1:1", "--broker", "127.0.0.1:2")
        assert done.returncode == 0, done.stderr
        assert f"follows 127.0.0.1:1; its log ends at {master.end}\n" in done.stdout
        assert done.stderr == "No slave was connected, which would have got what it lacks.\n"
        assert "is a slave already" in refused("demote", master.endpoint, "127.0.0.1:1")


def test_a_demotion_tells_that_a_slave_does_not_say_what_it_has(tmp_path: Path) -> None:
    with members(tmp_path) as (master, slave):
        assert master.put(b"1") == "PUT_OK"
        end = slave.has_caught_up(master)
        done = run("demote", master.endpoint, slave.address)
        assert "1 of the slaves that were connected were sent all of it" in done.stderr
        assert f"if its log ends at {end}." in done.stderr


def test_a_promotion_that_finds_no_port_for_slaves_leaves_a_slave(tmp_path: Path) -> None:
    with members(tmp_path) as (master, slave):
        slave.stop()
        slave.port = master.port
        slave.start()
        with pytest.raises(RmqStoreError, match="cannot serve slaves"):
            promote(slave, force=True)
        assert slave.stats()["state"] == "SLAVE"
        assert master.put(b"1") == "PUT_OK"
        slave.has_caught_up(master)
