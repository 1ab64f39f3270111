from __future__ import annotations

import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.wire.endpoint import Endpoint, parse_endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("rmq://localhost:10921", Endpoint("rmq", "localhost", 10921)),
        ("RMQ://10.0.0.1:1/", Endpoint("rmq", "10.0.0.1", 1)),
        (" rmqs://store.example:443 ", Endpoint("rmqs", "store.example", 443)),
        ("rmq://[::1]:10921", Endpoint("rmq", "::1", 10921)),
        ("unix:/run/store.sock", Endpoint("unix", path="/run/store.sock")),
        ("rmq://h:1#broker-a", Endpoint("rmq", "h", 1, store="broker-a")),
        ("unix:/s#b_1.x", Endpoint("unix", path="/s", store="b_1.x")),
    ],
)  # fmt: skip
def test_endpoints(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost:10921",
        "rmq://",
        "rmq://localhost",
        "rmq://localhost:",
        "rmq://localhost:0",
        "rmq://localhost:65536",
        "rmq://localhost:99999999",
        "rmq://\u00e9.example:10921",
        "rmq://a\0b:10921",
        "rmq://:10921",
        "rmq://user:secret@host:10921",
        "rmq://host:10921/path",
        "rmq://host:10921?x=1",
        "rmq://host:10921#",
        "rmq://host:10921#a#b",
        "rmq://host:10921#a/b",
        "unix:/s#" + "x" * 128,
        "rmq://::1:10921",
        "http://host:10921",
        "grpc+tcp://host:10921",
        "unix:run/store.sock",
        "unix:",
        "unix:/folder/",
        "unix:/" + "x" * 107,
        "unix:/a\0b",
        "/data/store",
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(OptionError, match="rmq://HOST:PORT"):
        parse_endpoint(text)


def test_an_address_without_its_scheme() -> None:
    with pytest.raises(OptionError, match="it lacks the scheme rmq://"):
        parse_endpoint("localhost:10921")


def test_lists() -> None:
    both = parse_endpoints("rmq://a:1, unix:/s")
    assert [str(endpoint) for endpoint in both] == ["rmq://a:1", "unix:/s"]
    with pytest.raises(OptionError, match="twice"):
        parse_endpoints("rmq://a:1,rmq://b:1,rmq://a:1")
    with pytest.raises(OptionError):
        parse_endpoints("rmq://a:1,")
