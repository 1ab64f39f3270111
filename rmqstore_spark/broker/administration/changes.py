"""Handles requests that change topics and groups: all that have gathered, with one write.

Scripts that set up a cluster send thousands of them. (Upstream: AdminBrokerProcessor, which writes
a file for each.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Final, Protocol

from rmqstore_spark.broker.administration.groups import GroupAdministration
from rmqstore_spark.broker.administration.topics import TopicAdministration
from rmqstore_spark.broker.catalog import Catalog
from rmqstore_spark.broker.worker import Worker, take_requests
from rmqstore_spark.errors import FrameError, RemotingError, RmqStoreError
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import RemotingConnection, Request

__all__ = ["ChangeRequests"]

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
_DELETED_TOGETHER: Final = 32
"""Topics that are deleted at once: senders wait until their files are removed."""
_FAILED: Final = "the request failed because of an error in the server; its log says more"


class _Change(Protocol):
    """Makes the change that a request asks for, and returns the answer."""

    def __call__(self, connection: RemotingConnection, request: Command, /) -> Command: ...


class ChangeRequests:
    """Handles such requests in a thread.

    Args:
        catalog: the topics and groups.
        topics, groups: make single changes.
    """

    def __init__(
        self, catalog: Catalog, topics: TopicAdministration, groups: GroupAdministration
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._groups = groups
        self._changes: Mapping[int, _Change] = {
            RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_all,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: groups.update_all,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete,
        }
        self.codes = (*self._changes, RequestCode.DELETE_TOPIC_IN_BROKER)
        self._worker: Worker[Request] = Worker("rmqstore-broker-changes", self)
        self._worker.start()

    def take(self, requests: Sequence[Request]) -> None:
        """Take requests that arrived together; see `dispatch.GroupHandler`."""
        take_requests(self._worker, requests, _MOST_WAITING)

    def close(self) -> None:
        """Make the changes that wait, and end the thread."""
        self._worker.close()

    def handle(self, jobs: Sequence[Request]) -> None:
        """Make changes, in their order, and answer them."""
        deletes = RequestCode.DELETE_TOPIC_IN_BROKER
        try:
            for is_deletion, run in groupby(jobs, lambda job: job.command.code == deletes):
                if is_deletion:
                    self._delete(list(run))
                else:
                    self._change(list(run))
        finally:
            for job in jobs:  # those that have an answer get no other
                job.reply(job.command.answer(ResponseCode.SYSTEM_ERROR, _FAILED))

    def _change(self, jobs: Sequence[Request]) -> None:
        answers = list[Command]()
        try:
            with self._catalog.together():
                for job in jobs:
                    answers.append(self._answer(job))
            done = [j for j, a in zip(jobs, answers, strict=True) if a.code == ResponseCode.SUCCESS]
            self._groups.forget_offsets([job.command for job in done])
        except RmqStoreError as error:
            for job, answer in zip(jobs, answers, strict=False):
                if answer.code == ResponseCode.SUCCESS:
                    job.reply(job.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
        for job, answer in zip(jobs, answers, strict=False):
            job.reply(answer)

    def _answer(self, job: Request) -> Command:
        command = job.command
        try:
            return self._changes[command.code](job.connection, command)
        except RemotingError as error:
            return command.answer(error.code, error.remark)
        except FrameError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        except Exception:  # noqa: BLE001 - one must not end all others
            _log.exception("A change of topics or groups failed.")
            return command.answer(ResponseCode.SYSTEM_ERROR, _FAILED)

    def _delete(self, jobs: Sequence[Request]) -> None:
        """Delete topics: many with one flush of the log and one write of each file."""
        named: dict[str, list[Request]] = {}
        for job in jobs:
            try:
                name = self._topics.deleted_name(job.command)
            except (RemotingError, FrameError) as error:
                code = getattr(error, "code", ResponseCode.SYSTEM_ERROR)
                job.reply(job.command.answer(code, getattr(error, "remark", str(error))))
            else:
                named.setdefault(name, []).append(job)
        names = iter(named)
        while together := {name: named[name] for name in islice(names, _DELETED_TOGETHER)}:
            self._delete_named(together)

    def _delete_named(self, named: Mapping[str, Sequence[Request]]) -> None:
        code, remark = int(ResponseCode.SUCCESS), None
        try:
            self._topics.delete(named)
        except RemotingError as error:
            code, remark = error.code, error.remark
        for job in chain.from_iterable(named.values()):
            job.reply(job.command.answer(code, remark))
