"""What every call passes first: the token, the number of calls, whether the process is stopping."""

from __future__ import annotations

from typing import Any, Final

from pyarrow import flight

from rmqstore_spark.service.auth import Security
from rmqstore_spark.service.calls import Call, Calls, TooManyCallsError
from rmqstore_spark.wire.failures import BUSY, DENIED, UNAVAILABLE, refusal_bytes
from rmqstore_spark.wire.protocol import PROCESS_HEADER

__all__ = ["GATE", "Gate", "refusal"]

GATE: Final = "gate"
"""The middleware's name."""

_STREAMS: Final = frozenset(
    {flight.FlightMethod.DO_EXCHANGE, flight.FlightMethod.DO_GET, flight.FlightMethod.DO_PUT}
)
_MAX_PROCESS_DIGITS: Final = 10


def refusal(status: str, message: str) -> flight.FlightError:
    """The error of Flight that refuses a call."""
    kind = (
        flight.FlightUnavailableError if status in (BUSY, UNAVAILABLE) else flight.FlightServerError
    )
    return kind(f"{status}: {message}", refusal_bytes(status, message))


class Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc] # pyarrow has no types
    """Lets a call in, or not.

    Args:
        security: whether clients show a token.
        calls: where calls are counted.
    """

    def __init__(self, security: Security, calls: Calls) -> None:
        super().__init__()
        self._security = security
        self._calls = calls

    def start_call(self, info: Any, headers: dict[str, list[Any]]) -> Any:
        """Let a call in, before anything of it is read."""
        token = self._security.token
        if token is not None and not token.matches(_only(headers, "authorization")):
            message = "The token is missing or wrong."
            raise flight.FlightUnauthenticatedError(message, refusal_bytes(DENIED, message))
        if self._calls.is_stopping:
            raise refusal(UNAVAILABLE, "The store process is stopping. Try again later.")
        process = _only(headers, PROCESS_HEADER) or ""
        is_number = process.isascii() and process.isdigit() and len(process) <= _MAX_PROCESS_DIGITS
        try:
            call = self._calls.begin(info.method in _STREAMS, int(process) if is_number else 0)
        except TooManyCallsError:
            raise refusal(
                BUSY, "The store process has as many clients as it takes (maxStreams). Try again."
            ) from None
        return _Pass(call, self._calls)


class _Pass(flight.ServerMiddleware):  # type: ignore[misc] # pyarrow has no types
    """Belongs to one call that was let in."""

    def __init__(self, call: Call, calls: Calls) -> None:
        super().__init__()
        self.call = call
        self._calls = calls

    def call_completed(self, _exception: Any) -> None:
        self._calls.end(self.call)


def _only(headers: dict[str, list[Any]], name: str) -> str | None:
    """A header that is there once, as text."""
    values = headers.get(name) or []
    return values[0] if len(values) == 1 and isinstance(values[0], str) else None
