"""Trials: one load each, or a search for the highest rate that a simulated broker keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from unit.suites.suites import suite_of

from bench_spark.config.models import Scenario
from bench_spark.config.suite import trials_of
from bench_spark.errors import EXIT_DEGRADED, EXIT_INTERRUPTED, EXIT_VALID, RunError
from bench_spark.plan import total_rate_per_second
from bench_spark.results.document import RunSummary, TrialOf
from bench_spark.suites.suite import Abilities, SuiteTrials

RATES = """
base: {phases: {measure_seconds: 1}, tags: {own: tag}}
axes:
  load.rate_per_second: [100, max, sustained]
"""


@dataclass
class SecondOf:
    role: str
    second: int
    counters: Mapping[str, int]
    phase: str = "measure"
    tick_seconds: float = 1.0
    measures: Iterable[str] = ()

    @property
    def start_seconds(self) -> float:
        return float(self.second)

    def counter(self, name: str) -> int:
        return self.counters.get(name, 0)

    def histogram(self, measure: str) -> Any:
        raise AssertionError("no histogram is asked for")


@dataclass
class SimulatedBroker:
    """Keeps every rate up to its own."""

    keeps_per_second: float
    interrupted_at: int | None = None
    runs: list[tuple[Scenario, TrialOf]] = field(default_factory=list)
    tags: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def run(self, scenario: Scenario, trial: TrialOf) -> RunSummary:
        self.runs.append((scenario, trial))
        number = len(self.runs) - 1
        is_paced = scenario.load.mode == "rate"
        rate = scenario.load.rate_per_second if is_paced else self.keeps_per_second
        moved = int(min(rate, self.keeps_per_second) * 10)
        document = {
            "run_id": str(number),
            "status": "valid",
            "counts": {"due": int(rate * 10), "sent": moved, "received_once": moved},
            "rates": {"receive_rate": moved / 10},
            "resources": {"busiest_agent_share_of_core": 0.2},
        }
        code = EXIT_INTERRUPTED if number == self.interrupted_at else EXIT_VALID
        return RunSummary(document, code, {})

    def ticks(self, run_id: str) -> list[SecondOf]:
        scenario = self.runs[int(run_id)][0]
        moved = int(min(scenario.load.rate_per_second, self.keeps_per_second))
        return [
            tick
            for second in range(10)
            for tick in (
                SecondOf("producer", second, {"sent": moved}),
                SecondOf("consumer", second, {"received": moved}),
            )
        ]

    def tag(self, run_id: str, tags: Mapping[str, str]) -> None:
        self.tags[run_id] = tags


def trials_on(tmp_path: Path, broker: SimulatedBroker, suite: str = RATES) -> SuiteTrials:
    abilities = Abilities(broker.run, broker.ticks, broker.tag)
    return SuiteTrials(suite_of(tmp_path, suite), "grid-quick", abilities, {})


def test_a_load_carries_its_key_its_place_and_its_own_tags(tmp_path: Path) -> None:
    broker = SimulatedBroker(1000)
    trials = trials_on(tmp_path, broker)
    first = trials_of(trials.suite)[0]
    assert trials.run(first).exit_code == EXIT_VALID
    [(scenario, place)] = broker.runs
    assert scenario.tags["trial_key"] == first.key
    assert scenario.tags["own"] == "tag"
    assert place.suite == "grid-quick"
    assert place.trial == 1
    assert place.parameters == {"load.rate_per_second": "100", "repetition": "1"}


def test_a_search_finds_what_the_broker_keeps_and_adopts_that_load(tmp_path: Path) -> None:
    broker = SimulatedBroker(43_210)
    trials = trials_on(tmp_path, broker)
    _, fastest, sustained = trials_of(trials.suite)
    assert trials.run(fastest).exit_code == EXIT_VALID
    assert trials.run(sustained).exit_code == EXIT_VALID
    [(run_id, tags)] = broker.tags.items()
    found = broker.runs[int(run_id)][0].load.rate_per_second
    assert 0.98 * 43_210 <= found <= 43_210
    assert tags["trial_key"] == sustained.key
    assert tags["trial_note"].endswith("msg/s")
    assert tags["search_end"] == "settled"
    assert all("trial_key" not in scenario.tags for scenario, _ in broker.runs[1:])


def test_a_search_finds_the_rate_of_the_whole_run(tmp_path: Path) -> None:
    broker = SimulatedBroker(43_210)
    base = "{producers: 4, consumers: 4, load: {scope: per_producer}}"
    axes = "{load.rate_per_second: [max, sustained]}"
    trials = trials_on(tmp_path, broker, f"base: {base}\naxes: {axes}\n")
    for trial in trials_of(trials.suite):
        assert trials.run(trial).exit_code == EXIT_VALID
    [run_id] = broker.tags
    found = broker.runs[int(run_id)][0]
    assert 0.98 * 43_210 <= total_rate_per_second(found) <= 43_210


def test_a_search_that_is_not_settled_is_degraded_and_says_its_range(tmp_path: Path) -> None:
    broker = SimulatedBroker(43_210)
    trials = trials_on(tmp_path, broker, f"{RATES}search: {{most_trials: 3}}\n")
    _, fastest, sustained = trials_of(trials.suite)
    trials.run(fastest)
    ended = trials.run(sustained)
    assert ended.exit_code == EXIT_DEGRADED
    [tags] = broker.tags.values()
    assert tags["search_end"] == "trials"
    assert ", not settled: " in ended.text
    # With the figures of both loads that the answer hangs on.
    assert re.search(r"; [\d,.]+ kept \([\d,.]+ received, \d+\)", ended.text), ended.text
    assert re.search(r"; [\d,.]+ not kept \([\d,.]+ received, \d+\)", ended.text), ended.text
    assert tags["trial_note"] == ended.text


def test_a_search_without_its_starting_point_fails_by_name(tmp_path: Path) -> None:
    trials = trials_on(tmp_path, SimulatedBroker(1000))
    *_, sustained = trials_of(trials.suite)
    with pytest.raises(RunError, match=r"no throughput to start from: load\.rate_per_second=max"):
        trials.run(sustained)


def test_a_resumed_search_starts_from_the_throughput_found_before(tmp_path: Path) -> None:
    broker = SimulatedBroker(1000)
    trials = trials_on(tmp_path, broker)
    _, fastest, sustained = trials_of(trials.suite)
    trials.throughputs[fastest.key] = 1000.0
    assert trials.run(sustained).exit_code == EXIT_VALID


def test_a_signal_in_a_search_ends_it_and_nothing_is_adopted(tmp_path: Path) -> None:
    broker = SimulatedBroker(1000, interrupted_at=2)
    trials = trials_on(tmp_path, broker)
    _, fastest, sustained = trials_of(trials.suite)
    trials.run(fastest)
    assert trials.run(sustained).exit_code == EXIT_INTERRUPTED
    assert broker.tags == {}
    assert len(broker.runs) == 3


def test_a_degraded_load_is_the_trials_exit_code(tmp_path: Path) -> None:
    class Degraded(SimulatedBroker):
        def run(self, scenario: Scenario, trial: TrialOf) -> RunSummary:
            summary = super().run(scenario, trial)
            return RunSummary(summary.document, EXIT_DEGRADED, {})

    trials = trials_on(tmp_path, Degraded(1000))
    assert trials.run(trials_of(trials.suite)[0]).exit_code == EXIT_DEGRADED
