"""The reports of searches, for the best window and for the highest rate that is sustained.

As CSV and Parquet they have one row per trial, in the order they ran.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, TextIO

import pyarrow as pa
from rich.text import Text

from bench_spark.config.problems import plural
from bench_spark.report import blocks
from bench_spark.report.charts import Spec, against
from bench_spark.report.formats import Report, Sheet
from bench_spark.report.formatting import Document, count, duration, rate, seconds, words
from bench_spark.report.page import Charts, Page
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

ANSWER_LABEL_WIDTH = 8
_NUMBERS = ("_per_second", "_us")
_TYPES = {name: pa.int64() for name in ("trial", "in_flight", "samples")}
_TYPES |= {name: pa.bool_() for name in ("kept", "p50_is_lower_bound", "p99_is_lower_bound")}


class SearchReport(Report):
    columns: ClassVar[Sequence[str]]
    """Of the sheet."""
    headings: ClassVar[Sequence[str]]
    """Of the table for people."""
    texts: ClassVar[int] = 0
    """How many of its last columns are words."""

    @property
    def sheet(self) -> Sheet:
        types = {
            name: _TYPES.get(name, pa.float64() if name.endswith(_NUMBERS) else pa.string())
            for name in self.columns
        }
        return Sheet(self.columns, self.document["trials"], types)

    @property
    def title(self) -> str:
        return f"{self.document['scenario']['name']} on {self.document['broker']['name']}"

    @property
    @abstractmethod
    def answer(self) -> Sequence[tuple[str, str]]:
        """What was found, under labels."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Sequence[str]]: ...

    @property
    @abstractmethod
    def chart(self) -> Spec: ...

    @abstractmethod
    def name_of(self, trial: Mapping[str, Any]) -> str: ...

    @property
    def doubts(self) -> list[str]:
        """A line for each trial that is not valid."""
        return [
            f"{trial['status']}: {self.name_of(trial)}; bench-spark show {trial['run_id']}"
            for trial in self.document["trials"]
            if trial["status"] != "valid"
        ]

    def write_terminal(self, writer: TextIO) -> None:
        """The answer, the table, and which trials are not to be trusted."""
        console = console_for(writer)
        writer.write(f"{self.title}\n")
        answer = [(Text(label), text) for label, text in self.answer]
        print_block(console, labelled(answer, ANSWER_LABEL_WIDTH))
        writer.write("\n")
        print_block(console, plain_table(self.headings, self.rows, gap=2, texts=self.texts))
        if self.doubts:
            writer.write("\n" + "".join(f"  {doubt}\n" for doubt in self.doubts))

    def page(self) -> Page:
        drawn, chart = Charts(), self.chart
        answer = blocks.Table("The answer", ["", ""], self.answer, words=2)
        # Words come first: on a narrow page the last columns are out of sight.
        table = [_turned(row, self.texts) for row in (self.headings, *self.rows)]
        numbers = blocks.Table("What was tried", table[0], table[1:], words=1 + self.texts)
        figure = drawn.figure(chart["description"], chart, numbers)
        doubts: list[blocks.Block] = [blocks.Bullets(self.doubts)] if self.doubts else []
        sections = [
            blocks.PageSection("answer", "Result", [answer]),
            blocks.PageSection("curve", "Curve", [figure]),
            blocks.PageSection("trials", "Trials", [numbers, *doubts]),
            blocks.PageSection("scenario", "Scenario and broker", list(self._surroundings())),
        ]
        return Page(blocks.Heading(self.title, self._status()), sections, drawn)

    def _status(self) -> blocks.Mark | None:
        status = self.document.get("status")
        return blocks.status_mark(status) if status else None

    def _surroundings(self) -> Iterator[blocks.Block]:
        yield blocks.keys_block("Scenario", self.document["scenario"])
        yield blocks.keys_block("Broker", self.document["broker"])


def _turned(row: Sequence[str], texts: int) -> list[str]:
    first, rest = row[0], list(row[1:])
    return [first, *rest[len(rest) - texts :], *rest[: len(rest) - texts]]


