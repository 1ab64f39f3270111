"""What a master and a slave of RocketMQ 4.9.8 said to each other, said again by plain sockets."""

from __future__ import annotations

import gzip
import json
import socket
import struct
from base64 import b64decode
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.ha.peers import PlainMaster, PlainSlave, caught_up, following, log_bytes, mastering
from tests.support.waiting import eventually

_SESSION = Path(__file__).parents[1] / "golden" / "ha-session.jsonl.gz"
_SIZES = {"mapped_file_size_commit_log": 64 << 10}


class Session(NamedTuple):
    """One connection: what each side sent, in order."""

    master: bytes
    slave: bytes

    @property
    def log(self) -> bytes:
        """The log as the master's frames have it, from its first byte on."""
        data, at = b"", 0
        while at < len(self.master):
            offset, size = struct.unpack_from(">qi", self.master, at)
            assert offset == len(data)
            data += self.master[at + 12 : at + 12 + size]
            at += 12 + size
        return data

    @property
    def reports(self) -> list[int]:
        return [offset for (offset,) in struct.iter_unpack(">q", self.slave)]


@pytest.fixture(scope="module")
def session() -> Session:
    said = {"master": b"", "slave": b""}
    for line in gzip.decompress(_SESSION.read_bytes()).splitlines():
        one = json.loads(line)
        said[one["from"]] += b64decode(one["bytes"])
    return Session(**said)


def test_a_recorded_master_is_followed_and_a_recorded_slave_is_served(
    session: Session, tmp_path: Path
) -> None:
    """The store that the first one leaves is what the second one asks for."""
    log = session.log

    def serve(connection: socket.socket, first: int) -> None:
        assert first == session.reports[0]
        connection.sendall(session.master)

    with (
        PlainMaster(serve) as master,
        following(tmp_path, master.address, ha_from="latest", **_SIZES) as (copy, _),
    ):
        caught_up(copy, len(log))
    assert log_bytes(tmp_path, 0, len(log)) == log

    with (
        mastering(tmp_path, broker_role="SYNC_MASTER", **_SIZES) as (store, served),
        PlainSlave(served.address) as slave,
    ):
        # As one that connects again: an empty slave gets a log's last segment, and that has rolled.
        _, first, *others = session.reports
        slave.report(first)
        got = b""
        while first + len(got) < len(log):
            offset, data = slave.frame()
            assert offset == first + len(got)
            got += data
        assert got == log[first:]
        for report in others:
            slave.report(report)
        eventually(lambda: store.slaves.held() == len(log))
