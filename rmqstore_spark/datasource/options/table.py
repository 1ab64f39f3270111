"""Declare the options of reading with `format("rmqstore")`, by what they are used for.

`parsing` checks them against each other, and `docs/options.md` is generated from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.option import BATCH, STREAM, OptionTable, option
from rmqstore_spark.datasource.options.values import (
    AtTime,
    AtTimes,
    Earliest,
    Latest,
    Position,
    parse_addresses,
    parse_assign,
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_duration_ms,
    parse_integer,
    parse_is,
    parse_json_object,
    parse_names,
    parse_offsets,
    parse_paths,
    parse_time,
    parse_times,
)
from rmqstore_spark.layout.constants import is_safe_group_name, is_system_topic
from rmqstore_spark.reader.texts import parse_keys, parse_tags


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a valid regular expression ({error})") from None


def _group(text: str) -> str:
    name = text.strip()
    if not is_safe_group_name(name):
        raise ValueError("must be a consumer group: 1 to 255 letters, digits and %|_-")
    return name


def _commitlog_paths(text: str) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    if not text.lstrip().startswith("{"):
        return parse_paths(text)
    by_broker = {}
    for broker, value in parse_json_object(text).items():
        by_broker[broker] = parse_paths(value if isinstance(value, str) else json.dumps(value))
    return by_broker


@dataclass(frozen=True)
class PlaceOptions:
    """Which stores are read.

    Attributes:
        connection: connection to store processes or name servers; None if files are read.
        paths: paths of the stores; empty if they are read through their processes.
        name_servers: addresses of name servers that know the processes; empty if options do.
        replica_timeout_ms: how long a replica may take, or stay behind, before another is read.
        commitlog_paths: folders of the only store, or by broker; None means the default.
        spares_page_cache: whether reading leaves the page cache as it was.
    """

    connection: ConnectionOptions | None
    paths: tuple[str, ...] = option(
        "path", "paths", parse_paths,
        "The store directories, each with a folder `commitlog/`: a path or fsspec URL, a "
        "comma-separated list, a glob, or a JSON list. Relative paths start at the driver's "
        "working directory. `|` separates the replicas of a store "
        "([replication.md](replication.md#read-from-several-replicas)).",
        default_doc="required, or `endpoint`, or `namesrvAddr`",
        aliases=("paths",), unset=(),
    )  # fmt: skip
    name_servers: tuple[str, ...] = option(
        "namesrvAddr", "addresses", parse_addresses,
        "Name servers, as `host:port` with `;` between: the source finds the brokers of its topics "
        "there ([semantics.md](semantics.md#through-name-servers)). In place of `path` and "
        "`endpoint`.",
        unset=(),
    )  # fmt: skip
    broker_names: tuple[str, ...] | None = option(
        "brokerNames", "names", parse_names,
        "Names for the stores, in the order of `path` (a glob's matches are sorted). Names must "
        "be unique. A stream that is restarted finds its stores again under other names, with few "
        "exceptions ([semantics.md](semantics.md#offsets-in-the-checkpoint)). Replicas of a store "
        "share one name.",
        default_doc="the folder's name; for a folder `store` its parent's name; with `endpoint`, "
        "the name that the store process reports; with `namesrvAddr`, the registered name",
    )  # fmt: skip
    replica_timeout_ms: int = option(
        "replicaTimeout", "duration", parse_duration_ms,
        "For a store with several replicas: how long one of them may take to answer a request, or "
        "stay behind another, before the next one is read. If none can be read, the query fails "
        "after `requestTimeout`.",
        default="10s", minimum=1,
    )  # fmt: skip
    commitlog_paths: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = option(
        "storePathCommitLog", "paths", _commitlog_paths,
        "CommitLog folders outside the store: a comma-separated or JSON list. For several stores, "
        'a JSON object by broker: `{"broker-a":["/disk1/log","/disk2/log"]}`.',
        default_doc="`commitlog` in the store",
    )  # fmt: skip
    spares_page_cache: bool = option(
        "pageCache", "`use` or `spare`", parse_is("spare", "use", "spare"),
        "`spare`: read local files without pushing a broker's files out of the page cache. The "
        "page cache is then left as it was found ([operate.md](operate.md#the-page-cache)). It "
        "costs speed, and has no effect on URLs. A store process has its own setting.",
        default="use",
    )  # fmt: skip


@dataclass(frozen=True)
class QueueOptions:
    """Which topics and queues are read.

    Attributes:
        topics, pattern, assign: None if not given, and at most one of them is.
    """

    topics: tuple[str, ...] | None = option(
        "subscribe", "names", parse_names,
        "Topics to read, comma-separated. Set at most one of `subscribe`, `subscribePattern` and "
        "`assign`.",
        default_doc="all topics except system topics",
        aliases=("topic",),
    )  # fmt: skip
    pattern: re.Pattern[str] | None = option(
        "subscribePattern", "regular expression", _pattern,
        "Topics to read: those whose whole name matches. Matches system topics only if "
        "`includeSystemTopics` is set.",
    )  # fmt: skip
    assign: Mapping[str, tuple[int, ...]] | None = option(
        "assign", "JSON", parse_assign,
        'Queues to read: `{"topic":[0,1]}`.',
    )  # fmt: skip
    include_system: bool = option(
        "includeSystemTopics", "boolean", parse_boolean,
        "Also read system topics, such as SCHEDULE_TOPIC_XXXX, RMQ_SYS_*, %RETRY% and %DLQ%. Not "
        "needed for system topics that `subscribe` or `assign` names.",
        default="false",
    )  # fmt: skip

    @property
    def named(self) -> tuple[str, ...] | None:
        """The topics that the options name; None if they do not."""
        return self.topics if self.assign is None else tuple(self.assign)

    @property
    def chosen_by(self) -> str:
        """The option that chooses the topics."""
        if self.assign is not None:
            return "assign"
        if self.topics is not None:
            return "subscribe"
        return "subscribePattern" if self.pattern is not None else "includeSystemTopics"

    def wants_topic(self, name: str) -> bool:
        """Return whether a query reads a topic (with `assign`, some of its queues)."""
        if self.assign is not None:
            return name in self.assign
        return self.may_match(name) if self.topics is None else name in self.topics

    def may_match(self, name: str) -> bool:
        """Return whether a query that names no topics reads this one."""
        if is_system_topic(name) and not self.include_system:
            return False
        return self.pattern is None or self.pattern.fullmatch(name) is not None

    def wants_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a query reads a queue, if there is one."""
        if self.assign is not None:
            return queue_id in self.assign.get(topic, ())
        return self.wants_topic(topic)


