"""A DLedger group of store processes, against one of RocketMQ's brokers, one after the other.

Each is alone on the machine: members of RocketMQ that have nothing to do poll, and would take CPU
from ours. Members of ours flush before they acknowledge; RocketMQ's do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.clients.load import Load, Sent
from benchmarks.clients.rounds import ROUNDS, middle
from benchmarks.report.figures import Figure, met
from rmqstore_spark.errors import RemotingError, ServiceError
from tests.broker.broker import ask, message, route
from tests.consensus.driver.members import addresses, as_peers
from tests.engine.group.stores import StoreProcess
from tests.rocketmq.processes import Broker, NameServer, RocketMq
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

__all__ = ["group_figures"]

_SECTION: Final = "A DLedger group of three on this machine"
_LOADS: Final = ((100, 16), (100, 64), (1024, 16), (1024, 64))
"""Bytes of a body, and threads that send."""
_WARM_UP_S: Final = 30.0
"""A group of RocketMQ sends four times as many a second after 25 s as in the first ones."""
_QUEUES: Final = 8
_OURS: Final = "sends-to-ours"
_THEIRS: Final = "sends-to-theirs"
"""The topics of the groups."""
_PATIENCE: Final = 120.0
_FILES: Final = {
    "mappedFileSizeCommitLog": 1 << 28,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "maxHashSlotNum": 500_000,
    "maxIndexNum": 2_000_000,
}
_JAVA: Final = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
_FAST: Final = 300
_FAST_AIM_S: Final = 2.0


class _GroupFigures(NamedTuple):
    """What was measured of a group.

    Attributes:
        sent: what came out of sending, by size and threads; the same again and again.
        outage: seconds from the kill of its leader to the next message that is acknowledged.
    """

    sent: Mapping[tuple[int, int], Sequence[Sent]]
    outage: float


class _Member(NamedTuple):
    """A member: where it serves clients, and how to kill it."""

    address: str
    kill: Callable[[], None]


def group_figures(rocketmq: RocketMq, folder: Path) -> Iterator[Figure]:
    """Send by Java clients, then kill each leader and measure how long nobody takes a message."""
    with NameServer(rocketmq) as name_server, ExitStack() as cleanup:
        load = cleanup.enter_context(Load(rocketmq, name_server.address))
        with ExitStack() as group:
            theirs = _measured(load, name_server.address, _THEIRS, _theirs(
                group, rocketmq, folder / "theirs", name_server.address
            ))  # fmt: skip
        with ExitStack() as group:
            ours = _measured(load, name_server.address, _OURS, _ours(
                group, folder / "ours", name_server.address
            ))  # fmt: skip
    with ExitStack() as cleanup:
        fast = _outage("orders", _ours(cleanup, folder / "fast", "", dLegerHeartbeatInterval=_FAST))
    for size, threads in _LOADS:
        yield _sent(size, threads, ours.sent[size, threads], theirs.sent[size, threads])
    yield _outage_figure("as RocketMQ's intervals are", ours.outage, theirs.outage, None)
    yield _outage_figure(f"dLegerHeartbeatInterval={_FAST}", fast, theirs.outage, _FAST_AIM_S)


def _measured(
    load: Load, name_server: str, topic: str, members: Sequence[_Member]
) -> _GroupFigures:
    """Measure a group, and kill its leader."""
    _create_topic(load, name_server, topic, members)
    load.warm_up(topic, _WARM_UP_S)
    sent = {
        (size, threads): [load.send(topic, threads, size) for _ in range(ROUNDS)]
        for size, threads in _LOADS
    }
    return _GroupFigures(sent, _outage(topic, members))


def _ours(cleanup: ExitStack, folder: Path, name_server: str, **settings: Any) -> Sequence[_Member]:
    folder.mkdir()
    members = addresses(3)
    given = {**_FILES, "brokerName": "ours", "namesrvAddr": name_server, **settings}
    stores = [StoreProcess(folder, me, members, **given) for me in members]
    for store in stores:
        cleanup.push(store.__exit__)
    return [_Member(store.broker, store.kill) for store in stores]


def _theirs(
    cleanup: ExitStack, rocketmq: RocketMq, folder: Path, name_server: str
) -> Sequence[_Member]:
    folder.mkdir()
    members = addresses(3)
    made = []
    for me in members:
        port = free_port(around=(-2, 1))
        broker = Broker(
            rocketmq, name_server, port, folder / me, _JAVA, **_FILES, brokerName="theirs",
            enableDLegerCommitLog="true", dLegerGroup="theirs", dLegerPeers=as_peers(members),
            dLegerSelfId=me,
        )  # fmt: skip
        cleanup.push(broker.__exit__)
        made.append(_Member(f"127.0.0.1:{port}", broker.kill))
    return made


def _create_topic(load: Load, name_server: str, topic: str, members: Sequence[_Member]) -> None:
    leader = eventually(lambda: _taker(topic, members), _PATIENCE)
    load.create_topic(leader.address, topic, _QUEUES)
    eventually(lambda: route(name_server, topic), _PATIENCE)


def _taker(topic: str, members: Sequence[_Member]) -> _Member | None:
    """Return the member that takes a message, if there is one."""
    for member in members:
        try:
            (answer,) = ask(member.address, message(b"x", topic))
        except (ServiceError, RemotingError):
            continue
        if answer.code == 0:
            return member
    return None


def _sent(size: int, threads: int, ours: Sequence[Sent], theirs: Sequence[Sent]) -> Figure:
    mine, other = (middle(sent.rate for sent in sends) for sends in (ours, theirs))
    failed = {who: sum(s.failed for s in sends) for who, sends in (("ours", ours), ("", theirs))}
    return Figure(
        _SECTION, f"{size} B, {threads} threads, single sends", f"{mine:,.0f} msg/s",
        "a group of RocketMQ 4.9.8", f"{other:,.0f} msg/s", f"{mine / other:.2f}", "1",
        met(mine >= other), _failures(failed),
    )  # fmt: skip


def _failures(failed: Mapping[str, int]) -> str:
    return "; ".join(f"{n} sends to {who or 'RocketMQ'} failed" for who, n in failed.items() if n)


def _outage(topic: str, members: Sequence[_Member]) -> float:
    """Kill the leader; return the seconds until another member has acknowledged a message."""
    leader = eventually(lambda: _taker(topic, members), _PATIENCE)
    others = [member for member in members if member is not leader]
    leader.kill()
    began = time.monotonic()
    eventually(lambda: _taker(topic, others), _PATIENCE)
    return time.monotonic() - began


def _outage_figure(how: str, mine: float, other: float, aim: float | None) -> Figure:
    return Figure(
        _SECTION, f"from kill -9 of the leader to the next acknowledged send, {how}",
        f"{mine:.1f} s", "a group of RocketMQ 4.9.8", f"{other:.1f} s", f"{mine / other:.2f}",
        "at most 1" if aim is None else f"at most {aim:g} s",
        met(mine <= (other if aim is None else aim)),
    )  # fmt: skip
