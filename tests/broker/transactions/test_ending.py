"""Ends of transactions that are handled together: one that fails is the only one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from rmqstore_spark.broker.acl.gate import OpenGate
from rmqstore_spark.broker.core.catalog import Catalog
from rmqstore_spark.broker.core.transactions import Ending
from rmqstore_spark.broker.faces.remoting.lanes.ending import EndRequests
from rmqstore_spark.broker.faces.remoting.row import LaneRows
from rmqstore_spark.broker.faces.remoting.table import ENDS, ROWS, Parts
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.engine.queue_reader import QueueReader
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.remoting.server import RemotingServer
from tests.broker.broker import Heard

_FAILING = 7
_CONFIG = StoreConfig(
    mapped_file_size_commit_log=1 << 20, max_hash_slot_num=100, max_index_num=1000
)


class _BrokenGate(OpenGate):
    """Fails for what is at one place."""

    def check_place(self, request: Command, peer: str, reader: QueueReader) -> None:
        if request.ext["commitLogOffset"] == str(_FAILING):
            raise RuntimeError("a bug in the gate")


class _Together(Heard):
    """Hands three requests to a handler at once."""

    def __init__(self, ending: EndRequests) -> None:
        super().__init__()
        self._ending = ending
        self._held: list[Request] = []

    def requests(self, requests: Sequence[Request]) -> None:
        self._held += requests
        if len(self._held) == 3:
            self._ending.handle(self._held)


def test_an_end_that_fails_is_the_only_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def end(place: int) -> Command:
        fields = {
            "producerGroup": "pg", "tranStateTableOffset": "0", "commitLogOffset": str(place),
            "commitOrRollback": "8",
        }  # fmt: skip
        return Command(RequestCode.END_TRANSACTION, fields)

    async def test(store: StoreWriter) -> list[str]:
        ending = EndRequests(
            Ending(store, Catalog(store)),
            LaneRows(ROWS, ENDS, cast(Parts, None)),
            _BrokenGate(),
            store.queue_reader(),
        )
        server = RemotingServer(_Together(ending), Limits())
        address = await server.start(bound_port("127.0.0.1", 0))
        async with await RemotingClient.connect(address, seconds=30) as client:
            asked = (client.ask(end(place), 30) for place in (0, _FAILING, 100))
            answers = await asyncio.gather(*asked)
        await server.close()
        await asyncio.to_thread(ending.close)
        return [(each.remark or "").partition("\n")[0] for each in answers]

    with StoreWriter.open(tmp_path / "store", _CONFIG) as store:
        found = asyncio.run(test(store))
    not_found = "Find prepared transaction message failed"
    failed = "the end failed because of an error in the broker; its log says more"
    assert found == [not_found, failed, not_found]
    assert "a bug in the gate" in caplog.text
