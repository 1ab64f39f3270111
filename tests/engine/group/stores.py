"""Processes of stores in one group: `rmqstore serve`, with RocketMQ's keys of DLedger."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RmqStoreError, ServiceError
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.verify import verify
from tests.broker.broker import ask, message, number, pull, records_in
from tests.consensus.driver.members import MemberProcess, addresses, bodies
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

FAST = {"dLegerHeartbeatInterval": 400}
PATIENCE = 60.0


class StoreProcess(MemberProcess):
    """`rmqstore serve`, as a member of a group.

    Args:
        folder: has the store and the log of the process.
        me: which member it is.
        members: all of them.
        settings: keys.
    """

    verb = "serve"

    def __init__(self, folder: Path, me: str, members: dict[str, str], **settings: Any) -> None:
        self.broker = f"127.0.0.1:{free_port()}"
        self.endpoint = f"rmq://{self.broker}"
        super().__init__(
            folder, me, members,
            enableDLegerCommitLog="true", dLegerBindAddress="127.0.0.1",
            **{
                "listenPort": self.broker.rpartition(":")[2],
                "brokerName": "orders", "vipListenPort": 0, "clients": "all",
                "maxHashSlotNum": 1000, "maxIndexNum": 4000, **settings,
            },
        )  # fmt: skip

    def stats(self) -> dict[str, Any]:
        """Its figures; none if it does not answer."""
        try:
            with StoreClient(self.endpoint, retries=0, connect_s=1) as client:
                return client.stats()
        except RmqStoreError:
            return {}

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all messages in its log, of those too that do not count."""
        return [
            record[88 : 88 + int.from_bytes(record[84:88], "big")] for record in bodies(self.data)
        ]

    def send(self, body: str, queue: int = 0, properties: str = "") -> bool:
        """Send a message as a client of RocketMQ; returns whether it was acknowledged."""
        try:
            (answer,) = ask(self.broker, message(body.encode(), queue=queue, i=properties))
        except ServiceError:
            return False
        return answer.code == ResponseCode.SUCCESS

    def pulled(self, queue: int = 0) -> list[str]:
        """The bodies of all messages of a queue, as a consumer of RocketMQ gets them."""
        found: list[str] = []
        at = 0
        while True:
            (answer,) = ask(self.broker, pull(at, queue=queue))
            if answer.code == ResponseCode.SUCCESS:
                found += map(text_of, records_in(answer.body))
            elif answer.code != ResponseCode.PULL_RETRY_IMMEDIATELY:
                return found
            at = number(answer, "nextBeginOffset")


class StoreGroup:
    """Stores in one group.

    Attributes:
        members: the address of each, by its id.
        stores: by the ids of the members.
    """

    def __init__(self, folder: Path, count: int, **settings: Any) -> None:
        self.members = addresses(count)
        self.stores = {
            me: StoreProcess(folder, me, self.members, **{**FAST, **settings})
            for me in self.members
        }

    def leader(self) -> StoreProcess:
        """The store that is the master, as soon as there is one."""

        def found() -> StoreProcess | None:
            for store in self.stores.values():
                if store.process.poll() is None and store.stats().get("state") == "RUNNING":
                    return store
            return None

        leader = eventually(found, PATIENCE)
        assert isinstance(leader, StoreProcess)
        return leader

    def followers(self) -> list[StoreProcess]:
        """The stores that run and do not lead."""
        leader = self.leader()
        return [
            store
            for store in self.stores.values()
            if store is not leader and store.process.poll() is None
        ]

    def send(self, *texts: str, queue: int = 0) -> list[str]:
        """Send messages to the leader, each until it is acknowledged once.

        One whose acknowledgement is lost may be stored, and is sent again under another text.

        Returns:
            The texts that were acknowledged.
        """
        acknowledged: list[str] = []
        for text in texts:
            attempt = 0
            while not self.leader().send(body := f"{text}, {attempt}", queue):
                attempt += 1
            acknowledged.append(body)
        return acknowledged

    def await_all(self) -> None:
        """Wait until all stores that run have the same in their queues."""

        def are_equal() -> bool:
            ends = {
                (each.get("commitLogMaxOffset"), json.dumps(each.get("queues"), sort_keys=True))
                for store in self.stores.values()
                if store.process.poll() is None and (each := store.stats()) is not None
            }
            return len(ends) == 1 and None not in {end for end, _ in ends}

        eventually(are_equal, PATIENCE)

    def await_answers(self) -> None:
        """Wait until all stores that run answer: there can be a leader before."""
        running = [store for store in self.stores.values() if store.process.poll() is None]
        eventually(lambda: all(store.stats() for store in running), PATIENCE)

    def stop(self) -> None:
        """Stop all that run."""
        for store in self.stores.values():
            if store.process.poll() is None:
                store.stop()

    def kill(self) -> None:
        """Kill all that run."""
        for store in self.stores.values():
            store.__exit__()


@contextmanager
def group_of(folder: Path, count: int = 3, **settings: Any) -> Iterator[StoreGroup]:
    """Run stores in one group, which can lose any of them."""
    group = StoreGroup(folder, count, **settings)
    try:
        eventually(lambda: all(store.may_vote for store in group.stores.values()), PATIENCE)
        yield group
    finally:
        group.kill()


def text_of(record: bytes) -> str:
    """The body of a record."""
    size = int.from_bytes(record[84:88], "big")
    return record[88 : 88 + size].decode()


def bodies_in(path: Path, topic: str = "orders") -> list[str]:
    """The bodies of a topic's messages in a store, by queue and offset."""
    with Store.open(path) as store:
        return [
            bytes(body).decode()
            for queue_id in sorted(store.directory.topology.queues.get(topic, ()))
            for batch in store.read(topic, queue_id)
            for body in batch.column("body").to_pylist()
        ]


def problems_of(path: Path, delay_levels: str = DELAY_LEVELS) -> Sequence[object]:
    """What `rmqstore verify` finds wrong with a store; notes do not count."""
    with Store.open(path) as store:
        found = verify(store, delay_levels=delay_levels).problems
    return [problem for problem in found if problem.severity == "error"]
