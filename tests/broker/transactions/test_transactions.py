"""Transactional messages of RocketMQ's producers: halves, ends and checks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.layout.spans import string_array
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.server.stores.written import WrittenStore
from tests.broker.broker import Heard, Served, batch, broker, message, number, pull
from tests.broker.transactions.halves import (
    COMMIT,
    ROLLBACK,
    UNKNOWN,
    alive,
    answer_to,
    end,
    half,
    half_of,
)
from tests.remoting.reading import read_frames
from tests.support.processes.delaying import rows_of
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, server_of
from tests.support.recordings import Frame, frames
from tests.support.waiting import eventually

_LONG = 30.0
_NEVER = {"transaction_time_out": 0, "transaction_check_interval": 3_600_000}
"""The store checks when the test says so."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with broker(tmp_path / "store", **_NEVER) as found:
        yield found


def run(address: str, work: Callable[[RemotingClient], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        async with await RemotingClient.connect(address, seconds=_LONG) as client:
            return await work(client)

    return asyncio.run(connected())


def ask(served: Served, *requests: Command) -> list[Command]:
    async def work(client: RemotingClient) -> list[Command]:
        return list(await asyncio.gather(*(client.ask(each, _LONG) for each in requests)))

    found: list[Command] = run(served.address, work)
    return found


class Producer:
    """A connection of a producer group, which is asked for outcomes."""

    def __init__(self, client: RemotingClient, ears: Heard) -> None:
        self.client = client
        self._ears = ears

    @classmethod
    async def of(cls, address: str, name: str, *groups: str) -> Producer:
        ears = Heard()
        client = await RemotingClient.connect(address, service=ears, seconds=_LONG)
        await client.ask_for(alive(name, *groups), _LONG)
        return cls(client, ears)

    async def checks(self, count: int) -> list[Command]:
        """Wait for so many checks."""
        while len(self._ears.told) < count:
            self._ears.has_more.clear()
            await asyncio.wait_for(self._ears.has_more.wait(), _LONG)
        return self._ears.told

    @property
    def asked(self) -> int:
        """How often it was asked."""
        return len(self._ears.told)


def committed(store: Path) -> list[bytes]:
    return [row["body"] for row in rows_of(store, "orders")]


def test_half_messages_wait_until_their_transactions_end(served: Served) -> None:
    first, second, third, plain = ask(
        served, half(b"a"), half(b"b"), half(b"c", e="-1"), message(b"plain", queue=2)
    )
    assert [each.code for each in (first, second, third, plain)] == [0] * 4
    assert first.ext.keys() == plain.ext.keys()
    assert [each.ext["queueOffset"] for each in (first, second, third)] == ["0", "1", "2"]
    assert [each.ext["queueId"] for each in (first, second)] == ["2", "2"]
    assert plain.ext["queueOffset"] == "0"
    assert (plain.remark, first.remark) == (None, None)
    served.store.flush()
    assert served.store.stats()["transactionsWaiting"] == 3
    done = ask(served, end(first, COMMIT), end(second, ROLLBACK))
    assert [(each.code, each.remark, each.ext) for each in done] == [(0, None, {})] * 2
    again = ask(served, end(first, COMMIT), end(first, ROLLBACK), end(second, COMMIT))
    assert [each.code for each in again] == [0] * 3
    assert {each.remark for each in again} == {
        "The transaction had ended before; nothing was stored."
    }
    served.store.flush()
    (found,) = ask(served, pull(0, queue=2))
    assert number(found, "maxOffset") == 2
    path = Path(served.store.path)
    rows = rows_of(path, "orders")
    assert [(row["body"], row["queueId"]) for row in rows] == [(b"plain", 2), (b"a", 2)]
    assert rows[1]["preparedTransactionOffset"] == int(first.ext["msgId"][16:], 16)
    assert (rows[1]["tags"], rows[1]["sysFlag"]) == ("t", 8)
    stored = rows_of(path, "RMQ_SYS_TRANS_HALF_TOPIC")
    assert [row["sysFlag"] for row in stored] == [0] * 3
    assert dict(stored[0]["properties"]) == {
        "KEYS": "k", "TRAN_MSG": "true", "UNIQ_KEY": "a", "WAIT": "true", "PGROUP": "pg",
        "TAGS": "t", "CLUSTER": "DefaultCluster", "REAL_TOPIC": "orders", "REAL_QID": "2",
    }  # fmt: skip


def test_what_ends_no_transaction(served: Served) -> None:
    sent, plain = ask(served, half(b"a"), message(b"plain"))
    place = int(sent.ext["msgId"][16:], 16)
    most = (1 << 63) - 1
    hostile = ask(
        served,
        end(sent, COMMIT, "others"),
        end(sent, COMMIT, ""),
        end(sent, COMMIT, "p" * 70_000),
        end(sent, COMMIT, "pg\x1b[2J"),
        end(plain, COMMIT),
        end(sent, COMMIT, tranStateTableOffset=1),
        end(sent, COMMIT, commitLogOffset=place + 1),
        end(sent, COMMIT, tranStateTableOffset=-1),
        end(sent, COMMIT, commitLogOffset=-1),
        end(sent, COMMIT, tranStateTableOffset=most, commitLogOffset=most),
        end(sent, COMMIT, commitLogOffset=1 << 64),
        end(sent, COMMIT, tranStateTableOffset="x"),
        end(sent, "true"),  # type: ignore[arg-type]
        Command(RequestCode.END_TRANSACTION),
    )
    assert [each.code for each in hostile] == [ResponseCode.SYSTEM_ERROR] * len(hostile)
    remarks = [each.remark or "" for each in hostile]
    not_found = "Find prepared transaction message failed\nThere is no half message of the producer"
    assert remarks[0].startswith(not_found)
    assert remarks[1] == "the field producerGroup must be 1 to 255 printable characters, not ''"
    assert remarks[7].startswith("the field tranStateTableOffset must be a number from 0 to ")
    assert all(len(remark) < 400 and "\x1b" not in remark for remark in remarks)

    async def pass_over(client: RemotingClient) -> None:
        for outcome in (UNKNOWN, 4, 99, -1):
            await client.tell(end(sent, outcome))
        with pytest.raises(ServiceError, match="answer"):  # as from a broker
            await client.ask(end(sent, UNKNOWN), 0.2)

    run(served.address, pass_over)
    stats = served.store.stats()
    assert (stats["transactionsWaiting"], stats["transactionsCommitted"]) == (1, 0)
    (done,) = ask(served, end(sent, COMMIT))
    assert (done.code, done.remark) == (0, None)
    served.store.flush()
    assert committed(Path(served.store.path)) == [b"plain", b"a"]


def test_commits_and_rollbacks_that_arrive_together_count_in_their_order(served: Served) -> None:
    count = 40
    sent = ask(served, *(half(b"%d" % n) for n in range(count)))

    async def all_at_once(client: RemotingClient) -> list[Command]:
        asked = []
        for at, each in enumerate(sent):
            outcomes = (COMMIT, ROLLBACK, COMMIT) if at % 2 else (ROLLBACK, COMMIT, ROLLBACK)
            asked += [client.ask(end(each, outcome), _LONG) for outcome in outcomes]
        return list(await asyncio.gather(*asked))

    answers = run(served.address, all_at_once)
    assert [each.code for each in answers] == [0] * (3 * count)
    assert sum(each.remark is None for each in answers) == count
    served.store.flush()
    found = committed(Path(served.store.path))
    assert found == [b"%d" % n for n in range(count) if n % 2]


def test_transactional_messages_that_are_refused(tmp_path: Path) -> None:
    with broker(tmp_path / "store", **_NEVER) as served:
        properties = b"TRAN_MSG\x01TRUE\x02PGROUP\x01pg"
        answers = ask(
            served,
            batch([b"x", b"y"], properties),
            message(b"x", i="TRAN_MSG\x01true"),
            message(b"x", i="TRAN_MSG\x01true\x02PGROUP\x01no group!"),
            half(b"x", more="\x02DELAY\x01soon"),
            half(b"x", b="SCHEDULE_TOPIC_XXXX"),
            half(b"good"),
        )
        assert [each.code for each in answers] == [
            *[ResponseCode.MESSAGE_ILLEGAL] * 4, ResponseCode.NO_PERMISSION, 0,
        ]  # fmt: skip
        assert "a batch cannot hold transactional messages" in (answers[0].remark or "")
        (plain,) = ask(served, message(b"x", i="TRAN_MSG\x01true\x02TRAN_MSG\x01false"))
        assert plain.code == 0
        assert served.store.stats()["transactionsWaiting"] == 1
    with broker(tmp_path / "closed", reject_transaction_message=True) as served:
        refused, plain = ask(served, half(b"a"), message(b"plain"))
        assert (refused.code, plain.code) == (ResponseCode.NO_PERMISSION, 0)
        assert (refused.remark or "").startswith(
            "the broker[127.0.0.1] sending transaction message is forbidden"
        )
    with broker(tmp_path / "store", broker_role="SLAVE", broker_id=1) as served:
        sent = Command(0, {"queueOffset": "0", "msgId": "0" * 32})
        (ended,) = ask(served, end(sent, COMMIT))
        assert ended.code == ResponseCode.SLAVE_NOT_AVAILABLE


def test_a_delay_counts_from_the_commit_on(tmp_path: Path) -> None:
    with broker(tmp_path / "store", message_delay_level="1s", **_NEVER) as served:
        (sent,) = ask(served, half(b"later", more="\x02DELAY\x011"))
        (done,) = ask(served, end(sent, COMMIT))
        assert done.code == 0
        eventually(lambda: served.store.stats()["delayedDelivered"] == 1)
        served.store.flush()
    assert committed(tmp_path / "store") == [b"later"]


def test_producers_are_asked_in_turn_until_they_know(served: Served) -> None:
    path = Path(served.store.path)

    async def work() -> None:
        one = await Producer.of(served.address, "one", "pg", "more")
        two = await Producer.of(served.address, "two", "pg")
        for body in (b"a", b"b", b"c", b"d"):
            await one.client.ask_for(half(body), _LONG)
        await one.client.ask_for(half(b"other", group="others"), _LONG)
        await asyncio.to_thread(served.store.transactions.check)
        checks = [*await one.checks(2), *await two.checks(2)]
        assert sorted(each.ext["msgId"] for each in checks) == ["a", "b", "c", "d"]
        assert {each.code for each in checks} == {RequestCode.CHECK_TRANSACTION_STATE}
        assert all(each.is_one_way for each in checks)
        outcomes = {"a": COMMIT, "b": ROLLBACK, "c": UNKNOWN, "d": UNKNOWN}
        for each in checks:
            await two.client.tell(answer_to(each, outcomes[each.ext["msgId"]]))
        await asyncio.to_thread(_ended, served, 2)
        # One leaves: the other is asked for what is left.
        one.client.close()
        await _alone(two)
        await asyncio.to_thread(served.store.transactions.check)
        again = (await two.checks(4))[2:]
        assert sorted(each.ext["msgId"] for each in again) == ["c", "d"]
        assert {half_of(each)[1]["TRANSACTION_CHECK_TIMES"] for each in again} == {"2"}
        await two.client.ask_for(
            Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "two", "producerGroup": "pg"}),
            _LONG,
        )
        # Nobody is there: they wait, and are asked when one comes.
        await asyncio.to_thread(served.store.transactions.check)
        three = await Producer.of(served.address, "three", "pg")
        for each in list(await three.checks(2)):
            await three.client.tell(answer_to(each, COMMIT))
        await asyncio.to_thread(_ended, served, 4)
        assert two.asked == 4
        two.client.close()
        three.client.close()

    asyncio.run(work())
    served.store.flush()
    assert sorted(committed(path)) == [b"a", b"c", b"d"]
    assert served.store.stats()["transactionsWaiting"] == 1


