"""What `follow` says of how far it is behind its master, with a clock of the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqstore_spark.cli.commands.follow import _line
from rmqstore_spark.ha.follower_progress import Progress


class Times:
    """The store's clock, the newest record held (both milliseconds), and seconds that pass."""

    now = 1_000_000
    newest = 1_000_000
    passed = 100.0

    def monotonic(self) -> float:
        return self.passed


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    made = Times()
    monkeypatch.setattr("rmqstore_spark.ha.follower_progress.time", made)
    return made


def test_the_bytes_and_seconds_behind_the_rate_and_the_time_left(times: Times) -> None:
    progress = Progress(lambda: times.now, lambda: 5_001_000, lambda: times.newest)
    assert _line(progress.standing()) == "connecting, log up to 5,001,000"
    progress.connected()
    assert _line(progress.standing()) == "checking, log up to 5,001,000"
    progress.following()
    progress.took(1000)
    times.now += 70_000
    # Nothing is known of a rate yet, and so not when it will be done.
    assert progress.standing().seconds_left is None
    assert _line(progress.standing()).endswith("0.0 MB/s, 70 s and about 0 MB behind")

    # In a second, what the master stored in 10 s: 500,000 bytes a second. 60 s of it are missing.
    times.passed += 1
    times.newest += 10_000
    progress.took(5_000_000)
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes) == (60.0, 30_000_000)
    assert (found.bytes_per_second, found.seconds_left) == (5_000_000.0, 6.0)
    assert (found.received, found.is_complete) == (5_001_000, False)
    assert replace(found, behind_bytes=0).seconds_left is None, "something is missing"
    assert _line(found) == (
        "log up to 5,001,000, 5.0 MB/s, 60 s and about 30 MB behind, about 6 s to go"
    )
    assert found.stats() == {
        "replicationState": "FOLLOWING", "replicationComplete": 0,
        "replicationLagBytes": 30_000_000, "replicationLagSeconds": 60.0,
        "replicationReceivedBytes": 5_001_000, "replicationConnects": 1, "replicationError": "",
    }  # fmt: skip

    progress.waits()
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes, found.seconds_left) == (0.0, 0, 0.0)
    assert _line(found) == "log up to 5,001,000, 5.0 MB/s, nothing missing"

    # What arrives now was stored after everything was there, however old the newest record is.
    times.now += 2000
    progress.arrived()
    assert progress.standing().behind_seconds == 2.0

    # Nothing comes any more: then there is no end in sight.
    times.passed += 60
    progress.took(0)
    times.passed += 60
    found = progress.standing()
    assert (found.bytes_per_second, found.seconds_left) == (0.0, None)


def test_a_connection_that_is_lost_may_have_missed_something(times: Times) -> None:
    progress = Progress(lambda: times.now, lambda: 0, lambda: times.newest)
    progress.connected()
    progress.waits()  # it has compared nothing yet
    assert not progress.standing().is_complete
    progress.following()
    progress.waits()
    assert progress.standing().is_complete
    times.now += 3000
    progress.connecting("it broke")
    found = progress.standing()
    assert (found.is_complete, found.behind_seconds, found.error) == (False, 3.0, "it broke")
    progress.stopped("a fork")
    assert (progress.standing().state, progress.standing().error) == ("STOPPED", "a fork")
