"""A result for people: whether to trust it comes first, then what was measured.

Colours appear on terminals only, and not where NO_COLOR is set (rich sees to both). Everything fits
into 80 columns, so that a result can be pasted into an issue.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, ConsoleRenderable
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench_spark.config.objectives import COUNTS
from bench_spark.report import descriptions
from bench_spark.report.descriptions import TROUBLES
from bench_spark.report.formatting import (
    AGGREGATIONS,
    PERCENTILE_COLUMNS,
    UNKNOWN,
    Document,
    count,
    in_order,
    one_line,
    percentile_cells,
    rate,
    share,
    shown_statistic,
    statistics_of,
    words,
)

PLAIN_WIDTH = 80
WIDEST = 100
NUMBER_WIDTH = 7
"""Room for `12.3 ms`, so that tables below each other line up."""
NARROWEST_TEXT = 12
"""Columns of words are folded down to this width."""
INDENT = 2

STATUS_STYLES = {
    "valid": "bold green",
    "degraded": "bold red",
    "failed": "bold red",
    "aborted": "bold yellow",
    "abandoned": "bold yellow",
}
_VERDICT_STYLES = {"fail": "bold red", "warn": "yellow", "pass": "green"}

_ALWAYS_SHOWN = (
    *("due", "sent", "confirmed", "received", "received_once"),
    *("bytes_sent", "bytes_received"),
)
_SHOWN_IF_ANY = tuple(name for name in COUNTS if name not in _ALWAYS_SHOWN)
"""Counts that are worth a word of their own only when something happened."""

_ON_REQUEST = ("corrupted", "unexpected", "repeats_dropped", "given_up")
"""Counts of what only some runs ask for: not missed in others."""

_THROUGHPUT_COLUMNS = (
    ("median_per_second", "median"),
    ("low_per_second", "95 % from"),
    ("high_per_second", "to"),
    ("mean_per_second", "mean"),
    ("stddev_per_second", "std dev"),
)
MOST_PAIRS_LISTED = 10


def write_terminal(document: Document, writer: TextIO, store: str | None = None) -> None:
    """`store` is named in the command that shows the run again, unless it goes without saying."""
    console = console_for(writer)
    for index, part in enumerate(_parts(document, store)):
        if index:
            console.print()
        for block in part:
            print_block(console, block)


def print_block(console: Console, block: ConsoleRenderable) -> None:
    """Print without the spaces that rich fills lines up with: they show when a result is pasted.

    A block that is plain text stays one line, however long: it may be a command to be pasted. A
    table of numbers is never cut: it runs over the edge of a page that is too narrow.
    """
    page_width = console.width
    if isinstance(block, WholeTable):
        console.width = max(page_width, block.least_width)
    with console.capture() as captured:
        console.print(block, soft_wrap=isinstance(block, Text))
    console.width = page_width
    for line in captured.get().splitlines():
        console.file.write(line.rstrip() + "\n")


def console_for(writer: TextIO) -> Console:
    """A console that prints exactly what it is given: no markup, no guessing of colours."""
    console = Console(file=writer, highlight=False, markup=False, emoji=False)
    width = min(console.width, WIDEST) if console.is_terminal else PLAIN_WIDTH
    console.width = width
    return console


class WholeTable(Padding):
    """A table that is printed at its own width where the page has less."""

    def __init__(self, table: Table, least_width: int) -> None:
        super().__init__(table, (0, 0, 0, INDENT), expand=False)
        self.least_width = INDENT + least_width


def plain_table(
    headings: Sequence[str], rows: Sequence[Sequence[str | Text]], gap: int = 1, texts: int = 0
) -> WholeTable:
    """A table without lines: the first column to the left, numbers to the right.

    The last `texts` columns are words: to the left, and folded where there is no room.
    """
    table = Table(box=None, padding=(0, gap, 0, 0), pad_edge=False, header_style="dim")
    least_width = 0
    for index, (heading, *cells) in enumerate(zip(headings, *rows, strict=True)):
        is_text = index >= len(headings) - texts
        is_left = index == 0 or is_text
        width = max(cell_len(str(cell)) for cell in (heading, *cells))
        least = (
            min(width, NARROWEST_TEXT) if is_text else max(width, 0 if is_left else NUMBER_WIDTH)
        )
        table.add_column(
            heading,
            justify="left" if is_left else "right",
            no_wrap=not is_text,
            min_width=least,
        )
        least_width += least + gap
    for row in rows:
        table.add_row(*row)
    return WholeTable(table, least_width)


def indented(part: ConsoleRenderable) -> Padding:
    return Padding(part, (0, 0, 0, INDENT), expand=False)


def _parts(document: Document, store: str | None) -> Iterator[list[ConsoleRenderable]]:
    yield list(_trust(document))
    if document.get("slo"):
        yield [_objectives(document["slo"])]
    if document.get("counts"):
        yield [_headline(document)]
        yield list(_counts(document))
    if document.get("throughput"):
        yield list(_throughput(document["throughput"]))
    if document.get("measures"):
        yield list(_measures(document))
        if (measure := _headline_measure(document)) in document["measures"]:
            yield [_aggregations(document, measure)]
    yield list(_surroundings(document, store))


def _trust(document: Document) -> Iterator[ConsoleRenderable]:
    status = document["status"]
    yield Text.assemble(
        (status.upper(), STATUS_STYLES.get(status, "bold")),
        f"  {document['scenario']['name']} on {document['broker']['name']}",
    )
    findings = list(descriptions.audit_findings(document))
    lines = [(verdict, text) for verdict, _, text in findings if verdict != "pass"]
    passed = [words(name) for verdict, name, _ in findings if verdict == "pass"]
    if passed:
        lines.append(("pass", ", ".join(passed)))
    if lines:
        yield labelled([(Text(label, _VERDICT_STYLES[label]), text) for label, text in lines])


def _objectives(slo: Sequence[Document]) -> ConsoleRenderable:
    return labelled(
        [
            (
                Text("met", "green") if one["met"] else Text("missed", "bold red"),
                descriptions.objective_text(one),
            )
            for one in slo
        ]
    )


def _headline(document: Document) -> ConsoleRenderable:
    counts, rates = document["counts"], document["rates"]
    sent = {"sent": f"{rate(rates['send_rate'])} msg/s"}
    received = {"received": f"{rate(rates['receive_rate'])} msg/s"}
    if _only_publishes(document):
        answers = {name: count(counts[name]) for name in ("confirmed", "unconfirmed", "refused")}
        cells = {**sent, "in all": count(counts["sent"]), **answers}
    elif _only_consumes(document):
        redelivered = {"redelivered": count(counts["redelivered"])}
        cells = {**received, "in all": count(counts["received"]), **redelivered}
    else:
        cells = {
            **sent,
            **received,
            "delivered": share(document.get("delivery_rate")),
            "lost": count(counts["lost"]),
            "duplicates": count(counts["duplicates"]),
            "in broker": count(counts["left_in_broker"]),
        }
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    for heading in cells:
        table.add_column(heading, no_wrap=True, style="bold")
    table.add_row(*cells.values())
    return indented(table)


def _only_publishes(document: Document) -> bool:
    return not document["scenario"]["consumers"]


def _only_consumes(document: Document) -> bool:
    return not document["scenario"]["producers"]


def _headline_measure(document: Document) -> str:
    return "confirm_latency" if _only_publishes(document) else "latency"


def _counts(document: Document) -> Iterator[ConsoleRenderable]:
    counts = document["counts"]
    quiet = [name for name in _SHOWN_IF_ANY if counts.get(name) == 0]
    absent = [name for name in COUNTS if counts.get(name) is None]
    unknown = [name for name in absent if name not in _ON_REQUEST]
    shown = [name for name in COUNTS if name not in quiet and name not in absent]
    if _only_publishes(document) or _only_consumes(document):
        unknown = []  # what the other end would have counted is not missed here
    lines = [("counts", ", ".join(f"{words(name)} {count(counts[name])}" for name in shown))]
    if quiet:
        lines.append(("none", ", ".join(map(words, quiet))))
    if unknown:
        lines.append(("unknown", ", ".join(map(words, unknown))))
    yield labelled(lines)


def _throughput(throughput: Document) -> Iterator[ConsoleRenderable]:
    """As sampled at the consumers: all pairs together, then each of several."""
    pairs = throughput["pairs"]
    listed = pairs[:MOST_PAIRS_LISTED] if len(pairs) > 1 else []
    rows = [("all pairs" if listed else "throughput", throughput)]
    rows += [(f"pair {pair['pair']}", pair) for pair in listed]
    yield plain_table(
        ["sampled msg/s".ljust(16), *(heading for _, heading in _THROUGHPUT_COLUMNS), "samples"],
        [
            [name, *(rate(of[field]) for field, _ in _THROUGHPUT_COLUMNS), count(of["samples"])]
            for name, of in rows
        ],
    )
    if len(pairs) > len(listed) > 0:
        yield indented(Text(f"... and {count(len(pairs) - len(listed))} more pairs", "dim"))


def _measures(document: Document) -> Iterator[ConsoleRenderable]:
    measures = document["measures"]
    names = in_order(measures)
    yield _percentiles("measure", [(name, measures[name]) for name in names])
    for name in names:
        odd = [
            f"{count(measures[name][field])} {meaning}"
            for field, meaning in (
                ("negative", "negative, taken as 0"),
                ("overflow", "above the histogram's range"),
            )
            if measures[name].get(field)
        ]
        if odd:
            yield indented(Text(f"{name}: {', '.join(odd)}", "yellow"))


def _aggregations(document: Document, measure: str) -> ConsoleRenderable:
    return _percentiles(
        f"{measure} by",
        [(name, statistics_of(document, name, measure)) for name in AGGREGATIONS],
    )


def _percentiles(heading: str, rows: Sequence[tuple[str, Document]]) -> ConsoleRenderable:
    return plain_table(
        [heading.ljust(16), *(column for _, column in PERCENTILE_COLUMNS)],
        [[name, *percentile_cells(statistics)] for name, statistics in rows],
    )


def _surroundings(document: Document, store: str | None) -> Iterator[ConsoleRenderable]:
    environment = document.get("environment") or {}
    run_id = document["run_id"]
    broker = descriptions.brokers_of(document)
    lines = [("scenario", descriptions.scenario_of(document["scenario"])), ("broker", broker)]
    if clients := descriptions.clients_of(document):
        lines.append(("clients", clients))
    if traced := descriptions.trace_of(document.get("trace")):
        lines.append(("messages", traced))
    if environment:
        lines.append(("machine", descriptions.environment_of(environment)))
    lines += descriptions.resource_lines(document.get("resources") or {})
    lines.append(("run", run_id))
    yield labelled(lines)
    again = f"bench-spark show {run_id}" + (f" --store {shlex.quote(store)}" if store else "")
    yield Text.assemble(("  again     ", "dim"), again)


def labelled(lines: Sequence[tuple[str | Text, str]], label_width: int = 0) -> ConsoleRenderable:
    """Labels in a narrow column, faint unless they have a style, and texts beside them that wrap
    within their own."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, min_width=label_width)
    table.add_column(overflow="fold")
    for label, text in lines:
        shown = Text(label, "dim") if isinstance(label, str) else label
        table.add_row(shown, Text(one_line(text)))
    return indented(table)


