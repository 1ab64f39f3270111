"""Asks one of several servers that can answer alike, and another one if it fails."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from rmqstore_spark.client.brokers.pipe import PipeError, RemotingPipe
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.printable import escaped
from rmqstore_spark.remoting.codec.codes import ResponseCode
from rmqstore_spark.remoting.codec.command import Command

__all__ = ["AlikeServers", "Answered", "Conversation"]

_AT_ONCE: Final = 256
"""Most requests on the way: few enough that a server that answers slowly can still read them."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
_AVOIDED: Final = 30.0
_SHOWN: Final = 200
_BUSY: Final = frozenset((ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE))


class Answered(NamedTuple):
    """An answer, and whose.

    Attributes:
        command: the answer.
        is_master: whether the master gave it.
    """

    command: Command
    is_master: bool


class Conversation(Protocol):
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


class AlikeServers:
    """Some servers: the name servers, or the master and the slaves of one broker name.

    They are asked in their order. One that fails is asked last for a while. Use this in one thread.

    Args:
        addresses: at least one, as `host:port`.
        name: what they are, for errors.
        timeout_s: seconds after which none has answered, with all that was tried again.
        answer_s: seconds that one server may take for an answer.
        has_master: whether the first one is a master.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        name: str,
        timeout_s: float,
        answer_s: float,
        *,
        has_master: bool = True,
    ) -> None:
        self.name = name
        self._has_master = has_master
        self.timeout_s = timeout_s
        self._answer_s = min(answer_s, timeout_s)
        self._pipes = [RemotingPipe(address) for address in addresses]
        self._failed_at: dict[RemotingPipe, float] = {}
        self._opaque = 0
        self._answers = 0

    def close(self) -> None:
        """Close all connections."""
        for pipe in self._pipes:
            pipe.close()

    def ask(self, command: Command) -> Answered:
        """Send a request that may be handled twice, and return the answer, whatever its code.

        Raises:
            ServiceError: no server answers in time, or all of them stay too busy.
        """
        return self.ask_all((command,))[0]

    def ask_all(self, commands: Iterable[Command]) -> list[Answered]:
        """Send requests like `ask`, many at a time, and return their answers, in the same order."""
        talk = _Questions(commands)
        self.converse(talk)
        return talk.answers

    def converse(self, talk: Conversation) -> None:
        """Send requests and take their answers until it is over. Nothing is then on the way.

        Requests may be handled twice: those that a server did not answer go to the next one.

        Raises:
            ServiceError: no server answers in time, or all of them stay too busy.
        """
        waiting: dict[int, Command] = {}
        give_up = time.monotonic() + self.timeout_s
        pause = _FIRST_PAUSE
        while True:
            failures = {}
            for pipe in self._in_order():
                before = self._answers
                try:
                    self._converse(pipe, talk, waiting)
                except PipeError as error:
                    pipe.close()
                    self._failed_at[pipe] = time.monotonic()
                    failures[pipe] = str(error)
                    if self._answers > before:
                        give_up, pause = time.monotonic() + self.timeout_s, _FIRST_PAUSE
                except BaseException:
                    pipe.close()  # answers that nobody waits for are on their way
                    raise
                else:
                    return
            if time.monotonic() + pause > give_up:
                told = " ".join(dict.fromkeys(failures.values()))
                raise ServiceError(
                    f"{self.name} does not answer. {told} Check that it runs, and that this "
                    "machine reaches its address.",
                    can_pass=True,
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _converse(
        self, pipe: RemotingPipe, talk: Conversation, waiting: dict[int, Command]
    ) -> None:
        """Go on at one server.

        Args:
            pipe: the connection to it.
            talk: what to ask.
            waiting: the requests that have no answer yet, by their `opaque`; updated in place.
        """
        pipe.open(self._answer_s)
        is_master = self._has_master and pipe is self._pipes[0]
        new = list(waiting.values()) or talk.due(_AT_ONCE)
        waiting.clear()
        while new or waiting:
            if new:
                for command in new:
                    self._opaque = command.opaque = (self._opaque + 1) & 0x7FFFFFFF
                    waiting[command.opaque] = command
                pipe.send(new, self._answer_s)
            for answer in pipe.receive(self._answer_s):
                asked = waiting.get(answer.opaque)
                if asked is None:
                    continue
                if answer.code in _BUSY:
                    told = escaped((answer.remark or "busy")[:_SHOWN])
                    raise PipeError(f"{self.name} answered: {told}.")
                del waiting[answer.opaque]
                self._answers += 1
                talk.answered(asked, Answered(answer, is_master))
            new = talk.due(_AT_ONCE - len(waiting))

    def _in_order(self) -> list[RemotingPipe]:
        now = time.monotonic()
        return sorted(
            self._pipes, key=lambda one: now - self._failed_at.get(one, now - _AVOIDED) < _AVOIDED
        )


class _Questions:
    """Requests that do not depend on each other.

    Attributes:
        answers: in their order, when all have come.
    """

    def __init__(self, commands: Iterable[Command]) -> None:
        self._commands = list(commands)
        self._sent = 0
        self._found: dict[int, Answered] = {}

    @property
    def answers(self) -> list[Answered]:
        return [self._found[id(command)] for command in self._commands]

    def due(self, room: int) -> Sequence[Command]:
        new = self._commands[self._sent : self._sent + room]
        self._sent += len(new)
        return new

    def answered(self, asked: Command, answer: Answered) -> None:
        self._found[id(asked)] = answer
