"""RocketMQ, where there is one: ROCKETMQ_HOME names the folder of its release."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.datasource.sink.serving import Served
from tests.rocketmq.processes import SIZES, Broker, Client, NameServer, RocketMq
from tests.support.processes.ports import free_port
from tools.java import find_java


@pytest.fixture(scope="session", autouse=True)  # before Spark is started for nothing
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> RocketMq:
    """A distribution of RocketMQ 4.9 or 5.3."""
    home = os.environ.get("ROCKETMQ_HOME")
    if not home:
        pytest.skip("ROCKETMQ_HOME is not set: the folder of a release of RocketMQ 4.9 or 5.3")
    assert list(Path(home, "lib").glob("*.jar")), f"ROCKETMQ_HOME={home} has no lib/*.jar"
    java = find_java()
    if not (java / "bin" / "javac").exists():
        pytest.skip(f"{java} is not a JDK: the client of these tests is compiled")
    return RocketMq(Path(home), java, tmp_path_factory.mktemp("rocketmq"))


@pytest.fixture(scope="session")
def name_server(rocketmq: RocketMq) -> Iterator[str]:
    """The address of a name server."""
    with NameServer(rocketmq) as server:
        yield server.address


@pytest.fixture(scope="session")
def port(rocketmq: RocketMq) -> int:
    """Where the brokers of these tests listen, one after the other: msgIds tell it."""
    return free_port(around=(1,))  # a broker takes these too


@pytest.fixture(scope="session")
def client(rocketmq: RocketMq, name_server: str, port: int) -> Iterator[Client]:
    """A client of the broker that runs."""
    with Client(rocketmq, name_server, f"127.0.0.1:{port}") as made:
        yield made


@pytest.fixture
def broker(rocketmq: RocketMq, name_server: str, port: int) -> Callable[..., Broker]:
    """Give `broker(store, **settings)`: a broker that starts on a store."""

    def start(store: Path, **settings: Any) -> Broker:
        return Broker(rocketmq, name_server, port, store, **settings)

    return start


@pytest.fixture
def served(rocketmq: RocketMq, port: int, tmp_path: Path) -> Iterator[Served]:
    """A store of ours with its process, as the broker's host."""
    made = Served(tmp_path / "store", clients="all", listenPort=port, **SIZES)
    yield made
    made.process.stop()
