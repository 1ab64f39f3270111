"""Every error that this package raises on purpose.

    RmqStoreError
    ├── OptionError (ValueError)               a wrong, unknown or contradictory option
    ├── StoreNotFoundError (FileNotFoundError) no store at a path
    ├── StoreAccessError (PermissionError)     a store that may not be read
    ├── TopicNotFoundError (LookupError)       a topic or queue that the store does not hold
    ├── UnsupportedStoreError                  a store of a kind that cannot be read or written
    ├── DataLossError                          requested messages are gone
    │   └── SegmentExpiredError                a file was removed under the reader
    ├── StoreLockedError (BlockingIOError)     another process has the store open for writing
    ├── StoreWriteError (OSError)              a file of the store could not be written or flushed
    ├── RefusedError                           a store refuses a request, with RocketMQ's status
    ├── InstallationError (ImportError)        a Python without the packages that are needed
    ├── ReplicationError                       a master's log that cannot be followed
    ├── ReplicaError                           a copy of a store that cannot be read in its place
    ├── ServiceError (ConnectionError)         a store process that cannot be started or reached
    ├── RemotingError                          a refused request of RocketMQ's protocol
    ├── FrameError (ValueError)                bytes that are not of RocketMQ's protocol
    ├── RowError (ValueError)                  a row that cannot become a message
    ├── BlockError (ValueError)                a block with a record that the store does not accept
    └── CorruptStoreError (ValueError)         bytes that no broker writes
        └── CorruptRecordError                 a CommitLog record that fails its checks

Each text says what happened, in which file at which offset, and what to do.
"""

from __future__ import annotations


class RmqStoreError(Exception):
    """Base of all errors of this package."""


class OptionError(RmqStoreError, ValueError):
    """An option is unknown, has a wrong value, or contradicts another."""


class InstallationError(RmqStoreError, ImportError):
    """The Python that runs this lacks packages that it needs."""


class RowError(RmqStoreError, ValueError):
    """A row cannot become a message.

    Args:
        row: number of the row among those that were checked together.
        cause: what is wrong with it, as a phrase that follows "Row n".
    """

    def __init__(self, row: int, cause: str) -> None:
        self.row = row
        self.cause = cause
        super().__init__(row, cause)

    def __str__(self) -> str:
        return f"Row {self.row} {self.cause}."


class StoreNotFoundError(RmqStoreError, FileNotFoundError):
    """There is no message store at the given path."""


class StoreAccessError(RmqStoreError, PermissionError):
    """A file or folder of the store may not be read."""


class StoreLockedError(RmqStoreError, BlockingIOError):
    """Another process has the store open for writing."""


class StoreWriteError(RmqStoreError, OSError):
    """A file of the store could not be written, flushed or created."""


class TopicNotFoundError(RmqStoreError, LookupError):
    """The store does not hold the topic or queue."""


class UnsupportedStoreError(RmqStoreError):
    """The store is of a kind that this package cannot read or write as requested."""


class DataLossError(RmqStoreError):
    """Requested messages are no longer in the store."""


class RefusedError(RmqStoreError):
    """A store refuses to put, stage or commit something, and stays as it was.

    Args:
        text: what is refused, why, and what to do.
        status: RocketMQ's name for it (`status.PutStatus`, as text from a process).
        is_open: a put failed while its messages were being written to the log. Only the next
            opening of the store shows whether they are in it. If put again, they may be stored
            twice.
    """

    def __init__(self, text: str, status: str, *, is_open: bool = False) -> None:
        self.status = status
        self.is_open = is_open
        super().__init__(text, status)

    def __str__(self) -> str:
        return f"{self.args[0]} ({self.status})"


class ReplicationError(RmqStoreError):
    """A store cannot be, or remain, a copy of its master's log."""


class _PassingError(RmqStoreError):
    """What may not be so a little later.

    Args:
        text: what happened, and what to do.
        can_pass: whether the same can succeed later.
    """

    def __init__(self, text: str, *, can_pass: bool = False) -> None:
        self.can_pass = can_pass
        super().__init__(text)


class ReplicaError(_PassingError):
    """A replica of a store does not hold what a query needs, or not yet, or something else."""


class ServiceError(_PassingError, ConnectionError):
    """A store process cannot be started or reached, or refuses a request."""


class RemotingError(RmqStoreError):
    """A request of RocketMQ's remoting protocol is refused.

    Args:
        code: the answer's code, a `ResponseCode`.
        remark: the answer's text, for a person.
    """

    def __init__(self, code: int, remark: str) -> None:
        self.code = code
        self.remark = remark
        super().__init__(code, remark)

    def __str__(self) -> str:
        return f"{self.remark} (code {self.code})"


class FrameError(RmqStoreError, ValueError):
    """Bytes are not a frame, header or body of RocketMQ's remoting protocol."""


class BlockError(RmqStoreError, ValueError):
    """A block holds a record that the store does not accept.

    Args:
        row: number of the first such record in the block.
        at: byte at which it starts.
        status: RocketMQ's name for it: MESSAGE_ILLEGAL or PROPERTIES_SIZE_EXCEEDED.
        cause: what is wrong, in one phrase.
    """

    def __init__(self, row: int, at: int, status: str, cause: str) -> None:
        self.row = row
        self.at = at
        self.status = status
        self.cause = cause
        super().__init__(row, at, status, cause)

    def __str__(self) -> str:
        return (
            f"{self.status}: record {self.row} of the block, at byte {self.at}: {self.cause}. "
            "Nothing of the block was stored; leave this record out, or mend it, and send the "
            "others again."
        )


class _Located(RmqStoreError):
    """An error at one place in one file.

    Args:
        cause: what is wrong there, in one phrase.
        file: path of the file, if known.
        offset: byte offset in that file, or None for the whole file.
        remedy: what the reader of the message can do.
    """

    default_remedy = ""

    def __init__(
        self, cause: str, *, file: str = "", offset: int | None = None, remedy: str = ""
    ) -> None:
        self.cause = cause
        self.file = file
        self.offset = offset
        self.remedy = remedy or self.default_remedy
        super().__init__(cause, file, offset, self.remedy)

    def __str__(self) -> str:
        where = f" in {self.file}" if self.file else ""
        if self.offset is not None:
            where += f" at offset {self.offset}"
        return f"{self.cause}{where}." + (f" {self.remedy}" if self.remedy else "")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.cause, self.file, self.offset, self.remedy)


def _rebuild(
    kind: type[_Located], cause: str, file: str, offset: int | None, remedy: str
) -> _Located:
    return kind(cause, file=file, offset=offset, remedy=remedy)


class SegmentExpiredError(_Located, DataLossError):
    """A file of the store was removed while it was being read (usually by expiry)."""

    default_remedy = (
        "Start at a later offset, or set failOnDataLoss=false to skip what expiry removed."
    )


class CorruptStoreError(_Located, ValueError):
    """A file holds bytes that no broker writes."""

    default_remedy = "Run `rmqstore verify` on the store to see all that is damaged."


class CorruptRecordError(CorruptStoreError):
    """A CommitLog record fails its checks."""

    default_remedy = (
        "Run `rmqstore verify` on the store; mode=DROPMALFORMED (rmqstore read: --skip-damaged) "
        "skips damaged records."
    )
