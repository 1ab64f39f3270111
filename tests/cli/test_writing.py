"""The commands that write, on store processes as `rmqstore serve` starts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.cli.commands.administration import wait_until_closed
from rmqstore_spark.client import StoreClient
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.server.process import _replicates
from tests.broker.broker import ask, message
from tests.cli.conftest import Golden, Rmqstore
from tests.cli.processes import HEAVY, modules_of, run
from tests.support.accounts import SECRET, account_file, guarded
from tests.support.processes.ports import free_port
from tests.support.processes.serving import StoreProcess, block_of
from tests.support.waiting import eventually

COMMANDS_READING = (["topics"], ["info"], ["read", "-n", "1"], ["groups"], ["tail"])


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    folder = tmp_path_factory.mktemp("served")
    with StoreProcess(folder / "store", folder) as made:
        made.ready()
        yield made


@pytest.fixture(scope="module")
def endpoint(process: StoreProcess) -> str:
    return process.endpoint


def put(*args: str, lines: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    """`rmqstore put`, which reads a real standard input."""
    return run("put", *args, input=lines, **kwargs)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command that failed."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr


def test_segments_are_listed_and_removed_by_hand(tmp_path: Path, rmqstore: Rmqstore) -> None:
    archive, store = tmp_path / "archive", tmp_path / "store"
    settings = ("--set", "mappedFileSizeCommitLog=4096", "--set", f"archiveTo={archive}")
    with StoreProcess(store, tmp_path, *settings) as process:
        lines = "".join(f"{'x' * 500}{n}\n" for n in range(40))
        assert put(process.endpoint, "-t", "old", lines=lines).returncode == 0
        rmqstore("flush", process.endpoint)
        early = rmqstore("expire", process.endpoint, "--before", "2020-01-01")
        assert early.text == "No segment is old enough; the last one always stays.\n"
        listed = rmqstore("expire", process.endpoint, "--before", "2100-01-01").text
        found = re.findall(r"^(\d{20}) +4096 +20\S+Z +20\S+Z$", listed, re.MULTILINE)
        assert found == sorted(path.name for path in (store / "commitlog").glob("0*"))[:-1]
        assert f"{len(found)} segments, {4096 * len(found)} bytes. Nothing was removed" in listed
        (archive / "commitlog").mkdir(parents=True)
        failed = rmqstore("expire", process.endpoint, "--before", "2100-01-01", "--yes", code=2)
        assert f"{archive} is not empty, and not an archive (commitlog)" in failed.stderr
        assert "expiry" in rmqstore("stats", process.endpoint).text
        shutil.rmtree(archive)
        done = rmqstore("expire", process.endpoint, "--before", "2100-01-01", "--yes").text
        assert done.endswith(f"{len(found)} segments, {4096 * len(found)} bytes were removed.\n")
        left = len(rmqstore("read", process.endpoint, "-t", "old", "--json").messages)
        assert f"expired          {len(found)} segments" in rmqstore("stats", process.endpoint).text
        kept = len(rmqstore("read", str(archive), "-t", "old", "--json").messages)
        assert (left > 0, left + kept) == (True, 40)
    wrong = rmqstore("expire", "rmq://127.0.0.1:1", "--before", "yesterday", code=2)
    assert "--before must be milliseconds since 1970" in wrong.stderr


def test_what_takes_no_messages_needs_no_arrow(endpoint: str) -> None:
    for args in (("create-topic", endpoint, "quick"), ("flush", endpoint), ("stats", endpoint)):
        printed, modules = modules_of(*args)
        assert printed
        assert not HEAVY & modules


_NOT_FOR_READING = {"asyncio", "fsspec", "rich", "ssl", "rmqstore_spark.files.systems.remote"}
_FOR_ACTIONS = {"rmqstore_spark.client.store_client", "rmqstore_spark.wire.messages"}


def test_what_reads_through_a_process_needs_little(endpoint: str) -> None:
    assert put(endpoint, "-t", "seen", lines="a").returncode == 0
    of_topic = ("-t", "seen")
    for args in (("topics",), ("info",), ("read", *of_topic), ("tail", *of_topic)):
        printed, modules = modules_of(args[0], endpoint, *args[1:])
        assert printed
        assert "rmqstore_spark.client.endpoint_files" in modules
        assert not _NOT_FOR_READING & modules
        assert args == ("info",) or not _FOR_ACTIONS & modules  # it asks for the process's figures


def test_lines_become_messages(endpoint: str, rmqstore: Rmqstore) -> None:
    done = put(
        endpoint, "-t", "lines", "--tag", "t1", "--key", "k1", "--key", "k2", lines="a\n\nkörper"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 message(s) put to topic lines\n"
    found = rmqstore("read", endpoint, "-t", "lines", "--json").messages
    assert [message["body"] for message in found] == ["a", "", "körper"]
    assert {message["tags"] for message in found} == {"t1"}
    assert [message["keys"] for message in found] == [["k1", "k2"]] * 3
    assert len({message["queueId"] for message in found}) == 1  # the keys decide
    assert len({message["uniqKey"] for message in found}) == 3


def test_lines_with_a_delay_level_are_delivered_later(endpoint: str, rmqstore: Rmqstore) -> None:
    lines = '{"body": "late"}\n{"body": "at once", "delayTimeLevel": 0}\n'
    done = put(endpoint, "-t", "later", "--delay-level", "1", "--json", lines=lines)
    assert done.returncode == 0, done.stderr

    def arrived() -> list[tuple[str, str | None]]:
        found = rmqstore("read", endpoint, "-t", "later", "--json").messages
        return [(message["body"], message["properties"].get("DELAY")) for message in found]

    eventually(lambda: len(arrived()) == 2)
    assert sorted(arrived()) == [("at once", None), ("late", "1")]
    waited = rmqstore("read", endpoint, "-t", "SCHEDULE_TOPIC_XXXX", "--json").messages
    assert [message["body"] for message in waited] == ["late"]
    assert "delayed          1 delivered, 0 skipped" in rmqstore("stats", endpoint).text


def test_the_offsets_of_a_group_are_reset(endpoint: str, rmqstore: Rmqstore) -> None:
    rmqstore("create-topic", endpoint, "resets", "--queues", "2")
    put(endpoint, "-t", "resets", "-q", "0", lines="1\n2\n3\n")
    put(endpoint, "-t", "resets", "-q", "1", lines="4\n")
    reset = ("reset-offset", endpoint, "lake", "-t", "resets")
    shown = rmqstore(*reset, "--latest").text
    assert "Nothing was changed. Add --yes" in shown
    assert not groups(endpoint, rmqstore)
    assert rmqstore(*reset, "--latest", "--yes").text.endswith(
        "2 offset(s) of group lake have changed\n"
    )
    assert groups(endpoint, rmqstore) == [("resets", 0, 3, 0), ("resets", 1, 1, 0)]
    rmqstore(*reset, "--offset", "1", "-q", "0", "--yes")
    assert groups(endpoint, rmqstore) == [("resets", 0, 1, 2), ("resets", 1, 1, 0)]
    rmqstore(*reset, "--at", "2020-01-01", "--yes")
    assert groups(endpoint, rmqstore) == [("resets", 0, 0, 3), ("resets", 1, 0, 1)]
    for yes in ((), ("--yes",)):
        past = rmqstore(*reset, "--offset", "4", "-q", "0", *yes, code=2).stderr
        assert "--offset 4 is past the end of queue 0 of the topic resets: it ends at 3" in past
    for wrong in ((), ("--earliest", "--latest")):
        assert "Give one of --earliest" in rmqstore(*reset, *wrong, code=2).stderr
    assert "--offset needs --queue" in rmqstore(*reset, "--offset", "1", code=2).stderr
    assert groups(endpoint, rmqstore) == [("resets", 0, 0, 3), ("resets", 1, 0, 1)]


def groups(endpoint: str, rmqstore: Rmqstore) -> list[tuple[str, int, int, int]]:
    """Return topic, queueId, offset and lag of the group "lake"."""
    described = json.loads(rmqstore("groups", endpoint, "--json").text)["groups"]
    return [
        (topic["topic"], queue["queueId"], queue["offset"], queue["lag"])
        for group in described
        for topic in group["topics"]
        for queue in topic["queues"]
    ]


def test_lines_without_keys_take_turns_and_a_queue_can_be_named(
    endpoint: str, rmqstore: Rmqstore
) -> None:
    rmqstore("create-topic", endpoint, "turns", "--queues", "3")
    assert put(endpoint, "-t", "turns", lines="1\n2\n3\n").returncode == 0
    assert put(endpoint, "-t", "turns", "-q", "2", lines="4\n5\n").returncode == 0
    found = rmqstore("read", endpoint, "-t", "turns", "--json").messages
    assert [message["queueId"] for message in found] == [0, 1, 2, 2, 2]


def test_what_read_prints_can_be_put(endpoint: str, golden: Golden, rmqstore: Rmqstore) -> None:
    printed = rmqstore("read", golden("basic") / "store", "--json", "-n", "50")
    done = put(endpoint, "--json", lines=printed.text)
    assert done.stdout == "50 message(s) put\n", done.stderr
    again = rmqstore("read", endpoint, "--json").messages
    kept = ("topic", "queueId", "tags", "keys", "body", "bodyEncoding", "flag", "bornTimestamp")
    wanted = [{name: message[name] for name in kept} for message in printed.messages]
    found = [{name: message[name] for name in kept} for message in again]
    assert all(message in found for message in wanted)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no JSON", "Line 2 of stdin is not a message"),
        ('{"bdy": "1"}', "'bdy' is unknown; the names are topic, queueId"),
        ('{"body": 1}', "body must be a string, not 1"),
        ('{"body": "x", "queueId": 99}', "which has 8: 0 to 7"),
        ('{"body": "x", "keys": ["a b"]}', "a key contains a space"),
        ('{"body": "!", "bodyEncoding": "base64"}', "is not valid base64"),
    ],
)
def test_lines_that_are_no_messages(endpoint: str, line: str, said: str) -> None:
    text = refused(put(endpoint, "--json", "-t", "wrong", lines=f'{{"body": "x"}}\n{line}\n'))
    assert said in text
    assert "Line 2" in text
    assert "message(s) were put before the error." in text


def test_a_put_of_nothing_or_of_no_message_creates_no_topic(
    endpoint: str, rmqstore: Rmqstore
) -> None:
    refused(put(endpoint, "--json", "-t", "never-1", lines="no json\n"))
    put(endpoint, "-t", "never-2", lines="")
    names = [topic["topic"] for topic in rmqstore("topics", endpoint, "--json").document["topics"]]
    assert not [name for name in names if name.startswith("never")]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "it has no topic; give --topic"),
        (["-t", "a/b"], "'a/b' is not a topic name"),
        (["-t", "orders", "--key", "k 1"], "give --key twice"),
        (["-t", "rmq_sys_RMQSTORE_COMMIT"], "rmq_sys_RMQSTORE_COMMIT"),
    ],
)
def test_options_of_put_that_are_wrong(endpoint: str, args: list[str], said: str) -> None:
    assert said in refused(put(endpoint, *args, lines="x\n"))


def test_topics_are_made_changed_and_deleted(endpoint: str, rmqstore: Rmqstore) -> None:
    made = rmqstore("create-topic", endpoint, "bills", "--queues", "3").text
    assert made == "topic bills: 3 queues to read, 3 to write, perm 6\n"
    args = ("--read-queues", "5", "--write-queues", "2", "--perm", "4")
    changed = rmqstore("create-topic", endpoint, "bills", *args).text
    assert changed == "topic bills: 5 queues to read, 2 to write, perm 4\n"
    assert "NO_PERMISSION" in refused(put(endpoint, "-t", "bills", lines="x\n"))
    assert rmqstore("delete-topic", endpoint, "bills").text == "topic bills is deleted\n"
    names = [topic["topic"] for topic in rmqstore("topics", endpoint, "--json").document["topics"]]
    assert "bills" not in names
    assert "there is no topic 'bills'" in rmqstore("delete-topic", endpoint, "bills", code=2).stderr


def test_topics_that_cannot_be(endpoint: str, rmqstore: Rmqstore) -> None:
    assert "not a topic name" in rmqstore("create-topic", endpoint, "a/b", code=2).stderr
    own = "rmq_sys_RMQSTORE_COMMIT"
    assert own in rmqstore("delete-topic", endpoint, own, code=2).stderr
    assert "--queues" in rmqstore("create-topic", endpoint, "x", "--queues", "0", code=2).stderr


def test_flush_tells_how_far(endpoint: str, rmqstore: Rmqstore) -> None:
    put(endpoint, "-t", "flushed", lines="x\n")
    said = rmqstore("flush", endpoint).text
    end = rmqstore("stats", endpoint, "--json").document["commitLogMaxOffset"]
    assert said == f"flushed up to {end}\n"


def test_figures(endpoint: str, rmqstore: Rmqstore) -> None:
    rmqstore("create-topic", endpoint, "counted", "--queues", "2")
    put(endpoint, "-t", "counted", lines="1\n2\n3\n")
    figures = rmqstore("stats", endpoint, "--json").document
    assert figures["state"] == "RUNNING"
    assert figures["queues"]["counted"] == {"0": [0, 2], "1": [0, 1]}
    assert figures["putLatency"]["count"] >= 1
    shown = rmqstore("stats", endpoint).text
    assert re.search(r"^state +RUNNING$", shown, re.MULTILINE)
    assert re.search(r"^uptime +\d", shown, re.MULTILINE)
    assert re.search(rf"^put +{figures['putMessages']} messages", shown, re.MULTILINE)
    queues = [line.split() for line in rmqstore("stats", endpoint, "--queues").lines]
    assert ["counted", "0", "0", "2", "2"] in queues


def test_figures_of_a_store_with_nothing_but_a_commit(tmp_path: Path, rmqstore: Rmqstore) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as process:
        shown = rmqstore("stats", process.endpoint).text
        assert re.search(r"^put latency +-$", shown, re.MULTILINE)
        assert re.search(r"^queues +0 in 0 topic", shown, re.MULTILINE)
        rows = block_of([b"a"] * 5)
        with StoreClient(process.endpoint) as client:
            with client.stage_stream() as stream:
                stream.send(rows)
                request = CommitRequest(WriterId("stream", "query", 1), (stream.finish(),))
            for status in ("COMMITTED", "ALREADY_COMMITTED"):
                assert client.commit(request).status == status
        figures = rmqstore("stats", process.endpoint, "--json").document
        # The commit's marker does not count as a message.
        assert (figures["putMessages"], figures["putBytes"]) == (5, rows.nbytes)
        assert (figures["commitLatency"]["count"], figures["putLatency"]["count"]) == (1, 0)
        shown = rmqstore("stats", process.endpoint).text
        assert re.search(r"^commit latency +mean ", shown, re.MULTILINE)


def test_stop(tmp_path: Path, rmqstore: Rmqstore) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as process:
        endpoint = process.endpoint
        assert rmqstore("stop", endpoint).text == f"{endpoint} has stopped\n"
        # The process may not have ended yet.
        assert rmqstore("info", tmp_path / "store", "--json").document["state"] == "closed"
        with StoreWriter.open(tmp_path / "store"):
            pass
        assert process.wait() == 0
    said = rmqstore("stats", endpoint, code=2).stderr
    assert f"Nothing listens on {endpoint}. Start a store process there: rmqstore serve." in said


def test_stop_without_waiting(tmp_path: Path, rmqstore: Rmqstore) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as process:
        endpoint = process.endpoint
        assert rmqstore("stop", endpoint, "--timeout", "0").text == f"{endpoint} is stopping\n"
        assert process.wait() == 0


def test_stop_waits_no_longer_than_its_bound(tmp_path: Path, rmqstore: Rmqstore) -> None:
    with StoreProcess(tmp_path / "store", tmp_path) as process:
        endpoint = process.endpoint
        with StoreClient(endpoint) as client:
            client.stats()
            process.signal(signal.SIGSTOP)
            try:
                with pytest.raises(ServiceError, match=r"is still stopping after 0\.1 s"):
                    wait_until_closed(client.endpoint, 0.1)
            finally:
                process.signal(signal.SIGCONT)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give --store PATH"),
        (["--store", "S", "--set", "flushDiskTyp=SYNC_FLUSH"], "Did you mean flushDiskType?"),
        (["--store", "S", "--set", "flushDiskType"], "--set must be KEY=VALUE"),
        (["--store", "S", "--set", "flushDiskType=NOW"], "flushDiskType"),
        (["--store", "S", "--port", "70000"], "--port: listenPort"),
        (["--store", "S", "--log-format", "xml"], "--log-format must be text or json"),
        (["--store", "S", "--host", "0.0.0.0"], "set aclEnable and aclPath"),
        (["--store", "S", "--port", "-1"], "leaves nothing to listen on: give listenSocket, or"),
        (["--store", "S", "--port", "-1", "--set=brokerRole=SLAVE"], "leaves nothing to listen on"),
        (
            ["--store", "S", "--port", "1", "--set=listenPort=2"],
            "--port gives listenPort the value 1, and --set gives it 2. Give one of them.",
        ),
        (["--config", "nowhere.conf"], "nowhere.conf could not be read"),
        (["--stroe", "S"], "--stroe"),
    ],
)
def test_a_store_that_cannot_be_served_as_told(args: list[str], said: str, tmp_path: Path) -> None:
    store = str(tmp_path / "S")
    done = run("serve", *(store if arg == "S" else arg for arg in args))
    assert said in refused(done)
    assert done.stdout == ""
    assert not (tmp_path / "S" / "abort").exists()


def test_keys_of_a_file_that_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "store.conf"
    file.write_text(f"storePathRootDir={tmp_path / 'store'}\nflushDiskTpye=SYNC_FLUSH\n")
    said = refused(run("serve", "--config", file))
    assert str(file) in said
    assert "flushDiskType" in said


def test_a_locked_store_and_a_port_in_use(process: StoreProcess, tmp_path: Path) -> None:
    said = refused(run("serve", "--store", process.path, "--port", "0"))
    assert f"{process.path} is open for writing in another process" in said
    assert "open for writing in another process" in refused(run("recover", process.path))
    port = process.endpoint.rpartition(":")[2]
    said = refused(run("serve", "--store", tmp_path / "other", "--port", port))
    assert "another process listens there already" in said


def test_the_ready_file_and_the_metrics(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path, "--set=metricsPromExporterPort=0") as process:
        ready = process.ready()
        assert ready["endpoints"] == [ready["endpoint"]]
        host, _, port = ready["metrics"].rpartition(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        with urllib.request.urlopen(f"http://{ready['metrics']}/healthz") as answer:
            assert json.load(answer) == {"state": "RUNNING"}
        # The line comes after the file.
        eventually(lambda: f"metrics on http://{ready['metrics']}/metrics" in process.output)
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert not process.ready_file.exists()


def test_a_process_for_rocketmqs_clients_alone(tmp_path: Path) -> None:
    port = free_port()
    settings = ("--clients=rocketmq", f"--port={port}", "--set=vipListenPort=0")
    with StoreProcess(
        tmp_path / "store", tmp_path, *settings, "--set=metricsPromExporterPort=0"
    ) as process:
        ready = process.ready()
        assert (ready["endpoint"], ready["endpoints"]) == (None, [])
        assert ready["broker"] == f"127.0.0.1:{port}"
        assert ask(ready["broker"], message(b"one"))[0].code == 0
        with urllib.request.urlopen(f"http://{ready['metrics']}/healthz") as health:
            assert json.load(health) == {"state": "RUNNING"}
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        said = f"running {tmp_path / 'store'}; broker on 127.0.0.1:{port}; metrics on http://"
        assert said in process.output
    with Store.open(tmp_path / "store") as store:
        assert store.queue("orders", 0).max_offset == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"brokerRole": "SYNC_MASTER"}, True),  # slaves connect at listenPort + 1
        ({"haListenPort": "0"}, True),
        ({"brokerRole": "SLAVE", "haMasterAddress": "127.0.0.1:10912"}, True),
        ({"brokerRole": "SLAVE"}, False),
        ({}, False),
    ],
)
def test_who_serves_slaves_or_follows_alone(settings: dict[str, str], expected: bool) -> None:
    assert _replicates(StoreConfig().with_overrides(settings)) == expected


def test_a_master_and_its_slave_that_serve_no_endpoint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    listening = ("--clients=rocketmq", "--set=vipListenPort=0")
    with StoreProcess(
        tmp_path / "master", tmp_path / "a", "--set=haListenPort=0", *listening
    ) as master:
        told = master.ready()
        slave = (
            "--port=-1", "--set=brokerRole=SLAVE", "--set=brokerId=1",
            f"--set=haMasterAddress={told['slaves']}",
        )  # fmt: skip
        with StoreProcess(tmp_path / "slave", tmp_path / "b", *slave) as copy:
            assert copy.ready()["endpoint"] is None
            assert ask(told["broker"], message(b"one"))[0].code == 0
            with Store.open(tmp_path / "slave") as store:
                eventually(lambda: _bodies(store) == [b"one"])


def _bodies(store: Store) -> list[bytes]:
    store.refresh()
    return [
        body
        for queue in store.queues(["orders"])
        for batch in store.read(queue.topic, queue.queue_id)
        for body in batch["body"].to_pylist()
    ]


def accounts(tmp_path: Path) -> tuple[list[str], Path, Path]:
    """What a process with an account is told; the files of a right and of a wrong client."""
    given = guarded(tmp_path / "accounts.yml")
    settings = ["--set=aclEnable=true", f"--set=aclPath={given['acl_path']}"]
    wrong = account_file(tmp_path / "wrong", secret="00" * 20)
    return settings, account_file(tmp_path / "mine"), wrong


def test_accounts(tmp_path: Path, rmqstore: Rmqstore) -> None:
    settings, mine, wrong = accounts(tmp_path)
    with StoreProcess(tmp_path / "store", tmp_path, *settings) as process:
        endpoint = process.endpoint
        for given in ((), ("--acl-file", str(wrong))):
            said = rmqstore(*given, "stats", endpoint, code=2).stderr
            assert "requires an account, or rejected yours" in said
            assert "requires an account, or rejected yours" in refused(
                run(*given, "put", endpoint, "-t", "a", input="x\n")
            )
        missing = rmqstore("--acl-file", tmp_path / "no", "stats", endpoint, code=2).stderr
        assert f"The access key file {tmp_path / 'no'} cannot be read" in missing
        rmqstore("--acl-file", mine, "create-topic", endpoint, "a")
        shown = rmqstore("--acl-file", mine, "topics", endpoint).text
        assert shown.splitlines()[1].split()[0] == "a"
        assert SECRET not in process.output


@pytest.mark.parametrize("command", [["stats"], ["flush"], ["topics"], ["put", "-t", "a"]])
def test_options_of_a_process_stand_anywhere(tmp_path: Path, command: list[str]) -> None:
    settings, *files = accounts(tmp_path)
    good, bad = (["--acl-file", str(file)] for file in files)
    with StoreProcess(tmp_path / "store", tmp_path, *settings) as process:
        endpoint = process.endpoint
        for line in (
            [*good, *command, endpoint],
            [*command, *good, endpoint],
            [*command, endpoint, *good],
            [*bad, *command, endpoint, *good],  # the one after the command wins
        ):
            ended = run(*line, input="x\n")
            assert ended.returncode == 0, ended.stderr
        said = refused(run(*good, *command, endpoint, *bad, input="x\n"))
        assert "rejected yours" in said


def test_a_certificate_and_its_key_may_stand_apart(tmp_path: Path, rmqstore: Rmqstore) -> None:
    cert, key = ("--tls-cert", tmp_path / "cert.pem"), ("--tls-key", tmp_path / "key.pem")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"rmqs://127.0.0.1:{free.getsockname()[1]}"
        for line in ((*cert, "stats", endpoint), ("stats", endpoint, *key)):
            assert "must be given together" in rmqstore(*line, code=2).stderr
        assert "key.pem" in rmqstore(*cert, "stats", endpoint, *key, code=2).stderr


@pytest.mark.parametrize("command", ["stats", "flush", "stop", "put"])
def test_endpoints_that_are_none(command: str) -> None:
    assert "is not an endpoint of a store process" in refused(run(command, "grcp://x", input=""))


def test_nothing_listens(rmqstore: Rmqstore) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"rmq://127.0.0.1:{free.getsockname()[1]}"
        assert f"Nothing listens on {endpoint}" in rmqstore("flush", endpoint, code=2).stderr
        assert f"Nothing listens on {endpoint}" in rmqstore("topics", endpoint, code=2).stderr


def test_readers_leave_no_descriptors_open(process: StoreProcess, rmqstore: Rmqstore) -> None:
    """The one that looks for idle connections copies each descriptor, once a second."""
    endpoint = process.endpoint
    put(endpoint, "-t", "looked-at", lines="x\n")
    folder = f"/proc/{process.process.pid}/fd"
    if not os.path.isdir(folder):
        pytest.skip("needs /proc")
    for command in COMMANDS_READING:
        rmqstore(command[0], endpoint, *command[1:])
    before = len(os.listdir(folder))
    for _ in range(2):
        for command in COMMANDS_READING:
            rmqstore(command[0], endpoint, *command[1:])
    assert len(os.listdir(folder)) <= before + 5  # a connection may live on for a moment


# ---- recover ----------------------------------------------------------------------------------


@pytest.fixture
def unclean(golden: Golden, tmp_path: Path) -> Path:
    """A copy of a store whose broker was killed."""
    return Path(shutil.copytree(golden("unclean") / "store", tmp_path / "unclean"))


def test_a_store_that_was_killed_is_recovered(
    unclean: Path, golden: Golden, rmqstore: Rmqstore
) -> None:
    found = rmqstore("recover", unclean, "--json").document
    assert found["clean"] is False
    assert found["cuts"] == []
    assert not (unclean / "abort").exists()
    (line,) = rmqstore("recover", unclean).lines
    assert line.startswith(
        f"The store was closed cleanly; its log goes from 0 to {found['logEnd']}"
    )
    rmqstore("verify", unclean)
    assert len((golden("unclean") / "records.jsonl").read_text().splitlines()) == len(
        rmqstore("read", unclean, "--scan", "--json", "-c", "physicalOffset").messages
    )


def test_damage_is_cut_off_only_when_told_so(unclean: Path, rmqstore: Rmqstore) -> None:
    """Promise 4."""
    offsets = [
        message["physicalOffset"]
        for message in rmqstore(
            "read", unclean, "--scan", "--json", "-c", "physicalOffset"
        ).messages
    ]
    log = unclean / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(offsets[2] - 5)  # in the properties or body of the second record
        file.write(bytes(4))
        file.seek(offsets[1] + 8)  # its body's CRC
        file.write(bytes(4))
    before = log.read_bytes()
    said = rmqstore("recover", unclean, code=2).stderr
    assert str(log) in said
    assert f"at offset {offsets[1]}" in said
    assert "rmqstore recover --cut" in said
    assert said.strip().splitlines()[-1] in refused(run("serve", "--store", unclean, "--port", "0"))
    assert log.read_bytes() == before

    found = rmqstore("recover", "--cut", unclean, "--json").document
    assert found["logEnd"] == offsets[1]
    assert found["droppedEntries"] == len(offsets) - 1
    assert sum(cut["end"] - cut["start"] for cut in found["cuts"]) > 1_000_000
    assert Path(found["cuts"][0]["kept"]).read_bytes()[:100] == before[offsets[1] :][:100]
    rmqstore("verify", unclean)
    kept = Path(found["cuts"][0]["kept"]).parent
    rest = rmqstore(
        *("read", unclean, "--scan", "--skip-damaged", "--commitlog-path", kept),
        *("--json", "-c", "physicalOffset"),
    ).messages
    assert [message["physicalOffset"] for message in rest] == offsets[2:]


def test_damage_in_an_old_index_file_goes_with_a_rebuild(
    golden: Golden, tmp_path: Path, rmqstore: Rmqstore
) -> None:
    store = shutil.copytree(golden("basic") / "store", tmp_path / "store")
    index = min((store / "index").iterdir())
    data = bytearray(index.read_bytes())
    data[-20 * 50 + 6] ^= 1  # of the position of a key in the middle
    index.write_bytes(data)
    assert rmqstore("recover", store, "--json").document["removedIndexFiles"] == []
    assert "[index-entry]" in rmqstore("verify", store, code=1).text
    assert "Removed index files" in rmqstore("recover", "--rebuild", store).text
    rmqstore("verify", store)


def test_what_is_no_store_is_not_made_one(tmp_path: Path, rmqstore: Rmqstore) -> None:
    assert "There is no store to recover" in rmqstore("recover", tmp_path / "no", code=2).stderr
    assert "There is no store to recover" in rmqstore("recover", tmp_path, code=2).stderr
    assert list(tmp_path.iterdir()) == []
