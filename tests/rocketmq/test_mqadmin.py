"""RocketMQ's mqadmin administers a store process, and prints what it prints of a broker."""

from __future__ import annotations

import json
import re
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path

from rmqstore_spark.engine.tables.topics import PERM_WRITE
from tests.broker.broker import Served, broker, heartbeat, message, name_server, route
from tests.broker.protection.accounts import APP, ask, write_accounts
from tests.rocketmq.processes import Admin, RocketMq, brokers_of_both_kinds
from tests.support.processes.ports import free_port
from tests.support.waiting import eventually

_PATIENCE = 120.0
_PRODUCER = r"producer group \(\w+\) instance|default constructor not found"


def test_it_administers_a_store_process(rocketmq: RocketMq, tmp_path: Path) -> None:
    # mqadmin signs with conf/tools.yml of the release, whose account is an administrator.
    settings = {"acl_enable": True, "acl_path": write_accounts(tmp_path / "plain_acl.yml")}
    # Some commands go to the VIP port.
    settings |= {"listen_port": free_port(), "vip_listen_port": -1}
    with ExitStack() as cleanup:
        address = cleanup.enter_context(name_server(tmp_path))
        made = broker(tmp_path / "store", namesrv_addr=address, **settings)
        served = cleanup.enter_context(made)
        admin = Admin(rocketmq, address)
        cleanup.callback(admin.close)
        eventually(lambda: route(address, "TBW102"))
        where = f"-b {served.address}"

        admin.shows("clusterList", served.address)
        admin.shows(f"brokerStatus {where}", "commitLogMaxOffset")
        admin.shows(f"updateTopic -t RecAcl -r 2 -w 2 {where}", "success")
        admin.shows(f"updateSubGroup -g consumers {where}", "success")
        eventually(lambda: route(address, "RecAcl"))
        sent, _, _ = ask(
            served,
            message(b"body", "RecAcl", i="KEYS\x01the-key\x02UNIQ_KEY\x01" + "0A" * 16),
            message(b"more", "RecAcl", 1),
            heartbeat("me", {"RecAcl": "*"}),
            by=APP,
        )
        _consume(served)
        served.store.flush()

        admin.shows("topicStatus -t RecAcl", "broker-a")
        admin.shows("consumerProgress -g consumers", "Diff Total: 1")
        admin.shows("consumerProgress", "consumers")
        admin.shows("queryMsgByKey -t RecAcl -k the-key", "0A" * 16)
        topic = " -t RecAcl" if rocketmq.version >= (5,) else ""
        admin.shows(f"queryMsgById -i {sent.ext['msgId']}{topic}", "the-key")
        admin.shows(f"queryMsgByUniqueKey -t RecAcl -i {'0A' * 16}", "the-key")
        admin.shows("queryMsgByOffset -t RecAcl -b broker-a -i 0 -o 0", "the-key")
        admin.shows("printMsg -t RecAcl", "more")
        admin.shows("resetOffsetByTime -g consumers -t RecAcl -s 0", "broker-a")
        assert served.store.consumer_offsets.get("consumers", "RecAcl", 0) == 0
        admin.shows(f"brokerConsumeStats {where}", "Diff Total: 2")  # once: it cannot be repeated
        admin.shows(f"getBrokerConfig {where}", "autoCreateTopicEnable")
        admin.shows(f"updateBrokerConfig {where} -k autoCreateTopicEnable -v false", "success")
        assert not served.store.config.auto_create_topic_enable
        admin.shows(f"deleteSubGroup -g consumers {where}", "success")
        admin.shows("deleteTopic -t RecAcl -c DefaultCluster", "success")
        assert "RecAcl" not in served.store.topics


def test_it_exports_a_store_process_and_cleans_up(rocketmq: RocketMq, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        address = cleanup.enter_context(name_server(tmp_path))
        served = cleanup.enter_context(broker(tmp_path / "store", namesrv_addr=address))
        admin = Admin(rocketmq, address)
        cleanup.callback(admin.close)
        served.store.create_topic("orders", write_queue_nums=3)
        served.store.groups.create("consumers")
        eventually(lambda: route(address, "orders"))
        for what in ("Configs", "Metadata", "Metrics"):
            admin.shows(f"export{what} -c DefaultCluster -f {tmp_path}", f"{what.lower()}.json")
        exported = {
            name: json.loads((tmp_path / f"{name}.json").read_text())
            for name in ("configs", "metadata", "metrics")
        }
        (config,) = exported["configs"]["brokerConfigs"].values()
        assert config["msgTraceTopicName"] == "RMQ_SYS_TRACE_TOPIC"
        assert exported["metadata"]["topicConfigTable"].keys() == {"orders"}
        assert exported["metadata"]["topicConfigTable"]["orders"]["writeQueueNums"] == 3
        assert exported["metadata"]["subscriptionGroupTable"].keys() == {"consumers"}
        (report,) = exported["metrics"]["evaluateReport"].values()
        assert report["runtimeQuota"]["topicSize"] == report["runtimeQuota"]["groupSize"] == 1
        for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
            admin.shows(f"{command} -b {served.address}", "success")


def _consume(served: Served) -> None:
    served.store.consumer_offsets.report("consumers", "RecAcl", 0, 1)
    served.store.consumer_offsets.report("consumers", "RecAcl", 1, 0)


def test_connections_are_shown(rocketmq: RocketMq, tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        address = cleanup.enter_context(name_server(tmp_path))
        served = cleanup.enter_context(broker(tmp_path / "store", namesrv_addr=address))
        admin = Admin(rocketmq, address)
        cleanup.callback(admin.close)
        # Nobody can read it: a client that gets its message ends, perhaps before it is shown.
        served.store.create_topic("orders", read_queue_nums=1, perm=PERM_WRITE)
        eventually(lambda: route(address, "orders"))
        _start_client(rocketmq, address, cleanup)
        admin.shows("producerConnection -g producers -t orders", "JAVA")
        admin.shows("consumerConnection -g consumers", "CONSUME_FROM_FIRST_OFFSET")


def test_producers_are_listed_as_of_a_broker(rocketmq: RocketMq, tmp_path: Path) -> None:
    """An mqadmin that was compiled without `javac -g` can read the list of neither."""
    said: list[set[str]] = []
    port = free_port(around=(1,))
    with name_server(tmp_path) as address, closing(Admin(rocketmq, address)) as admin:
        for place in brokers_of_both_kinds(rocketmq, address, port, tmp_path):
            with ExitStack() as cleanup:
                cleanup.enter_context(place)
                eventually(lambda: route(address, "TBW102"))
                admin.shows(f"updateTopic -t orders -p 2 -b 127.0.0.1:{port}", "success")
                eventually(lambda: route(address, "orders"))
                _start_client(rocketmq, address, cleanup)
                admin.shows("producerConnection -g producers -t orders", "JAVA")
                shown = admin(f"producer -b 127.0.0.1:{port}")
                said.append(set(re.findall(_PRODUCER, shown)))
                assert said[-1], shown
            eventually(lambda: not route(address, "TBW102"))
    ours, theirs = said
    assert ours == theirs


def _start_client(rocketmq: RocketMq, name_server: str, cleanup: ExitStack) -> None:
    """Start a client with a producer and a consumer, to be ended by `cleanup`."""
    client = rocketmq.start(
        rocketmq.user_home(),
        *(Path(__file__).with_name("Accounts.java"), name_server, "orders", "nobody", "no-secret"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    cleanup.callback(client.communicate)
    cleanup.callback(client.kill)
