"""StoreWriter against lists: whatever is put, closed, opened and killed, each queue is its list."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rmqstore_spark.base.status import PutStatus
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.engine import StoreWriter
from rmqstore_spark.engine.batches.marker import MARKER_TOPIC
from rmqstore_spark.reader import Store
from rmqstore_spark.verify import verify
from tests.support.messages.batches import QUERY, rows_block, stage_id
from tests.support.sampling import examples
from tests.support.stores.storing import Clock, as_killed, config, in_queues, messages

TOPICS = st.sampled_from(["a", "b"])
QUEUE_IDS = st.integers(0, 2)
BODIES = st.builds(bytes.__mul__, st.binary(min_size=1, max_size=1), st.integers(0, 1500))
ROWS = st.lists(st.tuples(QUEUE_IDS, BODIES), min_size=1, max_size=12)


class StoreMachine(RuleBasedStateMachine):
    """A store, and the bodies that each of its queues must hold."""

    home: ClassVar[Path]

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=self.home))
        self.number = 0
        self.clock = Clock()
        self.batches = 0
        self.queues: dict[tuple[str, int], list[bytes]] = {}
        self.last_timestamp = 0

    @property
    def path(self) -> Path:
        return self.folder / str(self.number)

    @initialize(sync=st.booleans(), index=st.booleans())
    def begin(self, sync: bool, index: bool) -> None:
        self.config = config(
            flushDiskType="SYNC_FLUSH" if sync else "ASYNC_FLUSH",
            messageIndexEnable=str(index).lower(),
            maxIndexNum=20,
        )
        self.open()

    def open(self) -> None:
        self.store = StoreWriter.open(self.path, self.config, clock=self.clock)

    # ---- what happens ----------------------------------------------------------------------------

    @rule(topic=TOPICS, rows=ROWS)
    def put(self, topic: str, rows: list[tuple[int, bytes]]) -> None:
        queue_ids, bodies = zip(*rows, strict=True)
        keys = [f"KEYS\1{body[:1].hex()}\2UNIQ_KEY\1{n}".encode() for n, body in enumerate(bodies)]
        batch = messages(bodies, topic=topic, queue_id=queue_ids, properties=keys)
        result = self.store.put_batch(batch)
        assert result.status is PutStatus.PUT_OK, result.remark
        for queue_id, body, offset in zip(
            queue_ids, bodies, result.queue_offset.tolist(), strict=True
        ):
            queue = self.queues.setdefault((topic, queue_id), [])
            assert offset == len(queue)
            queue.append(body)

    @rule(bodies=st.lists(BODIES, min_size=1, max_size=20))
    def commit(self, bodies: list[bytes]) -> None:
        stage = self.store.batches.begin_stage(stage_id(f"{self.batches}"))
        stage.append(rows_block(bodies, ("a", "b")))
        request = CommitRequest(WriterId.of_stream(QUERY, self.batches), (stage.finish(),))
        for status in ("COMMITTED", "ALREADY_COMMITTED"):
            assert self.store.batches.commit(request).status == status
        self.batches += 1
        for number, body in enumerate(bodies):
            self.queues.setdefault(("ab"[number % 2], number // 2 % 2), []).append(body)

    @rule()
    def refuse(self) -> None:
        before = self.store.published_end
        bad = rows_block([b"x", b"y"])
        bad[-1] ^= 0xFF
        bad[8] ^= 1
        assert self.store.put(bad).status is PutStatus.MESSAGE_ILLEGAL
        assert self.store.published_end == before

    @rule(step=st.integers(-5000, 5000))
    def let_time_pass(self, step: int) -> None:
        self.clock.now += step

    @rule()
    def flush(self) -> None:
        offsets = self.store.flush()
        assert offsets["flushedOffset"] == offsets["maxOffset"] == self.store.published_end
        assert self.held() == self.queues

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        assert self.held() == self.queues
        self.open()
        assert self.store.recovery.clean
        assert not self.store.recovery.cuts

    @rule()
    def kill_and_open(self) -> None:
        """A copy of all files is what a kill leaves, for the page cache survives it."""
        self.leave_behind()
        self.open()
        assert not self.store.recovery.clean
        assert self.held() == self.queues

    @precondition(lambda self: self.store.published_end % 4096)
    @rule(data=st.binary(min_size=1, max_size=200), at=st.integers(0, 100))
    def kill_in_the_middle_of_a_write(self, data: bytes, at: int) -> None:
        """Something was written that nobody was told of."""
        end = self.store.published_end
        self.leave_behind()
        segment = self.path / "commitlog" / f"{end // 4096 * 4096:020}"
        place = end % 4096 + at
        with segment.open("r+b") as file:
            file.seek(place)
            file.write(data[: max(0, 4096 - place)])
        self.open()
        assert self.store.published_end == end
        assert self.held() == self.queues

    # ---- what always holds -----------------------------------------------------------------------

    @invariant()
    def the_store_runs(self) -> None:
        if hasattr(self, "store"):
            assert self.store.state == "RUNNING"

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                self.store.close()
                assert self.held() == self.queues
                with Store.open(self.path) as reader:
                    report = verify(reader)
                    assert report.errors == 0, report.problems
        finally:
            shutil.rmtree(self.folder)

    # ---- parts -----------------------------------------------------------------------------------

    def held(self) -> dict[tuple[str, int], list[bytes]]:
        found = in_queues(self.path)
        return {route: bodies for route, bodies in found.items() if route[0] != MARKER_TOPIC}

    def leave_behind(self) -> None:
        as_killed(self.path, self.folder / str(self.number + 1))
        self.store.close()
        self.number += 1


@pytest.mark.fault
def test_each_queue_is_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreMachine, "home", tmp_path, raising=False)
    run_state_machine_as_test(
        StoreMachine,
        settings=settings(max_examples=examples(25), stateful_step_count=20, deadline=None),
    )
