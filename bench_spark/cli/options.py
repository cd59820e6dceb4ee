"""Arguments and options that several commands share, each declared once.

Options that go together are a record: a command takes the record, and `with_options` shows its
fields to Typer.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from bench_spark.cache import DEFAULT_STORE, STORE_VARIABLE
from bench_spark.conf_files import shipped
from bench_spark.errors import ConfigurationError
from bench_spark.spark.launch import given_to_spark, settings_in

if TYPE_CHECKING:
    from bench_spark.config.ends import Ends
    from bench_spark.config.models import Scenario
    from bench_spark.report.live import Steps, Verbosity

DEFAULT_BROKER = "kafka"
BROKER_VARIABLE = "BENCH_SPARK_BROKER"


Text = str | None
Texts = list[str] | None


def option(names: str, text: str, **more: Any) -> Any:
    """An option, as `--name,-n METAVAR`, and its help."""
    declared, _, metavar = names.partition(" ")
    return typer.Option(
        *declared.split(","), metavar=metavar or None, help=text, **_completed(more)
    )


def argument(metavar: str, text: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=text, **_completed(more))


def _completed(more: dict[str, Any]) -> dict[str, Any]:
    """With the shell's completion of `completes`: shipped files of that kind, and files here."""
    if kind := more.pop("completes", None):
        more["autocompletion"] = lambda incomplete: complete(kind, incomplete)
    return more


def complete(kind: str, incomplete: str) -> list[str]:
    """Shipped names and files here that begin like this, for the shell's completion."""
    named = [name for name in shipped(kind) if name.startswith(incomplete)]
    here = (str(path) for path in Path().glob("*.y*ml") if path.name.startswith(incomplete))
    return [*named, *sorted(here)]


ScenarioArgument = Annotated[
    str,
    argument(
        "SCENARIO",
        "A scenario file, or the name of a shipped one.",
        show_default=False,
        completes="scenarios",
    ),
]
BrokerOption = Annotated[
    str,
    option(
        "--broker BROKER",
        "A broker file, or the name of a shipped one.",
        envvar=BROKER_VARIABLE,
        completes="brokers",
    ),
]
IngressOption = Annotated[
    Texts,
    option(
        "--ingress BROKER",
        "Where messages go in, if they come out elsewhere: a broker as for --broker, for each "
        "entry of the scenario's ingress; repeatable.",
        completes="brokers",
    ),
]
EgressOption = Annotated[
    Texts,
    option(
        "--egress BROKER",
        "Where messages come out again, if they go in elsewhere; repeatable.",
        completes="brokers",
    ),
]
SetOption = Annotated[
    Texts,
    option(
        "--set KEY=VALUE",
        "Override a key of the scenario, as in load.rate_per_second=5000; repeatable.",
    ),
]
TagOption = Annotated[Texts, option("--tag KEY=VALUE", "Stored with each run; repeatable.")]
StoreOption = Annotated[
    str, option("--store PATH", "Directory or URI of the Delta tables.", envvar=STORE_VARIABLE)
]
MasterOption = Annotated[
    Text,
    option(
        "--master URL",
        "Spark master; unset: this machine, with as many slots as the agents need.",
        envvar="BENCH_SPARK_MASTER",
    ),
]
PackagesOption = Annotated[
    Texts,
    option(
        "--packages GROUP:ARTIFACT:VERSION",
        "A Maven package for Spark's class path, as hadoop-aws for a store on S3; repeatable.",
        callback=given_to_spark(
            "--packages", lambda values: {"spark.jars.packages": ",".join(values)}
        ),
    ),
]
JarsOption = Annotated[
    Texts,
    option(
        "--jars FILE",
        "A jar for Spark's class path; repeatable.",
        callback=given_to_spark("--jars", lambda values: {"spark.jars": ",".join(values)}),
    ),
]
ConfOption = Annotated[
    Texts,
    option(
        "--conf KEY=VALUE",
        "A setting of Spark's, as spark.executor.memory=2g; repeatable.",
        callback=given_to_spark("--conf", settings_in),
    ),
]
FormatsOption = Annotated[
    Texts,
    option(
        "--format FORMAT[=FILE]",
        "terminal (the default; of a suite, markdown is), markdown, json, csv, parquet or "
        "html; repeatable. One of them gets standard output, programs before people; parquet needs "
        "a file.",
    ),
]
RunArgument = Annotated[str, argument("RUN", "A run id, as `runs` lists it.", show_default=False)]
QuietOption = Annotated[bool, option("--quiet,-q", "No progress: the result and errors only.")]
VerboseOption = Annotated[
    bool, option("--verbose,-v", "Every step with its time, and what was decided.")
]


