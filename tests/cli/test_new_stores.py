"""Commands at a store that a process has just made: it simply has no messages yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Rmqstore
from tests.datasource.driving import batch_rows
from tests.support.processes.serving import Served, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        found.store.create_topic("orders", write_queue_nums=2)
        yield found


@pytest.fixture(params=["path", "endpoint"])
def place(request: pytest.FixtureRequest, here: Served) -> str:
    return here.store.path if request.param == "path" else here.endpoint


@pytest.mark.parametrize(
    "command",
    [
        ["read"],
        ["read", "-t", "orders"],
        ["read", "-t", "orders", "-q", "0"],
        ["read", "--from", "0"],
        ["tail"],
        ["tail", "-t", "orders", "-q", "1"],
        ["query", "--key", "x"],
        ["query", "--uniq-key", "x"],
        ["query", "--uniq-key", "x", "-t", "orders"],
        ["query", "--key", "x", "-t", "orders"],
        ["query", "--from", "0"],
        ["query", "--from", "0", "-t", "orders"],
    ],
    ids=" ".join,
)
def test_it_has_no_messages(command: list[str], place: str, rmqstore: Rmqstore) -> None:
    ended = rmqstore(*command, "--json", place)
    assert ended.messages == []
    assert "queues" not in ended.stderr


@pytest.mark.parametrize("command", [["read"], ["tail"]], ids=" ".join)
def test_what_is_missing_is_still_refused(
    command: list[str], place: str, rmqstore: Rmqstore
) -> None:
    for topic, rest in (("none", []), ("orders", ["-q", "2"])):
        ended = rmqstore(*command, "-t", topic, *rest, place, code=2)
        assert f"has no topic {topic!r}" in ended.stderr


@pytest.mark.parametrize(
    "options",
    [{"planBy": "queue"}, {"maxRecordsPerPartition": "5"}, {"startingTimestamp": "2026-01-01"}],
    ids=str,
)
def test_a_batch_query_has_no_rows(options: dict[str, str], here: Served) -> None:
    assert batch_rows(here.store.path, None, **options) == []


def test_a_store_whose_log_lies_elsewhere(rmqstore: Rmqstore, here: Served, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "config").mkdir(parents=True)
    ended = rmqstore("info", outside, code=2)
    assert "name its folders: --commitlog-path of rmqstore" in ended.stderr
    assert ended.stdout == b""
    assert rmqstore("info", "--commitlog-path", f"{here.store.path}/commitlog", outside).stdout
