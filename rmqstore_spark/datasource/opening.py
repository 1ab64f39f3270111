"""Open a store, or the first of its replicas that can be opened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from rmqstore_spark.client.contact import FirstContact, was_reached
from rmqstore_spark.datasource.options.connection import ConnectionOptions
from rmqstore_spark.datasource.options.table import PlaceOptions
from rmqstore_spark.datasource.replicas import FAILURES, can_pass, told
from rmqstore_spark.datasource.spec import SourceStore, StoreSpec, different_names
from rmqstore_spark.errors import ReplicaError
from rmqstore_spark.wire.endpoint import parse_endpoint

__all__ = ["no_replica", "open_first", "patience_s", "rounds"]

_log = logging.getLogger("rmqstore_spark")

_DEFAULT_PATIENCE: Final = 60.0
_FIRST_WAIT: Final = 0.1
_LONGEST_WAIT: Final = 2.0
_PROBE: Final = 2.0  # seconds for a replica that is only asked for its name


def patience_s(connection: ConnectionOptions | None) -> float:
    """Return for how many seconds a query waits for any replica of a store."""
    return _DEFAULT_PATIENCE if connection is None else connection.timeout_ms / 1000


def rounds(
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Yield as long as it is worth trying again, with growing pauses between."""
    give_up = clock() + seconds
    wait = _FIRST_WAIT
    while True:
        yield
        if clock() >= give_up:
            return
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT)


def no_replica(broker: str | None, failures: dict[str, Exception]) -> ReplicaError:
    """Return the error for a store of whose replicas none can be read."""
    of = "the store" if broker is None else broker
    return ReplicaError(
        f"No replica of {of} can be read now. {told(failures)} Start one of them, or wait until "
        "one has caught up; a stream then continues from its checkpoint.",
        can_pass=True,
    )


def open_first(places: PlaceOptions, group: Sequence[StoreSpec], first: int = 0) -> SourceStore:
    """Open a store, or the first of its replicas that can be opened.

    Args:
        places: says how long to wait.
        group: the store and its replicas.
        first: the number of the replica to try first.

    Raises:
        OptionError: the replicas report different broker names.
        ReplicaError: none can be opened.
    """
    if len(group) == 1:
        store = group[0].open()
        return SourceStore(replace(group[0], broker_name=store.broker_name), store)
    specs = [
        spec.with_limits(places.replica_timeout_ms / 1000, replicas=len(group)) for spec in group
    ]
    seconds = _seconds_to_open(places.connection, group)
    with FirstContact(f"any of {' and '.join(spec.url for spec in group)}", seconds) as waiting:
        return _open_any(specs, first, seconds, waiting)


def _seconds_to_open(connection: ConnectionOptions | None, group: Sequence[StoreSpec]) -> float:
    """Return for how long to try the replicas of a store: less if none has ever answered."""
    seconds = patience_s(connection)
    if connection is None or connection.connect_s is None:
        return seconds
    places = [parse_endpoint(spec.url).address for spec in group]
    return seconds if any(map(was_reached, places)) else min(seconds, connection.connect_s)


def _open_any(
    specs: Sequence[StoreSpec], first: int, seconds: float, waiting: FirstContact
) -> SourceStore:
    failures: dict[str, Exception] = {}
    for _ in rounds(seconds):
        for number in range(len(specs)):
            spec = specs[(first + number) % len(specs)]
            try:
                store = spec.open_replica()
            except FAILURES as error:
                failures[spec.url] = error
                continue
            for url, failure in failures.items():
                _log.warning("The replica %s cannot be read now: %s", url, failure)
            if spec.broker_name is None:
                _check_reported(specs, spec, store.broker_name)
            named = tuple(replace(each, broker_name=store.broker_name) for each in specs)
            return SourceStore(named[specs.index(spec)], store, named)
        if not any(map(can_pass, failures.values())):
            break
        waiting.because(told(failures))
    raise no_replica(specs[0].broker_name, failures)


def _check_reported(specs: Sequence[StoreSpec], opened: StoreSpec, name: str) -> None:
    """Refuse replicas that report another name: offsets would depend on who answers first."""
    names = {opened.url: name}
    for spec in specs:
        if spec is opened:
            continue
        try:
            with spec.with_limits(_PROBE).client() as client:
                names[spec.url] = client.open(()).broker_name
        except FAILURES:
            continue  # it is compared when another query finds it
    if len(set(names.values())) > 1:
        raise different_names(names)
