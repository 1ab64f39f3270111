"""Command lines of the jobs; the data source's options keep their own names.

A job declares its arguments as a dataclass, whose fields are parameters of typer.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from rmqstore_spark.base.settings import Declaration
from rmqstore_spark.cli.shared.terminal import HELP_NAMES, usage_errors
from rmqstore_spark.datasource.options.parsing import parse_options
from rmqstore_spark.datasource.options.table import READING
from rmqstore_spark.datasource.schema import COLUMN_TYPES, full_schema, project
from rmqstore_spark.datasource.sources import open_sources
from rmqstore_spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


_PREFIX: Final = "source_"
_EPILOG: Final = "docs/jobs.md describes the jobs, docs/options.md the options of the source."
_NAME_SERVERS: Final = re.compile(r"\s*namesrv://(.*)", re.IGNORECASE | re.DOTALL)
_ENDPOINT: Final = re.compile(r"\s*(rmqs?://|unix:)", re.IGNORECASE)

Endpoint = Annotated[
    str,
    typer.Argument(
        metavar="ENDPOINT",
        help="endpoint of the store process to write to; those of the members of a group, with | "
        "between them; several stores, comma-separated; or name servers: namesrv://HOST:9876",
    ),
]


Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="DDL",
        help='columns to write, as in .schema(...): "queueOffset bigint, body string"; topic and '
        "date become folders  [default: all columns]",
    ),
]


@dataclass(frozen=True, kw_only=True)
class StoreArguments:
    """What all jobs accept.

    Attributes:
        store: paths, endpoints or name servers.
        source: options of the data source by their names, without those that say what is read.
    """

    store: Annotated[
        str,
        typer.Argument(
            metavar="STORE",
            help="store directory or URL, a comma-separated list, a glob, or a JSON list; "
            "endpoints of store processes; or name servers: namesrv://HOST:9876",
        ),
    ]
    source: Mapping[str, str] = field(default_factory=dict)

    def source_options(self) -> dict[str, str]:
        """Return the source's options, with what says which stores are read."""
        name, place = place_option(self.store, otherwise="path")
        return {name: place, **self.source}

    def check_source(self, *, streaming: bool) -> None:
        """Check the source's options, and that its stores can be opened.

        Spark would report the same only after its start, and after a stack trace.

        Raises:
            OptionError: an option is wrong.
            RmqStoreError: a store cannot be opened.
        """
        for opened in open_sources(parse_options(self.source_options(), streaming=streaming)):
            opened.close()


T = TypeVar("T", bound=StoreArguments)
V = TypeVar("V")


@dataclass(frozen=True)
class Job(Generic[T]):
    """Parses the command line of a job.

    Args:
        name: the job's name.
        arguments: the dataclass of its arguments, whose fields are annotated for typer.
        doc: a sentence for the help.
        without: the scope (`options.option`) of the source's options that do not apply; None if
            the job has no options of the source.
        optional_value: an option that can be given without a value, and its value then.
    """

    name: str
    arguments: type[T]
    doc: str
    without: str | None = None
    optional_value: tuple[str, str] | None = None

    def parse(self, words: Sequence[str] | None) -> T:
        """Parse a command line; None is that of the process.

        Raises:
            SystemExit: it is wrong, or it asks for the help.
        """
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(
            cls=_Command,
            help=self.doc,
            epilog=_EPILOG,
            context_settings={"help_option_names": list(HELP_NAMES), "max_content_width": 100},
        )(self._callback())
        command = typer.main.get_command(app)
        given = list(sys.argv[1:] if words is None else words)
        with usage_errors("error"):
            parsed = command.main(
                self._with_value(given), prog_name=self.name, standalone_mode=False
            )
        if isinstance(parsed, self.arguments):
            return parsed
        sys.exit(parsed)  # the help was printed

    def _with_value(self, words: list[str]) -> list[str]:
        """Add the value of an option that was given without one."""
        if self.optional_value is None or self.optional_value[0] not in words:
            return words
        flag, value = self.optional_value
        at = words.index(flag) + 1
        given = at < len(words) and not words[at].startswith("-")
        return words if given else [*words[:at], value, *words[at:]]

    def _callback(self) -> Callable[..., T]:
        """Return a function with a parameter for each argument; typer reads its signature."""

        def make(**given: Any) -> T:
            source = {
                name.removeprefix(_PREFIX): given.pop(name)
                for name in list(given)
                if name.startswith(_PREFIX)
            }
            chosen = {name: text for name, text in source.items() if text is not None}
            return self.arguments(source=chosen, **given)

        parameters = [*self._own_parameters(), *map(_source_parameter, self._source_options())]
        make.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        make.__annotations__ = {each.name: each.annotation for each in parameters}
        return make

    def _own_parameters(self) -> list[inspect.Parameter]:
        hints = get_type_hints(self.arguments, include_extras=True)
        return [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default(each),
                annotation=hints[each.name],
            )
            for each in fields(self.arguments)
            if each.name != "source"
        ]

    def _source_options(self) -> list[Declaration]:
        if self.without is None:
            return []
        stores = ("path", "endpoint", "namesrvAddr")  # the argument STORE says that
        found = [each for each in READING.options if each.group != self.without]
        return [each for each in found if each.name not in stores]


