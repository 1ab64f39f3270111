"""`rmqstore follow`: keeps a store a copy of a master's log, and serves it."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rmqstore_spark.cli.shared.parameters import ConfigFile, Settings, read_config, require_folder
from rmqstore_spark.cli.shared.terminal import PROBLEMS, configure_logging, say
from rmqstore_spark.errors import OptionError, ReplicationError, RmqStoreError

if TYPE_CHECKING:
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.ha.follower import LogFollower
    from rmqstore_spark.ha.follower_progress import Standing

_Master = typer.Argument(
    metavar="MASTER",
    help="The master's HA address, HOST:PORT. A broker's port is its listenPort + 1 (10912).",
)
_Store = typer.Argument(metavar="STORE", help="Store directory.")
_RestartFrom = typer.Option(
    "--restart-from",
    metavar="earliest|latest|OFFSET",
    help="Keep the store's log aside, and copy the master's from there.",
)
_UntilCaughtUp = typer.Option("--until-caught-up", help="Stop once the store has all of the log.")
_Tls = typer.Option(
    "--tls", help="Connect to MASTER over TLS, and check its certificate (key haTlsEnable)."
)
_TlsCa = typer.Option(
    "--tls-ca",
    metavar="FILE",
    help="CA certificates (PEM) that verify MASTER; implies --tls.  [default: the system's]",
)
_TlsCert = typer.Option(
    "--tls-cert", metavar="FILE", help="Certificate (PEM) to show to MASTER; implies --tls."
)
_TlsKey = typer.Option("--tls-key", metavar="FILE", help="Private key (PEM) of --tls-cert.")
_Port = typer.Option(
    "--port",
    metavar="N",
    help="Port to serve the store on; 0 for any free port.  [default: 0; for a broker listenPort]",
)
_ReadyFile = typer.Option(
    "--ready-file",
    metavar="FILE",
    help="File to write when the process is ready: JSON with endpoint, store, pid.",
)


def follow(
    master: Annotated[str, _Master],
    store_path: Annotated[str, _Store],
    restart_from: Annotated[str | None, _RestartFrom] = None,
    until_caught_up: Annotated[bool, _UntilCaughtUp] = False,
    tls: Annotated[bool, _Tls] = False,
    tls_ca: Annotated[str | None, _TlsCa] = None,
    tls_cert: Annotated[str | None, _TlsCert] = None,
    tls_key: Annotated[str | None, _TlsKey] = None,
    port: Annotated[int | None, _Port] = None,
    config_file: ConfigFile = None,
    settings: Settings = None,
    ready_file: Annotated[str | None, _ReadyFile] = None,
) -> None:
    """Keep a store a copy of a master's log.

    The master is a broker, or another store process. Creates the store if it does not exist, and
    serves it to readers meanwhile. Prints on stderr how far it is behind. Runs until SIGTERM,
    Ctrl-C or `rmqstore stop` (exit code 0), or until the master's log cannot be followed (1): it is
    another one, or damaged. Then the store stays as it is, and --restart-from begins again.
    """
    from rmqstore_spark.engine.log.cut import set_aside
    from rmqstore_spark.server.process import serve as serve_store

    configure_logging("text")
    require_folder(store_path)
    if "://" in master:
        raise OptionError(f"MASTER must be host:port, such as broker-1:10912, not {master}.")
    path = os.path.abspath(store_path)
    flags: dict[str, tuple[str, object]] = {
        "MASTER": ("haMasterAddress", master),
        "STORE": ("storePathRootDir", path),
        "--restart-from": ("haFrom", restart_from),
        "--tls": ("haTlsEnable", "true" if tls or tls_ca or tls_cert else None),
        "--tls-ca": ("tlsClientTrustCertPath", tls_ca),
        "--tls-cert": ("tlsClientCertPath", tls_cert),
        "--tls-key": ("tlsClientKeyPath", tls_key),
    }
    config = read_config(config_file, settings, flags)
    if not config.ha_master_address:
        raise OptionError("MASTER must be host:port, such as broker-1:10912.")
    config = replace(config, broker_role="SLAVE", **_served(config, port))
    segment = config.mapped_file_size_commit_log
    if restart_from is not None and restart_from.isdecimal() and int(restart_from) % segment:
        raise OptionError(
            f"--restart-from {restart_from} is not where a segment of the log begins: that is a "
            f"multiple of mappedFileSizeCommitLog ({segment})."
        )
    if restart_from is not None:
        aside = set_aside(path, time.time_ns() // 1_000_000)
        if aside is not None:
            say(f"the log was set aside in {aside}.")
    _require_follower(path, config)
    watch = _Watch(until_caught_up)
    serve_store(config, ready_file=ready_file, announce=typer.echo, watch=watch)
    watch.end()
    if isinstance(watch.failure, ReplicationError):
        say(str(watch.failure))
        raise typer.Exit(PROBLEMS)
    if watch.failure is not None:
        raise watch.failure


def _served(config: StoreConfig, port: int | None) -> dict[str, Any]:
    """Return where and to whom the store is served.

    The configuration can be that of the master, with its port: only a number of its own
    (`brokerId`) makes a slave a broker.
    """
    if config.broker_id and port is None:
        return {}
    if config.broker_id:
        return {"listen_port": port}
    return {"listen_port": port or 0, "clients": "spark"}


def _require_follower(path: str, config: StoreConfig) -> None:
    """Refuse to follow with a store that a command has given another role, or another master.

    Raises:
        OptionError: it has. A supervisor that starts this command again must not undo the other.
    """
    from rmqstore_spark.engine.role import Role

    role = Role(path, config)
    told = role.applied(config).ha_master_address
    if role.accepts:
        raise OptionError(
            f"{path} is a master, as `rmqstore promote` made it: `rmqstore serve` serves it. To "
            "make it follow, use `rmqstore demote` while it is served, or --restart-from, which "
            "keeps its log aside."
        )
    if told != config.ha_master_address:
        raise OptionError(
            f"{path} follows {told}, as `rmqstore demote` made it, and not "
            f"{config.ha_master_address}. Give that as MASTER."
        )


class _Watch:
    """Prints a follower's progress on stderr: as one line of a terminal, or now and then a line.

    Args:
        until_caught_up: end once nothing is missing.
    """

    _LOOK_S: Final = 0.5
    _LINE_S: Final = 10.0

    def __init__(self, until_caught_up: bool) -> None:
        self.failure: RmqStoreError | None = None
        self._until_caught_up = until_caught_up
        self._on_terminal = sys.stderr.isatty()
        self._told = -self._LINE_S
        self._width = 0

    def continues(self, follower: LogFollower) -> bool:
        """Look at a follower; return whether the process should continue."""
        standing = follower.standing()
        if standing.state == "STOPPED":
            self.failure = follower.failure
            return False
        now = time.monotonic()
        done = self._until_caught_up and standing.is_complete
        if done or now - self._told >= (self._LOOK_S if self._on_terminal else self._LINE_S):
            self._told = now
            is_waiting = standing.state != "FOLLOWING"
            waits = f", waiting for the master {follower.master}" if is_waiting else ""
            reason = f": {standing.error.rstrip('.')}" if waits and standing.error else ""
            self._tell(f"{_line(standing)}{waits}{reason}")
        return not done

    def end(self) -> None:
        """Leave the line of the terminal."""
        if self._width:
            print(file=sys.stderr)  # noqa: T201

    def _tell(self, line: str) -> None:
        if self._on_terminal:
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)  # noqa: T201
            self._width = len(line)
        else:
            say(line)


def _line(standing: Standing) -> str:
    if standing.state != "FOLLOWING":
        return f"{standing.state.lower()}, log up to {standing.end:,}"
    text = f"log up to {standing.end:,}, {standing.bytes_per_second / 1e6:.1f} MB/s"
    if standing.is_complete:
        return f"{text}, nothing missing"
    seconds, missing, left = standing.behind_seconds, standing.behind_bytes, standing.seconds_left
    behind = [] if seconds is None else [f"{seconds:,.0f} s"]
    behind += [] if missing is None else [f"about {missing / 1e6:,.0f} MB"]
    eta = "" if left is None else f", about {left:,.0f} s to go"
    if not behind:
        return f"{text}, how far behind is not known yet"
    return f"{text}, {' and '.join(behind)} behind{eta}"
