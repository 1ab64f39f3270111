"""The pages in a real browser: what it shows, asks for and runs, and how a keyboard moves in them.

With SCREENSHOTS=docs, the pictures that docs/operate.md shows are made again, in that folder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pytest

from rmqstore_spark.base.types import CommitRequest, StageInfo, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.remoting.client import RemotingClient
from rmqstore_spark.server.status import watched
from rmqstore_spark.server.stores.sidecar import StorePlace
from tests.broker.broker import heartbeat
from tests.support.messages.batches import stage_id
from tests.support.messages.blocks import encoded
from tests.support.pages import Pages, foreign_pages, written_pages
from tests.support.pictures import save_picture
from tests.support.processes.chromium import Chromium, find_chromium
from tests.support.stores.hostile import BODIES, TOPICS, hostile_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no Chromium is installed (apt-get install chromium)"
)

ROOT = Path(__file__).resolve().parents[3]
QUERIES = ("b7c1d0f2-4a5e-4b7a-9d5e-3f1f0f6c2a11", "0e9f4c86-7d21-4f2c-8a37-5d6b1c9e8f02")
TOPICS_SHOWN = ("orders", "payments", "shipments", "invoices", "returns", "stock", "audit")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chromium]:
    with Chromium(tmp_path / "profile") as found:
        yield found


# ---- hostile content ---------------------------------------------------------------------------


@pytest.mark.threat("Status pages")
def test_nothing_in_a_store_runs_or_asks_for_anything(browser: Chromium, tmp_path: Path) -> None:
    hostile_store(tmp_path / "store")
    with foreign_pages([StorePlace("hostile", str(tmp_path / "store"))]) as pages:
        root = f"http://{pages.address}"
        paths = ["/status", "/status/topics", "/status/groups", "/status/messages"]
        for topic in TOPICS:
            name = quote(topic, safe="")
            paths += [f"/status/topic?name={name}", f"/status/messages?topic={name}"]
            paths += [
                f"/status/message?topic={name}&queue=0&offset={offset}"
                for offset in range(len(BODIES))
            ]
        for path in paths:
            browser.open(root + path)
            assert browser.value("document.querySelector('main h1') !== null"), path
            assert browser.value("document.scripts.length") == 0
            assert browser.value("document.querySelectorAll('img, iframe, object').length") == 0
        shown = browser.value("[...document.querySelectorAll('pre')].map(e => e.textContent)")
        assert shown[0].startswith("[[[[")
        browser.open(f"{root}/status/topics")
        names = browser.value(
            "[...document.querySelectorAll('td:first-child a')].map(e => e.textContent)"
        )
        assert sorted(names) == sorted(TOPICS)
        assert [url for url in browser.requested if not url.startswith(f"{root}/status")] == []
        assert browser.said == []


@pytest.mark.threat("Status pages")
def test_the_policy_stops_what_would_get_into_a_page(browser: Chromium, tmp_path: Path) -> None:
    """Were a text not escaped, it still could not run, load, or look like something else."""
    with written_pages(tmp_path / "store") as pages:
        browser.open(f"http://{pages.address}/status")
        browser.value(
            "document.body.insertAdjacentHTML('beforeend', "
            '\'<img src=http://127.0.0.1:9/x.png onerror="document.title=1">'
            '<p id=p style="position:fixed"></p>\')'
        )
        browser.value(
            "(() => { const s = document.createElement('script'); "
            "s.textContent = 'document.title = 2'; document.body.append(s) })()"
        )
        assert "Overview" in browser.value("document.title")
        assert browser.value("getComputedStyle(document.getElementById('p')).position") == "static"
        eventually(lambda: browser.value("1") and len(browser.said) >= 3)
        assert all("Content Security Policy" in text for text in browser.said)


# ---- use ---------------------------------------------------------------------------------------


def focused(browser: Chromium) -> str:
    return str(browser.value("document.activeElement.textContent || document.activeElement.name"))


def test_all_is_reached_with_the_keyboard(browser: Chromium, tmp_path: Path) -> None:
    with written_pages(tmp_path / "store") as pages:
        fill(pages)
        browser.open(f"http://{pages.address}/status")
        browser.press("Tab")
        assert focused(browser) == "Skip to content"
        assert browser.value("document.activeElement.getBoundingClientRect().left") >= 0
        for _ in range(5):
            browser.press("Tab")
        assert focused(browser) == "Messages"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert browser.value(outline) == "solid"
        browser.press("Enter", follows=True)
        assert browser.value("document.querySelector('h1').textContent") == "Messages"
        while focused(browser) != "topic":
            browser.press("Tab")
        browser.write("orders")
        browser.press("Enter", follows=True)
        assert browser.value("document.querySelectorAll('tbody tr').length") > 1
        browser.ask("Runtime.evaluate", expression="document.querySelector('td a').focus()")
        browser.press("Enter", follows=True)
        assert browser.value("document.querySelector('h1').textContent") == "Message"
        assert browser.said == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_in_light_and_dark(browser: Chromium, tmp_path: Path, dark: bool) -> None:
    """Each text and its ground differ by 4.5 to 1, as WCAG AA wants it."""
    with written_pages(tmp_path / "store") as pages:
        fill(pages)
        browser.dark(dark)
        for path in ("/status", "/status/messages?topic=orders", "/status/log"):
            browser.open(f"http://{pages.address}{path}")
            found = browser.value(_COLOURS)
            assert len(found) > 5
            for text, ground, sample in found:
                assert contrast(text, ground) >= 4.5, (sample, text, ground)
            is_dark = luminance(browser.value("getComputedStyle(document.body).backgroundColor"))
            assert (is_dark < 0.1) is dark


_COLOURS = """
[...document.querySelectorAll('main *, header *, footer *')]
  .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()))
  .filter(e => !e.closest('svg'))
  .map(e => {
    let g = e;
    while (g && getComputedStyle(g).backgroundColor == 'rgba(0, 0, 0, 0)') g = g.parentElement;
    return [getComputedStyle(e).color, getComputedStyle(g).backgroundColor, e.textContent];
  })
