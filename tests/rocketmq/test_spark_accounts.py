"""Spark signs for RocketMQ 5, whose broker keeps users and their rights (ACL 2.0)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from chispa import assert_df_equality

from rmqstore_spark.errors import RemotingError
from tests.broker.broker import route
from tests.cli.processes import run
from tests.datasource.driving import batch_rows
from tests.rocketmq.processes import Admin, Broker, RocketMq
from tests.rocketmq.reading import verify
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATIENCE = 120.0
_TYPES = "org.apache.rocketmq.auth"
_SUPER = {"username": "rocketmq2", "password": "12345678"}
"""The account with which mqadmin signs, in `conf/tools.yml` of a release."""
_INNER = {"accessKey": _SUPER["username"], "secretKey": _SUPER["password"]}
_SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_TYPES}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_TYPES}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps(_SUPER),
    "innerClientAuthenticationCredentials": json.dumps(_INNER),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_TYPES}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_TYPES}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}


class Guarded(NamedTuple):
    """A broker that knows users, with topic `orders`, and the mqadmin that made them."""

    broker: Broker
    admin: Admin


@pytest.fixture
def guarded(rocketmq: RocketMq, name_server: str, port: int, tmp_path: Path) -> Iterator[Guarded]:
    """With the users `lake` and `guest`, who have no rights."""
    if rocketmq.version < (5, 3):
        pytest.skip("RocketMQ 4.9 has no users; test_spark_pulls.py signs with its plain_acl.yml")
    settings: dict[str, Any] = {**_SETTINGS}
    with (
        Broker(rocketmq, name_server, port, tmp_path / "store", **settings) as broker,
        closing(Admin(rocketmq, name_server)) as admin,
    ):
        where = f"-b 127.0.0.1:{port}"
        admin.shows(f"updateTopic -t orders -r 4 -w 4 {where}", "success")
        for user in ("lake", "guest"):
            admin.shows(f"createUser -u {user} -p 12345678 -t Normal {where}", "success")
        eventually(lambda: route(name_server, "orders"), _PATIENCE)
        yield Guarded(broker, admin)


def test_spark_reads_and_writes_with_a_user_of_rocketmq_5(
    spark: SparkSession, guarded: Guarded, name_server: str, port: int, tmp_path: Path
) -> None:
    for resource, rights in (
        ("Topic:orders", "Pub,Sub,Get"), ("Group:TOOLS_CONSUMER", "Sub"), ("Group:lake", "Sub"),
    ):  # fmt: skip
        said = f"createAcl -s User:lake -r {resource} -a {rights} -d Allow -b 127.0.0.1:{port}"
        guarded.admin.shows(said, "success")
    options: dict[str, Any] = {"namesrvAddr": name_server}

    def signed(user: str, secret: str = "12345678") -> dict[str, Any]:
        file = tmp_path / f"{user}-{secret}.yml"
        file.write_text(f"accessKey: {user}\nsecretKey: {secret}\n")
        file.chmod(0o600)
        return {**options, "aclFile": str(file)}

    rows = spark.range(500).selectExpr("CAST(concat('row-', id) AS BINARY) AS body")
    sink = rows.write.format("rmqstore").mode("append").option("topic", "orders")
    sink.options(**signed("lake")).save()

    def read() -> DataFrame:
        reader = spark.read.format("rmqstore").options(**signed("lake"), subscribe="orders")
        return reader.load().select("body")

    assert_df_equality(read(), rows, ignore_row_order=True, ignore_nullable=True)
    stream = spark.readStream.format("rmqstore").options(**signed("lake"), subscribe="orders")
    query = (
        stream.options(startingOffsets="earliest", commitGroup="lake", maxOffsetsPerTrigger=200)
        .load()
        .writeStream.format("memory")
        .queryName("signed")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    assert query.awaitTermination(300)
    found = spark.table("signed").select("body")
    assert_df_equality(found, rows, ignore_row_order=True, ignore_nullable=True)
    guarded.admin.shows("consumerProgress -g lake", "Diff Total: 0")
    for refused, words in (
        (options, "username cannot be null"),
        (signed("lake", "wrong-one"), "check signature failed"),
        (signed("guest"), "User:guest has no permission to access Topic:orders"),
    ):
        with pytest.raises(RemotingError, match=words):
            batch_rows("", subscribe="orders", **refused)
    # The store can be continued without the broker: its users are in a RocksDB, its log is not.
    guarded.broker.kill()
    assert (guarded.broker.store / "config" / "users" / "CURRENT").exists()
    done = run("recover", guarded.broker.store)
    assert done.returncode == 0, done.stderr
    verify(guarded.broker.store)
