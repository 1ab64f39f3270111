"""`rmqstore top`: what a store process does, while it does it."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Rmqstore, read_terminal
from tests.cli.processes import COMMAND, PATIENCE, ROOT
from tests.support.accounts import account_file, guarded
from tests.support.messages.batches import commit_batch
from tests.support.processes.serving import Served, block_of, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store") as found:
        assert found.store.put(block_of([b"x"] * 30)).ok
        found.store.flush()  # they are in their queues then
        found.store.commit_offsets("billing", {"orders": {0: 10}})
        yield found


def words(lines: list[str], first: str) -> list[list[str]]:
    return [line.split() for line in lines if line.startswith(first)]


def test_pictures_come_one_below_the_other(here: Served, rmqstore: Rmqstore) -> None:
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            commit_batch(here.store, number)
            number += 1

    writing = threading.Thread(target=write)
    writing.start()
    try:
        shown = rmqstore("top", here.endpoint, "--interval", "0.5", "--count", "3")
    finally:
        ended.set()
        writing.join()
    assert shown.code == 0
    assert sum("RUNNING" in line for line in shown.lines) == 3
    assert words(shown.lines, "billing")[0][1] == "orders"
    assert int(words(shown.lines, "billing")[0][2].replace(",", "")) >= 20
    first, *_, last = words(shown.lines, "orders")
    assert first[3] == "-"
    assert last[3].endswith("/s")
    assert last[3] != "0/s"
    figures = words(shown.lines, "messages ")
    assert figures[0][1] == "-"
    assert figures[-1][1] != "0/s"
    assert figures[-1][figures[-1].index("commits") + 1] != "0/s"


def test_accounts_count(tmp_path: Path, rmqstore: Rmqstore) -> None:
    with served(tmp_path / "store", **guarded(tmp_path / "accounts.yml")) as found:
        assert found.store.put(block_of([b"x"])).ok
        given = (found.endpoint, "--count", "1")
        assert "requires an account" in rmqstore("top", *given, code=2).stderr
        own = account_file(tmp_path / "own.yml")
        assert "orders" in rmqstore("top", *given, "--acl-file", own).text


def test_on_a_terminal_the_picture_stays_in_place_until_ctrl_c(here: Served) -> None:
    main, side = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "top", here.endpoint, "--interval", "0.1"],
        cwd=ROOT, stdin=side, stdout=side, stderr=side, env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(side)
    seen = b""
    while seen.count(b"billing") < 3:
        seen += os.read(main, 4096)
    process.send_signal(signal.SIGINT)
    rest = read_terminal(main)
    assert process.wait(PATIENCE) == 130
    os.close(main)
    assert b"\x1b[?1049h" in seen  # the other screen
    assert "\x1b[?1049l" in rest  # and back
    assert "Traceback" not in rest