class WindowSearchReport(SearchReport):
    columns = (
        *("trial", "run_id", "status", "in_flight"),
        *("median_per_second", "mean_per_second", "stddev_per_second"),
        *("low_per_second", "high_per_second", "samples"),
    )
    headings = ("in flight", "median msg/s", "at least", "at most", "mean", "stddev", "samples")

    @property
    def answer(self) -> list[tuple[str, str]]:
        found = self.document
        best, smallest = found["median_per_second"], found["smallest_median_per_second"]
        share = f"{smallest / best if best else 1.0:.1%} of the best"
        smallest_window = f"{count(found['smallest_in_flight'])} in flight"
        return [
            ("best", f"{count(found['in_flight'])} in flight, {rate(best)} msg/s"),
            ("smallest", f"{smallest_window}, {rate(smallest)} msg/s, {share}"),
            ("search", _took(found)),
            ("ended as", found["end_text"]),
        ]

    @property
    def rows(self) -> list[list[str]]:
        names = ("median", "low", "high", "mean", "stddev")
        return [
            [
                count(point["in_flight"]),
                *(rate(point[f"{name}_per_second"]) for name in names),
                count(point["samples"]),
            ]
            for point in self.document["curve"]
        ]

    @property
    def chart(self) -> Spec:
        """Throughput over the window, with the intervals of the medians."""
        chosen, smallest = self.document["in_flight"], self.document["smallest_in_flight"]
        names = {smallest: "smallest as good", chosen: "chosen"}
        rows = [
            {
                "x": point["in_flight"],
                "y": point["median_per_second"],
                "low": point["low_per_second"],
                "high": point["high_per_second"],
                "series": "throughput",
                "text": f"{rate(point['median_per_second'])} msg/s",
            }
            for point in self.document["curve"]
        ]
        marked = [
            {"x": row["x"], "y": row["y"], "text": f"{names[row['x']]}: {count(row['x'])}"}
            for row in rows
            if row["x"] in names
        ]
        title = f"{self.title}: throughput by messages in flight, msg/s"
        windows = [row["x"] for row in rows]
        return against(
            title, rows, "messages in flight", windows, "throughput", "per_second", marked
        )

    def name_of(self, trial: Mapping[str, Any]) -> str:
        return f"{count(trial['in_flight'])} in flight"


def _took(document: Document) -> str:
    took = seconds(round(document["took_seconds"]))
    return f"{plural(len(document['trials']), 'trial')} in {took}"


_WHOSE = {"broker": "the broker", "generator": "the generator", "host": "the host's CPU"}


class RateSearchReport(SearchReport):
    columns = (
        *("trial", "run_id", "status"),
        *("rate_per_second", "sent_per_second", "received_per_second"),
        *("kept", "limited_by", "objective", "why", "limit"),
        *("p50_us", "p50_is_lower_bound", "p99_us", "p99_is_lower_bound"),
    )
    headings = ("msg/s", "received", "p50", "p99", "kept")
    texts = 1

    @property
    def answer(self) -> list[tuple[str, str]]:
        return list(_rate_answer(self.document))

    @property
    def rows(self) -> list[list[str]]:
        """By rate; the unthrottled trial is not among them."""
        trials = self.document["trials"]
        paced = [trial for trial in trials if trial["rate_per_second"] is not None]
        return [_rate_row(trial) for trial in sorted(paced, key=lambda one: one["rate_per_second"])]

    @property
    def chart(self) -> Spec:
        """Latency over the rate, with the rate that was found."""
        document = self.document
        rows = [
            {
                "x": point["rate_per_second"],
                "y": point[f"{name}_us"],
                "low": point[f"{name}_low_us"],
                "high": point[f"{name}_high_us"],
                "series": name,
                "text": duration(point[f"{name}_us"]),
            }
            for name in ("p50", "p99")
            for point in document["curve"]
            if point[f"{name}_us"] is not None
        ]
        found = document["rate_per_second"]
        marked = [
            {"x": row["x"], "y": row["y"], "text": f"highest kept: {rate(found)}"}
            for row in rows
            if row["series"] == "p99" and row["x"] == found
        ]
        measure = words(document["measure"])
        title = f"{self.title}: {measure} by rate"
        rates = [point["rate_per_second"] for point in document["curve"]]
        return against(title, rows, "rate, msg/s", rates, measure, "us", marked)

    def name_of(self, trial: Mapping[str, Any]) -> str:
        if trial["rate_per_second"] is None:
            return "unthrottled"
        return f"{rate(trial['rate_per_second'])} msg/s, {'kept' if trial['kept'] else 'not kept'}"


