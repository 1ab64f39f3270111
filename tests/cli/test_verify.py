"""verify reports damage, also by its exit code."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Golden, Rmqstore, read_terminal
from tests.support.stores.golden import load_queues, load_records

ROOT = Path(__file__).resolve().parents[2]
StoreOf = Callable[[str], list[str]]


@pytest.fixture
def damaged(golden: Golden, tmp_path: Path) -> Path:
    """A store with a changed body, and a queue entry that points to the wrong place."""
    store = tmp_path / "store"
    shutil.copytree(golden("multipath") / "store", store)
    record = load_records(golden("multipath"))[9]
    path = store / "clA" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(record.body, record.physical_offset)] ^= 0xFF
    path.write_bytes(data)
    queue = store / "consumequeue" / "TopicTest" / "2" / f"{0:020d}"
    entries = bytearray(queue.read_bytes())
    entries[20 * 7 + 7] ^= 0xFF
    queue.write_bytes(entries)
    return store


def folders(store: Path) -> list[str]:
    return [f"--commitlog-path={store / name}" for name in ("clA", "clB")]


@pytest.mark.parametrize("name", ["basic", "live", "dledger", "v5v2topic", "multipath"])
def test_a_store_that_is_in_order(
    name: str, rmqstore: Rmqstore, store_of: StoreOf, golden: Golden
) -> None:
    document = rmqstore("verify", "--json", *store_of(name)).document
    assert document["ok"]
    assert document["errors"] == 0
    assert document["counts"]["records"] == len(load_records(golden(name)))
    report = load_queues(golden(name))
    readable = sum(queue.readable for queue in report.queues.values())
    assert document["counts"]["entries"] == readable
    lines = rmqstore("verify", *store_of(name)).lines
    assert lines[-1].startswith("no damage found")


def test_damage_is_told_with_its_place(damaged: Path, rmqstore: Rmqstore, golden: Golden) -> None:
    ended = rmqstore("verify", *folders(damaged), damaged, code=1)
    assert ended.stderr == ""
    errors = [line for line in ended.lines if line.startswith("error: ")]
    record = load_records(golden("multipath"))[9]
    at = f"{damaged / 'clA' / f'{0:020d}'} at {record.physical_offset}"
    assert any(at in line for line in errors)
    entry = f"{damaged / 'consumequeue' / 'TopicTest' / '2' / f'{0:020d}'} at {20 * 7}"
    assert any(entry in line for line in errors)
    assert ended.lines[-1].startswith(f"{len(errors)} error(s)")
    document = rmqstore("verify", "--json", *folders(damaged), damaged, code=1).document
    assert not document["ok"]
    assert document["errors"] == len(errors)
    listed = [problem for problem in document["problems"] if problem["severity"] == "error"]
    assert any(problem["offset"] == record.physical_offset for problem in listed)


def test_what_is_not_listed_is_counted(damaged: Path, rmqstore: Rmqstore) -> None:
    ended = rmqstore("verify", "--list", "0", *folders(damaged), damaged, code=1)
    assert not any(line.startswith("error: ") for line in ended.lines)
    assert any(line.startswith("... and 1 more [") for line in ended.lines)


def test_a_torn_tail_is_no_damage(rmqstore: Rmqstore, store_of: StoreOf) -> None:
    ended = rmqstore("verify", *store_of("unclean-tail"))
    assert any(line.startswith("torn tail: ") for line in ended.lines)
    document = rmqstore("verify", "--json", *store_of("unclean-tail")).document
    assert document["tornTail"]["physicalOffset"] == document["logEnd"]


def test_what_could_not_be_verified(rmqstore: Rmqstore, store_of: StoreOf, tmp_path: Path) -> None:
    ended = rmqstore("verify", tmp_path, code=2)
    assert ended.stdout == b""
    ended = rmqstore("verify", "--delay-levels", "soon", *store_of("live"), code=2)
    assert "soon" in ended.stderr


def test_a_bar_on_a_terminal(golden: Golden) -> None:
    main, side = pty.openpty()
    env = os.environ | {"COLUMNS": "100", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "rmqstore_spark.cli", "verify", "--json"]
    with subprocess.Popen(
        [*command, str(golden("basic") / "store")],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=side,
    ) as process:  # fmt: skip
        os.close(side)
        assert process.stdout is not None
        document = process.stdout.read()
        assert process.wait(60) == 0
    shown = read_terminal(main)
    os.close(main)
    assert "━" in shown
    assert "MB" in shown
    assert document.startswith(b"{")
