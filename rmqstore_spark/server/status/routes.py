"""The pages by their address: the right that each needs, and what it is made from.

Figures need what `rmqstore stats` needs, messages SUB of their topic, the log an administrator.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, TypeAlias

from rmqstore_spark.broker.acl.accounts import Right
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.server.callers import ADMIN, Needs, of_topics
from rmqstore_spark.server.status import browser, views
from rmqstore_spark.server.status.asking import Unanswerable
from rmqstore_spark.server.status.history import History
from rmqstore_spark.server.status.pages import commits, groups, log, messages, overview, topics
from rmqstore_spark.server.status.question import Question

_MOST_CHOICES: Final = 500
_FIGURES: Final = Needs(everywhere=Right.ANY)
_GROUPS: Final = Needs(everywhere=Right.SUB)

_Page: TypeAlias = Callable[[Question], bytes]


def _overview(question: Question) -> bytes:
    question.require(_FIGURES)
    watched = question.watched
    series = watched.look_back(
        lambda past: overview.Series(
            past.messages(), past.total("commitLogMaxOffset"), past.total("commits"),
            past.total("readBytes"), past.seconds,
        )
    )  # fmt: skip
    return overview.overview(
        question.frame, question.figures.stats, question.shown.process(), _settings(question),
        series, question.topic_lines(),
        question.shown.problems.newest(overview.MOST_PROBLEMS) if question.may(ADMIN) else None,
    )  # fmt: skip


def _settings(question: Question) -> overview.Settings | None:
    try:
        writer = question.store.writer
    except RefusedError:  # it is served read-only
        return None
    config = writer.config
    master = config.ha_master_address if writer.role.follows else ""
    return overview.Settings(str(writer.role), master, config.file_reserved_time, config.archive_to)


def _topics(question: Question) -> bytes:
    question.require(_FIGURES)
    containing = question.asked.text("find")
    order = question.chosen("order", tuple(topics.ORDERS))
    lines = question.topic_lines(containing)
    return topics.topics_page(
        question.frame, lines, order, containing, question.asked.number("page")
    )


def _topic(question: Question) -> bytes:
    question.require(_FIGURES)
    name = question.asked.needed("name")
    rates = question.watched.look_back(History.rates)
    lines = views.queue_lines(question.queues, rates, name)
    if not lines:
        raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no topic {name[:255]} with queues.")
    past, seconds = question.watched.look_back(
        lambda history: (history.messages(name), history.seconds)
    )
    return topics.topic_page(
        question.frame, name, lines, past, seconds, question.asked.number("page")
    )


def _groups(question: Question) -> bytes:
    question.require(_GROUPS)
    connected = question.shown.service.consumer_groups()
    with question.store.reader() as store:
        progress = views.progress_lines(store, question.queues)
    lines = views.group_lines(
        progress, {name: len(group.members) for name, group in connected.items()}
    )
    order = question.chosen("order", groups.ORDERS)
    return groups.groups_page(question.frame, lines, order, question.asked.number("page"))


def _group(question: Question) -> bytes:
    question.require(_GROUPS)
    name = question.asked.needed("name")
    with question.store.reader() as store:
        progress = views.progress_lines(store, question.queues)
    own = [one for one in progress if one.group == name]
    connected = question.shown.service.consumer_groups().get(name)
    if not own and connected is None:
        raise Unanswerable(HTTPStatus.NOT_FOUND, f"There is no consumer group {name[:255]}.")
    return groups.group_page(question.frame, name, own, connected, question.asked.number("page"))


def _commits(question: Question) -> bytes:
    question.require(_FIGURES)
    with question.store.reader() as store:
        lines = views.writer_lines(store, question.queues)
    return commits.commits_page(question.frame, lines, question.asked.number("page"))


def _messages(question: Question) -> bytes:
    asked = question.asked
    wanted = messages.Wanted(
        asked.text("topic"), asked.number("queue"), asked.number("offset"), asked.text("key"),
        asked.text("id"),
    )  # fmt: skip
    choices = list(question.queues)[:_MOST_CHOICES] if question.may(_FIGURES) else []
    found = None
    if wanted.topic or wanted.msg_id:
        with question.shown.reading():
            wanted, found = _found(question, wanted)
    elif wanted.key:
        raise Unanswerable(HTTPStatus.BAD_REQUEST, "A search for a key needs a topic.")
    return messages.messages_page(question.frame, wanted, choices, found)


def _found(
    question: Question, wanted: messages.Wanted
) -> tuple[messages.Wanted, messages.MessageList]:
    """Return what is asked for, made complete, and the messages."""
    if wanted.topic:
        question.require(of_topics((wanted.topic,), Right.SUB))
    key = wanted.key or wanted.msg_id
    if wanted.msg_id:
        with question.store.reader() as store:
            one = browser.of_id(store, wanted.msg_id)
        # Who may not read the message does not learn that there is one.
        if one is not None and question.may(of_topics((one.topic,), Right.SUB)):
            return wanted, messages.MessageList((one,))
        if not wanted.topic:
            return wanted, messages.MessageList(())
    if key:
        with question.store.reader() as store:
            return wanted, messages.MessageList(browser.of_key(store, wanted.topic, key))
    return _of_queue(question, wanted)


def _of_queue(
    question: Question, wanted: messages.Wanted
) -> tuple[messages.Wanted, messages.MessageList]:
    lines = views.queue_lines(question.queues, {}, wanted.topic)
    queue_id = wanted.queue_id
    line = next((one for one in lines if queue_id is None or one.queue_id == queue_id), None)
    if line is None:
        raise Unanswerable(
            HTTPStatus.NOT_FOUND, f"{wanted.topic[:255]} has no such queue with messages."
        )
    newest = max(line.first, line.end - browser.LISTED)
    start = newest if wanted.offset is None else min(max(wanted.offset, line.first), line.end)
    with question.store.reader() as store:
        listed = browser.of_queue(store, line.topic, line.queue_id, start, line.end)
    complete = messages.Wanted(line.topic, line.queue_id, start)
    return complete, messages.MessageList(listed, (line.first, line.end), start)


def _message(question: Question) -> bytes:
    asked = question.asked
    topic = asked.needed("topic")
    queue_id, offset = asked.number("queue"), asked.number("offset")
    question.require(of_topics((topic,), Right.SUB))
    if queue_id is None or offset is None:
        raise Unanswerable(HTTPStatus.BAD_REQUEST, "The address lacks queue or offset.")
    with question.shown.reading(), question.store.reader() as store:
        found = browser.whole(store, topic, queue_id, offset)
    if found is None:
        raise Unanswerable(
            HTTPStatus.NOT_FOUND, "The message has expired, or is damaged: run rmqstore verify."
        )
    return messages.message_page(question.frame, found, asked.text("form"))


def _log(question: Question) -> bytes:
    question.require(ADMIN)
    return log.log_page(question.frame, question.shown.problems.newest())


PAGES: Final[dict[str, _Page]] = {
    "": _overview,
    "topics": _topics,
    "topic": _topic,
    "groups": _groups,
    "group": _group,
    "commits": _commits,
    "messages": _messages,
    "message": _message,
    "log": _log,
}
"""What each page answers, by the last part of its address."""
