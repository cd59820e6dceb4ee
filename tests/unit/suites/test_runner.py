"""The runner: what is run, what is kept, and what one failure costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from unit.suites.suites import GRID, suite_of

from bench_spark.config.suite import Suite, Trial, trials_of
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_INTERRUPTED,
    EXIT_VALID,
    BrokerUnreachable,
)
from bench_spark.suites.suite import SuiteResult, TrialEnd, TrialRun, run_suite


def known(trial: Trial, status: str = "valid") -> TrialRun:
    return TrialRun("run", trial.key, "digest", status, datetime.now(UTC))


class Runs:
    """Notes which trials were run; exits as told."""

    def __init__(self, **codes: int) -> None:
        self.keys: list[str] = []
        self.said: list[str] = []
        self.named: list[str] = []
        self.codes = {int(name.removeprefix("trial_")): code for name, code in codes.items()}

    def run(self, trial: Trial) -> TrialEnd:
        self.keys.append(trial.key)
        return TrialEnd(self.codes.get(trial.number, EXIT_VALID), "as expected")

    def of(self, suite: Suite, done: Mapping[str, TrialRun] | None = None) -> SuiteResult:
        return run_suite(suite, done or {}, self.run, self.said.append, self.named.append)


def test_every_trial_is_run_once_in_order(tmp_path: Path) -> None:
    suite, runs = suite_of(tmp_path), Runs()
    result = runs.of(suite)
    assert runs.keys == [trial.key for trial in trials_of(suite)]
    assert result.exit_code == EXIT_VALID


def test_each_trial_is_told_with_its_place_result_and_the_time_left(tmp_path: Path) -> None:
    runs = Runs()
    runs.of(suite_of(tmp_path))
    assert [text.partition(",")[0] for text in runs.named] == [
        f"trial {number} of 4" for number in (1, 2, 3, 4)
    ]
    assert re.fullmatch(r"trial 1 of 4, about \d+ s left", runs.named[0])
    assert len(runs.said) == 4
    for number, (text, key) in enumerate(zip(runs.said, runs.keys, strict=True), start=1):
        assert re.fullmatch(
            rf"trial {number} of 4: {key}: as expected; about [\d.]+ s left", text
        ), text
    assert runs.said[-1].endswith("; about 0 s left")


def test_hooks_find_the_brokers_tools_unless_the_user_names_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_PLUGINS", "mine")
    hooks = "hooks: {before: [sh, -c, 'echo \"$RABBITMQCTL $RABBITMQ_PLUGINS\" >> told']}\n"
    suite, runs = suite_of(tmp_path, GRID + hooks), Runs()
    tools = {"RABBITMQCTL": "theirs", "RABBITMQ_PLUGINS": "theirs"}
    run_suite(suite, {}, runs.run, runs.said.append, runs.named.append, tools)
    assert set((tmp_path / "told").read_text().splitlines()) == {"theirs mine"}


def test_finished_trials_are_kept_and_failed_or_interrupted_ones_run_again(tmp_path: Path) -> None:
    suite, runs = suite_of(tmp_path), Runs()
    one, two, three, four = trials_of(suite)
    done = {
        one.key: known(one),
        two.key: known(two, "failed"),
        three.key: known(three, "degraded"),
        four.key: known(four, "running"),
    }
    result = runs.of(suite, done)
    assert runs.keys == [two.key, four.key]
    assert [run.key for run in result.kept] == [one.key, three.key]
    assert result.exit_code == EXIT_DEGRADED, "a suite that goes on is no better for it"


@pytest.mark.parametrize(
    ("run", "exit_code"),
    [
        ({}, EXIT_VALID),
        ({"document": {"exit_code": 1}}, 1),
        ({"search_end": "settled"}, EXIT_VALID),
        ({"search_end": "disputed"}, EXIT_DEGRADED),
        ({"search_end": "nothing_kept", "document": {"exit_code": 1}}, EXIT_DEGRADED),
        ({"status": "degraded"}, EXIT_DEGRADED),
        ({"status": "degraded", "document": {"exit_code": EXIT_DATA_LOST}}, EXIT_DATA_LOST),
    ],
)
def test_a_trial_that_was_kept_has_the_exit_code_of_its_result(
    tmp_path: Path, run: dict[str, Any], exit_code: int
) -> None:
    suite, runs = suite_of(tmp_path), Runs()
    first = trials_of(suite)[0]
    result = runs.of(suite, {first.key: replace(known(first), **run)})
    assert len(result.kept) == 1
    assert result.exit_code == exit_code


def test_skipped_trials_are_told_and_not_run(tmp_path: Path) -> None:
    skipping = GRID + "skip: [{when: {message.bytes: 1000}, reason: too big}]\n"
    suite, runs = suite_of(tmp_path, skipping), Runs()
    result = runs.of(suite)
    assert len(runs.keys) == 2
    assert result.skipped == 2
    assert sum("skipped, too big" in text for text in runs.said) == 2


@pytest.mark.parametrize(
    ("codes", "exit_code"),
    [
        ({"trial_2": EXIT_DEGRADED}, EXIT_DEGRADED),
        ({"trial_2": EXIT_DEGRADED, "trial_3": EXIT_DATA_LOST}, EXIT_DATA_LOST),
        ({"trial_1": 1, "trial_3": 3}, EXIT_DEGRADED),
        ({"trial_1": 1}, 1),
    ],
)
def test_a_failure_costs_only_its_own_trial(
    tmp_path: Path, codes: dict[str, int], exit_code: int
) -> None:
    suite, runs = suite_of(tmp_path), Runs(**codes)
    assert runs.of(suite).exit_code == exit_code
    assert len(runs.keys) == 4


def test_a_signal_ends_the_suite(tmp_path: Path) -> None:
    suite, runs = suite_of(tmp_path), Runs(trial_2=EXIT_INTERRUPTED)
    assert runs.of(suite).exit_code == EXIT_INTERRUPTED
    assert len(runs.keys) == 2


def test_a_broker_that_is_away_is_told_and_the_next_trial_tried(tmp_path: Path) -> None:
    said: list[str] = []

    def run(trial: Trial) -> TrialEnd:
        raise BrokerUnreachable("nobody at 127.0.0.1:1")

    result = run_suite(suite_of(tmp_path), {}, run, said.append, said.append)
    assert [outcome.exit_code for outcome in result.outcomes] == [3, 3, 3, 3]
    assert result.exit_code == EXIT_DEGRADED
    assert sum("failed, nobody at 127.0.0.1:1; " in text for text in said) == 4


def test_hooks_run_around_each_trial_with_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "hook.sh").write_text(
        '#!/bin/sh\necho "$WHEN $1 $BENCH_SPARK_PARAMETER_MESSAGE_BYTES" >> log\n'
    )
    (tmp_path / "hook.sh").chmod(0o755)
    hooked = GRID + "hooks: {before: [./hook.sh], after: [./hook.sh]}\n"
    suite, runs = suite_of(tmp_path, hooked), Runs()
    assert runs.of(suite).exit_code == EXIT_VALID
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 8
    assert lines[0].split() == ["load.rate_per_second=100", "100"]


def test_a_hook_that_fails_stops_its_trial_only(tmp_path: Path) -> None:
    (tmp_path / "hook.sh").write_text(
        '#!/bin/sh\n[ "$BENCH_SPARK_PARAMETER_MESSAGE_BYTES" = 100 ]\n'
    )
    (tmp_path / "hook.sh").chmod(0o755)
    suite, runs = suite_of(tmp_path, GRID + "hooks: {before: [./hook.sh]}\n"), Runs()
    result = runs.of(suite)
    assert len(runs.keys) == 2
    assert result.exit_code == EXIT_DEGRADED
    assert any("hook before: ./hook.sh ended with exit code 1" in text for text in runs.said)
