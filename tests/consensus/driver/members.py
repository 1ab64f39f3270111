"""Processes of members, and a client of a group: what DLedger's own client asks."""

from __future__ import annotations

import base64
import json
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqstore_spark.consensus.driver.protection import request_to
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.layout.record.encode import MessageFields, encode_messages
from rmqstore_spark.remoting.access.identity import ClientIdentity
from tests.broker.broker import ask
from tests.support.processes.forked import start
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it since Python 3.11

GROUP = "orders"
SEGMENT = 1 << 20
_HOST = "127.0.0.1:10911"


def record(
    text: str, queue_offset: int = 0, topic: str = "orders", properties: bytes = b"TAGS\x01t\x02"
) -> bytes:
    """A record as a broker stores it, without its place."""
    fields = MessageFields(
        topic.encode(), text.encode(), properties, _HOST, 1_700_000_000_000, 0, 0, 0, 0
    )
    made = bytearray(encode_messages([fields], _HOST).data.tobytes())
    made[20:28] = queue_offset.to_bytes(8, "big")
    made[56:64] = (1_700_000_000_001).to_bytes(8, "big")
    return bytes(made)


def addresses(count: int) -> dict[str, str]:
    """Ids and addresses of members."""
    return {f"n{number}": f"127.0.0.1:{free_port()}" for number in range(count)}


def as_peers(members: dict[str, str]) -> str:
    """The value of `dLegerPeers`."""
    return ";".join(f"{member}-{address}" for member, address in members.items())


MOST_GROWTH = 160 << 20
"""Bytes: those that may be held (`running`), and what Python needs beside them."""


def peak(member: MemberProcess) -> int:
    """Most bytes of memory that a process has had."""
    status = Path(f"/proc/{member.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def connected(address: str) -> socket.socket:
    """A connection to a member, by hand."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


class MemberProcess:
    """`rmqstore member`, on a store of its own.

    Args:
        folder: has the store and the log of the process.
        me: which member it is.
        members: all of them.
        settings: keys.
    """

    verb = "member"

    def __init__(self, folder: Path, me: str, members: dict[str, str], **settings: Any) -> None:
        self.me = me
        self.address = members[me]
        self.store = folder / me
        self._output = folder / f"{me}.out"
        given = {
            "dLegerGroup": GROUP,
            "dLegerPeers": as_peers(members),
            "dLegerSelfId": me,
            "mappedFileSizeCommitLog": SEGMENT,
            **settings,
        }
        words = [f"--set={key}={value}" for key, value in given.items()]
        command = [sys.executable, "-m", "rmqstore_spark.cli", self.verb]
        self._command = [*command, "--store", str(self.store), *words]
        self.start()

    def start(self) -> None:
        """Start it, again after it was killed."""
        with self._output.open("ab") as out:
            self.process = start(
                self._command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text()

    @property
    def data(self) -> bytes:
        """The log, all of its files."""
        folder = self.store / f"dledger-{self.me}" / "data"
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))

    @property
    def committed(self) -> int:
        """The commit index that it has saved."""
        path = self.store / f"dledger-{self.me}" / "checkpoint"
        found = re.search(r"committedIndex=(-?\d+)", path.read_text() if path.exists() else "")
        return int(found[1]) if found else -1

    @property
    def term(self) -> int:
        """The term that it has saved."""
        path = self.store / f"dledger-{self.me}" / "currterm"
        found = re.search(r"currTerm=(\d+)", path.read_text())
        assert found is not None
        return int(found[1])

    @property
    def may_vote(self) -> bool:
        """Whether it has heard the others, if it began without files."""
        path = self.store / f"dledger-{self.me}" / "currterm"
        return path.exists() and "isVoter=false" not in path.read_text()

    def kill(self) -> None:
        """Kill it as a crash does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop it in order."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0, self.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


class GroupClient:
    """Asks the members of a group.

    Args:
        members: ids and addresses.
        group: its name.
        identity: who asks.
    """

    def __init__(
        self,
        members: dict[str, str],
        group: str = GROUP,
        identity: ClientIdentity | None = None,
    ) -> None:
        self._members = members
        self._group = group
        self._identity = identity

    def without(self, member: str) -> GroupClient:
        """A client that does not ask one of the members."""
        others = {me: at for me, at in self._members.items() if me != member}
        return GroupClient(others, self._group, self._identity)

    def ask(self, member: str, code: int, **fields: Any) -> dict[str, Any]:
        """The body of a member's answer."""
        body = json.dumps({"group": self._group, "remoteId": member, **fields}).encode()
        (answer,) = ask(self._members[member], request_to(code, body), identity=self._identity)
        return dict(json.loads(answer.body))

    def leader(self) -> str | None:
        """Who leads, as the leader itself says."""
        for member in self._members:
            try:
                if self.ask(member, 50000).get("leaderId") == member:
                    return member
            except ServiceError:
                pass
        return None

    def append(self, *records: bytes) -> list[int]:
        """Append records, wherever the leader is; returns their indexes."""
        return [self._append(each) for each in records]

    def _append(self, body: bytes) -> int:
        text = base64.b64encode(body).decode()

        def appended() -> int | None:
            leader = self.leader()
            if leader is None:
                return None
            try:
                answer = self.ask(leader, 50001, body=text)
            except ServiceError:
                return None
            return int(answer["index"]) + 1 if answer["code"] == 200 else None

        return int(eventually(appended, 60)) - 1

    def entry(self, index: int) -> bytes:
        """The body of an entry, as the leader has it."""

        def found() -> bytes | None:
            leader = self.leader()
            if leader is None:
                return None
            entries = self.ask(leader, 50002, beginIndex=index).get("entries")
            return base64.b64decode(entries[0]["body"]) if entries else None

        return bytes(eventually(found, 60))


def logs_until(group: dict[str, MemberProcess], last: int) -> set[bytes]:
    """Stop members; return what is in their logs up to an entry, byte for byte.

    Behind it they can differ: those that are stopped later may elect a leader meanwhile.
    """
    for member in group.values():
        member.stop()
    return {_until(member.data, last) for member in group.values()}


def _until(data: bytes, last: int) -> bytes:
    """A log up to the end of an entry, by its headers alone."""
    at = 0
    while True:
        magic, size, index = struct.unpack_from(">iiq", data, at)
        assert magic in (1, -1), f"the log ends at {at}, before entry {last}"
        at += size
        if magic == 1 and index == last:
            return data[:at]


def bodies(data: bytes) -> list[bytes]:
    """The records of a log, by its headers alone."""
    found = []
    at = 0
    while at + 8 <= len(data):
        magic, size = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        if magic == 0:
            break
        if magic == 1:
            found.append(data[at + ENTRY_HEADER_SIZE : at + int.from_bytes(size, "big")])
        at += int.from_bytes(size, "big")
    return found
