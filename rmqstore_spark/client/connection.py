"""Calls one store process, over connections of its own, with time limits, retries, plain errors."""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

from rmqstore_spark.base.secretfiles import read_file
from rmqstore_spark.client.contact import (
    CONNECT_SECONDS,
    FirstContact,
    backoff,
    note_reached,
    was_reached,
)
from rmqstore_spark.client.link import Link, connect
from rmqstore_spark.errors import (
    FrameError,
    OptionError,
    RefusedError,
    RmqStoreError,
    ServiceError,
)
from rmqstore_spark.remoting.access.signing import ACCESS_KEY, SessionCredentials
from rmqstore_spark.wire.codec import MessageError, decode, encode
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.protocol import (
    ALPN,
    MAX_ANSWER,
    MAX_REQUEST,
    PROTOCOL,
    REPEATABLE,
    UNAUTHENTICATED,
    Code,
    login_answer,
)
from rmqstore_spark.wire.reading import OpenReply, OpenRequest

if TYPE_CHECKING:
    import ssl

    import pyarrow as pa

_log = logging.getLogger("rmqstore_spark")

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
RETRIES: Final = 3

FAILURES: Final = (RmqStoreError, MessageError, OSError)
"""What can fail between the two sides."""

_CONNECT_SECONDS: Final = 20.0
_MOST_IDLE: Final = 8
_MOST_IDLE_SECONDS: Final = 60.0
_MOST_LATE: Final = 5
_QUIET_TRIES: Final = 4
_SHORTEST: Final = 0.1


