"""The results of searches for a window or a rate, for people, programs and spreadsheets."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TextIO

from rich.text import Text

from bench_spark.report.charts import Spec, against, log_axis
from bench_spark.report.formatting import count, duration, plural, rate, seconds, words
from bench_spark.report.measures import Document
from bench_spark.report.terminal import console_for, labelled, plain_table, print_block


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


WIDTH, HEIGHT = 56, 12
POINT, CHOSEN = "o", "X"
NOT_KEPT = "-"
MOST_RATE_TICKS = 6


class Mark(NamedTuple):
    x: float
    y: float
    sign: str


class Axis(Protocol):
    """Where a value lies, from 0 to 1, and what stands beside the axis."""

    def share(self, value: float) -> float: ...

    @property
    def labels(self) -> Sequence[tuple[float, str]]:
        """Values and their texts, in order."""


def draw_curve(points: Sequence[tuple[int, float]], chosen: int) -> list[str]:
    """Lines of text. `points` are (window, throughput); the chosen window is marked."""
    across = LogAxis([window for window, _ in points])
    up = _FromZero(max((value for _, value in points), default=0.0) or 1.0)
    # The chosen one last: it may share its place with a neighbour.
    ordered = sorted(points, key=lambda point: point[0] == chosen)
    marks = [Mark(x, y, CHOSEN if x == chosen else POINT) for x, y in ordered]
    legend = f"messages in flight ({CHOSEN}: chosen)"
    return _drawn(marks, across, up, "msg/s", "0", legend)


def draw_latencies(
    points: Sequence[tuple[float, float, bool]], found: float | None, name: str
) -> list[str]:
    """Lines of text. `points` are (rate, latency in us, whether the rate was kept), and `name` is
    what the latency is called; the rate that was found is marked."""
    across = LinearAxis([rate for rate, _, _ in points])
    up = _Durations([latency_us for _, latency_us, _ in points])
    ordered = sorted(points, key=lambda point: point[0] == found)
    marks = [
        Mark(rate, latency_us, CHOSEN if rate == found else POINT if kept else NOT_KEPT)
        for rate, latency_us, kept in ordered
    ]
    answer = f", {CHOSEN}: highest kept" if found is not None else ""
    legend = f"msg/s ({POINT}: kept, {NOT_KEPT}: not kept{answer})"
    return _drawn(marks, across, up, name, "", legend)


def _drawn(
    marks: Iterable[Mark], across: Axis, up: Axis, heading: str, floor: str, legend: str
) -> list[str]:
    """Later marks cover earlier ones; `floor` is what stands beside the axis at the bottom."""
    grid = [[" "] * WIDTH for _ in range(HEIGHT)]
    for mark in marks:
        grid[_row(up.share(mark.y))][_column(across.share(mark.x))] = mark.sign
    labels = {_row(up.share(value)): text for value, text in up.labels}
    margin = max(map(len, [heading, *labels.values()]))
    lines = [f"{heading:>{margin}}"]
    lines += [
        f"{labels.get(row, ''):>{margin}} |{''.join(cells)}".rstrip()
        for row, cells in enumerate(grid)
    ]
    lines.append(f"{floor:>{margin}} +{'-' * WIDTH}")
    lines.append(f"{'':>{margin}}  {_below(across)}".rstrip())
    lines.append(f"{'':>{margin}}  {legend}")
    return lines


def _row(share: float) -> int:
    return HEIGHT - 1 - round(share * (HEIGHT - 1))


def _column(share: float) -> int:
    return round(share * (WIDTH - 1))


def _below(axis: Axis) -> str:
    line = [" "] * (WIDTH + 12)
    free_from = 0
    for value, label in axis.labels:
        at = _column(axis.share(value))
        if at >= free_from:
            line[at : at + len(label)] = label
            free_from = at + len(label) + 1
    return "".join(line)


class LogAxis:
    """Whole powers of ten that enclose the values."""

    def __init__(self, values: Sequence[float]) -> None:
        first, last = min(values, default=1), max(values, default=1)
        self._low = math.floor(math.log10(first))
        self._high = max(self._low + 1, math.ceil(math.log10(last)))

    @property
    def labels(self) -> list[tuple[float, str]]:
        powers = (10**exponent for exponent in range(self._low, self._high + 1))
        return [(power, f"{power:,}") for power in powers]

    def share(self, value: float) -> float:
        return (math.log10(value) - self._low) / (self._high - self._low)


class LinearAxis:
    """From the lowest value to the highest, with round numbers between."""

    def __init__(self, values: Sequence[float]) -> None:
        self._low, self._high = min(values, default=0.0), max(values, default=1.0)

    @property
    def labels(self) -> list[tuple[float, str]]:
        step = _round_step((self._high - self._low) / MOST_RATE_TICKS)
        first, last = math.ceil(self._low / step), math.floor(self._high / step)
        return [(number * step, f"{number * step:,.10g}") for number in range(first, last + 1)]

    def share(self, value: float) -> float:
        span = self._high - self._low
        return (value - self._low) / span if span else 0.5


def _round_step(least: float) -> float:
    """The first of 1, 2, 5, 10, 20 ... that is not below; 1 where all values are the same."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)


