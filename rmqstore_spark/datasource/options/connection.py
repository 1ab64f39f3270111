"""Declare the options for store processes, shared by reading and writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.options.option import Given, option
from rmqstore_spark.datasource.options.values import (
    parse_boolean,
    parse_duration_ms,
    parse_integer,
)
from rmqstore_spark.errors import OptionError
from rmqstore_spark.remoting.access.identity import IdentityFiles
from rmqstore_spark.wire.endpoint import (
    REPLICA,
    parse_endpoint,
    parse_endpoints,
    replica_endpoints,
)

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.client.brokers.routes import NameServers

_DEFAULT_PATIENCE: Final = 60.0


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _endpoints(text: str) -> tuple[str, ...]:
    """Parse endpoints, one for each store; `|` separates those of replicas of a store."""
    stores = [replica_endpoints(part) for part in text.split(",")]
    parse_endpoints(",".join(one for store in stores for one in store))  # refuses doubles
    return tuple(REPLICA.join(str(parse_endpoint(one)) for one in store) for store in stores)


@dataclass(frozen=True)
class ConnectionOptions:
    """Store processes, and how to connect to them. Contains names of files, but no secrets.

    Args:
        endpoints: one for each store, or several with `REPLICA` between them; empty if name
            servers are asked for them.
        replicas: the same as the user gave them, when `endpoints` has the masters of stores with
            replicas; else empty.
        uses_tls: whether remoting uses TLS; None if the user has not said.
        connect_ms: how long to wait for a first contact; None once it was made.
    """

    endpoints: tuple[str, ...] = option(
        "endpoint", "endpoints", _endpoints,
        "Endpoints of store processes, as `rmqstore serve` prints them: `rmq://host:port`, "
        "`rmqs://host:port` or `unix:/path`, with `#NAME` for one of several stores. "
        "Separate several with commas, one for each store. `|` separates the replicas of a "
        "store: any of them is read ([replication.md](replication.md#read-from-several-replicas)), "
        "and the one that is the master now is written "
        "([replication.md](replication.md#write-to-whichever-is-the-master)).",
        unset=(),
    )  # fmt: skip
    replicas: tuple[str, ...] = ()
    acl_file: str | None = option(
        "aclFile", "path", _text,
        "File with `accessKey` and `secretKey` of an account, as in RocketMQ's `tools.yml`, for "
        "store processes and brokers with `aclEnable`. It must exist on the driver and on every "
        "executor, and be closed to others (`chmod 600`). Plans and logs show only its name.",
    )  # fmt: skip
    uses_tls: bool | None = option(
        "tlsEnable", "boolean", parse_boolean,
        "With `namesrvAddr`: whether connections to name servers and RocketMQ's brokers use TLS. "
        "Their certificates are always checked.",
        default_doc="`false`; the `tls...` options below are then refused if a broker is read "
        "without TLS",
    )  # fmt: skip
    tls_ca: str | None = option(
        "tlsCaFile", "path", _text,
        "File with the CA certificates (PEM) that verify the store process, for `rmqs`, or "
        "name servers and brokers, for `tlsEnable`.",
        default_doc="the system's certificates",
    )  # fmt: skip
    tls_cert: str | None = option(
        "tlsCertFile", "path", _text,
        "File with this client's certificate (PEM), if the other side requires one. Needs "
        "`tlsKeyFile`.",
    )  # fmt: skip
    tls_key: str | None = option(
        "tlsKeyFile", "path", _text,
        "File with the private key (PEM) of `tlsCertFile`.",
    )  # fmt: skip
    timeout_ms: int = option(
        "requestTimeout", "duration", parse_duration_ms,
        "Timeout of one request to a store process, name server or broker, including commits.",
        default="60s", minimum=1,
    )  # fmt: skip
    connect_ms: int | None = option(
        "connectTimeout", "duration", parse_duration_ms,
        "How long to wait, with all retries, for a store process, name server or broker that this "
        "application has not reached before: its address may be wrong. One that has answered "
        "before is waited for as `requestTimeout` and `retries` say.",
        default="10s", minimum=1,
    )  # fmt: skip
    retries: int = option(
        "retries", "number", parse_integer,
        "How often to retry a request, with growing delays, if a store process, name server or "
        "broker is unreachable or overloaded: the default lasts about a minute, longer than a "
        "restart. A request to a store process that is not answered within `requestTimeout` is "
        "retried at most five times.",
        default="17", minimum=0,
    )  # fmt: skip

    @classmethod
    def of(cls, given: Given) -> ConnectionOptions:
        """Create from the options that a user has set.

        Raises:
            OptionError: the certificate or the key is missing.
        """
        if ("tlsCertFile" in given) != ("tlsKeyFile" in given):
            raise OptionError("Options tlsCertFile and tlsKeyFile must be set together.")
        return given.make(cls)

    @property
    def storage_options(self) -> tuple[tuple[str, Any], ...]:
        """The same as arguments for a client, or for the file system of a store process."""
        return (
            ("acl_file", self.acl_file),
            ("tls_ca", self.tls_ca),
            ("tls_cert", self.tls_cert),
            ("tls_key", self.tls_key),
            ("timeout_s", self.timeout_ms / 1000),
            ("retries", self.retries),
            ("connect_s", self.connect_s),
        )

    @property
    def connect_s(self) -> float | None:
        """The seconds to wait for a first contact; None once it was made."""
        return None if self.connect_ms is None else self.connect_ms / 1000

    @property
    def reached(self) -> ConnectionOptions:
        """The same for tasks and commits: the driver has made the first contact."""
        return replace(self, connect_ms=None)

    def name_servers(self, addresses: Sequence[str]) -> NameServers:
        """Return a client of some name servers, which is a context manager."""
        from rmqstore_spark.client.brokers.routes import NameServers
        from rmqstore_spark.remoting.access.identity import ClientIdentity

        return NameServers(
            addresses,
            self.timeout_ms / 1000,
            ClientIdentity.of(self.identity),
            connect_s=self.connect_s,
            retries=self.retries,
        )

    @property
    def tls_options(self) -> list[str]:
        """The names of the options with files for TLS that are set."""
        files = {"tlsCaFile": self.tls_ca, "tlsCertFile": self.tls_cert}
        return [name for name, file in files.items() if file is not None]

    @property
    def identity(self) -> IdentityFiles:
        """As whom to talk to name servers and brokers."""
        acl = self.acl_file or ""
        if not self.uses_tls:
            return IdentityFiles(acl)
        return IdentityFiles(acl, True, self.tls_ca or "", self.tls_cert or "", self.tls_key or "")

    def check_protected(self, brokers: Sequence[str], announced: Sequence[str]) -> None:
        """Refuse options that protect nothing: who sets them counts on them.

        Args:
            brokers: with which RocketMQ's protocol is talked.
            announced: the endpoints of store processes, as name servers know them.

        Raises:
            OptionError: an option has no effect, or one of the endpoints is not encrypted although
                `tlsEnable` is set.
        """
        open_ones = [one for one in announced if parse_endpoint(one).can_be_overheard]
        if self.uses_tls and open_ones:  # anyone who can register could get all rows
            raise OptionError(
                f"Option tlsEnable=true, but name servers tell the endpoint {some(open_ones)}, "
                "which is not encrypted. Give the store process a certificate (tlsServerCertPath), "
                "so that it announces rmqs; or, if you trust the network, name it with option "
                "endpoint in place of namesrvAddr."
            )
        files = self.tls_options
        if not files or not brokers or self.uses_tls:
            return
        if self.uses_tls is None:
            raise OptionError(
                f"Option {files[0]} implies encryption, but connections to {some(brokers)} are not "
                f"encrypted. Set tlsEnable=true, or tlsEnable=false if {files[0]} is meant only "
                "for endpoints of store processes."
            )
        if not announced:
            raise OptionError(f"Options {files[0]} and tlsEnable=false contradict each other.")

    def client(self, endpoint: str) -> StoreClient:
        """Return a client of one of the stores."""
        from rmqstore_spark.client import StoreClient

        return StoreClient(endpoint, **dict(self.storage_options))


def patience_s(connection: ConnectionOptions | None) -> float:
    """Return for how many seconds a query waits for any replica of a store."""
    return _DEFAULT_PATIENCE if connection is None else connection.timeout_ms / 1000


def check_remoting(given: Given) -> None:
    """Refuse options for RocketMQ's protocol if nothing talks it.

    Raises:
        OptionError: one is given without name servers.
    """
    if "tlsEnable" in given and "namesrvAddr" not in given:
        raise OptionError(
            "Option tlsEnable is for name servers and RocketMQ's brokers, and needs option "
            "namesrvAddr. A store process has TLS by an endpoint of rmqs."
        )
    if "aclFile" in given and "endpoint" not in given and "namesrvAddr" not in given:
        raise OptionError(
            "Option aclFile is for store processes and brokers, and needs option endpoint or "
            "namesrvAddr."
        )
