"""Two suites compared, combination by combination, from the runs that stores have of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench_spark.compare.comparison import Gate, Group, comparison_document
from bench_spark.config.suite import RATE, Suite, Trial, trials_of, value_text
from bench_spark.errors import ConfigurationError
from bench_spark.store.delta import Store
from bench_spark.suites.suite import SuiteConfig, TrialRun, is_finished, runs_of_suite


class StoredSuite:
    """The finished trials of one side, by the name of their combination."""

    def __init__(self, config: SuiteConfig, store: Store, name: str) -> None:
        self.config = config
        self.where = f"{config.ends.name} ({name})"
        self._store = store
        runs = runs_of_suite(store, config.stored_name, config.ends.name)
        self.trials = _finished(config.suite, runs)
        self._searched = {_name(trial) for trial in trials_of(config.suite) if trial.search}

    def group(self, name: str) -> Group:
        from bench_spark.spark.stored import group_of_runs

        found_keys = (RATE,) if name in self._searched else ()
        return group_of_runs(self._store, self.trials[name], name, found_keys)


def suite_comparison(
    before: StoredSuite,
    after: StoredSuite,
    gates: Sequence[Gate],
    strict: bool = False,
    across: bool = False,
    takes_degraded: bool = False,
) -> dict[str, Any]:
    """The document of a comparison, with a line for what was measured on one side only."""
    name, base = after.config.stored_name, before.config.stored_name
    shared = [cell for cell in before.trials if cell in after.trials]
    if not shared:
        raise ConfigurationError(
            f"suite compare: {name}: no combination was measured on both sides"
        )
    title = f"{name}: {after.where} against {before.where}" + (
        f" of {base}" if base != name else ""
    )
    pairs = ((before.group(cell), after.group(cell)) for cell in shared)
    unmatched = list(_unmatched(after.config.suite, before, after))
    document = comparison_document(title, pairs, gates, strict, across, takes_degraded)
    return document | {"unmatched": unmatched}


def _finished(suite: Suite, runs: Mapping[str, TrialRun]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for trial in trials_of(suite):
        if is_finished(trial.key, runs):
            found.setdefault(_name(trial), []).append(runs[trial.key].run_id)
    return found


def _name(trial: Trial) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in trial.parameters.items())


def _unmatched(suite: Suite, before: StoredSuite, after: StoredSuite) -> Iterator[str]:
    for name in dict.fromkeys(_name(trial) for trial in trials_of(suite)):
        missing = [side.where for side in (before, after) if name not in side.trials]
        if len(missing) == 1:
            yield f"{name}: nothing finished on {missing[0]}"
