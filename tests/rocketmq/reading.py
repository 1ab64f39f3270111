"""What both sides find in a store."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rmqstore_spark.reader import Store
from tests.cli.processes import run

__all__ = ["bodies_of", "ends", "verify"]


def bodies_of(messages: Iterable[dict[str, Any]]) -> list[bytes]:
    """The bodies of messages that a client of RocketMQ got."""
    return [base64.b64decode(message["body"]) for message in messages]


def ends(path: Path, topic: str) -> dict[int, tuple[int, int]]:
    """The minimum and maximum offset of each queue, as our reader finds them."""
    with Store.open(path) as store:
        return {q.queue_id: (q.min_offset, q.max_offset) for q in store.queues([topic])}


def verify(path: Path) -> None:
    """Require that `rmqstore verify` finds no damage."""
    done = run("verify", path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no damage found" in done.stdout
