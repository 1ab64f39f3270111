"""The table of request codes, and that others can have rows as it has."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from rmqstore_spark.broker.core.refusal import Reason, Refusal
from rmqstore_spark.broker.faces.remoting.row import Lane, LaneRows, Row, handler_of
from rmqstore_spark.broker.faces.remoting.table import LOOP, ROWS
from rmqstore_spark.remoting.addresses import bound_port
from rmqstore_spark.remoting.backlog import Limits
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.fields import Fields
from rmqstore_spark.remoting.connection import Request
from rmqstore_spark.remoting.dispatch import Dispatch
from rmqstore_spark.remoting.server import RemotingServer
from rmqstore_spark.server.table import ROWS as CLIENT_ROWS
from rmqstore_spark.wire.protocol import Code
from tests.broker.broker import Heard
from tests.support.waiting import PATIENCE
from tools.codes import FEATURES_PAGE, features_page


def test_a_code_has_one_row() -> None:
    codes = [row.code for row in ROWS]
    assert len(codes) == len(set(codes))


def test_each_code_of_spark_has_one_row() -> None:
    assert sorted(row.code for row in CLIENT_ROWS) == sorted(Code)


def test_the_page_has_the_table() -> None:
    hint = "run `python -m tools.docs`"
    assert FEATURES_PAGE.read_text(encoding="utf-8") == features_page(), hint


class _Counter:
    """A context of a table."""

    total = 0

    def add(self, number: int) -> int:
        if number < 0:
            raise Refusal(Reason.NOT_PERMITTED, "only more")
        self.total += number
        return self.total

    async def add_later(self, number: int) -> int:
        await asyncio.sleep(0)
        return self.add(number)


def _number(request: Command) -> int:
    return Fields(request.ext).long("number", -10, 10)


def _total(request: Command, total: int) -> Command:
    return request.answer(ext={"total": str(total)})


GATHERED = Lane("gathered", gathers=True)
OWN_ROWS: tuple[Row[_Counter, int, int], ...] = (
    Row(60001, "add", LOOP, None, _number, lambda c, _, number: c.add(number), _total),
    Row(60002, "add", LOOP, None, _number, lambda c, _, number: c.add_later(number), _total),
    Row(60003, "add", GATHERED, None, _number, lambda c, _, number: c.add(number), _total),
)


def test_other_tables_may_have_private_codes() -> None:
    async def work() -> list[tuple[int, str | None, dict[str, str]]]:
        counter = _Counter()
        gathered: LaneRows[int] = LaneRows(OWN_ROWS, GATHERED, counter)

        def take(requests: Sequence[Request]) -> None:
            for request in requests:
                request.reply(gathered.answer(request.command, gathered.accept(request)))

        handlers = {row.code: handler_of(row, counter) for row in OWN_ROWS if row.lane is LOOP}
        server = RemotingServer(_Dispatching(Dispatch(handlers, {60003: take})), Limits())
        async with await RemotingClient.connect(
            await server.start(bound_port("127.0.0.1", 0))
        ) as client:
            asked = [
                Command(code, {"number": number})
                for number in ("2", "-1", "x") for code in (60001, 60002, 60003)
            ]  # fmt: skip
            answers = [await client.ask(each, PATIENCE) for each in asked]
        await server.close()
        return [(each.code, each.remark, each.ext) for each in answers]

    found = asyncio.run(work())
    assert found[:3] == [(0, None, {"total": str(total)}) for total in (2, 4, 6)]
    assert found[3:6] == [(ResponseCode.NO_PERMISSION, "only more", {})] * 3
    wrong = "the field number must be a number from -10 to 10, not 'x'"
    assert found[6:] == [(ResponseCode.SYSTEM_ERROR, wrong, {})] * 3


class _Dispatching(Heard):
    """A server's side that gives requests to handlers."""

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__()
        self._dispatch = dispatch

    def requests(self, requests: Sequence[Request]) -> None:
        self._dispatch.handle(requests)
