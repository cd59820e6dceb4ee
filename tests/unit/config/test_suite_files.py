"""What a suite file may say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from suite_texts import suite_of, written

from bench_spark.conf_files import shipped
from bench_spark.config.loader import load_broker
from bench_spark.config.suite import Suite, estimated_seconds, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.errors import ConfigurationError
from bench_spark.transports.registry import fitted

SPARK_START_SECONDS = 15
OVERHEAD_SECONDS = 4
QUICK_SECONDS = {"kafka-linger-batch-partitions-acks": 180}
"""Where the quick variant may take longer than two minutes: four axes of two values."""


def values(suite: Suite, axis: str) -> list[object]:
    return next(list(one.values) for one in suite.axes if one.name == axis)


# ---- what is shipped


def test_every_shipped_suite_loads_and_names_a_broker_and_hooks_that_are_shipped() -> None:
    for name in shipped("suites"):
        suite = load_suite(name)
        assert suite.name == name
        assert suite.description, name
        assert suite.report.title, name
        assert suite.broker is not None, name
        load_broker(suite.broker)
        for command in filter(None, (suite.hooks.before, suite.hooks.after)):
            assert command[0] == "sh"
            assert (suite.directory / command[1]).is_file(), name


def test_every_shipped_suite_has_a_quick_variant_of_some_minutes_with_all_its_axes() -> None:
    for name in shipped("suites"):
        whole, quick = load_suite(name), load_suite(name, quick=True)
        assert [axis.name for axis in quick.axes] == [axis.name for axis in whole.axes]
        for axis in quick.axes:
            assert len(set(axis.values) - {"max", "sustained"}) in (2, 3), name
        seconds = SPARK_START_SECONDS + estimated_seconds(quick, OVERHEAD_SECONDS)
        assert seconds <= QUICK_SECONDS.get(name, 120), name


def test_headings_of_shipped_suites_name_no_unit_of_bytes() -> None:
    """A cell of bytes has its own: MB in one row, GB in the next."""
    found = [
        (name, column.heading)
        for name in shipped("suites")
        for column in load_suite(name).report.columns
        if column.heading and re.search(r"\b[kMGT]i?B\b", column.heading)
    ]
    assert found == []


def test_the_latency_study_has_the_grids_of_its_document() -> None:
    trials = {
        name.removeprefix("rabbitmq-latency-"): len(trials_of(load_suite(name)))
        for name in shipped("suites")
        if name.startswith("rabbitmq-latency-")
    }
    assert trials == {
        "rate": 9,
        "credit-flow": 4,
        "consumers": 30,
        "producers": 30,
        "queues": 7,
        "queue-types": 25,
        "confirms": 7,
        "acks": 7,
        "exchanges": 16,
        "mirrors": 9,
        "management": 6,
    }


def test_acknowledging_every_n_comes_with_a_prefetch_of_twice_that() -> None:
    for trial in trials_of(load_suite("rabbitmq-latency-acks")):
        amqp = trial.scenario.amqp
        if amqp.ack == "manual":
            assert amqp.prefetch == 2 * amqp.ack_every


# ---- where things are found


def test_a_suite_is_named_by_its_file_and_its_base_is_found_beside_it(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("message: {bytes: 32}\n")
    suite = suite_of(tmp_path, "base: small.yaml\naxes: {producers: [1]}\n")
    assert (suite.name, suite.base.name, suite.base.message.bytes) == ("x", "small", 32)


def test_a_base_may_be_written_in_the_suite_itself(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "base: {message: {bytes: 32}}\naxes: {producers: [1]}\n")
    assert (suite.base.name, suite.base.message.bytes) == ("x", 32)


def test_a_broker_file_is_found_beside_the_suite_and_a_shipped_one_by_name(tmp_path: Path) -> None:
    axes = "axes: {producers: [1]}\n"
    assert suite_of(tmp_path, axes).broker is None
    assert suite_of(tmp_path, f"broker: qpid\n{axes}").broker == "qpid"
    assert suite_of(tmp_path, f"broker: b.yaml\n{axes}").broker == str(tmp_path / "b.yaml")


def test_an_unknown_suite_lists_the_shipped_ones() -> None:
    with pytest.raises(ConfigurationError, match="unknown suite; allowed: a path, or one of"):
        load_suite("rabbitmq-latency-rat")


# ---- axes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{from: 10, to: 40, step: 10}", [10, 20, 30, 40]),
        ("{from: 10, to: 39, step: 10}", [10, 20, 30]),
        ("{from: 10, to: 10, step: 10}", [10]),
        ("[10, 20.5]", [10, 20.5]),
    ],
)
def test_an_axis_is_a_list_or_a_range_with_both_ends(
    tmp_path: Path, text: str, expected: list[float]
) -> None:
    suite = suite_of(tmp_path, f"axes: {{load.rate_per_second: {text}}}\n")
    assert values(suite, "load.rate_per_second") == expected
    assert [trial.scenario.load.rate_per_second for trial in trials_of(suite)] == expected


def test_a_range_of_fractions_has_the_values_that_one_would_write(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "axes: {load.rate_per_second: {from: 0.1, to: 0.5, step: 0.1}}\n")
    assert values(suite, "load.rate_per_second") == [0.1, 0.2, 0.3, 0.4, 0.5]


def test_an_axis_may_set_a_property_whose_name_has_dots(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "axes: {kafka.producer.linger.ms: [5, 10]}\n")
    assert [trial.scenario.kafka.producer for trial in trials_of(suite)] == [
        {"linger.ms": 5},
        {"linger.ms": 10},
    ]


def test_the_largest_grid_of_the_comparison_study_is_a_suite(tmp_path: Path) -> None:
    text = """
