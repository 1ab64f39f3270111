"""What a leader pushes to its peers, over real connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from rmqstore_spark.consensus.actions import MemberRole, Save
from rmqstore_spark.consensus.driver import peers
from rmqstore_spark.consensus.driver.disk.state_files import StateFiles
from rmqstore_spark.consensus.driver.driver import Driver
from rmqstore_spark.consensus.driver.group import MemberGroup
from rmqstore_spark.consensus.driver.wire import answer_body, encoded_entries, request_of
from rmqstore_spark.consensus.messages import (
    Answer,
    HeartbeatAnswer,
    LeaderHeartbeat,
    LedgerEntry,
    MemberCode,
    Push,
    PushAnswer,
    PushType,
    Vote,
    VoteAnswer,
    VoteVerdict,
)
from rmqstore_spark.consensus.timing import Timing
from rmqstore_spark.remoting.addresses import bound_port, parse_address
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.connection import RemotingConnection, Request
from rmqstore_spark.remoting.server import RemotingServer
from tests.consensus.driver.members import GROUP, SEGMENT, addresses, record
from tests.support.waiting import PATIENCE


class Peer:
    """A member that votes for all, and takes all that it is sent.

    Attributes:
        begin: what is pushed behind this entry is counted; -1 for nothing.
        end: its last entry.
        pushes: the first and the last entry of each push that counts, from 1 on.
    """

    def __init__(self) -> None:
        self.begin = self.end = -1
        self.pushes: list[tuple[int, int]] = []

    def opened(self, connection: RemotingConnection) -> None: ...

    def closed(self, connection: RemotingConnection) -> None: ...

    def requests(self, requests: Sequence[Request]) -> None:
        for request in requests:
            asked, known = request_of(request.command.code, request.command.body)
            body = answer_body(self._answer(known), asked)
            request.reply(request.command.answer(MemberCode.SUCCESS, body=body))

    def _answer(self, known: Vote | LeaderHeartbeat | Push) -> Answer:
        if isinstance(known, Vote):
            return VoteAnswer(known.term, VoteVerdict.ACCEPT)
        if isinstance(known, LeaderHeartbeat):
            return HeartbeatAnswer(MemberCode.SUCCESS, -1)
        code = MemberCode.SUCCESS
        if known.type is PushType.COMPARE and known.first > self.end:
            code = MemberCode.INCONSISTENT_STATE
        elif known.type is not PushType.COMMIT:
            self.end = max(self.end, known.last)
        if known.type is PushType.APPEND and known.first > self.begin >= 0:
            self.pushes.append((known.first - self.begin, known.last - self.begin))
        return PushAnswer(known.type, code, known.term, known.last, 0, self.end)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, while the event loop does its work."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def pushed(folder: Path, *sizes: int) -> list[Peer]:
    """Return the peers of a leader that records were proposed to, so many at a time, at once."""
    members = addresses(3)
    state = folder / "dledger-n0"
    state.mkdir(parents=True)
    StateFiles(str(state)).write_term(Save(1, None, is_voter=True))
    found = [Peer(), Peer()]
    servers = [RemotingServer(peer, Limits()) for peer in found]
    for server, address in zip(servers, (members["n1"], members["n2"]), strict=True):
        await server.start(bound_port(*parse_address(address)))
    driver = Driver(
        MemberGroup(GROUP, "n0", members), str(folder), SEGMENT, float("inf"),
        answer=lambda *_: None, timing=Timing(heartbeat=500, leaks=8, push_wait=60_000),
    )  # fmt: skip
    try:
        member = driver.member
        await until(lambda: member.role is MemberRole.LEADER and member.commit == member.ledger.end)
        begin, position = member.ledger.end, driver.log.end
        for peer in found:
            peer.begin = begin
        text = record("some")
        for size in sizes:
            driver.propose(member.term, position, [text] * size)
            position += size * (48 + len(text))
        last = begin + sum(sizes)
        await until(lambda: member.commit == last and all(peer.end == last for peer in found))
    finally:
        await driver.close()
        for server in servers:
            await server.close()
    return found


def test_what_is_proposed_together_is_one_push_to_each_peer(tmp_path: Path) -> None:
    for peer in asyncio.run(pushed(tmp_path, 30, 1, 9)):
        assert peer.pushes == [(1, 40)]


def test_a_push_is_encoded_once_for_all_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def noted(entries: Sequence[LedgerEntry]) -> msgspec.Raw:
        counts.append(len(entries))
        return encoded_entries(entries)

    monkeypatch.setattr(peers, "encoded_entries", noted)
    for peer in asyncio.run(pushed(tmp_path, 30)):
        assert peer.pushes == [(1, 30)]
    assert counts.count(30) == 1


def test_a_push_has_no_more_bytes_than_it_may(tmp_path: Path) -> None:
    most = (256 << 10) // (48 + len(record("some")))
    for peer in asyncio.run(pushed(tmp_path, 3000)):
        assert [first for first, _ in peer.pushes] == [1, *(to + 1 for _, to in peer.pushes[:-1])]
        assert peer.pushes[-1][1] == 3000
        assert all(to - first < most for first, to in peer.pushes)
        assert len(peer.pushes) <= 6
