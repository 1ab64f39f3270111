"""Handles requests that change topics and groups: all that have gathered, with one write.

Scripts that set up a cluster send thousands of them. (Upstream: AdminBrokerProcessor, which writes
a file for each.)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Final

from rmqstore_spark.broker.core.administration.groups import Deletion
from rmqstore_spark.broker.core.core import Core
from rmqstore_spark.broker.core.refusal import Refusal
from rmqstore_spark.broker.faces.remoting.lanes.worker import Worker, take_requests
from rmqstore_spark.broker.faces.remoting.row import LaneRows, refused
from rmqstore_spark.errors import FrameError, RemotingError, RmqStoreError
from rmqstore_spark.remoting.codec.codes import RequestCode, ResponseCode
from rmqstore_spark.remoting.codec.command import Command
from rmqstore_spark.remoting.connection import Request

_log = logging.getLogger(__name__)

_MOST_WAITING: Final = 10_000
_DELETED_TOGETHER: Final = 32
"""Topics that are deleted at once: senders wait until their files are removed."""
_FAILED: Final = "the request failed because of an error in the server; its log says more"


class ChangeRequests:
    """Handles such requests in a thread.

    Args:
        core: makes the changes.
        rows: read requests, and make single changes; but topics are deleted together.
    """

    def __init__(self, core: Core, rows: LaneRows[object]) -> None:
        self._catalog = core.catalog
        self._topics = core.topics
        self._groups = core.groups
        self._rows = rows
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
        deleted = list[Deletion]()
        try:
            with self._catalog.together():
                for job in jobs:
                    answers.append(self._answer(job, deleted))
            self._groups.forget_offsets(deleted)
        except RmqStoreError as error:
            for job, answer in zip(jobs, answers, strict=False):
                if answer.code == ResponseCode.SUCCESS:
                    job.reply(job.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error)))
        for job, answer in zip(jobs, answers, strict=False):
            job.reply(answer)

    def _answer(self, job: Request, deleted: list[Deletion]) -> Command:
        """Make a change; return the answer, and note the group that it has deleted."""
        command = job.command
        try:
            made = self._rows.accept(job)
        except RemotingError as error:
            return command.answer(error.code, error.remark)
        except FrameError as error:
            return command.answer(ResponseCode.SYSTEM_ERROR, str(error))
        except Exception:  # noqa: BLE001 - one must not end all others
            _log.exception("A change of topics or groups failed.")
            return command.answer(ResponseCode.SYSTEM_ERROR, _FAILED)
        if isinstance(made, Deletion):
            deleted.append(made)
        return self._rows.answer(command, made)

    def _delete(self, jobs: Sequence[Request]) -> None:
        """Delete topics: many with one flush of the log and one write of each file."""
        named: dict[str, list[Request]] = {}
        for job in jobs:
            try:
                name = str(self._rows.accept(job))
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
            self._topics.delete({name: jobs[0].connection.peer for name, jobs in named.items()})
        except Refusal as refusal:
            error = refused(refusal)
            code, remark = error.code, error.remark
        for job in chain.from_iterable(named.values()):
            job.reply(job.command.answer(code, remark))