_Cell = Callable[[Document], str | Text]


def write_side_by_side(
    documents: Sequence[Document], headings: Sequence[str], writer: TextIO
) -> None:
    """One column per document under its heading; `headings` and `documents` go in pairs."""
    rows = [
        [label, *(cell(document) for document in documents)]
        for label, cell in _ROWS
        if any(cell(document) != UNKNOWN for document in documents)
    ]
    print_block(console_for(writer), plain_table(["", *headings], rows, gap=2))


def _status(document: Document) -> Text:
    status = document["status"]
    return Text(status, STATUS_STYLES.get(status, ""))


def _rate(name: str) -> _Cell:
    return lambda document: rate((document.get("rates") or {}).get(name))


def _count(name: str) -> _Cell:
    return lambda document: count((document.get("counts") or {}).get(name))


def _statistic(measure: str, field: str) -> _Cell:
    return lambda document: shown_statistic(
        (document.get("measures") or {}).get(measure) or {}, field
    )


def _delivered(document: Document) -> str:
    return share(document.get("delivery_rate"))


def _busiest_agent(document: Document) -> str:
    used = (document.get("resources") or {}).get("busiest_agent_share_of_core")
    return UNKNOWN if used is None else f"{used:.0%}"


_ROWS: tuple[tuple[str, _Cell], ...] = (
    ("status", _status),
    ("sent msg/s", _rate("send_rate")),
    ("received msg/s", _rate("receive_rate")),
    ("delivered", _delivered),
    ("lost", _count("lost")),
    ("duplicates", _count("duplicates")),
    ("latency p50", _statistic("latency", "p50_us")),
    ("latency p95", _statistic("latency", "p95_us")),
    ("latency p99", _statistic("latency", "p99_us")),
    ("latency p99.9", _statistic("latency", "p999_us")),
    ("latency max", _statistic("latency", "max_us")),
    ("from due time p99", _statistic("delivery_latency", "p99_us")),
    ("busiest agent's core", _busiest_agent),
)


TRACED = ("sent", "confirmed", "received", "received_once", *TROUBLES)


def write_trace(trace: Document, writer: TextIO) -> None:
    console = console_for(writer)
    for block in _blocks(trace):
        print_block(console, block)


def _blocks(trace: Document) -> Iterator[ConsoleRenderable]:
    yield labelled([(words(name), count(trace[name])) for name in TRACED if name in trace])
    measures = trace["measures"]
    if measures:
        yield _percentiles("measure", [(name, measures[name]) for name in in_order(measures)])
    if trace["producers"]:
        yield plain_table(["producer", *map(words, TROUBLES)], troubled_producers(trace))


def troubled_producers(trace: Document) -> list[list[str]]:
    return [
        [
            "without ID" if entry["producer"] is None else str(entry["producer"]),
            *(count(entry[name]) for name in TROUBLES),
        ]
        for entry in trace["producers"]
    ]
