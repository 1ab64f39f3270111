from __future__ import annotations

import pytest

from rmqstore_spark.errors import OptionError
from rmqstore_spark.wire.endpoint import Endpoint, parse_endpoint, parse_endpoints


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("grpc://localhost:10921", Endpoint("grpc", "localhost", 10921)),
        ("GRPC://10.0.0.1:1/", Endpoint("grpc", "10.0.0.1", 1)),
        (" grpc+tls://store.example:443 ", Endpoint("grpc+tls", "store.example", 443)),
        ("grpc://[::1]:10921", Endpoint("grpc", "::1", 10921)),
        ("grpc+unix:///run/store.sock", Endpoint("grpc+unix", path="/run/store.sock")),
        ("grpc://h:1#broker-a", Endpoint("grpc", "h", 1, store="broker-a")),
        ("grpc+unix:///s#b_1.x", Endpoint("grpc+unix", path="/s", store="b_1.x")),
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
        "grpc://",
        "grpc://localhost",
        "grpc://localhost:",
        "grpc://localhost:0",
        "grpc://localhost:65536",
        "grpc://localhost:99999999",
        "grpc://\u00e9.example:10921",
        "grpc://a\0b:10921",
        "grpc://:10921",
        "grpc://user:secret@host:10921",
        "grpc://host:10921/path",
        "grpc://host:10921?x=1",
        "grpc://host:10921#",
        "grpc://host:10921#a#b",
        "grpc://host:10921#a/b",
        "grpc+unix:///s#" + "x" * 128,
        "grpc://::1:10921",
        "http://host:10921",
        "grpc+tcp://host:10921",
        "grpc+unix://run/store.sock",
        "grpc+unix://",
        "grpc+unix:///folder/",
        "grpc+unix:///" + "x" * 107,
        "grpc+unix:///a\0b",
        "/data/store",
    ],
)
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(OptionError, match="grpc://HOST:PORT"):
        parse_endpoint(text)


def test_lists() -> None:
    both = parse_endpoints("grpc://a:1, grpc+unix:///s")
    assert [str(endpoint) for endpoint in both] == ["grpc://a:1", "grpc+unix:///s"]
    with pytest.raises(OptionError, match="twice"):
        parse_endpoints("grpc://a:1,grpc://b:1,grpc://a:1")
    with pytest.raises(OptionError):
        parse_endpoints("grpc://a:1,")
