"""What the data source knows of a store that it reads, whatever kind of source that is.

Each kind of source is a class that inherits from `Source`, with what most of them do; nothing
outside this folder asks which of them it has. What tasks get of a source is a `SourcePartition`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from pyspark.sql.datasource import InputPartition

from rmqstore_spark.datasource.offsets import Mark, QueueKey

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from rmqstore_spark.datasource.options.parsing import Options
    from rmqstore_spark.datasource.options.table import QueueOptions
    from rmqstore_spark.errors import ServiceError
    from rmqstore_spark.reader.before import Before
    from rmqstore_spark.reader.options import QueueRange, ReadOptions, Split
    from rmqstore_spark.reader.plan import PlanLimits
    from rmqstore_spark.reader.topics import Topic

QueueName: TypeAlias = tuple[str, int]
"""Topic and queueId."""
Clock: TypeAlias = Callable[[], float]
"""Returns seconds since any moment."""
Needed: TypeAlias = Sequence[tuple[QueueKey, Mark]]
"""Positions that a replica must hold: the offset, and what lies before it."""


class SourceQueue(Protocol):
    """A queue, as of the last look at it."""

    @property
    def min_offset(self) -> int:
        """The first message; `max_offset` if there is none."""

    @property
    def max_offset(self) -> int:
        """One past the last message."""

    def offset_at(self, timestamp: int) -> int | None:
        """Find the first message stored at or after a time, in milliseconds; None without one."""


class ChosenQueue(NamedTuple):
    """A queue that the query reads."""

    key: QueueKey
    source: Source
    queue: SourceQueue


class SourceWatch(Protocol):
    """The queues of one source that a stream reads, and how far they reach.

    Attributes:
        queues: the queues, as of the last look.
        relists: how often folders of queues were listed again: they may have been created again.
        silence: why the source does not answer; None if it does.
        silent_since: since when it does not, by the clock.
    """

    queues: dict[QueueKey, ChosenQueue]
    relists: int = 0
    silence: ServiceError | None = None
    silent_since: float = 0.0

    def look(self) -> bool:
        """Look for changes, if it is time; return whether there are any."""

    def check(self, *, relist: bool = False) -> bool:
        """Look at all queues, whatever it costs; return whether anything changed.

        Args:
            relist: list all folders again.

        Raises:
            ServiceError: the source does not answer.
        """

    def find_silence(self) -> None:
        """Find out whether the source has fallen silent, whenever it was asked last."""
        return

    def hurried(self) -> AbstractContextManager[None]:
        """Give the source up soon in the context: others may have news."""
        return nullcontext()

    def look_before(self, offsets: Mapping[QueueKey, int]) -> None:
        """Ask for messages before offsets at once, where each would be a request of its own."""
        del offsets


class GroupCommits(Protocol):
    """Records offsets of consumer groups at a source."""

    def commit_offsets(self, group: str, offsets: Mapping[str, Mapping[int, int]]) -> object:
        """Set the next offsets of a group, by topic and queueId.

        Raises:
            RmqStoreError: they cannot be recorded.
        """

    def close(self) -> None:
        """Close the connections, if it has its own."""


class SourcePartition(InputPartition):
    """Splits of one source that one task reads in order.

    Args:
        plan: id of the planning that created it.
        broker_name: of the source; None for the default of its store.
        splits: the splits to read.
        is_waited_for: whether reading waits for others, and not only costs CPU, which other tasks
            can use.
    """

    def __init__(
        self, plan: str, broker_name: str | None, splits: Sequence[Split], *, is_waited_for: bool
    ) -> None:
        super().__init__(plan)
        self.broker_name = broker_name
        self.splits = tuple(splits)
        self.is_waited_for = is_waited_for

    def read(self, wanted: ReadOptions, options: Options) -> Generator[pa.RecordBatch]:
        """Read the rows: the columns as wanted, the rest as the query's options say."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return what `sources.partition_of` creates it from again, without the splits."""
        raise NotImplementedError


class Source(Protocol):
    """A store that is open for reading, or what stands for one.

    Attributes:
        broker_name: its name in rows and checkpoints.
        path: what it is, for messages.
        url: what is read now: one of several replicas.
        watched: the queues that a stream reads, once `follow` was called.
        replicas: how many can be read in its place, with itself; 0 if it has none.
        falls_silent: whether a stream continues without it while it does not answer.
    """

    broker_name: str
    path: str
    url: str
    watched: SourceWatch
    replicas: int = 0
    falls_silent: bool = False

    @property
    def store_id(self) -> str | None:
        """The id of its store; None if it has none."""
        return None

    def close(self) -> None:
        """Close files and connections."""

    @property
    def has_queues(self) -> bool:
        """Whether it has queues to read; otherwise its log is read as a whole."""
        return True

    def require_stream(self) -> None:
        """Refuse a stream of what has no queues, and gets none.

        Raises:
            UnsupportedStoreError: it is such a store.
        """
        return

    def known_topics(self) -> list[Topic]:
        """List the topics that may be read, sorted by name."""

    def topics_in_log(self, wanted: set[str]) -> set[str]:
        """Return topics in a log without queues, reading until all `wanted` ones are found."""
        del wanted
        return set()

    def queue(self, topic: str, queue_id: int) -> SourceQueue:
        """Return a queue.

        Raises:
            TopicNotFoundError: the topic or queue does not exist.
        """

    def queues(self, names: Sequence[QueueName]) -> Iterable[tuple[QueueName, SourceQueue]]:
        """Return those of some queues that have, or had, a message."""

    def before(self, asked: Sequence[tuple[Any, int]]) -> list[Before]:
        """Look at the records before offsets, each at most one past the end of its own queue."""

    def sizes(self, queue: Any, start: int, end: int) -> npt.NDArray[np.int32] | None:
        """Return the bytes of records of an own queue; None if only the records tell."""
        del queue, start, end
        return None

    def average_size(self, wanted: QueueRange) -> float:
        """Estimate the bytes of a record of a range."""

    def group_progress(
        self, group: str, names: Sequence[QueueName], *, is_own: bool
    ) -> tuple[dict[QueueName, int], frozenset[str]]:
        """Return the next offsets of a consumer group, and the names of groups.

        Args:
            is_own: whether the query creates the group if it does not exist.
        """

    def commits(self) -> GroupCommits:
        """Return what records the progress of a stream as that of a group."""

    def plan(
        self, ranges: Sequence[QueueRange], limits: PlanLimits, options: Options
    ) -> Sequence[Split]:
        """Cut ranges of queues into splits; the whole log of a store without queues.

        Raises:
            UnsupportedStoreError: there are no queues, and the options need them.
        """

    def partitions(self, plan: str, groups: Sequence[Sequence[Split]]) -> Iterator[SourcePartition]:
        """Make a partition of each group of splits of a planning."""

    def follow(self, chosen: QueueOptions, hurry_s: float, clock: Clock) -> None:
        """Begin to follow the queues that a stream chooses.

        Args:
            hurry_s: how long an answer may take while others may have news.
        """

    def repair(self, needed: Needed) -> dict[str, Exception]:
        """Check that what is read holds what is needed; if not, read a replica that does.

        Returns:
            What is wrong with each replica, if none holds it now; otherwise nothing.
        """
        del needed
        return {}

    def turn(self, origin: str, places: int) -> bool:
        """Read the replica some places behind another one; return whether that is a new one."""
        del origin, places
        return False

    def prefer(self, needed: Needed) -> None:
        """Read the first replica that keeps up, if it holds what is needed."""
        del needed
