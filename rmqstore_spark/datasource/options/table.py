"""Define the options of reading with `format("rmqstore")`.

`parsing.py` parses values with this table, and `docs/options.md` is generated from it.
"""

from __future__ import annotations

import json
import re

from rmqstore_spark.datasource.options.connection import CONNECTION_OPTIONS
from rmqstore_spark.datasource.options.option import BATCH, BOTH, STREAM, Option, OptionTable
from rmqstore_spark.datasource.options.positions import parse_assign, parse_offsets, parse_times
from rmqstore_spark.datasource.options.values import (
    parse_addresses,
    parse_boolean,
    parse_bytes,
    parse_choice,
    parse_duration_ms,
    parse_integer,
    parse_json_object,
    parse_names,
    parse_paths,
    parse_timestamp_ms,
)
from rmqstore_spark.layout.constants import is_safe_group_name
from rmqstore_spark.reader.filters import parse_keys, parse_tags

__all__ = ["OPTIONS", "READING"]


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


OPTIONS: tuple[Option, ...] = (
    Option(
        "path",
        "paths",
        parse_paths,
        None,
        BOTH,
        "The store directories, each with a folder `commitlog/`: a path or fsspec URL, a "
        "comma-separated list, a glob, or a JSON list. Relative paths start at the driver's "
        "working directory. `|` separates the replicas of a store "
        "([replication.md](replication.md#read-from-several-replicas)).",
        default_doc="required, or `endpoint`, or `namesrvAddr`",
        aliases=("paths",),
    ),
    Option(
        "namesrvAddr",
        "addresses",
        parse_addresses,
        None,
        BOTH,
        "Name servers, as `host:port` with `;` between: the source finds the brokers of its topics "
        "there ([semantics.md](semantics.md#through-name-servers)). In place of `path` and "
        "`endpoint`.",
    ),
    Option(
        "brokerNames",
        "names",
        parse_names,
        None,
        BOTH,
        "Names for the stores, in the order of `path` (a glob's matches are sorted). Names must "
        "be unique. A stream that is restarted finds its stores again under other names, with few "
        "exceptions ([semantics.md](semantics.md#offsets-in-the-checkpoint)). Replicas of a store "
        "share one name.",
        default_doc="the folder's name; for a folder `store` its parent's name; with `endpoint`, "
        "the name that the store process reports; with `namesrvAddr`, the registered name",
    ),
    Option(
        "replicaTimeout",
        "duration",
        parse_duration_ms,
        "10s",
        BOTH,
        "For a store with several replicas: how long one of them may take to answer a request, or "
        "stay behind another, before the next one is read. If none can be read, the query fails "
        "after `requestTimeout`.",
        minimum=1,
    ),
    Option(
        "storePathCommitLog",
        "paths",
        _commitlog_paths,
        None,
        BOTH,
        "CommitLog folders outside the store: a comma-separated or JSON list. For several stores, "
        'a JSON object by broker: `{"broker-a":["/disk1/log","/disk2/log"]}`.',
        default_doc="`commitlog` in the store",
    ),
    Option(
        "subscribe",
        "names",
        parse_names,
        None,
        BOTH,
        "Topics to read, comma-separated. Set at most one of `subscribe`, `subscribePattern` and "
        "`assign`.",
        default_doc="all topics except system topics",
        aliases=("topic",),
    ),
    Option(
        "subscribePattern",
        "regular expression",
        _pattern,
        None,
        BOTH,
        "Topics to read: those whose whole name matches. Matches system topics only if "
        "`includeSystemTopics` is set.",
    ),
    Option(
        "assign",
        "JSON",
        parse_assign,
        None,
        BOTH,
        'Queues to read: `{"topic":[0,1]}`.',
    ),
    Option(
        "includeSystemTopics",
        "boolean",
        parse_boolean,
        "false",
        BOTH,
        "Also read system topics, such as SCHEDULE_TOPIC_XXXX, RMQ_SYS_*, %RETRY% and %DLQ%. Not "
        "needed for system topics that `subscribe` or `assign` names.",
    ),
    Option(
        "startingOffsets",
        "position",
        parse_offsets,
        None,
        BOTH,
        "Where to start: `earliest`; `latest` (stream only); `group:NAME`, the offsets of a "
        'consumer group; or `{"topic":{"0":23,"1":-2}}` with every chosen queue (-2 is earliest, '
        "-1 is latest).",
        default_doc="stream `latest`, batch `earliest`",
    ),
    Option(
        "endingOffsets",
        "position",
        parse_offsets,
        "latest",
        BATCH,
        "Where to end, exclusive. The same values as `startingOffsets`, except `earliest`.",
    ),
    Option(
        "startingTimestamp",
        "time",
        parse_timestamp_ms,
        None,
        BOTH,
        "Start at each queue's first message stored at or after this time: milliseconds, or "
        "ISO-8601 (UTC if it has no zone). Overrides `startingOffsetsByTimestamp`, which "
        "overrides `startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "JSON",
        parse_times,
        None,
        BOTH,
        'A starting time for each queue: `{"topic":{"0":1700000000000}}`, with brokers as in '
        "`startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error` or `latest`",
        parse_choice("error", "latest"),
        "error",
        BOTH,
        "What to do if a queue has no message at or after the starting time: fail, or start at "
        "its end.",
    ),
    Option(
        "endingTimestamp",
        "time",
        parse_timestamp_ms,
        None,
        BATCH,
        "End before each queue's first message stored at or after this time, or at the queue's "
        "end if it has none.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "JSON",
        parse_times,
        None,
        BATCH,
        "An ending time for each queue, as in `startingOffsetsByTimestamp`.",
    ),
    Option(
        "failOnDataLoss",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Fail if messages expired before they were read, or if a queue was cut, or deleted and "
        "recreated. `false`: continue with the messages that are left, and log what was lost. A "
        "stream then starts again at the first message of a queue that was cut or recreated.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "number",
        parse_integer,
        None,
        STREAM,
        "Maximum number of messages in a micro-batch, divided over the queues by backlog. Each "
        "queue with new messages gets at least one.",
        minimum=1,
    ),
    Option(
        "minOffsetsPerTrigger",
        "number",
        parse_integer,
        None,
        STREAM,
        "Wait until this many messages are available or `maxTriggerDelay` has passed. "
        "Trigger.AvailableNow ignores it, from Spark 4.2 on.",
        minimum=1,
    ),
    Option(
        "maxTriggerDelay",
        "duration",
        parse_duration_ms,
        "15m",
        STREAM,
        "Maximum time that `minOffsetsPerTrigger` delays a micro-batch.",
        minimum=1,
    ),
    Option(
        "maxBytesPerTrigger",
        "size",
        parse_bytes,
        None,
        STREAM,
        "Approximate maximum bytes of CommitLog in a micro-batch, divided over the queues by "
        "backlog.",
        minimum=1,
    ),
    Option(
        "commitGroup",
        "name",
        _group,
        None,
        STREAM,
        "Record the stream's progress as the offsets of this consumer group, after each "
        "micro-batch. `rmqstore groups` and `mqadmin consumerProgress` then show its lag. What "
        "cannot be recorded is logged, and does not stop the query. Needs `endpoint` or "
        "`namesrvAddr`.",
    ),
    Option(
        "minPartitions",
        "number",
        parse_integer,
        None,
        BOTH,
        "Split ranges until there are about this many partitions, each with at least one message. "
        "A stream that reads along the CommitLog otherwise cuts a micro-batch for four cores, and "
        "every 64 MiB: set it if you have more cores.",
        minimum=1,
    ),
    Option(
        "maxRecordsPerPartition",
        "number",
        parse_integer,
        None,
        BOTH,
        "Split ranges that have more messages than this.",
        minimum=1,
    ),
    Option(
        "maxBytesPerPartition",
        "size",
        parse_bytes,
        "256m",
        BOTH,
        "Split ranges that have more bytes of CommitLog than this.",
        minimum=1,
    ),
    Option(
        "tags",
        "tags",
        parse_tags,
        "*",
        BOTH,
        'Only messages with one of these tags: `"TagA || TagB"` (`||` is RocketMQ\'s only '
        "operator for tags); `*` means all. A JSON list gives exact tags, which can contain "
        "spaces and operators. Filters by the hash codes in the ConsumeQueue before it reads the "
        "CommitLog, then by the tags of the records.",
    ),
    Option(
        "keys",
        "keys",
        parse_keys,
        None,
        BATCH,
        "Only messages with one of these keys (KEYS or UNIQ_KEY), separated by spaces. Uses the "
        "IndexFiles. A JSON list gives exact keys, which can contain spaces, commas and operators.",
    ),
    Option(
        "planBy",
        "`auto`, `queue` or `commitlog`",
        parse_choice("auto", "queue", "commitlog"),
        "auto",
        BOTH,
        "`queue`: a partition is a range of one queue. `commitlog`: a partition is a range of the "
        "CommitLog, and reads all chosen queues in one pass. "
        "`auto` chooses the cheaper one, for each micro-batch of a stream, and `commitlog` "
        "for a store without queues. Both return the same rows, in queue order within a "
        "partition.",
    ),
    Option(
        "decompress",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Decompress compressed bodies. `false`: return them as stored.",
    ),
    Option(
        "checkCrc",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Check the CRC of the body if `body` is read, and that of the whole record if it has one "
        "(5.x).",
    ),
    Option(
        "pageCache",
        "`use` or `spare`",
        parse_choice("use", "spare"),
        None,
        BOTH,
        "`spare`: read local files without pushing a broker's files out of the page cache. The "
        "page cache is then left as it was found ([operate.md](operate.md#the-page-cache)). It "
        "costs speed, and has no effect on URLs. A store process has its own setting.",
        default_doc="`use`",
    ),
    Option(
        "mode",
        "`FAILFAST` or `DROPMALFORMED`",
        parse_choice("FAILFAST", "DROPMALFORMED"),
        "FAILFAST",
        BOTH,
        "What to do with a damaged record: fail the query (`FAILFAST`), or skip, count and log it "
        "(`DROPMALFORMED`).",
    ),
)

READING = OptionTable((*OPTIONS, *CONNECTION_OPTIONS))
