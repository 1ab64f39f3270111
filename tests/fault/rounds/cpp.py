"""An application with RocketMQ's C++ client, which is killed, and ends when a send of it fails."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.broker.real_client import RealClient
from tests.support.processes.delaying import rows_of

__all__ = ["CPP_TOPIC", "CppApplication"]

CPP_TOPIC: Final = "applications"
_SENT_AT_ONCE: Final = 200


class CppApplication:
    """The client's processes, one after the other; it sends, and consumes what it has sent.

    Args:
        home: for the files that the client logs to.
        command: of the client, see `cpp_command`.
        name_server: whom it asks for the broker.
    """

    def __init__(self, home: Path, command: list[str], name_server: str) -> None:
        self._home = home
        self._command = [*command, name_server, CPP_TOPIC, "0"]
        self._client: RealClient | None = None
        self._sent: set[str] = set()
        self._got: set[str] = set()
        self._number = 0

    def send(self) -> None:
        """Let it send messages; starts it if it does not live."""
        client = self._client
        if client is None or client.process.poll() is not None:
            self.kill()
            client = RealClient(self._home, *self._command, stderr=subprocess.DEVNULL)
            self._client = client
        with suppress(OSError):  # it has just ended
            for _ in range(_SENT_AT_ONCE):
                self._number += 1
                client.send(f"{self._number}")

    def kill(self) -> None:
        """Kill it if it lives, and note what it had said."""
        if self._client is not None:
            self._client.kill()
            self._note()
            with suppress(OSError):
                self._client.end()
            self._client = None

    def has_got_all(self, acknowledged: int) -> bool:
        """Whether more has been acknowledged, and all of it consumed; lets it live until then."""
        if self._client is None or self._client.process.poll() is not None:
            self.send()
        self._note()
        return len(self._sent) > acknowledged and self._sent <= self._got

    @property
    def acknowledged(self) -> int:
        """How many messages were."""
        return len(self._sent)

    def missed(self, store: Path) -> set[str]:
        """What was acknowledged, and is not in a store.

        The client sends again by itself when an answer is lost: there may be more than was sent.
        """
        return self._sent - {row["body"].decode() for row in rows_of(store, CPP_TOPIC)}

    def _note(self) -> None:
        assert self._client is not None
        self._sent.update(body for _, body in self._client.words("sent"))
        self._got |= self._client.got()
