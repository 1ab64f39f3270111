"""Who waits for the answer to a report of an offset finds it on disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rmqstore_spark.layout.fastjson import parse_fastjson
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import broker
from tests.support.waiting import PATIENCE, eventually, is_opening_a_file, stuck_file

GROUPS = 40


def about(code: int, group: int, **more: str) -> Command:
    """A request about the progress of a group."""
    fields = {"consumerGroup": f"g{group}", "topic": "orders", "queueId": "0", **more}
    return Command(code, fields)


def test_reports_that_gather_are_written_together_and_then_answered(tmp_path: Path) -> None:
    file = tmp_path / "config" / "consumerOffset.json"
    hour = 3_600_000
    with broker(tmp_path, flush_consumer_offset_interval=hour) as served:
        served.store.create_topic("orders", write_queue_nums=1)

        async def report_all(release: Callable[[], None]) -> None:
            async with await RemotingClient.connect(served.address, seconds=PATIENCE) as client:

                def asked(command: Command) -> asyncio.Task[Command]:
                    return asyncio.create_task(client.ask(command, PATIENCE))

                update, query = (
                    RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.QUERY_CONSUMER_OFFSET,
                )  # fmt: skip
                first = asked(about(update, 0, commitOffset="7"))
                await asyncio.to_thread(eventually, is_writing)
                others = [asked(about(update, n, commitOffset="8")) for n in range(1, GROUPS)]
                known = asked(about(query, 1))
                await client.ask(about(RequestCode.GET_CONSUMER_LIST_BY_GROUP, 0), PATIENCE)
                release()
                failed = await first
                assert failed.code == ResponseCode.SYSTEM_ERROR
                assert "could not be written" in str(failed.remark)
                assert (await known).ext["offset"] == "8"
                assert {answer.code for answer in await asyncio.gather(*others)} == {0}

        with stuck_file(file.with_name(f"{file.name}.tmp")) as release:
            asyncio.run(report_all(release))
        saved: Any = parse_fastjson(file.read_text())["offsetTable"]
        assert saved == {f"orders@g{n}": {"0": 8 if n else 7} for n in range(GROUPS)}
        assert not file.with_name(f"{file.name}.bak").exists()  # the second write makes it


def is_writing() -> bool:
    named = [t for t in threading.enumerate() if t.name.startswith("rmqstore-broker-files")]
    return any(map(is_opening_a_file, named))
