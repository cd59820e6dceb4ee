"""The result of a search for the highest rate, for people, for programs and for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TextIO

from rich.text import Text

from bench_spark.report.chart_theme import Spec
from bench_spark.report.charts import against
from bench_spark.report.curve_text import draw_latencies
from bench_spark.report.formatting import duration, plural, rate, seconds, words
from bench_spark.report.measures import Document
from bench_spark.report.search_parts import doubts, write_trials
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block

CSV_COLUMNS = (
    *("trial", "run_id", "status", "rate_per_second", "sent_per_second", "received_per_second"),
    *("kept", "limited_by", "objective", "why", "limit"),
    *("p50_us", "p50_is_lower_bound", "p99_us", "p99_is_lower_bound"),
)

write_rate_csv = partial(write_trials, columns=CSV_COLUMNS)

ANSWER_LABEL_WIDTH = 8
_WHOSE = {"broker": "the broker", "generator": "the generator", "host": "the host's CPU"}
_HEADINGS = ("msg/s", "received", "p50", "p99", "kept")


def write_rate_terminal(document: Document, writer: TextIO) -> None:
    """The answer, the rates as a table and drawn, and which trials are not to be trusted."""
    console = console_for(writer)
    writer.write(f"{document['scenario']['name']} on {document['broker']['name']}\n")
    answer = [(Text(label), text) for label, text in _answer(document)]
    print_block(console, labelled(answer, ANSWER_LABEL_WIDTH))
    writer.write("\n")
    paced = [trial for trial in document["trials"] if trial["rate_per_second"] is not None]
    rows = [_row(trial) for trial in sorted(paced, key=lambda trial: trial["rate_per_second"])]
    print_block(console, plain_table(_HEADINGS, rows, gap=2, texts=1))
    points = [
        (point["rate_per_second"], point["p99_us"], point["kept"])
        for point in document["curve"]
        if point["p99_us"] is not None
    ]
    lines = [""]
    if points:
        found = document["rate_per_second"]
        lines += [f"  {line}" for line in draw_latencies(points, found, "p99")]
    writer.writelines(f"{line}\n" for line in [*lines, *doubts(document, _which)])


def _answer(document: Document) -> Iterator[tuple[str, str]]:
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
    took = seconds(round(document["took_seconds"]))
    yield "search", f"{plural(len(document['trials']), 'trial')} in {took}"
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
    told = next(
        trial["why"]
        for trial in document["trials"]
        if trial["rate_per_second"] == document["above_per_second"]
        and trial["kept"] is False
        and (trial["limited_by"], trial["limit"]) == (document["limited_by"], document["limit"])
    )
    audit = f"; {document['limit']}" if document["limit"] else ""
    return f"{_WHOSE[document['limited_by']]}: {told}{audit}"


def _percentile(numbers: Mapping[str, Any], name: str) -> str:
    return duration(numbers[f"{name}_us"], numbers[f"{name}_is_lower_bound"])


def _row(trial: Mapping[str, Any]) -> list[str]:
    by_whom = trial["limited_by"]
    not_the_broker = f" ({by_whom})" if by_whom not in (None, "broker") else ""
    return [
        rate(trial["rate_per_second"]),
        rate(trial["received_per_second"]),
        _percentile(trial, "p50"),
        _percentile(trial, "p99"),
        "yes" if trial["kept"] else f"no: {trial['why']}{not_the_broker}",
    ]


def _which(trial: Mapping[str, Any]) -> str:
    if trial["rate_per_second"] is None:
        return "unthrottled"
    return f"{rate(trial['rate_per_second'])} msg/s, {'kept' if trial['kept'] else 'not kept'}"


def latency_chart(document: Document) -> Spec:
    """Latency over the rate, with the rate that was found."""
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
    title = f"{document['scenario']['name']} on {document['broker']['name']}: {measure} by rate"
    rates = [point["rate_per_second"] for point in document["curve"]]
    return against(title, rows, "rate, msg/s", rates, measure, "duration", marked)
