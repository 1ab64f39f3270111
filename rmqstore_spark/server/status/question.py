"""A request for a page, with what the page is made from and what its reader may see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.callers import Caller, Needs
from rmqstore_spark.server.status import views
from rmqstore_spark.server.status.asking import Asked, Unanswerable
from rmqstore_spark.server.status.history import History, Queues
from rmqstore_spark.server.status.pages.frame import Frame
from rmqstore_spark.server.status.problems import Problems
from rmqstore_spark.server.status.watched import Figures, WatchedStore

if TYPE_CHECKING:
    from rmqstore_spark.server.stores.served import StoreService

_STILL: Final = ("messages", "message")
"""The pages that are read for longer, and never refreshed."""
_OF_FRAME: Final = ("store", "refresh")


@dataclass(frozen=True)
class Shown:
    """What there is to show.

    Attributes:
        service: the stores, and the consumers that are connected.
        stores: their figures, by name.
        process: returns the figures of the connections to the process.
        problems: the last lines of the log.
        reading: returns a context with the one place of those who read messages.
    """

    service: StoreService
    stores: Mapping[str, WatchedStore]
    process: Callable[[], Mapping[str, Any]]
    problems: Problems
    reading: Callable[[], AbstractContextManager[None]]


class Question:
    """A request for a page of a store, and what the page needs to be made.

    Args:
        shown: what there is to show.
        asked: the request.
        page: its page.
        caller: who asks.

    Raises:
        Unanswerable: there is no such store.
    """

    def __init__(self, shown: Shown, asked: Asked, page: str, caller: Caller) -> None:
        self.shown = shown
        self.asked = asked
        self._caller = caller
        names = list(shown.stores)
        name = asked.text("store") or names[0]
        if name not in shown.stores:
            raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no store {name[:127]}.")
        self.watched = shown.stores[name]
        self.store = self.watched.store
        self._page = page

    def require(self, needs: Needs) -> None:
        """Refuse who may not see the page.

        Raises:
            RefusedError: its account lacks a right.
        """
        self.store.require(self._caller, needs)

    def may(self, needs: Needs) -> bool:
        """Return whether the account has some rights."""
        try:
            self.require(needs)
        except RefusedError:
            return False
        return True

    @cached_property
    def figures(self) -> Figures:
        """The figures of the store."""
        return self.watched.figures()

    @property
    def queues(self) -> Queues:
        """The queues of the store."""
        found: Queues = self.figures.stats.get("queues", {})
        return found

    @property
    def frame(self) -> Frame:
        """What is around the page."""
        fields = {key: at for key, at in self.asked.fields.items() if key not in _OF_FRAME}
        refreshes = None if self._page in _STILL else self.asked.text("refresh") == "on"
        names = list(self.shown.stores)
        return Frame(names, self.store.name, self._page, fields, refreshes, self.figures.taken)

    def topic_lines(self, containing: str = "") -> list[views.TopicLine]:
        """Return the topics of the store."""
        rates = self.watched.look_back(History.rates)
        return views.topic_lines(self.queues, rates, containing)

    def chosen(self, name: str, choices: Sequence[str]) -> str:
        """Return a field that is one of some words; the first of them if it is not."""
        given = self.asked.text(name)
        return given if given in choices else choices[0]
