"""A suite as it will run: a grid of trials, each a valid scenario with the parameters that made it.

Pure: no file, no clock, no broker. `suite_loader.load_suite` makes a Suite; everything else about
it is computed here from its frozen values, so that planning, running and reporting agree.
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
from typing import Any, Literal

from bench_spark.config.fields import PLAIN_NAME
from bench_spark.config.models import Scenario, at_whole_rate
from bench_spark.config.suite_file import Hooks, Report, Search
from bench_spark.config.yaml_text import plain_scalar

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
    report: Report
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
    load, phases = scenario.load, scenario.phases
    measured = phases.measure_seconds
    if load.messages is not None and load.has_schedule and not scenario.only_consumes:
        senders = scenario.producers if load.scope == "per_producer" else 1
        measured = load.messages / (load.rate_per_second * senders)
    return phases.warmup_seconds + measured