class Connection:
    """Calls a store process. Threads can share it: each call has a connection to itself.

    Connections are opened when they are needed, and kept for later calls.

    Args:
        endpoint: an endpoint, or a text for `parse_endpoint`.
        acl_file, tls_ca, tls_cert, tls_key: files; see `StoreClient`.
        timeout_s: seconds that an answer may take.
        retries: how often a repeatable call is tried again; at most five times after attempts
            that took all of `timeout_s`.
        connect_s: seconds after which a process that has never answered is given up, with all
            retries; None for one that another process of this program has reached.
    """

    def __init__(
        self,
        endpoint: str | Endpoint,
        *,
        acl_file: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        retries: int = RETRIES,
        connect_s: float | None = CONNECT_SECONDS,
    ) -> None:
        self.endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.timeout_s = timeout_s
        self.retries = retries
        self._connect_s = connect_s
        self._account = _credentials(acl_file) if acl_file else None
        self._check(tls_ca, tls_cert, tls_key)
        self._tls = _tls_context(tls_ca, tls_cert, tls_key) if self.endpoint.scheme == TLS else None
        self._lock = threading.Lock()
        self._idle: list[Link] = []
        # A store that was opened with it may have nobody that closes it. Not by `__del__`: the
        # sockets of the same garbage could go first.
        weakref.finalize(self, _close_all, self._idle)
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.endpoint)!r})"

    def _check(self, *tls: str | os.PathLike[str] | None) -> None:
        """Refuse settings that have no effect."""
        _, cert, key = tls
        if self.endpoint.scheme != TLS and any(tls):
            raise OptionError(
                f"TLS files are set, but {self.endpoint} is not encrypted. Use {TLS}://."
            )
        if bool(cert) != bool(key):
            raise OptionError("Give a client's certificate together with its key, or neither.")

    def open(self, request: OpenRequest) -> OpenReply:
        """Ask what the store is, and for topics; see `StoreClient.open`."""
        reply = self.call(Code.OPEN, request, OpenReply)
        if reply.protocol != PROTOCOL:
            raise ServiceError(
                f"The store process at {self.endpoint} speaks version {reply.protocol} of the "
                f"protocol, and this client {PROTOCOL}. Install the same version of "
                "rmqstore-spark on both sides."
            )
        return reply

    def call(self, code: Code, request: object, answer: type[T], *, repeat: bool = True) -> T:
        """Call an action.

        Args:
            code: its code.
            request: the message to send.
            answer: the class of the answer.
            repeat: whether the action may run twice, so that it can be tried again.

        Raises:
            RefusedError: the store process refused the request.
            ServiceError: the store process cannot be reached, or did not answer in time.
        """

        def read(link: Link, until: float) -> T:
            return decode(answer, bytes(link.answer(until)), most=MAX_ANSWER)

        return self.ask(code, request, read, repeat=repeat)

    def call_table(self, code: Code, request: object) -> pa.Table:
        """Call a repeatable action whose answer is a table."""
        return self.ask(code, request, _read_table)

    def ask(
        self,
        code: Code,
        request: object,
        read: Callable[[Link, float], T],
        *,
        repeat: bool = True,
    ) -> T:
        """Send a request, and read its answers.

        Args:
            code, request, repeat: as for `call`.
            read: reads all answers from a connection, until a time, and returns what is in them.

        Raises:
            RefusedError, ServiceError: as for `call`.
        """
        body = encode(request)
        once = partial(self.exchange, code, body, read, self.timeout_s)
        return self.repeated(once, repeat=repeat)

    def exchange(
        self, code: Code, body: bytes, read: Callable[[Link, float], T], seconds: float
    ) -> T:
        """Do what `ask` does, once, with errors of sockets and of the protocol.

        A connection on which anything fails is closed.
        """
        until = time.monotonic() + seconds
        link = self.take(until)

        def check(_sent: int) -> None:
            if time.monotonic() > until:
                raise TimeoutError

        try:
            try:
                link.send(code, body, check)
            except OSError:
                link.ready_head()  # the refusal that came before the end
                raise
            answered = read(link, until)
        except BaseException:
            link.close()
            raise
        self.give_back(link)
        return answered

    def take(self, until: float) -> Link:
        """Return a connection that nobody uses: a kept one, or a new one.

        Args:
            until: when it must be open, as `time.monotonic()`.

        Raises:
            OSError, FrameError, RefusedError: it cannot be opened.
        """
        while True:
            with self._lock:
                if self._pid != os.getpid():  # a fork
                    _close_all(self._idle)
                    self._pid = os.getpid()
                if not self._idle:
                    break
                link = self._idle.pop()
            # Something between the two may forget a connection that is silent for long.
            if link.is_quiet and time.monotonic() - link.used < _MOST_IDLE_SECONDS:
                return link
            link.close()
        seconds = min(until - time.monotonic(), _CONNECT_SECONDS)
        link = connect(self.endpoint, self._tls, seconds)
        if self._account is not None:
            try:
                _log_in(link, self._account, until)
            except BaseException:
                link.close()
                raise
        return link

    def give_back(self, link: Link) -> None:
        """Keep a connection for later calls."""
        with self._lock:
            if len(self._idle) < _MOST_IDLE and self._pid == os.getpid():
                link.used = time.monotonic()
                self._idle.append(link)
                return
        link.close()

    def _meet(self) -> None:
        """Find out whether a store process answers at all, if it never has.

        Raises:
            ServiceError: it does not, or rejects the account.
        """
        place = self.endpoint.address
        if self._connect_s is None or was_reached(place):
            return
        give_up = time.monotonic() + self._connect_s
        waits = backoff()
        with FirstContact(f"the store process at {self.endpoint}", self._connect_s) as waiting:
            for number in count():
                try:
                    self._greet(max(give_up - time.monotonic(), _SHORTEST))
                except RefusedError:
                    break  # it answers
                except ServiceError as error:
                    pause = next(waits)
                    if not error.can_pass or number >= self.retries:
                        raise
                    if time.monotonic() + pause >= give_up:
                        tried = f"connectTimeout ({self._connect_s:g} s)"
                        text = f"{error} Tried as long as {tried} allows."
                        raise ServiceError(text, can_pass=True) from None
                    waiting.because(error)
                    time.sleep(pause)
                else:
                    break
        note_reached(place)

    def _greet(self, seconds: float) -> None:
        """Ask for what every store process answers at once."""
        seconds = min(seconds, self.timeout_s)
        try:
            self.exchange(Code.OPEN, encode(OpenRequest(())), Link.answer, seconds)
        except TimeoutError:
            raise ServiceError(
                f"Nothing answers at {self.endpoint}: no answer came within {seconds:.3g} s. Check "
                f"that a store process runs there (rmqstore serve), and "
                f"{_WHERE_IT_BREAKS[self.endpoint.scheme]}.",
                can_pass=True,
            ) from None
        except FAILURES as error:
            raise self.told(error) from None

    def repeated(self, work: Callable[[], T], *, repeat: bool = True) -> T:
        """Run something, and try again after a pause if that can help.

        Args:
            work: may raise errors of sockets and of the protocol (`FAILURES`).
            repeat: whether it may run twice.

        Raises:
            RmqStoreError: one of those that `told` returns.
        """
        self._meet()
        waits = backoff()
        number = late = 0
        while True:
            began = time.monotonic()
            try:
                return work()
            except FAILURES as error:
                failure = self.told(error)
            if isinstance(failure, RefusedError):
                may_pass = failure.status in REPEATABLE
            else:
                late += time.monotonic() - began >= self.timeout_s
                may_pass = isinstance(failure, ServiceError) and failure.can_pass
            if not (repeat and may_pass and number < self.retries and late <= _MOST_LATE):
                raise failure
            if number == _QUIET_TRIES:
                left = self.retries - number
                _log.warning("%s Trying again, up to %d times.", failure, left)
            time.sleep(next(waits))
            number += 1

    def told(self, error: Exception) -> RmqStoreError:
        """Return what to tell of one of `FAILURES`: an error that names the endpoint."""
        if isinstance(error, FrameError):
            return ServiceError(
                f"{self.endpoint} is not a store process of this version: {error}. "
                f"Check {_WHERE_IT_BREAKS[self.endpoint.scheme]}.",
                can_pass=True,  # what answers may be about to make room for a store process
            )
        if isinstance(error, RefusedError) and error.status == UNAUTHENTICATED:
            return ServiceError(
                f"The store process at {self.endpoint} requires an account, or rejected "
                f"yours: {error.args[0]} Set aclFile (--acl-file) to the file with its "
                "accessKey and secretKey."
            )
        if isinstance(error, RmqStoreError):
            return error
        if isinstance(error, MessageError):
            return ServiceError(
                f"{self.endpoint} sent an answer that this version does not understand: {error}. "
                "Use the same version of rmqstore-spark on both sides."
            )
        if isinstance(error, TimeoutError):
            return self.too_late("answer")
        assert isinstance(error, OSError), error  # noqa: S101 - the last one of FAILURES
        return self._unreachable(error)

    def _unreachable(self, error: OSError) -> ServiceError:
        if isinstance(error, ConnectionRefusedError | FileNotFoundError):
            return ServiceError(
                f"Nothing listens on {self.endpoint}. Start a store process there: rmqstore serve.",
                can_pass=True,
            )
        import ssl  # other errors than this one are rare

        if isinstance(error, ssl.SSLError) and "wrong version number" in _plain(error):
            return ServiceError(
                f"{self.endpoint} answers without encryption. Use {TCP}://, or start the store "
                "process with a certificate (tlsServerCertPath).",
            )
        if isinstance(error, ssl.SSLError | ssl.CertificateError):
            return ServiceError(
                f"No encrypted connection to {self.endpoint}: {_plain(error)}. Check the "
                "certificates (tlsCaFile, tlsCertFile, tlsKeyFile) and the name in the server's.",
                can_pass=_REFUSED_CERTIFICATE.search(_plain(error)) is None,
            )
        if self._connect_s is None or was_reached(self.endpoint.address):
            return ServiceError(
                f"The store process at {self.endpoint} went away: {_plain(error)}. Check whether "
                "it runs, and its log. What it was asked and has not answered may be done or not.",
                can_pass=True,
            )
        return ServiceError(
            f"The connection to {self.endpoint} broke: {_plain(error)}. Check the process and "
            f"{_WHERE_IT_BREAKS[self.endpoint.scheme]}.",
            can_pass=True,
        )

    def too_late(self, what: str) -> ServiceError:
        """Return the error for a store process that did not act in time."""
        return ServiceError(
            f"The store process at {self.endpoint} did not {what} within {self.timeout_s:g} s. "
            "Check what it is doing (rmqstore stats), or raise requestTimeout.",
            can_pass=True,
        )

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            _close_all(self._idle)


