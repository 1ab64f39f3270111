"""A store process announces its endpoint through RocketMQ's name server; clients pass over it."""

from __future__ import annotations

import base64
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.broker.broker import route
from tests.datasource.driving import Stream, batch_rows, plan_batch
from tests.rocketmq.processes import Admin, Client, RocketMq
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import served, serving_brokers_clients
from tests.support.waiting import eventually

_PATIENCE = 120.0


def test_the_endpoint_is_in_the_route(rocketmq: RocketMq, name_server: str, tmp_path: Path) -> None:
    settings = {
        "clients": "all",
        "namesrv_addr": name_server,
        "broker_name": "ours",
    }
    with served(tmp_path / "store", **settings) as here:
        here.store.create_topic("announced", read_queue_nums=2, write_queue_nums=2)
        for block in encoded_traffic(Traffic(200, topics={"announced": 2})):
            assert here.store.put(block).ok
        here.store.flush()
        with serving_brokers_clients(here) as runner:
            told = eventually(lambda: route(name_server, "announced"), _PATIENCE)
            assert told["filterServerTable"] == {runner.address: [here.endpoint]}
            options: dict[str, Any] = {"namesrvAddr": name_server, "subscribe": "announced"}
            _, partitions = plan_batch("", **options)
            assert {type(each).__name__ for each in partitions} == {"StorePartition"}
            rows = batch_rows("", **options)
            assert {row["brokerName"] for row in rows} == {"ours"}
            with Client(rocketmq, name_server, runner.address) as client:
                found = client.pull("announced")
            stream = Stream("", startingOffsets="earliest", commitGroup="lake", **options)
            assert [len(batch) for batch in stream.drain()] == [200]
            stream.reader.stop()
            with closing(Admin(rocketmq, name_server)) as admin:
                admin.shows("consumerProgress -g lake", "Diff Total: 0")
                admin.shows("consumerProgress", "\nlake")
    assert len(rows) == 200
    bodies = sorted(base64.b64decode(message["body"]) for message in found)
    assert bodies == sorted(row["body"] for row in rows)
