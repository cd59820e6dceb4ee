"""What a suite file may say: a base scenario, axes to vary it along, and what to report.

These are the words of the file, each checked on its own. What they mean together (does an axis name
a key, is every trial a valid scenario?) is found out by `suite_loader.py`, which makes a `Suite` of
them. The docstring below each key is its explanation in docs/reference.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from bench_spark.config.fields import Name, PropertyName, Section
from bench_spark.config.problems import Described
from bench_spark.store.schema import PERCENTILES

MEASURES = (
    "latency",
    "delivery_latency",
    "confirm_latency",
    "round_trip",
    "send_lag",
    "insert_duration",
)
STATISTICS = ("min", "mean", *(name.removesuffix("_us") for name, _ in PERCENTILES), "max")
RATES = ("send_rate", "receive_rate", "delivery_rate")
RESOURCES = (
    *("broker_cpu_user", "broker_cpu_system", "broker_written", "broker_device_written"),
    *("flow_state", "scheduler_utilisation"),
)
_COLUMN_RULE = (
    f"MEASURE.STATISTIC with a measure of {', '.join(MEASURES)} and a statistic of "
    f"{', '.join(STATISTICS)}; or one of {', '.join((*RATES, *RESOURCES))}"
)

Aggregation = Literal["run", "interval_max", "interval_mean"]


def _column_value(value: str) -> str:
    measure, _, statistic = value.partition(".")
    is_statistic = measure in MEASURES and statistic in STATISTICS
    if not is_statistic and value not in (*RATES, *RESOURCES):
        raise ValueError(f"allowed: {_COLUMN_RULE}")
    return value


Base = Annotated[
    str | dict[str, Any],
    Described("text or section", "a shipped scenario's name, a path, or scenario keys"),
]
AxisText = Annotated[
    Any,
    Described(
        "list, range or series",
        "a list of values, {from: , to: , step: }, or named series (LABEL: {KEY: VALUE})",
    ),
]
AnyValue = Annotated[Any, Described("any", "a value of that key")]
Command = Annotated[
    list[str], Field(min_length=1), Described("list of texts", "a list of texts, the program first")
]
AxisNames = Annotated[list[str], Described("list of texts", "a list of axes")]
ZipGroups = Annotated[list[list[str]], Described("list of lists", "a list of lists of axes")]
QuickValues = Annotated[
    list[Any], Described("list", "a list of two or three values or labels of that axis")
]


class Hooks(Section):
    """Commands run before and after each trial, to change what no scenario can: a broker's own
    settings."""

    before: Command | None = None
    """Run before a trial. It is called with `NAME=VALUE` for each parameter of the trial as further
    arguments, and the same in its environment (`BENCH_SPARK_PARAMETER_...`). A program with a `/`
    in its name is looked for relative to the suite file. If it fails, the trial is not run."""
    after: Command | None = None
    """Run after a trial, in the same way, also when the trial has failed."""
    timeout_seconds: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] = 60.0
    """A hook that takes longer is stopped, and has failed."""


class Skip(Section):
    """Trials that are not run."""

    when: dict[PropertyName, AnyValue] = Field(min_length=1)
    """Parameters and the value, or list of values, that each must have for the trial to be
    skipped."""
    reason: str = Field(min_length=1, max_length=500)
    """Why; shown in the plan and in the report."""


class Search(Section):
    """How the value `sustained` of an axis `load.rate_per_second` is found: by bisection, from the
    throughput of the value `max`."""

    lowest_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.5
    """Lower end of the bracket, as a share of the throughput of `max`."""
    highest_share: Annotated[float, Field(ge=1, le=10, allow_inf_nan=False)] = 1.2
    """Upper end of the bracket."""
    precision_share: Annotated[float, Field(ge=0.001, le=0.5, allow_inf_nan=False)] = 0.02
    """The bracket is halved until it is narrower than this share of the throughput of `max`."""
    most_trials: int = Field(10, ge=2, le=100)
    """Loads tried at most."""


class Quick(Section):
    """The same suite in small, for `--quick`."""

    axes: dict[PropertyName, QuickValues] = Field(default_factory=dict)
    """Values of an axis (labels, if it is a series) instead of its own: two or three, `max` and
    `sustained` not counted. An axis of more than three values that is not named here keeps its
    first, middle and last."""
    set: dict[PropertyName, AnyValue] = Field(default_factory=dict)
    """Scenario keys, dotted, on top of the suite's own `set`: shorter phases, say."""
    repetitions: int = Field(1, ge=1, le=1000)
    """Repetitions of each trial."""


