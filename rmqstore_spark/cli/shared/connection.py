"""Connects a command to a store process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient

EndpointOf = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT",
        help="Endpoint of a store process, as `rmqstore serve` prints it.",
        show_default=False,
    ),
]
AclFile = Annotated[
    str | None,
    typer.Option(
        "--acl-file",
        metavar="FILE",
        help="File with accessKey and secretKey of your account, if the store process needs one.",
        show_default=False,
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="CA certificates (PEM) that verify the store process.  [default: the system's]",
        show_default=False,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Your certificate (PEM), if the store process requires one.",
        show_default=False,
    ),
]
TlsKey = Annotated[
    str | None,
    typer.Option(
        "--tls-key", metavar="FILE", help="Private key (PEM) of --tls-cert.", show_default=False
    ),
]


@dataclass(frozen=True)
class Credentials:
    """Names of the files by which a store process and its client authenticate each other."""

    acl_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def over(self, others: Credentials) -> Credentials:
        """Return these, with missing ones taken from the others.

        Raises:
            OptionError: together they have a certificate without a key, or a key without one.
        """
        merged = {**others.options(), **self.options()}
        if ("tls_cert" in merged) != ("tls_key" in merged):
            raise OptionError("Options --tls-cert and --tls-key must be given together.")
        return Credentials(**merged)

    def options(self) -> dict[str, Any]:
        """Return the given ones as arguments of a client."""
        return {name: value for name, value in vars(self).items() if value is not None}


_given: Final[ContextVar[Credentials]] = ContextVar("credentials")
_NONE: Final = Credentials()


def use_credentials(credentials: Credentials) -> None:
    """Set the credentials of `connect`, and of stores that are opened by their endpoint."""
    _given.set(credentials)


def given_credentials() -> Credentials:
    """Return the credentials that were given before or after the command's name."""
    return _given.get(_NONE)


def takes_credentials(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command accept the options of `Credentials` after its name as well as before it."""
    added = inspect.signature(_credentials, eval_str=True).parameters

    @functools.wraps(command)
    def wrapper(**arguments: Any) -> None:
        behind = _credentials(**{name: arguments.pop(name) for name in added})
        use_credentials(behind.over(given_credentials()))
        command(**arguments)

    own = inspect.signature(command, eval_str=True)
    parameters = [*own.parameters.values(), *added.values()]
    # Typer derives the command's options from these.
    wrapper.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapper


def _credentials(
    acl_file: AclFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> Credentials:
    return Credentials(acl_file, tls_ca, tls_cert, tls_key)


def connect(endpoint: str) -> StoreClient:
    """Return a client of a store process, which is a context manager."""
    from rmqstore_spark.client import StoreClient

    return StoreClient(endpoint, **given_credentials().options())
