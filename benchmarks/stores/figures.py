"""The figures of all stores: appends, reads, keys, expiry, sizes, and opening after `kill -9`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.means.stores import Stores
from benchmarks.report.figures import Figure
from benchmarks.stores.driver import Place, Templates, bytes_written
from benchmarks.stores.kind import Kind, Opening
from benchmarks.stores.kinds import KINDS
from benchmarks.stores.messages import Load

__all__ = ["OURS", "SECTION", "store_figures"]

SECTION: Final = "Stores"
OURS: Final = "this store"
_SIZES: Final = {100: "100 B", 1024: "1 KiB"}
_QUEUES: Final = {1: "1 queue", 1_000: "1,000 queues"}
_WRITERS: Final = {1: "1 writer", 16: "16 writers"}
_FLUSHES: Final = {True: "synchronous", False: "asynchronous"}
_SECONDS: Final = 0.6
"""Of appends: long enough for thousands of flushes."""
_MOST: Final = {32: 200_000, 1: 60_000}
"""Messages that are made before, by the size of an append; a faster store ends sooner."""
_COUNTS: Final = {100: 200_000, 1024: 200_000}
"""Messages that are kept, by the size of a body: LevelDB merges files meanwhile."""
_KILLED: Final = 20_000
_ALONE: Final = 5_000
_ENOUGH: Final = 500
_RAW_SECONDS: Final = 1.0
_RAW_BYTES: Final = 32 << 20


def store_figures(stores: Stores) -> Iterator[Figure]:
    """Measure all stores that are installed."""
    stores.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="stores-", dir=stores.folder))
    folder.chmod(0o755)  # servers have users of their own
    try:
        kinds = []
        for kind in KINDS.values():
            reason = kind.missing()
            value = "not measured" if reason else kind.version()
            yield Figure(f"{SECTION}: versions", kind.name, value, note=reason)
            if reason:
                print(f"{kind.name} is not measured: {reason}", flush=True)
            else:
                kinds.append(kind)
        templates = Templates(folder)
        yield _raw(folder)
        yield from _appends(kinds, templates)
        yield from _kept(kinds, templates)
        yield from _killed(kinds, templates)
    finally:
        shutil.rmtree(folder)


def _raw(folder: Path) -> Figure:
    """What the disk can do: one thread writes 1 KiB, and waits for it."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, _RAW_BYTES)
        os.fsync(file.fileno())
        begin, count = time.perf_counter(), 0
        while (took := time.perf_counter() - begin) < _RAW_SECONDS:
            os.pwrite(file.fileno(), bytes(1024), (count << 10) % _RAW_BYTES)
            os.fdatasync(file.fileno())
            count += 1
    return Figure(
        f"{SECTION}: the disk",
        "writes of 1 KiB, each with fdatasync",
        f"{count / took:,.0f} a second",
    )


def _appends(kinds: Sequence[Kind], templates: Templates) -> Iterator[Figure]:
    """All combinations with appends of 32 messages; then appends of one message."""
    cases = [(32, size, queues) for size in _SIZES for queues in _QUEUES] + [(1, 1024, 1)]
    with ExitStack() as running:
        servers = {
            kind.name: running.enter_context(templates.place(kind))
            for kind in kinds
            if templates.needs_server(kind)
        }
        for place in servers.values():
            place.start()
        for batch, size, queues in cases:
            section = f"{SECTION}: appends of {batch}, {_SIZES[size]}, {_QUEUES[queues]}"
            load = Load(size, queues, _MOST[batch])
            for sync, flush in _FLUSHES.items():
                for writers, threads in _WRITERS.items():
                    opened = Opening("", queues, sync, writers, new=True)
                    rates, notes = {}, {}
                    for kind in kinds:
                        if sync and not kind.keeps:
                            continue  # memory has no disk to wait for
                        with ExitStack() as stack:
                            where = servers.get(kind.name) or stack.enter_context(
                                templates.place(kind)
                            )
                            found = where.run(
                                "append", load, opened=opened, batch=batch, seconds=_SECONDS
                            )
                        rates[kind.name] = found["rate"]
                        notes[kind.name] = (
                            f"an append: median {found['median'] * 1000:.2f} ms, "
                            f"p99 {found['p99'] * 1000:.2f} ms"
                        )
                    yield from _rows(section, f"{flush}, {threads}", rates, _rate, notes)