class _Command(TyperCommand):
    """Lists the options of the source in a section of their own."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            if record is not None:
                sections.setdefault(_section(each), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _section(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    is_source = parameter.name.startswith(_PREFIX)
    return "Options of the source (see docs/options.md)" if is_source else "Options"


def _default(argument: Field[Any]) -> Any:
    if argument.default_factory is not MISSING:
        return argument.default_factory()
    return inspect.Parameter.empty if argument.default is MISSING else argument.default


def _source_parameter(option: Declaration) -> inspect.Parameter:
    return inspect.Parameter(
        _PREFIX + option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            str | None, typer.Option(*_flags(option), metavar=_metavar(option.kind))
        ],
    )


def _metavar(kind: str) -> str:
    words = re.findall("`([^`]+)`", kind)
    return "|".join(words) if words else kind.replace(" ", "-").upper()


def _flags(option: Declaration) -> list[str]:
    flags: list[str] = []
    for name in (option.name, *option.aliases):
        dashed = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
        flags += [f"--{name}"] if dashed == name else [f"--{name}", f"--{dashed}"]
    return flags


def as_parser(parse: Callable[[str], V]) -> Callable[[Any], V]:
    """Let typer report the ValueError of a parser, and parse the text of a default too."""

    def parsed(value: Any) -> V:
        try:
            return parse(str(value))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def place_option(text: str, *, otherwise: str) -> tuple[str, str]:
    """Return the name and the value of the option that an argument stands for.

    Args:
        text: `namesrv://HOST:PORT`, several with `;` between; endpoints; or anything else.
        otherwise: the option for anything else.
    """
    found = _NAME_SERVERS.fullmatch(text)
    if found is not None:
        return "namesrvAddr", found[1]
    return "endpoint" if _ENDPOINT.match(text) else otherwise, text


def columns_to_read(ddl: str | None, needed: tuple[str, ...]) -> tuple[StructType, tuple[str, ...]]:
    """Parse `--schema`. With one, a Spark session must be running, because Spark parses it.

    Args:
        ddl: the argument; None for all columns.
        needed: columns that the job reads in any case.

    Returns:
        The schema to read, under the source's own names; and the names of the columns to write, in
        their order, without topic.

    Raises:
        OptionError: the source does not have a column or type, or topic is the only column.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StringType, StructField, StructType

    try:
        chosen = full_schema() if ddl is None else StructType.fromDDL(ddl)
    except ParseException:
        chosen = None
    if not isinstance(chosen, StructType):
        raise OptionError(f'--schema must be like "queueOffset bigint, body string", not {ddl!r}.')
    wanted = project(chosen)
    written = tuple(name for name in wanted.columns if name != "topic")
    if not written:
        raise OptionError("--schema must contain a column besides topic, which becomes a folder.")
    read = dict.fromkeys((*wanted.columns, *needed))
    fields = [StructField(name, COLUMN_TYPES[name]) for name in read]
    if wanted.body_as_text:
        fields[wanted.columns.index("body")] = StructField("body", StringType())
    return StructType(fields), written
