"""What a suite file may say, and the suite that comes of it: a grid of trials, each a valid
scenario with the parameters that made it.

`SuiteFile` has the words of the file, each checked on its own; the docstring below each key is its
explanation in docs/reference.md. What they mean together (does an axis name a key, is every trial a
valid scenario?) is found out by `suite_loader.py`, which makes a `Suite` of them. Everything else
about it is computed here from its frozen values, so that planning, running and reporting agree.
Pure: no file, no clock, no broker.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from bench_spark.config.fields import PLAIN_NAME, Name, PropertyName, Section
from bench_spark.config.models import Scenario, at_whole_rate
from bench_spark.config.objectives import MEASURES, STATISTICS, Aggregation
from bench_spark.config.problems import Described
from bench_spark.config.yaml_text import plain_scalar

RATES = ("send_rate", "receive_rate", "delivery_rate")
RESOURCES = (
    *("broker_cpu_user", "broker_cpu_system", "broker_written", "broker_device_written"),
    *("flow_state", "scheduler_utilisation"),
)
_COLUMN_RULE = (
    f"MEASURE.STATISTIC or STATISTIC with a measure of {', '.join(MEASURES)} and a statistic of "
    f"{', '.join(STATISTICS)}; or one of {', '.join((*RATES, *RESOURCES))}"
)


def _column_value(value: str) -> str:
    measure, _, statistic = value.partition(".")
    is_statistic = measure in MEASURES and statistic in STATISTICS
    if not is_statistic and value not in (*STATISTICS, *RATES, *RESOURCES):
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
    timeout_seconds: Annotated[float, Field(gt=0, le=86400)] = 60.0
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

    lowest_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Lower end of the bracket, as a share of the throughput of `max`."""
    highest_share: Annotated[float, Field(ge=1, le=10)] = 1.2
    """Upper end of the bracket."""
    precision_share: Annotated[float, Field(ge=0.001, le=0.5)] = 0.02
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
    """What is shown: a measure's statistic (`latency.p99`); a statistic alone (`p99`), which is of
    `delivery_latency` in open-loop runs and of `latency` in others; a rate (`send_rate`,
    `receive_rate`, `delivery_rate`); or of the broker's resources: `broker_cpu_user` and
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


class ReportLayout(Section):
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
    report: ReportLayout = Field(default_factory=ReportLayout)


Value = str | int | float | bool | None
"""Of a parameter."""

RATE = "load.rate_per_second"
"""The axis that takes the search words."""
MAX, SUSTAINED = "max", "sustained"
SEARCH_WORDS = (MAX, SUSTAINED)

HOOK_VARIABLE_PREFIX = "BENCH_SPARK_PARAMETER_"


@dataclass(frozen=True)
class Point:
    """One place on an axis."""

    value: Value
    """What results call it: the value itself, or a series' label."""
    sets: Mapping[str, Any]
    """Dotted scenario keys and what they become."""
    parameters: Mapping[str, Value] = field(default_factory=dict)
    """Declared parameters that a series' label sets beside them."""


@dataclass(frozen=True)
class Axis:
    name: str
    points: tuple[Point, ...]
    is_series: bool = False
    """Whether its values are labels, each of which sets several keys together."""

    @property
    def values(self) -> tuple[Value, ...]:
        return tuple(point.value for point in self.points)


@dataclass(frozen=True)
class SkipRule:
    when: Mapping[str, tuple[Value, ...]]
    reason: str

    def matches(self, parameters: Mapping[str, Value]) -> bool:
        return all(
            any(same_value(parameters.get(name), value) for value in values)
            for name, values in self.when.items()
        )


@dataclass(frozen=True)
class Cell:
    """One combination of the axes' values, before it is repeated."""

    parameters: Mapping[str, Value]
    """By axis in the order of the file, then declared parameters that series set."""
    scenario: Scenario
    """Of a skipped cell the base: its own need not be valid."""
    skipped_because: str | None


@dataclass(frozen=True)
class Suite:
    name: str
    description: str
    file: str
    """As messages name it."""
    directory: Path
    """Where the file is: hooks run there."""
    base: Scenario
    broker: str | None
    """A shipped broker's name or a path that holds from here; None if the file names none."""
    groups: tuple[tuple[Axis, ...], ...]
    """Axes of one group advance together, groups are crossed; the last one varies fastest."""
    cells: tuple[Cell, ...]
    """The grid in the order of the file."""
    parameters: Mapping[str, str]
    """Declared parameters and their meaning."""
    repetitions: int
    order: Literal["given", "shuffled"]
    seed: int
    hooks: Hooks
    search: Search
    report: ReportLayout
    """With `rows` filled in."""
    is_quick: bool

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for group in self.groups for axis in group)


@dataclass(frozen=True)
class Trial:
    """One run of a suite."""

    number: int
    """Its place in the order of running, from 1."""
    key: str
    """What the trial is, as text: `load.rate_per_second=100;repetition=1`. It stays the same when
    the order or the values of an axis change, so a resumed suite knows what it has by it."""
    parameters: Mapping[str, Value]
    scenario: Scenario
    """What runs. Of a trial with `search: sustained` it has the base's rate: see `at_rate`."""
    repetition: int
    """From 1."""
    skipped_because: str | None
    search: Literal["max", "sustained"] | None = None
    """`max`: an unthrottled load. `sustained`: no single run, but a search for the highest rate
    that is kept, which starts from the throughput of the trial `found_from`."""
    found_from: str | None = None
    """Key of the trial with `search: max`, otherwise the same, that runs before this one."""

    def at_rate(self, rate_per_second: float) -> Scenario:
        """The trial's scenario at another rate of the whole run, for a search."""
        return at_whole_rate(self.scenario, rate_per_second)


