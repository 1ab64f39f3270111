from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.errors import OptionError, RefusedError, ServiceError
from rmqstore_spark.reader import Store
from rmqstore_spark.remoting.addresses import bound_port
from tests.support.processes.serving import Served, block_of, eventually, served


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "store", listen_socket=str(tmp_path / "run" / "store.sock")) as found:
        yield found


@pytest.fixture(params=["endpoint", "socket"])
def client(request: pytest.FixtureRequest, here: Served) -> Iterator[StoreClient]:
    with StoreClient(getattr(here, request.param), timeout_s=20, retries=0) as found:
        yield found


def bodies_in(path: Path, topic: str = "orders") -> list[bytes]:
    with Store.open(path) as store:
        batches = [b for queue in store.queues([topic]) for b in store.read(topic, queue.queue_id)]
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def test_what_is_put_is_in_the_log_in_its_order(client: StoreClient, here: Served) -> None:
    client.open(["orders"])
    sent = [b"%d" % number for number in range(200)]
    with client.put_stream() as stream:
        for first in range(0, 200, 10):
            stream.send(block_of(sent[first : first + 10]))
        assert stream.finish() == 200
    here.store.flush()
    assert bodies_in(Path(here.store.path)) == sent


def test_results_name_the_place_of_each_record(client: StoreClient) -> None:
    with client.put_stream(results=True) as stream:
        first = stream.put(block_of([b"a", b"b", b"c"], queue_ids=[0, 1, 0]))
        second = stream.put(block_of([b"d"]))
    assert (first.status, first.rows, second.rows) == ("PUT_OK", 3, 1)
    assert first.queue_offset is not None
    assert first.physical_offset is not None
    assert first.queue_offset.tolist() == [0, 0, 1]
    assert first.physical_offset[0] == 0
    assert np.diff(first.physical_offset).min() > 0
    assert second.queue_offset is not None
    assert second.queue_offset.tolist() == [2]


def test_a_refused_block_is_told_and_the_next_one_is_stored(client: StoreClient) -> None:
    client.open(["orders"])
    bad = block_of([b"a", b"b"])
    bad[8] ^= 1  # bodyCRC
    with client.put_stream(results=True) as stream:
        assert stream.put(bad).status == "MESSAGE_ILLEGAL"
        assert stream.put(block_of([b"c"])).status == "PUT_OK"
    client.flush()
    assert client.offsets(["orders"]).queues["orders"]["0"].max_offset == 1


def test_a_refused_block_fails_a_stream_that_does_not_ask(client: StoreClient) -> None:
    bad = block_of([b"a"])
    bad[8] ^= 1
    with client.put_stream() as stream:
        with suppress(RefusedError):  # it may have its answer at once
            stream.send(bad)
        with pytest.raises(RefusedError, match="bodyCRC") as failure:
            stream.finish()
        stream.close()
    assert failure.value.status == "MESSAGE_ILLEGAL"


def test_open_makes_the_topics_that_are_missing(client: StoreClient) -> None:
    opened = client.open(["orders", "returns"])
    assert set(opened.topics) == {"orders", "returns"}
    assert opened.topics["orders"].write_queue_nums == opened.default_topic_queue_nums
    assert client.open(()).topics == {}
    assert set(client.open().topics) == {"orders", "returns"}
    assert client.open().store_id == opened.store_id


def test_open_tells_of_topics_without_making_them(client: StoreClient) -> None:
    client.create_topic("orders", write_queue_nums=3)
    client.create_topic("others")
    opened = client.open(["orders", "returns"], creates=False)
    assert {name: topic.write_queue_nums for name, topic in opened.topics.items()} == {"orders": 3}
    default = opened.default_topic_queue_nums
    wanted = client.topics_to_write(["orders", "returns"], opened)
    assert {name: topic.write_queue_nums for name, topic in wanted.items()} == {
        "orders": 3, "returns": default,
    }  # fmt: skip
    assert set(client.topics()) == {"orders", "others"}


@pytest.mark.parametrize("name", ["../up", "a/b", ".", "", "rmq_sys_RMQSTORE_COMMIT"])
def test_topics_that_no_client_may_make(client: StoreClient, name: str) -> None:
    with pytest.raises(RefusedError):
        client.open([name])
    with pytest.raises(RefusedError):
        client.create_topic(name)
    with pytest.raises(RefusedError):
        client.delete_topic(name)


def test_topics_are_made_changed_and_deleted(client: StoreClient) -> None:
    client.create_topic("orders", read_queue_nums=4, write_queue_nums=2)
    assert (client.topics()["orders"].read_queue_nums, client.topics()["orders"].perm) == (4, 6)
    client.create_topic("orders", perm=4)
    assert client.topics()["orders"].perm == 4
    assert client.topics()["orders"].read_queue_nums == 4
    client.delete_topic("orders")
    assert client.topics() == {}
    with pytest.raises(RefusedError, match="orders"):
        client.delete_topic("orders")


def test_topics_that_are_opened_are_made_at_once_or_not_at_all(
    client: StoreClient, tmp_path: Path
) -> None:
    names = [f"topic{number}" for number in range(500)]
    with pytest.raises(RefusedError, match="not a topic name"):
        client.open([*names, "a/b"])
    assert client.topics() == {}
    assert sorted(client.open(names).topics) == sorted(names)
    assert sorted(client.topics()) == sorted(names)
    (table,) = tmp_path.rglob("topics.json")
    assert '"counter":1,' in table.read_text()  # it was written once


