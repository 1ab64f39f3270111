"""The options for store processes, shared by reading and writing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rmqstore_spark.datasource.options.option import BOTH, Option
from rmqstore_spark.datasource.options.values import parse_duration_ms, parse_integer
from rmqstore_spark.errors import OptionError
from rmqstore_spark.wire.endpoint import parse_endpoints

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient

__all__ = ["CONNECTION_OPTIONS", "ConnectionOptions"]


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _endpoints(text: str) -> tuple[str, ...]:
    return tuple(map(str, parse_endpoints(text)))


CONNECTION_OPTIONS: tuple[Option, ...] = (
    Option(
        "endpoint",
        "endpoints",
        _endpoints,
        None,
        BOTH,
        "Where store processes listen, as `rmqstore serve` prints it: `grpc://host:port`, "
        "`grpc+tls://host:port` or `grpc+unix:///path`; several comma-separated, one for each "
        "store.",
    ),
    Option(
        "tokenFile",
        "path",
        _text,
        None,
        BOTH,
        "File with the token that the store process asks for. It must be there on the driver and "
        "on every executor; plans and logs show its name and never what is in it.",
    ),
    Option(
        "tlsCaFile",
        "path",
        _text,
        None,
        BOTH,
        "File with the certificates (PEM) that vouch for the store process, for `grpc+tls`.",
        default_doc="the system's own",
    ),
    Option(
        "tlsCertFile",
        "path",
        _text,
        None,
        BOTH,
        "File with this client's certificate (PEM), where the store process asks for one. With "
        "`tlsKeyFile`.",
    ),
    Option(
        "tlsKeyFile",
        "path",
        _text,
        None,
        BOTH,
        "File with the key (PEM) of `tlsCertFile`.",
    ),
    Option(
        "requestTimeout",
        "duration",
        parse_duration_ms,
        "60s",
        BOTH,
        "How long one request to a store process may take, a commit included.",
        minimum=1,
    ),
    Option(
        "retries",
        "number",
        parse_integer,
        "5",
        BOTH,
        "How often a request is tried again when a store process cannot be reached, does not "
        "answer in time or is overloaded, with growing pauses between.",
        minimum=0,
    ),
)


@dataclass(frozen=True)
class ConnectionOptions:
    """Store processes, and how to connect to them. Contains names of files, but no secrets.

    Args:
        endpoints: one for each store.
        timeout_ms: timeout of one request.
    """

    endpoints: tuple[str, ...]
    token_file: str | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None
    timeout_ms: int
    retries: int

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ConnectionOptions:
        """Create from the values of `CONNECTION_OPTIONS`, defaults included.

        Raises:
            OptionError: the certificate or the key is missing.
        """
        if ("tlsCertFile" in values) != ("tlsKeyFile" in values):
            raise OptionError("Options tlsCertFile and tlsKeyFile belong together: give both.")
        return cls(
            values["endpoint"],
            values.get("tokenFile"),
            values.get("tlsCaFile"),
            values.get("tlsCertFile"),
            values.get("tlsKeyFile"),
            values["requestTimeout"],
            values["retries"],
        )

    @property
    def storage_options(self) -> tuple[tuple[str, Any], ...]:
        """The same as arguments for a client, or for the file system of a store process."""
        return (
            ("token_file", self.token_file),
            ("tls_ca", self.tls_ca),
            ("tls_cert", self.tls_cert),
            ("tls_key", self.tls_key),
            ("timeout_s", self.timeout_ms / 1000),
            ("retries", self.retries),
        )

    def client(self, endpoint: str) -> StoreClient:
        """Return a client of one of the stores."""
        from rmqstore_spark.client import StoreClient

        return StoreClient(endpoint, **dict(self.storage_options))
