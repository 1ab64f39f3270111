"""`rmqstore serve --read-only` as a process, and the other commands at its endpoint."""

from __future__ import annotations

import ctypes
import json
import platform
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.system import _IOPRIO_SET
from tests.cli.conftest import Golden, Rmqstore
from tests.support.processes.serving import StoreProcess

IDLE = 3


@pytest.fixture(scope="module")
def process(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    folder = tmp_path_factory.mktemp("sidecar")
    with StoreProcess(
        golden("live") / "store",
        folder,
        *("--store", f"quiet={golden('tiny') / 'store'}", "--read-only", "--idle-io"),
        *("--max-read-rate", "500m", "--page-cache", "spare", "--set=metricsPromExporterPort=0"),
    ) as started:
        started.ready()
        yield started


def at(process: StoreProcess, name: str = "live") -> str:
    return f"{process.endpoint}#{name}"


def test_it_says_what_it_serves_and_where(process: StoreProcess, golden: Golden) -> None:
    ready = process.ready()
    live, tiny = str(golden("live") / "store"), str(golden("tiny") / "store")
    assert ready["stores"] == {"live": live, "quiet": tiny}
    (line,) = process.output.splitlines()
    assert f"{live} as #live, {tiny} as #quiet on {ready['endpoint']}" in line


@pytest.mark.parametrize(
    "command",
    [
        ["topics", "--json"],
        ["offsets", "--json"],
        ["groups", "--json"],
        ["verify", "--json"],
        ["read", "--json", "-n", "0"],
        ["read", "--json", "--scan", "-n", "0"],
    ],
    ids=" ".join,
)
def test_commands_print_the_same_as_for_the_path(
    process: StoreProcess, golden: Golden, rmqstore: Rmqstore, command: list[str]
) -> None:
    path = str(golden("live") / "store")
    near = rmqstore(*command, path)
    far = rmqstore(*command, at(process))
    assert far.code == near.code == 0, far.stderr
    assert far.text.replace(at(process), path) == near.text
    assert near.text


def test_stats_and_info(process: StoreProcess, rmqstore: Rmqstore) -> None:
    stats = rmqstore("stats", at(process, "quiet"))
    assert stats.code == 0
    assert "READ_ONLY" in stats.text
    assert rmqstore("info", "--json", at(process)).document["state"] == "closed"


def test_a_stream_without_blocks_is_refused_too(process: StoreProcess) -> None:
    with StoreClient(at(process)) as client, pytest.raises(RefusedError, match="read-only"):
        client.put_stream().finish()


def test_metrics_have_the_names_of_the_stores(process: StoreProcess) -> None:
    address = process.ready()["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    for line in (
        'rmqstore_store_readable{store="live"} 1.0',
        'rmqstore_commitlog_min_offset{store="quiet"} 0.0',
        'rmqstore_state{state="READ_ONLY"} 1.0',
    ):
        assert line in text
    assert 'rmqstore_queue_max_offset{queue="0",store="live",topic=' in text
    with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as answer:
        assert json.load(answer) == {"state": "READ_ONLY"}


def test_all_its_threads_have_the_idle_priority(process: StoreProcess) -> None:
    number = {251: 252, 30: 31}.get(_IOPRIO_SET.get(platform.machine(), 0))
    if number is None:
        pytest.skip(f"the number of ioprio_get on {platform.machine()} is not known here")
    libc = ctypes.CDLL(None, use_errno=True)
    threads = [int(task.name) for task in Path(f"/proc/{process.process.pid}/task").iterdir()]
    assert len(threads) > 1
    for thread in threads:
        assert libc.syscall(number, 1, thread) >> 13 == IDLE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "/a", "--store", "/b"], "A process writes one store"),
        (["--store", "/a", "--idle-io"], "--idle-io needs --read-only"),
        (["--store", "/a", "--max-read-rate", "5m"], "--max-read-rate needs --read-only"),
        (["--read-only"], "No store given"),
        (["--read-only", "--store", "/a", "--page-cache", "keep"], "must be spare or use"),
        (["--read-only", "--store", "/a", "--max-read-rate", "fast"], "must be a size such as"),
        (["--read-only", "--store", "/a", "--max-read-rate", "10k"], "at least 1m"),
        (["--read-only", "--store", "/no/such/store", "--port", "0"], "/no/such/store"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    rmqstore: Rmqstore, arguments: list[str], words: str
) -> None:
    ended = rmqstore("serve", *arguments, code=2)
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_nothing_is_put_into_a_store_that_is_served(rmqstore: Rmqstore, tmp_path: Path) -> None:
    path = tmp_path / "store"
    (path / "run").mkdir(parents=True)
    common = ["serve", "--read-only", "--store", str(path)]
    for flag in ("--ready-file", "--socket"):
        ended = rmqstore(*common, flag, str(path / "run" / "x"), code=2)
        assert "is not changed" in ended.stderr
    assert list(path.iterdir()) == [path / "run"]
