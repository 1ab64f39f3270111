"""docs/errors.md shows what is really printed: each of its errors is provoked here.

A section's title has the main words of the text, so that the site's search finds it; its first
block is the whole text. `...` is in place of paths, numbers and names.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyspark
import pytest

import rmqstore_spark
from rmqstore_spark.base.types import CommitRequest, WriterId
from rmqstore_spark.base.workers import require_spark
from rmqstore_spark.client import StoreClient
from rmqstore_spark.client.masters import find_master
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.errors import RmqStoreError
from rmqstore_spark.reader import Store
from tests.cli.processes import run
from tests.consensus.driver.members import addresses
from tests.datasource.driving import Stream, plan_batch
from tests.engine.group.stores import StoreProcess as GroupStore
from tests.support.accounts import account_file, guarded
from tests.support.certificates import make_certificates
from tests.support.processes.serving import StoreProcess, block_of, served
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "errors.md"


@dataclass
class Surroundings:
    """What a provocation may use.

    Args:
        folder: of the test.
        golden: gives the folder of a store that RocketMQ wrote, to be read only.
        patch: changes of this process.
    """

    folder: Path
    golden: Callable[[str], Path]
    patch: pytest.MonkeyPatch

    def copy(self, name: str) -> Path:
        """Return a copy of a store, to be changed."""
        shutil.copytree(self.golden(name) / "store", self.folder / "store")
        return self.folder / "store"


Provocation = Callable[[Surroundings], str]


class Section(NamedTuple):
    """An error on the page."""

    title: str
    text: str

    def shows(self, printed: str) -> bool:
        """Whether this is the text of the section, and the title is in it."""
        whole = _one_line(printed)
        return bool(re.search(_pattern(self.title), whole) and _matches(self.text, whole))


def _matches(shown: str, whole: str) -> bool:
    return re.fullmatch(_pattern(_one_line(shown)), whole) is not None


def _pattern(shown: str) -> str:
    return ".*".join(map(re.escape, shown.split("...")))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def sections() -> list[Section]:
    found = re.findall(
        r"^### ([^\n]*)\n\n```output\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return [Section(*each) for each in found]


# ---- provocations --------------------------------------------------------------------------------


def command(*words: str | Path, typed: str = "") -> str:
    """What a command prints that fails."""
    done = run(*words, input=typed)
    assert done.returncode != 0, done.stdout
    return done.stderr


def of_python(act: Callable[[], object]) -> str:
    """The error that Python raises, as the last line of a traceback has it."""
    with pytest.raises(RmqStoreError) as raised:
        act()
    return f"{raised.type.__module__}.{raised.type.__name__}: {raised.value}"


def no_store(here: Surroundings) -> str:
    return command("topics", here.folder / "nothing")


def no_topic(here: Surroundings) -> str:
    return command("read", here.golden("live") / "store", "--topic", "nothing")


def unknown_topic(here: Surroundings) -> str:
    return of_python(lambda: plan_batch(here.golden("live") / "store", subscribe="nothing"))


def nothing_listens(here: Surroundings) -> str:
    return command("stats", "rmq://127.0.0.1:1")


def old_scheme(here: Surroundings) -> str:
    return command("stats", "grpc://127.0.0.1:10921")


def unknown_key(here: Surroundings) -> str:
    return command("serve", "--store", here.folder / "s", "--set", "flushDiskTyp=SYNC_FLUSH")


def wrong_value(here: Surroundings) -> str:
    return command("serve", "--store", here.folder / "s", "--set", "flushDiskType=SYNC")


def unprotected(here: Surroundings) -> str:
    return command("serve", "--store", here.folder / "s", "--host", "0.0.0.0", "--port", "0")


def port_in_use(here: Surroundings) -> str:
    with served(here.folder / "first") as first:
        port = first.endpoint.rpartition(":")[2]
        return command("serve", "--store", here.folder / "s", "--port", port)


def store_in_use(here: Surroundings) -> str:
    with served(here.folder / "s"):
        return command("serve", "--store", here.folder / "s", "--port", "0")


def read_only(here: Surroundings) -> str:
    with StoreProcess(here.golden("live") / "store", here.folder, "--read-only") as sidecar:
        return command("put", sidecar.endpoint, "--topic", "orders", typed="order 1\n")


def disk_full(here: Surroundings) -> str:
    with served(here.folder / "s", disk_max_used_space_ratio=1) as full:
        return command("put", full.endpoint, "--topic", "orders", typed="order 1\n")


def damaged(here: Surroundings) -> str:
    store = here.copy("live")
    with (store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(225449)
        log.write(b"\xff" * 40)
    with Store.open(store) as opened:
        return of_python(
            lambda: [list(opened.read(one.topic, one.queue_id)) for one in opened.queues()]
        )


def damaged_log(here: Surroundings) -> str:
    store = here.folder / "s"
    with StoreWriter.open(store, StoreConfig(mapped_file_size_commit_log=1 << 20)) as writer:
        writer.put_batch(pa.record_batch({"topic": ["orders"], "body": [b"order 1"]}))
    with (store / "commitlog" / f"{0:020}").open("r+b") as log:
        log.write(b"\xff" * 40)
    return command("serve", "--store", store, "--port", "0")


def nothing_answers(here: Surroundings) -> str:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"rmq://127.0.0.1:{silent.getsockname()[1]}"
        with StoreClient(endpoint, connect_s=1) as client:
            return of_python(client.stats)


def expired(here: Surroundings) -> str:
    store = here.folder / "s"
    with StoreWriter.open(store, StoreConfig(mapped_file_size_commit_log=1 << 16)) as writer:
        for _ in range(40):
            writer.put_batch(pa.record_batch({"topic": ["orders"], "body": [bytes(4000)]}))
    (store / "commitlog" / f"{0:020}").unlink()  # as a broker does after fileReservedTime
    offsets = json.dumps({"orders": {"0": 0}})
    assigned = json.dumps({"orders": [0]})
    return of_python(lambda: plan_batch(store, assign=assigned, startingOffsets=offsets))


def without_queues(here: Surroundings) -> str:
    store = here.copy("live")
    shutil.rmtree(store / "consumequeue")
    return of_python(Stream(store).reader.initialOffset)


def unknown_option(here: Surroundings) -> str:
    return of_python(lambda: plan_batch(here.golden("live") / "store", subscribd="orders"))


def past_the_end(here: Surroundings) -> str:
    with Store.open(here.golden("live") / "store") as opened:
        return of_python(lambda: list(opened.read("LiveOrder", queue_id=0, start=77)))


def no_account(here: Surroundings) -> str:
    with served(here.folder / "s", **guarded(here.folder / "accounts.yml")) as one:
        return command("stats", one.endpoint)


def wrong_secret(here: Surroundings) -> str:
    file = account_file(here.folder / "key.yml", secret="another-secret")
    with served(here.folder / "s", **guarded(here.folder / "accounts.yml")) as one:
        return command("stats", one.endpoint, "--acl-file", file)


def lacks_a_right(here: Surroundings) -> str:
    file = account_file(here.folder / "key.yml")
    account = {"topicPerms": ["orders=PUB"]}
    with served(here.folder / "s", **guarded(here.folder / "accounts.yml", account)) as one:
        return command("stats", one.endpoint, "--acl-file", file)


def open_account_file(here: Surroundings) -> str:
    file = account_file(here.folder / "key.yml")
    file.chmod(0o644)
    return command("stats", "rmq://127.0.0.1:1", "--acl-file", file)


def tls(here: Surroundings) -> dict[str, Any]:
    made = make_certificates(here.folder / "certificates")
    return {
        "tls_server_cert_path": made.server_cert,
        "tls_server_key_path": made.server_key,
        "tls_server_mode": "enforcing",
    }


def without_tls(here: Surroundings) -> str:
    with served(here.folder / "s", **tls(here)) as one:
        return command("stats", one.endpoint.replace("rmqs:", "rmq:"))


def unknown_authority(here: Surroundings) -> str:
    with served(here.folder / "s", **tls(here)) as one:
        return command("stats", one.endpoint.replace("rmq:", "rmqs:"))


def tls_where_none_is(here: Surroundings) -> str:
    with served(here.folder / "s") as one:
        return command("stats", one.endpoint.replace("rmq:", "rmqs:"))


def no_route(here: Surroundings) -> str:
    if find_spec("rocketmq") is None:
        pytest.skip("no C++ client for this platform")
    here.patch.setenv("HOME", str(here.folder))  # it logs there
    done = subprocess.run([sys.executable, "-c", SENDING], capture_output=True, text=True)
    return done.stdout


SENDING: Final = """
import os
from rocketmq.client import Message, Producer
producer = Producer("orders-producers")
producer.set_namesrv_addr("127.0.0.1:1")
producer.start()
message = Message("orders")
message.set_body("order 1")
try:
    producer.send_sync(message)
