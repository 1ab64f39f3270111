"""The keys of what a store process does over the network: copies, RocketMQ's clients, Spark's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rmqstore_spark.engine.config.key import (
    address,
    addresses,
    beginning,
    choice,
    cluster,
    flag,
    host_and_port,
    networks,
    number,
    text,
)

_MAX_INT: Final = 2**31 - 1
_MAX_LONG: Final = 2**63 - 1
_HOUR_MS: Final = 3_600_000

_REPLICATION: Final = "Replication"
_BROKER: Final = "Broker"
_SERVICE: Final = "Service"


@dataclass(frozen=True)
class NetworkKeys:
    """The value of each of these keys. The table describes each field with its key."""

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
        "processes. A master shows `tlsServerCertPath`; with `tlsServerTrustCertPath`, its slaves "
        "must show a certificate too. A `SLAVE` checks with `tlsClientTrustCertPath` that the "
        "certificate names the host of `haMasterAddress`, and shows `tlsClientCertPath` if it is "
        "given.",
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

    acl_enable: bool = flag(
        False, "Clients need an account (docs/broker.md#accounts): RocketMQ's, Spark's and the "
        "command.", group=_BROKER,
    )  # fmt: skip
    tls_server_mode: str = choice(
        "permissive", ("permissive", "enforcing", "disabled"), "Which connections `listenPort` "
        "accepts if `tlsServerCertPath` is given: plain and TLS, TLS only, or plain only. (A "
        "broker's system property `tls.server.mode`.)", group=_BROKER, own=True,
    )  # fmt: skip
    tls_enable: bool = flag(
        False, "Connections to name servers and to `haMasterRemotingAddress` use TLS, and their "
        "certificates are checked. (A broker's system property `tls.enable`.) That to "
        "`haMasterAddress` has `haTlsEnable`.", group=_BROKER, own=True,
    )  # fmt: skip
    vip_listen_port: int = number(
        -1, -1, 65_535, "Port for RocketMQ's clients with `vipChannelEnabled`, and for the slaves "
        "of a RocketMQ broker. -1: `listenPort` - 2, where they expect it, or none if that is any "
        "free port; 0: none.",
        group=_BROKER, own=True,
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
        6, 0, 7, "What clients may do: the sum of 4 (read) and 2 (write). The rest is refused with "
        "NO_PERMISSION, and a broker registers its topics without it.", group=_BROKER,
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
        "127.0.0.1", "Address on which `listenPort` is. Beyond loopback, clients need accounts "
        "(`aclEnable`) or certificates (`tlsServerTrustCertPath`), and TLS "
        "(`tlsServerMode=enforcing`); see `allowUnprotected`.",
        group=_SERVICE, kind="IP address", check=address,
    )  # fmt: skip
    listen_port: int = number(
        10921, -1, 65_535, "The port for all clients (`serve --port`); also in storeHost and msgId "
        "of new records. 0: any free one, -1: none, if clients use `listenSocket`.",
        group=_SERVICE,
    )  # fmt: skip
    listen_socket: str = text(
        "", "Unix socket for Spark and the command, besides the port or, with `listenPort=-1`, "
        "instead of it. Only its owner may access its folder, which is made if it is not there; so "
        "its clients need no account.",
        group=_SERVICE, kind="path", own=True,
    )  # fmt: skip
    clients: str = choice(
        "spark", ("spark", "rocketmq", "all"), "Who is served on `listenPort`: `spark` (with the "
        "command), `rocketmq` (RocketMQ's clients and tools: the process is a broker), or `all`. "
        "Followers of a DLedger group can always copy there what is not in the log.",
        group=_SERVICE, own=True,
    )  # fmt: skip
    allow_unprotected: bool = flag(
        False, "Listen beyond loopback although strangers could connect, or read the connections.",
        group=_SERVICE, own=True,
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
    status_page_enable: bool = flag(
        False, "Show pages for people on that port, under `/status`: figures, lag, commits, "
        "messages (docs/operate.md#status-pages). With `aclEnable`, they need an account.",
        group=_SERVICE, own=True,
    )  # fmt: skip
