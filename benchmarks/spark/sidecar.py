"""A sidecar: what it leaves of the page cache, what it costs a writer, how fast Spark reads.

`python -m benchmarks.spark.sidecar --cold 8g --hot 1g --rows 512m` measures this alone. The store
needs as much disk as `--cold` and `--hot` together, and is removed at the end.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.means.stores import Shape, Stores, record_size
from benchmarks.report.figures import Figure, print_table, ratio_cells, spread
from benchmarks.spark.queries import ROOT, Turns, session
from rmqstore_spark.engine import StoreConfig, StoreWriter
from rmqstore_spark.layout.spans import U1
from rmqstore_spark.reader import Store
from rmqstore_spark.reader.texts import parse_bytes
from tests.support.messages.blocks import encoded_traffic
from tests.support.messages.traffic import Traffic
from tests.support.processes.serving import StoreProcess
from tests.support.stores.pages import drop_pages, resident

__all__ = ["Sizes", "sidecar_figures"]

_SECTION: Final = "Sidecar"
_BODY: Final = 1024
_BLOCK_ROWS: Final = 4000
_PIECE: Final = 16 << 20
_PUT_SECONDS: Final = 10.0
_PUT_PAUSE: Final = 0.002
_KEPT: Final = 0.95
_SLOWER: Final = 1.2
_AIM: Final = 0.8


@dataclass(frozen=True)
class Sizes:
    """Bytes: of the cold part of the log, of its newest part, and of the store that Spark reads."""

    cold: int = 8 << 30
    hot: int = 1 << 30
    rows: int = 512 << 20


def sidecar_figures(stores: Stores, sizes: Sizes = Sizes()) -> Iterator[Figure]:
    """Measure a sidecar with its defaults; puts also with the limits that its unit has."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stores.folder, prefix="sidecar-") as place:
        folder = Path(place)
        path = folder / "store"
        segment = min(sizes.hot, 1 << 30)
        config = StoreConfig(mapped_file_size_commit_log=segment)
        with StoreWriter.open(path, config) as store:
            block = encoded_traffic(Traffic(_BLOCK_ROWS, topics={"orders": 8}, body_size=_BODY))[0]
            while store.stats()["commitLogMaxOffset"] < sizes.cold + sizes.hot:
                _put(store, block)
            store.flush()
            for cache in ("spare", "use"):
                yield _cached(path, folder, sizes, cache)
            yield from _puts(store, path, folder)
    yield from _rows(stores, sizes)


def _cached(path: Path, folder: Path, sizes: Sizes, cache: str) -> Figure:
    files = sorted((path / "commitlog").glob("[0-9]*"))
    cold = [file for file in files if int(file.name) < sizes.cold]
    hot = [file for file in files if int(file.name) >= sizes.cold]
    for file in cold:
        drop_pages(file)
    for file in hot:
        with file.open("rb", buffering=0) as opened:
            while opened.read(_PIECE):
                pass
    before = _resident(hot)
    with _sidecar(path, folder, "--page-cache", cache) as endpoint:
        began = time.perf_counter()
        subprocess.run(_reader(endpoint, sizes.cold), cwd=ROOT, check=True)
        seconds = time.perf_counter() - began
    after, left = _resident(hot), _resident(cold)
    kept = after / before
    return Figure(
        _SECTION,
        f"{sizes.cold >> 20:,} MiB of cold log read, pageCache={cache}: of the newest "
        f"{sizes.hot >> 20:,} MiB in the page cache",
        f"{after:.1%}",
        "before",
        f"{before:.1%}",
        f"{kept:.2f}",
        f"{_KEPT}" if cache == "spare" else "",
        ("yes" if kept >= _KEPT else "no") if cache == "spare" else "",
        f"{left:.1%} of the cold log stays in the page cache; {sizes.cold / seconds / 1e6:,.0f} "
        "MB/s through the sidecar",
    )


def _resident(files: list[Path]) -> float:
    return float(
        np.average([resident(f) for f in files], weights=[f.stat().st_size for f in files])
    )


