"""The pages of the metrics port, of stores that this process serves."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.server.monitoring import Monitoring
from rmqstore_spark.server.server import StoreServer
from rmqstore_spark.server.status.site import StatusSite
from rmqstore_spark.server.stores.served import ServedPort, StoreService
from rmqstore_spark.server.stores.sidecar import Sidecar, StorePlace
from rmqstore_spark.server.stores.written import WriterService
from tests.support.processes.serving import port_of, server_of
from tests.support.waiting import eventually

__all__ = ["Document", "Got", "Pages", "basic", "foreign_pages", "read_page", "written_pages"]

SOON = 0.05
"""Seconds between two samples of the figures."""


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: Mapping[str, str]
    text: str


class Document(HTMLParser):
    """What a page holds.

    Attributes:
        names: the elements, in order.
        attributes: all attributes, with the name of their element.
        open: the elements that have not ended.
        texts: the texts, without spaces around them.
        cells: the texts of each row of tables.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.cells: list[list[str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("meta", "link", "input", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.cells.append([])
        if tag == "td":
            self.cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())
        if "td" in self.open:
            self.cells[-1][-1] += data

    @property
    def rows(self) -> list[list[str]]:
        """The rows of tables without their heads."""
        return [row for row in self.cells if row]

    def links(self) -> list[str]:
        """Where its links lead."""
        return [value or "" for tag, name, value in self.attributes if (tag, name) == ("a", "href")]


class Pages(NamedTuple):
    """Pages that are served."""

    address: str
    site: StatusSite
    store: StoreWriter | None
    server: StoreServer
    service: StoreService

    def get(self, path: str, headers: Mapping[str, str] = {}, method: str = "GET") -> Got:
        """Ask for a page."""
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            connection.request(method, path, headers=dict(headers))
            answer = connection.getresponse()
            return Got(answer.status, dict(answer.headers), answer.read().decode())
        finally:
            connection.close()

    def page(self, path: str, **headers: str) -> Document:
        """Ask for a page that is there."""
        return read_page(self.get(path, headers))

    def wait_for(self, topic: str, count: int) -> None:
        """Wait until the figures of the first store have so many messages of a topic."""
        watched = next(iter(self.site.stores.values()))

        def has_all() -> bool:
            queues = watched.figures().stats["queues"].get(topic, {})
            return sum(end - first for first, end in queues.values()) == count

        eventually(has_all)

    def samples(self) -> int:
        """How many samples the first store's history has."""
        watched = next(iter(self.site.stores.values()))
        found: int = watched.look_back(lambda past: len(past.messages()))
        return found


def read_page(got: Got) -> Document:
    """Read a page, all of whose elements must end."""
    assert got.status == 200, got.text
    document = Document(got.text)
    assert document.open == []
    return document


def basic(key: str, secret: str) -> dict[str, str]:
    """The header with which a browser names an account."""
    return {"Authorization": "Basic " + base64.b64encode(f"{key}:{secret}".encode()).decode()}


@contextmanager
def written_pages(path: Path, seconds: float = SOON, **settings: Any) -> Iterator[Pages]:
    """Serve a store, and pages of it.

    Args:
        path: the store.
        seconds: between two samples of its figures.
        settings: attributes of StoreConfig.
    """
    given = {"listen_port": 0, "mapped_file_size_commit_log": 1 << 20}
    config = StoreConfig(**{**given, **settings})
    port = port_of(config)
    assert port.bound is not None
    config = config.listening_on(port.bound.getsockname()[1])
    with port.protection.watched(), StoreWriter.open(path, config) as store:
        service = WriterService(store, None)
        server = server_of(service.stores, config, port)
        try:
            # A broker listens itself; the server does otherwise.
            own = port.bound if config.is_broker else None
            service.start(ServedPort(own, port.protection, server.endpoints, server.protocol))
            with _served(service, server, store, port, seconds) as pages:
                yield pages
        finally:
            server.close()
            service.close()


@contextmanager
def foreign_pages(places: Sequence[StorePlace], seconds: float = SOON) -> Iterator[Pages]:
    """Serve stores read-only, and pages of them."""
    config = StoreConfig(listen_port=0)
    port = port_of(config)
    service = Sidecar(places, config, spares_page_cache=True, max_read_rate=None)
    server = server_of(service.stores, config, port)
    try:
        with _served(service, server, None, port, seconds) as pages:
            yield pages
    finally:
        server.close()


@contextmanager
def _served(
    service: StoreService,
    server: StoreServer,
    store: StoreWriter | None,
    port: ServedPort,
    seconds: float,
) -> Iterator[Pages]:
    site = StatusSite(service, server.stats, port.protection.accounts, seconds)
    monitoring = Monitoring(lambda: {**service.stats(), **server.stats()}, "127.0.0.1", 0, site)
    try:
        yield Pages(monitoring.address, site, store, server, service)
    finally:
        monitoring.close()
        site.close()
