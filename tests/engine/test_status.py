from __future__ import annotations

import numpy as np

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.engine import PutResult, StoreConfig
from rmqstore_spark.layout.hosts import decode_msg_id


def test_a_status_is_rocketmqs_word() -> None:
    assert [f"{status}" for status in PutStatus] == [status.name for status in PutStatus]
    assert PutStatus("OS_PAGECACHE_BUSY") is PutStatus.OS_PAGECACHE_BUSY


def test_what_is_stored_is_not_to_be_put_again() -> None:
    assert [status.name for status in PutStatus if status.is_stored] == [
        "PUT_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE",
    ]  # fmt: skip
    assert not any(status.is_stored and status.is_transient for status in PutStatus)


def test_message_ids_name_host_and_place() -> None:
    for address, shown in (("10.1.2.3", "10.1.2.3"), ("::1", "[0:0:0:0:0:0:0:1]")):
        config = StoreConfig().with_overrides({"brokerIP1": address, "listenPort": "77"})
        places = np.array([0, 2**40 + 5])
        result = PutResult(PutStatus.PUT_OK, 2, places, places, store_host=config.store_host)
        found = [decode_msg_id(text) for text in result.msg_ids()]
        assert [(f.host, f.physical_offset) for f in found] == [
            (f"{shown}:77", 0), (f"{shown}:77", 2**40 + 5),
        ]  # fmt: skip