def _puts(store: StoreWriter, path: Path, folder: Path) -> Iterator[Figure]:
    block = encoded_traffic(Traffic(1, topics={"orders": 8}, body_size=_BODY))[0]
    alone = _latencies(store, block)
    for limits in ([], ["--max-read-rate", "50m", "--idle-io"]):
        with _sidecar(path, folder, *limits) as endpoint:
            # Without an end: it reads the log again and again until it is stopped.
            reader = subprocess.Popen(_reader(endpoint, 0), cwd=ROOT)
            try:
                beside = _latencies(store, block)
                if reader.poll() is not None:
                    raise RuntimeError("the reader beside the writer has ended")
            finally:
                reader.kill()
                reader.wait()
        ratio = beside[0] / alone[0]
        yield Figure(
            _SECTION,
            f"a put of {_BODY:,} B beside a sidecar that reads "
            f"{' '.join(limits) or 'without limits'}, median",
            f"{beside[0] * 1e3:.3f} ms",
            "without the sidecar",
            f"{alone[0] * 1e3:.3f} ms",
            f"{ratio:.2f}",
            f"{_SLOWER}" if limits else "",
            ("yes" if ratio <= _SLOWER else "no") if limits else "",
            f"p99 {beside[1] * 1e3:.2f} ms against {alone[1] * 1e3:.2f} ms",
        )


def _latencies(store: StoreWriter, block: U1) -> tuple[float, float]:
    """Return the median and the 99th percentile of puts, in seconds."""
    seconds = []
    end = time.perf_counter() + _PUT_SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        _put(store, block)
        seconds.append(time.perf_counter() - began)
        time.sleep(_PUT_PAUSE)
    median, high = np.percentile(seconds, [50, 99])
    return float(median), float(high)


def _put(store: StoreWriter, block: U1) -> None:
    result = store.put(block)
    if not result.ok:
        raise RuntimeError(f"a put failed: {result.status}")


def _rows(stores: Stores, sizes: Sizes) -> Iterator[Figure]:
    shape = Shape(_BODY, 8, sizes.rows // record_size(_BODY) // 1000 * 1000)
    path = stores(shape)
    with (
        tempfile.TemporaryDirectory(prefix="rmqstore-bench-") as folder,
        StoreProcess(path, Path(folder), "--read-only") as sidecar,
        session() as spark,
    ):

        def read(option: str, place: str) -> None:
            frame = spark.read.format("rmqstore").option(option, place).load()
            frame.write.format("noop").mode("overwrite").save()

        turns = Turns(
            {
                "from the path": lambda: read("path", str(path)),
                "through the sidecar": lambda: read("endpoint", sidecar.endpoint),
            },
            sidecar.process.pid,
        )
    what = f"Spark reads {_BODY:,} B messages"
    ratios = turns.ratios("through the sidecar", "from the path")
    yield Figure(
        _SECTION,
        f"{what} through the sidecar",
        f"{shape.count / turns['through the sidecar']:,.0f} rows/s",
        "from the path",
        f"{shape.count / turns['from the path']:,.0f} rows/s",
        *ratio_cells(statistics.median(ratios), _AIM),
        f"{spread(ratios)}; Spark's two cores also do the sidecar's work",
    )
    yield from turns.cpu_figures(_SECTION, what, shape.count)


@contextmanager
def _sidecar(path: Path, folder: Path, *arguments: str) -> Iterator[str]:
    with StoreProcess(path, folder, "--read-only", *arguments) as process:
        yield process.endpoint


def _reader(endpoint: str, size: int) -> list[str]:
    """Return the command of a process that reads the log's first bytes; 0: all of it, forever."""
    return [
        sys.executable,
        "-m",
        "benchmarks.spark.sidecar",
        "--read",
        endpoint,
        "--cold",
        str(size),
    ]


def _read(endpoint: str, size: int) -> None:
    with Store.open(endpoint) as store:
        log = store.log
        out = np.empty(_PIECE, np.uint8)
        while True:
            at, end = log.min_offset, size or log.file_end
            while at < end:
                at += log.read_into(at, out[: min(_PIECE, end - at)])
            if size:
                return


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark.sidecar", description=__doc__)
    sizes = Sizes()
    for name in ("cold", "hot", "rows"):
        parser.add_argument(f"--{name}", type=parse_bytes, default=getattr(sizes, name))
    parser.add_argument("--folder", type=Path, default=ROOT / ".bench", help="of the stores")
    parser.add_argument("--read", metavar="ENDPOINT", help="only read --cold bytes of its log")
    given = parser.parse_args()
    if given.read:
        _read(given.read, given.cold)
        return
    stores = Stores(given.folder.resolve())
    print_table(list(sidecar_figures(stores, Sizes(given.cold, given.hot, given.rows))))


if __name__ == "__main__":
    main()
