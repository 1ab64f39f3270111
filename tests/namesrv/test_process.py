"""`rmqstore namesrv` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from tests.cli.processes import COMMAND, PATIENCE, ROOT, run
from tests.namesrv.registering import registration


@contextmanager
def _started(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A name server that logs to a file `log`, and its address."""
    own = (f"--set=kvConfigPath={tmp_path}/kv.json", "--port", "0")
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*COMMAND, "namesrv", *own, *arguments],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("rmqstore: name server on "), log.read_text()
            yield process, line.split()[-1]
        finally:
            process.kill()
            process.communicate()


def test_it_serves_until_a_signal(tmp_path: Path) -> None:
    async def register(address: str) -> None:
        async with await RemotingClient.connect(address) as broker:
            await broker.ask_for(registration(["T"]))
            process.send_signal(signal.SIGTERM)  # while a broker is connected

    with _started(tmp_path) as (process, address):
        asyncio.run(register(address))
        assert process.wait(PATIENCE) == 0


def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    with _started(tmp_path) as (_, address):
        port = address.rsplit(":", 1)[1]
        done = run("namesrv", "--port", port)
        assert done.returncode == 1
        assert f"listen on {address}" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--port", "70000"], "--port: listenPort must be"),
        (["--config", "/nowhere/namesrv.conf"], "/nowhere/namesrv.conf could not be read"),
    ],
)
def test_wrong_options_are_said_in_words(arguments: list[str], word: str) -> None:
    done = run("namesrv", *arguments)
    assert done.returncode != 0
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_an_address_that_others_reach_is_warned_of(tmp_path: Path) -> None:
    with _started(tmp_path, "--host", "0.0.0.0") as (process, _):
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert "no passwords" in (tmp_path / "log").read_text()
