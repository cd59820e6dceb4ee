"""From a suite to its trials: how many, which, in what order, and what tells them apart."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load, Phases
from bench_spark.config.suite import (
    Axis,
    Cell,
    Hooks,
    Point,
    ReportLayout,
    Search,
    Suite,
    Trial,
    Value,
    combinations,
    estimated_seconds,
    hook_arguments,
    hook_environment,
    hook_variable,
    parameters_of,
    suite_digest,
    trial_key,
    trials_of,
)
from bench_spark.config.suite_loader import load_suite

BASE = Scenario(name="base", phases=Phases(warmup_seconds=1, measure_seconds=4))

SCALARS = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.none()
)


def axis(name: str, *values: Value) -> Axis:
    return Axis(name, tuple(Point(value, {}) for value in values))


def suite_of(*groups: tuple[Axis, ...], **changes: object) -> Suite:
    """A suite whose cells all have the base scenario: what they set is not the point here."""
    cells = tuple(
        Cell(parameters_of(combination), BASE, None) for combination in combinations(groups)
    )
    suite = Suite(
        name="s",
        description="",
        file="s.yaml",
        directory=Path(),
        base=BASE,
        broker=None,
        groups=groups,
        cells=cells,
        parameters={},
        repetitions=1,
        order="given",
        seed=0,
        hooks=Hooks(),
        search=Search(),
        report=ReportLayout(),
        is_quick=False,
    )
    return replace(suite, **changes)  # type: ignore[arg-type]


@st.composite
def suites(draw: st.DrawFn) -> Suite:
    names = iter("abcdefgh")
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 3))
        values = st.lists(st.integers(), min_size=length, max_size=length, unique=True)
        members = range(draw(st.integers(1, 2)))
        groups.append(tuple(axis(next(names), *draw(values)) for _ in members))
    return suite_of(
        *groups,
        repetitions=draw(st.integers(1, 3)),
        order=draw(st.sampled_from(["given", "shuffled"])),
        seed=draw(st.integers(0, 2**63 - 1)),
    )


@given(suites())
def test_there_are_as_many_trials_as_the_product_of_the_groups_and_repetitions(
    suite: Suite,
) -> None:
    lengths = [len(group[0].points) for group in suite.groups]
    trials = trials_of(suite)
    assert len(trials) == math.prod(lengths) * suite.repetitions
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    assert len({trial.key for trial in trials}) == len(trials)


@given(suites(), st.integers(0, 2**63 - 1))
def test_a_shuffled_order_is_a_permutation_and_the_same_for_the_same_seed(
    suite: Suite, seed: int
) -> None:
    given_order = [trial.key for trial in trials_of(replace(suite, order="given"))]
    shuffled = replace(suite, order="shuffled", seed=seed)
    keys = [trial.key for trial in trials_of(shuffled)]
    assert sorted(keys) == sorted(given_order)
    assert keys == [trial.key for trial in trials_of(shuffled)]


@given(suites())
def test_neither_the_order_nor_the_report_changes_the_digest(suite: Suite) -> None:
    other = replace(
        suite, order="shuffled", seed=suite.seed + 1, report=ReportLayout(title="other")
    )
    assert suite_digest(other) == suite_digest(suite)


@given(st.dictionaries(st.text("abc", min_size=1), SCALARS), SCALARS, SCALARS)
def test_keys_tell_any_two_values_apart_unless_they_mean_the_same(
    parameters: dict[str, Value], one: Value, other: Value
) -> None:
    same = isinstance(one, bool) == isinstance(other, bool) and one == other
    keys = {trial_key({**parameters, "x": value}, 1) for value in (one, other)}
    assert len(keys) == (1 if same else 2)


def test_a_key_names_the_parameters_in_an_order_of_its_own() -> None:
    assert trial_key({"b": 1.0, "a": "x"}, 2) == "a=x;b=1;repetition=2"
    assert trial_key({"a": "1"}, 1) == 'a="1";repetition=1'
    assert trial_key({"a": "x;repetition=1"}, 1) == 'a="x;repetition=1";repetition=1'
    assert trial_key({"a": True, "b": None}, 1) == "a=true;b=null;repetition=1"


def test_in_given_order_the_last_axis_varies_fastest_and_the_grid_is_repeated_as_a_whole() -> None:
    suite = suite_of((axis("a", 1, 2),), (axis("b", 1, 2),), repetitions=2)
    assert [(*trial.parameters.values(), trial.repetition) for trial in trials_of(suite)] == [
        (1, 1, 1),
        (1, 2, 1),
        (2, 1, 1),
        (2, 2, 1),
        (1, 1, 2),
        (1, 2, 2),
        (2, 1, 2),
        (2, 2, 2),
    ]


def test_different_seeds_give_different_orders() -> None:
    suite = suite_of((axis("a", *range(20)),), order="shuffled")
    orders = {tuple(trial.key for trial in trials_of(replace(suite, seed=n))) for n in range(5)}
    assert len(orders) == 5


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_search_always_comes_after_the_trial_it_starts_from(seed: int, repetitions: int) -> None:
    rates = axis("load.rate_per_second", 1, "sustained", "max")
    suite = suite_of((rates,), (axis("a", 1, 2),), order="shuffled", seed=seed)
    trials = trials_of(replace(suite, repetitions=repetitions))
    number_of = {trial.key: trial.number for trial in trials}
    assert sorted(number_of.values()) == list(range(1, len(trials) + 1))
    for trial in trials:
        if trial.search == "sustained":
            assert trial.found_from is not None
            assert number_of[trial.found_from] < trial.number
        else:
            assert trial.found_from is None


def test_max_is_unthrottled_and_sustained_is_paced_at_whatever_rate_is_tried() -> None:
    trials = {trial.search: trial for trial in trials_of(load_suite("rabbitmq-latency-rate"))}
    assert trials["max"].scenario.load.mode == "maximum"
    sustained = trials["sustained"]
    assert sustained.scenario.load.mode == "rate"
    assert sustained.found_from == trials["max"].key
    tried = sustained.at_rate(41_234.5)
    assert (tried.load.mode, tried.load.rate_per_second) == ("rate", 41_234.5)
    assert tried.amqp == sustained.scenario.amqp


def test_what_is_written_for_people_does_not_change_the_digest() -> None:
    suite = suite_of((axis("a", 1),))
    words = {"name": "x", "description": "y", "tags": {"z": "1"}}
    cell = replace(suite.cells[0], scenario=BASE.model_copy(update=words))
    assert suite_digest(replace(suite, cells=(cell,), name="t")) == suite_digest(suite)


@pytest.mark.parametrize(
    "change",
    [
        {"hooks": Hooks(before=["x"])},
        {"search": Search(most_trials=5)},
        {"repetitions": 2},
        {"is_quick": True},
        {"cells": (Cell({"a": 1}, BASE.model_copy(update={"producers": 2}), None),)},
        {"cells": (Cell({"a": 2}, BASE, None),)},
        {"cells": (Cell({"a": 1}, BASE, "skipped"),)},
    ],
)
def test_what_decides_the_results_changes_the_digest(change: dict[str, object]) -> None:
    suite = suite_of((axis("a", 1),))
    assert suite_digest(replace(suite, **change)) != suite_digest(suite)  # type: ignore[arg-type]


def test_the_digest_is_the_same_in_every_process() -> None:
    program = (
        "from bench_spark.config.suite_loader import load_suite\n"
        "from bench_spark.config.suite import suite_digest\n"
        "print(suite_digest(load_suite('rabbitmq-latency-queues')))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {suite_digest(load_suite("rabbitmq-latency-queues")) + "\n"}


def test_the_estimate_counts_load_and_overhead_of_every_trial_that_runs() -> None:
    suite = suite_of((axis("a", 1, 2, 3),), repetitions=2)
    assert estimated_seconds(suite, 1.5) == 6 * (1 + 4 + 1.5)
    skipped = replace(suite, cells=(*suite.cells[:2], replace(suite.cells[2], skipped_because="x")))
    assert estimated_seconds(skipped, 0) == 4 * 5


def test_the_estimate_counts_a_search_with_all_it_may_try() -> None:
    rates = axis("load.rate_per_second", 1, "max", "sustained")
    assert estimated_seconds(suite_of((rates,), search=Search(most_trials=8)), 0) == 10 * 5


def test_the_estimate_of_a_load_that_ends_by_messages_follows_its_rate() -> None:
    load = Load(rate_per_second=100, messages=1000, scope="per_producer")
    scenario = BASE.model_copy(update={"load": load, "producers": 2})
    suite = suite_of((axis("a", 1),))
    cell = replace(suite.cells[0], scenario=scenario)
    assert estimated_seconds(replace(suite, cells=(cell,)), 0) == 1 + 5


def test_a_hook_finds_the_parameters_behind_its_command_and_in_its_environment() -> None:
    suite = suite_of((axis("load.rate_per_second", 5.0),), (axis("broker.credit", "{1,2}"),))
    (trial,) = trials_of(suite)
    assert hook_arguments(["sh", "x.sh"], trial) == [
        "sh",
        "x.sh",
        "load.rate_per_second=5",
        "broker.credit={1,2}",
    ]
    assert hook_environment(suite, trial) == {
        "BENCH_SPARK_SUITE": "s",
        "BENCH_SPARK_TRIAL": "1",
        "BENCH_SPARK_REPETITION": "1",
        "BENCH_SPARK_PARAMETER_LOAD_RATE_PER_SECOND": "5",
        "BENCH_SPARK_PARAMETER_BROKER_CREDIT": "{1,2}",
    }


@given(st.text())
def test_every_parameter_has_a_name_that_an_environment_can_hold(name: str) -> None:
    assert hook_variable(name).replace("_", "").isalnum()
    assert hook_variable(name).isascii()


SHIPPED_HOOKS = {
    "rabbitmq-latency-credit-flow": (
        "eval application:set_env(rabbit, credit_flow_default_credit, {100,50}).",
        "eval application:set_env(rabbit, credit_flow_default_credit, {400,200}).",
    ),
    "rabbitmq-latency-management": (
        "enable rabbitmq_management",
        "enable rabbitmq_management",
    ),
}


@pytest.mark.parametrize("name", SHIPPED_HOOKS)
def test_shipped_hooks_tell_the_broker_what_the_first_trial_needs(name: str) -> None:
    suite = load_suite(name)
    trial = trials_of(suite)[0]
    assert suite.hooks.before
    assert suite.hooks.after
    told = tuple(
        _told(suite, trial, command) for command in (suite.hooks.before, suite.hooks.after)
    )
    assert told == SHIPPED_HOOKS[name]


def test_the_management_hook_disables_the_plugin_where_it_should_be_off() -> None:
    suite = load_suite("rabbitmq-latency-management")
    trial = trials_of(suite)[-1]
    assert suite.hooks.before
    assert _told(suite, trial, suite.hooks.before) == "disable rabbitmq_management"


def _told(suite: Suite, trial: Trial, command: list[str]) -> str:
    """What the hook would tell the broker, with echo in the place of its programs."""
    programs = {"RABBITMQCTL": "echo", "RABBITMQ_PLUGINS": "echo"}
    done = subprocess.run(
        hook_arguments(command, trial),
        cwd=suite.directory,
        env=os.environ | programs | hook_environment(suite, trial),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()
