"""Names, bodies and requests that try to be more than text, and clients that try to take all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.server.status.markup import element, lines
from rmqstore_spark.server.stores.sidecar import StorePlace
from tests.support.pages import Pages, foreign_pages, read_page
from tests.support.stores.hostile import BODIES, GROUP, SCRIPT, TOPICS, hostile_store


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    path = tmp_path_factory.mktemp("hostile") / "store"
    hostile_store(path)
    with foreign_pages([StorePlace("hostile", str(path))]) as found:
        yield found


def assert_is_harmless(page: Any) -> None:
    """Check that a page has no element and no attribute but those that pages have."""
    assert {"script", "img", "svg/onload", "b", "iframe"} & set(page.names) == set()
    assert page.names.count("body") == page.names.count("main") == page.names.count("head") == 1
    for _, name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("href", "src", "action"):
            assert (value or "").startswith(("/status", "#content"))


@pytest.mark.threat("Status pages")
@pytest.mark.parametrize("topic", TOPICS)
def test_names_and_bodies_are_text_and_nothing_else(pages: Pages, topic: str) -> None:
    name = quote(topic, safe="")
    listed = pages.page("/status/topics")
    assert_is_harmless(listed)
    assert escaped(topic) in [row[0] for row in listed.rows]
    assert f"/status/topic?name={quote(topic, safe='')}" in [
        link.replace("+", "%20") for link in listed.links()
    ]
    for path in (
        f"/status/topic?name={name}",
        f"/status/messages?topic={name}",
        f"/status/messages?topic={name}&key={quote(SCRIPT)}",
        f"/status/messages?topic={name}&id={quote(SCRIPT)}",
        f"/status/topics?find={name}",
        "/status/groups",
        f"/status/group?name={quote(GROUP)}",
    ):
        assert_is_harmless(pages.page(path))
    for offset in range(len(BODIES)):
        for form in ("", "json", "text", "hex"):
            at = f"/status/message?topic={name}&queue=0&offset={offset}&form={form}"
            page = pages.page(at)
            assert_is_harmless(page)
            assert SCRIPT in "".join(page.texts)  # a key


def test_bodies_are_shown_as_they_are(pages: Pages) -> None:
    topic = quote(TOPICS[0])
    text = pages.page(f"/status/message?topic={topic}&queue=0&offset=0&form=text").texts
    assert SCRIPT in text
    turned = pages.page(f"/status/message?topic={topic}&queue=0&offset=4&form=text").texts
    assert r"\u202ereversed\x1b[31m" in turned


@pytest.mark.threat("Status pages")
@given(
    path=st.sampled_from(
        ["", "/topics", "/topic", "/groups", "/group", "/messages", "/message", "/commits", "/x"]
    ),
    fields=st.dictionaries(
        st.sampled_from(
            ["name", "topic", "queue", "offset", "key", "id", "form", "order", "page", "find"]
        )
        | st.text(max_size=8),
        st.text(max_size=40) | st.sampled_from([*TOPICS, "0", "1", "-1", "99", SCRIPT, "hex"]),
        max_size=6,
    ),
)
def test_any_query_gives_a_page_or_says_why_not(
    pages: Pages, path: str, fields: dict[str, str]
) -> None:
    query = "&".join(
        f"{quote(n, errors='replace')}={quote(v, errors='replace')}" for n, v in fields.items()
    )
    got = pages.get(f"/status{path}?{query}")
    assert got.status in (200, 400, 404)
    assert "script" not in _elements(got.text)
    if got.status == 200:
        assert_is_harmless(read_page(got))


def _elements(text: str) -> set[str]:
    found = set()

    class Names(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.add(tag)

    Names().feed(text)
    return found


@pytest.mark.threat("Status pages")
@given(st.text(), st.text())
def test_any_text_stays_text(text: str, value: str) -> None:
    """What comes back from a parser is what went in, with what is not printable escaped."""
    found: list[str] = []
    values: list[str | None] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append(f"<{tag}>")
            values.extend(value for _, value in attrs)

        def handle_data(self, data: str) -> None:
            found.append(data)

    reader = Reader()
    reader.feed(element("p", text, title=value) + lines(text.replace("\r", "")))
    reader.close()
    assert values == [escaped(value)]
    shown = "".join(found[1:])
    assert found[0] == "<p>"
    assert shown.startswith(escaped(text))
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)


@pytest.mark.threat("Status pages")
def test_those_who_read_messages_keep_no_other_page_out(pages: Pages) -> None:
    with pages.site.reading():
        topic = quote(TOPICS[0])
        got = pages.get(f"/status/messages?topic={topic}")
        assert got.status == 503
        assert got.headers["Retry-After"]
        assert pages.get("/status/topics").status == 200
    assert pages.get(f"/status/messages?topic={topic}").status == 200


@pytest.mark.threat("Status pages")
def test_pages_keep_metrics_and_health_not_out(pages: Pages) -> None:
    """All places of pages are taken, and more ask; the rest of the port answers."""
    with ExitStack() as taken:
        for _ in range(4):
            taken.enter_context(pages.site.taken(pages.site._making))
        answers: list[int] = []
        asking = [
            threading.Thread(target=lambda: answers.append(pages.get("/status").status))
            for _ in range(10)
        ]
        for thread in asking:
            thread.start()
        for _ in range(5):
            assert pages.get("/healthz").status == 200
            assert pages.get("/metrics").status == 200
        for thread in asking:
            thread.join()
        assert answers == [503] * 10
    assert pages.get("/status").status == 200
