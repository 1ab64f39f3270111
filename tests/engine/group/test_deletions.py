"""Topics that are deleted in a group: all members come to show the same of them."""

from __future__ import annotations

import json
from pathlib import Path

from rmqstore_spark.client import StoreClient
from tests.engine.group.stores import (
    PATIENCE,
    StoreGroup,
    StoreProcess,
    bodies_in,
    group_of,
    problems_of,
)
from tests.support.waiting import eventually

OLD = [f"old {number}" for number in range(10)]
NEW = [f"new {number}" for number in range(3)]


def leads(group: StoreGroup, store: StoreProcess) -> bool:
    return group.leader() is store


def shown(store: StoreProcess) -> list[int] | None:
    """The offsets of the topic's queue."""
    found: list[int] | None = store.stats().get("queues", {}).get("orders", {}).get("0")
    return found


def deleted(store: StoreProcess) -> list[str]:
    file = store.store / "rmqstore" / "deleted.json"
    return list(json.loads(file.read_text())) if file.exists() else []


def test_a_deletion_of_a_leader_that_is_killed_counts_when_it_leads_again(tmp_path: Path) -> None:
    """The others put messages behind those that it has deleted."""
    with group_of(tmp_path, preferredLeaderId="n0") as group:
        first = group.stores["n0"]
        eventually(lambda: leads(group, first), PATIENCE)
        for text in OLD:
            eventually(lambda text=text: first.send(text), PATIENCE)
        group.await_all()
        with StoreClient(first.endpoint) as client:
            client.delete_topic("orders")
        first.kill()  # the others ask each second what it has deleted
        before = shown(group.leader())
        sent = group.send(*NEW)
        first.start()
        eventually(lambda: leads(group, first), PATIENCE)
        stores = list(group.stores.values())
        eventually(lambda: all(deleted(store) == ["orders"] for store in stores), PATIENCE)
        group.await_all()
        # Unless they had asked just before.
        begin = 0 if before is None else before[1]
        ends = [begin, begin + len(sent)]
        assert [shown(store) for store in stores] == [ends] * len(stores)
        for store in stores:  # what is found again at a start is the same
            store.stop()
        for store in stores:
            store.start()
        group.await_all()
        assert [shown(store) for store in stores] == [ends] * len(stores)
        group.stop()
    for store in stores:
        assert bodies_in(store.store) == sent
        assert not problems_of(store.store)
