"""Metrics and health over HTTP, as Prometheus and supervisors ask for them."""

from __future__ import annotations

import http.client
import json
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from rmqstore_spark.errors import ServiceError
from rmqstore_spark.server.monitoring import HEALTHY, Monitoring
from tests.support.waiting import PATIENCE, NewThreads, eventually

STATS: dict[str, Any] = {
    "state": HEALTHY,
    "uptimeSeconds": 12.5,
    "putMessages": 1_000,
    "putBytes": 250_000,
    "commits": 3,
    "stages": 2,
    "stagedBytes": 4_096,
    "stagedMemoryBytes": 2_048,
    "commitLogMinOffset": 0,
    "commitLogMaxOffset": 250_000,
    "commitLogFlushedOffset": 200_000,
    "dispatchBehindBytes": 512,
    "diskUsedRatio": 0.42,
    "clockBehindSeconds": 86_400.5,
    "putFailures": {"MESSAGE_ILLEGAL": 4, "SERVICE_NOT_AVAILABLE": 0},
    "stageFailures": {"OS_PAGECACHE_BUSY": 2},
    "commitFailures": {"MESSAGE_ILLEGAL": 1},
    "putLatency": {"buckets": [[0.001, 7], [0.01, 9], ["+Inf", 10]], "sum": 0.5, "count": 10},
    "commitLatency": {"buckets": [[0.1, 2], ["+Inf", 3]], "sum": 0.75, "count": 3},
    "flushLatency": {"buckets": [["+Inf", 0]], "sum": 0.0, "count": 0},
    "queues": {"orders": {"0": [5, 30], "1": [0, 0]}, '%RETRY%a"\\\n': {"0": [0, 1]}},
}


class Figures:
    """Figures that a test changes."""

    def __init__(self) -> None:
        self.now: Mapping[str, Any] = STATS
        self.answering = threading.Event()
        self.answering.set()
        self.asked = 0

    def __call__(self) -> Mapping[str, Any]:
        self.asked += 1
        assert self.answering.wait(60)
        return self.now


@pytest.fixture
def figures() -> Figures:
    return Figures()


@pytest.fixture
def monitoring(figures: Figures) -> Iterator[Monitoring]:
    made = Monitoring(figures, "127.0.0.1", 0)
    yield made
    figures.answering.set()
    made.close()


