"""What RocketMQ wrote, over our master and our follower: the same bytes arrive."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.reader import Store
from tests.ha.peers import (
    PlainMaster,
    caught_up,
    following,
    frames,
    log_bytes,
    log_files,
    mastering,
    queue_files,
    sizes_of,
)  # fmt: skip
from tests.support.stores.golden import load_entries, load_queues, load_records
from tests.support.stores.storing import Clock

Golden = Callable[[str], Path]

PLAIN = ("tiny", "boundary", "batch", "delayed", "transactions", "lmq", "flags", "ipv6", "live")


def test_a_master_of_rocketmq_and_our_follower_give_the_files_of_its_slave(
    golden: Golden, tmp_path: Path
) -> None:
    folder, slave = golden("ha-master"), golden("ha-slave")
    end = load_queues(folder).max_physical_offset
    log = log_bytes(folder / "store", 0, end)

    def serve(connection: socket.socket, first: int) -> None:
        for frame in frames(log, first, 1000):
            connection.sendall(frame)

    with (
        PlainMaster(serve) as master,
        following(tmp_path, master.address, **sizes_of(folder)) as (store, _),
    ):
        caught_up(store, end)
    assert log_files(tmp_path) == log_files(slave / "store")
    assert queue_files(tmp_path) == queue_files(slave / "store")


def test_our_master_and_our_follower_give_the_files_of_rocketmqs_slave(
    golden: Golden, tmp_path: Path
) -> None:
    folder, slave = golden("ha-master"), golden("ha-slave")
    shutil.copytree(folder / "store", tmp_path / "master")
    sizes = sizes_of(folder)
    with (
        mastering(tmp_path / "master", **sizes) as (source, master),
        following(tmp_path / "slave", master.address, **sizes) as (store, _),
    ):
        caught_up(store, source.published_end)
    assert log_files(tmp_path / "slave") == log_files(slave / "store")
    assert queue_files(tmp_path / "slave") == queue_files(slave / "store")


@pytest.mark.parametrize("name", PLAIN)
def test_every_kind_of_record_is_copied_and_dispatched_as_a_broker_does(
    golden: Golden, tmp_path: Path, name: str
) -> None:
    folder = golden(name)
    shutil.copytree(folder / "store", tmp_path / "master")
    sizes = sizes_of(folder)
    # Delayed messages that wait there are not due yet.
    clock = Clock(max(record.store_timestamp for record in load_records(folder)))
    with mastering(tmp_path / "master", clock=clock, **sizes) as (source, master):
        begin, end = source.published_log().begin, source.published_end
        with following(tmp_path / "slave", master.address, **sizes) as (store, _):
            caught_up(store, end)
    assert log_bytes(tmp_path / "slave", begin, end) == log_bytes(folder / "store", begin, end)
    with Store.open(tmp_path / "slave") as copied:
        for (topic, queue_id), entries in load_entries(folder).items():
            queue = copied.queue(topic, queue_id)
            assert (queue.min_offset, queue.max_offset) == (
                entries[0].offset,
                entries[-1].offset + 1,
            )
    assert queue_files(tmp_path / "slave") == queue_files(tmp_path / "master")
