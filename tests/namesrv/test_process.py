"""`rmqstore namesrv` as a process of its own."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from tests.cli.processes import PATIENCE, run
from tests.namesrv.registering import registration
from tests.namesrv.serving import NamesrvProcess


def test_it_serves_until_a_signal_and_warns_where_others_reach_it(tmp_path: Path) -> None:
    async def register(address: str) -> None:
        async with await RemotingClient.connect(address) as broker:
            await broker.ask_for(registration(["T"]))
            namesrv.process.send_signal(signal.SIGTERM)  # while a broker is connected

    with NamesrvProcess(tmp_path, "--host", "0.0.0.0") as namesrv:
        asyncio.run(register(f"127.0.0.1:{namesrv.address.rpartition(':')[2]}"))
        assert namesrv.process.wait(PATIENCE) == 0
        assert "no passwords" in namesrv.log


def test_a_port_in_use_is_an_error_of_one_line(tmp_path: Path) -> None:
    with NamesrvProcess(tmp_path) as namesrv:
        done = run("namesrv", "--port", namesrv.address.rpartition(":")[2])
        assert done.returncode == 2
        assert f"listen on {namesrv.address}: another process listens there already" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--port", "70000"], "--port: listenPort must be"),
        (["--set", "listenPrt=1"], "Did you mean listenPort?"),
        (["--config", "/nowhere/namesrv.conf"], "/nowhere/namesrv.conf could not be read"),
    ],
)
def test_wrong_options_are_said_in_words(arguments: list[str], word: str) -> None:
    done = run("namesrv", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