except Exception as error:
    print(f"{type(error).__module__}.{type(error).__name__}: {error}", flush=True)
os._exit(0)  # the library may crash when Python takes it down
"""


def no_pyspark(here: Surroundings) -> str:
    here.patch.setattr("rmqstore_spark.base.workers.find_spec", lambda name: None)
    return of_python(require_spark)


def sources_alone(here: Surroundings) -> str:
    unbuilt = shutil.ignore_patterns("*.so", "__pycache__")
    package = Path(rmqstore_spark.__file__).parent
    shutil.copytree(package, here.folder / package.name, ignore=unbuilt)
    (here.folder / "setup.py").touch()  # a clone has it
    here.patch.delenv("RMQSTORE_KERNEL", raising=False)
    here.patch.chdir(here.folder)
    program = "import rmqstore_spark.layout.kernel"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr


def old_spark(here: Surroundings) -> str:
    here.patch.setattr(pyspark, "__version__", "3.5.1")
    return of_python(require_spark)


def committing(here: Surroundings, *numbers: int) -> str:
    """Commit batches of one row as numbered; the last one is refused."""
    with served(here.folder / "s") as one, StoreClient(one.endpoint) as client:

        def commit(number: int, body: bytes) -> None:
            with client.stage_stream() as stage:
                stage.send(block_of([body]))
                info = stage.finish()
            writer = WriterId("stream", "0b9c7c7e-9f0d-4f5c-b6f1-2f0a3b1d7c55", number)
            client.commit(CommitRequest(writer, (info,)))

        *first, last = numbers
        for number in first:
            commit(number, b"order 1")
        return of_python(lambda: commit(last, b"another"))


def other_rows(here: Surroundings) -> str:
    return committing(here, 7, 7)


def set_back(here: Surroundings) -> str:
    return committing(here, 7, 5)


def reopened(here: Surroundings) -> str:
    store = here.folder / "s"
    with StoreWriter.open(store, StoreConfig(mapped_file_size_commit_log=1 << 20)) as writer:
        writer.put_batch(pa.record_batch({"topic": ["orders"], "body": [b"order 1"]}))
    (store / "abort").touch()  # as a process leaves it that is killed
    done = run("recover", store)
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()[0]


def missing_stage(here: Surroundings) -> str:
    with served(here.folder / "s") as former, served(here.folder / "t") as new:
        with StoreClient(former.endpoint) as client, client.stage_stream() as stage:
            stage.send(block_of([b"order 1"]))
            info = stage.finish()
        writer = WriterId("stream", "0b9c7c7e-9f0d-4f5c-b6f1-2f0a3b1d7c55", 7)
        with StoreClient(new.endpoint) as client:
            return of_python(lambda: client.commit(CommitRequest(writer, (info,))))


def no_leader(here: Surroundings) -> str:
    asked = ["rmq://127.0.0.1:1"]
    with GroupStore(here.folder, "n0", addresses(3)) as alone:
        eventually(alone.stats)
        asked.insert(0, alone.endpoint)
        return of_python(lambda: find_master(asked, partial(StoreClient, retries=0), 0))


def went_away(here: Surroundings) -> str:
    with StoreProcess(here.folder / "s", here.folder) as process:
        process.ready()
        with StoreClient(process.endpoint) as client, closing(client.put_stream()) as stream:
            process.signal(signal.SIGKILL)

            def put() -> None:
                stream.send(block_of([b"order 1"]))
                stream.drain()

            return of_python(put)


PROVOCATIONS: Final[tuple[Provocation, ...]] = (
    damaged, damaged_log, disk_full, expired, lacks_a_right, missing_stage, no_account, no_leader,
    no_pyspark, no_route, no_store, no_topic, nothing_answers, nothing_listens, old_scheme,
    old_spark, open_account_file, other_rows, past_the_end, port_in_use, read_only, reopened,
    set_back, sources_alone, store_in_use, tls_where_none_is, unknown_authority, unknown_key,
    unknown_option, unknown_topic, unprotected, went_away, without_queues, without_tls,
    wrong_secret, wrong_value,
)  # fmt: skip


# ---- with Spark ----------------------------------------------------------------------------------


def write(frame: DataFrame, **options: str) -> None:
    frame.write.format("rmqstore").options(**options).mode("append").save()


def row_without_body(spark: SparkSession, folder: Path) -> None:
    with served(folder / "s") as one:
        rows = spark.range(1).selectExpr("string(null) AS body")
        write(rows, endpoint=one.endpoint, topic="orders")


def no_endpoint(spark: SparkSession, folder: Path) -> None:
    write(spark.range(1).selectExpr("string(id) AS body"), topic="orders")


def no_path(spark: SparkSession, folder: Path) -> None:
    spark.read.format("rmqstore").load().count()


def no_append(spark: SparkSession, folder: Path) -> None:
    spark.range(1).write.format("rmqstore").option("endpoint", "rmq://127.0.0.1:1").save()


def not_installed(spark: SparkSession, folder: Path) -> None:
    """The name is another one: the tests have the package installed."""
    spark.read.format("rmqstore-not-installed").load()


SPARK_PROVOCATIONS: Final = (no_append, no_endpoint, no_path, not_installed, row_without_body)


# ---- tests ---------------------------------------------------------------------------------------


def check(printed: str) -> None:
    shown = [section.title for section in sections() if section.shows(printed)]
    assert len(shown) == 1, _one_line(printed)


@pytest.mark.parametrize("provoke", PROVOCATIONS, ids=lambda each: each.__name__)
def test_an_error_is_on_the_page(
    provoke: Provocation,
    golden: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check(provoke(Surroundings(tmp_path, golden, monkeypatch)))


@pytest.mark.parametrize("provoke", SPARK_PROVOCATIONS, ids=lambda each: each.__name__)
def test_an_error_that_spark_shows_is_on_the_page(
    provoke: Callable[[SparkSession, Path], None], spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the page has its text
        provoke(spark, tmp_path)
    lines = str(raised.value).replace("rmqstore-not-installed", "rmqstore").splitlines()
    (line,) = [each for each in lines if re.search(r"rmqstore_spark\.errors|\[[A-Z_]{20}", each)]
    check(line)


def test_the_page_has_no_other_errors() -> None:
    assert len(sections()) == len(PROVOCATIONS) + len(SPARK_PROVOCATIONS)
    text = PAGE.read_text(encoding="utf-8")
    assert text.count("\n### ") == len(sections())
