"""The account of a connection: one that logged in, a certificate, or anyone if none is needed.

The accounts are those of RocketMQ's clients (`broker.acl`). A client logs in once a connection: it
answers a challenge with the secret of its account, and each request is then checked against what
the account may do at that time. Clients on a unix socket, whose folder only the process's owner can
enter, and from `globalWhiteRemoteAddresses`, need none.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.broker.acl.accounts import Need, Right, need_of_topic
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.wire.protocol import DENIED, NONCE_BYTES, UNAUTHENTICATED, asked_to_prove

if TYPE_CHECKING:
    from rmqstore_spark.broker.acl.accounts import Account, Accounts, AccountSource


class Needs(NamedTuple):
    """What a request needs of the account that sends it.

    Attributes:
        is_admin: an administrator.
        everywhere: one of these rights for all topics.
        rights: all of these.
        uses: what `brokerPermission` of the store must allow: PUB, SUB, or nothing.
    """

    is_admin: bool = False
    everywhere: Right = Right.DENY
    rights: tuple[Need, ...] = ()
    uses: Right = Right.DENY


ANYONE: Final = Needs()
ADMIN: Final = Needs(is_admin=True)
READS_ALL: Final = Needs(everywhere=Right.SUB, uses=Right.SUB)
WRITES: Final = Needs(uses=Right.PUB)
"""Writes messages, whose topics are looked at when they come."""


def of_topics(topics: Iterable[str], right: Right) -> Needs:
    """Return the need of a right for some topics; nothing for none.

    Who reads a retry topic needs SUB of its group. It is written like any other topic: only the
    broker itself does so for the group.
    """
    if right is Right.PUB:
        rights = tuple(Need(False, topic, right) for topic in topics)
    else:
        rights = tuple(need_of_topic(topic, right) for topic in topics)
    return Needs(rights=rights, uses=right if rights and right is not Right.ANY else Right.DENY)


class Caller:
    """The client of one connection.

    Args:
        source: has the accounts; None if nobody needs one.
        host: address of the client; empty for a process of the owner of this one.

    Attributes:
        certificate: the identity in the client's certificate; empty without one.
    """

    def __init__(self, source: AccountSource | None, host: str) -> None:
        self.certificate = ""
        self._source = source if host else None
        self._host = host
        self._challenge = self._proved = self._proof = b""
        self._key = ""
        self._accounts: Accounts | None = None  # for which these two were found
        self._account: Account | None = None
        self._white_of: Accounts | None = None
        self._is_white = False

    @property
    def identity(self) -> str:
        """Whose the stages of this client are; empty if it does not say who it is."""
        return f"account:{self._key}" if self._proof else self.certificate

    @property
    def is_known(self) -> bool:
        """Whether it may do anything at all."""
        return self._source is None or bool(self._proof) or self._has_white_address()

    def challenge(self) -> bytes:
        """Return what a login must answer; empty if nobody needs to log in."""
        if self._source is None or self._has_white_address():
            return b""
        self._challenge = secrets.token_bytes(NONCE_BYTES)
        return self._challenge

    def log_in(self, access_key: str, answer: bytes, server: bytes) -> None:
        """Log in, with the answer to the last challenge.

        Args:
            access_key: of the account.
            answer: see `wire.protocol`.
            server: fingerprint of this side's certificate on an encrypted connection.

        Raises:
            RefusedError: no account has that access key and answers so.
        """
        challenge, self._challenge = self._challenge, b""
        if self._source is None or not challenge:
            raise RefusedError("A login needs a challenge first.", UNAUTHENTICATED)
        account = self._source.accounts.by_key.get(access_key)
        proved, proof = asked_to_prove(challenge, answer, server)
        if account is None or not account.secret.has_proved(proved, proof):
            raise RefusedError(
                f"No account has the access key {escaped(access_key[:64])} with this secret.",
                UNAUTHENTICATED,
            )
        self._key, self._proved, self._proof = access_key, proved, proof
        self._accounts = None

    def require(self, needs: Needs) -> None:
        """Refuse what the client may not do.

        Raises:
            RefusedError: its account lacks something, or does not exist any more.
        """
        account = self.limited()
        if account is None:
            return
        lacks = ""
        if needs.is_admin and not account.is_admin:
            lacks = "is not an administrator"
        elif needs.everywhere and not account.may_everywhere(needs.everywhere):
            lacks = f"lacks {needs.everywhere.words} for all topics"
        for need in needs.rights if not lacks else ():
            if not account.may(need):
                lacks = f"lacks {need.right.words} for {escaped(str(need)[:200])}"
                break
        if lacks:
            raise RefusedError(f"The account {self._key} {lacks}.", DENIED)

    def limited(self) -> Account | None:
        """Return the account if it may not do everything.

        Raises:
            RefusedError: the client has not logged in, or its account does not exist any more.
        """
        if self._source is None:
            return None
        accounts = self._source.accounts
        if accounts is not self._accounts:
            self._account = self._found(accounts)
            self._accounts = accounts
        account = self._account
        return None if account is None or account.may_do_anything else account

    def _found(self, accounts: Accounts) -> Account | None:
        if self._has_white_address():
            return None
        account = accounts.by_key.get(self._key) if self._proof else None
        if account is None or not account.secret.has_proved(self._proved, self._proof):
            raise RefusedError("A login with an account is needed.", UNAUTHENTICATED)
        return None if account.white.holds(self._host) else account

    def _has_white_address(self) -> bool:
        assert self._source is not None  # noqa: S101 - the callers have looked
        accounts = self._source.accounts
        if accounts is not self._white_of:
            self._is_white = accounts.white.holds(self._host)
            self._white_of = accounts
        return self._is_white
