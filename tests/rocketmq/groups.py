"""Groups of three in which members are ours and brokers of RocketMQ."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from rmqstore_spark.consensus.driver.wire import DLedgerRequest
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import ask, message, number, pull, records_in
from tests.consensus.driver.members import (
    GROUP,
    GroupClient,
    MemberProcess,
    addresses,
    as_peers,
)
from tests.engine.group.stores import StoreProcess
from tests.rocketmq.processes import SIZES, Broker, RocketMq
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

__all__ = ["BEGINS_AS_SLAVE", "PATIENCE", "Group"]

PATIENCE = 120.0
_ELECTION = 5.0
_BROKER = "broker-a"
"""Not the name of a topic: RocketMQ makes a topic of that name, with one queue."""
BEGINS_AS_SLAVE = {"brokerRole": "SLAVE", "brokerId": 1}
"""Keys of a broker that takes no messages before it knows the next offsets of its queues."""


class Group:
    """A group of three. Those that are not `ours` are brokers of RocketMQ.

    Args:
        rocketmq: the distribution; None if all are ours.
        name_server: where they are made known.
        folder: for their stores.
        ours: the ids of our members.
        serving: whether ours serve clients too.
        of_brokers: keys of the brokers of RocketMQ.
        settings: keys of all that serve clients.

    Attributes:
        members: ids and addresses.
        theirs: the ids of RocketMQ's.
        ports: where those that serve clients listen.
    """

    def __init__(
        self,
        rocketmq: RocketMq | None,
        name_server: str,
        folder: Path,
        ours: tuple[str, ...],
        *,
        serving: bool = False,
        of_brokers: Mapping[str, Any] = BEGINS_AS_SLAVE,
        **settings: Any,
    ) -> None:
        self._rocketmq = rocketmq
        self._name_server = name_server
        self._folder = folder
        self._settings = settings
        self._of_brokers = of_brokers
        self.members = addresses(3)
        self.theirs = tuple(me for me in self.members if me not in ours)
        self.ports = {me: free_port(around=(1,)) for me in self.theirs}
        size = SIZES["mappedFileSizeCommitLog"]
        self.ours: dict[str, MemberProcess] = {
            me: self._store(me)
            if serving
            else MemberProcess(
                folder, me, self.seen_by(me), mappedFileSizeCommitLog=size,
                preferredLeaderId=";".join(self.theirs),
            )
            for me in ours
        }  # fmt: skip
        self.brokers = {me: self._broker(me) for me in self.theirs}
        self.client = GroupClient(self.members)

    def seen_by(self, me: str) -> dict[str, str]:
        """The addresses of the members that one of them has."""
        return self.members

    def _broker(self, me: str) -> Broker:
        assert self._rocketmq is not None
        return Broker(
            self._rocketmq, self._name_server, self.ports[me], self._folder / me,
            brokerName=_BROKER, enableDLegerCommitLog="true", dLegerGroup=GROUP,
            dLegerPeers=as_peers(self.seen_by(me)), dLegerSelfId=me,
            slaveReadEnable="true",  # 5.3 refuses pulls at a slave without it
            **self._of_brokers, **self._settings,
        )  # fmt: skip

    def _store(self, me: str) -> StoreProcess:
        made = StoreProcess(
            self._folder, me, self.seen_by(me), namesrvAddr=self._name_server,
            **{"brokerName": _BROKER, "vipListenPort": -1, **SIZES, **self._settings},
        )  # fmt: skip
        self.ports[me] = int(made.broker.rpartition(":")[2])
        return made

    def kill(self, me: str) -> None:
        """Kill a member as a crash does."""
        (self.ours.get(me) or self.brokers[me]).kill()

    def signal(self, me: str, number: signal.Signals) -> None:
        """Send a member a signal."""
        (self.ours.get(me) or self.brokers[me]).process.send_signal(number)

    def start(self, me: str) -> None:
        """Start a member that was killed."""
        if me in self.ours:
            self.ours[me].start()
        else:
            self.brokers[me] = self._broker(me)

    def replace(self, me: str) -> None:
        """Stop a member of ours, and start a broker on its store."""
        self.ours.pop(me).stop()
        self.ports[me] = free_port(around=(1,))
        self.start(me)
        eventually(lambda: self.max_offset(me) > 0, PATIENCE)

    def replace_broker(self, me: str) -> None:
        """Stop a broker, and start a store process of ours on its store."""
        self.brokers.pop(me).stop()
        self.ours[me] = self._store(me)
        eventually(lambda: self.max_offset(me) > 0, PATIENCE)

    def max_offset(self, me: str, queue: int = 0) -> int:
        """Where a queue of the topic ends, as a broker says; -1 if it does not."""
        return self._offset(RequestCode.GET_MAX_OFFSET, me, queue)

    def min_offset(self, me: str, queue: int = 0) -> int:
        """Where a queue of the topic begins, as a broker says; -1 if it does not."""
        return self._offset(RequestCode.GET_MIN_OFFSET, me, queue)

    def _offset(self, code: RequestCode, me: str, queue: int) -> int:
        asked = Command(code, {"topic": "orders", "queueId": str(queue)})
        try:
            (answer,) = ask(f"127.0.0.1:{self.ports[me]}", asked)
        except ServiceError:
            return -1
        return number(answer, "offset") if answer.code == 0 else -1

    def pulled(self, me: str, end: int, queue: int = 0) -> list[bytes]:
        """The first records of a queue of the topic, as a member gives them to a consumer.

        Later ones may come at one member before they do at another: what was sent and not
        acknowledged can be committed at any time.
        """
        found: list[bytes] = []
        while len(found) < end:
            (answer,) = ask(f"127.0.0.1:{self.ports[me]}", pull(len(found), queue=queue))
            assert answer.code == 0, answer.remark
            found += records_in(answer.body)
        return found[:end]

    def leading(self, among: tuple[str, ...]) -> str:
        """Wait until one of some members leads; returns it."""
        return str(
            eventually(lambda: ((me := self.client.leader()) in among and me) or None, PATIENCE)
        )

    def hand_over(self, to: str) -> None:
        """Let a member lead. A leader that refuses, as for one that lags, is asked again."""

        def leads() -> bool:
            leader = self.client.leader()
            if leader is None or leader == to:
                return leader == to
            kept = (self._folder / leader / f"dledger-{leader}" / "currterm").read_text()
            term = int(kept.partition("currTerm=")[2].split()[0])  # RocketMQ's answers lack it
            self.client.ask(
                leader, DLedgerRequest.LEADERSHIP_TRANSFER,
                term=term, transferId=leader, transfereeId=to,
            )  # fmt: skip
            with suppress(AssertionError):  # an election takes a while, and ends if it is disturbed
                eventually(lambda: self.client.leader() == to, _ELECTION)
            return False

        eventually(leads, PATIENCE)

    def send(self, texts: list[str], queue: int = 0, properties: str = "") -> None:
        """Send messages to whichever broker leads, each until it is acknowledged."""
        for text in texts:
            eventually(lambda text=text: self.sends(text, queue, properties), PATIENCE)

    def sends(self, text: str, queue: int = 0, properties: str = "") -> bool:
        """Send a message to whichever broker leads; return whether it was acknowledged."""
        leader = self.client.leader()
        if leader not in self.ports:
            return False
        try:
            asked = message(text.encode(), queue=queue, i=properties)
            (answer,) = ask(f"127.0.0.1:{self.ports[leader]}", asked)
        except ServiceError:
            return False
        return answer.code == 0

    def entries(self, me: str, index: int = 0, position: int = 0) -> list[bytes]:
        """The entries of a member's log, with their headers.

        Args:
            me: the member.
            index: the first that is wanted.
            position: where that begins.
        """
        folder = self._folder / me / f"dledger-{me}" / "data"
        size = SIZES["mappedFileSizeCommitLog"]
        first = position // size
        paths = sorted(folder.iterdir()) if folder.exists() else []
        data = b"".join(path.read_bytes() for path in paths[first:])
        found: list[bytes] = []
        at = position - first * size
        while at + 8 <= len(data):
            magic = int.from_bytes(data[at : at + 4], "big", signed=True)
            size = int.from_bytes(data[at + 4 : at + 8], "big")
            if magic == 0:
                break
            if magic == 1:
                if int.from_bytes(data[at + 8 : at + 16], "big") != index + len(found):
                    break  # what RocketMQ has cut stays in its file
                found.append(data[at : at + size])
            at += size
        return found

    def have_all(self, count: int) -> list[bytes]:
        """Wait until all members have the same entries, `count` or more; returns them."""

        def same() -> list[bytes] | None:
            logs = [self.entries(me) for me in self.members]
            is_same = logs[0] == logs[1] == logs[2] and len(logs[0]) >= count
            return logs[0] if is_same else None

        return list(eventually(same, PATIENCE))

    def close(self) -> None:
        """End all."""
        with ExitStack() as cleanup:
            for member in self.ours.values():
                cleanup.push(member.__exit__)
            for broker in self.brokers.values():
                cleanup.push(broker.__exit__)
