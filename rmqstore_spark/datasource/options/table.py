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
from rmqstore_spark.reader.filters import parse_keys, parse_tags

__all__ = ["OPTIONS", "READING"]


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None


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
        "Store directories (the folder that holds `commitlog/`), as `load(path)` or as an option: "
        "one path or fsspec URL, several comma-separated, a glob, or a JSON list (for paths with a "
        "comma). A relative path is taken from the driver's working directory.",
        default_doc="required, or `endpoint`",
        aliases=("paths",),
    ),
    Option(
        "brokerNames",
        "names",
        parse_names,
        None,
        BOTH,
        "Names for the stores, in the order of `path` (a glob's matches are sorted). Two alike are "
        "an error. Offsets in checkpoints carry the broker, so the names must stay the same when a "
        "stream is restarted.",
        default_doc="the parent folder's name for a folder called `store`, else the folder's own",
    ),
    Option(
        "storePathCommitLog",
        "paths",
        _commitlog_paths,
        None,
        BOTH,
        "CommitLog folders where they are not below the store: comma-separated or a JSON list; "
        'with several stores a JSON object by broker, `{"broker-a":["/disk1/log","/disk2/log"]}`.',
        default_doc="`commitlog` in the store",
    ),
    Option(
        "subscribe",
        "names",
        parse_names,
        None,
        BOTH,
        "Topics to read, comma-separated. At most one of `subscribe`, `subscribePattern` and "
        "`assign` can be given.",
        default_doc="all topics but system ones",
        aliases=("topic",),
    ),
    Option(
        "subscribePattern",
        "regular expression",
        _pattern,
        None,
        BOTH,
        "Topics to read: those whose whole name matches. System topics only with "
        "`includeSystemTopics`.",
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
        "Read SCHEDULE_TOPIC_XXXX, RMQ_SYS_*, %RETRY%, %DLQ% and the like too. A system topic that "
        "`subscribe` or `assign` names is read without it.",
    ),
    Option(
        "startingOffsets",
        "position",
        parse_offsets,
        None,
        BOTH,
        'Where to start: `earliest`, `latest` (stream only), `{"topic":{"0":23,"1":-2}}` (-2 is '
        "earliest, -1 latest; every chosen queue must be there), with several stores also "
        '`{"topic":{"broker-a":{"0":23}}}`, or `group:NAME`: where that consumer group stands (a '
        "queue it never read starts at earliest). In a stream it counts for the first start only; "
        "queues found later start at earliest.",
        default_doc="stream `latest`, batch `earliest`",
    ),
    Option(
        "endingOffsets",
        "position",
        parse_offsets,
        "latest",
        BATCH,
        "Where to end (that offset is not read): as `startingOffsets`, without `earliest`.",
    ),
    Option(
        "startingTimestamp",
        "time",
        parse_timestamp_ms,
        None,
        BOTH,
        "Start at each queue's first message stored at or after this time: milliseconds, or "
        "ISO-8601 (UTC where no zone is given). Goes before `startingOffsetsByTimestamp`, which "
        "goes before `startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestamp",
        "JSON",
        parse_times,
        None,
        BOTH,
        'The same for each queue: `{"topic":{"0":1700000000000}}`, with the broker as in '
        "`startingOffsets`.",
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "`error` or `latest`",
        parse_choice("error", "latest"),
        "error",
        BOTH,
        "What a starting time does on a queue without a message that late: fail, or start at its "
        "end.",
    ),
    Option(
        "endingTimestamp",
        "time",
        parse_timestamp_ms,
        None,
        BATCH,
        "End at each queue's first message stored at or after this time (that one is not read); at "
        "the queue's end where there is none.",
    ),
    Option(
        "endingOffsetsByTimestamp",
        "JSON",
        parse_times,
        None,
        BATCH,
        "The same for each queue.",
    ),
    Option(
        "failOnDataLoss",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Fail when messages that were to be read have expired, or when a queue was cut, or deleted "
        "and made anew. `false`: go on with what is there, and log how much was missed.",
    ),
    Option(
        "maxOffsetsPerTrigger",
        "number",
        parse_integer,
        None,
        STREAM,
        "At most this many messages in a micro-batch, shared out over the queues by backlog. Each "
        "queue with news gets one at least.",
        minimum=1,
    ),
    Option(
        "minOffsetsPerTrigger",
        "number",
        parse_integer,
        None,
        STREAM,
        "Wait until there are this many messages, or `maxTriggerDelay` is over. Not with "
        "Trigger.AvailableNow, which takes what there is.",
        minimum=1,
    ),
    Option(
        "maxTriggerDelay",
        "duration",
        parse_duration_ms,
        "15m",
        STREAM,
        "How long `minOffsetsPerTrigger` may hold messages back.",
        minimum=1,
    ),
    Option(
        "maxBytesPerTrigger",
        "size",
        parse_bytes,
        None,
        STREAM,
        "At most about this many bytes of CommitLog in a micro-batch, shared out likewise.",
        minimum=1,
    ),
    Option(
        "minPartitions",
        "number",
        parse_integer,
        None,
        BOTH,
        "Split until there are about this many partitions.",
        minimum=1,
    ),
    Option(
        "maxRecordsPerPartition",
        "number",
        parse_integer,
        None,
        BOTH,
        "Split ranges that hold more messages.",
        minimum=1,
    ),
    Option(
        "maxBytesPerPartition",
        "size",
        parse_bytes,
        "256m",
        BOTH,
        "Split ranges that hold more bytes of CommitLog.",
        minimum=1,
    ),
    Option(
        "tags",
        "tags",
        parse_tags,
        "*",
        BOTH,
        'Only messages with one of these tags: `"TagA || TagB"`, the only operator that RocketMQ '
        "has for tags; `*` means all. A JSON list names tags to the letter, also those with spaces "
        "or operators in them. Decided on the hash codes in the ConsumeQueue before the CommitLog "
        "is touched, then checked on the record.",
    ),
    Option(
        "keys",
        "keys",
        parse_keys,
        None,
        BATCH,
        "Only messages with one of these keys (KEYS or UNIQ_KEY), found through the IndexFile: "
        "separated by spaces. A JSON list names keys with spaces, commas or operators in them.",
    ),
    Option(
        "planBy",
        "`auto`, `queue` or `commitlog`",
        parse_choice("auto", "queue", "commitlog"),
        "auto",
        BATCH,
        "`queue`: a partition is a range of one queue. `commitlog`: a partition is a range of the "
        "CommitLog, with all chosen queues in one pass: for backfills of a whole store. `auto` "
        "takes the cheaper, and `commitlog` for a store without queues. Both give the same rows, "
        "in queue order within a partition.",
    ),
    Option(
        "decompress",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Give compressed bodies uncompressed; `false`: as they are stored.",
    ),
    Option(
        "checkCrc",
        "boolean",
        parse_boolean,
        "true",
        BOTH,
        "Check the CRC of the body when `body` is read, and that of the whole record where 5.x put "
        "one.",
    ),
    Option(
        "mode",
        "`FAILFAST` or `DROPMALFORMED`",
        parse_choice("FAILFAST", "DROPMALFORMED"),
        "FAILFAST",
        BOTH,
        "What a damaged record does: fail the query, or be skipped, counted and logged.",
    ),
)

READING = OptionTable((*OPTIONS, *CONNECTION_OPTIONS))
