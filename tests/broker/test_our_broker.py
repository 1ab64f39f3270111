"""RocketMQ's Java client uses a store process as its broker."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.broker.processes import Client, RocketMq, own_properties
from tests.face.broker import broker, name_server, route
from tests.support.batches import bodies, commit_batch
from tests.support.waiting import eventually

_PATIENCE = 120.0


def test_a_java_client_sends_and_consumes(rocketmq: RocketMq, tmp_path: Path) -> None:
    with (
        name_server(tmp_path) as address,
        broker(tmp_path / "store", namesrv_addr=address) as served,
        Client(rocketmq, address, served.address) as client,
    ):
        served.store.create_topic("bills", read_queue_nums=2)
        eventually(lambda: route(address, "bills"))
        assert eventually(lambda: _is_sent(client), _PATIENCE)
        found = client.pull("orders")
        assert found
        assert all(own_properties(each)["CLUSTER"] == "DefaultCluster" for each in found)
        commit_batch(served.store, 1)  # as a Spark stream does
        served.store.flush()
        expected = {body for n in range(3) for body in bodies(f"b1/{n}")}
        consumed = {base64.b64decode(each["body"]) for each in client.pull("bills")}
        assert consumed
        assert consumed <= expected


def _is_sent(client: Client) -> bool:
    try:
        client.ask("send", "orders", 0, 4, "message-", 0)
    except AssertionError as error:
        if "timeout" not in str(error):  # on a starved machine
            raise
        return False
    return True
