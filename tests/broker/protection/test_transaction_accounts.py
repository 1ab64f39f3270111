"""Transactions of one account, and what others try with them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from tests.broker.broker import Heard, broker, message
from tests.broker.protection.accounts import ADMIN, APP, ask, write_accounts

_NEVER = {"transaction_time_out": 0, "transaction_check_interval": 3_600_000}
"""The store checks when the test says so."""


def half(topic: str, key: object = 0) -> Command:
    properties = f"TRAN_MSG\x01true\x02PGROUP\x01producers\x02UNIQ_KEY\x01U{key}"
    return message(b"body", topic, f="4", i=properties)


def end(sent: Command) -> Command:
    fields = {
        "producerGroup": "producers", "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": 8,
    }  # fmt: skip
    return Command(RequestCode.END_TRANSACTION, {k: str(v) for k, v in fields.items()})


@pytest.mark.threat("Accounts")
def test_a_transaction_is_ended_by_those_who_may_send_to_its_topic(tmp_path: Path) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml")
    with broker(tmp_path / "store", acl_enable=True, acl_path=path, **_NEVER) as served:
        own, denied = ask(served, half("RecAcl"), half("RecSend"))
        assert (own.code, denied.code) == (0, 1)
        (others,) = ask(served, half("RecSend"), by=ADMIN)

        async def one_way() -> None:
            client = RemotingClient(served.address, credentials=APP)
            async with client:
                await client.tell(end(others), 30)
                await client.ask(message(b"x", "RecAcl"), 30)  # what came before it was read

        asyncio.run(one_way())
        (refused,) = ask(served, end(others))
        assert "No default permission for topic:RecSend" in (refused.remark or "")
        done, left = ask(served, end(own))[0], ask(served, end(others), by=ADMIN)[0]
        # It had not ended before.
        assert [(each.code, each.remark) for each in (done, left)] == [(0, None)] * 2


@pytest.mark.threat("Accounts")
def test_a_check_shows_a_message_to_those_who_may_send_to_its_topic(tmp_path: Path) -> None:
    path = write_accounts(tmp_path / "plain_acl.yml")
    producers = {"clientID": "me", "producerDataSet": [{"groupName": "producers"}]}
    beat = Command(RequestCode.HEART_BEAT, body=json.dumps(producers).encode())
    app, admin = Heard(), Heard()

    async def work(address: str) -> None:
        async with (
            RemotingClient(address, service=app, credentials=APP) as stranger,
            RemotingClient(address, service=admin, credentials=ADMIN) as owner,
        ):
            await stranger.ask_for(beat, 30)
            await owner.ask_for(beat, 30)
            for key in range(3):
                await owner.ask_for(half("RecSend", key), 30)
            await asyncio.to_thread(served.store.transactions.check)
            while len(admin.told) < 3:
                admin.has_more.clear()
                await asyncio.wait_for(admin.has_more.wait(), 30)
            assert not app.told
            # Those that it may send itself come to it too, in turn.
            for key in range(4):
                await owner.ask_for(half("RecAcl", key), 30)
            await asyncio.to_thread(served.store.transactions.check)
            while not app.told:
                app.has_more.clear()
                await asyncio.wait_for(app.has_more.wait(), 30)

    with broker(tmp_path / "store", acl_enable=True, acl_path=path, **_NEVER) as served:
        asyncio.run(work(served.address))
    assert all(b"RecAcl" in check.body and b"RecSend" not in check.body for check in app.told)
