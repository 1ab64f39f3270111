"""The table of a store's keys, with RocketMQ's names.

The names are those of `MessageStoreConfig` and `BrokerConfig`, so that one file can serve a broker
and this project. docs/configuration.md and conf/store.conf are generated from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqstore_spark.engine.config.checks import (
    address,
    addresses,
    beginning,
    cluster,
    delay_levels,
    host_and_port,
    hours,
    networks,
)
from rmqstore_spark.engine.config.key import Key, choice, flag, keys_of, number, share, text
from rmqstore_spark.layout.delays import DELAY_LEVELS

__all__ = ["KEYS", "StoreKeys"]

_MAX_INT: Final = 2**31 - 1
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
_REPLICATION: Final = "Replication"
_SERVICE: Final = "Service"
_BROKER: Final = "Broker"


@dataclass(frozen=True)
class StoreKeys:
    """The value of each key. The table describes each field with its key."""

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
        "it.", group=_PLACE,
    )  # fmt: skip
    broker_ip1: str = text(
        "127.0.0.1", "Address in storeHost and msgId of new records; IPv6 makes both longer.",
        group=_PLACE, kind="IP address", check=address,
    )  # fmt: skip
    listen_port: int = number(
        0, 0, 65_535, "Port where RocketMQ's clients find the store process as a broker "
        "(docs/broker.md); also in storeHost and msgId of new records. 0: it is not one, and the "
        "records have 10911.", group=_PLACE,
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
        1000, 1, _HOUR_MS, "How often queues are flushed.", group=_FLUSH, unit="ms",
    )  # fmt: skip
    flush_consume_queue_thorough_interval: int = number(
        60_000, 1, _HOUR_MS, "How often index and checkpoint are flushed with them.",
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

    ha_master_address: str = text(
        "", "`host:port` of the master that a `SLAVE` follows; a broker's port is its "
        "`listenPort` + 1. Empty: it follows nobody.",
        group=_REPLICATION, kind="host:port", check=host_and_port,
    )  # fmt: skip
    ha_master_remoting_address: str = text(
        "", "`host:port` where the master's broker answers its clients (its `listenPort`). Every "
        "10 s, a `SLAVE` copies topics, subscription groups, and the progress of consumer groups "
        "and delayed messages from there. It also asks where the log begins. Empty: it does not.",
        group=_REPLICATION, kind="host:port", own=True, check=host_and_port,
    )  # fmt: skip
    ha_from: str = text(
        "earliest", "Where an empty `SLAVE` begins: `earliest`, `latest` (the master's last "
        "segment, as a broker's slave does), or the physical offset at which a segment of the "
        "master begins.",
        group=_REPLICATION, kind="`earliest`, `latest` or an offset", own=True, check=beginning,
    )  # fmt: skip
    ha_acknowledge: str = choice(
        "false", ("false", "true", "received"), "`false`: a `SLAVE` only reads, and no put of a "
        "`SYNC_MASTER` is answered because of it. `true`: it reports what it has on disk. "
        "`received`: it reports what it has written, as a broker's slave does.",
        group=_REPLICATION, own=True,
    )  # fmt: skip
    ha_listen_port: int = number(
        -1, -1, 65_535, "Port where a master serves its slaves; 0: any free one. -1: "
        "`listenPort` + 1 for a `SYNC_MASTER`, and none for an `ASYNC_MASTER`, which every store "
        "is by default. (A broker always takes `listenPort` + 1.)", group=_REPLICATION,
    )  # fmt: skip
    ha_bind_address: str = text(
        "127.0.0.1", "Address of that port.",
        group=_REPLICATION, kind="IP address", own=True, check=address,
    )  # fmt: skip
    ha_allowed_addresses: str = text(
        "127.0.0.0/8,::1/128", "Addresses and networks from which slaves may connect, with commas "
        "between. They get all messages: the protocol has no passwords.",
        group=_REPLICATION, kind="networks", own=True, check=networks,
    )  # fmt: skip
    ha_tls_enable: bool = flag(
        False, "TLS, and nothing else, between a master and its slaves; all of them are store "
        "processes. A master shows `tlsCertPath`; with `tlsTrustCertPath`, its slaves must show a "
        "certificate too. A `SLAVE` checks with `tlsClientTrustCertPath` that the certificate "
        "names the host of `haMasterAddress`, and shows `tlsClientCertPath` if it is given.",
        group=_REPLICATION, own=True,
    )  # fmt: skip
    ha_transfer_batch_size: int = number(
        256 << 10, 1 << 10, (4 << 20) - 12, "Most bytes of the log in a frame to a slave. A "
        "broker's slave cannot take more than 4194292. (A broker's default is 32768.)",
        group=_REPLICATION, unit="bytes",
    )  # fmt: skip
    ha_send_heartbeat_interval: int = number(
        5000, 10, _HOUR_MS, "A master or slave that has sent nothing for this time sends a "
        "heartbeat.", group=_REPLICATION, unit="ms",
    )  # fmt: skip
    ha_housekeeping_interval: int = number(
        20_000, 20, _HOUR_MS, "A connection on which nothing has arrived for this time is closed. "
        "A slave then connects again.", group=_REPLICATION, unit="ms",
    )  # fmt: skip
    ha_slave_fallbehind_max: int = number(
        256 << 20, 1, _MAX_LONG, "A `SYNC_MASTER` does not wait for slaves that are further "
        "behind. Without others, the status of a put is SLAVE_NOT_AVAILABLE.",
        group=_REPLICATION, unit="bytes",
    )  # fmt: skip
    slave_timeout: int = number(
        3000, 1, _HOUR_MS, "How long a put waits for a slave. Then its status is "
        "FLUSH_SLAVE_TIMEOUT.", group=_REPLICATION, unit="ms",
    )  # fmt: skip

    remoting_bind_address: str = text(
        "127.0.0.1", "Address on which `listenPort` is. Without `aclEnable`, anyone who reaches "
        "it can send and consume.", group=_BROKER, kind="IP address", own=True, check=address,
    )  # fmt: skip
    acl_enable: bool = flag(
        False, "Clients on `listenPort` need an account (docs/broker.md#accounts).", group=_BROKER,
    )  # fmt: skip
    acl_path: str = text(
        "", "File with the accounts, such as RocketMQ's `conf/plain_acl.yml`; or a folder such as "
        "`conf`, with that file and `acl/*.yml`. Changes are noticed within seconds. Nobody but "
        "the owner and its group may read the files.", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    acl_credentials_path: str = text(
        "", "File with `accessKey` and `secretKey`, as RocketMQ's `conf/tools.yml`, with which "
        "requests to name servers and to `haMasterRemotingAddress` are signed. Nobody but the "
        "owner and its group may read it.", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    tls_server_mode: str = choice(
        "permissive", ("permissive", "enforcing", "disabled"), "Which connections `listenPort` "
        "accepts if `tlsServerCertPath` is given: plain and TLS, TLS only, or plain only. (A "
        "broker's system property `tls.server.mode`.)", group=_BROKER, own=True,
    )  # fmt: skip
    tls_server_cert_path: str = text(
        "", "Certificate of `listenPort` (PEM).", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    tls_server_key_path: str = text(
        "", "Its private key (PEM), without a password. Nobody but the owner and its group may "
        "read it.", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    tls_server_trust_cert_path: str = text(
        "", "CA certificates (PEM); clients of `listenPort` must then have a certificate "
        "signed by one. Needs `tlsServerMode=enforcing`.", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    tls_enable: bool = flag(
        False, "Connections to name servers and to `haMasterRemotingAddress` use TLS, and their "
        "certificates are checked. (A broker's system property `tls.enable`.) That to "
        "`haMasterAddress` has `haTlsEnable`.", group=_BROKER, own=True,
    )  # fmt: skip
    tls_client_trust_cert_path: str = text(
        "", "CA certificates (PEM) for `tlsEnable` and `haTlsEnable`; empty: those of the system.",
        group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    tls_client_cert_path: str = text(
        "", "Certificate that this side shows on those connections (PEM); empty: none.",
        group=_BROKER,
        kind="path", own=True,
    )  # fmt: skip
    tls_client_key_path: str = text(
        "", "Its private key (PEM), without a password. Nobody but the owner and its group may "
        "read it.", group=_BROKER, kind="path", own=True,
    )  # fmt: skip
    vip_listen_port: int = number(
        -1, -1, 65_535, "Port for clients with `vipChannelEnabled`, and for the slaves of a "
        "RocketMQ broker. -1: `listenPort` - 2, where they expect it; 0: none.", group=_BROKER,
        own=True,
    )  # fmt: skip
    namesrv_addr: str = text(
        "", "Name servers with which the broker registers, as `host:port` with `;` between.",
        group=_BROKER, kind="addresses", check=addresses,
    )  # fmt: skip
    broker_cluster_name: str = text(
        "DefaultCluster", "Cluster that the broker registers as a part of; the property CLUSTER "
        "of messages that clients send.", group=_BROKER, kind="name", check=cluster,
    )  # fmt: skip
    broker_id: int = number(
        0, 0, _MAX_INT, "0: the master of its `brokerName`. A `SLAVE` needs a number above 0.",
        group=_BROKER,
    )  # fmt: skip
    register_name_server_period: int = number(
        30_000, 10_000, 60_000, "How often the broker registers; also at once when a topic "
        "changes.", group=_BROKER, unit="ms",
    )  # fmt: skip
    auto_create_subscription_group: bool = flag(
        True, "Accept consumer groups that the store does not know.", group=_BROKER,
    )  # fmt: skip
    broker_permission: int = number(
        6, 0, 7, "What RocketMQ's clients may do: "
        "the sum of 4 (pull) and 2 (send). The broker refuses the rest with NO_PERMISSION, and "
        "registers its topics without it.", group=_BROKER,
    )  # fmt: skip
    slave_read_enable: bool = flag(
        False, "Tell consumers which `brokerId` to pull from next. Who reads further behind the "
        "log's end than `accessMessageInMemoryMaxRatio` is sent to the "
        "`whichBrokerWhenConsumeSlowly` of its group (1: a slave), others to the group's "
        "`brokerId` (0: the master). With `false`, all are sent to the master; a slave that they "
        "ask all the same answers.",
        group=_BROKER,
    )  # fmt: skip
    access_message_in_memory_max_ratio: int = number(
        40, 0, 100, "Messages that are further behind the log's end than this part of the "
        "machine's memory are taken to be on disk: a pull gets at most 8 of them, or 64 KiB.",
        group=_BROKER, unit="percent",
    )  # fmt: skip
    wait_time_mills_in_send_queue: int = number(
        3000, 1, _HOUR_MS, "A send that has waited longer is refused with SYSTEM_BUSY: its client "
        "has given up, and sends it again. One-way sends are stored however late. The default is "
        "the timeout of RocketMQ's clients. (A broker's is 200: there, a pause of the disk fails "
        "sends whose clients still wait.)",
        group=_BROKER, unit="ms",
    )  # fmt: skip
    flush_consumer_offset_interval: int = number(
        5000, 100, _HOUR_MS, "How often the progress that RocketMQ's consumers report is written.",
        group=_BROKER, unit="ms",
    )  # fmt: skip

    bind_address: str = text(
        "127.0.0.1", "Address to listen on. Other than loopback needs TLS and a token, or mTLS.",
        group=_SERVICE, kind="IP address", check=address,
    )  # fmt: skip
    flight_port: int = number(
        10921, -1, 65_535, "Port of the endpoint (`serve --port`); 0: any free one, "
        "-1: none, if clients use `flightSocket` or `listenPort`, which is for RocketMQ's.",
        group=_SERVICE, own=True,
    )  # fmt: skip
    flight_socket: str = text(
        "", "Unix socket of Arrow Flight, besides the port or, with `flightPort=-1`, instead of "
        "it; only its owner may access its folder.", group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    token_path: str = text(
        "", "File with the token that clients must send.",
        group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    tls_cert_path: str = text(
        "", "Certificate of the service (PEM), and of `haListenPort` with `haTlsEnable`.",
        group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    tls_key_path: str = text(
        "", "Its private key (PEM).", group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    tls_trust_cert_path: str = text(
        "", "CA certificates (PEM); clients must then have a certificate signed by one.",
        group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    max_streams: int = number(
        256, 1, 65_536, "Most streams of clients that may be open at a time.",
        group=_SERVICE, own=True,
    )  # fmt: skip
    stream_idle_timeout: int = number(
        60_000, 100, _HOUR_MS, "A stream without data for this time is closed.",
        group=_SERVICE, unit="ms", own=True,
    )  # fmt: skip
    metrics_prom_exporter_host: str = text(
        "127.0.0.1", "Address of `/metrics` and `/healthz`.",
        group=_SERVICE, kind="IP address", check=address,
    )  # fmt: skip
    metrics_prom_exporter_port: int = number(
        -1, -1, 65_535, "Port of `/metrics` and `/healthz`; 0: any free one, -1: none.",
        group=_SERVICE,
    )  # fmt: skip


KEYS: Final[tuple[Key, ...]] = tuple(keys_of(StoreKeys))
"""All keys, in the order of the table."""
