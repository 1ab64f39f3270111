"""Store processes that a command speaks to."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient

__all__ = [
    "Credentials",
    "EndpointOf",
    "TlsCa",
    "TlsCert",
    "TlsKey",
    "TokenFile",
    "connect",
    "given_credentials",
    "use_credentials",
]

EndpointOf = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT",
        help="Where a store process listens, as `rmqstore serve` prints it.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="The token that the store process asks for.",
        show_default=False,
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Certificates (PEM) that vouch for it.  [default: the system's]",
        show_default=False,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Your own certificate (PEM), where it asks for one.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option("--tls-key", metavar="FILE", help="The key of --tls-cert.", show_default=False),
]


@dataclass(frozen=True)
class Credentials:
    """Names of the files by which a store process and this one know each other."""

    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise OptionError("--tls-cert and --tls-key belong together: give both.")

    def options(self) -> dict[str, Any]:
        """Those that were given, as a client's arguments."""
        return {name: value for name, value in vars(self).items() if value is not None}


_given: Final[ContextVar[Credentials]] = ContextVar("credentials")
_NONE: Final = Credentials()


def use_credentials(credentials: Credentials) -> None:
    """Let `connect`, and stores that are opened by their endpoint, use these."""
    _given.set(credentials)


def given_credentials() -> Credentials:
    """Those that were given before the command's name."""
    return _given.get(_NONE)


def connect(endpoint: str) -> StoreClient:
    """Reach a store process; the client is a context manager."""
    from rmqstore_spark.client import StoreClient

    return StoreClient(endpoint, **given_credentials().options())
