from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqstore_spark.engine import StoreConfig
from rmqstore_spark.engine.config.broker_keys import BROKER_KEYS, STRAY_KEYS
from rmqstore_spark.engine.config.properties_file import parse_properties
from rmqstore_spark.engine.config.table import KEYS
from rmqstore_spark.errors import OptionError
from tools.configuration import CONFIGURATION_PAGE, STORE_CONF, configuration_page, store_conf

SAMPLES: dict[str, st.SearchStrategy[Any]] = {
    "URL": st.sampled_from(["", "/mnt/archive", "s3://bucket/a=b"]),
    "hours, 0 to 23": st.sampled_from(["04", "0;12;23"]),
    "part, above 0 to 1": st.sampled_from(["1", "0.85", ".5"]),
    "IP address": st.sampled_from(["10.0.0.7", "::1", "2001:db8::17"]),
    "host:port": st.sampled_from(["", "broker-1:10912", "10.0.0.7:1", "[::1]:65535"]),
    "`earliest`, `latest` or an offset": st.sampled_from(["earliest", "latest", "0", "1073741824"]),
    "delays": st.sampled_from(["1s", "1s 5m 2h 1d"]),
    "addresses": st.sampled_from(["", "ns1:9876", "10.0.0.7:9876;[::1]:1"]),
    "name": st.sampled_from(["DefaultCluster", "c-1.a"]),
    "networks": st.sampled_from(["10.0.0.0/8", "::1/128,10.1.2.3/32"]),
    "path": st.sampled_from(["", "/data/store", "/data/a b/#x", "C:\\x", "/täst=1"]),
    "text": st.sampled_from(["", "broker-b", "a = b", "!x", "ü"]),
    "true or false": st.booleans().map(lambda value: str(value).lower()),
}


def samples(kind: str) -> st.SearchStrategy[str]:
    """Values that a key of some kind takes, by how the documentation describes it."""
    if kind in SAMPLES:
        return SAMPLES[kind]
    if " or `" in kind:
        return st.sampled_from([word.strip("` ") for word in kind.split(" or ")])
    bounds = kind.rpartition(", ")[2]
    least, _, most = bounds.partition(" to ")
    if bounds.endswith(" or more"):
        least, most = bounds.split(" ")[0], str(2**40)
    return st.integers(int(least), int(most)).map(str)


SETTINGS = st.fixed_dictionaries({}, optional={key.name: samples(key.values) for key in KEYS})


@given(SETTINGS)
def test_what_is_written_is_read_again(settings: dict[str, str]) -> None:
    # the one rule between two keys
    settings["maxBlockBytes"] = str(1 << 30)
    config = StoreConfig().with_overrides(settings)
    assert StoreConfig().with_overrides(parse_properties(config.to_properties())) == config


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    path.write_text("# a comment\nflushDiskType = sync_flush\nbrokerIP1=[::1]\nlistenPort=1\n")
    config = StoreConfig.from_file(path)
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.store_host == bytes(15) + b"\1" + (1).to_bytes(4, "big")
    assert config.store_host_v6


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flushDiskTyp=SYNC_FLUSH", ["'flushDiskTyp'", "Did you mean flushDiskType?"]),
        ("MAXMESSAGESIZE=1", ["Did you mean maxMessageSize?"]),
        ("qwertzuiop=1", ["'qwertzuiop'", "docs/configuration.md"]),
        ("flushDiskType=SOMETIMES", ["ASYNC_FLUSH or SYNC_FLUSH", "'SOMETIMES'"]),
        ("brokerRole=MASTER", ["must be ASYNC_MASTER or SYNC_MASTER or SLAVE"]),
        ("haListnPort=1", ["Did you mean haListenPort?"]),
        ("enableMultiDispatch=True", ["enableMultiDispatch=True", "one queue only"]),
        ("maxIndexNum=1", ["from 2 to 268435456", "'1'"]),
        ("maxIndexNum=1e3", ["must be a whole number"]),
        ("messageIndexEnable=yes", ["must be true or false"]),
        ("diskSpaceCleanForciblyRatio=85", ["above 0 and at most 1, such as 0.85", "'85'"]),
        ("diskSpaceWarningLevelRatio=0", ["above 0 and at most 1"]),
        ("brokerIP1=my-host", ["must be an IPv4 or IPv6 address, or localhost"]),
        ("brokerName=a\\u0007", ["control characters"]),
        ("maxMessageSize=4194305\nmaxBlockBytes=4194304", ["larger than maxBlockBytes"]),
        ("a=\\u1", ["not a properties file", "line 1"]),
    ],
)
def test_what_is_wrong_is_named(line: str, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "store.conf"
    path.write_text(line)
    with pytest.raises(OptionError) as caught:
        StoreConfig.from_file(path)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none\.conf could not be read: No such file"):
        StoreConfig.from_file(tmp_path / "none.conf")
    (tmp_path / "huge.conf").write_bytes(b"#" * (2 << 20))
    with pytest.raises(OptionError, match="larger than"):
        StoreConfig.from_file(tmp_path / "huge.conf")
    (tmp_path / "latin.conf").write_bytes(b"brokerName=\xfc")
    with pytest.raises(OptionError, match="not a properties file"):
        StoreConfig.from_file(tmp_path / "latin.conf")


def test_a_brokers_own_file_can_be_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = SYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
        "rocketmqHome=/opt/mq\ncheckCRCOnRecover=false\nsendThreadPoolQueueCapacity=1\n"
        "enableDLegerCommitLog=false\ntransientStorePoolEnable=true\naclEnable=true\n"
        "rmqAddressServerDomain=x\nstorePathConsumeQueue=/x\nmapedFileSizeCommitLog=1\n"
        "brokerIP1=LocalHost\n"
    )
    with caplog.at_level(logging.WARNING):
        config = StoreConfig.from_file(path)
    assert config == StoreConfig(broker_role="SYNC_MASTER", file_reserved_time=48, acl_enable=True)
    stray, alone, pool = sorted(
        record.getMessage().removeprefix(f"{path}: ") for record in caplog.records
    )
    assert alone == (
        "ignored keys that only a broker uses: checkCRCOnRecover, "
        "rmqAddressServerDomain, rocketmqHome, "
        "sendThreadPoolQueueCapacity."
    )
    assert pool.startswith("transientStorePoolEnable=true: ignored")
    assert stray == (
        "ignored keys that a broker does not know either: mapedFileSizeCommitLog, "
        "storePathConsumeQueue."
    )


