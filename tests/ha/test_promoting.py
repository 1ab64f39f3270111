"""A slave that becomes the master continues where its master was."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.remoting.codec.codes import RequestCode
from tests.ha.broker import Broker, answering
from tests.ha.peers import SMALL, PlainMaster, caught_up, mastering
from tests.ha.test_metadata import recorded, replicating, slave_of
from tests.support.processes.delaying import delayed, delivered, rows_of
from tests.support.stores.storing import Clock, until
from tests.support.waiting import eventually


def test_it_delivers_what_its_master_did_not_and_nothing_again(tmp_path: Path) -> None:
    """The progress that the slave has copied is older than the log that it has."""
    clock, path = Clock(), tmp_path / "slave"
    saved = tmp_path / "master" / "config" / "delayOffset.json"
    given: dict[str, Any] = {"message_delay_level": "1s 1h", "flush_delay_offset_interval": 100}
    with mastering(tmp_path / "master", clock=clock, **given) as (store, master):
        assert store.put_batch(delayed([b"a", b"b"], [1, 2])).ok
        clock.now += 1000
        delivered(store, 1)
        eventually(lambda: b"{1:1" in b"".join(saved.read_bytes().split()))
        bodies = {**recorded(), RequestCode.GET_ALL_DELAY_OFFSET: saved.read_bytes()}
        with (
            answering(Broker(bodies)) as address,
            slave_of(path, master.address, address) as slave,
        ):
            eventually((path / "config" / "delayOffset.json").exists)
            assert store.put_batch(delayed([b"c", b"d"], 1)).ok
            clock.now += 1000
            delivered(store, 3)
            caught_up(slave, store.published_end)
    with StoreWriter.open(path, StoreConfig(**{**SMALL, **given}), clock=clock) as store:
        assert store.put_batch(delayed([b"e"], 1)).ok
        clock.now += 3_600_000
        delivered(store, 2)
        until(lambda: set(store.stats()["delayedWaiting"].values()) == {0})
    assert sorted(row["body"] for row in rows_of(path, "T")) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_master_that_takes_connections_is_not_succeeded_without_force(tmp_path: Path) -> None:
    """It lets the slave go at once, as one with another kind of connection does."""
    with (
        PlainMaster(lambda connection, _: connection.shutdown(socket.SHUT_RDWR)) as master,
        replicating(tmp_path / "slave", master.address, "") as (store, replication),
    ):

        def pauses() -> bool:
            stats = replication.stats()
            return stats["replicationState"] == "CONNECTING" and master.connections > 3

        eventually(pauses)
        with pytest.raises(RefusedError, match="answers, but cannot be followed for now"):
            replication.promote(waits_for_slaves=False, force=False)
        assert store.role.follows
        replication.promote(waits_for_slaves=False, force=True)
        assert store.role.accepts
