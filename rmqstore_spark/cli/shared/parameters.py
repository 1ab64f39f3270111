"""Defines arguments and options that commands share, and opens what they name.

That is a store, a client of a store process with its credentials, or the configuration of one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar, get_type_hints

import typer

from rmqstore_spark.errors import OptionError
from rmqstore_spark.files.systems.schemes import is_endpoint
from rmqstore_spark.reader.texts import parse_timestamp_ms

if TYPE_CHECKING:
    from rmqstore_spark.client import StoreClient
    from rmqstore_spark.engine.config.store_config import StoreConfig
    from rmqstore_spark.reader.store import Store

_MASTER_SECONDS: Final = 30.0
"""How long a command waits for a master: an election takes less."""

EndpointOf = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT", help="Endpoint of a store process, as `rmqstore serve` prints it."
    ),
]


MasterOf = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT",
        help="Endpoint of a store process, as `rmqstore serve` prints it. With `|` between, those "
        "of the members of a DLedger group, or of other replicas of a store: the one that is the "
        "master takes it.",
    ),
]


@dataclass(frozen=True)
class Credentials:
    """Names of the files by which a store process and its client authenticate each other."""

    acl_file: Annotated[
        str | None,
        typer.Option(
            "--acl-file",
            metavar="FILE",
            help="File with accessKey and secretKey of your account, if the store process needs "
            "one.",
        ),
    ] = None
    tls_ca: Annotated[
        str | None,
        typer.Option(
            "--tls-ca",
            metavar="FILE",
            help="CA certificates (PEM) that verify the store process.  [default: the system's]",
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Your certificate (PEM), if the store process requires one.",
        ),
    ] = None
    tls_key: Annotated[
        str | None,
        typer.Option("--tls-key", metavar="FILE", help="Private key (PEM) of --tls-cert."),
    ] = None

    def over(self, others: Credentials) -> Credentials:
        """Return these, with missing ones taken from the others.

        Raises:
            OptionError: together they have a certificate without a key, or a key without one.
        """
        merged = {**others.options(), **self.options()}
        if ("tls_cert" in merged) != ("tls_key" in merged):
            raise OptionError("Options --tls-cert and --tls-key must be given together.")
        return Credentials(**merged)

    def options(self) -> dict[str, Any]:
        """Return the given ones as arguments of a client."""
        return {name: value for name, value in vars(self).items() if value is not None}


_given: Final[ContextVar[Credentials]] = ContextVar("credentials")


def use_credentials(credentials: Credentials) -> None:
    """Set the credentials of `connect`, and of stores that are opened by their endpoint."""
    _given.set(credentials)


def given_credentials() -> Credentials:
    """Return the credentials that were given before or after the command's name."""
    return _given.get(Credentials())


def with_groups(command: Callable[..., None], *, remote: bool = False) -> Callable[..., None]:
    """Return a command for typer: a parameter that is a dataclass becomes one for each field.

    Args:
        command: takes dataclasses as keyword arguments.
        remote: whether it accepts the options of `Credentials` after its name, too.
    """
    own = inspect.signature(command, eval_str=True).parameters
    groups = {name: each.annotation for name, each in own.items() if is_dataclass(each.annotation)}

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        def taken(group: Any) -> Any:
            return group(**{each.name: given.pop(each.name) for each in fields(group)})

        arguments = {name: taken(group) for name, group in groups.items()}
        if remote:
            use_credentials(taken(Credentials).over(given_credentials()))
        command(**arguments, **given)

    parameters: list[inspect.Parameter] = []
    for name, each in own.items():
        parameters += _of_group(groups[name]) if name in groups else [each]
    parameters += _of_group(Credentials) if remote else []
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    # Typer derives the command's options from these.
    wrapper.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {each.name: each.annotation for each in named}
    return wrapper


def _of_group(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        each.replace(annotation=hints[name])
        for name, each in inspect.signature(group).parameters.items()
    ]


def connect(endpoint: str) -> StoreClient:
    """Return a client of a store process, which is a context manager."""
    from rmqstore_spark.client import StoreClient

    return StoreClient(endpoint, **given_credentials().options())


def master_of(endpoints: str) -> str:
    """Return the endpoint of the master among the replicas of a store; one alone is not asked.

    Raises:
        OptionError: one is not an endpoint, or they belong to different stores.
        ServiceError: none of them is the master, or several are.
    """
    from rmqstore_spark.client.masters import PROBE_SECONDS, find_master
    from rmqstore_spark.client.store_client import StoreClient
    from rmqstore_spark.wire.endpoint import parse_replicas

    def probe(endpoint: str) -> StoreClient:
        given = given_credentials().options()
        return StoreClient(
            endpoint, timeout_s=PROBE_SECONDS, connect_s=PROBE_SECONDS, retries=0, **given
        )

    return find_master([str(each) for each in parse_replicas(endpoints)], probe, _MASTER_SECONDS)


CommitLogPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--commitlog-path",
        metavar="PATH",
        help="CommitLog folder, if it is not STORE/commitlog. Repeat it for several.",
    ),
]


@dataclass(frozen=True)
class StoreAt:
    """The store that a command reads."""

    store_path: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="Store directory, URL that fsspec supports, or endpoint of a store process.",
        ),
    ]
    broker_name: Annotated[
        str | None,
        typer.Option(
            "--broker-name",
            metavar="NAME",
            help="Name of the store. By default the name of its folder.",
        ),
    ] = None
    commitlog_paths: CommitLogPaths = None

    def open(self) -> Store:
        """Open it."""
        from rmqstore_spark.reader.store import Store

        path = self.store_path
        return Store.open(
            path,
            broker_name=self.broker_name,
            commitlog_paths=self.commitlog_paths or None,
            storage_options=given_credentials().options() if is_endpoint(path) else None,
        )


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
AllTopics = Annotated[
    bool,
    typer.Option("--all", "-a", help="Include system topics (retries, schedule, RMQ_SYS_...)."),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic. Repeat it for several."),
]
QueueIds = Annotated[
    list[int] | None,
    typer.Option(
        "--queue", "-q", metavar="ID", min=0, help="Only this queue. Repeat it for several."
    ),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Only messages with this tag, or one of several: 'A || B'. Repeat it for several.",
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="KEY", help="Only messages with this key. Repeat it for several."
    ),
]
SkipDamaged = Annotated[
    bool,
    typer.Option("--skip-damaged", help="Skip damaged and missing records instead of failing."),
]


def parse_time(option: str, text: str | None) -> int | None:
    """Parse a time as milliseconds; return None if none was given.

    Raises:
        OptionError: the text is not a time; the error names the option.
    """
    if text is None:
        return None
    try:
        return parse_timestamp_ms(text)
    except ValueError as error:
        raise OptionError(f"{option} {error}, not {text!r}.") from None


ConfigFile = Annotated[
    str | None,
    typer.Option("--config", metavar="FILE", help="Configuration file, such as conf/store.conf."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set a configuration key. Repeat it for several."
    ),
]


def require_folder(path: str) -> None:
    """Refuse a URL as the place of a store that is written.

    Raises:
        OptionError: it is one.
    """
    if "://" in path or is_endpoint(path):
        raise OptionError(
            f"{path} is a URL, but a store can only be written in a folder of this machine. Give "
            "the path of a folder."
        )


def read_config(
    file: str | None, settings: Sequence[str] | None, flags: Mapping[str, tuple[str, object]]
) -> StoreConfig:
    """Merge a configuration: flags override the environment, which overrides the file.

    Args:
        file: path of a properties file.
        settings: `--set` values.
        flags: key and value by flag; the value is None if the flag was not given.

    Raises:
        OptionError: a key is unknown, a value is wrong, or `--set` and a flag differ; the error
            names its source.
    """
    from rmqstore_spark.engine.config.store_config import StoreConfig

    config = StoreConfig() if file is None else StoreConfig.from_file(file)
    config = config.with_environment()
    return overridden(config, settings, flags)


class _Config(Protocol):
    def with_overrides(self, values: Mapping[str, str], *, source: str) -> Any: ...


_C = TypeVar("_C", bound=_Config)


def overridden(
    config: _C, settings: Sequence[str] | None, flags: Mapping[str, tuple[str, object]]
) -> _C:
    """Return a configuration with the values of `--set` and of flags; see `read_config`.

    Raises:
        OptionError: a value is wrong, or `--set` and a flag give different values for a key.
    """
    split = _split_settings(settings)
    config = config.with_overrides(split, source="--set: ")
    for flag, (key, given) in flags.items():
        if given is None:
            continue
        if split.get(key, str(given)) != str(given):
            raise OptionError(
                f"Option {flag} gives {key} the value {given}, and --set gives it {split[key]}. "
                "Give one of them."
            )
        config = config.with_overrides({key: str(given)}, source=f"{flag}: ")
    return config


def _split_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """Return the values of `--set` by key.

    Raises:
        OptionError: one is not KEY=VALUE.
    """
    found = {}
    for text in settings or ():
        key, separator, value = text.partition("=")
        if not separator:
            raise OptionError(f"Option --set must be KEY=VALUE, not {text!r}.")
        found[key.strip()] = value
    return found