axes:
  kafka.producer.batch.size: {from: 10000, to: 200000, step: 10000}
  kafka.producer.linger.ms: {from: 10, to: 100, step: 10}
  kafka.topic.partitions: [5, 15]
  kafka.producer.acks: [0, all]
set: {kafka.producer.compression.type: snappy}
"""
    trials = trials_of(suite_of(tmp_path, text))
    assert len(trials) == len({trial.key for trial in trials}) == 800
    assert trials[-1].scenario.kafka.topic.partitions == 15
    assert trials[-1].scenario.kafka.producer == {
        "batch.size": 200_000,
        "linger.ms": 100,
        "acks": "all",
        "compression.type": "snappy",
    }


def test_a_series_sets_several_keys_together_and_results_have_its_label(tmp_path: Path) -> None:
    text = """
parameters: {broker.erlang: Version of Erlang}
axes:
  queue:
    plain: {}
    lazy: {amqp.queue.durable: true, amqp.queue.arguments.x-queue-mode: lazy, broker.erlang: 25}
"""
    plain, lazy = trials_of(suite_of(tmp_path, text))
    assert plain.parameters == {"queue": "plain"}
    assert lazy.parameters == {"queue": "lazy", "broker.erlang": 25}
    assert plain.scenario.amqp.queue.arguments == {}
    assert lazy.scenario.amqp.queue.arguments == {"x-queue-mode": "lazy"}
    assert lazy.scenario.amqp.queue.durable


def test_zipped_axes_advance_together_at_the_place_of_the_first(tmp_path: Path) -> None:
    text = """
axes: {producers: [1, 2], message.bytes: [10, 20], consumers: [3, 4]}
zip: [[producers, consumers]]
"""
    found = [tuple(trial.parameters.values()) for trial in trials_of(suite_of(tmp_path, text))]
    assert found == [(1, 3, 10), (1, 3, 20), (2, 4, 10), (2, 4, 20)]


def test_set_goes_over_the_base_quick_over_set_and_options_over_all(tmp_path: Path) -> None:
    text = """
axes: {producers: [1, 2]}
set: {message.bytes: 100, phases.measure_seconds: 20}
quick: {set: {phases.measure_seconds: 3}}
"""
    whole, quick = suite_of(tmp_path, text), suite_of(tmp_path, text, True)
    changed = suite_of(tmp_path, text, True, "phases.measure_seconds=1")
    assert [suite.base.message.bytes for suite in (whole, quick, changed)] == [100, 100, 100]
    assert whole.cells[0].scenario.phases.measure_seconds == 20
    assert quick.cells[0].scenario.phases.measure_seconds == 3
    assert changed.cells[0].scenario.phases.measure_seconds == 1


def test_quick_keeps_first_middle_and_last_of_a_long_axis_and_all_of_a_short_one(
    tmp_path: Path,
) -> None:
    text = """
