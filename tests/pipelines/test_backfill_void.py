"""The totals of a backfill of a store with void entries: those have offsets, and no rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.client.brokers.server_group import Addresses, ServerGroup
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.pipelines.parquet.task import BackfillTask, PieceItem
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import ResponseCode
from tests.broker.broker import name_server
from tests.namesrv.registering import registration
from tests.pipelines.running import data_files, read_back, run_backfill, run_here
from tests.support.processes.serving import block_of, served, serving_brokers_clients
from tests.support.stores.voiding import make_void

MESSAGES = 1500
VOID = [*range(3), *range(100, 105), *range(320, 420), 700, *range(990, MESSAGES)]
SHOWN = sorted({*range(MESSAGES)} - set(VOID))


@pytest.fixture
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A store with void entries in queue 0; queue 1 has as many without."""
    path = tmp_path / "store"
    with served(path, clients="all") as here, serving_brokers_clients(here) as runner:
        here.store.create_topic("orders", write_queue_nums=2)
        for number in range(0, 2 * MESSAGES, 100):
            block = block_of([bytes(200)] * 100, queue_ids=[number // 100 % 2] * 100)
            assert here.store.put(block).ok
        here.store.flush()
        make_void(path, VOID)
        with name_server(tmp_path) as servers:
            addresses = Addresses((servers,), has_master=False)
            registered = ServerGroup(addresses, "The name server", 20, 20, ClientIdentity())
            told = registration(["orders"], address=runner.address)
            assert registered.ask(told).command.code == ResponseCode.SUCCESS
            if request.param == "broker":
                yield f"namesrv://{servers}"
            else:
                yield str(path) if request.param == "directory" else here.endpoint
            registered.close()


@pytest.mark.parametrize("mode", ["FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize(
    ("source", "plan_by"),
    [
        *((where, by) for where in ("directory", "endpoint") for by in ("queue", "commitlog")),
        ("broker", "queue"),
    ],
    indirect=["source"],
)
def test_they_are_not_missing(
    source: str, tmp_path: Path, plan_by: str, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--subscribe",
        "orders",
        "--planBy",
        plan_by,
        "--maxBytesPerPartition",
        "60k",
        "--mode",
        mode,
    ]
    run_backfill(source, tmp_path / "out", *options)
    rows = read_back(tmp_path / "out")
    assert [row["queueOffset"] for row in rows if row["queueId"] == 0] == SHOWN
    assert len(rows) == len(SHOWN) + MESSAGES
    assert "as many as planned: " in capsys.readouterr().out


@pytest.mark.parametrize("source", ["directory"], indirect=True)
def test_rows_that_are_missing_besides_them_are_found(source: str, tmp_path: Path) -> None:
    def lose_one(work: Sequence[PieceItem], task: BackfillTask) -> list[dict[str, Any]]:
        done = run_here(work, task)
        done[0]["files"][0]["rows"] -= 1
        broker, topic, queue_id, count = done[0]["queues"][0]
        done[0]["queues"][0] = [broker, topic, queue_id, count - 1]
        return done

    left = len(SHOWN)
    with pytest.raises(RmqStoreError, match=rf"orders/0 of \w+: {left - 1:,} of {left:,} rows"):
        run_backfill(source, tmp_path / "out", run=lose_one)
    assert data_files(tmp_path / "out") == []
