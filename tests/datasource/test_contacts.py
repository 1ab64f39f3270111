"""What a query has reached before is waited for longer than a wrong address, in each process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkFiles
from pyspark.sql.types import BinaryType, StructField, StructType

from rmqstore_spark.client import StoreClient, contact
from rmqstore_spark.datasource import source as contacts
from rmqstore_spark.errors import ReplicaError, ServiceError
from tests.datasource.driving import Stream, plan_batch, source
from tests.support.processes.ports import free_port
from tests.support.processes.serving import block_of, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY = StructType([StructField("body", BinaryType())])
SOON: dict[str, Any] = {"connectTimeout": "300ms", "requestTimeout": "10m", "retries": "1000000"}
"""Without a limit for the first contact, each of these would wait for ten minutes."""


@pytest.fixture
def nowhere() -> str:
    return f"127.0.0.1:{free_port()}"


def in_process_of(application: Path, monkeypatch: pytest.MonkeyPatch, within: str = "") -> None:
    """As in a process that Spark has just started, and told where the application's files are."""
    application.mkdir(exist_ok=True)
    monkeypatch.setattr(SparkFiles, "_root_directory", str(application / within))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    contact._reached.clear()
    contact._folders.clear()


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an application's files; this process is one of Spark's."""
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SECRET", "x")
    monkeypatch.setattr(contact, "_reached", set())
    monkeypatch.setattr(contact, "_folders", [])
    in_process_of(tmp_path / "userFiles-1", monkeypatch)
    yield tmp_path / "userFiles-1"
    os.environ.pop("SPARK_HIDE_TRACEBACK", None)


def test_reads_give_up_a_place_that_never_answered(nowhere: str) -> None:
    with pytest.raises(ServiceError, match=r"Nothing listens on .*connectTimeout"):
        plan_batch("", endpoint=f"rmq://{nowhere}", **SOON)
    with pytest.raises(ServiceError, match=r"The name server .* does not answer"):
        plan_batch("", namesrvAddr=nowhere, **SOON)
    with pytest.raises(ServiceError, match=r"The name server .* does not answer"):
        plan_batch("", namesrvAddr=f"{nowhere};localhost:{nowhere.split(':')[1]}", **SOON)
    two = f"rmq://{nowhere}|rmq://127.0.0.1:{free_port()}"
    with pytest.raises(ReplicaError, match="No replica of the store can be read now"):
        plan_batch("", endpoint=two, **SOON)
    with pytest.raises(ServiceError, match="Nothing listens"):
        Stream("", endpoint=f"rmq://{nowhere}", **SOON).initial()
    with pytest.raises(ServiceError, match="The name server"):
        Stream("", namesrvAddr=nowhere, subscribe="orders", **SOON).initial()


@pytest.mark.parametrize("streaming", [True, False])
def test_writes_give_up_a_place_that_never_answered(nowhere: str, streaming: bool) -> None:
    places = ({"endpoint": f"rmq://{nowhere}"}, {"namesrvAddr": nowhere})
    for place, words in zip(places, ("Nothing listens", "The name server"), strict=True):
        made = source("", {"topic": "orders", **place, **SOON})
        with pytest.raises(ServiceError, match=words):
            made.streamWriter(BODY, False) if streaming else made.writer(BODY, False)


def test_a_write_that_was_planned_is_patient_in_tasks_and_commits(tmp_path: Path) -> None:
    with served(tmp_path / "store", broker_name="b") as here:
        made = source("", {"topic": "orders", "endpoint": here.endpoint, **SOON})
        writer: Any = made.writer(BODY, False)
        assert writer._options.target.connection.connect_s is None
        _, parts = plan_batch("", endpoint=here.endpoint, **SOON)
        assert all(dict(part.store.options)["connect_s"] is None for part in parts)


@pytest.mark.parametrize("within", ["", "streaming_job"])
def test_the_processes_of_an_application_share_what_they_reached(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within: str
) -> None:
    with served(tmp_path / "store") as here:
        options = {"topic": "orders", "endpoint": here.endpoint, **SOON}
        source("", options).streamWriter(BODY, False)
    (root,) = application.iterdir()
    assert root.stat().st_mode & 0o777 == 0o700
    in_process_of(application, monkeypatch, within)
    # Planned without a question, although it is gone for a while: its tasks wait for it.
    source("", options).streamWriter(BODY, False)


def test_what_another_application_reached_does_not_count(
    application: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contacts.share_contacts()
    contact.note_reached("rmq://h:1")
    in_process_of(tmp_path / "userFiles-2", monkeypatch)
    contacts.share_contacts()
    assert not contact.was_reached("rmq://h:1")
    in_process_of(application, monkeypatch)
    contacts.share_contacts()
    assert contact.was_reached("rmq://h:1")


def test_the_folder_of_somebody_else_is_not_used(
    application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 123_456)
    contacts.share_contacts()  # creates it as another user than it says it is
    assert contact._folders == []


def test_an_application_whose_files_have_gone_shares_nothing(
    application: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at its end: no process makes the folder again that Spark has removed."""
    in_process_of(application, monkeypatch)
    application.rmdir()
    contacts.share_contacts()
    assert contact._folders == []
    assert not application.exists()


@pytest.mark.spark_versions
@pytest.mark.parametrize("streaming", [False, True])
def test_what_spark_runs_shares_it_among_the_applications_files(
    spark: SparkSession, tmp_path: Path, streaming: bool
) -> None:
    with served(tmp_path / "store") as here:
        with StoreClient(here.endpoint) as client, client.put_stream() as stream:
            stream.put(block_of([b"one"]))
        options = {"endpoint": here.endpoint, "startingOffsets": "earliest"}
        if streaming:
            rows = spark.readStream.format("rmqstore").options(**options).load()
            query = rows.writeStream.format("noop").trigger(availableNow=True).start()
            assert query.awaitTermination(120)
        else:
            assert spark.read.format("rmqstore").options(**options).load().count() == 1
        folder = Path(SparkFiles.getRootDirectory(), "rmqstore-contacts")
        assert (folder / contact._name(here.endpoint)).exists()