axes:
  load.rate_per_second: [1, 2, 3, 4, 5, max, sustained]
  producers: [1, 2, 3]
  message.bytes: [10, 20, 30, 40]
  queue: {a: {}, b: {}, c: {}, d: {}}
repetitions: 3
quick: {axes: {message.bytes: [11, 22], queue: [d, b]}}
"""
    quick = suite_of(tmp_path, text, True)
    assert values(quick, "load.rate_per_second") == [1, 3, 5, "max", "sustained"]
    assert values(quick, "producers") == [1, 2, 3]
    assert values(quick, "message.bytes") == [11, 22]
    assert values(quick, "queue") == ["d", "b"]
    assert (quick.repetitions, quick.is_quick) == (1, True)
    assert len(values(suite_of(tmp_path, text), "queue")) == 4


VARIED = """
axes: {producers: [1, 2], message.bytes: [100, 200]}
set: {phases.measure_seconds: 20}
quick: {set: {phases.measure_seconds: 3}}
variants:
  long: {set: {phases.measure_seconds: 60, phases.drain_seconds: 9}, axes: {producers: [7]}}
"""


def test_a_variant_has_its_own_values_and_keys_and_goes_with_quick(tmp_path: Path) -> None:
    path = written(tmp_path, VARIED)
    whole = load_suite(path, variant="long")
    quick = load_suite(path, quick=True, variant="long")
    assert whole.name == f"{load_suite(path).name}-long"
    assert values(whole, "producers") == values(quick, "producers") == [7]
    assert values(whole, "message.bytes") == [100, 200]
    assert (whole.base.phases.measure_seconds, whole.base.phases.drain_seconds) == (60, 9)
    assert (quick.base.phases.measure_seconds, quick.base.phases.drain_seconds) == (3, 9)


def test_a_variant_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'lon' is no variant of .*; did you mean long\?"):
        load_suite(written(tmp_path, VARIED), variant="lon")


def test_mistakes_in_a_variant_are_found_though_nobody_asks_for_it(tmp_path: Path) -> None:
    text = VARIED.replace("producers: [7]", "producer: [7]").replace("drain_s", "drains_s")
    with pytest.raises(ConfigurationError) as refused:
        load_suite(written(tmp_path, text))
    assert "variants.long.axes: 'producer' is no axis of this suite" in str(refused.value)
    assert "variants.long.set.phases.drains_seconds: " in str(refused.value)


def test_exactly_once_is_one_option_away_from_every_grid_of_kafka() -> None:
    broker = load_broker("kafka")
    for name in (name for name in shipped("suites") if name.startswith("kafka-")):
        for cell in load_suite(name, variant="exactly-once").cells:
            assert fitted(cell.scenario, broker).kafka.transaction_messages == 1000, name


def test_skipped_trials_stay_in_the_list_with_their_reason(tmp_path: Path) -> None:
    text = """
axes: {producers: [1, 2], destinations: [1, 2], queue: {"5": {}, b: {}}}
set: {consumers: 2}
skip:
  - {when: {producers: 1, destinations: 2}, reason: a queue would have no producer}
  - {when: {queue: 5, producers: [2]}, reason: no need}
"""
    skipped = {
        (*trial.parameters.values(),): trial.skipped_because
        for trial in trials_of(suite_of(tmp_path, text))
        if trial.skipped_because
    }
    assert skipped == {
        (1, 2, "5"): "a queue would have no producer",
        (1, 2, "b"): "a queue would have no producer",
        (2, 1, "5"): "no need",
        (2, 2, "5"): "no need",
    }


def test_a_search_is_skipped_with_the_trial_that_it_starts_from(tmp_path: Path) -> None:
    text = """
axes: {load.rate_per_second: [max, sustained], producers: [1, 2]}
skip: [{when: {load.rate_per_second: max, producers: 2}, reason: no}]
"""
    trials = trials_of(suite_of(tmp_path, text))
    assert [trial.skipped_because for trial in trials] == [None, "no", None, "no"]
