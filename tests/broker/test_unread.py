"""Consumers that ask for much and read nothing: what is done for them, and for others."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from rmqstore_spark.broker.core.consumers.pulls import Pull, Pulls
from rmqstore_spark.engine.queue_reader import Reading
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.broker.broker import Served, ask, broker, message, pull
from tests.support.waiting import eventually

BODY = bytes(900_000)
DEAF = 6
EACH = 400
FEW = 30
"""Answers of 900 KB that fit into the buffers of a connection that nobody reads, and more."""


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Pull]:
    """The requests for which messages were found."""
    found: list[Pull] = []
    read = Pulls.read

    def noting(
        self: Pulls, pull: Pull, *, may_wait: bool = True, most_bytes: int | None = None
    ) -> Reading:
        reading = read(self, pull, may_wait=may_wait, most_bytes=most_bytes)
        if reading.count:
            found.append(pull)
        return reading

    monkeypatch.setattr(Pulls, "read", noting)
    return found


@contextmanager
def deaf(served: Served, *requests: Command) -> Iterator[list[socket.socket]]:
    """Connections that send requests and never read."""
    host, port = served.address.split(":")
    with ExitStack() as opened:
        found = []
        for _ in range(DEAF):
            one = opened.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            one.connect((host, int(port)))
            one.sendall(b"".join(map(encode_frame, requests)))
            found.append(one)
        yield found


@contextmanager
def with_a_message(path: Path) -> Iterator[Served]:
    with broker(path) as served:
        (answer,) = ask(served.address, message(BODY))
        assert answer.code == 0
        served.store.flush()
        (answer,) = ask(served.address, pull(0))  # the group is there
        assert answer.code == 0
        yield served


def other_pulls(served: Served) -> None:
    for answer in ask(served.address, *[pull(0)] * 5):
        assert len(answer.body) > len(BODY)


def test_pulls_that_nobody_reads_are_not_done(tmp_path: Path, readings: list[Pull]) -> None:
    with with_a_message(tmp_path / "store") as served, deaf(served, *[pull(0)] * EACH):
        eventually(lambda: len(readings) >= DEAF)
        other_pulls(served)
        assert len(readings) < DEAF * FEW


def test_nothing_is_done_for_those_who_have_gone(tmp_path: Path, readings: list[Pull]) -> None:
    with with_a_message(tmp_path / "store") as served:
        with deaf(served, *[pull(0)] * EACH):
            eventually(lambda: len(readings) >= DEAF)
        other_pulls(served)
        done = len(readings)
        assert done < DEAF * FEW
        other_pulls(served)
        assert len(readings) == done + 5


def test_pulls_that_wait_are_not_all_answered_at_once(tmp_path: Path, readings: list[Pull]) -> None:
    waiting = pull(1, sysFlag="6", suspendTimeoutMillis="30000")
    with with_a_message(tmp_path / "store") as served, deaf(served, *[waiting] * 60):
        ask(served.address, *[message(b"", "another")] * 20)  # all requests before are handled
        (answer,) = ask(served.address, message(BODY))
        assert answer.code == 0
        eventually(lambda: len(readings) > DEAF)
        other_pulls(served)
        assert len(readings) < DEAF * FEW


def test_those_who_read_get_all_of_many_that_are_asked_at_once(tmp_path: Path) -> None:
    with with_a_message(tmp_path / "store") as served:
        host, port = served.address.split(":")
        with socket.create_connection((host, int(port))) as reading:
            reading.settimeout(30)
            requests = [pull(0) for _ in range(40)]
            for opaque, request in enumerate(requests):
                request.opaque = opaque
            reading.sendall(b"".join(map(encode_frame, requests)))
            numbers = set()
            stream = reading.makefile("rb")
            for _ in requests:
                length = int.from_bytes(stream.read(4), "big")
                frame = stream.read(length)
                header = frame[4 : 4 + int.from_bytes(frame[1:4], "big")]
                numbers.add(header)
                assert length > len(BODY)
            assert len(numbers) == 40


@pytest.mark.parametrize("code", [RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE])
def test_searches_whose_answers_nobody_reads_keep_no_other_out(
    tmp_path: Path, code: RequestCode
) -> None:
    fields = {"offset": "0", "topic": "orders", "key": "k", "maxNum": "64",
              "beginTimestamp": "0", "endTimestamp": str(1 << 62)}  # fmt: skip
    search = Command(code, fields)
    with broker(tmp_path / "store") as served:
        ask(served.address, message(BODY, i="KEYS\x01k"))
        served.store.flush()
        with deaf(served, *[search] * EACH):
            for _ in range(5):
                (answer,) = ask(served.address, search)
                assert len(answer.body) > len(BODY)
