"""Renders the changing parts of a dashboard's page as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench_spark.report import descriptions
from bench_spark.report.formatting import (
    UNKNOWN,
    count,
    duration,
    one_line,
    per_cent,
    rate,
    seconds,
    words,
)
from bench_spark.report.live import Progress, Window
from bench_spark.report.measures import Document
from bench_spark.report.page import (
    POLICY,
    Block,
    Heading,
    Paragraph,
    ProgressBar,
    Table,
    Tiles,
    fragment,
    status_mark,
)
from bench_spark.report.run import audit, headline
from bench_spark.report.time_charts import MEASURES_OVER_TIME

LIVE_POLICY = f"{POLICY}; connect-src 'self'"
"""Unlike a report, the page fetches updates, from its own server only."""
MOST_AGENTS_SHOWN = 50

HEAD, PROGRESS, RESULT, TILES, AGENTS = "head", "progress", "result", "tiles", "agents"
"""The parts that change, by the id of the element that holds each."""


def head(run: Mapping[str, Any], scenario: Mapping[str, Any]) -> str:
    """Of the run's row in `runs`, and its scenario."""
    started = f"run {run['run_id']}; started {run['started_at']:%Y-%m-%d %H:%M:%S} UTC"
    status = status_mark(run["status"])
    return fragment([Heading(title_of(run), status, [started], descriptions.scenario_of(scenario))])


def title_of(run: Mapping[str, Any]) -> str:
    return f"{run['scenario']} on {run['broker']}"


def progress_bar(progress: Progress) -> str:
    total = progress.total_seconds
    of_all = "" if total is None else f" of {seconds(total)}"
    text = f"{progress.phase}, {progress.elapsed_seconds:.0f} s{of_all}"
    return fragment([ProgressBar(text, None if total is None else progress.share)])


def tiles_now(window: Window, totals: Mapping[str, int]) -> str:
    numbers = [
        ("received, msg/s", rate(window.received_per_second)),
        ("sent, msg/s", rate(window.sent_per_second)),
    ]
    for measure in MEASURES_OVER_TIME:
        if found := window.measures.get(measure):
            numbers += [
                (f"{words(measure)} {label}", duration(found[name]))
                for name, label in (("p50_us", "p50"), ("p99_us", "p99"))
            ]
    numbers += [
        ("received in all", count(totals["received_once"])),
        ("sent in all", count(totals["sent"])),
    ]
    return fragment([Tiles(numbers)])


_AGENT_HEADINGS = (
    *("agent", "sent, msg/s", "received, msg/s", "sent", "received", "errors"),
    *("reconnects", "CPU seconds", "its machine is busy"),
)


def agent_table(agents: Mapping[int, Any]) -> str:
    """Agents by number, each with the attributes of `AgentTotals`."""
    shown = sorted(agents.items())[:MOST_AGENTS_SHOWN]
    rows = [
        [
            str(number),
            rate(agent.sent_per_second),
            rate(agent.received_per_second),
            *map(count, (agent.sent, agent.received, agent.errors, agent.reconnects)),
            f"{agent.cpu_seconds:.2f}",
            UNKNOWN if agent.host_busy_share is None else per_cent(agent.host_busy_share),
        ]
        for number, agent in shown
    ]
    left_out = len(agents) - len(shown)
    blocks: list[Block] = [
        Table("Rates are of the last second that each reported", _AGENT_HEADINGS, rows)
    ]
    if left_out:
        blocks.append(Paragraph(f"And {count(left_out)} more.", "faint"))
    return fragment(blocks)


def result(run: Mapping[str, Any], document: Document | None, show_again: str) -> str:
    """Of a run that is over: whether to trust it, and what it came to."""
    blocks: list[Block] = [Heading(f"The run is over: {run['status']}", level=2)]
    if document is None:
        blocks += [Paragraph(one_line(reason), "failed") for reason in run["reasons"] or ()]
    else:
        blocks += [audit(document), *([headline(document)] if document.get("counts") else [])]
    return fragment([*blocks, Paragraph("The whole run: ", code=show_again)])
