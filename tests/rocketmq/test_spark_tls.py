"""Source and sink talk TLS with RocketMQ's own broker, which accepts nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from rmqstore_spark.datasource.options.parsing import parse_sink_options
from rmqstore_spark.datasource.sink.columns import find_columns
from rmqstore_spark.datasource.sink.commit import Place
from rmqstore_spark.datasource.sink.targets import find_targets
from rmqstore_spark.datasource.sink.writers import run_task
from rmqstore_spark.errors import ServiceError
from tests.broker.broker import name_server, route
from tests.datasource.driving import batch_rows
from tests.rocketmq.processes import Broker, RocketMq
from tests.support.certificates import make_certificates
from tests.support.waiting import eventually

_PATIENCE = 120.0
_SCHEMA = StructType().add("body", "string")


def test_rows_go_there_and_back_over_tls(rocketmq: RocketMq, port: int, tmp_path: Path) -> None:
    given = make_certificates(tmp_path / "certificates")
    java_options = (
        "-Dtls.test.mode.enable=false",  # else it makes a certificate that nobody can check
        "-Dtls.server.mode=enforcing",
        f"-Dtls.server.certPath={given.server_cert}",
        f"-Dtls.server.keyPath={given.server_key}",
        "-Dtls.server.need.client.auth=require",
        "-Dtls.server.authClient=true",
        f"-Dtls.server.trustCertPath={given.ca}",
    )
    both: dict[str, Any] = {
        "tls_server_cert_path": given.server_cert,
        "tls_server_key_path": given.server_key,
    }
    with (
        name_server(tmp_path, tls_server_mode="permissive", **both) as servers,
        Broker(rocketmq, servers, port, tmp_path / "store", java_options),
    ):
        eventually(lambda: route(servers, "TBW102"), _PATIENCE)
        plain: dict[str, Any] = {"namesrvAddr": servers, "requestTimeout": "20s"}
        anonymous: dict[str, Any] = {**plain, "tlsEnable": "true", "tlsCaFile": given.ca}
        shown = {"tlsCertFile": given.client_cert, "tlsKeyFile": given.client_key}
        secure: dict[str, Any] = {**anonymous, **shown}
        options = parse_sink_options({**secure, "topic": "sent"}, streaming=True)
        options = find_targets(options, _SCHEMA, streaming=True)
        assert options.target.to_brokers
        rows = [f"row-{number}" for number in range(500)]
        place = Place(0, "6ad3bb2e-6d3f-4e0c-9b0c-3f9a36b1d0aa", 0)
        columns = find_columns(_SCHEMA, options.messages)
        batch = pa.record_batch({"body": rows})
        run_task(options, columns, iter([batch]), place, 0, place.micro_batch)
        eventually(lambda: route(servers, "sent"), _PATIENCE)
        found = batch_rows("", subscribe="sent", **secure)
        assert sorted(bytes(row["body"]).decode() for row in found) == sorted(rows)
        for wrong, words in (
            (plain, "It may accept only TLS connections"),
            (anonymous, "does not answer"),
            ({**secure, "tlsCaFile": given.client_cert}, "presented an invalid certificate"),
        ):
            with pytest.raises(ServiceError, match=words):
                batch_rows("", subscribe="sent", **{**wrong, "requestTimeout": "1s"})
