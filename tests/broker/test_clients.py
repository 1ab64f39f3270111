"""RocketMQ's C++ and Node clients, with our name server and broker in place of RocketMQ's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmqstore_spark.reader import Store
from tests.broker.accounts import write_accounts
from tests.broker.broker import broker, name_server, route
from tests.broker.real_client import RealClient, cpp_command, node_command
from tests.support.messages.batches import commit_batch, expected
from tests.support.waiting import eventually

_PATIENCE = 120.0


def _cpp() -> list[str]:
    command = cpp_command()
    if command is None:
        pytest.skip("the C++ client is not installed")
    return command


def _node() -> list[str]:
    command = node_command()
    if command is None:
        pytest.skip("the Node client is not installed: python -m tools.node")
    return command


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
            return [words[1:4] for words in client.words("got") if words[0] == "refused"]

        client = RealClient(tmp_path, *command, address, "orders", 10)
        try:
            eventually(lambda: client.words("ready"), _PATIENCE)
            first = [f"body-{number}" for number in range(10)]
            assert [words[1] for words in client.words("sent")] == first
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
            client.kill()
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
        client = RealClient(tmp_path, *command, address, "orders", 3, "application", secret)
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
            client.kill()