@dataclass(frozen=True)
class TriggerOptions:
    """How much a micro-batch of a stream reads, and when."""

    max_rows: int | None = option(
        "maxOffsetsPerTrigger", "number", parse_integer,
        "Maximum number of messages in a micro-batch, divided over the queues by backlog. Each "
        "queue with new messages gets at least one.",
        scope=STREAM, minimum=1,
    )  # fmt: skip
    min_rows: int | None = option(
        "minOffsetsPerTrigger", "number", parse_integer,
        "Wait until this many messages are available or `maxTriggerDelay` has passed. "
        "Trigger.AvailableNow ignores it, from Spark 4.2 on.",
        scope=STREAM, minimum=1,
    )  # fmt: skip
    max_delay_ms: int = option(
        "maxTriggerDelay", "duration", parse_duration_ms,
        "Maximum time that `minOffsetsPerTrigger` delays a micro-batch.",
        default="15m", scope=STREAM, minimum=1,
    )  # fmt: skip
    max_bytes: int | None = option(
        "maxBytesPerTrigger", "size", parse_bytes,
        "Approximate maximum bytes of CommitLog in a micro-batch, divided over the queues by "
        "backlog.",
        scope=STREAM, minimum=1,
    )  # fmt: skip


@dataclass(frozen=True)
class PositionOptions:
    """Where a query starts and ends in the queues, and what it does if messages there are gone.

    Attributes:
        streaming: whether a stream is read. Its default is to start at the end.
    """

    streaming: bool
    starting_offsets: Position | None = option(
        "startingOffsets", "position", parse_offsets,
        "Where to start: `earliest`; `latest` (stream only); `group:NAME`, the offsets of a "
        'consumer group; or `{"topic":{"0":23,"1":-2}}` with every chosen queue (-2 is earliest, '
        "-1 is latest).",
        default_doc="stream `latest`, batch `earliest`",
    )  # fmt: skip
    ending_offsets: Position = option(
        "endingOffsets", "position", parse_offsets,
        "Where to end, exclusive. The same values as `startingOffsets`, except `earliest`.",
        default="latest", scope=BATCH,
    )  # fmt: skip
    starting_time: AtTime | None = option(
        "startingTimestamp", "time", parse_time,
        "Start at each queue's first message stored at or after this time: milliseconds, or "
        "ISO-8601 (UTC if it has no zone). Overrides `startingOffsetsByTimestamp`, which "
        "overrides `startingOffsets`.",
    )  # fmt: skip
    starting_times: AtTimes | None = option(
        "startingOffsetsByTimestamp", "JSON", parse_times,
        'A starting time for each queue: `{"topic":{"0":1700000000000}}`, with brokers as in '
        "`startingOffsets`.",
    )  # fmt: skip
    no_match_is_latest: bool = option(
        "startingOffsetsByTimestampStrategy", "`error` or `latest`",
        parse_is("latest", "error", "latest"),
        "What to do if a queue has no message at or after the starting time: fail, or start at "
        "its end.",
        default="error",
    )  # fmt: skip
    ending_time: AtTime | None = option(
        "endingTimestamp", "time", parse_time,
        "End before each queue's first message stored at or after this time, or at the queue's "
        "end if it has none.",
        scope=BATCH,
    )  # fmt: skip
    ending_times: AtTimes | None = option(
        "endingOffsetsByTimestamp", "JSON", parse_times,
        "An ending time for each queue, as in `startingOffsetsByTimestamp`.",
        scope=BATCH,
    )  # fmt: skip
    fail_on_data_loss: bool = option(
        "failOnDataLoss", "boolean", parse_boolean,
        "Fail if messages expired before they were read, or if a queue was cut, or deleted and "
        "recreated. `false`: continue with the messages that are left, and log what was lost. A "
        "stream then starts again at the first message of a queue that was cut or recreated.",
        default="true",
    )  # fmt: skip
    commit_group: str | None = option(
        "commitGroup", "name", _group,
        "Record the stream's progress as the offsets of this consumer group, after each "
        "micro-batch. `rmqstore groups` and `mqadmin consumerProgress` then show its lag. What "
        "cannot be recorded is logged, and does not stop the query. Needs `endpoint` or "
        "`namesrvAddr`.",
        scope=STREAM,
    )  # fmt: skip

    @property
    def strict(self) -> PositionOptions:
        """The same, but no loss is allowed."""
        return replace(self, fail_on_data_loss=True)

    @property
    def starting(self) -> Position:
        """Where to start, by the precedence of Kafka's options."""
        default = Latest() if self.streaming else Earliest()
        return self.starting_time or self.starting_times or self.starting_offsets or default

    @property
    def starting_option(self) -> str:
        """The option that says so."""
        return _option_of("starting", self.starting)

    @property
    def ending(self) -> Position:
        """Where to end, by the precedence of Kafka's options."""
        return self.ending_time or self.ending_times or self.ending_offsets

    @property
    def ending_option(self) -> str:
        """The option that says so."""
        return _option_of("ending", self.ending)


