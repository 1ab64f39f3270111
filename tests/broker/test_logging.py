"""Nothing of a body is logged, whatever becomes of it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.remoting.codec.codes import RequestCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.codec.frames import encode_frame
from tests.broker.broker import Served, ask, batch, broker, message, name_server, pull
from tests.broker.transactions.halves import COMMIT, end, half

MARK = b"hush-5b0c"
BODY = b"{" + MARK * 3


async def _closed_after(address: str, data: bytes) -> None:
    """Send bytes; the other end closes the connection."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    assert await asyncio.wait_for(reader.read(), 30) == b""
    writer.close()


def to(code: int, **fields: object) -> Command:
    return Command(code, {name: str(value) for name, value in fields.items()}, BODY)


def good(served: Served) -> None:
    sent, _, prepared = answers = ask(
        served.address, message(BODY, i="KEYS\x01k"), batch([BODY, BODY]), half(BODY, "key")
    )
    served.store.flush()
    place = int(sent.ext["msgId"][16:], 16)
    answers += ask(
        served.address,
        pull(0),
        end(prepared, COMMIT),
        to(RequestCode.VIEW_MESSAGE_BY_ID, offset=place),
        to(RequestCode.QUERY_MESSAGE, topic="orders", key="k", maxNum=9, beginTimestamp=0,
           endTimestamp=1 << 50),
        to(RequestCode.CONSUMER_SEND_MSG_BACK, offset=place, group="g", delayLevel=0),
    )  # fmt: skip
    assert [answer.code for answer in answers] == [0] * 8
    found = [answer for answer in answers if answer.body]
    assert len(found) == 3
    assert all(BODY in answer.body for answer in found)


def broken(served: Served) -> None:
    whole = batch([BODY, BODY])
    whole.body = whole.body[:-1]
    of_bodies = (
        RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_BROKER_CONFIG,
    )  # fmt: skip
    packed = [message(BODY, f=flags) for flags in ("1", "257", "513")]  # zlib, LZ4, ZSTD
    answers = ask(served.address, whole, *packed, *map(to, of_bodies))
    assert [answer.code for answer in answers] == [13] * 4 + [1] * 5
    frame = encode_frame(message(BODY))
    for data in (frame[:8] + BODY + frame[8 + len(BODY) :], b"\x7f" + BODY, BODY):
        asyncio.run(_closed_after(served.address, data))


def refused(served: Served) -> None:
    served.store.create_topic("closed", perm=4)
    reply = message(BODY, "DefaultCluster_REPLY_TOPIC", i="REPLY_TO_CLIENT\x01nobody")
    reply.code = RequestCode.SEND_REPLY_MESSAGE_V2
    unsigned = end(Command(0, {"queueOffset": "0", "msgId": "0" * 32}), COMMIT)
    unsigned.body = BODY
    answers = ask(
        served.address, message(BODY * 1000), message(BODY, "closed"), message(BODY, queue=99),
        message(BODY, "no topic!"), half(BODY, b="SCHEDULE_TOPIC_XXXX"), to(9999), reply, unsigned,
    )  # fmt: skip
    assert [answer.code for answer in answers] == [13, 16, 1, 1, 16, 3, 1, 1]


def failing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:  # as a bug would
        patch.setattr(random, "randrange", fail)
        bug = ask(served.address, message(BODY, queue=-1))
    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "pwrite", fail)
    disk = ask(served.address, message(BODY), batch([BODY, BODY]), half(BODY))
    assert [answer.code for answer in bug + disk] == [1, 14, 14, 14]
    monkeypatch.undo()


def test_nothing_of_a_body_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    with name_server(tmp_path) as address:
        registration = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c"}
        more = {"haServerAddr": "", "brokerId": 0, "compressed": "true"}
        (answer,) = ask(address, to(RequestCode.REGISTER_BROKER, **registration, **more))
        assert answer.code == 1
    with broker(tmp_path / "store", max_message_size=10_000) as served:
        good(served)
        broken(served)
        refused(served)
        failing(served, monkeypatch)
    for line in (
        "sent what is not RocketMQ's protocol", "was not ended", "A send failed.",
        "Input/output error",
    ):  # fmt: skip
        assert line in caplog.text
    assert MARK.decode() not in caplog.text
    assert MARK.decode() not in repr(message(BODY))