class Variant(Section):
    """The same suite with other settings, for `--variant`."""

    axes: dict[PropertyName, AxisText] = Field(default_factory=dict)
    """Axes of the suite that have other values here."""
    set: dict[PropertyName, AnyValue] = Field(default_factory=dict)
    """Scenario keys, dotted, on top of the suite's own `set`."""


class Column(Section):
    """A column of the report."""

    value: Annotated[
        str, AfterValidator(_column_value), Described("text", f"one of {_COLUMN_RULE}")
    ]
    """What is shown: a measure's statistic (`latency.p99`); a rate (`send_rate`, `receive_rate`,
    `delivery_rate`); or of the broker's resources: `broker_cpu_user` and
    `broker_cpu_system`, as shares of its machine, `broker_written` and `broker_device_written`, in
    bytes, `flow_state` and `scheduler_utilisation`."""
    aggregation: Aggregation = "run"
    """Of a measure's statistic: over the whole run, the worst interval, or the mean over
    intervals."""
    heading: str | None = Field(None, min_length=1, max_length=100)
    """What the column is called; unset: made from the two keys above."""


_DEFAULT_COLUMNS = (
    Column(value="receive_rate"),
    Column(value="latency.p50"),
    Column(value="latency.p95"),
    Column(value="latency.p99"),
)


class Figures(Section):
    """The figures that `suite report` draws: one per column of numbers, and of throughput, CPU and
    disk."""

    x: str | None = None
    """The axis along the bottom; unset: the one with the most different numbers."""
    series: str | None = None
    """An axis with a line for each of its values; unset: all others together if that makes no more
    than eight lines, else the last. Whatever is left makes further figures."""


class Report(Section):
    """The table that `suite report` makes, and its figures."""

    title: str = Field("", max_length=200)
    """Title of the table; unset: the suite's name."""
    rows: AxisNames = Field(default_factory=list)
    """Axes whose values head the rows; unset: all that `across` does not name."""
    across: str | None = None
    """An axis whose values stand beside each other, each with all columns."""
    headings: dict[PropertyName, str] = Field(default_factory=dict)
    """What axes are called in the table; unset: their own names."""
    columns: list[Column] = Field(default_factory=lambda: list(_DEFAULT_COLUMNS), min_length=1)
    """What is shown of each trial. Unset: throughput received, and three percentiles of
    `latency`."""
    figures: Figures = Field(default_factory=Figures)


class SuiteFile(Section):
    """A grid of trials around one scenario."""

    name: Name = "unnamed"
    """What results call this suite; unset: the file's name."""
    description: str = Field("", max_length=2000)
    """For people."""
    base: Base
    """The scenario that is varied: a shipped scenario's name, a path relative to this file, or
    scenario keys themselves. It must be valid on its own."""
    set: dict[PropertyName, AnyValue] = Field(default_factory=dict)
    """Scenario keys, dotted, in which all trials differ from the base."""
    broker: str | None = Field(None, min_length=1)
    """The broker unless `--broker` names one: a shipped name or a path relative to this file."""
    axes: dict[PropertyName, AxisText]
    """What is varied. An axis is named by the scenario key or declared parameter that it sets, and
    has a list of values or a range (`{from: 10, to: 100, step: 10}`, both ends included); or it has
    a name of its own and is a series: labels, each with the keys that it sets together. An axis
    `load.rate_per_second` also takes `max` (load mode `maximum`) and `sustained` (the highest rate
    that is kept; see `search`)."""
    zip: ZipGroups = Field(default_factory=list)
    """Groups of axes that advance together; all others are crossed, the last one varying
    fastest."""
    parameters: dict[PropertyName, str] = Field(default_factory=dict)
    """Names that axes may set although no scenario has them, each with its meaning: they are handed
    to the hooks and stored with the results."""
    repetitions: int = Field(1, ge=1, le=1000)
    """How often the whole grid is run."""
    order: Literal["given", "shuffled"] = "given"
    """`shuffled`: in random order, so that drift of the machine does not look like an effect."""
    seed: int = Field(0, ge=0, le=2**63 - 1)
    """Of the random order: the same seed gives the same order."""
    hooks: Hooks = Field(default_factory=Hooks)
    skip: list[Skip] = Field(default_factory=list)
    """Combinations that are left out, and why."""
    search: Search = Field(default_factory=Search)
    quick: Quick = Field(default_factory=Quick)
    variants: dict[Name, Variant] = Field(default_factory=dict)
    """The same grid with other settings, each under a name; its results are kept apart."""
    report: Report = Field(default_factory=Report)
