"""The command as a process: how it starts, ends, and follows a store that grows."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from tests.cli.conftest import Golden, read_terminal
from tests.cli.processes import COMMAND, HEAVY, PATIENCE, ROOT, modules_of, run_anew
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import served
from tests.support.stores.expected import expected_scan


def test_the_help_imports_little() -> None:
    printed, modules = modules_of("--help")
    offered = {line.split()[0] for line in printed if line.startswith("  ") and line.strip()}
    assert {"info", "topics", "groups", "offsets", "read", "tail", "query", "verify"} <= offered
    assert {"serve", "recover", "create-topic", "reset-offset", "namesrv"} <= offered
    assert not HEAVY & modules


def test_what_needs_one_command_imports_no_other() -> None:
    _, modules = modules_of("create-topic", "--help")
    commands = {name for name in modules if name.startswith("rmqstore_spark.cli.commands.")}
    assert commands == {"rmqstore_spark.cli.commands.administration"}
    assert not HEAVY & modules
    _, modules = modules_of("--version")
    assert not any(name.startswith("rmqstore_spark.cli.commands") for name in modules)
    assert not HEAVY & modules


def test_no_command_imports_spark_or_pandas(golden: Golden) -> None:
    assert importlib.util.find_spec("pandas")  # pyarrow would import it
    _, modules = modules_of("read", golden("tiny") / "store", "--json")
    assert "pyarrow" in modules
    assert not {"pandas", "pyspark", "rmqstore_spark.engine"} & modules


def test_usage_errors() -> None:
    for args in (["frobnicate"], ["read"], ["read", "--limit", "many", "x"], ["read", "--what"]):
        done = run_anew(*args)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


def test_a_reader_that_goes_away(golden: Golden) -> None:
    command = [*COMMAND, "read", str(golden("basic") / "store"), "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b'{"brokerNa'
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE) == 141


def test_a_full_disk(golden: Golden) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("wb") as out:
        done = subprocess.run(
            [*COMMAND, "read", str(golden("tiny") / "store"), "--json"],
            cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_a_terminal_that_knows_no_utf8(golden: Golden) -> None:
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    store = golden("live") / "store"
    table = run_anew("read", store, "-n", "1", env=env)
    assert r"k\xf6rper \u6d88\u606f" in table.stdout
    line = json.loads(run_anew("read", store, "-n", "1", "--json", env=env).stdout)
    assert line["body"] == "live message 0 \u2013 körper 消息"


def on_a_terminal(width: int, *args: object) -> str:
    """Return what the command prints on a terminal with this many columns."""
    main, side = pty.openpty()
    env = os.environ | {"COLUMNS": str(width), "LINES": "40", "TERM": "xterm-256color"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen(
        [*COMMAND, *map(str, args)], cwd=ROOT, env=env, stdout=side, stderr=side
    ) as process:
        os.close(side)
        shown = read_terminal(main)
        assert process.wait(PATIENCE) == 0
    os.close(main)
    return shown


@pytest.mark.parametrize("width", [80, 160])
def test_a_table_fits_the_terminal(width: int, golden: Golden) -> None:
    from rich.cells import cell_len
    from rich.text import Text

    shown = on_a_terminal(width, "read", golden("basic") / "store", "-n", "8")
    assert "\x1b[1m" in shown  # the headings are bold
    lines = Text.from_ansi(shown).plain.splitlines()
    assert len(lines) == 9
    assert all(cell_len(line) <= width for line in lines)
    assert any(line.endswith("…") for line in lines)
    assert all("2026-11-21T00:01:50." in line for line in lines[1:])


# ---- tail -f ----------------------------------------------------------------------------------


class Lines:
    """Waits for lines of a process's output."""

    def __init__(self, stream: IO[str]) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._pump, args=(stream,), daemon=True).start()

    def _pump(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put(None)

    def next(self) -> str:
        line = self._lines.get(timeout=PATIENCE)
        assert line is not None, "the process ended"
        return line

    def take(self, count: int) -> list[str]:
        return [self.next() for _ in range(count)]

    def rest(self) -> list[str]:
        found = []
        while (line := self._lines.get(timeout=PATIENCE)) is not None:
            found.append(line)
        return found


class Writer:
    """A process that holds a store as a broker does, and grows it on demand."""

    def __init__(self, path: Path, messages: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.live_writer", str(path), str(messages)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def write(self, count: int) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path / "store", 2_000)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def tail() -> Iterator[Callable[..., tuple[subprocess.Popen[str], Lines]]]:
    started = []

    def start(*args: object) -> tuple[subprocess.Popen[str], Lines]:
        process = subprocess.Popen(
            [*COMMAND, "tail", "-f", *map(str, args)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        return process, Lines(process.stdout)

    yield start
    for process in started:
        process.kill()
        process.communicate()


Tail = Callable[..., tuple[subprocess.Popen[str], Lines]]


def uniq_keys(first: int, last: int) -> list[str]:
    return [f"C0A8010A2A9F18B4AAC2{number:012d}" for number in range(first, last)]


def keys_of(lines: list[str]) -> list[str]:
    return [json.loads(line)["uniqKey"] for line in lines]


def test_following_a_store_that_grows(writer: Writer, tail: Tail, tmp_path: Path) -> None:
    writer.write(50)
    process, lines = tail(tmp_path / "store", "--json", "-n", "5")
    assert keys_of(lines.take(5)) == uniq_keys(45, 50)
    # Over the ends of queue files (100 entries) and of the log's (64 KiB).
    for first, last in ((50, 51), (51, 300), (300, 1_500), (1_500, 2_000)):
        assert writer.write(last - first) == last
        assert sorted(keys_of(lines.take(last - first))) == uniq_keys(first, last)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert lines.rest() == []
    assert process.stderr is not None
    assert process.stderr.read() == ""


def test_following_a_store_that_was_just_made(tail: Tail, tmp_path: Path) -> None:
    with served(tmp_path / "store") as here:
        here.store.create_topic("orders", write_queue_nums=1)
        process, lines = tail(here.endpoint, "--json", "-t", "orders")
        for number in range(2):
            for block in encoded_traffic(Traffic(1, topics={"orders": 1}, seed=number)):
                assert here.store.put(block).ok
            here.store.flush()
            (line,) = lines.take(1)
            assert json.loads(line)["queueOffset"] == number
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_new_queues_are_followed_from_their_begin(
    writer: Writer, tail: Tail, tmp_path: Path
) -> None:
    (orders,) = Traffic(messages=2_000, topics={"orders": 3, "bills": 1}, shuffled=True).batches()
    first_bill = orders["topic"].to_pylist().index("bills")
    assert first_bill > 0
    writer.write(first_bill)
    process, lines = tail(tmp_path / "store", "--json", "-n", "1", "-c", "topic,uniqKey")
    lines.take(1)  # it has looked at the queues
    writer.write(40)
    seen = [json.loads(line) for line in lines.take(40)]
    assert sorted(row["uniqKey"] for row in seen) == uniq_keys(first_bill, first_bill + 40)
    assert {row["topic"] for row in seen} == {"orders", "bills"}
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130


def test_following_ends_where_its_reader_does(writer: Writer, tail: Tail, tmp_path: Path) -> None:
    writer.write(20)
    with subprocess.Popen(
        [*COMMAND, "tail", "-f", str(tmp_path / "store"), "--json", "-n", "1"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            writer.write(1)
            with suppress(subprocess.TimeoutExpired):  # it has only so many messages
                process.wait(0.05)
        process.kill()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE) == 141


def test_following_a_store_that_stands_still(tail: Tail, golden: Golden) -> None:
    expected = [row["physicalOffset"] for row in expected_scan(golden("multipath"))]
    store = golden("multipath") / "store"
    folders = [f"--commitlog-path={store / name}" for name in ("clA", "clB")]
    process, lines = tail(store, *folders, "--json", "-n", "3")
    offsets = [json.loads(line)["physicalOffset"] for line in lines.take(3)]
    assert offsets == expected[-3:]
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 130
    assert lines.rest() == []