def trials_of(suite: Suite) -> tuple[Trial, ...]:
    """All trials in the order of running, skipped ones included.

    The grid is gone through once per repetition. In shuffled order a search still comes after the
    trial that it starts from.
    """
    order = [(cell, number) for number in range(1, suite.repetitions + 1) for cell in suite.cells]
    if suite.order == "shuffled":
        random.Random(suite.seed).shuffle(order)
    keys = [trial_key(cell.parameters, repetition) for cell, repetition in order]
    starts = [_found_from(cell, repetition) for cell, repetition in order]
    place_of = {key: place for place, key in enumerate(keys)}
    places = list(range(len(order)))
    for place, start in enumerate(starts):
        if start is not None and place_of[start] > place:
            other = place_of[start]
            places[place], places[other] = places[other], places[place]
    return tuple(
        _trial(number, *order[place], keys[place], starts[place])
        for number, place in enumerate(places, start=1)
    )


def trial_key(parameters: Mapping[str, Value], repetition: int) -> str:
    named = [f"{name}={value_text(parameters[name])}" for name in sorted(parameters)]
    return ";".join([*named, f"repetition={repetition}"])


def suite_digest(suite: Suite) -> str:
    """What decides the results, as a short text: it differs when a file was changed in between.

    Neither the order of running nor the report nor what is written for people matters: finished
    trials stay true without them.
    """
    content = {
        "trials": {
            trial.key: None if trial.skipped_because else _what_decides(trial.scenario)
            for trial in trials_of(suite)
        },
        "hooks": suite.hooks.model_dump(mode="json"),
        "search": suite.search.model_dump(mode="json"),
        "is_quick": suite.is_quick,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _what_decides(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(
        mode="json", exclude_defaults=True, exclude={"name", "description", "tags"}
    )


TRIAL_OVERHEAD_SECONDS = 1.0
"""Of a trial beside its load: tasks start, connections open and close, results are summed up."""


def estimated_seconds(suite: Suite, overhead_per_trial_seconds: float) -> float:
    """How long the suite takes if every load lasts as long as it says; hooks are not counted."""
    return sum(
        estimated_trial_seconds(suite, trial, overhead_per_trial_seconds)
        for trial in trials_of(suite)
        if trial.skipped_because is None
    )


def estimated_trial_seconds(suite: Suite, trial: Trial, overhead_seconds: float) -> float:
    """A search is counted with as many loads as it may try."""
    loads = suite.search.most_trials if trial.search == SUSTAINED else 1
    return loads * (_load_seconds(trial.scenario) + overhead_seconds)


def hook_arguments(command: Sequence[str], trial: Trial) -> list[str]:
    """The command with `NAME=VALUE` for each of the trial's parameters behind it."""
    return [*command, *(f"{name}={_plain(value)}" for name, value in trial.parameters.items())]


def hook_environment(suite: Suite, trial: Trial) -> dict[str, str]:
    """What a hook finds in its environment beside what the program itself was given."""
    return {
        "BENCH_SPARK_SUITE": suite.name,
        "BENCH_SPARK_TRIAL": str(trial.number),
        "BENCH_SPARK_REPETITION": str(trial.repetition),
        **{hook_variable(name): _plain(value) for name, value in trial.parameters.items()},
    }


def hook_variable(parameter: str) -> str:
    """`load.rate_per_second` as `BENCH_SPARK_PARAMETER_LOAD_RATE_PER_SECOND`."""
    return HOOK_VARIABLE_PREFIX + re.sub(r"[^A-Z0-9]", "_", parameter.upper())


def same_value(one: Value, other: Value) -> bool:
    """Whether two values mean the same: 1 and 1.0 do, 1 and true do not."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def value_text(value: Value) -> str:
    """A value as YAML would have it: text that looks like something else is quoted."""
    if isinstance(value, str):
        is_plain = PLAIN_NAME.fullmatch(value) and isinstance(plain_scalar(value), str)
        return value if is_plain else json.dumps(value)
    return _plain(value)


def _plain(value: Value) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def combinations(groups: Sequence[Sequence[Axis]]) -> list[tuple[tuple[Axis, Point], ...]]:
    """Every combination of the groups' places, the last group varying fastest."""
    rows = [
        [
            tuple(zip(group, points, strict=True))
            for points in zip(*(axis.points for axis in group), strict=True)
        ]
        for group in groups
    ]
    return [tuple(itertools.chain(*row)) for row in itertools.product(*rows)]


def parameters_of(combination: Sequence[tuple[Axis, Point]]) -> Mapping[str, Value]:
    named: dict[str, Value] = {axis.name: point.value for axis, point in combination}
    for _, point in combination:
        named |= point.parameters
    return named


def _search_word(parameters: Mapping[str, Value]) -> Literal["max", "sustained"] | None:
    words: dict[Value, Literal["max", "sustained"]] = {"max": "max", "sustained": "sustained"}
    return words.get(parameters.get(RATE))


def _found_from(cell: Cell, repetition: int) -> str | None:
    if _search_word(cell.parameters) != SUSTAINED:
        return None
    return trial_key({**cell.parameters, RATE: MAX}, repetition)


def _trial(number: int, cell: Cell, repetition: int, key: str, found_from: str | None) -> Trial:
    return Trial(
        number=number,
        key=key,
        parameters=cell.parameters,
        scenario=cell.scenario,
        repetition=repetition,
        skipped_because=cell.skipped_because,
        search=_search_word(cell.parameters),
        found_from=found_from,
    )


def _load_seconds(scenario: Scenario) -> float:
    load, measured = scenario.load, scenario.phases.measure_seconds
    if load.messages is not None and scenario.is_paced:
        measured = load.messages / (load.rate_per_second * scenario.rates_counted)
    return scenario.phases.warmup_seconds + measured
