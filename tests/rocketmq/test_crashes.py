"""What a crash of one side leaves, opened by the other: promises 1, 2, 3 (docs/reliability.md)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.engine.lock import StoreGuard
from tests.cli.processes import ROOT, run
from tests.rocketmq.processes import Broker, Client
from tests.rocketmq.reading import bodies_of, ends, verify
from tests.support.messages.batches import PARTITIONS, ROWS, bodies, small_segments
from tests.support.processes.beside import PLACES

Brokers = Callable[..., Broker]
pytestmark = pytest.mark.fault


def test_a_broker_that_is_killed_while_it_takes_messages(
    client: Client, broker: Brokers, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    acknowledged = []
    with broker(path) as running:
        client.ask("topic", "orders", 4, 4, 6)
        for answer in client.answers("flood", "orders", 4):
            acknowledged.append(answer)
            if len(acknowledged) == 3000:
                running.kill()
    assert {answer["status"] for answer in acknowledged} == {"SEND_OK"}
    assert (path / "abort").exists()

    done = run("recover", path)
    assert done.returncode == 0, done.stderr
    verify(path)
    ours = ends(path, "orders")
    with broker(path) as running:
        assert client.offsets("orders") == ours
        pulled = client.pull("orders")
        for answer in (acknowledged[0], acknowledged[1500], acknowledged[-1]):
            found = client.ask("key", "orders", answer["body"])
            assert [body.decode() for body in bodies_of(found)] == [answer["body"]]
        (again,) = client.ask("send", "orders", 0, 1, "after-", 0)
        assert again["queueOffset"] == ours[0][1]
        running.stop()
    held = {
        (message["queueId"], message["queueOffset"]): (body.decode(), message["msgId"])
        for message, body in zip(pulled, bodies_of(pulled), strict=True)
    }
    assert len(held) == sum(end for _, end in ours.values())
    for answer in acknowledged:
        place = answer["queueId"], answer["queueOffset"]
        assert held[place] == (answer["body"], answer["msgId"])


def sizes(config: StoreConfig) -> dict[str, int]:
    """What a broker must be told of a store with other sizes than `SIZES`."""
    return {
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
    }


def staged(number: int) -> list[list[bytes]]:
    """The blocks of a micro-batch, as its tasks staged them."""
    tasks = [bodies(f"b{number}/{task}") for task in range(PARTITIONS)]
    return [part for rows in tasks for part in (rows[: ROWS // 2], rows[ROWS // 2 :])]


def in_queues(blocks: list[list[bytes]]) -> dict[tuple[str, int], list[bytes]]:
    """Where `rows_block` puts the messages of some blocks."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for block in blocks:
        for row, body in enumerate(block):
            found.setdefault((("orders", "bills")[row % 2], row // 2 % 2), []).append(body)
    return found


@pytest.mark.parametrize(
    ("place", "is_there"), [("commit.before_publish", False), ("commit.after_publish", True)]
)
def test_a_batch_whose_commit_was_killed_without_a_recovery_of_ours(
    client: Client, broker: Brokers, tmp_path: Path, place: str, is_there: bool
) -> None:
    path = tmp_path / "store"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.committer", str(path), "0", "2"],
        cwd=ROOT, check=False, env={**os.environ, "RMQSTORE_FAILPOINT": f"{place}:2"},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    StoreGuard(str(path / "commitlog")).remove()  # never do that

    wanted = [bodies("put0", 1), *staged(0), bodies("put1", 1)]
    wanted += staged(1) if is_there else []
    with broker(path, **sizes(small_segments())) as running:
        pulled = [m for topic in ("orders", "bills") for m in client.pull(topic)]
        running.stop()
    assert pulled_by_queue(pulled) == in_queues(wanted)
    verify(path)


def pulled_by_queue(pulled: list[dict[str, Any]]) -> dict[tuple[str, int], list[bytes]]:
    """The bodies of messages that were pulled, whose offsets in their queues have no gap."""
    found: dict[tuple[str, int], list[bytes]] = {}
    for message, body in zip(pulled, bodies_of(pulled), strict=True):
        queue = found.setdefault((message["topic"], message["queueId"]), [])
        assert message["queueOffset"] == len(queue)
        queue.append(body)
    return found


@pytest.mark.parametrize("size", ["8192", "1048576"])
@pytest.mark.parametrize("place", [*PLACES, "after_filler", "after_publish"])
def test_what_was_put_beside_a_commit_that_was_killed_without_a_recovery_of_ours(
    client: Client, broker: Brokers, tmp_path: Path, place: str, size: str
) -> None:
    path = tmp_path / "store"
    killed = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.beside", str(path), place, size],
        cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    StoreGuard(str(path / "commitlog")).remove()  # never do that

    told = killed.stdout.split()
    assert set(told) == {"first", *PLACES[: PLACES.index(place) + 1 if place in PLACES else None]}
    batch = staged(0) if place == "after_publish" else []
    config = small_segments(mappedFileSizeCommitLog=size)
    with broker(path, **sizes(config)) as running:
        pulled = [m for topic in ("others", "orders", "bills") for m in client.pull(topic)]
        (again,) = client.ask("send", "others", 0, 1, "after-", 0)
        assert again["queueOffset"] == len(told)
        running.stop()
    found = pulled_by_queue(pulled)
    assert found.pop(("others", 0)) == [b for name in told for b in bodies(f"other {name}", 1)]
    assert found == in_queues(batch)
    verify(path)
