"""One connection to a store process, with time limits, retries and plain errors."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyarrow import flight

from rmqstore_spark.client.contact import FirstContact, note_reached, was_reached
from rmqstore_spark.client.pauses import backoff
from rmqstore_spark.errors import OptionError, RefusedError, RmqStoreError, ServiceError
from rmqstore_spark.wire.codec import MessageError, decode, encode, read_json
from rmqstore_spark.wire.endpoint import TCP, TLS, UNIX, Endpoint, parse_endpoint
from rmqstore_spark.wire.failures import REPEATABLE, refused
from rmqstore_spark.wire.messages import OpenRequest
from rmqstore_spark.wire.protocol import BLOCK_SCHEMA, MAX_ANSWER, STORE_HEADER, Actions
from rmqstore_spark.wire.secrets import Token, read_certificate, read_key, read_token

__all__ = ["Connection"]

_log = logging.getLogger("rmqstore_spark")

T = TypeVar("T")

# gRPC waits longer and longer before it connects again, up to two minutes, and fails all calls
# until then. So a process that has been restarted would be found much too late. The "minimum" is
# something else, in spite of its name: how long an attempt to connect may take.
_RECONNECT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 20_000),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_MOST_LATE: Final = 5
_QUIET_TRIES: Final = 4
_SHORTEST: Final = 0.1


class Connection:
    """A connection, opened when it is first used, and again after it broke.

    Args:
        endpoint: an endpoint, or a text for `parse_endpoint`.
        token_file, tls_ca, tls_cert, tls_key: files; see `StoreClient`.
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
        token_file: str | os.PathLike[str] | None,
        tls_ca: str | os.PathLike[str] | None,
        tls_cert: str | os.PathLike[str] | None,
        tls_key: str | os.PathLike[str] | None,
        timeout_s: float,
        retries: int,
        connect_s: float | None,
    ) -> None:
        self.endpoint = parse_endpoint(endpoint) if isinstance(endpoint, str) else endpoint
        self.timeout_s = timeout_s
        self.retries = retries
        self._connect_s = connect_s
        token = read_token(token_file) if token_file else None
        self._check(token, tls_ca, tls_cert, tls_key)
        options: dict[str, Any] = {
            "middleware": [_Headers(token, self.endpoint.store)],
            "generic_options": list(_RECONNECT),
        }
        if tls_ca:
            options["tls_root_certs"] = read_certificate(tls_ca)
        if tls_cert and tls_key:
            options["cert_chain"] = read_certificate(tls_cert)
            options["private_key"] = read_key(tls_key)
        self._client: Any = flight.FlightClient(self.endpoint.address, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.endpoint)!r})"

    def _check(self, token: Token | None, *tls: str | os.PathLike[str] | None) -> None:
        """Refuse settings that would send a secret unencrypted, or have no effect."""
        _, cert, key = tls
        if self.endpoint.scheme != TLS and any(tls):
            raise OptionError(
                f"TLS files are set, but {self.endpoint} is not encrypted. Use {TLS}://."
            )
        if bool(cert) != bool(key):
            raise OptionError("Give a client's certificate together with its key, or neither.")
        if token is not None and self.endpoint.can_be_overheard:
            raise OptionError(f"The token would go to {self.endpoint} unencrypted. Use {TLS}://.")

    def call(self, action: str, request: object, answer: type[T], *, repeat: bool = True) -> T:
        """Call an action.

        Args:
            action: its name.
            request: the message to send.
            answer: the class of the answer.
            repeat: whether the action may run twice, so that it can be tried again.

        Raises:
            RefusedError: the store process refused the request.
            ServiceError: the store process cannot be reached, or did not answer in time.
        """
        data = self._call(action, request, repeat)
        try:
            return decode(answer, data, most=MAX_ANSWER)
        except MessageError as error:
            raise self.nonsense(error) from None

    def call_json(self, action: str, request: object) -> Any:
        """Call a repeatable action whose answer is JSON of no declared class."""
        data = self._call(action, request, repeat=True)
        try:
            return read_json(data, most=MAX_ANSWER)
        except MessageError as error:
            raise self.nonsense(error) from None

    def call_table(self, action: str, request: object) -> pa.Table:
        """Call a repeatable action whose answer is a table."""
        data = self._call(action, request, repeat=True)
        with self.own_errors(), pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
            table.validate(full=True)
            return table

    def _call(self, action: str, request: object, repeat: bool) -> bytes:
        def once() -> bytes:
            sent = flight.Action(action, encode(request))
            results = list(self._client.do_action(sent, self.options()))
            return results[0].body.to_pybytes() if results else b""

        if repeat:
            return self.repeated(once)
        self._meet()
        return self.attempt(once)

    def get(self, ticket: bytes) -> Any:
        """Start reading the ranges of a ticket; return Flight's reader."""
        return self._client.do_get(flight.Ticket(ticket), self.options())

    def exchange(self, command: bytes) -> tuple[Any, Any]:
        """Open a stream of blocks; return Flight's writer and reader."""
        descriptor = flight.FlightDescriptor.for_command(command)

        def begin() -> tuple[Any, Any]:
            writer, reader = self._client.do_exchange(descriptor)
            try:
                writer.begin(BLOCK_SCHEMA)
            except BaseException:
                with suppress(flight.FlightError, pa.ArrowException):
                    writer.close()
                raise
            return writer, reader

        return self.repeated(begin)

    def options(self) -> flight.FlightCallOptions:
        """Return the options of one call: its time limit."""
        return flight.FlightCallOptions(timeout=self.timeout_s)

    def _meet(self) -> None:
        """Find out whether a store process answers at all, if it never has.

        Raises:
            ServiceError: it does not, or rejects the token.
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
                        raise self._given_up(error, self._connect_s) from None
                    waiting.because(error)
                    time.sleep(pause)
                else:
                    break
        note_reached(place)

    def _greet(self, seconds: float) -> None:
        """Ask for what every store process answers at once."""
        seconds = min(seconds, self.timeout_s)

        def ask() -> None:
            sent = flight.Action(Actions.OPEN, encode(OpenRequest(())))
            list(self._client.do_action(sent, flight.FlightCallOptions(timeout=seconds)))

        try:
            self.attempt(ask)
        except _TimedOutError:
            raise ServiceError(
                f"Nothing answers at {self.endpoint}: no answer came within {seconds:.3g} s. Check "
                f"that a store process runs there (rmqstore serve), and "
                f"{_WHERE_IT_BREAKS[self.endpoint.scheme]}.",
                can_pass=True,
            ) from None

    def _given_up(self, error: ServiceError, seconds: float) -> ServiceError:
        text = f"{error} Tried as long as connectTimeout ({seconds:g} s) allows."
        return ServiceError(text, can_pass=True)

    def attempt(self, work: Callable[[], T]) -> T:
        """Run something once, and convert its errors to errors of this package."""
        with self.own_errors():
            return work()

    def repeated(self, work: Callable[[], T]) -> T:
        """Run something that may run twice, and try again after a pause if that can help."""
        self._meet()
        waits = backoff()
        late = 0
        for number in range(self.retries):
            began = time.monotonic()
            try:
                return self.attempt(work)
            except RefusedError as error:
                if error.status not in REPEATABLE:
                    raise
                self._announce(number, error)
            except ServiceError as error:
                late += time.monotonic() - began >= self.timeout_s
                if not error.can_pass or late > _MOST_LATE:
                    raise
                self._announce(number, error)
            time.sleep(next(waits))
        return self.attempt(work)

    def _announce(self, number: int, error: RmqStoreError) -> None:
        """Log why a request is tried again, once the first tries did not help."""
        if number == _QUIET_TRIES:
            _log.warning("%s Trying again, up to %d times.", error, self.retries - number)

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Convert Flight's errors to errors of this package."""
        try:
            yield
        except RmqStoreError:
            raise
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise self.explained(error) from None

    def explained(self, error: Exception) -> RmqStoreError:
        """Return an error of Flight as an error of this package."""
        if isinstance(error, flight.FlightUnauthenticatedError):
            return ServiceError(
                f"The store process at {self.endpoint} requires a token, or rejected this one. "
                "Set tokenFile to the file that holds it."
            )
        refusal = refused(getattr(error, "extra_info", None))
        if refusal is not None:
            return refusal
        text = str(error).partition(". gRPC client debug context")[0]
        text = text.removesuffix(". Detail: Unavailable")
        if isinstance(error, flight.FlightTimedOutError):
            return _TimedOutError(str(self.too_late("answer")), can_pass=True)
        if isinstance(error, flight.FlightUnavailableError):
            return self._unavailable(text)
        return ServiceError(
            f"The store process at {self.endpoint} failed: {text}",
            can_pass=isinstance(error, _BROKEN),
        )

    def _unavailable(self, text: str) -> ServiceError:
        lowered = text.lower().replace("_", " ")
        can_pass = not any(cause in lowered for cause in _MISCONFIGURED)
        return ServiceError(self._unreachable(text, lowered), can_pass=can_pass)

    def _unreachable(self, text: str, lowered: str) -> str:
        if "refused" in lowered or "no such file" in lowered:
            return (
                f"Nothing listens on {self.endpoint}. Start a store process there: rmqstore serve."
            )
        if _NOT_ENCRYPTED in lowered:
            return (
                f"{self.endpoint} answers without encryption. Use {TCP}:// if you send no "
                "token, or start the store process with a certificate (tlsCertPath)."
            )
        if "ssl" in lowered or "certificate" in lowered:
            return (
                f"No encrypted connection to {self.endpoint}: {text}. Check the certificates "
                "(tlsCaFile, tlsCertFile, tlsKeyFile) and the name in the server's."
            )
        return (
            f"The connection to {self.endpoint} broke: {text}. Check the process and "
            f"{_WHERE_IT_BREAKS[self.endpoint.scheme]}."
        )

    def too_late(self, what: str) -> ServiceError:
        """Return the error for a store process that did not act in time."""
        return ServiceError(
            f"The store process at {self.endpoint} did not {what} within {self.timeout_s:g} s. "
            "Check what it is doing (rmqstore stats), or raise requestTimeout.",
            can_pass=True,
        )

    def nonsense(self, error: MessageError) -> ServiceError:
        """Return the error for an answer that cannot be decoded."""
        return ServiceError(
            f"{self.endpoint} sent an answer that this version does not understand: {error}. "
            "Use the same version of rmqstore-spark on both sides."
        )

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class _TimedOutError(ServiceError):
    """A request was not answered in time."""