async def _alone(producer: Producer) -> None:
    """Wait until the broker knows that no other producer of the group is connected."""
    asked = Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"})
    deadline = asyncio.get_running_loop().time() + _LONG
    while True:
        answer = await producer.client.ask_for(asked, _LONG)
        if len(json.loads(answer.body)["connectionSet"]) == 1:
            return
        assert asyncio.get_running_loop().time() < deadline


def _ended(served: Served, count: int) -> None:
    def are_ended() -> bool:
        stats = served.store.stats()
        ended: int = stats["transactionsCommitted"] + stats["transactionsRolledBack"]
        return ended >= count

    eventually(are_ended)


def test_what_nobody_knows_is_given_up(tmp_path: Path) -> None:
    async def work(served: Served) -> list[str]:
        producer = await Producer.of(served.address, "one", "pg")
        await producer.client.ask_for(half(b"nobody knows"), _LONG)
        for checks in (1, 2):
            await asyncio.to_thread(served.store.transactions.check)
            for each in (await producer.checks(checks))[checks - 1 :]:
                await producer.client.tell(answer_to(each, UNKNOWN))
        await asyncio.to_thread(served.store.transactions.check)
        producer.client.close()
        return [half_of(each)[1]["TRANSACTION_CHECK_TIMES"] for each in await producer.checks(2)]

    with broker(tmp_path / "store", transaction_check_max=2, **_NEVER) as served:
        assert asyncio.run(work(served)) == ["1", "2"]
        served.store.flush()
    given_up = rows_of(tmp_path / "store", "TRANS_CHECK_MAX_TIME_TOPIC")
    assert [row["body"] for row in given_up] == [b"nobody knows"]


