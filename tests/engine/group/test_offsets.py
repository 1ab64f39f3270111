"""A leader of RocketMQ that has been restarted can give queue offsets again that it gave before."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmqstore_spark.errors import ServiceError
from tests.consensus.driver.members import SEGMENT, GroupClient, MemberProcess, addresses, record
from tests.engine.group.stores import StoreProcess
from tests.support.waiting import eventually

PATIENCE = 120.0
GIVEN = [(0, "a"), (1, "b"), (2, "c"), (3, "d"), (2, "c again"), (3, "d again"), (4, "e"),
         (4, "e again"), (5, "f"), (1, "b again"), (6, "g")]  # fmt: skip
"""Offsets and texts of messages, in the order of the log."""
OF_BROKERS = ["a", "b", "c", "d", "e", "f", "g"]
"""What brokers put into the queue: `ConsumeQueue.putMessagePositionInfo` leaves the others out."""
FAR = [(0, "a"), (1, "b"), (9_999_999, "c"), (3, "d"), (4, "e"), (5, "f"), (6, "g")]
"""One message has an offset for which the log has no room: brokers put it behind the last one."""


def gives_them(store: StoreProcess) -> bool:
    """Whether a store gives consumers what a broker would; False if it does not serve yet."""
    try:
        return store.pulled() == OF_BROKERS
    except ServiceError:
        return False


@pytest.mark.parametrize(("given", "at_once"), [(GIVEN, True), (GIVEN, False), (FAR, True)])
def test_a_member_gives_consumers_what_brokers_give(
    tmp_path: Path, given: list[tuple[int, str]], at_once: bool
) -> None:
    members = addresses(3)
    sizes = {"mappedFileSizeCommitLog": SEGMENT, "preferredLeaderId": "n0;n1"}
    records = [record(text, offset) for offset, text in given]
    with ExitStack() as ends:
        for me in ("n0", "n1"):
            ends.enter_context(MemberProcess(tmp_path, me, members, **sizes))
        store = ends.enter_context(StoreProcess(tmp_path, "n2", members, **sizes))
        client = GroupClient(members)
        eventually(lambda: store.may_vote and client.leader() in ("n0", "n1"), PATIENCE)
        client.append(record("first", topic="other"))
        if at_once:
            store.kill()
            client.append(*records)
            store.start()
        else:
            for number, each in enumerate(records):
                client.append(each)
                eventually(lambda n=number: store.bodies[-1:] == [given[n][1].encode()], PATIENCE)
        eventually(lambda: gives_them(store), PATIENCE)
        assert ("get no place in the queue" in store.output) == (given is GIVEN)
        store.stop()
        shutil.rmtree(store.store / "consumequeue")
        store.start()
        eventually(lambda: gives_them(store), PATIENCE)
