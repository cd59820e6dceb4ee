"""The HTML report of a run: whether to trust it, what was measured, how it went, how to ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from bench_spark.report import charts as charts
from bench_spark.report import descriptions
from bench_spark.report.charts import UNITS, Kind, Line
from bench_spark.report.formatting import (
    UNKNOWN,
    byte_size,
    count,
    dotted,
    duration,
    one_line,
    per_cent,
    rate,
    share,
    words,
)
from bench_spark.report.html_page import (
    Charts,
    Child,
    Markup,
    Section,
    page,
    query_list,
    status_badge,
    table,
    tag,
    tiles,
)
from bench_spark.report.measures import (
    AGGREGATIONS,
    COUNTS,
    PERCENTILE_COLUMNS,
    Document,
    in_order,
    shown_statistic,
    statistics_of,
)
from bench_spark.report.queries import queries_of_run
from bench_spark.report.terminal import objective_value, resource_lines
from bench_spark.report.time_charts import MEASURES_OVER_TIME, TimeChart, time_charts
from bench_spark.report.timeline import Row, RunReport, Timeline

MOST_TABLE_ROWS = 60


def over_time(timeline: Timeline, drawn: Charts) -> Iterator[Child]:
    yield tag("p", _about_windows(timeline), class_="faint")
    for chart in time_charts(timeline):
        yield _figure(chart, timeline, drawn)


def _about_windows(timeline: Timeline) -> str:
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


def _figure(chart: TimeChart, timeline: Timeline, drawn: Charts) -> Markup:
    spec = charts.over_time(
        chart.title, chart.rows, chart.lines, chart.kind, timeline.span, timeline.measured
    )
    every = max(1, -(-len(chart.rows) // MOST_TABLE_ROWS))
    shown = [
        [
            f"{row['second']:.1f}",
            *(_NUMBERS[chart.kind](row.get(line.field)) for line in chart.lines),
        ]
        for row in chart.rows[::every]
    ]
    headings = ["second", *(line.label for line in chart.lines)]
    described = f"{chart.description} (every {every} rows)" if every > 1 else chart.description
    return drawn.figure(caption_of(chart), spec, headings, shown, described)


def caption_of(chart: TimeChart) -> str:
    """What stands above a chart: its name, and the unit where numbers have one."""
    unit = UNITS[chart.kind]
    return f"{chart.caption}, {unit}" if unit else chart.caption


def _per_second_size(value: float | None) -> str:
    return UNKNOWN if value is None else f"{byte_size(value)}/s"


_NUMBERS: Mapping[Kind, Any] = {
    "duration": duration,
    "rate": rate,
    "share": per_cent,
    "bytes": byte_size,
    "bytes_per_second": _per_second_size,
    "number": count,
}


_DISTRIBUTION_TABLE = (50.0, 90.0, 99.0, 99.9, 99.99)


def write_run_html(report: RunReport, store: str, writer: TextIO) -> None:
    """`store` is named in the commands that ask it again."""
    document = report.document
    drawn = Charts()
    sections = [
        Section("audit", "Can it be trusted?", audit(document)),
        *_objectives(document),
        *_measured(report, drawn),
        Section("scenario", "Scenario and environment", list(_surroundings(document))),
        Section("sql", "The numbers by SQL", query_list(list(queries_of_run(document)), store)),
    ]
    title = f"{document['scenario']['name']} on {document['broker']['name']}"
    writer.write(page(title, _head(title, report), sections, drawn.specs))


def _measured(report: RunReport, drawn: Charts) -> Iterator[Section]:
    document = report.document
    if not document.get("counts"):
        return
    yield Section("headline", "Result", headline(document))
    if report.timeline is not None:
        charted = list(over_time(report.timeline, drawn))
        if charted:
            yield Section("time", "Over time", charted)
    if document.get("measures"):
        yield Section("latency", "Latency", list(_durations(report, drawn)))
    yield Section("messages", "Messages", _counts(document))
    if document.get("agents"):
        yield Section("agents", "Agents", _agents(document))


def _head(title: str, report: RunReport) -> Markup:
    document, times = report.document, report.times
    facts = [f"run {document['run_id']}"]
    if times.started_at is not None:
        facts.append(f"started {times.started_at:%Y-%m-%d %H:%M:%S} UTC")
    if document.get("measured_seconds"):
        facts.append(f"measured for {document['measured_seconds']:.1f} s")
    return tag(
        "div",
        tag("div", tag("h1", title), status_badge(document["status"]), class_="head"),
        tag("p", "; ".join(facts), class_="facts"),
        tag("p", descriptions.scenario_of(document["scenario"])),
    )


def audit(document: Document) -> Child:
    """Whether to trust the run."""
    checks = (document.get("audit") or {}).get("checks", [])
    told = {check["text"] for check in checks}
    # The reasons repeat the checks that failed; what else is among them comes from the agents.
    others = [reason for reason in document.get("reasons") or [] if reason not in told]
    rows: list[tuple[Child, str, str]] = [(_verdict("fail"), "run", text) for text in others]
    rows += [
        (_verdict(verdict), words(check["name"]), check["text"])
        for verdict in ("fail", "warn", "pass")
        for check in checks
        if check["verdict"] == verdict
    ]
    if not rows:
        return tag("p", "The load never started, so there is nothing to audit.")
    return table("The run's audit of itself", ["verdict", "check", ""], rows, words=3)


def _objectives(document: Document) -> Iterator[Section]:
    if not document.get("slo"):
        return
    rows: list[tuple[Child, str, str, str]] = [
        (
            tag("span", "met" if one["met"] else "missed", class_="pass" if one["met"] else "fail"),
            one["objective"],
            objective_value(one),
            one.get("note") or "",
        )
        for one in document["slo"]
    ]
    headings = ["", "objective", "value", ""]
    shown = table("What the run was to reach", headings, rows, words=4)
    yield Section("objectives", "Objectives", shown)


def _verdict(verdict: str) -> Markup:
    return tag("span", verdict, class_=verdict)


def headline(document: Document) -> Markup:
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
    return tiles([(name, value) for name, value in numbers if value is not None])


def _known(value: float | None, shown: Any) -> str | None:
    return None if value is None else shown(value)


# -- durations -------------------------------------------------------------------------------------


def _durations(report: RunReport, drawn: Charts) -> Iterator[Child]:
    document = report.document
    measures = document["measures"]
    names = in_order(measures)
    headings = [label for _, label in PERCENTILE_COLUMNS]
    rows = [
        [words(name), *(shown_statistic(measures[name], field) for field, _ in PERCENTILE_COLUMNS)]
        for name in names
    ]
    yield table("Percentiles of all messages of the measured phase", ["", *headings], rows)
    if any(measures[name].get("lower_bounds") for name in names):
        yield tag("p", "A value with >= is a lower bound: slower messages are missing from it.")
    yield _distribution(report.distribution, names, drawn)
    for name in names[:3]:
        yield table(
            f"{words(name)} in three aggregations",
            ["", *headings],
            [
                [
                    words(aggregation),
                    *(
                        shown_statistic(statistics_of(document, aggregation, name), field)
                        for field, _ in PERCENTILE_COLUMNS
                    ),
                ]
                for aggregation in AGGREGATIONS
            ],
        )


def _distribution(rows: Sequence[Row], names: Sequence[str], drawn: Charts) -> Markup | None:
    known = [name for name in names if any(name in row for row in rows)]
    if not known:
        return None
    lines = [Line(name, words(name)) for name in known]
    spec = charts.distribution("Durations by percentile", rows, lines)
    shown = [
        [f"{percentile:g} %", *(duration(nearest.get(name)) for name in known)]
        for percentile in _DISTRIBUTION_TABLE
        if (nearest := _row_at(rows, percentile)) is not None
    ]
    return drawn.figure("By percentile", spec, ["percentile", *map(words, known)], shown)


def _row_at(rows: Sequence[Row], percentile: float) -> Row | None:
    """The row of this percentile, or the first above it."""
    return next((row for row in rows if row["percentile"] >= percentile - 1e-6), None)


# -- tables ----------------------------------------------------------------------------------------


def _counts(document: Document) -> Markup:
    counts = document["counts"]
    happened = [name for name in COUNTS if counts.get(name)]
    rows = [(words(name), count(counts[name])) for name in happened]
    none = [words(name) for name in COUNTS if counts.get(name) == 0]
    unknown = [words(name) for name in COUNTS if counts.get(name) is None]
    traced = descriptions.trace_of(document.get("trace"))
    return tag(
        "div",
        table("Messages of the measured phase", ["", "count"], rows),
        tag("p", f"None: {', '.join(none)}.") if none else None,
        tag("p", f"Not known: {', '.join(unknown)}.", class_="faint") if unknown else None,
        tag("p", f"Message by message: {traced}.") if traced else None,
    )


_AGENT_COLUMNS = (
    ("sent", "sent", count),
    ("received_once", "received once", count),
    ("cpu_seconds", "CPU seconds", lambda value: UNKNOWN if value is None else f"{value:.2f}"),
    ("started_late_us", "started late", duration),
    ("clock_error_us", "clock error", duration),
)


def _agents(document: Document) -> Markup:
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
    return table("Each agent, warm-up and drain included", [*headings, "lanes lost"], rows, words=3)


def _brokers(document: Document) -> Iterator[tuple[str, Document]]:
    # Runs stored before there could be several have one.
    brokers = document.get("brokers") or [document["broker"]]
    if len(brokers) == 1:
        yield "Broker", document["broker"]
        return
    for broker in brokers:
        yield f"{broker['role'].title()} {broker['name']}", broker


def _surroundings(document: Document) -> Iterator[Child]:
    environment = document.get("environment") or {}
    lines = [("broker", descriptions.brokers_of(document))]
    if environment:
        lines.append(("machine", descriptions.environment_of(environment)))
    lines += resource_lines(document.get("resources") or {})
    yield table("In short", ["", ""], lines, words=2)
    for title, part in (
        ("Scenario", document["scenario"]),
        *_brokers(document),
        ("Environment", environment),
        ("Resources", document.get("resources") or {}),
    ):
        rows = list(flat_rows(part))
        if rows:
            yield tag(
                "details",
                tag("summary", f"{title}, all keys"),
                table(f"{title}, defaults filled in", ["key", "value"], rows, words=2),
            )


def flat_rows(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Nested keys, dotted, and their values as text."""
    for key, value in dotted(part):
        yield key, value if isinstance(value, str) else json.dumps(value)