def test_producers_of_both_protocols_share_a_group(served: Served) -> None:
    known: dict[bytes, bool] = {}

    class Knows:
        def check(self, told: Mapping[str, Any]) -> bool | None:
            return known.get(told["body"])

    config = replace(served.store.config, listen_port=0, clients="spark")
    server = server_of([WrittenStore(served.store)], config)
    try:
        with StoreClient(server.endpoints[0]) as client:
            ours = client.producer("pg")
            columns = {
                "topic": pa.array(["orders"]), "body": pa.array([b"ours"]),
                "queueId": pa.array([0], pa.int64()),
            }  # fmt: skip
            ours.put(columns)
            (sent,) = ask(served, half(b"remoting"))
            # Nobody is there over remoting: who calls is asked.
            served.store.transactions.check()
            known[b"remoting"] = True
            assert ours.answer_checks(Knows()) == 1
            assert ask(served, end(sent, COMMIT))[0].remark is not None  # it has ended

            async def work() -> None:
                producer = await Producer.of(served.address, "one", "pg")
                await asyncio.to_thread(served.store.transactions.check)
                (check,) = await producer.checks(1)
                record, _ = half_of(check)
                assert string_array(record.body).to_pylist() == ["ours"]
                await producer.client.tell(answer_to(check, COMMIT))
                await asyncio.to_thread(_ended, served, 2)
                producer.client.close()

            asyncio.run(work())
            assert ours.answer_checks(Knows()) == 0
    finally:
        server.close()
    served.store.flush()
    assert sorted(committed(Path(served.store.path))) == [b"ours", b"remoting"]