def _option_of(prefix: str, position: Position) -> str:
    if isinstance(position, AtTime):
        return f"{prefix}Timestamp"
    return f"{prefix}OffsetsByTimestamp" if isinstance(position, AtTimes) else f"{prefix}Offsets"


@dataclass(frozen=True)
class PartitionOptions:
    """How a plan is cut into partitions."""

    min_partitions: int | None = option(
        "minPartitions", "number", parse_integer,
        "Split ranges until there are about this many partitions, each with at least one message. "
        "A stream that reads along the CommitLog otherwise cuts a micro-batch for the cores of the "
        "driver's machine, at most four, and every 128 MiB: set it if the executors have more.",
        minimum=1,
    )  # fmt: skip
    max_records: int | None = option(
        "maxRecordsPerPartition", "number", parse_integer,
        "Split ranges that have more messages than this.",
        minimum=1,
    )  # fmt: skip
    max_bytes: int = option(
        "maxBytesPerPartition", "size", parse_bytes,
        "Split ranges that have more bytes of CommitLog than this.",
        default="256m", minimum=1,
    )  # fmt: skip
    plan_by: Literal["auto", "queue", "commitlog"] = option(
        "planBy", "`auto`, `queue` or `commitlog`", parse_choice("auto", "queue", "commitlog"),
        "`queue`: a partition is a range of one queue. `commitlog`: a partition is a range of the "
        "CommitLog, and reads all chosen queues in one pass. "
        "`auto` chooses the cheaper one, for each micro-batch of a stream, and `commitlog` "
        "for a store without queues. Both return the same rows, in queue order within a "
        "partition.",
        default="auto",
    )  # fmt: skip


