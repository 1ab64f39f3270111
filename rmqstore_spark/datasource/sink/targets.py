"""Find where a write goes through name servers, when it is planned.

If each of the brokers is a store process that announces its endpoint, the write goes
there, as with option `endpoint`. Otherwise messages are sent over RocketMQ's protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from rmqstore_spark.datasource.failures import some
from rmqstore_spark.datasource.options.parsing import SinkOptions
from rmqstore_spark.datasource.sink.commit import with_advice
from rmqstore_spark.datasource.sink.masters import with_masters
from rmqstore_spark.errors import OptionError, ServiceError
from rmqstore_spark.layout.constants import MASTER_ID
from rmqstore_spark.wire.endpoint import parse_endpoint

if TYPE_CHECKING:
    from rmqstore_spark.client.brokers.answers import WritePlace
    from rmqstore_spark.client.brokers.routes import NameServers
    from rmqstore_spark.datasource.options.connection import ConnectionOptions


def find_targets(options: SinkOptions, schema: StructType, *, streaming: bool) -> SinkOptions:
    """Return the options for tasks and commits: with endpoints, or marked for sending.

    Name servers report the endpoints, unless an option names them. If a broker has no endpoint,
    messages are sent over RocketMQ's protocol.

    Args:
        options: of the write.
        schema: of its rows.
        streaming: whether a stream is written.

    Raises:
        OptionError: the brokers cannot do what the options ask for.
        TopicNotFoundError: no broker takes messages of the topic.
        ServiceError: no name server or store process answers, or a broker has no master.
    """
    found = options
    if options.target.name_servers:
        found = _routed(options, schema, streaming=streaming)
    target = found.target
    connection = target.connection
    if not target.to_brokers:
        try:
            connection = with_masters(connection)
            _meet(connection)
        except ServiceError as error:
            raise (with_advice(error) if streaming else error) from None
    return replace(found, target=replace(target, connection=connection.reached))


def _meet(connection: ConnectionOptions) -> None:
    """Find out whether the store processes answer at all, if they never have.

    Otherwise each task would find out, and fail, and be tried again.
    """
    from rmqstore_spark.client.contact import was_reached

    for endpoint in connection.endpoints:
        if not was_reached(parse_endpoint(endpoint).address):
            with connection.client(endpoint) as client:
                client.open(())


def _routed(options: SinkOptions, schema: StructType, *, streaming: bool) -> SinkOptions:
    target = options.target
    connection = target.connection
    with connection.name_servers(target.name_servers) as servers:
        places = _places(options.messages.topic, target.broker_names, servers)
    names = [place.name for place in places]
    foreign = [f"{place.name} ({place.address})" for place in places if not place.endpoint]
    if foreign:  # to which all of it is sent over their protocol
        connection.check_protected(foreign, ())
        _check_sent(options, schema, f"The broker {some(foreign)}")
        return replace(
            options,
            target=replace(target, to_brokers=True),
            delivery=replace(options.delivery, exactly_once=False),
        )
    if options.delivery.exactly_once:
        _check_repeatable(options, names, streaming=streaming)
    endpoints = tuple(dict.fromkeys(place.endpoint for place in places))
    connection.check_protected((), endpoints)
    reached = replace(connection, endpoints=endpoints)
    return replace(options, target=replace(target, connection=reached))


def _places(
    topic: str | None, broker_names: Sequence[str] | None, servers: NameServers
) -> list[WritePlace]:
    """Return the brokers of a write by name."""
    from rmqstore_spark.client.brokers.routes import find_write_places

    if topic is not None and broker_names is None:
        return list(find_write_places(servers, topic))
    known = _all(servers)
    wanted = sorted(known if broker_names is None else set(broker_names))
    found = [known[name] for name in wanted if name in known]
    if not found:
        raise ServiceError(
            f"{servers.name} knows no broker with a master (or none of those in option "
            f"brokerNames). Known brokers: {some(sorted(known))}. Check that the brokers have "
            "registered.",
            can_pass=True,
        )
    return found


def _all(servers: NameServers) -> dict[str, WritePlace]:
    """Return all brokers that have a master, by name. Only routes tell their endpoints."""
    from rmqstore_spark.client.brokers.answers import WritePlace
    from rmqstore_spark.client.brokers.routes import joined

    known = [servers.brokers(), *servers.routes(servers.topics()).values()]
    found = {}
    for place in joined(known):
        address = place.addresses.get(MASTER_ID)
        if address is not None:
            endpoint = place.endpoints.get(address, "")
            found[place.name] = WritePlace(place.name, address, endpoint, 0)
    return found


def _check_sent(options: SinkOptions, schema: StructType, who: str) -> None:
    """Refuse what RocketMQ's brokers cannot do."""
    why = (
        f"{who} is not a store process that announces an endpoint, and RocketMQ's protocol has no "
        "commit of a whole batch"
    )
    if options.delivery.exactly_once and not options.delivery.is_default:
        raise OptionError(
            f"Option deliveryGuarantee=exactly-once is not possible: {why}. Use at-least-once: a "
            "row that is sent again has the same UNIQ_KEY. Or write to store processes."
        )
    if options.delivery.batch_version is not None:
        raise OptionError(
            f"Options txnAppId and txnVersion are not possible: {why}, and does not detect that a "
            "write was run before. Remove them, or write to store processes."
        )
    if options.messages.preserve and any(name.lower() == "bornhost" for name in schema.names):
        raise OptionError(
            f"Column bornHost cannot be kept (preserve): {who} stores the address of the "
            "connection. Drop the column, or write to store processes."
        )


def _check_repeatable(options: SinkOptions, found: list[str], *, streaming: bool) -> None:
    """Refuse an exactly-once write that may go to other brokers when it is repeated.

    A broker that is gone for a while has no route. A repeated batch would go to the others, also
    the part of it that this broker has committed.
    """
    broker_names = options.target.broker_names
    if broker_names is not None:
        missing = sorted(set(broker_names) - set(found))
        if missing:
            raise ServiceError(
                f"The name servers know no master of {some(missing)} now, which option brokerNames "
                f"names: only {some(found)}. Start the missing brokers, then run the write again.",
                can_pass=True,
            )
    elif streaming or options.delivery.batch_version is not None:
        raise OptionError(
            "An exactly-once write that can be repeated needs option brokerNames together with "
            "namesrvAddr, so that a repeated batch goes to the same brokers even if one is down. "
            f"The current brokers: option('brokerNames', '{','.join(found)}'). Or set "
            "deliveryGuarantee=at-least-once."
        )
