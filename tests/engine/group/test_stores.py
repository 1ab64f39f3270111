"""Three stores in one group, as processes: the leader is the master, and is killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.engine.group.stores import bodies_in, group_of, problems_of
from tests.support.waiting import eventually


def test_what_is_acknowledged_is_there_once_after_the_leader_was_killed(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        sent = group.send(*(f"first {n}" for n in range(20)))
        leader = group.leader()
        leader.kill()
        sent += group.send(*(f"second {n}" for n in range(20)))
        leader.start()
        sent += group.send("last")
        group.await_all()
        pulled = [store.pulled() for store in group.stores.values()]
        group.stop()
    assert pulled[0] == pulled[1] == pulled[2]
    counts = Counter(pulled[0])
    assert [text for text in sent if counts[text] != 1] == []
    for store in group.stores.values():
        assert bodies_in(store.store) == pulled[0]
        assert not problems_of(store.store)


def test_a_follower_refuses_messages_and_serves_pulls(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        sent = group.send(*(f"{n}" for n in range(5)))
        for follower in group.followers():
            assert not follower.send("no")
            assert eventually(lambda follower=follower: follower.pulled() == sent)
        (stats,) = [store.stats() for store in group.stores.values() if store is group.leader()]
        assert stats["groupRole"] == "LEADER"