class _FromZero:
    """Linear, with a label at the top and one half-way."""

    def __init__(self, top: float) -> None:
        self._top = top

    @property
    def labels(self) -> list[tuple[float, str]]:
        half = self._top * (HEIGHT - 1 - HEIGHT // 2) / (HEIGHT - 1)
        return [(value, f"{value:,.0f}") for value in (self._top, half)]

    def share(self, value: float) -> float:
        return value / self._top


class _Durations:
    """Logarithmic, in microseconds: what is too fast by a little is too slow by a lot."""

    def __init__(self, values_us: Sequence[float]) -> None:
        (self._low, self._high), self._ticks = log_axis(values_us)

    @property
    def labels(self) -> list[tuple[float, str]]:
        return [(tick, duration(tick)) for tick in self._ticks]

    def share(self, value: float) -> float:
        return math.log(max(1.0, value) / self._low) / math.log(self._high / self._low)


CSV_COLUMNS = (
    *("trial", "run_id", "status", "in_flight"),
    *("median_per_second", "mean_per_second", "stddev_per_second"),
    *("low_per_second", "high_per_second", "samples"),
)

write_search_csv = partial(write_trials, columns=CSV_COLUMNS)


def write_search_terminal(document: Document, writer: TextIO) -> None:
    """The answer, the curve as a table and drawn, and which trials are not to be trusted."""
    writer.writelines(f"{line}\n" for line in [*_answer(document), ""])
    rows = [_window_search_row(point) for point in document["curve"]]
    print_block(console_for(writer), plain_table(_HEADINGS, rows, gap=2))
    points = [(point["in_flight"], point["median_per_second"]) for point in document["curve"]]
    drawn = [f"  {line}" for line in draw_curve(points, document["in_flight"])]
    writer.writelines(f"{line}\n" for line in ["", *drawn, *doubts(document, _which)])


def _answer(document: Document) -> Iterator[str]:
    best, smallest = document["median_per_second"], document["smallest_median_per_second"]
    yield f"{document['scenario']['name']} on {document['broker']['name']}"
    yield f"  best      {count(document['in_flight'])} in flight, {rate(best)} msg/s"
    yield (
        f"  smallest  {count(document['smallest_in_flight'])} in flight, {rate(smallest)} msg/s, "
        f"{smallest / best if best else 1.0:.1%} of the best"
    )
    took = seconds(round(document["took_seconds"]))
    yield f"  search    {plural(len(document['trials']), 'trial')} in {took}"
    yield f"  ended as  {document['end_text']}"


def _which(trial: Mapping[str, Any]) -> str:
    return f"{count(trial['in_flight'])} in flight"


_HEADINGS = ("in flight", "median msg/s", "at least", "at most", "mean", "stddev", "samples")


def _window_search_row(point: dict[str, Any]) -> list[str]:
    names = ("median", "low", "high", "mean", "stddev")
    rates = [rate(point[f"{name}_per_second"]) for name in names]
    return [count(point["in_flight"]), *rates, count(point["samples"])]


def curve_chart(document: Document) -> Spec:
    """Throughput over the window, with the intervals of the medians."""
    chosen, smallest = document["in_flight"], document["smallest_in_flight"]
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
        for point in document["curve"]
    ]
    marked = [
        {"x": row["x"], "y": row["y"], "text": f"{names[row['x']]}: {count(row['x'])}"}
        for row in rows
        if row["x"] in names
    ]
    title = (
        f"{document['scenario']['name']} on {document['broker']['name']}: throughput by messages "
        "in flight, msg/s"
    )
    windows = [row["x"] for row in rows]
    return against(title, rows, "messages in flight", windows, "throughput", "rate", marked)


_RATE_SEARCH_CSV_COLUMNS = (
    *("trial", "run_id", "status", "rate_per_second", "sent_per_second", "received_per_second"),
    *("kept", "limited_by", "objective", "why", "limit"),
    *("p50_us", "p50_is_lower_bound", "p99_us", "p99_is_lower_bound"),
)

write_rate_csv = partial(write_trials, columns=_RATE_SEARCH_CSV_COLUMNS)

ANSWER_LABEL_WIDTH = 8
_WHOSE = {"broker": "the broker", "generator": "the generator", "host": "the host's CPU"}
_RATE_SEARCH_HEADINGS = ("msg/s", "received", "p50", "p99", "kept")


def write_rate_terminal(document: Document, writer: TextIO) -> None:
    """The answer, the rates as a table and drawn, and which trials are not to be trusted."""
    console = console_for(writer)
    writer.write(f"{document['scenario']['name']} on {document['broker']['name']}\n")
    answer = [(Text(label), text) for label, text in _rate_search_answer(document)]
    print_block(console, labelled(answer, ANSWER_LABEL_WIDTH))
    writer.write("\n")
    paced = [trial for trial in document["trials"] if trial["rate_per_second"] is not None]
    rows = [
        _rate_search_row(trial)
        for trial in sorted(paced, key=lambda trial: trial["rate_per_second"])
    ]
    print_block(console, plain_table(_RATE_SEARCH_HEADINGS, rows, gap=2, texts=1))
    points = [
        (point["rate_per_second"], point["p99_us"], point["kept"])
        for point in document["curve"]
        if point["p99_us"] is not None
    ]
    lines = [""]
    if points:
        found = document["rate_per_second"]
        lines += [f"  {line}" for line in draw_latencies(points, found, "p99")]
    writer.writelines(f"{line}\n" for line in [*lines, *doubts(document, _rate_search_which)])


def _rate_search_answer(document: Document) -> Iterator[tuple[str, str]]:
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


def _rate_search_row(trial: Mapping[str, Any]) -> list[str]:
    by_whom = trial["limited_by"]
    not_the_broker = f" ({by_whom})" if by_whom not in (None, "broker") else ""
    return [
        rate(trial["rate_per_second"]),
        rate(trial["received_per_second"]),
        _percentile(trial, "p50"),
        _percentile(trial, "p99"),
        "yes" if trial["kept"] else f"no: {trial['why']}{not_the_broker}",
    ]


def _rate_search_which(trial: Mapping[str, Any]) -> str:
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