def _rate_answer(document: Document) -> Iterator[tuple[str, str]]:
    found, above = document["rate_per_second"], document["above_per_second"]
    if not document["is_settled"]:
        yield "settled", f"NO: {document['end_text']}"
    if found is None:
        yield "highest", f"none: {rate(above)} msg/s was not kept"
    else:
        sign = ">= " if document["is_lower_bound"] else ""
        yield "highest", f"{sign}{rate(found)} msg/s kept, {_what_was_above(above)}"
    if not document["is_settled"]:
        yield "range", _range(document)
        for trial in _edge_trials(document):
            yield ("kept" if trial["kept"] else "not kept"), _figures(trial)
    yield "limit", _limit(document)
    if found is not None:
        p50, p99 = (_percentile(document, name) for name in ("p50", "p99"))
        yield "latency", f"p50 {p50}, p99 {p99} ({words(document['measure'])})"
    yield "start", f"{rate(document['unthrottled_per_second'])} msg/s received, unthrottled"
    yield "search", _took(document)
    if document["is_settled"]:
        yield "ended as", document["end_text"]
    yield "run", f"bench-spark show {document['run_id']}"


def _what_was_above(above: float | None) -> str:
    return "and nothing higher was tried" if above is None else f"{rate(above)} not"


def _range(document: Document) -> str:
    low, high = document["range_low_per_second"], document["range_high_per_second"]
    if high is None:
        return f"{rate(low)} msg/s or more"
    return f"{rate(low)} to {rate(high)} msg/s" if low is not None else f"below {rate(high)} msg/s"


def _edge_trials(document: Document) -> list[Mapping[str, Any]]:
    """The trials that an answer which is not settled hangs on."""
    by_number = {trial["trial"]: trial for trial in document["trials"]}
    return [by_number[number] for number in document["edge_trials"]]


def _figures(trial: Mapping[str, Any]) -> str:
    why = f"; {trial['why']}" if trial["why"] else ""
    p50, p99 = (_percentile(trial, name) for name in ("p50", "p99"))
    moved = f"{rate(trial['rate_per_second'])} msg/s, {rate(trial['received_per_second'])} received"
    return f"{moved}, p50 {p50}, p99 {p99}{why}; bench-spark show {trial['run_id']}"


def _limit(document: Document) -> str:
    if document["above_per_second"] is None:
        return "none was met"
    why = next(
        trial["why"]
        for trial in document["trials"]
        if trial["rate_per_second"] == document["above_per_second"]
        and trial["kept"] is False
        and (trial["limited_by"], trial["limit"]) == (document["limited_by"], document["limit"])
    )
    audit = f"; {document['limit']}" if document["limit"] else ""
    return f"{_WHOSE[document['limited_by']]}: {why}{audit}"


def _percentile(numbers: Mapping[str, Any], name: str) -> str:
    return duration(numbers[f"{name}_us"], numbers[f"{name}_is_lower_bound"])


def _rate_row(trial: Mapping[str, Any]) -> list[str]:
    by_whom = trial["limited_by"]
    not_the_broker = f" ({by_whom})" if by_whom not in (None, "broker") else ""
    return [
        rate(trial["rate_per_second"]),
        rate(trial["received_per_second"]),
        _percentile(trial, "p50"),
        _percentile(trial, "p99"),
        "yes" if trial["kept"] else f"no: {trial['why']}{not_the_broker}",
    ]
