"""Reads of the published log while its files are let go."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.log.published_log import PublishedLog
from tests.support.stores.storing import config, messages
from tests.support.waiting import PATIENCE


def test_a_segment_is_not_closed_under_who_reads_it(tmp_path: Path) -> None:
    with StoreWriter.open(tmp_path / "s", config()) as store:
        assert store.put_batch(messages([b"one"])).ok
        log = PublishedLog(store._store.log)
        with log.segment(0) as (descriptor, start):
            closing = threading.Thread(target=log.close)
            closing.start()
            closing.join(0.2)
            assert closing.is_alive()
            assert len(os.pread(descriptor, 4, start)) == 4
        closing.join(PATIENCE)
        assert not closing.is_alive()
        log.close()
