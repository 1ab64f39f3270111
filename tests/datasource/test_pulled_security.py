"""TLS and accounts of brokers that Spark pulls messages from, and sends messages to."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.datasource.options.parsing import SinkOptions, parse_sink_options
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.commit import Place
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.datasource.sink.writers import run_task
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from tests.broker.broker import Served, broker, name_server
from tests.broker.protection.accounts import write_accounts
from tests.datasource.driving import Stream, batch_rows, plan_batch
from tests.namesrv.registering import registration
from tests.support.certificates import make_certificates
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic

SECRET = "a-secret-of-the-test"
SCHEMA = StructType().add("body", "string")


class Guarded:
    """A cluster that talks TLS alone, and asks for accounts.

    Attributes:
        options: with which Spark reads it.
    """

    def __init__(self, served: Served, options: dict[str, Any], folder: Path) -> None:
        self.served = served
        self.options = options
        self.folder = folder

    def key_file(self, name: str, secret: str, mode: int = 0o600) -> str:
        path = self.folder / name
        path.write_text(f"accessKey: spark-reader\nsecretKey: {secret}\n")
        path.chmod(mode)
        return str(path)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    given = make_certificates(folder / "certificates")
    accounts = f"accounts:\n  - accessKey: spark-reader\n    secretKey: {SECRET}\n    admin: true\n"
    with (
        name_server(
            folder, tls_server_cert_path=given.server_cert, tls_server_key_path=given.server_key
        ) as servers,
        broker(
            folder / "store",
            acl_enable=True,
            acl_path=write_accounts(folder / "plain_acl.yml", accounts),
            tls_server_mode="enforcing",
            tls_server_cert_path=given.server_cert,
            tls_server_key_path=given.server_key,
            tls_server_trust_cert_path=given.ca,
        ) as served,
    ):
        served.store.create_topic("orders", write_queue_nums=3)
        served.store.create_topic("written", write_queue_nums=4)
        for block in encoded_traffic(Traffic(200, topics={"orders": 3})):
            assert served.store.put(block).ok
        served.store.flush()
        options = {
            "namesrvAddr": servers,
            "subscribe": "orders",
            "requestTimeout": "5s",
            "tlsEnable": True,
            "tlsCaFile": given.ca,
            "tlsCertFile": given.client_cert,
            "tlsKeyFile": given.client_key,
        }
        made = Guarded(served, options, folder)
        options["aclFile"] = made.key_file("key.yml", SECRET)
        addresses = Addresses((servers,), has_master=False)
        asked = ServerGroup(addresses, "The name server", 20, 20, ClientIdentity())
        with closing(asked):  # the broker is registered until then
            for told in (
                registration(["orders", "written"], address=served.address),
                registration(
                    ["overheard"], name="b", address="h:1", filter_servers=["rmq://10.0.0.1:1"]
                ),
            ):
                assert asked.ask(told).command.code == 0
            yield made


def planned_write(guarded: Guarded, **more: str) -> SinkOptions:
    given = {name: str(value) for name, value in guarded.options.items() if name != "subscribe"}
    given |= {"topic": "written", "brokerNames": "broker-a", **more}
    return find_targets(parse_sink_options(given, streaming=True), SCHEMA, streaming=True)


@pytest.mark.threat("What a broker sends")
def test_a_batch_and_a_stream_with_tls_and_an_account(guarded: Guarded) -> None:
    expected = {row["msgId"] for row in batch_rows(guarded.served.store.path, subscribe="orders")}
    assert len(expected) == 200
    _, partitions = plan_batch("", **guarded.options)
    assert SECRET.encode() not in pickle.dumps(partitions)
    assert {row["msgId"] for row in batch_rows("", **guarded.options)} == expected
    stream = Stream("", startingOffsets="earliest", commitGroup="lake", **guarded.options)
    assert {row["msgId"] for row in stream.next_batch() or []} == expected
    assert stream.next_batch() is None
    stream.reader.stop()
    reached = [guarded.served.store.consumer_offsets.get("lake", "orders", n) for n in range(3)]
    assert sum(reached) == 200


@pytest.mark.threat("What a broker sends")
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"aclFile": None}, "No accessKey is configured. Set option aclFile"),
        (
            dict.fromkeys(["tlsEnable", "tlsCaFile", "tlsCertFile", "tlsKeyFile"]),
            "It may accept only TLS",
        ),
        ({"tlsCaFile": None}, "an invalid certificate.*Check the CA certificates"),
        ({"tlsCertFile": None, "tlsKeyFile": None}, "does not answer"),
        ({"tlsEnable": None}, "are not encrypted. Set tlsEnable=true"),
        ({"tlsEnable": False}, "tlsCaFile and tlsEnable=false contradict each other"),
    ],
)
def test_what_the_cluster_asks_for_and_what_protects_nothing_is_told(
    guarded: Guarded, changed: dict[str, Any], text: str
) -> None:
    options = {**guarded.options, "requestTimeout": "1s", **changed}
    with pytest.raises(RmqStoreError, match=text):
        batch_rows("", **{name: given for name, given in options.items() if given is not None})


def test_a_write_with_tls_and_an_account(guarded: Guarded) -> None:
    place = Place(0, "6ad3bb2e-6d3f-4e0c-9b0c-3f9a36b1d0aa", 0)
    rows = pa.record_batch({"body": ["one", "two"]})
    options = planned_write(guarded)
    columns = find_columns(SCHEMA, options.messages)
    assert SECRET.encode() not in pickle.dumps((options, columns))
    run_task(options, columns, iter([rows]), place, 0, place.micro_batch)
    guarded.served.store.flush()
    found = batch_rows("", **{**guarded.options, "subscribe": "written"})
    assert {bytes(row["body"]) for row in found} == {b"one", b"two"}


@pytest.mark.threat("What a broker sends")
def test_an_endpoint_without_tls_is_refused_where_tls_is_asked_for(guarded: Guarded) -> None:
    """Anyone who reaches a name server can register: the rows would go to them."""
    words = "tell the endpoint rmq://10.0.0.1:1, which is not encrypted"
    with pytest.raises(RmqStoreError, match=words):
        batch_rows("", **{**guarded.options, "subscribe": "overheard"})
    with pytest.raises(RmqStoreError, match=words):
        planned_write(guarded, topic="overheard", brokerNames="b")


def test_wrong_keys_are_refused_and_not_shown(guarded: Guarded) -> None:
    for name, secret, mode, text in (
        ("wrong.yml", "another-secret", 0o600, "Check signature failed"),
        ("open.yml", SECRET, 0o644, "is accessible to others"),
        ("short.yml", "short", 0o600, "Check signature failed"),
    ):
        file = guarded.key_file(name, secret, mode)
        with pytest.raises(RmqStoreError, match=text) as refused:
            batch_rows("", **{**guarded.options, "aclFile": file})
        assert secret not in str(refused.value).replace(name, "")
