"""What of a suite is done: read from the runs in its store, so that a killed suite goes on.

A trial is known by its key, which its run carries as a tag; so does the digest of the suite file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bench_spark.errors import ConfigurationError
from bench_spark.store import Store
from bench_spark.summary.document import Document

KEY_TAG, DIGEST_TAG = "trial_key", "suite_digest"
SEARCH_TAG = "search_of"
"""Key of the trial that a load was part of the search for."""
NOTE_TAG = "trial_note"
"""What a search has found, in words."""
SEARCH_END_TAG = "search_end"
"""How a search has ended: `settled`, or why its answer is not to be trusted."""

FINISHED = ("valid", "degraded")
"""A trial that failed, was interrupted, or whose driver was killed is run again."""

_COLUMNS = ["run_id", "tags", "status", "started_at", "reasons", "result_json"]


@dataclass(frozen=True)
class TrialRun:
    """The newest run of a trial."""

    run_id: str
    key: str
    digest: str
    status: str
    started_at: datetime
    reasons: tuple[str, ...] = ()
    document: Document | None = None
    note: str | None = None
    search_end: str | None = None
    """Of the trial that a search was made for."""

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


def runs_of_suite(store: Store, suite: str, broker: str) -> dict[str, TrialRun]:
    """The run that counts of each trial, by key: the newest that finished, else the newest."""
    rows = store.read("runs", columns=_COLUMNS, suite=suite, broker=broker)
    return newest_by_key(rows.to_pylist())


def is_finished(key: str, runs: Mapping[str, TrialRun]) -> bool:
    """Whether the trial of this key need not be run any more."""
    return key in runs and runs[key].is_finished


def add_tags(store: Store, run_id: str, tags: Mapping[str, str]) -> None:
    [row] = store.read("runs", run_id=run_id).to_pylist()
    store.replace_run(row | {"tags": sorted((dict(row["tags"] or ()) | dict(tags)).items())})


def newest_by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, TrialRun]:
    runs: dict[str, TrialRun] = {}
    for row in sorted(rows, key=lambda row: row["started_at"]):
        tags = dict(row["tags"] or ())
        if KEY_TAG not in tags:
            continue
        run = TrialRun(
            run_id=row["run_id"],
            key=tags[KEY_TAG],
            digest=tags.get(DIGEST_TAG, ""),
            status=row["status"],
            started_at=row["started_at"],
            reasons=tuple(row["reasons"] or ()),
            document=json.loads(row["result_json"]) if row["result_json"] else None,
            note=tags.get(NOTE_TAG),
            search_end=tags.get(SEARCH_END_TAG),
        )
        known = runs.get(run.key)
        if known is None or run.is_finished or not known.is_finished:
            runs[run.key] = run
    return runs


def refuse_if_changed(suite: str, digest: str, runs: Mapping[str, TrialRun]) -> None:
    """Results of two versions of a suite do not belong into one table."""
    others = [run for run in runs.values() if run.is_finished and run.digest != digest]
    if others:
        first = min(others, key=lambda run: run.started_at)
        raise ConfigurationError(
            f"suite {suite!r} has changed since {len(others)} of its trials were run (the first at "
            f"{first.started_at:%Y-%m-%d %H:%M} UTC): use another --store or another name, or "
            "--force to go on and keep them"
        )
