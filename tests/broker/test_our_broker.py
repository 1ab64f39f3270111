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


def test_a_java_producer_ends_its_transactions_once(rocketmq: RocketMq, tmp_path: Path) -> None:
    """It commits, rolls back, and is asked about the rest: unknown at first, then committed."""
    path, count = tmp_path / "store", 9
    timing = {
        "transaction_time_out": 1000, "transaction_check_interval": 500,
        "transaction_check_max": 1_000_000,
    }  # fmt: skip
    with (
        name_server(tmp_path) as address,
        broker(path, namesrv_addr=address, **timing) as served,
        Client(rocketmq, address, served.address) as client,
    ):
        served.store.create_topic("orders", read_queue_nums=4)
        eventually(lambda: route(address, "orders"))
        said = client.ask("transact", "orders", count)
        eventually(lambda: served.store.stats()["transactionsWaiting"] == 0, _PATIENCE)
        served.store.flush()
        consumed = client.pull("orders")
        stats = served.store.stats()
    sent = [each for each in said if "outcome" in each]
    asked = [each for each in said if "outcome" not in each]
    outcomes = {each["body"]: each["outcome"] for each in sent}
    assert [each["status"] for each in sent] == ["SEND_OK"] * count
    three = ["COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"]
    assert list(outcomes.values()) == three * (count // 3)
    bodies_asked = [base64.b64decode(each["body"]).decode() for each in asked]
    unknown = [body for body, outcome in outcomes.items() if outcome == "UNKNOW"]
    assert set(bodies_asked) == set(unknown)
    assert all(bodies_asked.count(body) >= 2 for body in unknown)
    keys = {each["body"]: each["uniqKey"] for each in sent}
    for each, body in zip(asked, bodies_asked, strict=True):
        assert each["topic"] == "orders"
        assert each["transactionId"] == keys[body] == each["properties"]["UNIQ_KEY"]
        assert each["properties"]["REAL_QID"] == str(each["queueId"])
    committed = [base64.b64decode(each["body"]).decode() for each in consumed]
    assert sorted(committed) == sorted(set(outcomes) - _rolled_back(outcomes))
    assert stats["transactionsCommitted"] == len(committed)
    assert stats["transactionsGivenUp"] == 0


def _rolled_back(outcomes: dict[str, str]) -> set[str]:
    return {body for body, outcome in outcomes.items() if outcome == "ROLLBACK_MESSAGE"}


def _is_sent(client: Client) -> bool:
    try:
        client.ask("send", "orders", 0, 4, "message-", 0)
    except AssertionError as error:
        if "timeout" not in str(error):  # on a starved machine
            raise
        return False
    return True
