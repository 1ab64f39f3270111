"""What a peer may do on a connection: bytes of our own on a socket, against a real listener."""

from __future__ import annotations

import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.calls import EvictedError
from rmqstore_spark.server.connections.receiver import EndedError
from rmqstore_spark.wire.protocol import Code
from rmqstore_spark.wire.transport import PlainTransport
from tests.support.accounts import KEY, SECRET
from tests.support.accounts import guarded as accounts_of
from tests.support.certificates import make_certificates
from tests.support.processes.plainclient import PlainClient, connected, head_of, request
from tests.support.processes.serving import Served, block_of, eventually, served

BLOCK = block_of([b"a"]).tobytes()
MIB = 1 << 20


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", listen_socket=str(tmp_path / "run" / "s")) as found:
        yield found
        with StoreClient(found.endpoint, retries=0) as client, client.put_stream() as stream:
            assert stream.put(block_of([b"still alive"])).is_ok


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", **accounts_of(tmp_path / "accounts.yml")) as found:
        yield found


@pytest.fixture(params=["endpoint", "socket"])
def peer(here: Served, request: pytest.FixtureRequest) -> Iterator[PlainClient]:
    with PlainClient(getattr(here, request.param)) as found:
        yield found


# ---- requests and answers ----------------------------------------------------------------------


def test_requests_that_come_together_are_answered_one_after_the_other(peer: PlainClient) -> None:
    path = b'{"path":"checkpoint"}'
    peer.send(*[request(Code.INFO, path, number) for number in range(50)])
    assert [peer.answer().number for _ in range(50)] == list(range(50))


def test_a_connection_has_streams_and_actions_in_turn(peer: PlainClient) -> None:
    for _ in range(3):
        peer.begin(op="put")
        assert [peer.put(BLOCK, number) for number in range(3)] == ["PUT_OK"] * 3
        peer.send(request(Code.FINISH))  # which has no answer
        assert peer.ask(Code.STATS, b"{}").json()["state"] == "RUNNING"


@pytest.mark.parametrize("code", [Code.BLOCK, Code.FINISH, 10, 310, 0, -1, 970_019])
def test_what_does_not_belong_here_is_refused(peer: PlainClient, code: int) -> None:
    body = b"" if code == Code.FINISH else b"x"
    assert peer.ask(code, body, 9)[:2] == (9, "MESSAGE_ILLEGAL")
    assert not list(peer.answers())


@pytest.mark.parametrize("code", [Code.STATS, Code.BLOCKS, Code.READ, Code.LOGIN])
def test_a_stream_has_only_blocks(peer: PlainClient, here: Served, code: Code) -> None:
    peer.begin(op="put")
    assert peer.put(BLOCK) == "PUT_OK"
    assert peer.ask(code, b"{}").status == "MESSAGE_ILLEGAL"
    assert not list(peer.answers())
    eventually(lambda: here.server.calls_under_way == 0)


@pytest.mark.threat("Resource limits")
def test_a_body_that_is_too_large_is_refused_by_its_length(here: Served) -> None:
    """Before a byte of it is here, or has room."""
    for code, most in ((Code.STATS, 64 << 10), (Code.COMMIT, 4 << 20), (Code.LOGIN, 4 << 10)):
        with PlainClient(here.endpoint) as peer:
            peer.send(head_of(code, most + 1))
            assert "too large" in peer.answer().remark
    with PlainClient(here.endpoint) as peer:
        peer.begin(op="put")
        peer.send(head_of(Code.BLOCK, (32 << 20) + 1))
        assert "maxBlockBytes" in peer.answer().remark
    assert here.server.stats()["receivedBytes"] == 0


@pytest.mark.threat("Resource limits")
def test_a_refusal_reaches_a_client_that_still_sends(peer: PlainClient) -> None:
    """It sends much more than sockets hold, and only then looks at what came."""
    peer.begin(op="stage", stageId="0" * 32)
    bad = block_of([bytes(1000)] * 500)
    bad[8] ^= 1  # bodyCRC
    for number in range(40):
        peer.socket.sendall(request(Code.BLOCK, bad.tobytes(), number))
    first = peer.answer()
    assert (first.number, first.acknowledged) == (0, "MESSAGE_ILLEGAL")
    assert not list(peer.answers())  # the others were discarded


def test_a_client_that_begins_with_tls_or_http_is_told(peer: PlainClient) -> None:
    peer.send(b"GET / HTTP/1.1\r\nHost: store\r\n\r\n")
    assert peer.answer().status == "MESSAGE_ILLEGAL"
    assert not list(peer.answers())


# ---- strangers ---------------------------------------------------------------------------------