def test_a_key_is_called_as_rocketmq_calls_it() -> None:
    shared = {key.name for key in KEYS if not key.own}
    newer = {"bindAddress", "metricsPromExporterHost", "metricsPromExporterPort"}  # of 5.x
    newer |= {"deletePhysicFilesBatchMax"}
    properties = {"diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio"}  # given with -D
    assert shared - newer - properties <= BROKER_KEYS
    assert {key.name for key in KEYS if key.own} & (BROKER_KEYS | STRAY_KEYS) == set()
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_the_environment_overrides(caplog: pytest.LogCaptureFixture) -> None:
    given = {
        "RMQSTORE_FLUSH_DISK_TYPE": "SYNC_FLUSH",
        "RMQSTORE_BROKER_IP1": "10.1.2.3",
        "RMQSTORE_KERNEL": "plain",
        "RMQSTORE_SERVICE_HOST": "10.0.0.1",
        "PATH": "/bin",
    }
    with caplog.at_level(logging.WARNING):
        config = StoreConfig().with_environment(given)
    assert (config.flush_disk_type, config.broker_ip1) == ("SYNC_FLUSH", "10.1.2.3")
    assert [r.getMessage() for r in caplog.records if "RMQSTORE_SERVICE_HOST" in r.getMessage()]
    assert len(caplog.records) == 1
    with pytest.raises(OptionError, match="RMQSTORE_LISTEN_PORT must be a whole number"):
        StoreConfig().with_environment({"RMQSTORE_LISTEN_PORT": "x"})


def test_the_pages_made_of_the_table_are_up_to_date() -> None:
    hint = "run `python -m tools.docs`"
    assert CONFIGURATION_PAGE.read_text(encoding="utf-8") == configuration_page(), hint
    assert STORE_CONF.read_text(encoding="utf-8") == store_conf(), hint


def test_the_file_with_every_key_gives_the_defaults() -> None:
    assert StoreConfig.from_file(STORE_CONF) == StoreConfig()
    switched_on = "".join(
        line[1:] + "\n" if re.match(r"#\w+=", line) else ""
        for line in STORE_CONF.read_text(encoding="utf-8").splitlines()
    )
    assert list(parse_properties(switched_on)) == [key.name for key in KEYS]
    assert StoreConfig().with_overrides(parse_properties(switched_on)) == StoreConfig()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"flush_disk_type": "SYNC"},
            "flush_disk_type must be ASYNC_FLUSH or SYNC_FLUSH, not 'SYNC'",
        ),
        ({"flush_interval_commit_log": 0}, "flush_interval_commit_log must be a whole number"),
        ({"max_topics": "many"}, "max_topics must be a whole number"),
        ({"auto_create_topic_enable": 1}, "auto_create_topic_enable must be true or false"),
        ({"acl_path": None}, "acl_path must be"),
    ],
)
def test_values_given_in_python_are_checked_too(given: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        StoreConfig(**given)


def test_values_given_in_python_take_their_usual_form(tmp_path: Path) -> None:
    config = StoreConfig(flush_disk_type="sync_flush", acl_path=tmp_path, broker_ip1="localhost")  # type: ignore[arg-type]
    assert config.flush_disk_type == "SYNC_FLUSH"
    assert config.acl_path == str(tmp_path)
    assert config.broker_ip1 == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "near"), [("broker_nam", "broker_name"), ("flushDiskType", "flush_disk_type")]
)
def test_an_unknown_argument_is_reported_with_a_suggestion(name: str, near: str) -> None:
    given: dict[str, Any] = {name: "x"}
    with pytest.raises(OptionError, match=f"no argument '{name}'. Did you mean {near}?"):
        StoreConfig(**given)
    with pytest.raises(OptionError, match=r"no argument 'brokerNam'\. Did you mean broker_name"):
        replace(StoreConfig(), brokerNam="x")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("given", "vip"),
    [
        ({"listen_port": 0}, 0),
        ({"listen_port": 0, "vip_listen_port": 9}, 9),
        ({"listen_port": 10911}, -1),
    ],
)
def test_the_port_below_one_that_was_free_is_not_taken(given: dict[str, Any], vip: int) -> None:
    config = StoreConfig(**given).listening_on(20000)
    assert (config.listen_port, config.vip_listen_port) == (20000, vip)
