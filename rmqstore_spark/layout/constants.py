"""The constants of the format: magic codes, sysFlag bits, property names, well-known topics.

Names are RocketMQ's own (`CommitLog`, `MessageSysFlag`, `MessageConst`, `TopicValidator`,
`MixAll`), so you can look them up there. See docs/format.md, "A CommitLog record".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

# --- magic codes, as the signed 32-bit integers that a decoder reads -----------------------------

MAGIC_V1: Final = -626843481  # 0xDAA320A7, topicLength is 1 byte
MAGIC_V2: Final = -626843477  # 0xDAA320AB, topicLength is 2 bytes (5.x)
MAGIC_BLANK: Final = -875286124  # 0xCBD43194, the rest of the segment is unused

BLANK_SIZE: Final = 8
"""Bytes of a blank record's head. Every segment keeps this much room for one."""

# --- sysFlag -------------------------------------------------------------------------------------

COMPRESSED_FLAG: Final = 0x1
MULTI_TAGS_FLAG: Final = 0x2

TRANSACTION_NOT_TYPE: Final = 0x0
TRANSACTION_PREPARED_TYPE: Final = 0x4
TRANSACTION_COMMIT_TYPE: Final = 0x8
TRANSACTION_ROLLBACK_TYPE: Final = 0xC
TRANSACTION_MASK: Final = 0xC

BORNHOST_V6_FLAG: Final = 0x10
STOREHOST_V6_FLAG: Final = 0x20

COMPRESSION_TYPE_SHIFT: Final = 8
COMPRESSION_TYPE_MASK: Final = 0x7 << COMPRESSION_TYPE_SHIFT
COMPRESSION_ZLIB_OLD: Final = 0
"""The type bits that clients before 4.9.3 leave; the body is compressed with zlib."""
COMPRESSION_LZ4: Final = 1
COMPRESSION_ZSTD: Final = 2
COMPRESSION_ZLIB: Final = 3

FILLER_TOPIC: Final = "rmq_sys_RMQSTORE_FILLER"
"""The topic of records that fill up room which was left before a Spark batch. It has no queue."""

TERM_TOPIC: Final = "rmqstore_term"
"""The topic of the record with which a leader of a DLedger group begins. It has no queue."""

# --- properties ----------------------------------------------------------------------------------

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "

PROPERTY_KEYS: Final = "KEYS"
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_WAIT: Final = "WAIT"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"
PROPERTY_REAL_QID: Final = "REAL_QID"
PROPERTY_PGROUP: Final = "PGROUP"
PROPERTY_TRAN_MSG: Final = "TRAN_MSG"
PROPERTY_CHECK_IMMUNITY_TIME: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
PROPERTY_CRC32: Final = "__CRC32#"
"""5.x with `enabledAppendPropCRC`: always the last property, ten digits, over the whole record."""

MULTI_DISPATCH_QUEUE_SPLITTER: Final = ","

# --- limits --------------------------------------------------------------------------------------

MAX_TOPIC_LENGTH: Final = 127
MAX_GROUP_LENGTH: Final = 255
MAX_PROPERTIES_LENGTH: Final = 32_767

# --- brokers -------------------------------------------------------------------------------------

MASTER_ID: Final = 0
"""The `brokerId` of a master; those of its slaves are above 0."""

# --- topics --------------------------------------------------------------------------------------

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where clients with `enableMsgTrace` tell of what they sent and consumed."""
TRANS_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The consumer group whose offsets say how far a broker has checked transactions."""

_SYSTEM_GROUPS: Final = frozenset(
    (
        *("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY"),
        *("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER"),
    )
)
RETRY_GROUP_TOPIC_PREFIX: Final = "%RETRY%"
DLQ_GROUP_TOPIC_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
AUTO_CREATE_TOPIC: Final = "TBW102"
"""Its queues are those of a topic that a broker creates for a producer."""

_BENCHMARK_TOPIC: Final = "BenchmarkTest"
"""Where RocketMQ's own benchmarks send to."""

SYSTEM_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        _BENCHMARK_TOPIC,
        "OFFSET_MOVED_EVENT",
        TRACE_TOPIC,
        "SELF_TEST_TOPIC",
        AUTO_CREATE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
    }
)
_SYSTEM_PREFIXES: Final = (
    RETRY_GROUP_TOPIC_PREFIX,
    DLQ_GROUP_TOPIC_PREFIX,
    "RMQ_SYS_",
    "rmq_sys_",
)
_OPEN_TOPICS: Final = (TRACE_TOPIC, _BENCHMARK_TOPIC)
_CLIENTS_PREFIXES: Final = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
"""Behind the name of a cluster: the topic to which replies of request-reply are sent."""

