"""What the results of all searches show in the same way: their trials."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from bench_spark.report.measures import Document


def doubts(document: Document, name_of: Callable[[Mapping[str, Any]], str]) -> Iterator[str]:
    """A line for each trial that is not valid."""
    doubtful = [trial for trial in document["trials"] if trial["status"] != "valid"]
    if doubtful:
        yield ""
    for trial in doubtful:
        yield f"  {trial['status']}: {name_of(trial)}; bench-spark show {trial['run_id']}"


def write_trials(document: Document, writer: TextIO, columns: Sequence[str]) -> None:
    """CSV with one row per trial, in the order they ran."""
    table = csv.DictWriter(writer, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    table.writerows(document["trials"])