def _close_all(links: list[Link]) -> None:
    for link in links:
        link.close()
    links.clear()


_WHERE_IT_BREAKS: Final = {
    UNIX: "the socket's folder",
    TCP: f"host, port and network: perhaps it is encrypted ({TLS}://), or not a store process; a "
    "broker's port serves RocketMQ's clients: use namesrvAddr for a broker",
    TLS: "host, port and network; or perhaps it wants a certificate of yours (tlsCertFile)",
}


_REFUSED_CERTIFICATE: Final = re.compile(
    "certificate verify failed|alert .*certificate|alert unknown ca"
)
"""By the client, or in an alert by the server."""


def _plain(error: OSError) -> str:
    """Return what an error says, without its number."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.removesuffix('.')}"
    return (error.strerror or str(error)).lower().replace("_", " ")


def _credentials(path: str | os.PathLike[str]) -> SessionCredentials:
    from rmqstore_spark.remoting.access.identity import read_credentials  # imports yaml

    return read_credentials(path)


def _read_table(link: Link, until: float) -> pa.Table:
    import pyarrow as pa  # most actions answer with no table

    data = link.answer(until)
    try:
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            table = stream.read_all()
            table.validate(full=True)
            return table
    except pa.ArrowException as error:
        raise MessageError(str(error)) from None


def _log_in(link: Link, account: SessionCredentials, until: float) -> None:
    """Log in, if the store process asks for that; see `wire.protocol`."""

    def ask(proof: bytes) -> bytes:
        link.send(Code.LOGIN, proof, lambda _: None, ext={ACCESS_KEY: account.access_key})
        return bytes(link.answer(until, MAX_REQUEST[Code.LOGIN]))

    challenge = ask(b"")
    if challenge:
        ask(login_answer(challenge, account, link.server))


def _tls_context(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> ssl.SSLContext:
    """Return a client's TLS context.

    Raises:
        OptionError: a file cannot be used.
    """
    from rmqstore_spark.remoting.tls import client_context

    if key:
        read_file(key, "private key", secret=True)  # others must not be able to read it
    context = client_context(*(os.fspath(path) if path else "" for path in (ca, cert, key)))
    context.set_alpn_protocols([ALPN])
    return context
