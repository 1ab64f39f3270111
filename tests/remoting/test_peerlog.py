"""Log lines about other ends are bounded, and none is lost without a count."""

from __future__ import annotations

import logging

import pytest

from rmqstore_spark.remoting.peerlog import PeerLog
from tests.remoting.talking import Peer, TestService, listening, run, until


class _Log:
    """A log with a clock that is set by hand."""

    def __init__(self, most: int = 1) -> None:
        self.now = 0.0
        self._log = PeerLog(logging.getLogger("peers"), most, lambda: self.now)

    def tell(self, peer: str, text: str = "It is wrong: %d.") -> None:
        self._log.warning(peer, text, 7)


def test_a_host_and_cause_has_one_line_a_minute_and_the_next_has_the_count(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = _Log()
    for port in range(5):
        log.tell(f"10.0.0.1:{port}")
    log.tell("10.0.0.2:1")
    log.tell("10.0.0.1:1", "It is slow: %d.")
    log.now = 61.0
    log.tell("10.0.0.1:9")
    log.now = 122.0
    log.tell("10.0.0.1:9")
    assert caplog.messages == [
        "It is wrong: 7.",
        "It is wrong: 7.",
        "It is slow: 7.",
        "It is wrong: 7. 4 lines like this one were left out before it.",
        "It is wrong: 7.",
    ]


def test_more_lines_a_minute_may_be_allowed(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log(3)
    for _ in range(10):
        log.tell("10.0.0.1:1")
    assert len(caplog.messages) == 3


def test_many_hosts_share_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    log = _Log()
    for number in range(5000):
        log.tell(f"10.0.{number >> 8}.{number & 255}:1")
    assert len(caplog.messages) == 1025
    log.now = 61.0
    log.tell("10.1.0.0:1")
    assert len(caplog.messages) == 1026


def test_a_client_that_sends_garbage_again_and_again_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        service = TestService()
        async with listening(service) as address:
            for _ in range(10):
                peer = await Peer.connect(address)
                await peer.send(b"\xff" * 100)
                assert await peer.ended()
            await until(lambda: service.closed_count == 10)

    run(test())
    assert caplog.text.count("not RocketMQ's protocol") == 1
