"""Who sees which page: accounts, origins, and what a configuration may not open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.errors import OptionError
from rmqstore_spark.reader import Store
from rmqstore_spark.server.status.guard import check_protection
from tests.support.accounts import KEY, SECRET, guarded
from tests.support.pages import Pages, basic, written_pages
from tests.support.processes.serving import block_of
from tests.support.waiting import eventually

FIGURES = ("/status", "/status/topics", "/status/topic?name=orders", "/status/commits")
ACCOUNTS: tuple[dict[str, Any], ...] = (
    {"admin": True},
    {"accessKey": "reader-of-orders", "topicPerms": ["orders=SUB"]},
    {"accessKey": "writer-of-all", "defaultTopicPerm": "PUB"},
    {"accessKey": "reader-of-all", "defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB"},
)


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    settings = guarded(tmp_path / "accounts.yml", *ACCOUNTS)
    with written_pages(tmp_path / "store", **settings) as found:
        assert found.store is not None
        for topic in ("orders", "secrets"):
            assert found.store.put(block_of([topic.encode()], topic)).ok
            found.wait_for(topic, 1)
        yield found


def status(pages: Pages, path: str, key: str, secret: str = SECRET) -> int:
    return pages.get(path, basic(key, secret)).status


@pytest.mark.threat("Status pages")
@pytest.mark.parametrize("path", [*FIGURES, "/status/messages?topic=orders", "/status/log"])
def test_no_page_without_an_account(pages: Pages, path: str) -> None:
    got = pages.get(path)
    assert got.status == 401
    assert got.headers["WWW-Authenticate"].startswith("Basic ")
    assert "orders" not in got.text
    for headers in (
        basic(KEY, "wrong"), basic("", ""), basic("nobody", SECRET), {"Authorization": "Basic %%"},
        {"Authorization": "Bearer " + SECRET}, {"Authorization": "Basic gICA"},
    ):  # fmt: skip
        assert pages.get(path, headers).status == 401
    assert pages.get(path, basic(KEY, SECRET)).status == 200


@pytest.mark.threat("Status pages")
def test_an_account_sees_what_it_may_ask_elsewhere(pages: Pages) -> None:
    for path in FIGURES:
        assert status(pages, path, "reader-of-orders") == 403
        assert status(pages, path, "writer-of-all") == 200
        assert status(pages, path, "reader-of-all") == 200
    assert status(pages, "/status/groups", "writer-of-all") == 403
    assert status(pages, "/status/groups", "reader-of-all") == 200
    for key in ("reader-of-orders", "writer-of-all", "reader-of-all"):
        assert status(pages, "/status/log", key) == 403
    browse = "/status/messages?topic="
    assert status(pages, f"{browse}orders", "reader-of-orders") == 200
    assert status(pages, f"{browse}secrets", "reader-of-orders") == 403
    assert status(pages, f"{browse}secrets&key=x", "reader-of-orders") == 403
    assert (
        status(pages, "/status/message?topic=secrets&queue=0&offset=0", "reader-of-orders") == 403
    )
    assert status(pages, f"{browse}orders", "writer-of-all") == 403


@pytest.mark.threat("Status pages")
def test_a_message_that_may_not_be_read_is_not_even_there(pages: Pages) -> None:
    assert pages.store is not None
    ids = {}
    with Store.open(pages.store.path) as store:
        for topic in ("orders", "secrets"):
            (ids[topic],) = [
                row["msgId"] for part in store.read(topic, 0) for row in part.to_pylist()
            ]
    account = basic("reader-of-orders", SECRET)
    assert len(pages.page(f"/status/messages?id={ids['orders']}", **account).rows) == 1
    hidden = pages.get(f"/status/messages?id={ids['secrets']}", account).text
    missing = pages.get(f"/status/messages?id={'0' * 32}", account).text
    assert hidden.replace(ids["secrets"], "ID") == missing.replace("0" * 32, "ID")
    assert "secrets" not in pages.get("/status/messages?topic=nothing", account).text


@pytest.mark.threat("Status pages")
def test_rights_that_are_lost_are_missing_at_the_next_page(pages: Pages, tmp_path: Path) -> None:
    assert status(pages, "/status", KEY) == 200
    guarded(tmp_path / "accounts.yml", {"accessKey": "somebody-else", "admin": True})
    eventually(lambda: status(pages, "/status", KEY) == 401)


def test_addresses_that_need_no_account_see_all(tmp_path: Path) -> None:
    settings = guarded(tmp_path / "accounts.yml", white=("127.0.0.1",))
    with written_pages(tmp_path / "store", **settings) as pages:
        assert pages.get("/status").status == 200


def test_a_store_that_may_not_be_read_shows_no_messages(tmp_path: Path) -> None:
    with written_pages(tmp_path / "store", broker_permission=2) as pages:
        assert pages.store is not None
        assert pages.store.put(block_of([b"x"])).ok
        pages.wait_for("orders", 1)
        assert pages.get("/status").status == 200
        assert pages.get("/status/messages?topic=orders").status == 403


@pytest.mark.threat("Status pages")
@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Host": "127.0.0.1:5557"}, True),
        ({"Host": "localhost"}, True),
        ({"Host": "[::1]:5557"}, True),
        ({"Host": "evil.example:5557"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": ""}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, False),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, False),
    ],
)
def test_pages_of_other_origins_get_nothing(
    tmp_path: Path, headers: dict[str, str], allowed: bool
) -> None:
    with written_pages(tmp_path / "store") as pages:
        assert pages.get("/status", headers).status == (200 if allowed else 403)


@pytest.mark.threat("Status pages")
@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, ""),
        ({"metrics_prom_exporter_port": -1}, "needs metricsPromExporterPort"),
        ({"metrics_prom_exporter_host": "0.0.0.0"}, "from other machines"),
        ({"metrics_prom_exporter_host": "0.0.0.0", "acl_enable": True}, "have no TLS"),
        ({"metrics_prom_exporter_host": "0.0.0.0", "allow_unprotected": True}, ""),
        ({"tls_server_trust_cert_path": "ca.pem"}, "clients need a certificate"),
        ({"tls_server_trust_cert_path": "ca.pem", "acl_enable": True}, ""),
        ({"listen_port": -1, "listen_socket": "/s"}, "only the owner of listenSocket"),
        ({"listen_port": -1, "listen_socket": "/s", "acl_enable": True}, ""),
        ({"status_page_enable": False, "metrics_prom_exporter_host": "0.0.0.0"}, ""),
    ],
)
def test_pages_open_no_store_wider_than_its_port_does(
    settings: dict[str, Any], refused: str
) -> None:
    config = StoreConfig(
        **{"status_page_enable": True, "metrics_prom_exporter_port": 0, **settings}
    )
    if not refused:
        check_protection(config)
    else:
        with pytest.raises(OptionError, match=refused):
            check_protection(config)