@pytest.mark.threat("Resource limits")
def test_a_stranger_is_refused_by_the_header_alone(guarded: Served) -> None:
    codes = [code for code in Code if code != Code.LOGIN]
    with ExitStack() as opened:
        for code in codes:
            peer = opened.enter_context(PlainClient(guarded.endpoint))
            peer.send(head_of(code, 1 << 20))
            assert peer.answer().status == "UNAUTHENTICATED"
    assert failures(guarded) == {"UNAUTHENTICATED": len(codes)}
    assert guarded.server.stats()["receivedBytes"] == 0


def failures(here: Served) -> dict[str, int]:
    counts = here.server.stats()["callFailures"]
    return {status: count for status, count in counts.items() if count}


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("sent", [b"", head_of(Code.LOGIN, 60)[:30], head_of(Code.LOGIN, 60)])
def test_a_stranger_is_left_after_a_while(
    guarded: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.connections.listener._STRANGER_SECONDS", 0.5)
    with PlainClient(guarded.endpoint, SECRET) as known:
        with PlainClient(guarded.endpoint) as stranger:
            stranger.send(sent)
            assert not list(stranger.answers())
        eventually(lambda: guarded.server.connections == 1)
        assert known.ask(Code.STATS, b"{}").json()["state"] == "RUNNING"


@pytest.mark.threat("Who may connect")
def test_a_wrong_login_ends_the_connection(guarded: Served) -> None:
    for body in (b"Bearer wrong", SECRET.encode(), bytes(32)):
        with PlainClient(guarded.endpoint) as peer:  # without a challenge
            peer.send(request(Code.LOGIN, body, extFields={"AccessKey": KEY}))
            assert peer.answer().status == "UNAUTHENTICATED"
            assert not list(peer.answers())
    for secret in ("", SECRET):  # also one that has logged in
        with PlainClient(guarded.endpoint, secret) as peer:
            assert peer.log_in("wrong").status == "UNAUTHENTICATED"
            assert not list(peer.answers())


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01"])
def test_a_handshake_that_takes_too_long_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.connections.listener._STRANGER_SECONDS", 0.3)
    made = make_certificates(tmp_path / "certificates")
    secured = {"tls_server_cert_path": made.server_cert, "tls_server_key_path": made.server_key}
    with served(tmp_path / "store", **secured) as here, connected(here.endpoint) as peer:
        peer.sendall(sent)
        with suppress(ConnectionError):
            assert not peer.recv(100)
        eventually(lambda: here.server.connections == 0)


# ---- clients that go, stall, or make way -------------------------------------------------------


def reset(peer: PlainClient) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("is_within_a_block", [False, True])
def test_a_client_that_resets_its_connection_is_no_failure(
    here: Served, caplog: pytest.LogCaptureFixture, is_within_a_block: bool
) -> None:
    caplog.set_level(logging.INFO)
    with PlainClient(here.endpoint) as peer:
        peer.begin(op="put")
        assert peer.put(BLOCK) == "PUT_OK"
        if is_within_a_block:
            peer.send(head_of(Code.BLOCK, 30 * MIB) + bytes(100_000))
            eventually(lambda: here.server.room.used)
        reset(peer)
    eventually(lambda: here.server.connections == 0)
    assert here.server.stats()["receivedBytes"] == 0
    assert not failures(here)
    assert not [record for record in caplog.records if record.name.startswith("rmqstore")]


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("place", ["endpoint", "socket"])
def test_an_idle_stream_that_makes_way_is_told(tmp_path: Path, place: str) -> None:
    way = str(tmp_path / "run" / "s")
    with (
        served(tmp_path / "store", listen_socket=way, max_streams=4) as here,
        ExitStack() as opened,
    ):
        endpoint = getattr(here, place)
        held = []
        calls = here.server._calls
        for _ in range(4):
            held.append(opened.enter_context(PlainClient(endpoint)))
            held[-1].begin(op="put")
            assert held[-1].put(BLOCK) == "PUT_OK"
            # The process waits for this one before the next begins: it is the order of idleness.
            eventually(lambda: all(call.waiting_since is not None for call in calls.all()))
        eventually(lambda: all(call.may_give_way for call in calls.all()))
        with PlainClient(endpoint) as late:
            late.begin(op="put")
            assert late.put(BLOCK) == "PUT_OK"
        (told,) = held[0].answers()
        assert told.status == "OS_PAGECACHE_BUSY"
        assert "maxStreams" in told.remark
        assert held[3].put(BLOCK, 1) == "PUT_OK"


def test_a_client_of_ours_learns_that_it_made_way(here: Served) -> None:
    """Although it finds out by sending to a connection that the process has closed."""
    with StoreClient(here.socket, retries=0) as client, client.put_stream() as stream:
        assert stream.put(block_of([b"a"])).is_ok
        (call,) = here.server._calls.all()
        call.connection.fail(EvictedError())
        eventually(lambda: here.server.connections == 0)
        with pytest.raises(RefusedError, match="maxStreams") as failure:
            stream.put(block_of([b"b"]))
        assert failure.value.status == "OS_PAGECACHE_BUSY"
        stream.close()


@pytest.mark.threat("Resource limits")
def test_a_client_that_reads_no_answers_is_ended(tmp_path: Path) -> None:
    """And not kept for the time in which a client may read the last of them."""
    with served(tmp_path / "store", stream_idle_timeout=1000) as here:
        with PlainClient(here.endpoint) as peer:
            peer.socket.setblocking(False)
            data = request(Code.STATS, b"{}") * 20_000
            with suppress(OSError):
                while data:
                    data = data[peer.socket.send(data) :]
            eventually(lambda: here.server.connections == 1)
            eventually(lambda: here.server.connections == 0)
        assert here.server.calls_under_way == 0


@pytest.mark.threat("Resource limits")
def test_a_client_that_takes_little_but_always_some_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        accepted, _ = listening.accept()
    seen: list[int] = []
    ended = threading.Event()

    def read() -> None:
        with suppress(OSError):
            while not ended.wait(0.02) and client.recv(16 << 10):
                pass

    def check(sent: int) -> None:
        seen.append(sent)
        if len(seen) == 3:
            raise EndedError

    reader = threading.Thread(target=read)
    reader.start()
    with accepted, client:
        try:
            with pytest.raises(EndedError):
                PlainTransport(accepted).send((memoryview(bytes(64 * MIB)),), check)
        finally:
            ended.set()
            reader.join()
    assert seen == sorted(seen)
    assert seen[0] > 0


@pytest.mark.threat("Resource limits")
def test_a_sender_that_others_wait_for_loses_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.connections.receiver._PACE_SECONDS", 0.2)
    with (
        served(tmp_path / "store", stream_idle_timeout=3_600_000) as here,  # else they lose it too
        ExitStack() as opened,
    ):
        for _ in range(8):  # more than there is room for
            peer = opened.enter_context(PlainClient(here.endpoint))
            peer.begin(op="put")
            peer.send(head_of(Code.BLOCK, 30 * MIB))
        eventually(lambda: here.server.room.large.is_contended)
        with StoreClient(here.endpoint) as client, client.put_stream() as stream:
            block = block_of([bytes(1000)] * 3000)  # more than 1 MiB: it needs the same room
            assert stream.put(block).is_ok


def test_a_block_without_room_is_refused_by_its_own_number(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends blocks again on a new connection continues to count."""
    monkeypatch.setattr("rmqstore_spark.server.puts._ROOM_SECONDS", 0.05)
    budget = here.server.room.small
    budget.take(1, 1)
    with PlainClient(here.endpoint) as peer:
        peer.begin(op="put")
        monkeypatch.setattr(budget, "_most", 0)
        peer.send(request(Code.BLOCK, bytes(100_000), 57))
        found = peer.answer()
        assert (found.number, found.acknowledged) == (57, "OS_PAGECACHE_BUSY")
    monkeypatch.undo()
    budget.give_back(1)


@pytest.mark.threat("Resource limits")
def test_requests_that_are_announced_hold_up_no_block(here: Served) -> None:
    with ExitStack() as opened:
        for _ in range(8):
            peer = opened.enter_context(PlainClient(here.endpoint))
            peer.send(head_of(Code.COMMIT, 4 * MIB))
        eventually(lambda: here.server.stats()["receivedBytes"] == 16 * MIB)
        assert here.server.room.used == 0
        with PlainClient(here.endpoint) as client:
            client.begin(op="put")
            assert client.put(block_of([bytes(1000)] * 3000).tobytes()) == "PUT_OK"


# ---- anything ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fuzzed") / "store") as found:
        yield found


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["put", "stage", "0" * 32]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["op", "stageId", "path", "topics"]), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b'{"op":"put"}', b"{}", BLOCK]),
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "flag": st.integers(-3, 3),
        "opaque": st.integers(-(1 << 33), 1 << 33),
        "extFields": st.dictionaries(st.sampled_from(["store", "status"]), st.text(max_size=5)),
        "remark": st.text(max_size=5),
    },
)
FRAMES = st.builds(
    lambda code, body, fields: request(code, body, **fields),
    st.sampled_from(list(Code)) | st.integers(-5, 400),
    BODIES,
    FIELDS,
)


@pytest.mark.threat("Resource limits")
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(FRAMES | st.binary(max_size=40), max_size=8))
def test_any_frames_end_their_connection_and_no_other(fuzzed: Served, frames: list[bytes]) -> None:
    with PlainClient(fuzzed.endpoint) as peer:
        peer.send(*frames)
        with suppress(OSError):
            peer.socket.shutdown(socket.SHUT_WR)
        for answer in peer.answers():
            assert answer.status != "SYSTEM_ERROR", (answer, frames)
    with PlainClient(fuzzed.endpoint) as peer:
        assert not peer.ask(Code.STATS, b"{}").status
    eventually(lambda: fuzzed.server.calls_under_way == 0)
    assert fuzzed.server.stats()["receivedBytes"] == 0