_TOPIC_NAME: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{MAX_TOPIC_LENGTH}}}")
_GROUP_NAME: Final = re.compile(rf"[%|a-zA-Z0-9_-]{{1,{MAX_GROUP_LENGTH}}}")
_MOST_NAMES: Final = 1024
"""Names that are kept with what was found out about them: it is asked of each message."""
_MAX_FOLDER_BYTES: Final = 255


def is_system_topic(name: str) -> bool:
    """Return whether a topic belongs to the broker or to a consumer group's retries.

    Light queues (`%LMQ%...`) hold users' data and are not system topics. `CLUSTER_REPLY_TOPIC`,
    where a broker keeps the answers of request-reply calls, is one.
    """
    is_one = name == TERM_TOPIC or name in SYSTEM_TOPICS
    return is_one or name.startswith(_SYSTEM_PREFIXES) or name.endswith(REPLY_SUFFIX)


def is_topic_of_group(name: str) -> bool:
    """Return whether a topic holds the messages that a consumer group retries, or has given up.

    A broker gives such a topic one queue (upstream: createTopicInSendMessageBackMethod).
    """
    return name.startswith(_CLIENTS_PREFIXES)


def is_safe_topic_name(name: str) -> bool:
    """Return whether a broker accepts this topic name: `[%|a-zA-Z0-9_-]`, 1 to 127 characters."""
    return _TOPIC_NAME.fullmatch(name) is not None


def is_listed_topic_name(name: str) -> bool:
    """Return whether a broker's table of topics may have a topic of this name.

    Each group has its topics there, also one whose own name is so long that those of its topics
    have 128 to 262 characters. No message can name such a topic. (Upstream:
    TopicConfigManager.createTopicInSendMessageBackMethod, which checks nothing.)
    """
    return is_safe_topic_name(name) or any(
        name.startswith(prefix) and is_safe_group_name(name.removeprefix(prefix))
        for prefix in _CLIENTS_PREFIXES
    )


def is_safe_group_name(name: str) -> bool:
    """Return whether a broker accepts this group name: `[%|a-zA-Z0-9_-]`, 1 to 255 characters.

    Upstream: Validators.checkGroup.
    """
    return _GROUP_NAME.fullmatch(name) is not None


def is_system_group(name: str) -> bool:
    """Return whether every broker has a consumer group, also one that creates no others.

    (Upstream: SubscriptionGroupManager.init, MixAll.isSysConsumerGroup.)
    """
    return name in _SYSTEM_GROUPS or name.startswith("CID_RMQ_SYS_")


def group_fault(name: str, kind: str) -> str | None:
    """Return a sentence that says why no broker accepts a group name, or None if it does.

    Args:
        name: of the group.
        kind: of the group: "consumer" or "producer".
    """
    if is_safe_group_name(name):
        return None
    return (
        f"No broker accepts {name[:MAX_GROUP_LENGTH]!r} as the name of a {kind} group: use 1 to "
        f"{MAX_GROUP_LENGTH} letters, digits and the characters %|_-."
    )


@lru_cache(_MOST_NAMES)
def is_writable_topic(name: str) -> bool:
    """Return whether clients may write to, create and delete a topic of this name.

    Topics that a broker reserves for itself are refused. `%RETRY%...` and `%DLQ%...` are open to
    clients: a consumer whose broker does not take messages back sends them to its retry topic
    itself, and dead letters are copied and replayed. So are RMQ_SYS_TRACE_TOPIC and BenchmarkTest.
    (Upstream: TopicValidator.isNotAllowedSendTopic, which knows fewer of a broker's own names.)
    """
    is_open = is_topic_of_group(name) or name in _OPEN_TOPICS or not is_system_topic(name)
    return is_safe_topic_name(name) and is_open


@lru_cache(_MOST_NAMES)
def topic_fault(name: str) -> str | None:
    """Return a sentence that says why clients may not write to a topic, or None if they may."""
    if not is_safe_topic_name(name):
        return (
            f"{name[:MAX_TOPIC_LENGTH]!r} is not a topic name: use 1 to {MAX_TOPIC_LENGTH} of the "
            "characters a-z, A-Z, 0-9, %, |, - and _."
        )
    if not is_writable_topic(name):
        return f"Topic {name!r} is a system topic: clients cannot write to it."
    return None


def is_safe_folder_name(name: str) -> bool:
    """Return whether a topic name is safe as the name of one folder, even if a broker refuses it.

    RocketMQ's store accepts any UTF-8 topic, so a queue folder may have such a name. A name that
    could lead out of its parent folder is never used in a path.
    """
    if name in ("", ".", "..") or any(c in name for c in "/\\\0"):
        return False
    try:
        return len(name.encode()) <= _MAX_FOLDER_BYTES
    except UnicodeEncodeError:  # a lone surrogate: the name is not valid UTF-8
        return False
