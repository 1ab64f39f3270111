"""Single messages of many clients that are put together."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rmqstore_spark.client import StoreClient
from rmqstore_spark.reader import Store
from tests.support.processes.serving import block_of, served


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_each_client_gets_the_places_of_its_own(tmp_path: Path, flush: str) -> None:
    clients, each = 12, 60
    told: list[list[tuple[int, bytes]]] = [[] for _ in range(clients)]
    with served(tmp_path / "store", flush_disk_type=flush) as here:
        here.store.create_topic("orders")
        start = threading.Barrier(clients)

        def put(number: int) -> None:
            with StoreClient(here.endpoint) as client, client.put_stream(results=True) as stream:
                start.wait(20)
                for turn in range(each):
                    body = b"%d.%d" % (number, turn)
                    bad = turn % 10 == 9
                    block = block_of([body])
                    if bad:
                        block[8] ^= 1  # bodyCRC: those put together with it must not suffer
                    ack = stream.put(block)
                    assert ack.status == ("MESSAGE_ILLEGAL" if bad else "PUT_OK")
                    if not bad:
                        assert ack.rows == 1
                        assert ack.physical_offset is not None
                        told[number].append((int(ack.physical_offset[0]), body))

        threads = [threading.Thread(target=put, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        here.store.flush()
    with Store.open(tmp_path / "store") as store:
        rows = [row for batch in store.scan() for row in batch.to_pylist()]
    found = sorted((row["physicalOffset"], row["body"]) for row in rows)
    assert found == sorted(place for places in told for place in places)
    assert len(found) == clients * each * 9 // 10
    for places in told:
        assert places == sorted(places)  # a client's own stay in their order
