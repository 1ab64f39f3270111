"""What a store process says of itself while it refuses messages, and once it takes them again."""

from __future__ import annotations

import json
import os
import re
import resource
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import RefusedError
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.server.monitoring import Monitoring
from tests.consensus.driver.members import GROUP, MemberProcess, addresses, as_peers
from tests.engine.group.stores import StoreProcess as GroupStore
from tests.engine.group.stores import group_of
from tests.fault.rounds.disk import fill, opened, small_disk
from tests.support.processes.alerts import firing, recommended
from tests.support.processes.serving import StoreProcess, block_of, eventually
from tests.support.stores.storing import messages

MONITORING = Path(__file__).parents[2] / "conf" / "monitoring"

SMALL_FILES = (
    "--set=mappedFileSizeConsumeQueue=4000",
    "--set=maxHashSlotNum=500",
    "--set=maxIndexNum=3000",
    "--set=diskMaxUsedSpaceRatio=100",
    "--set=metricsPromExporterPort=0",
)


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
        return str(answer.read().decode())


def health(address: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://{address}/healthz", timeout=60) as answer:
            return answer.status, json.load(answer)["state"]
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["state"]


@contextmanager
def file_size_limit(pid: int, size: int) -> Iterator[None]:
    """Let a process make no file that is larger: so a disk without room looks to it."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def put_status(endpoint: str, block: U1) -> str:
    try:
        with StoreClient(endpoint, retries=0) as client, client.put_stream() as stream:
            return str(stream.put(block).status)
    except RefusedError as error:
        return error.status


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="prlimit is Linux's")
def test_a_segment_that_cannot_be_made_shows_and_passes(tmp_path: Path) -> None:
    """Every put failed, and `/healthz` stayed 200."""
    large = block_of([b"a" * 900_000])
    with StoreProcess(tmp_path / "store", tmp_path, *SMALL_FILES) as process:
        address = process.ready()["metrics"]
        assert put_status(process.endpoint, block_of([b"a" * 300_000])) == "PUT_OK"
        before = metrics(address)
        assert firing(before, before) - {"RmqstoreDiskFull"} == set()
        with file_size_limit(process.process.pid, 400_000):
            assert put_status(process.endpoint, large) == "CREATE_MAPEDFILE_FAILED"
            assert health(address) == (503, "DISK_FULL")
            fired = firing(before, metrics(address))
            assert {"RmqstoreRefuses", "RmqstorePutsFail"} <= fired
            assert 'rmqstore_put_failures_total{status="CREATE_MAPEDFILE_FAILED"} ' in metrics(
                address
            )
        eventually(lambda: health(address) == (200, "RUNNING"))
        now = metrics(address)
        assert firing(now, now) - {"RmqstoreDiskFull"} == set()
        assert put_status(process.endpoint, large) == "PUT_OK"
        accepts = "The next segment was created: the store accepts messages again."
        eventually(lambda: accepts in process.output)  # it accepts them, and then says so
        assert process.output.count(accepts) == 1
        assert process.output.count("The store refuses messages until") == 1


@pytest.mark.fault
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
@pytest.mark.parametrize("left", [8 << 10, 100 << 10])
def test_a_disk_without_room_for_the_next_segment(tmp_path: Path, left: int) -> None:
    """By its ratio it has room: all of it may be used."""
    with (
        small_disk(tmp_path) as disk,
        opened(disk) as store,
        closing(Monitoring(store.stats, "127.0.0.1", 0)) as monitoring,
    ):
        ballast = fill(disk, left)
        before = metrics(monitoring.address)
        while store.put_batch(messages([b"b" * 30_000])).ok:
            pass
        assert health(monitoring.address) == (503, "DISK_FULL")
        assert {"RmqstoreRefuses", "RmqstorePutsFail"} <= firing(
            before, metrics(monitoring.address)
        )
        ballast.unlink()
        eventually(lambda: health(monitoring.address) == (200, "RUNNING"))
        assert store.put_batch(messages([b"b" * 30_000])).ok


def test_what_fails_is_counted_by_its_status(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path, *SMALL_FILES) as process:
        with StoreClient(process.endpoint, retries=0) as client:
            client.create_topic("orders", write_queue_nums=1)
        assert put_status(process.endpoint, block_of([b"a"], queue_ids=[7])) == "MESSAGE_ILLEGAL"
        with StoreClient(process.endpoint) as client:
            figures = client.stats()
        assert figures["putFailures"]["MESSAGE_ILLEGAL"] == 1
        assert set(figures["putFailures"]) == {str(status) for status in PutStatus} - {"PUT_OK"}
        assert sum(figures["putFailures"].values()) == 1


def test_each_recommended_alert_can_be_evaluated(tmp_path: Path) -> None:
    with StoreProcess(tmp_path / "store", tmp_path, *SMALL_FILES) as process:
        now = metrics(process.ready()["metrics"])
        assert firing(now, now) - {"RmqstoreDiskFull"} == set()
        late = now.replace(
            "rmqstore_clock_behind_seconds 0.0", "rmqstore_clock_behind_seconds 90.0"
        )
        assert firing(now, late) - {"RmqstoreDiskFull"} == {"RmqstoreClockBehind"}


def metrics_of(text: str) -> set[str]:
    """The names of metrics in an expression, those of histograms without their parts."""
    names = re.findall(r"\b(?:rmqstore|process)_\w+\b", re.sub(r"\{[^}]*\}", "", text))
    return {name.removesuffix("_bucket") for name in names}


def having(text: str, address: str) -> str:
    """What a process exposes, if that has the text; else ""."""
    found = metrics(address)
    return found if text in found else ""


def metrics_of_a_member(folder: Path) -> tuple[str, str]:
    """What a member of a DLedger group exposes while it leads another, and without it."""
    members = addresses(2)
    keys = (
        "enableDLegerCommitLog=true", f"dLegerGroup={GROUP}", "dLegerSelfId=n0",
        f"dLegerPeers={as_peers(members)}", "dLegerHeartbeatInterval=100", "preferredLeaderId=n0",
    )  # fmt: skip
    told = (f"--set={key}" for key in keys)
    fast = {"dLegerHeartbeatInterval": 100, "preferredLeaderId": "n0"}
    place = folder / "member"
    place.mkdir()
    with (
        MemberProcess(place, "n1", members, **fast, mappedFileSizeCommitLog=1 << 30) as other,
        StoreProcess(place / "store", place, *SMALL_FILES, *told) as process,
    ):
        address = process.ready()["metrics"]
        leading = eventually(lambda: having('rmqstore_group_lag_entries{member="n1"}', address))
        other.kill()
        alone = eventually(lambda: having("rmqstore_group_has_leader 0.0", address))
        return leading, alone


def test_a_group_without_a_leader_and_a_member_that_is_behind_raise_alerts(tmp_path: Path) -> None:
    leading, alone = metrics_of_a_member(tmp_path)
    raised = {"RmqstoreGroupWithoutLeader", "RmqstoreGroupMemberBehind"}
    assert firing(leading, leading) & raised == set()
    assert firing(alone, alone) & raised == {"RmqstoreGroupWithoutLeader"}
    follower = alone.replace(
        'rmqstore_group_role{state="CANDIDATE"} 1.0', 'rmqstore_group_role{state="FOLLOWER"} 1.0'
    )
    assert "RmqstoreGroupWithoutLeader" in firing(follower, follower)
    lag = re.compile(r'(rmqstore_group_lag_entries{member="n1"}) \S+')
    behind = lag.sub(r"\1 20000.0", leading)
    assert firing(behind, behind) & raised == {"RmqstoreGroupMemberBehind"}
    silent = leading.replace(
        'rmqstore_group_lag_known{member="n1"} 1.0', 'rmqstore_group_lag_known{member="n1"} 0.0'
    )
    assert "RmqstoreGroupMemberSilent" in firing(silent, silent)
    assert "RmqstoreGroupMemberSilent" not in firing(leading, leading)
    knows = re.compile(r"(rmqstore_group_knows_queue_ends) [01]\.0")
    unable, able = (knows.sub(rf"\1 {number}.0", leading) for number in (0, 1))
    assert "RmqstoreGroupMemberMayNotLead" in firing(unable, unable)
    assert "RmqstoreGroupMemberMayNotLead" not in firing(able, able)


def test_alerts_and_dashboard_ask_for_what_processes_expose(tmp_path: Path) -> None:
    for name in ("master", "slave"):
        (tmp_path / name).mkdir()
    folder = tmp_path / "master"
    listening = (*SMALL_FILES, "--set=haListenPort=0")
    with StoreProcess(folder / "store", folder, *listening) as master:
        told = master.ready()
        with StoreClient(master.endpoint) as client:
            client.create_topic("orders", write_queue_nums=1)
        assert put_status(master.endpoint, block_of([b"a"])) == "PUT_OK"
        folder = tmp_path / "slave"
        role = ("--set=brokerRole=SLAVE", f"--set=haMasterAddress={told['slaves']}")
        with StoreProcess(folder / "store", folder, *SMALL_FILES, *role) as slave:
            # How far it is behind is not exposed before it is known.
            address = slave.ready()["metrics"]
            eventually(lambda: "replication_lag_bytes" in metrics(address))
            exposed = metrics(told["metrics"]) + metrics(address)
    sidecar = ("--read-only", "--set=metricsPromExporterPort=0")
    with StoreProcess(tmp_path / "master" / "store", tmp_path, *sidecar) as process:
        exposed += metrics(process.ready()["metrics"])
    exposed += metrics_of_a_member(tmp_path)[0]
    board = json.loads((MONITORING / "dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    wanted = metrics_of(" ".join([*asked, *recommended().values()]))
    assert len(wanted) > 25
    assert wanted <= metrics_of(exposed)
    labelled = set(re.findall(r'rmqstore_\w+{\w+="\w+"}', " ".join(recommended().values())))
    assert len(labelled) > 2
    assert [one for one in labelled if f"\n{one} " not in exposed] == []


def test_a_member_of_a_group_is_well_while_it_knows_a_leader(tmp_path: Path) -> None:
    """A follower was always unwell: it follows no master."""
    with group_of(tmp_path, metricsPromExporterPort=0) as group:

        def told(store: GroupStore) -> tuple[int, Any]:
            found = re.findall(r"metrics on http://([0-9.:]+)/metrics", store.output)
            return health(found[-1])

        leader, followers = group.leader(), group.followers()
        assert eventually(lambda: told(leader) == (200, "RUNNING"))
        assert all(eventually(lambda one=one: told(one) == (200, "SLAVE")) for one in followers)
        left = followers.pop()
        for store in (leader, *followers):
            store.kill()
        assert eventually(lambda: told(left) == (503, "SLAVE"))
        leader.start()
        assert eventually(lambda: told(left)[0] == 200)
