"""Answers requests for pages, within limits.

Pages are made for a few at a time, and the browser reads for one at a time: a body may take 64 MiB
to unpack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from rmqstore_spark.errors import OptionError, RefusedError, RmqStoreError, TopicNotFoundError
from rmqstore_spark.server.status.asking import Asked, StatusAnswer, Unanswerable
from rmqstore_spark.server.status.guard import caller_of, check_origin
from rmqstore_spark.server.status.markup import element
from rmqstore_spark.server.status.pages.frame import ROOT, STYLE
from rmqstore_spark.server.status.problems import Problems
from rmqstore_spark.server.status.question import Question, Shown
from rmqstore_spark.server.status.routes import PAGES
from rmqstore_spark.server.status.watched import SAMPLE_SECONDS, Sampling, WatchedStore

if TYPE_CHECKING:
    from rmqstore_spark.broker.acl.accounts import AccountSource
    from rmqstore_spark.server.stores.served import StoreService

_AT_ONCE: Final = 4
_WAIT_SECONDS: Final = 2.0
_FRESH_SECONDS: Final = 1.0


class StatusSite:
    """Answers requests for pages, from its construction until `close`. Thread-safe.

    Args:
        service: the stores.
        process: returns the figures of the connections to the process.
        accounts: has the accounts; None if nobody needs one.
        seconds: between two samples of the figures.

    Attributes:
        stores: their figures, by name.
        problems: the last lines of the log.
    """

    def __init__(
        self,
        service: StoreService,
        process: Callable[[], Mapping[str, Any]],
        accounts: AccountSource | None,
        seconds: float = SAMPLE_SECONDS,
    ) -> None:
        fresh = min(_FRESH_SECONDS, seconds)
        stores = service.stores
        self.stores = {store.name: WatchedStore(store, fresh, len(stores)) for store in stores}
        self.problems = Problems()
        self._accounts = accounts
        self._making = threading.BoundedSemaphore(_AT_ONCE)
        self._reading = threading.BoundedSemaphore(1)
        self._style = files(__package__).joinpath("style.css").read_bytes()
        self._shown = Shown(service, self.stores, process, self.problems, self.reading)
        self._sampling = Sampling(list(self.stores.values()), seconds)

    def close(self) -> None:
        """Take no more samples, and keep no more lines of the log."""
        self._sampling.close()
        self.problems.close()

    def answer(self, target: str, host: str, headers: Mapping[str, str]) -> StatusAnswer:
        """Answer a request.

        Args:
            target: its path and query.
            host: the address of the client.
            headers: those of `asking.HEADERS` that the request has.
        """
        try:
            asked = Asked.of(target, host, headers)
            check_origin(asked)
            if asked.path == STYLE:  # it says nothing about the stores
                return StatusAnswer(self._style, "text/css; charset=utf-8")
            return self._page(asked)
        except Unanswerable as error:
            return _told(error.status, error.text, *error.headers)

    def _page(self, asked: Asked) -> StatusAnswer:
        name = asked.path.removeprefix(ROOT).removeprefix("/")
        page = PAGES.get(name)
        if page is None:
            raise Unanswerable(HTTPStatus.NOT_FOUND, "There is no such page.")
        caller = caller_of(asked, self._accounts)
        with self.taken(self._making):
            question = Question(self._shown, asked, name, caller)
            try:
                return StatusAnswer(page(question))
            except RefusedError as error:
                raise Unanswerable(HTTPStatus.FORBIDDEN, str(error)) from None
            except TopicNotFoundError:  # its text names all topics
                raise Unanswerable(
                    HTTPStatus.NOT_FOUND, "There is no such topic or queue."
                ) from None
            except OptionError as error:  # such as offsets that have expired
                raise Unanswerable(HTTPStatus.NOT_FOUND, str(error)) from None
            except (RmqStoreError, OSError) as error:
                raise Unanswerable(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from None

    def reading(self) -> AbstractContextManager[None]:
        """Take the one place of those who read messages, within a context."""
        return self.taken(self._reading)

    @contextmanager
    def taken(self, places: threading.BoundedSemaphore) -> Iterator[None]:
        """Take a place, within the context.

        Raises:
            Unanswerable: none becomes free.
        """
        if not places.acquire(timeout=_WAIT_SECONDS):
            raise Unanswerable(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "Pages are being made for others. Open the page again.",
                ("Retry-After", "5"),
            )
        try:
            yield
        finally:
            places.release()


def _told(status: HTTPStatus, text: str, *headers: tuple[str, str]) -> StatusAnswer:
    """Return an answer that says in words what is wrong."""
    title = f"{status.value} {status.phrase}"
    document = element(
        "html",
        element(
            "head", element("meta", charset="utf-8"), element("title", title),
            element("link", rel="stylesheet", href=STYLE),
        ),
        element(
            "body",
            element(
                "main", element("h1", title), element("p", text),
                element("p", element("a", "Overview", href=ROOT), " · ",
                        element("a", "Messages", href=f"{ROOT}/messages")),
            ),
        ),
        lang="en",
    )  # fmt: skip
    return StatusAnswer(f"<!DOCTYPE html>\n{document}\n".encode(), status=status, headers=headers)
