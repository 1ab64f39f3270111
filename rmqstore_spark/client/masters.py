"""Find the master among the replicas of a store: it takes the writes.

Which one it is can change at any time: a slave is promoted, or a DLedger group elects another
leader. A write that meets a slave changes nothing, so it is enough to ask before each step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from rmqstore_spark.client.patience import can_pass, rounds, told
from rmqstore_spark.client.store_client import StoreClient
from rmqstore_spark.errors import OptionError, RmqStoreError, ServiceError

_log = logging.getLogger("rmqstore_spark")

PROBE_SECONDS: Final = 2.0
"""A process that is stopped would be waited for otherwise, while another one leads."""

Probe: TypeAlias = Callable[[str], StoreClient]


def find_master(endpoints: Sequence[str], probe: Probe, seconds: float) -> str:
    """Return the endpoint of the master among replicas.

    It is not waited for if all of them refuse what waiting cannot mend: the account, the
    certificate, or a client without TLS. If one cannot be reached, it is: that may be the master,
    which starts again, and has other accounts than those that refuse.

    Args:
        endpoints: of the replicas; if there is one only, it is not asked.
        probe: returns a client of one of them, which tries once, for at most `PROBE_SECONDS`.
        seconds: how long to wait for a master.

    Raises:
        OptionError: they belong to different stores, or none can be asked with these options.
        ServiceError: all refuse; or none of them is the master, or several are, for that long.
    """
    if len(endpoints) == 1:
        return endpoints[0]
    failures: dict[str, Exception] = {}
    found: Sequence[str] = ()
    for number, _ in enumerate(rounds(seconds)):
        failures.clear()
        found = _masters(probe, endpoints, failures)
        if len(found) == 1:
            return found[0]
        if failures and not found and not any(map(can_pass, failures.values())):
            raise _refusal(failures)
        if number == 1:
            _log.warning("%s Waiting until one replica of the store does.", _why(found, failures))
    raise ServiceError(f"{_why(found, failures)} {_remedy(found, failures)}", can_pass=True)


class _SlaveError(ServiceError):
    """Why a store that answers takes no writes: it can be promoted, or elected."""

    def __init__(self, text: str = "It is a slave, or read-only") -> None:
        super().__init__(text, can_pass=True)


class _NotLeadingError(_SlaveError):
    """Why a member of a DLedger group takes no writes."""


def _remedy(masters: Sequence[str], failures: Mapping[str, Exception]) -> str:
    if masters:
        return (
            "Each would take other messages: stop the one that was replaced, and read docs/"
            "replication.md, A pair of store processes."
        )
    if any(isinstance(failure, _NotLeadingError) for failure in failures.values()):
        return (
            "The members of a DLedger group elect the one that takes writes: start most of them, "
            "and name the endpoints of all. rmqstore stats ENDPOINT tells how each of them is."
        )
    return "Promote one of them (rmqstore promote), or start enough members of its group."


def _refusal(failures: Mapping[str, Exception]) -> RmqStoreError:
    """Return the error for replicas that all refuse: what the first one says, once."""
    (first, refusal), *others = failures.items()
    said = str(refusal)
    same = [url for url, error in others if str(error).replace(url, first) == said]
    text = said if first in said else f"{first}: {said}"
    if same:
        text += f" So it is at {' and '.join(same)}."
    if unlike := {url: error for url, error in others if url not in same}:
        text += f" {told(unlike)}"
    return OptionError(text) if isinstance(refusal, OptionError) else ServiceError(text)


def _why(masters: Sequence[str], failures: Mapping[str, Exception]) -> str:
    if masters:
        return f"Several replicas of a store take writes: {', '.join(masters)}."
    return f"No replica of a store takes writes. {told(failures)}"


def _masters(probe: Probe, endpoints: Iterable[str], failures: dict[str, Exception]) -> list[str]:
    """Return those that are masters; say of the others why they are not."""
    found, others = [], []
    names: dict[str, str] = {}
    for endpoint in endpoints:
        try:
            with probe(endpoint) as client:
                reply = client.open(())
        except RmqStoreError as error:
            failures[endpoint] = error
            continue
        names[reply.broker_name] = endpoint
        if reply.is_master:
            found.append(endpoint)
        else:
            failures[endpoint] = _SlaveError()
            others.append(endpoint)
    if len(names) > 1:
        (one, at), (other, there) = list(names.items())[:2]
        raise OptionError(
            f"{at} (broker {one}) and {there} (broker {other}) are named as replicas of one store. "
            "Replicas have the same broker name, and `|` between their endpoints; in Spark's "
            "option endpoint, separate stores have commas."
        )
    if not found:
        failures.update((endpoint, _why_not(probe, endpoint)) for endpoint in others)
    return found


def _why_not(probe: Probe, endpoint: str) -> _SlaveError:
    """Return why a store that answers takes no writes."""
    with suppress(RmqStoreError), probe(endpoint) as client:
        figures = client.stats()
        if figures.get("groupRole") == "LEADER":
            return _NotLeadingError("It was elected by its DLedger group, and takes writes soon")
        if "groupRole" in figures:
            leader = figures["groupLeader"]
            return _NotLeadingError(
                f"It follows {leader}, the leader of its DLedger group"
                if leader
                else "It is a member of a DLedger group that has no leader now"
            )
    return _SlaveError()