def _kept(kinds: Sequence[Kind], templates: Templates) -> Iterator[Figure]:
    """Fill stores; read, find and expire; and look at the disk."""
    for size, bodies in _SIZES.items():
        for queues, name in _QUEUES.items():
            load = Load(size, queues, _COUNTS[size])
            found: defaultdict[str, dict[str, float]] = defaultdict(dict)
            for kind in kinds:
                with templates.place(kind) as place:
                    for what, value in _filled(place, load).items():
                        found[what][kind.name] = value
            section = f"{SECTION}: {load.count:,} messages, {bodies}, {name}"
            for what, values in found.items():
                yield from _rows(section, what, values, _FORMS[what])


def _filled(place: Place, load: Load) -> dict[str, float]:
    found: dict[str, float] = {}
    payload = load.count * load.size
    before = bytes_written()
    place.start()
    filled = place.run("fill", load, opened=Opening("", load.queues, new=True))
    place.stop()
    found["first 1,000 messages, in one batch"] = filled["first"]
    found["further ones in batches of 1,000"] = filled["rate"]
    if place.kind.keeps:
        found["bytes on disk, of those of bodies"] = place.bytes_on_disk / payload
        found["bytes written, of those of bodies"] = (bytes_written() - before) / payload
    place.start()
    read = place.run("read", load)
    found["pulls of 32 from the middle"] = read["pulls"]
    found["scan from the middle"] = read["scans"]
    found["find by key"] = place.run("find", load)
    found["expire the older half"] = place.run("expire", load)
    place.stop()
    if place.kind.keeps:
        found["bytes on disk after expiry, of those of bodies"] = place.bytes_on_disk / payload
    return found


def _killed(kinds: Sequence[Kind], templates: Templates) -> Iterator[Figure]:
    """Kill while messages are appended, and open again."""
    load = Load(1024, 1, _KILLED + _ALONE)
    for sync, flush in _FLUSHES.items():
        times, notes, lost = {}, {}, {}
        for kind in kinds:
            if not kind.keeps:
                continue
            with templates.place(kind) as place:
                place.start()
                opened = Opening("", 1, sync, new=True)
                last = place.leave(load, opened, _ALONE, _ENOUGH)
                start = place.start()
                after = place.run(
                    "reopen", load, opened=Opening("", 1, sync), first=_KILLED, acknowledged=last
                )
            times[kind.name] = start + after["seconds"]
            lost[kind.name] = after["lost"]
            notes[kind.name] = f"{after['checked']} acknowledged messages were looked for"
        section = f"{SECTION}: kill -9"
        yield from _rows(section, f"{flush}: opened again", times, _milliseconds)
        for name, count in lost.items():
            yield Figure(
                section, f"{name}, {flush}: acknowledged messages lost", f"{count}",
                note=notes[name],
            )  # fmt: skip


def _rows(
    section: str, what: str, values: dict[str, float], form: Callable[[float], str],
    notes: dict[str, str] | None = None,
) -> Iterator[Figure]:  # fmt: skip
    """One figure for each store, against this store in the same run."""
    ours = values.get(OURS)
    for name, value in values.items():
        compared = name != OURS and ours is not None and ours > 0
        yield Figure(
            section, f"{name}, {what}", form(value), OURS if compared else "",
            form(ours) if compared and ours is not None else "",
            f"{value / ours:.3g}" if compared and ours is not None else "",
            note=(notes or {}).get(name, ""),
        )  # fmt: skip


def _rate(value: float) -> str:
    return f"{value:,.0f} msg/s"


def _microseconds(value: float) -> str:
    return f"{value * 1e6:,.1f} us"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:,.1f} ms"


def _times(value: float) -> str:
    return f"{value:.2f} times"


_FORMS: Final[dict[str, Callable[[float], str]]] = {
    "first 1,000 messages, in one batch": _milliseconds,
    "further ones in batches of 1,000": _rate,
    "pulls of 32 from the middle": _rate,
    "scan from the middle": _rate,
    "find by key": _microseconds,
    "expire the older half": _milliseconds,
    "bytes on disk, of those of bodies": _times,
    "bytes written, of those of bodies": _times,
    "bytes on disk after expiry, of those of bodies": _times,
}
