"""Who sees the pages: whom the account of a request stands for, and from where it may come.

A browser has the account of its user (HTTP Basic: access key and secret), which the process checks
as it does a login of Spark or the command. It also sends it for pages of other origins, so a
request must not come from one: the name of a host in `Host` could be one that leads here for a
while only (DNS rebinding), and has to be an address, or the name of this machine.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from rmqstore_spark.errors import OptionError, RefusedError
from rmqstore_spark.remoting.access.signing import SessionCredentials
from rmqstore_spark.server.callers import Caller
from rmqstore_spark.server.status.asking import Asked, Unanswerable
from rmqstore_spark.wire.protocol import login_answer

if TYPE_CHECKING:
    from rmqstore_spark.broker.acl.accounts import AccountSource
    from rmqstore_spark.engine.config.store_config import StoreConfig

_PORT: Final = re.compile(r":[0-9]{1,5}$")
_CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="rmqstore", charset="UTF-8"')


def check_protection(config: StoreConfig) -> None:
    """Refuse to show messages to those who could not read them without the pages.

    Raises:
        OptionError: the port of the pages has less protection than that of the clients, and
            `allowUnprotected` is not set; or there is no such port.
    """
    if not config.status_page_enable:
        return
    if config.metrics_prom_exporter_port < 0:
        raise OptionError(
            "statusPageEnable=true needs metricsPromExporterPort: the port that serves the pages."
        )
    host = config.metrics_prom_exporter_host
    lacks = ""
    if not ipaddress.ip_address(host).is_loopback:
        lacks = f"{host} can be reached from other machines, and the pages have no TLS"
    elif not config.acl_enable and config.tls_server_trust_cert_path:
        lacks = "clients need a certificate, and a browser on this machine would not"
    elif not config.acl_enable and config.listen_port < 0:
        lacks = "only the owner of listenSocket is served, and any user of this machine would be"
    if lacks and not config.allow_unprotected:
        raise OptionError(
            f"statusPageEnable=true would show messages to others: {lacks}. Set "
            "metricsPromExporterHost=127.0.0.1 and aclEnable=true, or allowUnprotected=true if "
            "this is what you want."
        )


def check_origin(asked: Asked) -> None:
    """Refuse a request that a page of another origin may have made.

    Raises:
        Unanswerable: it is refused.
    """
    name = _PORT.sub("", asked.headers.get("Host", "")).strip("[]").lower()
    if not (_is_address(name) or name in ("localhost", socket.gethostname().lower())):
        raise Unanswerable(
            HTTPStatus.FORBIDDEN,
            "Open the pages by the address of the machine, by its name, or as localhost.",
        )
    site = asked.headers.get("Sec-Fetch-Site", "none")
    is_link = asked.headers.get("Sec-Fetch-Mode") == "navigate"
    if site in ("cross-site", "same-site") and not is_link:
        raise Unanswerable(HTTPStatus.FORBIDDEN, "The request comes from a page of another site.")


def caller_of(asked: Asked, accounts: AccountSource | None) -> Caller:
    """Return whom a request acts for.

    Raises:
        Unanswerable: it needs an account, and has none or a wrong one.
    """
    caller = Caller(accounts, asked.host)
    challenge = caller.challenge()
    if not challenge:
        return caller
    key, secret = _given(asked.headers.get("Authorization", ""))
    try:
        answer = login_answer(challenge, SessionCredentials(key, secret), b"")
        caller.log_in(key, answer, b"")
    except RefusedError:
        text = "Give the access key and the secret of an account."
        raise Unanswerable(HTTPStatus.UNAUTHORIZED, text, _CHALLENGE) from None
    return caller


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _given(header: str) -> tuple[str, str]:
    """Return access key and secret of a header; empty ones if it has none."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    key, _, secret = text.partition(":")
    return key, secret