def test_half_messages_outlive_the_process(tmp_path: Path) -> None:
    """It is killed between the half message and its end; the producer is asked after a restart."""
    port, store = free_port(), tmp_path / "store"
    address = f"127.0.0.1:{port}"
    settings = [
        "--set=clients=all", f"--set=listenPort={port}", "--set=vipListenPort=0",
        "--set=transactionTimeOut=0",
        "--set=transactionCheckInterval=200", "--set=transactionCheckMax=1000000",
        "--set=maxHashSlotNum=1000",
    ]  # fmt: skip

    async def put(client: RemotingClient) -> Command:
        await client.ask_for(half(b"before", group="gone"), _LONG)
        sent: Command = await client.ask_for(half(b"a"), _LONG)
        await client.ask_for(message(b"plain"), _LONG)
        return sent

    async def answer() -> None:
        producer = await Producer.of(address, "after", "pg")
        first = (await producer.checks(1))[0]
        assert first.ext["tranStateTableOffset"] == sent.ext["queueOffset"]
        assert first.ext["offsetMsgId"] == sent.ext["msgId"]
        for _ in range(3):
            await producer.client.tell(answer_to(first, COMMIT))
        assert (await producer.client.ask(answer_to(first, COMMIT), _LONG)).code == 0
        producer.client.close()

    with StoreProcess(store, tmp_path, *settings) as process:
        process.ready()
        sent = run(address, put)
        process.process.kill()
        process.wait()
    with StoreProcess(store, tmp_path, *settings) as process:
        process.ready()
        asyncio.run(answer())
        process.process.terminate()
        assert process.wait() == 0
    assert sorted(committed(store)) == [b"a", b"plain"]


# ---- as recorded ---------------------------------------------------------------------------------


