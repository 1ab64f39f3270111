"""The pages as a browser gets them, without one: what they show of a store, and in which order."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.layout.constants import COMPRESSED_FLAG
from rmqstore_spark.layout.record.encode import encode_records
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.server.stores.sidecar import StorePlace
from tests.broker.broker import heartbeat
from tests.support.messages.batches import QUERY, commit_batch, stage_batch
from tests.support.messages.blocks import record_columns
from tests.support.pages import Pages, foreign_pages, written_pages
from tests.support.processes.serving import StoreProcess, block_of
from tests.support.waiting import eventually

PATHS = (
    "/status", "/status/topics", "/status/topic?name=orders", "/status/groups",
    "/status/group?name=audit", "/status/commits", "/status/messages",
    "/status/messages?topic=orders", "/status/message?topic=orders&queue=0&offset=0", "/status/log",
)  # fmt: skip


def put(store: StoreWriter, *bodies: bytes, topic: str = "orders", queue: int = 0) -> None:
    assert store.put(block_of(list(bodies), topic, [queue] * len(bodies))).ok


def put_with(store: StoreWriter, body: bytes, properties: str, sys_flag: int = 0) -> None:
    given = {
        "topic": pa.array(["orders"]),
        "queueId": pa.array([0], pa.int32()),
        "body": pa.array([body], pa.binary()),
        "properties": pa.array([properties.encode()], pa.binary()),
        "bornTimestamp": pa.array([1_700_000_000_000]),
    }
    columns = record_columns(pa.record_batch(given))
    at = columns.schema.get_field_index("sysFlag")
    columns = columns.set_column(at, "sysFlag", pa.array([sys_flag], pa.int32()))
    assert store.put(np.array(encode_records(columns).data)).ok


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    with written_pages(tmp_path / "store", clients="all") as found:
        assert found.store is not None
        found.store.create_topic("orders", read_queue_nums=4, write_queue_nums=4)
        put(found.store, b'{"n": 1}', b"two", b"\x00\xff", queue=0)
        put(found.store, b"other queue", queue=2)
        found.store.commit_offsets("audit", {"orders": {0: 1, 2: 1}})
        found.wait_for("orders", 4)
        yield found


def writer(pages: Pages) -> StoreWriter:
    assert pages.store is not None
    return pages.store


# ---- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
def test_each_page_is_whole_and_has_no_script_and_nothing_from_elsewhere(
    pages: Pages, path: str
) -> None:
    got = pages.get(path)
    page = pages.page(path)
    assert {"script", "style", "iframe", "img", "object"} & set(page.names) == set()
    assert [
        name for _, name, _ in page.attributes if name.startswith("on") or name == "style"
    ] == []
    targets = [value for _, name, value in page.attributes if name in ("href", "src", "action")]
    assert [each for each in targets if not (each or "").startswith(("/status", "#content"))] == []
    assert got.headers["Cache-Control"] == "no-store"
    assert got.headers["X-Content-Type-Options"] == "nosniff"
    assert got.headers["Referrer-Policy"] == "no-referrer"
    policy = got.headers["Content-Security-Policy"].split("; ")
    assert "default-src 'none'" in policy
    assert [each for each in policy if "unsafe" in each or "*" in each or "http" in each] == []
    assert page.names.count("h1") == 1


def test_the_overview_shows_what_the_store_does(pages: Pages) -> None:
    put(writer(pages), *[b"x"] * 50)
    pages.wait_for("orders", 54)
    eventually(lambda: pages.samples() > 1)
    texts = pages.page("/status").texts
    assert "RUNNING" in texts
    assert "ASYNC_MASTER" in texts
    assert "messages in 2 queues of 1 topic" in texts
    assert texts[texts.index("In the store") + 1] == "54"
    assert texts[texts.index("Kept") + 1] == "for ever"


def test_what_comes_shows_as_a_rate_and_in_a_plot(pages: Pages) -> None:
    def has_rate() -> bool:  # two samples have the queue: the first ones can be older than it
        return pages.page("/status/topic?name=orders").rows[0][4] != "-"

    def has_risen() -> bool:
        past = pages.site.stores["broker-a"].look_back(lambda history: history.messages("orders"))
        return max(past, default=0) > 0

    eventually(has_rate)
    put(writer(pages), *[b"x"] * 1000)
    eventually(has_risen)
    page = pages.page("/status/topic?name=orders")
    assert ("polyline", "class", "line") in page.attributes
    (first, _) = page.rows
    assert first[:4] == ["0", "0", "1,003", "1,003"]


def test_topics_are_ordered_found_and_paged(pages: Pages) -> None:
    for number in range(120):
        put(writer(pages), *[b"x"] * (1 + number % 7), topic=f"topic-{number:03}")
        pages.wait_for(f"topic-{number:03}", 1 + number % 7)
    names = [row[0] for row in pages.page("/status/topics").rows]
    assert names == ["orders", *(f"topic-{number:03}" for number in range(99))]
    rest = pages.page("/status/topics?page=2")
    assert len(rest.rows) == 21
    assert [row[0] for row in pages.page("/status/topics?page=999").rows] == [
        row[0] for row in rest.rows
    ]
    by_count = [int(row[2]) for row in pages.page("/status/topics?order=messages").rows]
    assert by_count == sorted(by_count, reverse=True)
    assert by_count[0] == 7
    found = pages.page("/status/topics?find=TOPIC-01")
    assert [row[0] for row in found.rows] == [f"topic-{number:03}" for number in range(10, 20)]


def test_groups_show_their_lag_and_who_consumes(pages: Pages) -> None:
    async def consume() -> None:
        async with await RemotingClient.connect(_broker(pages), seconds=30) as client:
            await client.ask(heartbeat("10.0.0.7@4711", {"orders": "*"}, "billing"), 30)
            page = await asyncio.to_thread(pages.page, "/status/groups?order=name")
            assert [row[0] for row in page.rows] == ["audit", "billing"]
            assert page.rows[1][2] == "1"
            one = await asyncio.to_thread(pages.page, "/status/group?name=billing")
            assert one.rows[-1][0] == "10.0.0.7@4711"
            assert one.rows[-1][1].startswith("127.0.0.1:")

    asyncio.run(consume())
    page = pages.page("/status/groups")
    assert page.rows[0] == ["audit", "orders", "-", "2"]
    one = pages.page("/status/group?name=audit")
    assert [row[1:5] for row in one.rows] == [["0", "1", "3", "2"], ["2", "1", "1", "0"]]


def _broker(pages: Pages) -> str:
    address = pages.service.broker
    assert address is not None
    return address


def test_commits_are_shown_by_query(pages: Pages) -> None:
    store = writer(pages)
    for number in range(3):
        assert commit_batch(store, number).status == "COMMITTED"
    other = CommitRequest(WriterId.of_batch("nightly", 7), stage_batch(store, "other"))
    assert store.batches.commit(other).status == "COMMITTED"
    rows = eventually(lambda: _commits(pages, 2))
    assert rows[0][0].startswith("nightly")
    assert rows[0][1] == "7"
    assert rows[1][0].startswith(QUERY)
    assert (rows[1][1], rows[1][3]) == ("2", "120")
    assert rows[1][5] == "bills, orders"
    assert rows[1][2].startswith("20")


def _commits(pages: Pages, count: int) -> list[list[str]] | None:
    rows = pages.page("/status/commits").rows
    return rows if len(rows) == count and rows[1][1] == "2" else None


def test_what_is_logged_as_wrong_is_shown(pages: Pages) -> None:
    logging.getLogger("rmqstore_spark.engine.health").error("the disk %s\nburns", "<b>sda</b>")
    logging.getLogger("rmqstore_spark.engine.health").info("all is well")
    (row,) = pages.page("/status/log").rows
    assert row[1] == "ERROR"
    assert row[2].startswith("the disk <b>sda</b>\\nburns")


def test_a_page_is_refreshed_only_if_the_reader_wants_that(pages: Pages) -> None:
    page = pages.page("/status/topics?order=rate")
    assert "http-equiv" not in [name for _, name, _ in page.attributes]
    assert "/status/topics?order=rate&refresh=on" in page.links()
    again = pages.page("/status/topics?order=rate&refresh=on")
    assert ("meta", "http-equiv", "refresh") in again.attributes
    assert "/status/topics?order=rate" in again.links()
    still = pages.page("/status/messages?topic=orders&refresh=on")
    assert "http-equiv" not in [name for _, name, _ in still.attributes]


# ---- messages ----------------------------------------------------------------------------------


def test_messages_of_a_queue_are_read_by_offset(pages: Pages) -> None:
    put(writer(pages), *(f"m{number}".encode() for number in range(60)), queue=1)

    def offsets(query: str) -> list[int]:
        rows = pages.page(f"/status/messages?topic=orders&queue=1{query}").rows
        return [int(row[1]) for row in rows]

    pages.wait_for("orders", 64)
    assert offsets("") == list(range(40, 60))  # the newest
    assert offsets("&offset=5") == list(range(5, 25))
    assert offsets("&offset=9999") == []
    page = pages.page("/status/messages?topic=orders&queue=1&offset=30")
    assert page.rows[0][6] == "m30"
    links = page.links()
    assert "/status/messages?offset=10&topic=orders&queue=1" in links
    assert "/status/messages?offset=50&topic=orders&queue=1" in links
    assert pages.page("/status/messages?topic=orders").rows[0][0] == "0"


def test_messages_are_found_by_key_and_by_both_ids(pages: Pages) -> None:
    put_with(writer(pages), b"paid", "KEYS\x01o-17 o-18\x02UNIQ_KEY\x010A00000700001234")
    pages.wait_for("orders", 5)
    for query in ("key=o-18", "key=0A00000700001234", "id=0A00000700001234"):
        rows = pages.page(f"/status/messages?topic=orders&{query}").rows
        assert [row[6] for row in rows] == ["paid"], query
        assert rows[0][4] == "o-17 o-18"
    with Store.open(writer(pages).path) as store:
        (row,) = (one for part in store.read("orders", 0, 3) for one in part.to_pylist())
    rows = pages.page(f"/status/messages?id={row['msgId']}").rows
    assert [each[6] for each in rows] == ["paid"]
    assert pages.page("/status/messages?id=" + "0" * 32).rows == []
    assert pages.page("/status/messages?topic=orders&key=nobody").rows == []
    assert pages.get("/status/messages?key=o-17").status == 400


def test_a_body_is_shown_in_the_form_that_fits_or_is_wanted(pages: Pages) -> None:
    def body(offset: int, form: str = "") -> str:
        text = pages.get(f"/status/message?topic=orders&queue=0&offset={offset}{form}").text
        return text.partition("<pre")[2].partition(">")[2].partition("</pre>")[0]

    assert body(0) == "{\n  &quot;n&quot;: 1\n}"
    assert body(0, "&form=text") == "{&quot;n&quot;: 1}"
    assert body(1) == "two"
    assert body(1, "&form=json") == "two"
    assert body(2).startswith("00000000  00 ff ")
    assert body(2, "&form=text") == "\\x00�"
    put_with(writer(pages), b"null", "A\x01b")
    pages.wait_for("orders", 5)
    assert body(3, "&form=json") == "null"


def test_a_compressed_body_is_unpacked_when_it_is_shown_alone(pages: Pages) -> None:
    put_with(writer(pages), zlib.compress(b"long " * 5000), "A\x01b", COMPRESSED_FLAG)
    pages.wait_for("orders", 5)
    page = pages.page("/status/messages?topic=orders&queue=0")
    assert page.rows[3][6] == "compressed"
    alone = pages.page("/status/message?topic=orders&queue=0&offset=3")
    assert any(text.startswith("long long") for text in alone.texts)
    assert "24.4 KiB" in alone.texts


def test_a_large_body_is_cut_and_deep_json_takes_little(pages: Pages) -> None:
    put_with(writer(pages), b"y" * 300_000, "A\x01b")
    put_with(writer(pages), b"[" * 700 + b"1," * 20_000 + b"1" + b"]" * 700, "A\x01b")
    pages.wait_for("orders", 6)
    large = pages.get("/status/message?topic=orders&queue=0&offset=3")
    assert 64 << 10 < len(large.text) < 80 << 10
    assert "the first 64.0 KiB are shown" in large.text
    deep = pages.get("/status/message?topic=orders&queue=0&offset=4&form=json")
    assert deep.status == 200
    assert len(deep.text) < 1 << 20


def test_the_properties_of_a_message_are_shown(pages: Pages) -> None:
    put_with(writer(pages), b"x", "TAGS\x01paid\x02color\x01<red>")
    pages.wait_for("orders", 5)
    page = pages.page("/status/message?topic=orders&queue=0&offset=3")
    assert page.rows == [["TAGS", "paid"], ["color", "<red>"]]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/status/nothing", 404),
        ("/status/", 200),
        ("/statusx", 404),
        ("/status/../metrics", 404),
        ("/status/%2e%2e/etc/passwd", 404),
        ("/status/style.css/../../site.py", 404),
        ("/status?store=other", 404),
        ("/status/topic", 400),
        ("/status/topic?name=nothing", 404),
        ("/status/group?name=nobody", 404),
        ("/status/messages?topic=nothing", 404),
        ("/status/messages?topic=orders&queue=9", 404),
        ("/status/messages?topic=orders&offset=-1", 400),
        ("/status/messages?topic=orders&offset=1e3", 400),
        ("/status/messages?topic=orders&offset=" + "9" * 19, 400),
        ("/status/message?topic=orders&queue=0", 400),
        ("/status/message?topic=orders&queue=0&offset=99", 404),
        ("/status/message?topic=../../etc&queue=0&offset=0", 404),
        ("/status?" + "&".join(f"a{n}=1" for n in range(40)), 400),
        ("/status?store=" + "x" * 7000, 404),
    ],
)
def test_what_is_not_there_is_said(pages: Pages, path: str, status: int) -> None:
    got = pages.get(path)
    assert got.status == status, got.text
    assert len(got.text) < 8000


def test_pages_are_read_only(pages: Pages) -> None:
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        got = pages.get("/status", method=method)
        assert got.status == 501
        assert got.headers["Content-Type"].startswith("text/plain")
        assert "Content-Security-Policy" in got.headers
    head = pages.get("/status/topics", method="HEAD")
    assert (head.status, head.text) == (200, "")
    assert int(head.headers["Content-Length"]) > 1000


@pytest.mark.parametrize("is_on", [False, True])
def test_a_process_has_pages_only_if_it_is_told_to(tmp_path: Path, is_on: bool) -> None:
    given = ["--set=metricsPromExporterPort=0"] + ["--set=statusPageEnable=true"] * is_on
    with StoreProcess(tmp_path / "store", tmp_path, *given) as process:
        address = process.ready()["metrics"]
        status = urllib.request.Request(f"http://{address}/status")
        if is_on:
            with urllib.request.urlopen(status) as answer:
                assert b"RUNNING" in answer.read()
            assert f"pages on http://{address}/status" in process.output
        else:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(status)


# ---- stores of others --------------------------------------------------------------------------


def test_stores_of_others_are_shown_side_by_side(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with StoreWriter.open(tmp_path / name) as store:
            put(store, *[name.encode()] * 3, topic=f"of-{name}")
            commit_batch(store, 0)
    places = [StorePlace(name, str(tmp_path / name)) for name in ("a", "b")]
    with foreign_pages(places) as pages:
        first = pages.page("/status")
        assert "READ_ONLY" in first.texts
        assert "/status?store=b" in first.links()
        other = pages.page("/status/topics?store=b&find=of-")
        assert [row[:3] for row in other.rows] == [["of-b", "1", "3"]]
        assert "/status/topic?store=b&name=of-b" in other.links()
        rows = pages.page("/status/messages?store=b&topic=of-b").rows
        assert [row[6] for row in rows] == ["b"] * 3
        assert len(pages.page("/status/commits?store=b").rows) == 1


def test_a_store_that_is_gone_is_said(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "a") as store:
        put(store, b"x")
    with foreign_pages([StorePlace("a", str(tmp_path / "a"))]) as pages:
        (tmp_path / "a").rename(tmp_path / "gone")
        texts = eventually(lambda: _failed(pages))
        assert any("a" in text for text in texts)


def _failed(pages: Pages) -> list[str] | None:
    texts = pages.page("/status").texts
    return texts if "FAILED" in texts else None


def test_the_pages_are_those_of_the_moment(pages: Pages) -> None:
    before = json.dumps(pages.page("/status/topic?name=orders").rows)
    put(writer(pages), b"one more", queue=0)
    eventually(lambda: json.dumps(pages.page("/status/topic?name=orders").rows) != before)
