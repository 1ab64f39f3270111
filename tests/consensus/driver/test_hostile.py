"""What reaches a member's port from those who keep no rule: it stays small, and keeps its log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.consensus.driver.proposals import placed, term_record
from rmqstore_spark.consensus.driver.wire import DLedgerRequest, Status, request_body
from rmqstore_spark.consensus.messages import (
    LeaderHeartbeat,
    LedgerEntry,
    Push,
    PushType,
    Request,
    Vote,
)
from rmqstore_spark.layout.dledger import ENTRY_HEADER_SIZE
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.consensus.driver.members import (
    GROUP,
    MOST_GROWTH,
    GroupClient,
    MemberProcess,
    addresses,
    bodies,
    connected,
    logs_until,
    peak,
    record,
)
from tests.fuzz.seeds import mutated
from tests.support.processes.plainclient import end_sending
from tests.support.waiting import eventually

FAST = {"dLegerHeartbeatInterval": 200}
REQUESTS, BURST = 1500, 100


@pytest.fixture
def members() -> dict[str, str]:
    return addresses(3)


@pytest.fixture
def group(tmp_path: Path, members: dict[str, str]) -> Iterator[dict[str, MemberProcess]]:
    with ExitStack() as running:
        yield {
            me: running.enter_context(MemberProcess(tmp_path, me, members, **FAST))
            for me in members
        }


@pytest.mark.threat("Members of a group")
def test_frames_of_gigabytes_take_no_memory(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    client = GroupClient(members)
    client.append(record("one"))
    before = peak(group["n0"])
    for size in (0x7FFFFFFF, 0xFFFFFFFF, (8 << 20) + 1, 0, 3):
        with connected(members["n0"]) as connection:
            connection.sendall(size.to_bytes(4, "big") + (size & 0xFFFFFF).to_bytes(4, "big"))
            assert connection.recv(1) == b""  # it is closed
    with ExitStack() as held:  # of the largest size that is allowed, and none of them ends
        for _ in range(64):
            connection = held.enter_context(connected(members["n0"]))
            connection.setblocking(False)
            head = (8 << 20).to_bytes(4, "big") + (40).to_bytes(4, "big") + b'{"code":51004}'
            connection.send(head.ljust(64 << 10))
        last = client.append(record("two", 1))[0]
        eventually(lambda: all(member.committed >= last for member in group.values()), 60)
        assert peak(group["n0"]) - before < MOST_GROWTH


@pytest.mark.threat("Members of a group")
def test_a_push_of_millions_of_entries_takes_no_memory(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    """Two bytes of JSON are an entry, which takes 150 of memory: such a push took 419 MB."""
    client = GroupClient(members)
    client.append(record("one"))
    push = f'{{"group":"{GROUP}","remoteId":"n0","localId":"n1","type":"APPEND","batchEntry":['
    count = ((8 << 20) - 1000) // 3
    before = peak(group["n0"])
    with connected(members["n0"]) as connection:
        connection.settimeout(60)
        body = push.encode() + b"{}," * count + b"{}]}"
        connection.sendall(encode_frame(Command(int(DLedgerRequest.PUSH), body=body)))
        assert f'"code":{Status.UNEXPECTED_ARGUMENT}'.encode() in connection.recv(1 << 16)
    assert peak(group["n0"]) - before < MOST_GROWTH
    assert "more entries than can have a record" in group["n0"].output


def requests(given: random.Random, first: bytes) -> Iterator[tuple[int, bytes]]:
    """What the other members of a group could say to n0, with some bytes changed."""
    size = ENTRY_HEADER_SIZE + len(first)
    far = 1 << 40
    ends = (-1, 0, 5, far)
    while True:
        term, peer = (
            given.choice((0, 1, 5, 1000, (1 << 62) - 1)),
            given.choice(("n1", "n2", "n0", "n9")),
        )
        index, position = given.choice((0, 1, 7, far)), given.choice((0, size, 1 << 20, far))
        body = placed(given.choice((term_record(term, peer, 1), first)), position + 48)
        if given.randrange(3) == 0:
            body = given.randbytes(given.choice((1, 8, 200)))  # no record
        entry = LedgerEntry(index, term, position, 48 + len(body), body)
        kind, commit = given.choice(list(PushType)), given.choice(ends)
        if kind is PushType.TRUNCATE and commit >= index > 5:
            continue  # who claims to have committed so much can have a log begin again
        entries = () if kind is PushType.COMMIT else (entry,) * given.choice((1, 1, 2))
        begin = given.choice((-1, 0, index))
        said = given.choice(
            (
                Vote(term, peer, given.choice(ends), given.choice((-1, 0, term, far))),
                LeaderHeartbeat(term, peer),
                Push(kind, term, peer, index, index, commit, begin, entries),
                Push(kind, term, peer, index, index, commit, begin, entries),
            )
        )
        code, text = request_body(said, GROUP, peer, "n0")
        if given.randrange(2):
            text = mutated(text, given)
        if given.randrange(20) == 0:
            code = given.choice(list(DLedgerRequest))
        yield int(code), text


def tell(member: MemberProcess, what: list[tuple[int, bytes]]) -> None:
    """Send requests to a member; start it again if it stops, as it does before it loses entries."""
    try:
        with connected(member.address) as connection:
            before = peak(member)
            connection.settimeout(30)
            for number, (code, body) in enumerate(what):
                connection.sendall(encode_frame(Command(code, body=body, opaque=number)))
            end_sending(connection)
            while connection.recv(1 << 16):
                pass
            assert peak(member) - before < MOST_GROWTH
    except ConnectionError:
        assert member.process.wait(30) != 0
    if member.process.poll() is not None:
        assert "which is committed here" in member.output.splitlines()[-1]
        begun = member.output.count("rmqstore: member")
        member.start()
        eventually(lambda: member.output.count("rmqstore: member") > begun, 60)


def append_all(
    client: GroupClient, group: dict[str, MemberProcess], first: int, count: int
) -> list[bytes]:
    """Append messages that all members have committed; returns all that n0 has committed then."""
    numbers = range(first, first + count)
    last = client.append(*(record(f"message {number}", number) for number in numbers))[-1]
    eventually(lambda: all(member.committed >= last for member in group.values()), 60)
    return bodies(group["n0"].data)[: last + 1]


@pytest.mark.threat("Members of a group")
def test_what_is_committed_stays_whatever_is_said(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    """The other two are away, so nobody contradicts who claims to lead."""
    client = GroupClient(members)
    kept = append_all(client, group, 0, 20)
    for me in ("n1", "n2"):
        group[me].stop()
    given = random.Random("lies")
    said = requests(given, record("message 0"))
    for _ in range(REQUESTS // BURST):
        tell(group["n0"], [next(said) for _ in range(BURST)])
        assert bodies(group["n0"].data)[: len(kept)] == kept
    group["n0"].kill()
    for member in group.values():
        member.start()
    after = append_all(client, group, 20, 1)
    assert len(logs_until(group, len(after) - 1)) == 1
    assert after[: len(kept)] == kept


@pytest.mark.threat("Members of a group")
def test_numbers_that_leave_no_room_change_nothing(
    group: dict[str, MemberProcess], members: dict[str, str]
) -> None:
    client = GroupClient(members)
    kept = append_all(client, group, 0, 20)
    term = max(member.term for member in group.values()) + 3
    most, segment = (1 << 63) - 1, 1 << 20

    def truncating(index: int, position: int, of: int, commit: int) -> Push:
        body = placed(record("false"), min(position + 48, most - 100))
        entry = LedgerEntry(index, of, position, 48 + len(body), body)
        return Push(PushType.TRUNCATE, term, "n1", index, index, commit, index, (entry,))

    said: list[Request] = [
        LeaderHeartbeat((1 << 62) - 1, "n1"),
        Vote((1 << 62) - 1, "n1", 1 << 40, 1 << 40),
        truncating(1000, 3 * segment, term, -1),  # it has committed nothing of that
        truncating(1000, 3 * segment, term + 1000, 1000),
        truncating(most, 3 * segment, term, most),
        truncating(1 << 58, 3 * segment, term, 1 << 58),
        truncating(1000, most - 300, term, 1000),
    ]
    for request in said:
        code, body = request_body(request, GROUP, "n1", "n0")
        tell(group["n0"], [(int(code), body)])
    client.leader()  # elected in a later term, as one was claimed
    assert append_all(client, group, 20, 1)[: len(kept)] == kept
    for member in group.values():
        assert member.term < 1000
        assert "Traceback" not in member.output


@pytest.mark.parametrize("term", ["0", "9999999999999999999"])
def test_a_term_that_cannot_be_is_refused_at_the_start(tmp_path: Path, term: str) -> None:
    (address,) = addresses(1).values()
    with MemberProcess(tmp_path, "n0", {"n0": address}, **FAST) as member:
        GroupClient({"n0": address}).append(record("one"))
        member.kill()
        member.start()
        GroupClient({"n0": address}).append(record("two", 1))  # of a later term
        member.stop()
        path = member.store / "dledger-n0" / "currterm"
        path.write_text(f"voteLeader=\ncurrTerm={term}\n")
        member.start()
        assert member.process.wait(60) != 0
        assert "Traceback" not in member.output
        assert str(path) in member.output
        assert "Move" in member.output
