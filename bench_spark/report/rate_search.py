"""The result of a search for the highest rate, for people, for programs and for spreadsheets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TextIO

from bench_spark.report.chart_theme import Spec
from bench_spark.report.charts import against
from bench_spark.report.curve_text import draw_latencies
from bench_spark.report.formatting import duration, plural, rate, seconds, words
from bench_spark.report.measures import Document
from bench_spark.report.search_parts import doubts, write_trials
from bench_spark.report.terminal import console_for, plain_table, print_block

CSV_COLUMNS = (
    *("trial", "run_id", "status", "rate_per_second", "sent_per_second", "received_per_second"),
    *("kept", "limited_by", "objective", "why"),
    *("p50_us", "p50_is_lower_bound", "p99_us", "p99_is_lower_bound"),
)

write_rate_csv = partial(write_trials, columns=CSV_COLUMNS)

_HEADINGS = ("msg/s", "received", "p50", "p99", "kept")


def write_rate_terminal(document: Document, writer: TextIO) -> None:
    """The answer, the rates as a table and drawn, and which trials are not to be trusted."""
    writer.writelines(f"{line}\n" for line in [*_answer(document), ""])
    paced = [trial for trial in document["trials"] if trial["rate_per_second"] is not None]
    rows = [_row(trial) for trial in sorted(paced, key=lambda trial: trial["rate_per_second"])]
    print_block(console_for(writer), plain_table(_HEADINGS, rows, gap=2, texts=1))
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


def _answer(document: Document) -> Iterator[str]:
    found, above = document["rate_per_second"], document["above_per_second"]
    yield f"{document['scenario']['name']} on {document['broker']['name']}"
    if found is None:
        yield f"  highest   none: {rate(above)} msg/s was not kept"
    else:
        sign = ">= " if document["is_lower_bound"] else ""
        yield f"  highest   {sign}{rate(found)} msg/s kept, {_what_was_above(above)}"
    yield f"  limit     {_limit(document)}"
    if found is not None:
        p50, p99 = (_percentile(document, name) for name in ("p50", "p99"))
        yield f"  latency   p50 {p50}, p99 {p99} ({words(document['measure'])})"
    yield f"  start     {rate(document['unthrottled_per_second'])} msg/s received, unthrottled"
    took = seconds(round(document["took_seconds"]))
    yield f"  search    {plural(len(document['trials']), 'trial')} in {took}"
    yield f"  ended as  {document['end_text']}"
    yield f"  run       bench-spark show {document['run_id']}"


def _what_was_above(above: float | None) -> str:
    return "and nothing higher was tried" if above is None else f"{rate(above)} not"


def _limit(document: Document) -> str:
    above = document["above_per_second"]
    if above is None:
        return "none was met"
    refused = [
        trial
        for trial in document["trials"]
        if trial["rate_per_second"] == above and trial["kept"] is False
    ]
    # Of several reasons the one that decided who is to blame.
    told = next(
        (trial for trial in refused if trial["limited_by"] == document["limited_by"]), refused[0]
    )
    by = f"the {document['limited_by']}"
    if document["limited_by"] == "generator":
        by += ", an agent had no CPU left"
    return f"{by}: {told['why']}"


def _percentile(numbers: Mapping[str, Any], name: str) -> str:
    return duration(numbers[f"{name}_us"], numbers[f"{name}_is_lower_bound"])


def _row(trial: Mapping[str, Any]) -> list[str]:
    by_generator = " (generator)" if trial["limited_by"] == "generator" else ""
    return [
        rate(trial["rate_per_second"]),
        rate(trial["received_per_second"]),
        _percentile(trial, "p50"),
        _percentile(trial, "p99"),
        "yes" if trial["kept"] else f"no: {trial['why']}{by_generator}",
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
