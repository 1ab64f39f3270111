"""The instances of a class that are made, for tests of what lies deep in a process."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

__all__ = ["instances_of"]

_T = TypeVar("_T")


def instances_of(monkeypatch: pytest.MonkeyPatch, cls: type[_T]) -> list[_T]:
    """A list to which the instances are added that are made from now on.

    `gc.get_objects()` also gives tuples that other threads are just making, which then fail there.
    """
    made: list[_T] = []
    init = cls.__init__

    def noted(self: _T, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(cls, "__init__", noted)
    return made