def test_figures_flush_and_the_ends_of_the_log(client: StoreClient) -> None:
    with client.put_stream() as stream:
        stream.send(block_of([b"a"] * 5))
    end = client.flush().flushed_offset
    offsets = client.offsets()
    assert (offsets.max_offset, offsets.flushed_offset) == (end, end)
    stats = client.stats()
    assert stats["putMessages"] == 5
    assert stats["state"] == "RUNNING"


def test_messages_are_found_by_key(client: StoreClient, tmp_path: Path) -> None:
    from tests.support.messages.blocks import encoded_traffic
    from tests.support.messages.traffic import Traffic

    (block,) = encoded_traffic(Traffic(100))
    with client.put_stream() as stream:
        client.open(["orders"])
        stream.send(block)
    client.flush()
    found = client.query("orders", "order-0000000042")
    assert found.column("queueOffset").to_pylist() == [42]
    assert client.query("orders", "nobody").num_rows == 0


def test_a_client_can_end_the_process(client: StoreClient, here: Served) -> None:
    client.stop()
    assert here.stopped.is_set()


def test_a_process_that_stops_takes_nothing_new(client: StoreClient, here: Served) -> None:
    stream = client.put_stream()
    assert stream.put(block_of([b"a"])).status == "PUT_OK"
    assert here.server.drain(10)
    with pytest.raises(RefusedError, match="stopping") as failure:
        stream.put(block_of([b"b"]))
    assert failure.value.status == "SERVICE_NOT_AVAILABLE"
    stream.close()
    with pytest.raises(RefusedError, match="stopping") as failure:
        client.open()
    assert failure.value.status == "SERVICE_NOT_AVAILABLE"
    here.server.close()
    assert here.store.stats()["putMessages"] == 1


def test_calls_are_ended_and_refused_while_the_store_closes(
    client: StoreClient, here: Served
) -> None:
    stream = client.put_stream()
    assert stream.put(block_of([b"a"])).status == "PUT_OK"
    here.server.end_calls()
    assert here.server.calls_under_way == 0
    with pytest.raises((ServiceError, RefusedError)):
        stream.put(block_of([b"b"]))
    stream.close()
    here.store.close()
    with StoreClient(client.endpoint, retries=0) as late, pytest.raises(RefusedError) as failure:
        late.stats()
    assert failure.value.status == "SERVICE_NOT_AVAILABLE"
    assert "is stopping" in str(failure.value)


def test_closing_ends_streams_that_wait_for_ever(client: StoreClient, here: Served) -> None:
    streams = [client.put_stream() for _ in range(4)]
    for stream in streams:
        stream.put(block_of([b"a"]))
    here.server.close()
    assert here.server.calls_under_way == 0
    for stream in streams:
        with pytest.raises((ServiceError, RefusedError)):
            stream.put(block_of([b"b"]))
        stream.close()
    eventually(lambda: not [t for t in threading.enumerate() if t.name == "rmqstore-connection"])


def test_a_port_in_use_is_refused_in_one_line(here: Served) -> None:
    port = here.server.endpoints[0].port
    with pytest.raises(ServiceError, match=f"127.0.0.1:{port}.*listens there already") as failure:
        bound_port("127.0.0.1", port)
    assert "\n" not in str(failure.value)


@pytest.mark.threat("Who may connect")
def test_a_socket_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    with (
        pytest.raises(OptionError, match="0700"),
        served(tmp_path / "store", listen_socket=str(tmp_path / "open" / "s")),
    ):
        pass


def test_a_start_that_fails_removes_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    plain = tmp_path / "run" / "file"
    plain.write_text("somebody's")
    with (
        pytest.raises(OptionError, match="not a socket"),
        served(tmp_path / "store", listen_socket=str(plain)),
    ):
        pass
    assert plain.read_text() == "somebody's"
    path = tmp_path / "run" / "s"
    with served(tmp_path / "one", listen_socket=str(path)) as one:
        with (
            pytest.raises(ServiceError, match="Another process listens"),
            served(tmp_path / "two", listen_socket=str(path)),
        ):
            pass
        with StoreClient(one.socket) as client:
            assert client.topics() == {}


def test_a_socket_path_that_no_system_takes_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(OptionError, match="at most 107 bytes"),
        served(tmp_path / "store", listen_socket=f"/tmp/{'a' * 110}/s"),
    ):
        pass


def test_a_socket_that_a_killed_process_left_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    path = tmp_path / "run" / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with served(tmp_path / "store", listen_socket=str(path)) as found:
        assert path.stat().st_mode & 0o777 == 0o600
        with StoreClient(found.socket) as client:
            assert client.topics() == {}
    assert not path.exists()


def test_without_a_port_only_the_socket_is_listened_on(tmp_path: Path) -> None:
    path = tmp_path / "run" / "s"
    before = tcp_listeners()
    with served(
        tmp_path / "store", listen_port=-1, listen_socket=str(path), bind_address="0.0.0.0"
    ) as found:
        assert [str(endpoint) for endpoint in found.server.endpoints] == [f"unix:{path}"]
        assert tcp_listeners() == before
        with StoreClient(found.endpoint) as client, client.put_stream() as stream:
            assert stream.put(block_of([b"a"])).is_ok


def tcp_listeners() -> set[int]:
    """The ports that this process listens on."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
            is_listening = each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and each.family in (socket.AF_INET, socket.AF_INET6):
                found.add(each.getsockname()[1])
    return found