def test_a_recorded_producer_is_answered_and_asked_alike(tmp_path: Path) -> None:
    """Java's producer: commit, rollback, unknown then commit, unknown then rollback, unknown."""
    told = [each for each in frames("java-transaction", "broker") if each.connection == 2]
    requests = [each for each in told if each.is_from_client and not each.header["flag"] & 1]
    checks = [each for each in told if each.header["code"] == 39]
    answers = {
        each.header["opaque"]: each
        for each in told
        if not each.is_from_client and each.header["flag"] & 1
    }
    heartbeat = next(each for each in requests if each.header["code"] == 34)
    sends = [each for each in requests if each.header["code"] == 310]
    ends = [each for each in requests if each.header["code"] == 37]
    ours_of: dict[str, Command] = {}

    async def work(served: Served) -> list[Command]:
        producer = await Producer.of(served.address, "any", "any")
        await producer.client.ask_for(_command(heartbeat), _LONG)
        for each in sends:
            ours = await producer.client.ask(_command(each), _LONG)
            theirs = answers[each.header["opaque"]].header
            assert ours.code == theirs["code"]
            assert ours.ext.keys() == theirs["extFields"].keys()
            for name in ("queueId", "MSG_REGION", "TRACE_ON"):
                assert ours.ext[name] == theirs["extFields"][name]
            ours_of[_key(_command(each).ext["i"])] = ours
        for each in ends[: len(sends)]:
            asked = _command(each)
            sent = ours_of[asked.ext["msgId"]]
            asked.ext |= end(sent, 0).ext | {
                name: asked.ext[name] for name in ("msgId", "commitOrRollback", "producerGroup")
            }
            await producer.client.tell(asked)
        await asyncio.to_thread(_ended, served, 2)
        await asyncio.to_thread(served.store.transactions.check)
        found = list(await producer.checks(3))
        by_key = {each.ext["msgId"]: each for each in found}
        for each in ends[len(sends) : len(sends) + 3]:
            asked = _command(each)
            check = by_key[asked.ext["msgId"]]
            asked.ext |= {name: check.ext[name] for name in asked.ext.keys() & check.ext.keys()}
            await producer.client.tell(asked)
        await asyncio.to_thread(_ended, served, 4)
        producer.client.close()
        return found

    with broker(tmp_path / "store", default_topic_queue_nums=4, **_NEVER) as served:
        found = asyncio.run(work(served))
        served.store.flush()
        assert served.store.stats()["transactionsWaiting"] == 1
    rows = rows_of(tmp_path / "store", "RecTran")
    assert sorted(row["keys"][0] for row in rows) == ["tx0", "tx2"]
    theirs = {each.header["extFields"]["msgId"]: each for each in checks[:3]}
    assert len(theirs) == len(found) == 3
    for ours in found:
        recorded = _command(theirs[ours.ext["msgId"]])
        _same_check(ours, recorded)
        sent = ours_of[ours.ext["msgId"]]
        # A broker asks about a copy, this store about the half message itself.
        assert ours.ext["offsetMsgId"][16:] == sent.ext["msgId"][16:]
        assert ours.ext["tranStateTableOffset"] == sent.ext["queueOffset"]


def _same_check(ours: Command, theirs: Command) -> None:
    assert ours.ext.keys() == theirs.ext.keys()
    assert (ours.flag, ours.language, ours.version) == (
        theirs.flag, theirs.language, theirs.version,
    )  # fmt: skip
    assert ours.ext["transactionId"] == theirs.ext["transactionId"]
    for check in (ours, theirs):
        record, _ = half_of(check)
        assert check.ext["tranStateTableOffset"] == str(record.queue_offset[0])
        assert check.ext["commitLogOffset"] == str(record.physical_offset[0])
        assert check.ext["offsetMsgId"].endswith(f"{record.physical_offset[0]:016X}")
        assert check.ext["offsetMsgId"].startswith(record.store_host(0).hex().upper())
    (mine, my_properties), (other, properties) = half_of(ours), half_of(theirs)
    for name in (
        "flag", "queue_id", "sys_flag", "born_timestamp", "body_crc", "reconsume_times",
        "prepared_transaction_offset",
    ):  # fmt: skip
        assert getattr(mine, name).tolist() == getattr(other, name).tolist(), name
    for name in ("topic", "body"):
        assert string_array(getattr(mine, name)) == string_array(getattr(other, name))
    # A broker sets WAIT when it copies the half message.
    assert my_properties == {**properties, "WAIT": "true"}


def _command(frame: Frame) -> Command:
    (found,) = read_frames(frame.wire)
    return found


def _key(properties: str) -> str:
    return properties.partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
