"""A connection to a broker that stays."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing

from rmqstore_spark.engine.config.store_config import StoreConfig
from rmqstore_spark.ha.master_broker import MasterBroker
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.connection import RemotingConnection
from tests.ha.broker import Broker, answering
from tests.support.waiting import eventually


class Counting(Broker):
    """A broker that knows its connections, and the event loop in which they are."""

    def __init__(self) -> None:
        table = {"commitLogMinOffset": "7"}
        super().__init__(
            {RequestCode.GET_BROKER_RUNTIME_INFO: json.dumps({"table": table}).encode()}
        )
        self.open: list[RemotingConnection] = []
        self.count = 0

    def opened(self, connection: RemotingConnection) -> None:
        self.loop = asyncio.get_running_loop()
        self.open.append(connection)
        self.count += 1

    def closed(self, connection: RemotingConnection) -> None:
        self.open.remove(connection)

    def close_all(self) -> None:
        """Close all connections, and wait until they have ended."""
        for connection in list(self.open):
            self.loop.call_soon_threadsafe(connection.close)
        eventually(lambda: not self.open)


def test_a_connection_stays_and_one_that_the_broker_has_closed_is_made_again() -> None:
    broker = Counting()
    with answering(broker) as address:
        config = StoreConfig(ha_master_remoting_address=address)
        with closing(MasterBroker(config, stays=True)) as kept:
            assert [kept.log_begin() for _ in range(3)] == [7, 7, 7]
            assert (broker.count, len(broker.open)) == (1, 1)
            broker.close_all()
            assert [kept.log_begin() for _ in range(2)] == [7, 7]
            assert (broker.count, len(broker.open)) == (2, 1)
        eventually(lambda: not broker.open)


def test_a_broker_that_is_asked_once_has_no_connection_left() -> None:
    broker = Counting()
    with answering(broker) as address:
        assert MasterBroker(StoreConfig(ha_master_remoting_address=address)).log_begin() == 7
        eventually(lambda: not broker.open)
        assert broker.count == 1
