"""Asks one of several servers that give the same answers, and another one if it fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final, NamedTuple, Protocol

from rmqstore_spark.base.printable import escaped
from rmqstore_spark.client.brokers.pipe import PipeError, RemotingPipe
from rmqstore_spark.client.contact import (
    CONNECT_SECONDS,
    FirstContact,
    backoff,
    note_reached,
    was_reached,
)
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.remoting.access.identity import ClientIdentity
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command

_log = logging.getLogger("rmqstore_spark")

_AT_ONCE: Final = 256
"""Most requests on the way: few enough that a server that answers slowly can still read them."""
_SHORTEST: Final = 0.1
_AVOIDED: Final = 30.0
_SHOWN: Final = 200
_MOST_BYTES: Final = 1 << 30
"""Most bytes of answers that are kept together: more than the routes of 10,000 topics."""
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))
_REJECTED: Final = "[REJECTREQUEST]"
"""Begins the remark of a broker that takes no request of that kind (upstream:
NettyRemotingAbstract, and in 5.3 PullMessageProcessor.rejectRequest of a slave)."""
_SLAVE_REJECTS: Final = (
    " A slave of RocketMQ 5 is read only if slaveReadEnable=true is in its configuration."
)


class _BusyError(PipeError):
    """A server refuses requests for now."""


class Answered(NamedTuple):
    """An answer, and whether the master gave it.

    Attributes:
        command: the answer.
        is_master: whether the master gave it.
    """

    command: Command
    is_master: bool


class Exchange(Protocol):
    """Requests of which later ones depend on the answers to earlier ones."""

    def due(self, room: int) -> Sequence[Command]:
        """Return the next requests, at most `room`. It is over when none is due or on the way."""
        ...

    def answered(self, asked: Command, answer: Answered) -> None:
        """Take the answer to a request, whatever its code.

        Raises:
            PipeError: the request goes to the next server.
        """
        ...


class Addresses(NamedTuple):
    """Where servers are.

    Attributes:
        listed: at least one, as `host:port`.
        has_master: whether the first one is a master.
    """

    listed: tuple[str, ...]
    has_master: bool


class ServerFinder(Protocol):
    """Finds servers that may have moved."""

    def find(self) -> Addresses | None:
        """Return where they are now; None if nobody knows."""
        ...

    def close(self) -> None:
        """Close the connections that this needs."""
        ...


class ServerGroup:
    """Some servers: the name servers, or the master and the slaves of one broker name.

    They are asked in their order. One that fails is asked last for a while. Use this in one thread.

    Args:
        addresses: where they are.
        title: what they are, for errors.
        timeout_s: seconds after which none has answered, with all that was tried again.
        answer_s: seconds that one server may take for an answer.
        identity: as whom this side talks to them.
        patience_s: for how many seconds to try the master before its slaves are asked.
        finder: finds them again if none of them answers; closed with this.
        connect_s: seconds after which servers none of which has ever answered are given up; None
            for those that another process of this program has reached.
        retries: how often all of them are asked again; None for as often as time permits.
    """

    def __init__(
        self,
        addresses: Addresses,
        title: str,
        timeout_s: float,
        answer_s: float,
        identity: ClientIdentity,
        *,
        patience_s: float = 0.0,
        finder: ServerFinder | None = None,
        connect_s: float | None = CONNECT_SECONDS,
        retries: int | None = None,
    ) -> None:
        self.addresses = addresses
        self._title = title
        self.timeout_s = timeout_s
        self._answer_s = min(answer_s, timeout_s)
        self._identity = identity
        self._patience_s = patience_s
        self._finder = finder
        self._connect_s = connect_s
        self._retries = retries
        self._contact: FirstContact | None = None
        self._pipes = [RemotingPipe(address, identity) for address in addresses.listed]
        self._failed_at: dict[RemotingPipe, float] = {}
        self._is_master_away = False
        self._opaque = 0
        self._answers = 0

    @property
    def name(self) -> str:
        """What they are and where, to begin a sentence with."""
        return f"{self._title} ({' or '.join(self.addresses.listed)})"

    def close(self) -> None:
        """Close all connections."""
        for pipe in self._pipes:
            pipe.close()
        if self._finder is not None:
            self._finder.close()

    @contextmanager
    def limited_to(self, seconds: float, *, tries_again: bool = True) -> Iterator[None]:
        """Give up sooner, in the context.

        Args:
            seconds: after which none has answered, and that one may take for an answer.
            tries_again: False to ask each server once.
        """
        limits = self.timeout_s, self._answer_s
        self.timeout_s, self._answer_s = (min(seconds, limit) for limit in limits)
        if not tries_again:
            self.timeout_s = 0.0
        try:
            yield
        finally:
            self.timeout_s, self._answer_s = limits

    def find_again(self) -> None:
        """Ask where the servers are now, and continue there."""
        found = None if self._finder is None else self._finder.find()
        if found is None or found == self.addresses:
            return
        before, self.addresses = self.name, found
        _log.warning("%s has moved; continuing at %s.", before, " or ".join(found.listed))
        known = {pipe.address: pipe for pipe in self._pipes}
        self._pipes = [
            known[address] if address in known else RemotingPipe(address, self._identity)
            for address in found.listed
        ]
        self._is_master_away = False
        for pipe in known.values():
            if pipe not in self._pipes:
                self._failed_at.pop(pipe, None)
                pipe.close()

    def ask(self, command: Command) -> Answered:
        """Send a request that may be handled twice, and return the answer, whatever its code.

        Raises:
            ServiceError: no server answers in time, or all of them stay too busy.
        """
        return self.ask_all((command,))[0]

    def ask_all(self, commands: Iterable[Command]) -> list[Answered]:
        """Send requests like `ask`, many at a time, and return their answers, in the same order.

        Raises:
            ServiceError: as `ask` raises it, or the answers are too long together.
        """
        exchange = _Questions(commands, self.name)
        self.run(exchange)
        return exchange.answers

    def run(self, exchange: Exchange) -> None:
        """Send requests and take their answers until it is over. Nothing is then on the way.

        Requests may be handled twice: those that a server did not answer go to the next one.

        Raises:
            ServiceError: no server answers in time, or all of them stay too busy.
        """
        if self._connect_s is None or any(map(was_reached, self.addresses.listed)):
            self._run(exchange, self.timeout_s, self._patience_s)
            return
        seconds = min(self.timeout_s, self._connect_s)
        with FirstContact(f"{self.name[:1].lower()}{self.name[1:]}", seconds) as self._contact:
            try:
                self._run(exchange, seconds, min(self._patience_s, seconds / 2))
            finally:
                self._contact = None

    def _run(self, exchange: Exchange, seconds: float, patience: float) -> None:
        """Do what `run` does.

        Args:
            exchange: the requests.
            seconds: after which no server has answered.
            patience: for how many seconds to try the master before its slaves are asked.
        """
        waiting: dict[int, Command] = {}
        began = time.monotonic()
        give_up = began + seconds
        patience = 0.0 if self._is_master_away else patience
        pauses = backoff()
        failures: dict[RemotingPipe, str] = {}
        for tries in count():
            has_both = self.addresses.has_master and len(self._pipes) > 1
            is_early = has_both and time.monotonic() < began + patience
            if not is_early:
                self._tell_of_master(failures)
            failures, is_busy = {}, False
            for pipe in self._pipes[:1] if is_early else self._in_order():
                before = self._answers
                try:
                    self._run_at(pipe, exchange, waiting, self._limit(give_up))
                except PipeError as error:
                    pipe.close()
                    self._failed_at[pipe] = time.monotonic()
                    failures[pipe] = str(error)
                    is_busy |= isinstance(error, _BusyError)
                    if not is_early:
                        self._tell_of_master(failures)
                    if self._answers > before:
                        give_up, pauses = time.monotonic() + self.timeout_s, backoff()
                    elif isinstance(error, _BusyError):
                        self._has_answered(pipe)
                        give_up = max(give_up, began + self.timeout_s)
                except BaseException:
                    pipe.close()  # answers that nobody waits for are on their way
                    raise
                else:
                    self._is_master_away &= pipe is not self._pipes[0]
                    return
            pause = next(pauses)
            if not is_early and self._gives_up(tries, time.monotonic() + pause > give_up):
                failure = self._failure(failures.values(), is_busy)
                raise ServiceError(failure, can_pass=True)
            if self._contact is not None:
                self._contact.because(" ".join(failures.values()))
            self.find_again()
            time.sleep(pause)

    def _gives_up(self, tries: int, is_over: bool) -> bool:
        return is_over or (self._retries is not None and tries >= self._retries)

    def _limit(self, give_up: float) -> float:
        """Return the seconds that the next server may take for an answer."""
        if self._contact is None:
            return self._answer_s
        return min(self._answer_s, max(give_up - time.monotonic(), _SHORTEST))

    def _has_answered(self, pipe: RemotingPipe) -> None:
        """Take note that the first contact is made, if it was not yet."""
        note_reached(pipe.address)
        if self._contact is not None:
            self._contact.over()
            self._contact = None

    def _failure(self, failures: Iterable[str], is_busy: bool) -> str:
        """Say why no server has answered."""
        told = " ".join(dict.fromkeys(failures))
        if is_busy:
            return f"{self.name} stays too busy. {told} Try again later, or raise requestTimeout."
        tried = "" if self._contact is None else f" Waited at most {self._connect_s:.3g} s for it."
        return (
            f"{self.name} does not answer. {told}{tried} Check that it runs, and that this machine "
            "reaches its address."
        )

    def _tell_of_master(self, failures: Mapping[RemotingPipe, str]) -> None:
        """Log that slaves are asked in place of a master, once until it answers again."""
        error = failures.get(self._pipes[0]) if self.addresses.has_master else None
        if error is None or self._is_master_away or len(self._pipes) == 1:
            return
        self._is_master_away = True
        _log.warning(
            "%s: its master does not answer. %s Its slaves are asked, which may lack the newest "
            "messages.",
            self.name, error,
        )  # fmt: skip

    def _run_at(
        self,
        pipe: RemotingPipe,
        exchange: Exchange,
        waiting: dict[int, Command],
        answer_s: float,
    ) -> None:
        """Continue with one server.

        Args:
            pipe: the connection to it.
            exchange: what to ask.
            waiting: the requests that have no answer yet, by their `opaque`; updated in place.
            answer_s: seconds that it may take to connect, and for an answer.
        """
        pipe.open(answer_s)
        is_master = self.addresses.has_master and pipe is self._pipes[0]
        new = list(waiting.values()) or exchange.due(_AT_ONCE)
        waiting.clear()
        while new or waiting:
            if new:
                for command in new:
                    self._opaque = command.opaque = (self._opaque + 1) & 0x7FFFFFFF
                    waiting[command.opaque] = command
                pipe.send(new, answer_s)
            for answer in pipe.receive(answer_s, waiting):
                asked = waiting.get(answer.opaque)
                if asked is None:  # answered twice
                    continue
                if answer.code in _BUSY:
                    told = escaped((answer.remark or "busy")[:_SHOWN]).rstrip(".")
                    why = _SLAVE_REJECTS if not is_master and told.startswith(_REJECTED) else ""
                    raise _BusyError(f"{pipe.address} answered: {told}.{why}")
                del waiting[answer.opaque]
                if not self._answers or self._contact is not None:
                    self._has_answered(pipe)
                self._answers += 1
                exchange.answered(asked, Answered(answer, is_master))
            new = exchange.due(_AT_ONCE - len(waiting))

    def _in_order(self) -> list[RemotingPipe]:
        now = time.monotonic()
        return sorted(
            self._pipes, key=lambda one: now - self._failed_at.get(one, now - _AVOIDED) < _AVOIDED
        )


class _Questions:
    """Requests that do not depend on each other.

    Args:
        commands: the requests.
        who: is asked, for errors.

    Attributes:
        answers: in their order, when all have come.
    """

    def __init__(self, commands: Iterable[Command], who: str) -> None:
        self._commands = list(commands)
        self._who = who
        self._sent = 0
        self._bytes = 0
        self._found: dict[int, Answered] = {}

    @property
    def answers(self) -> list[Answered]:
        return [self._found[id(command)] for command in self._commands]

    def due(self, room: int) -> Sequence[Command]:
        new = self._commands[self._sent : self._sent + room]
        self._sent += len(new)
        return new

    def answered(self, asked: Command, answer: Answered) -> None:
        self._bytes += answer.command.size
        if self._bytes > _MOST_BYTES:
            raise ServiceError(
                f"{self._who} sent more than {_MOST_BYTES >> 20} MiB in answer to "
                f"{len(self._found) + 1} of {len(self._commands)} requests that belong together. "
                "Ask for fewer topics or queues at a time (subscribe, assign)."
            )
        self._found[id(asked)] = answer