"""


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [360, 1180])
def test_pages_fit_the_window(browser: Chromium, tmp_path: Path, width: int) -> None:
    with written_pages(tmp_path / "store") as pages:
        fill(pages)
        browser.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        for path in (
            "/status",
            "/status/topics",
            "/status/commits",
            "/status/messages?topic=orders",
        ):
            browser.open(f"http://{pages.address}{path}")
            assert browser.value("document.documentElement.scrollWidth") <= width, path


# ---- pictures ----------------------------------------------------------------------------------


def block(topic: str, count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    keys = [f"{topic[0]}-{number}" for number in random.integers(10_000, 99_999, count)]
    bodies = [
        json.dumps({"id": key, "amount": round(float(amount), 2), "currency": "EUR"}).encode()
        for key, amount in zip(keys, random.gamma(2.0, 40.0, count), strict=True)
    ]
    return encoded(
        pa.record_batch(
            {
                "topic": pa.array([topic] * count),
                "queueId": pa.array(random.integers(0, 4, count), pa.int32()),
                "body": pa.array(bodies, pa.binary()),
                "properties": pa.array([f"KEYS\x01{k}\x02TAGS\x01paid".encode() for k in keys]),
                "bornTimestamp": pa.array([1_700_000_000_000] * count),
            }
        )
    )


def commit(store: StoreWriter, query: str, number: int, rows: int) -> None:
    stage = store.batches.begin_stage(stage_id(f"{query}/{number}"), "task")
    stage.append(block("payments", rows, number))
    info: StageInfo = stage.finish()
    request = CommitRequest(WriterId.of_stream(query, number), (info,))
    assert store.batches.commit(request).status == "COMMITTED"


def fill(pages: Pages, rounds: int = 1) -> None:
    """Let a store have a history: messages that come in waves, commits, groups, a warning."""
    store = pages.store
    assert store is not None
    for number in range(rounds):
        height = 1 + np.sin(number / 4) + number % 3 / 4
        for place, topic in enumerate(TOPICS_SHOWN):
            assert store.put(block(topic, int(1 + 60 * height / (1 + place)), number)).ok
        for place, query in enumerate(QUERIES):
            if number % (place + 1) == 0:
                commit(store, query, number // (place + 1), int(20 + 30 * height))
        before = pages.samples()
        eventually(lambda seen=before: pages.samples() > seen or pages.samples() >= 60)
    store.commit_offsets("billing", {"orders": dict.fromkeys(range(4), 3)})
    store.commit_offsets("warehouse", {"orders": {0: 1}, "shipments": {0: 2}})
    logging.getLogger("rmqstore_spark.engine.expiry.archive").warning(
        "The segment 00000000000000000000 was not archived: /mnt/archive is not mounted. It stays, "
        "and is copied in the next round."
    )
    eventually(lambda: len(pages.page("/status/topics").rows) > len(TOPICS_SHOWN))


@pytest.mark.slow
def test_pictures_for_the_documentation(
    browser: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes of a store pass in six seconds."""
    clock = SimpleNamespace(time=time.time, monotonic=lambda: 100 * time.monotonic())
    monkeypatch.setattr(watched, "time", clock)
    told = os.environ.get("SCREENSHOTS")
    folder = ROOT / told if told else tmp_path

    async def beat(pages: Pages) -> None:
        address = pages.service.broker
        assert address is not None
        async with AsyncExitStack() as clients:
            for number in range(2):
                client = await RemotingClient.connect(address, seconds=30)
                await clients.enter_async_context(client)
                asked = heartbeat(
                    f"10.0.0.{7 + number}@{4711 + number}", {"orders": "*"}, "billing"
                )
                await client.ask(asked, 30)
            await asyncio.to_thread(take, pages)

    def take(pages: Pages) -> None:
        root = f"http://{pages.address}/status"
        for name, path, dark in (
            ("status-overview", "", False),
            ("status-commits", "/commits", False),
            ("status-message", "/message?topic=orders&queue=1&offset=5", True),
        ):
            browser.dark(dark)
            browser.open(root + path)
            assert browser.value("document.querySelectorAll('main table, main dl').length") > 0
            save_picture(browser.picture(), folder / f"{name}.png")

    with written_pages(tmp_path / "store", seconds=0.1, clients="all") as pages:
        fill(pages, rounds=55 if told else 14)
        asyncio.run(beat(pages))
