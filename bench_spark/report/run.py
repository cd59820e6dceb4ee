"""The report of a run: whether to trust it, what was measured, how it went, how to ask.

As CSV and Parquet it has one row per aggregation and measure. Columns, in this order:

    run_id scenario broker status exit_code measured_seconds
    aggregation       run, interval_max or interval_mean
    measure           latency, delivery_latency, confirm_latency, round_trip, send_lag,
                      insert_duration
    count negative overflow                    of the measure; `run` only
    min_us mean_us p50_us p75_us p90_us p95_us p99_us p999_us max_us
    lower_bounds      which of these to read as >=, separated by spaces
    send_rate receive_rate expected delivery_rate
    due unsent sent confirmed unconfirmed refused returned received received_once duplicates
    left_in_broker lost indeterminate acked redelivered out_of_order corrupted malformed foreign
    errors reconnects
    bytes_sent bytes_received unexpected repeats_dropped given_up late

The last two groups are the run's and repeat in each of its rows. A run that measured nothing has
one row without aggregation and measure, so that its status is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TextIO

import pyarrow as pa

from bench_spark.cache import default_store
from bench_spark.config.objectives import COUNTS
from bench_spark.report import blocks, charts, descriptions
from bench_spark.report.charts import UNITS, Line
from bench_spark.report.descriptions import TROUBLES
from bench_spark.report.formats import Report, Sheet
from bench_spark.report.formatting import (
    AGGREGATIONS,
    PERCENTILE_COLUMNS,
    SHOWN_AS,
    UNKNOWN,
    Document,
    count,
    duration,
    in_order,
    one_line,
    percentile_cells,
    rate,
    share,
    shown_statistic,
    statistics_of,
    words,
)
from bench_spark.report.page import Charts, Page
from bench_spark.report.queries import queries_of_run
from bench_spark.report.terminal import TRACED, troubled_producers, write_terminal, write_trace
from bench_spark.report.timeline import (
    MEASURES_OVER_TIME,
    Row,
    RunHistory,
    TimeChart,
    TimeSeries,
    history_of,
    time_charts,
)
from bench_spark.store.delta import Store

MOST_TABLE_ROWS = 60
_DISTRIBUTION_TABLE = (50.0, 90.0, 99.0, 99.9, 99.99)

_RUN = ("run_id", "scenario", "broker", "status", "exit_code", "measured_seconds")
_VALUES = ("min_us", "mean_us", *(field for field, _ in PERCENTILE_COLUMNS))
_MEASURE = ("aggregation", "measure", "count", "negative", "overflow", *_VALUES, "lower_bounds")
_RATES = ("send_rate", "receive_rate")
COLUMNS = (*_RUN, *_MEASURE, *_RATES, "expected", "delivery_rate", *COUNTS)

_TEXTS = frozenset(
    {"run_id", "scenario", "broker", "status", "aggregation", "measure", "lower_bounds"}
)
_DOUBLES = frozenset({"measured_seconds", "send_rate", "receive_rate", "delivery_rate"})


def _type_of(column: str) -> pa.DataType:
    if column in _TEXTS:
        return pa.string()
    # Means over intervals are no whole microseconds, so no duration is stored as one.
    return pa.float64() if column in _DOUBLES or column.endswith("_us") else pa.int64()


TYPES = {column: _type_of(column) for column in COLUMNS}


class RunReport(Report):
    def __init__(
        self,
        document: Document,
        history: Callable[[], RunHistory],
        store: str,
        is_default_store: bool = False,
    ) -> None:
        """`history` is read where a page is asked for. `store` is named in the commands that ask it
        again, on a terminal only where it does not go without saying."""
        super().__init__(document)
        self._history = history
        self._store = store
        self._is_default_store = is_default_store

    @property
    def sheet(self) -> Sheet:
        return Sheet(COLUMNS, list(_rows(self.document)), TYPES)

    def write_terminal(self, writer: TextIO) -> None:
        write_terminal(self.document, writer, None if self._is_default_store else self._store)

    def page(self) -> Page:
        document, history, drawn = self.document, self._history(), Charts()
        sections = [
            blocks.PageSection("audit", "Can it be trusted?", [audit(document)]),
            *_objectives(document),
            *_measured(document, history, drawn),
            blocks.PageSection(
                "scenario", "Scenario and environment", list(_surroundings(document))
            ),
            blocks.PageSection(
                "sql",
                "The numbers by SQL",
                [blocks.queries_block(queries_of_run(document), self._store)],
            ),
        ]
        return Page(_heading(document, history), sections, drawn)


def report_of(document: Document, store: str) -> RunReport:
    """The result of a run, to be written; `store` as given by the user."""
    history = partial(history_of, Store(store), document)
    return RunReport(document, history, store, is_default_store=store == default_store())


class TraceReport(Report):
    """What the join of all messages of a run found; a row per producer in trouble."""

    def __init__(self, run_id: str, trace: Document) -> None:
        super().__init__({"run_id": run_id, "trace": trace})
        self._trace = trace

    @property
    def sheet(self) -> Sheet:
        return Sheet(["producer", *TROUBLES], self._trace["producers"], {})

    def page(self) -> Page:
        trace = self._trace
        counts = [(words(name), count(trace[name])) for name in TRACED if name in trace]
        parts: list[blocks.Block] = [blocks.Table("Messages", ["", "count"], counts)]
        if trace["measures"]:
            parts.append(_percentiles("Percentiles of all messages", trace["measures"]))
        if trace["producers"]:
            rows = troubled_producers(trace)
            parts.append(blocks.Table("By producer", ["producer", *map(words, TROUBLES)], rows))
        section = blocks.PageSection("messages", "Messages", parts)
        return Page(blocks.Heading(f"Messages of {self.document['run_id']}"), [section], Charts())

    def write_terminal(self, writer: TextIO) -> None:
        write_trace(self._trace, writer)


def _rows(document: Document) -> Iterator[dict[str, Any]]:
    of_run = _of_run(document)
    measures = in_order(document.get("measures") or {})
    for aggregation in AGGREGATIONS:
        for measure in measures:
            statistics = statistics_of(document, aggregation, measure)
            yield of_run | {
                "aggregation": aggregation,
                "measure": measure,
                **{name: statistics.get(name) for name in ("count", "negative", "overflow")},
                **{name: statistics.get(name) for name in _VALUES},
                "lower_bounds": " ".join(statistics.get("lower_bounds") or ()),
            }
    if not measures:
        yield of_run


def _of_run(document: Document) -> dict[str, Any]:
    counts, rates = document.get("counts") or {}, document.get("rates") or {}
    return {
        **{name: document.get(name) for name in _RUN},
        "scenario": document["scenario"]["name"],
        "broker": document["broker"]["name"],
        **{name: rates.get(name) for name in _RATES},
        **{name: document.get(name) for name in ("expected", "delivery_rate")},
        **{name: counts.get(name) for name in COUNTS},
    }


def _measured(
    document: Document, history: RunHistory, drawn: Charts
) -> Iterator[blocks.PageSection]:
    if not document.get("counts"):
        return
    yield blocks.PageSection("headline", "Result", [headline(document)])
    if history.timeline is not None:
        charted = list(_over_time(history.timeline, drawn))
        if charted:
            yield blocks.PageSection("time", "Over time", charted)
    if document.get("measures"):
        yield blocks.PageSection("latency", "Latency", list(_durations(document, history, drawn)))
    yield blocks.PageSection("messages", "Messages", list(_counts(document)))
    if document.get("agents"):
        yield blocks.PageSection("agents", "Agents", [_agents(document)])


def _heading(document: Document, history: RunHistory) -> blocks.Heading:
    facts = [f"run {document['run_id']}"]
    if history.times.started_at is not None:
        facts.append(f"started {history.times.started_at:%Y-%m-%d %H:%M:%S} UTC")
    if document.get("measured_seconds"):
        facts.append(f"measured for {document['measured_seconds']:.1f} s")
    return blocks.Heading(
        f"{document['scenario']['name']} on {document['broker']['name']}",
        blocks.status_mark(document["status"]),
        ["; ".join(facts)],
        descriptions.scenario_of(document["scenario"]),
    )


def audit(document: Document) -> blocks.Block:
    """Whether to trust the run."""
    rows = [
        (blocks.Mark(verdict, verdict), words(name), text)
        for verdict, name, text in descriptions.audit_findings(document)
    ]
    if not rows:
        return blocks.Paragraph("The load never started, so there is nothing to audit.")
    return blocks.Table("The run's audit of itself", ["verdict", "check", ""], rows, words=3)


def _objectives(document: Document) -> Iterator[blocks.PageSection]:
    if not document.get("slo"):
        return
    rows = [
        [
            blocks.Mark("met", "pass") if one["met"] else blocks.Mark("missed", "fail"),
            one["objective"],
            descriptions.objective_value(one),
            one.get("note") or "",
        ]
        for one in document["slo"]
    ]
    headings = ["", "objective", "value", ""]
    shown = blocks.Table("What the run was to reach", headings, rows, words=4)
    yield blocks.PageSection("objectives", "Objectives", [shown])


def headline(document: Document) -> blocks.Tiles:
    """What a run came to, in a few numbers."""
    counts, rates = document["counts"], document["rates"]
    numbers: list[tuple[str, str | None]] = [
        ("received, msg/s", _known(rates["receive_rate"], rate)),
        ("sent, msg/s", _known(rates["send_rate"], rate)),
        ("delivered", _known(document.get("delivery_rate"), share)),
        ("lost", _known(counts.get("lost"), count)),
        ("duplicates", _known(counts.get("duplicates"), count)),
    ]
    for measure in MEASURES_OVER_TIME:
        found = (document.get("measures") or {}).get(measure)
        if found:
            numbers += [
                (f"{words(measure)} {label}", shown_statistic(found, name))
                for name, label in PERCENTILE_COLUMNS
                if label in ("p50", "p99") or (label == "p99.9" and measure == "latency")
            ]
    return blocks.Tiles([(name, value) for name, value in numbers if value is not None])


def _known(value: float | None, shown: Any) -> str | None:
    return None if value is None else shown(value)


# -- over time -------------------------------------------------------------------------------------


def _over_time(timeline: TimeSeries, drawn: Charts) -> Iterator[blocks.Block]:
    yield blocks.Paragraph(_about_windows(timeline), "faint")
    for chart in time_charts(timeline):
        yield _figure(chart, timeline, drawn)


def _about_windows(timeline: TimeSeries) -> str:
    text = (
        "Throughput and percentiles are of the last 10 seconds at each moment, resources of each "
        "second. What lies outside the measured phase is shaded."
    )
    if timeline.windows_per_point > 1:
        text += (
            f" Each point stands for {timeline.windows_per_point} seconds: the worst for "
            "durations, the mean for the rest."
        )
    return text


def _figure(chart: TimeChart, timeline: TimeSeries, drawn: Charts) -> blocks.Figure:
    spec = charts.over_time(
        chart.title, chart.rows, chart.lines, chart.unit, timeline.span, timeline.measured
    )
    every = max(1, -(-len(chart.rows) // MOST_TABLE_ROWS))
    shown = [
        [
            f"{row['second']:.1f}",
            *(SHOWN_AS[chart.unit](row.get(line.field)) for line in chart.lines),
        ]
        for row in chart.rows[::every]
    ]
    headings = ["second", *(line.label for line in chart.lines)]
    described = f"{chart.description} (every {every} rows)" if every > 1 else chart.description
    return drawn.figure(caption_of(chart), spec, blocks.Table(described, headings, shown))


def caption_of(chart: TimeChart) -> str:
    """What stands above a chart: its name, and the unit where numbers have one."""
    unit = UNITS.get(chart.unit)
    return f"{chart.caption}, {unit}" if unit else chart.caption


# -- durations -------------------------------------------------------------------------------------


def _durations(document: Document, history: RunHistory, drawn: Charts) -> Iterator[blocks.Block]:
    measures = document["measures"]
    names = in_order(measures)
    headings = ["", *(label for _, label in PERCENTILE_COLUMNS)]
    yield _percentiles("Percentiles of all messages of the measured phase", measures)
    if any(measures[name].get("lower_bounds") for name in names):
        yield blocks.Paragraph(
            "A value with >= is a lower bound: slower messages are missing from it."
        )
    known = [name for name in names if any(name in row for row in history.distribution)]
    if known:
        yield _distribution(history.distribution, known, drawn)
    for name in names[:3]:
        by_aggregation = [
            [words(aggregation), *percentile_cells(statistics_of(document, aggregation, name))]
            for aggregation in AGGREGATIONS
        ]
        yield blocks.Table(
            f"{words(name).capitalize()} in three aggregations", headings, by_aggregation
        )


def _percentiles(caption: str, measures: Document) -> blocks.Table:
    headings = ["", *(label for _, label in PERCENTILE_COLUMNS)]
    rows = [[words(name), *percentile_cells(measures[name])] for name in in_order(measures)]
    return blocks.Table(caption, headings, rows)


def _distribution(rows: Sequence[Row], names: Sequence[str], drawn: Charts) -> blocks.Figure:
    lines = [Line(name, words(name)) for name in names]
    spec = charts.distribution("Durations by percentile", rows, lines)
    shown = [
        [f"{percentile:g} %", *(duration(nearest.get(name)) for name in names)]
        for percentile in _DISTRIBUTION_TABLE
        if (nearest := _row_at(rows, percentile)) is not None
    ]
    table = blocks.Table("By percentile", ["percentile", *map(words, names)], shown)
    return drawn.figure("By percentile", spec, table)


def _row_at(rows: Sequence[Row], percentile: float) -> Row | None:
    """The row of this percentile, or the first above it."""
    return next((row for row in rows if row["percentile"] >= percentile - 1e-6), None)


# -- tables ----------------------------------------------------------------------------------------


def _counts(document: Document) -> Iterator[blocks.Block]:
    counts = document["counts"]
    happened = [[words(name), count(counts[name])] for name in COUNTS if counts.get(name)]
    none = [words(name) for name in COUNTS if counts.get(name) == 0]
    unknown = [words(name) for name in COUNTS if counts.get(name) is None]
    yield blocks.Table("Messages of the measured phase", ["", "count"], happened)
    if none:
        yield blocks.Paragraph(f"None: {', '.join(none)}.")
    if unknown:
        yield blocks.Paragraph(f"Not known: {', '.join(unknown)}.", "faint")
    if traced := descriptions.trace_of(document.get("trace")):
        yield blocks.Paragraph(f"Message by message: {traced}.")


_AGENT_COLUMNS = (
    ("sent", "sent", count),
    ("received_once", "received once", count),
    ("cpu_seconds", "CPU seconds", lambda value: UNKNOWN if value is None else f"{value:.2f}"),
    ("started_late_us", "started late", duration),
    ("clock_error_us", "clock error", duration),
)


def _agents(document: Document) -> blocks.Table:
    rows = [
        [
            str(agent["agent"]),
            one_line(str(agent.get("host"))),
            one_line(str(agent.get("executor"))),
            *(shown(agent.get(field)) for field, _, shown in _AGENT_COLUMNS),
            count(len(agent.get("outages") or ())),
        ]
        for agent in document["agents"]
    ]
    headings = ["agent", "host", "executor", *(label for _, label, _ in _AGENT_COLUMNS)]
    return blocks.Table(
        "Each agent, warm-up and drain included", [*headings, "lanes lost"], rows, words=3
    )


def _brokers(document: Document) -> Iterator[tuple[str, Document]]:
    # Runs stored before there could be several have one.
    brokers = document.get("brokers") or [document["broker"]]
    if len(brokers) == 1:
        yield "Broker", document["broker"]
        return
    for broker in brokers:
        yield f"{broker['role'].title()} {broker['name']}", broker


def _surroundings(document: Document) -> Iterator[blocks.Block]:
    environment = document.get("environment") or {}
    lines = [("broker", descriptions.brokers_of(document))]
    if environment:
        lines.append(("machine", descriptions.environment_of(environment)))
    lines += descriptions.resource_lines(document.get("resources") or {})
    yield blocks.Table("In short", ["", ""], lines, words=2)
    for title, part in (
        ("Scenario", document["scenario"]),
        *_brokers(document),
        ("Environment", environment),
        ("Resources", document.get("resources") or {}),
    ):
        if part:
            yield blocks.keys_block(title, part)