def ask(
    monitoring: Monitoring, path: str, *, method: str = "GET", accept: str = ""
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(monitoring.address, timeout=60)
    try:
        connection.request(method, path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(("host", "warns"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_address_that_others_reach_is_warned_of(
    figures: Figures, caplog: pytest.LogCaptureFixture, host: str, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING):
        Monitoring(figures, host, 0).close()
    assert any("names of all topics" in text for text in caplog.messages) is warns


def test_prometheus_reads_every_figure(monitoring: Monitoring) -> None:
    status, text = ask(monitoring, "/metrics")
    assert status == 200
    found = samples(text)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value("rmqstore_put_messages_total") == 1_000
    assert value("rmqstore_put_bytes_total") == 250_000
    assert value("rmqstore_commits_total") == 3
    assert value("rmqstore_staged_bytes") == 4_096
    assert value("rmqstore_stages") == 2
    assert value("rmqstore_commitlog_max_offset") == 250_000
    assert value("rmqstore_commitlog_flushed_offset") == 200_000
    assert value("rmqstore_dispatch_behind_bytes") == 512
    assert value("rmqstore_disk_used_ratio") == 0.42
    assert value("rmqstore_clock_behind_seconds") == 86_400.5
    assert value("rmqstore_put_failures_total", status="MESSAGE_ILLEGAL") == 4
    assert value("rmqstore_put_failures_total", status="SERVICE_NOT_AVAILABLE") == 0
    assert value("rmqstore_stage_failures_total", status="OS_PAGECACHE_BUSY") == 2
    assert value("rmqstore_commit_failures_total", status="MESSAGE_ILLEGAL") == 1
    assert value("rmqstore_put_latency_seconds_bucket", le="0.001") == 7
    assert value("rmqstore_put_latency_seconds_bucket", le="+Inf") == 10
    assert value("rmqstore_put_latency_seconds_sum") == 0.5
    assert value("rmqstore_put_latency_seconds_count") == 10
    assert value("rmqstore_commit_latency_seconds_bucket", le="0.1") == 2
    assert value("rmqstore_commit_latency_seconds_count") == 3
    assert value("rmqstore_flush_latency_seconds_count") == 0
    assert value("rmqstore_queue_messages", topic="orders", queue="0") == 25
    assert value("rmqstore_queue_max_offset", topic="orders", queue="0") == 30
    assert value("rmqstore_queue_messages", topic='%RETRY%a"\\\n', queue="0") == 1
    assert value("rmqstore_state", state=HEALTHY) == 1
    assert value("rmqstore_state", state="DISK_FULL") == 0
    assert value("process_resident_memory_bytes") > 0
    # Every figure of the store is there under some name.
    assert text.count("# TYPE rmqstore_") == len(STATS) + 1 + 1  # build, and two of the queues


def test_newer_prometheus_reads_them_too(monitoring: Monitoring) -> None:
    status, text = ask(monitoring, "/metrics", accept="application/openmetrics-text;version=1.0.0")
    assert status == 200
    families = parse_openmetrics(text)  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"rmqstore_put_messages", "rmqstore_put_latency_seconds"} <= names


def test_figures_are_those_of_the_moment(monitoring: Monitoring, figures: Figures) -> None:
    figures.now = {**STATS, "putMessages": 1_001}
    found = samples(ask(monitoring, "/metrics")[1])
    assert found["rmqstore_put_messages_total", frozenset()] == 1_001


def test_health(monitoring: Monitoring, figures: Figures) -> None:
    status, text = ask(monitoring, "/healthz")
    assert (status, json.loads(text)) == (200, {"state": HEALTHY})
    figures.now = {**STATS, "state": "CLOSING"}
    status, text = ask(monitoring, "/healthz")
    assert (status, json.loads(text)) == (503, {"state": "CLOSING"})


def test_nothing_else_is_answered(monitoring: Monitoring) -> None:
    assert ask(monitoring, "/")[0] == 404
    assert ask(monitoring, "/../etc/passwd")[0] == 404
    assert ask(monitoring, "/metrics", method="POST")[0] == 501
    assert ask(monitoring, "/metrics?name[]=x")[0] == 200


def connected(monitoring: Monitoring) -> socket.socket:
    host, _, port = monitoring.address.rpartition(":")
    return socket.create_connection((host, int(port)), 60)


def is_healthy(monitoring: Monitoring) -> bool:
    try:
        return ask(monitoring, "/healthz")[0] == 200
    except (ConnectionError, http.client.BadStatusLine):
        return False


@pytest.mark.threat("Resource limits")
@pytest.mark.parametrize("count", [30, 200])
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: a\r\n"])
def test_half_sent_requests_keep_no_probe_out(
    monitoring: Monitoring, count: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They did for 11 s, and a supervisor would have ended the process."""
    monkeypatch.setattr("rmqstore_spark.server.monitoring._HEAD_SECONDS", 600)  # no probe waits so
    held, threads = [], NewThreads()
    try:
        for _ in range(count):
            held.append(connected(monitoring))
            held[-1].sendall(sent)
        for _ in range(5):
            assert ask(monitoring, "/healthz")[0] == 200
            assert len(threads.named("process_request_thread")) <= 32
    finally:
        for one in held:
            one.close()


def test_half_sent_requests_that_keep_coming_keep_no_probe_out(monitoring: Monitoring) -> None:
    ended = threading.Event()

    def attack() -> None:
        held: deque[socket.socket] = deque()
        while not ended.is_set():
            held.append(connected(monitoring))
            with suppress(OSError):
                held[-1].sendall(b"GET /metrics HTTP/1.1\r\n")
            if len(held) > 100:
                held.popleft().close()
        for one in held:
            one.close()

    threads = [threading.Thread(target=attack) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert ask(monitoring, "/healthz")[0] == 200
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@pytest.mark.threat("Resource limits")
def test_who_does_not_read_the_answer_gives_way(
    monitoring: Monitoring, figures: Figures, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmqstore_spark.server.monitoring._ANSWER_SECONDS", 600)
    queues = {f"topic-{number:05}": {"0": (0, 1)} for number in range(20_000)}
    figures.now = {**STATS, "queues": queues}
    held = []
    try:
        for _ in range(40):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = monitoring.address.rpartition(":")
            one.connect((host, int(port)))
            one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            held.append(one)
        eventually(lambda: is_healthy(monitoring))
        assert is_healthy(monitoring)
    finally:
        for one in held:
            one.close()


def test_metrics_are_made_for_a_few_at_a_time(monitoring: Monitoring, figures: Figures) -> None:
    figures.answering.clear()
    waiting = [connected(monitoring) for _ in range(4)]
    try:
        for one in waiting:
            one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: figures.asked == 4)
        assert ask(monitoring, "/metrics")[0] == 503
        figures.answering.set()
        for one in waiting:
            assert one.recv(12) == b"HTTP/1.0 200"
        assert ask(monitoring, "/metrics")[0] == 200
    finally:
        for one in waiting:
            one.close()


def test_an_answer_that_is_being_made_does_not_give_way(
    monitoring: Monitoring, figures: Figures
) -> None:
    figures.answering.clear()
    waiting = [connected(monitoring) for _ in range(32)]
    try:
        for one in waiting:
            one.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        eventually(lambda: figures.asked == 32)
        with connected(monitoring) as one_more:
            assert one_more.recv(1) == b""  # refused at once
        figures.answering.set()
        for one in waiting:
            assert one.recv(12) == b"HTTP/1.0 200"
    finally:
        for one in waiting:
            one.close()


@pytest.mark.parametrize("pause", [0.0, 0.05])
def test_a_request_has_little_time_and_few_bytes(monitoring: Monitoring, pause: float) -> None:
    """A byte now and then does not make its time longer."""
    began = time.monotonic()  # before its time begins
    with connected(monitoring) as slow:
        sent = 0
        with suppress(OSError):
            while slow_is_served(slow, pause):
                slow.send(b"a" if pause else b"a" * 512)
                sent += 1
                assert time.monotonic() - began < PATIENCE
        assert time.monotonic() - began > 1.5 if pause else sent <= 8_192


def slow_is_served(slow: socket.socket, pause: float) -> bool:
    readable, _, _ = select.select([slow], [], [], pause)
    return not readable


def test_what_goes_wrong_here_is_logged(
    monitoring: Monitoring, figures: Figures, caplog: pytest.LogCaptureFixture
) -> None:
    figures.now = {}
    with suppress(ConnectionError, http.client.BadStatusLine):
        ask(monitoring, "/healthz")
    eventually(lambda: "KeyError: 'state'" in caplog.text)


def test_a_port_in_use_is_said(monitoring: Monitoring, figures: Figures) -> None:
    host, _, port = monitoring.address.rpartition(":")
    with pytest.raises(ServiceError, match=rf"{port}: Address already in use\. Set metrics"):
        Monitoring(figures, host, int(port))
