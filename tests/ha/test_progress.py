"""What `follow` says of how far it is behind its master, with a clock of the test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rmqstore_spark.cli.commands.follow import _line, _Watch
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
    # An idle master may have nothing newer. Nothing is known of a rate either.
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes, found.seconds_left) == (None, None, None)
    assert _line(found).endswith("0.0 MB/s, how far behind is not known yet")
    # A burst that the master stored within a few milliseconds tells nothing of the rest.
    times.passed += 0.5
    times.newest += 3
    progress.took(3_000_000)
    assert progress.standing().behind_bytes is None
    assert progress.standing().stats()["replicationLagBytes"] is None

    # In two seconds, what the master stored in 10 s: 500,000 bytes a second. 60 s are missing.
    times.passed += 1.5
    times.newest += 9_997
    progress.took(2_000_000)
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes) == (60.0, 30_000_000)
    assert (found.bytes_per_second, found.seconds_left) == (2_500_000.0, 12.0)
    assert (found.received, found.is_complete) == (5_001_000, False)
    assert replace(found, behind_bytes=0).seconds_left is None, "something is missing"
    assert _line(found) == (
        "log up to 5,001,000, 2.5 MB/s, 60 s and about 30 MB behind, about 12 s to go"
    )
    assert found.stats() == {
        "replicationState": "FOLLOWING", "replicationComplete": 0,
        "replicationLagBytes": 30_000_000, "replicationLagSeconds": 60.0,
        "replicationReceivedBytes": 5_001_000, "replicationConnects": 1, "replicationError": "",
    }  # fmt: skip

    progress.waits()
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes, found.seconds_left) == (0.0, 0, 0.0)
    assert _line(found) == "log up to 5,001,000, 2.5 MB/s, nothing missing"

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
    progress.connecting("it broke", answers=False)
    found = progress.standing()
    assert (found.is_complete, found.behind_seconds, found.error) == (False, 3.0, "it broke")
    progress.stopped("a fork")
    assert (progress.standing().state, progress.standing().error) == ("STOPPED", "a fork")


def test_what_is_not_known_is_not_told(times: Times) -> None:
    times.newest = 0
    progress = Progress(lambda: times.now, lambda: 0, lambda: times.newest)
    progress.connected()
    progress.following()
    found = progress.standing()
    assert (found.behind_seconds, found.behind_bytes, found.is_complete) == (None, None, False)
    assert _line(found) == "log up to 0, 0.0 MB/s, how far behind is not known yet"


def test_what_the_masters_broker_says_counts_before_an_estimate(times: Times) -> None:
    held = [0]
    progress = Progress(lambda: times.now, lambda: held[0], lambda: times.newest)
    progress.connected()
    progress.following()
    progress.master_ends(9_000_000)
    assert progress.standing().behind_bytes == 9_000_000
    held[0] = 2_000_000
    progress.took(2_000_000)
    assert progress.standing().behind_bytes == 7_000_000
    held[0] = 9_500_000  # more than the broker knew of
    assert progress.standing().behind_bytes is None
    progress.waits()
    assert progress.standing().behind_bytes == 0


def test_it_says_which_master_it_waits_for(
    times: Times, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = Progress(lambda: times.now, lambda: 5_001_000, lambda: times.newest)

    class Follower:
        master = "broker-1:10912"
        standing = staticmethod(progress.standing)

    waiting = ", waiting for the master broker-1:10912"
    assert _Watch(True).continues(Follower())  # type: ignore[arg-type]  # all that it asks
    assert waiting in capsys.readouterr().err
    progress.connecting("Connection refused.", answers=False)
    assert _Watch(True).continues(Follower())  # type: ignore[arg-type]  # as above
    assert f"{waiting}: Connection refused\n" in capsys.readouterr().err
    progress.connected()
    assert _Watch(True).continues(Follower())  # type: ignore[arg-type]  # as above
    assert waiting in capsys.readouterr().err
    progress.following()
    assert _Watch(True).continues(Follower())  # type: ignore[arg-type]  # as above
    assert waiting not in capsys.readouterr().err
