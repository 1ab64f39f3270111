"""The table of a store's keys, with RocketMQ's names.

The names are those of `MessageStoreConfig` and `BrokerConfig`, so that one file can serve a broker
and this project. docs/configuration.md and conf/store.conf are generated from this table. What a
store process does over the network is in `network_keys`, what protects that in `protection_keys`,
and the group it is in in `group_keys`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqstore_spark.base.settings import settings_of
from rmqstore_spark.engine.config.group_keys import GroupKeys
from rmqstore_spark.engine.config.key import (
    address,
    choice,
    delay_levels,
    flag,
    hours,
    number,
    share,
    text,
)
from rmqstore_spark.engine.config.network_keys import NetworkKeys
from rmqstore_spark.engine.config.protection_keys import ProtectionKeys
from rmqstore_spark.layout.record.delayed import DELAY_LEVELS

_MAX_LONG: Final = 2**63 - 1
_HOUR_MS: Final = 3_600_000

_PLACE: Final = "Place and identity"
_FILES: Final = "Files"
_FLUSH: Final = "Flush"
_LIMITS: Final = "Limits"
_EXPIRY: Final = "Expiry and archive"
_TOPICS: Final = "Topics"
_DELAY: Final = "Delayed messages"
_TRANSACTIONS: Final = "Transactions"
_STAGING: Final = "Batches of Spark"


@dataclass(frozen=True)
class _LocalKeys:
    """The keys that say what a store is, and what it does with messages on its own machine."""

    store_path_root_dir: str = text(
        "", "The store directory.", group=_PLACE, kind="path",
    )  # fmt: skip
    store_path_commit_log: str = text(
        "", "Folder of the CommitLog; empty: `commitlog` in the store. A log spread over several "
        "folders, as in 4.9, is read-only.", group=_PLACE, kind="path",
    )  # fmt: skip
    broker_name: str = text(
        "broker-a", "Name of the store; column `brokerName` shows it.", group=_PLACE,
    )  # fmt: skip
    broker_role: str = choice(
        "ASYNC_MASTER", ("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"), "A `SLAVE` accepts no "
        "messages, and follows `haMasterAddress`. A `SYNC_MASTER` answers a put when a slave has "
        "it. `rmqstore promote` and `demote` change the role, until this key says the same.",
        group=_PLACE,
    )  # fmt: skip
    broker_ip1: str = text(
        "127.0.0.1", "Address in storeHost and msgId of new records; IPv6 makes both longer.",
        group=_PLACE, kind="IP address", check=address, name="brokerIP1",
    )  # fmt: skip

    mapped_file_size_commit_log: int = number(
        1 << 30, 4096, 1 << 40, "Size of a CommitLog segment. A store with segments keeps "
        "their size.", group=_FILES, unit="bytes",
    )  # fmt: skip
    mapped_file_size_consume_queue: int = number(
        6_000_000, 20, 1 << 30, "Size of a ConsumeQueue file, rounded up to whole entries of 20 "
        "bytes. A store with such files keeps their size.", group=_FILES, unit="bytes",
    )  # fmt: skip
    message_index_enable: bool = flag(
        True, "Write the index by key.", group=_FILES,
    )  # fmt: skip
    max_hash_slot_num: int = number(
        5_000_000, 1, 1 << 28, "Hash slots of an IndexFile.", group=_FILES,
    )  # fmt: skip
    max_index_num: int = number(
        20_000_000, 2, 1 << 28, "Entries of an IndexFile.", group=_FILES,
    )  # fmt: skip

    flush_disk_type: str = choice(
        "ASYNC_FLUSH", ("ASYNC_FLUSH", "SYNC_FLUSH"),
        "`SYNC_FLUSH`: a put is acknowledged when it is on disk. `ASYNC_FLUSH`: when "
        "it is written.",
        group=_FLUSH,
    )  # fmt: skip
    sync_flush_timeout: int = number(
        5000, 1, _HOUR_MS, "How long a put waits for its flush. Then its status is "
        "FLUSH_DISK_TIMEOUT.", group=_FLUSH, unit="ms",
    )  # fmt: skip
    flush_interval_commit_log: int = number(
        500, 1, _HOUR_MS, "How often the CommitLog is flushed under `ASYNC_FLUSH`.",
        group=_FLUSH, unit="ms",
    )  # fmt: skip
    flush_interval_consume_queue: int = number(
        1000, 1, _HOUR_MS, "How often queues are flushed. If that takes long, since thousands have "
        "new messages, the next flush waits nine times as long, at most "
        "`flushConsumeQueueThoroughInterval`.",
        group=_FLUSH, unit="ms",
    )  # fmt: skip
    flush_consume_queue_thorough_interval: int = number(
        60_000, 1, _HOUR_MS, "How often the index is flushed with them.",
        group=_FLUSH, unit="ms",
    )  # fmt: skip

    max_message_size: int = number(
        4 << 20, 1, 12 << 20, "Largest body of a message.", group=_LIMITS, unit="bytes",
    )  # fmt: skip
    disk_max_used_space_ratio: int = number(
        90, 1, 100, "When its disk is fuller than this, the store refuses messages with "
        "SERVICE_NOT_AVAILABLE until there is space. With `fileReservedTime`, it deletes expired "
        "segments at any hour instead, as a broker does, and refuses messages only above "
        "`diskSpaceWarningLevelRatio` too. (A broker's default is 75.)",
        group=_LIMITS, unit="percent",
    )  # fmt: skip
    os_page_cache_busy_time_out_mills: int = number(
        1000, 1, _HOUR_MS, "While a put holds the log for longer, other puts are refused at once "
        "with OS_PAGECACHE_BUSY.", group=_LIMITS, unit="ms",
    )  # fmt: skip
    max_block_bytes: int = number(
        32 << 20, 1 << 20, 1 << 30, "Largest batch that a client may send.",
        group=_LIMITS, unit="bytes", own=True,
    )  # fmt: skip
    max_block_rows: int = number(
        1 << 16, 1, 1 << 20, "Most messages in a batch that a client may send.",
        group=_LIMITS, own=True,
    )  # fmt: skip

    file_reserved_time: int = number(
        0, 0, 1_000_000, "How long messages are kept after they were stored. 0: for ever, and "
        "all other keys of this group but `archiveTo` have no effect. (A broker's default is 72.)",
        group=_EXPIRY, unit="hours",
    )  # fmt: skip
    delete_when: str = text(
        "04", "Hours of the day, in local time, in which expired segments are deleted; several "
        "with `;` between them.", group=_EXPIRY, kind="hours, 0 to 23", check=hours,
    )  # fmt: skip
    clean_file_forcibly_enable: bool = flag(
        True, "Delete the oldest segments, whatever their age, while the disk is fuller than "
        "`diskSpaceCleanForciblyRatio`.", group=_EXPIRY,
    )  # fmt: skip
    disk_space_clean_forcibly_ratio: float = share(
        0.85, "See `cleanFileForciblyEnable`. (A system property of a broker.)", group=_EXPIRY,
    )  # fmt: skip
    disk_space_warning_level_ratio: float = share(
        0.90, "See `diskMaxUsedSpaceRatio`. (A system property of a broker.)", group=_EXPIRY,
    )  # fmt: skip
    delete_physic_files_batch_max: int = number(
        10, 1, 10_000, "Most segments that are deleted in a round.", group=_EXPIRY,
    )  # fmt: skip
    clean_resource_interval: int = number(
        10_000, 100, _HOUR_MS, "Time between two rounds.", group=_EXPIRY, unit="ms",
    )  # fmt: skip
    delete_commit_log_files_interval: int = number(
        100, 0, 60_000, "Time between two segments that are deleted.", group=_EXPIRY, unit="ms",
    )  # fmt: skip
    delete_consume_queue_files_interval: int = number(
        100, 0, 60_000, "Time between two queues whose files are deleted.",
        group=_EXPIRY, unit="ms",
    )  # fmt: skip
    redelete_hanged_file_interval: int = number(
        120_000, 0, 24 * _HOUR_MS, "How long the deletion of a segment waits for clients that "
        "read it through the store process.", group=_EXPIRY, unit="ms",
    )  # fmt: skip
    archive_to: str = text(
        "", "URL of a folder, on any file system that fsspec supports, to which each segment is "
        "copied before it is deleted.", group=_EXPIRY, kind="URL", own=True,
    )  # fmt: skip

    auto_create_topic_enable: bool = flag(
        True, "Create topics that clients write to.", group=_TOPICS,
    )  # fmt: skip
    default_topic_queue_nums: int = number(
        8, 1, 65_536, "Queues of a topic that is created this way.", group=_TOPICS,
    )  # fmt: skip
    max_topics: int = number(
        10_000, 1, 1_000_000, "Most topics of the store.", group=_TOPICS, own=True,
    )  # fmt: skip

    message_delay_level: str = text(
        DELAY_LEVELS, "The delay of each level, from 1 on, with a space between: a number and s, "
        "m, h or d. Queues that are rebuilt get the due times of the levels as they are then.",
        group=_DELAY, kind="delays", check=delay_levels,
    )  # fmt: skip
    flush_delay_offset_interval: int = number(
        10_000, 100, _HOUR_MS, "How often `config/delayOffset.json` is written. After a crash, the "
        "log is searched for what was delivered later.", group=_DELAY, unit="ms",
    )  # fmt: skip

    transaction_time_out: int = number(
        6000, 0, 24 * _HOUR_MS, "How long a half message waits before its producer is asked, "
        "unless its property CHECK_IMMUNITY_TIME_IN_SECONDS says otherwise.",
        group=_TRANSACTIONS, unit="ms",
    )  # fmt: skip
    transaction_check_interval: int = number(
        60_000, 100, 24 * _HOUR_MS, "Time between two rounds of checks.",
        group=_TRANSACTIONS, unit="ms",
    )  # fmt: skip
    transaction_check_max: int = number(
        15, 1, 1_000_000, "A half message is checked so often. The next round moves it to "
        "TRANS_CHECK_MAX_TIME_TOPIC.", group=_TRANSACTIONS,
    )  # fmt: skip
    reject_transaction_message: bool = flag(
        False, "Refuse half messages.", group=_TRANSACTIONS,
    )  # fmt: skip

    staging_timeout: int = number(
        _HOUR_MS, 1, 30 * 24 * _HOUR_MS, "Staged data that was not used for this time is "
        "removed.", group=_STAGING, unit="ms", own=True,
    )  # fmt: skip
    staging_max_bytes: int = number(
        64 << 30, 1 << 20, _MAX_LONG, "Most data that may be staged at a time.",
        group=_STAGING, unit="bytes", own=True,
    )  # fmt: skip
    staging_max_stage_bytes: int = number(
        16 << 30, 1 << 20, _MAX_LONG, "Most data that one task may stage.",
        group=_STAGING, unit="bytes", own=True,
    )  # fmt: skip
    staging_memory_bytes: int = number(
        160 << 20, 0, _MAX_LONG, "Of the staged data of all tasks, what the process holds in "
        "memory. The rest is in files beside the log.", group=_STAGING, unit="bytes", own=True,
    )  # fmt: skip
    max_transaction_bytes: int = number(
        16 << 30, 1 << 20, _MAX_LONG, "Largest batch that is committed as a whole.",
        group=_STAGING, unit="bytes", own=True,
    )  # fmt: skip


@dataclass(frozen=True)
class StoreKeys(ProtectionKeys, NetworkKeys, GroupKeys, _LocalKeys):
    """The value of each key. The table describes each field with its key.

    The fields of the class that is inherited last are the first.
    """


KEYS: Final = settings_of(StoreKeys)
"""All keys, in the order of the table."""
