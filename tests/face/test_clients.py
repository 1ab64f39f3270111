"""RocketMQ's C++ and Node clients, with our name server and broker in place of RocketMQ's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from rmqstore_spark.reader import Store
from tests.face.accounts import write_accounts
from tests.face.broker import broker, name_server, route
from tests.support.batches import commit_batch, expected
from tests.support.waiting import eventually
from tools.node import CLIENT, find_node

_PATIENCE = 120.0
_FOLDER = Path(__file__).parent


def _cpp() -> list[str]:
    if find_spec("rocketmq") is None:
        pytest.skip("the C++ client is not installed")
    return [sys.executable, str(_FOLDER / "cpp_client.py")]


def _node() -> list[str]:
    found = find_node()
    if found is None or not CLIENT.is_dir():
        pytest.skip("the Node client is not installed: python -m tools.node")
    return [found[0], str(_FOLDER / "node" / "client.js")]


class _Client:
    """The client's process.

    Args:
        home: for the files that it logs to.
        command: its command.

    Attributes:
        said: the lines that it has printed.
    """

    def __init__(self, home: Path, *command: object) -> None:
        self.said: list[str] = []
        self.process = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "HOME": str(home), "NODE_PATH": str(CLIENT)},
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            self.said.extend(iter(lines.readline, ""))

    def words(self, first: str) -> list[list[str]]:
        """The words of the lines that begin with one."""
        return [line.split()[1:] for line in list(self.said) if line.split()[:1] == [first]]

    def send(self, body: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{body}\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """End its input; return its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(_PATIENCE)
        self._reading.join()
        return code

    def got(self) -> set[str]:
        """The bodies that it has consumed. On a starved machine, it sends one twice."""
        return {words[0] for words in self.words("got")}


@pytest.mark.parametrize("of", [_cpp, _node], ids=["C++", "Node"])
def test_it_sends_and_consumes(tmp_path: Path, of: Callable[[], list[str]]) -> None:
    command, path = of(), tmp_path / "store"
    with (
        name_server(tmp_path) as address,
        broker(path, namesrv_addr=address, message_delay_level="1s 1s 1s") as served,
    ):
        served.store.create_topic("orders", read_queue_nums=8)
        eventually(lambda: route(address, "orders"))

        def refused() -> list[list[str]]:
            return [words[1:] for words in client.words("got") if words[0] == "refused"]

        client = _Client(tmp_path, *command, address, "orders", 10)
        try:
            eventually(lambda: client.words("ready"), _PATIENCE)
            first = [f"body-{number}" for number in range(10)]
            assert [body for _, body in client.words("sent")] == first
            eventually(lambda: client.got() >= set(first), _PATIENCE)
            # One that it refuses once comes again, and is shown with its own topic's key and tag.
            client.send("refused")
            # A send that was not answered in time is sent again, so there can be more of them.
            eventually(lambda: ["1", "key-refused", "TagA"] in refused(), _PATIENCE)
            assert ["0", "key-refused", "TagA"] in refused()
            # And what a Spark stream commits comes to it.
            commit_batch(served.store, 1)
            served.store.flush()
            with Store.open(path) as store:
                rows = [row for part in store.scan() for row in part.to_pylist()]
            committed = [
                row["body"].decode()
                for row in rows
                if row["topic"] == "orders" and row["body"] in expected(1)
            ]
            assert committed
            eventually(lambda: client.got() >= set(committed), _PATIENCE)
            assert client.end() == 0
        finally:
            client.process.kill()
            client.process.wait()
    sent = [row["body"].decode() for row in rows if row["topic"] == "orders"]
    assert list(dict.fromkeys(sent))[:11] == [*first, "refused"]


_ACCOUNTS = """\
accounts:
- accessKey: application
  secretKey: "correct horse"
  defaultGroupPerm: SUB
  topicPerms: [orders=PUB|SUB]
"""


@pytest.mark.threat("Accounts of RocketMQ's clients")
@pytest.mark.parametrize("of", [_cpp, _node], ids=["C++", "Node"])
@pytest.mark.parametrize("secret", ["correct horse", "wrong horse"])
def test_it_signs(tmp_path: Path, of: Callable[[], list[str]], secret: str) -> None:
    command = of()
    settings = {
        "acl_enable": True,
        "acl_path": write_accounts(tmp_path / "plain_acl.yml", _ACCOUNTS),
    }
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address, **settings) as served,
    ):
        served.store.create_topic("orders", read_queue_nums=2)
        eventually(lambda: route(address, "orders"))
        client = _Client(tmp_path, *command, address, "orders", 3, "application", secret)
        try:
            if secret == "correct horse":
                bodies = {"body-0", "body-1", "body-2"}
                eventually(lambda: client.got() >= bodies, _PATIENCE)
                assert client.end() == 0
            else:
                assert client.end() != 0
                assert not client.words("sent")
                served.store.flush()
                assert served.store.stats()["commitLogMaxOffset"] == 0
        finally:
            client.process.kill()
            client.process.wait()