@dataclass(frozen=True)
class RowOptions:
    """Which messages become rows, and how.

    Attributes:
        tags, keys: None means all.
    """

    tags: frozenset[str] | None = option(
        "tags", "tags", parse_tags,
        'Only messages with one of these tags: `"TagA || TagB"` (`||` is RocketMQ\'s only '
        "operator for tags); `*` means all. A JSON list gives exact tags, which can contain "
        "spaces and operators. Filters by the hash codes in the ConsumeQueue before it reads the "
        "CommitLog, then by the tags of the records.",
        default="*",
    )  # fmt: skip
    keys: frozenset[str] | None = option(
        "keys", "keys", parse_keys,
        "Only messages with one of these keys (KEYS or UNIQ_KEY), separated by spaces. Uses the "
        "IndexFiles. A JSON list gives exact keys, which can contain spaces, commas and operators.",
        scope=BATCH,
    )  # fmt: skip
    decompress: bool = option(
        "decompress", "boolean", parse_boolean,
        "Decompress compressed bodies. `false`: return them as stored.",
        default="true",
    )  # fmt: skip
    check_crc: bool = option(
        "checkCrc", "boolean", parse_boolean,
        "Check the CRC of the body if `body` is read, and that of the whole record if it has one "
        "(5.x).",
        default="true",
    )  # fmt: skip
    mode: Literal["FAILFAST", "DROPMALFORMED"] = option(
        "mode", "`FAILFAST` or `DROPMALFORMED`", parse_choice("FAILFAST", "DROPMALFORMED"),
        "What to do with a damaged record: fail the query (`FAILFAST`), or skip, count and log it "
        "(`DROPMALFORMED`).",
        default="FAILFAST",
    )  # fmt: skip


OWN: Final = OptionTable.of(
    PlaceOptions, QueueOptions, TriggerOptions, PositionOptions, PartitionOptions, RowOptions
)
"""Without those of the connection."""

PLACES: Final = ("path", "endpoint", "namesrvAddr")
"""Those that say where a query reads; it has one of them."""

READING: Final = OptionTable((*OWN.options, *settings_of(ConnectionOptions)))
