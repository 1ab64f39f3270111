"""Orderly consumers of RocketMQ share the queues of a store process, while members come and go."""

from __future__ import annotations

import base64
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.broker.broker import ask, broker, message, name_server, route
from tests.rocketmq.processes import Program, RocketMq
from tests.support.waiting import eventually

_PATIENCE = 120.0
_QUEUES = 8
_EACH = 400


def test_queues_change_hands_and_keep_their_order(rocketmq: RocketMq, tmp_path: Path) -> None:
    """Two members share the queues; one leaves, a third joins; there are always messages."""
    source = Path(__file__).with_name("Orderly.java")
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
        Program(rocketmq, source, address, "orders", "consumers", str(_QUEUES)) as group,
    ):
        served.store.create_topic("orders", read_queue_nums=_QUEUES, write_queue_nums=_QUEUES)
        for queue in range(_QUEUES):
            bodies = (f"{queue}/{number}".encode() for number in range(_EACH))
            ask(served.address, *(message(body, queue=queue) for body in bodies))
        eventually(lambda: route(address, "orders"))
        seen: list[dict[str, Any]] = []

        def look() -> list[dict[str, Any]]:
            """What was consumed so far."""
            seen.extend(group.ask("seen"))
            return seen

        def shares() -> dict[str, int]:
            """How many queues each member has: it gets the next message of each."""
            until = len(seen) + _QUEUES
            group.ask("allow", 1)
            eventually(lambda: len(look()) == until, _PATIENCE)
            return Counter(each["member"] for each in seen[-_QUEUES:])

        half = _QUEUES // 2
        for command, member, expected in (
            ("join", "first", {"first": _QUEUES}),
            ("join", "second", {"first": half, "second": half}),
            ("leave", "second", {"first": _QUEUES}),
            ("join", "third", {"first": half, "third": half}),
        ):
            group.ask(command, member)
            eventually(lambda of=expected: shares() == of, _PATIENCE)
        group.ask("allow", _EACH)
        wanted = {f"{queue}/{number}" for queue in range(_QUEUES) for number in range(_EACH)}
        eventually(lambda: _bodies(look()) == wanted, _PATIENCE)
    assert all(each["isAlone"] for each in seen)
    for queue in range(_QUEUES):
        got = [each for each in seen if each["queueId"] == queue]
        assert got[0]["queueOffset"] == 0
        for before, then in pairwise(got):
            if before["member"] == then["member"]:
                assert then["queueOffset"] == before["queueOffset"] + 1
            else:  # one that was consumed while the queue was taken away may come again
                assert before["queueOffset"] - then["queueOffset"] in (-1, 0)


def _bodies(seen: list[dict[str, Any]]) -> set[str]:
    return {base64.b64decode(each["body"]).decode() for each in seen}
