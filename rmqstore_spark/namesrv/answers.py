"""Encoded answers that are kept until what they say changes."""

from __future__ import annotations

from typing import Final

_ENTRY_BYTES: Final = 200
"""About what an entry needs beside its answer."""


class AnswerCache:
    """Answers by name, up to a number of bytes. The oldest make room for others.

    Args:
        most: most bytes.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: dict[str, bytes] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of all answers."""
        return self._held

    def get(self, name: str) -> bytes | None:
        """Return an answer; None if it is not kept."""
        return self._answers.get(name)

    def keep(self, name: str, answer: bytes) -> None:
        """Keep an answer that is not kept yet, if there can be room for it."""
        size = _size(name, answer)
        if size > self._most:
            return
        while self._held + size > self._most:
            self.forget(next(iter(self._answers)))
        self._answers[name] = answer
        self._held += size

    def forget(self, name: str) -> None:
        """Drop an answer, if it is kept."""
        found = self._answers.pop(name, None)
        if found is not None:
            self._held -= _size(name, found)

    def clear(self) -> None:
        """Drop all answers."""
        self._answers.clear()
        self._held = 0


def _size(name: str, answer: bytes) -> int:
    return len(name) + len(answer) + _ENTRY_BYTES
