"""`rmqstore promote`, `demote`: change which of two store processes is the master."""

from __future__ import annotations

from typing import Annotated

import typer

from rmqstore_spark.cli.shared.connection import EndpointOf, connect
from rmqstore_spark.cli.shared.text import escaped

_Sync = typer.Option(
    "--sync", help="Answer puts when a slave has them (brokerRole=SYNC_MASTER, not ASYNC_MASTER)."
)
_Force = typer.Option(
    "--force",
    help="Also if its master answers, or has sent a log that the store cannot follow.",
)
_Master = typer.Argument(
    metavar="MASTER",
    help="Where the new master serves slaves, HOST:PORT: what `promote` prints.",
    show_default=False,
)
_Broker = typer.Option(
    "--broker",
    metavar="HOST:PORT",
    help="Where the broker of MASTER answers clients (haMasterRemotingAddress).",
    show_default=False,
)


def promote(
    endpoint: EndpointOf,
    sync: Annotated[bool, _Sync] = False,
    force: Annotated[bool, _Force] = False,
) -> None:
    """Make a slave the master while its process runs.

    For when the former master has stopped, and will not start again as a master. The store follows
    nobody from then on, and accepts messages. It stays a master when it is started again, whatever
    its configuration says.
    """
    with connect(endpoint) as client:
        done = client.promote(waits_for_slaves=sync, force=force)
    typer.echo(f"{endpoint} is the master now: its log continues at physical offset {done.begin}")
    if done.slaves:
        typer.echo(f"slaves can follow {escaped(done.slaves)}")


def demote(
    endpoint: EndpointOf,
    master: Annotated[str, _Master],
    broker: Annotated[str, _Broker] = "",
) -> None:
    """Make a master a slave of another while its process runs.

    It accepts nothing from then on, and stays a slave when it is started again. Its own slaves get
    what they lack first, so that one of them can be promoted. If its log is not the beginning of
    that master's, it does not follow, and says so (`rmqstore stats`).
    """
    with connect(endpoint) as client:
        done = client.demote(master, broker)
    typer.echo(f"{endpoint} is a slave now, and follows {master}; its log ends at {done.end}")
    if not done.slaves:
        typer.echo("No slave was connected, which would have got what it lacks.", err=True)
    if done.lacking:
        typer.echo(
            f"{done.lacking} of the slaves that were connected did not get all of it within "
            "slaveTimeout, or left before. If one of them becomes the master, messages are lost.",
            err=True,
        )
    if done.unknown:
        typer.echo(
            f"{done.unknown} of the slaves that were connected were sent all of it, and do not say "
            f"what they have (haAcknowledge). A new master has it if its log ends at {done.end}.",
            err=True,
        )