# How a connection ends when its process does, besides being unavailable.
_BROKEN: Final = (flight.FlightInternalError, flight.FlightCancelledError, OSError)
_NOT_ENCRYPTED: Final = "wrong version number"
_MISCONFIGURED: Final = (_NOT_ENCRYPTED, "certificate verify failed")
_WHERE_IT_BREAKS: Final = {
    UNIX: "the socket's folder",
    TCP: f"host, port and network: perhaps it is encrypted ({TLS}://), or not a store process; a "
    "broker's port serves RocketMQ's clients: use namesrvAddr for a broker",
    TLS: "host, port and network; or perhaps it wants a certificate of yours (tlsCertFile)",
}


class _Headers(flight.ClientMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Adds to each call the token, and the name of the store."""

    def __init__(self, token: Token | None, store: str) -> None:
        super().__init__()
        self._token = token
        self._store = store

    def start_call(self, _info: Any) -> Any:
        return _Header(self._token, self._store)


class _Header(flight.ClientMiddleware):  # type: ignore[misc] # pyarrow has no types
    def __init__(self, token: Token | None, store: str) -> None:
        super().__init__()
        self._token = token
        self._store = store

    def sending_headers(self) -> dict[str, str]:
        headers = {} if self._token is None else {"authorization": self._token.header}
        return {**headers, STORE_HEADER: self._store} if self._store else headers