# -- records of options ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadOptions:
    """The load that is asked for, and the brokers that carry it."""

    scenario: ScenarioArgument
    broker: BrokerOption = DEFAULT_BROKER
    ingress: IngressOption = None
    egress: EgressOption = None
    overrides: SetOption = None
    tags: TagOption = None
    given_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """Where the value of each option comes from: COMMANDLINE, ENVIRONMENT or DEFAULT."""

    def load(
        self, changes: Sequence[str] = (), objectives: Sequence[str] = ()
    ) -> tuple[Scenario, Ends]:
        """The scenario with the changes of a command behind those of the user, and its brokers."""
        from bench_spark import runs

        overrides = [*(self.overrides or []), *changes]
        scenario = runs.load(self.scenario, overrides, self.tags or [], objectives)
        if self.given_by.get("broker") == "COMMANDLINE":
            runs.refuse_idle_broker(scenario, self.ingress, self.egress)
        return runs.fit(scenario, self.broker, self.ingress or [], self.egress or [])


@dataclass(frozen=True)
class SparkOptions:
    """Which store a command reads by Spark, and what it says of it, on standard error."""

    store: StoreOption = DEFAULT_STORE
    packages: PackagesOption = None
    jars: JarsOption = None
    conf: ConfOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False

    def display(self) -> Steps:
        return display_of(self.quiet, self.verbose, live=False)


@dataclass(frozen=True)
class SessionOptions:
    """Where a command runs and what it says of it, on standard error."""

    store: StoreOption = DEFAULT_STORE
    master: MasterOption = None
    packages: PackagesOption = None
    jars: JarsOption = None
    conf: ConfOption = None
    quiet: QuietOption = False
    verbose: VerboseOption = False

    def display(self, live: bool = True) -> Steps:
        return display_of(self.quiet, self.verbose, live)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Let Typer see the fields of the records that a command takes as options of the command."""
    shown: dict[str, inspect.Parameter] = {}
    records: dict[str, Any] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        if not is_dataclass(parameter.annotation):
            shown[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        record: Any = parameter.annotation
        records[name] = record
        hints = get_type_hints(record, include_extras=True)
        for option in inspect.signature(record).parameters.values():
            if option.name != "given_by":
                shown[option.name] = option.replace(
                    kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[option.name]
                )

    def call(context: typer.Context, **given: Any) -> None:
        for name, record in records.items():
            known = [one.name for one in fields(record)]
            values = {key: given.pop(key) for key in known if key in given}
            if "given_by" in known:
                sources = ((key, context.get_parameter_source(key)) for key in values)
                values["given_by"] = {key: source.name for key, source in sources if source}
            given[name] = record(**values)
        command(**given)

    context = inspect.Parameter(
        "context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [context, *shown.values()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__doc__, call.__name__ = command.__doc__, command.__name__
    return call


# -- what options mean -----------------------------------------------------------------------------


def verbosity_of(quiet: bool, verbose: bool) -> Verbosity:
    from bench_spark.report.live import Verbosity

    if quiet and verbose:
        raise ConfigurationError("--quiet, --verbose: give one of them at most")
    return Verbosity.QUIET if quiet else Verbosity.VERBOSE if verbose else Verbosity.NORMAL


def display_of(quiet: bool, verbose: bool, live: bool = True) -> Steps:
    from bench_spark.report.live import display_for

    return display_for(sys.stderr, live, verbosity_of(quiet, verbose))


def suite_displays(quiet: bool, verbose: bool) -> tuple[Steps, Steps]:
    """For a suite and for each of its trials: of these a terminal shows where they are, and a log
    only what became of them, unless everything is wanted."""
    from bench_spark.report.live import display_for_trials

    own = display_of(quiet, verbose, live=False)
    if quiet or verbose:
        return own, display_of(quiet, verbose)
    return own, display_for_trials(sys.stderr)


DURATION_KEY = "phases.measure_seconds"
_DURATION_RULE = "numbers with s, m or h, as in 90s, 15m, 8h or 1h30m"
_DURATION = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?"
)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def duration_changes(text: str | None, overrides: Sequence[str]) -> list[str]:
    """The key that `--duration` stands for; it is not given twice."""
    if text is None:
        return []
    if any(one.partition("=")[0].strip() == DURATION_KEY for one in overrides):
        raise ConfigurationError(
            f"--duration: sets {DURATION_KEY}, which --set sets too; give one of them"
        )
    return [f"{DURATION_KEY}={parse_duration(text):g}"]


def parse_duration(text: str) -> float:
    """In seconds."""
    from bench_spark.config.problems import shown_value

    found = _DURATION.fullmatch(text.strip())
    seconds = 0.0
    if found is not None:
        seconds = sum(float(found[unit] or 0) * worth for unit, worth in _SECONDS.items())
    if seconds <= 0:
        raise ConfigurationError(
            f"--duration: {shown_value(text)} is not allowed; allowed: {_DURATION_RULE}"
        )
    return seconds


def refuse_other_end(duration: str | None, scenario: Scenario) -> None:
    """Refuse a duration for a run that ends after a number of messages."""
    if duration is not None and scenario.load.messages is not None:
        raise ConfigurationError(
            "--duration: load.messages ends the measured phase of this scenario; unset it with "
            "--set load.messages=null"
        )
