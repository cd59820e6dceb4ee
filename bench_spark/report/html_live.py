"""The page of a run that goes on: a frame that is served once, and the parts that change in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench_spark.report import descriptions
from bench_spark.report.chart_files import browser_library
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
from bench_spark.report.html_page import (
    POLICY,
    Markup,
    asset,
    joined,
    status_badge,
    table,
    tag,
    tiles,
    whole,
)
from bench_spark.report.html_run import audit, headline
from bench_spark.report.live import Progress, Window
from bench_spark.report.measures import Document
from bench_spark.report.time_charts import MEASURES_OVER_TIME

LIVE_POLICY = f"{POLICY}; connect-src 'self'"
"""Unlike a report, the page asks for more: of whoever served it, and of nobody else."""
MOST_AGENTS_SHOWN = 50

HEAD, PROGRESS, RESULT, TILES, AGENTS = "head", "progress", "result", "tiles", "agents"
"""The parts that change, by the id of the element that holds each."""


def live_page() -> Markup:
    """The frame. What is in it comes with the news."""
    body = [
        tag("header", tag("div", id=HEAD), tag("p", id="message", role="status", class_="faint")),
        tag(
            "main",
            tag("div", id=PROGRESS),
            tag("section", tag("div", id=RESULT), hidden=True),
            tag("section", tag("h2", "Now"), tag("div", id=TILES), hidden=True),
            tag("section", tag("h2", "Over time"), tag("div", id="figures")),
            tag("section", tag("h2", "Agents"), tag("div", id=AGENTS), hidden=True),
        ),
        tag("noscript", tag("p", "This page needs JavaScript; `bench-spark watch` does not.")),
    ]
    scripts = [browser_library(), asset("drawing.js"), asset("live.js")]
    return whole("bench-spark", body, scripts, LIVE_POLICY, asset("live.css"))


def head(run: Mapping[str, Any], scenario: Mapping[str, Any]) -> Markup:
    """Of the run's row in `runs`, and its scenario."""
    started = f"run {run['run_id']}; started {run['started_at']:%Y-%m-%d %H:%M:%S} UTC"
    named = tag("h1", title_of(run))
    return joined(
        [
            tag("div", named, status_badge(run["status"]), class_="head"),
            tag("p", started, class_="facts"),
            tag("p", descriptions.scenario_of(scenario)),
        ]
    )


def title_of(run: Mapping[str, Any]) -> str:
    return f"{run['scenario']} on {run['broker']}"


def progress_bar(progress: Progress) -> Markup:
    total = progress.total_seconds
    of_all = "" if total is None else f" of {seconds(total)}"
    text = f"{progress.phase}, {progress.elapsed_seconds:.0f} s{of_all}"
    share = None if total is None else f"{progress.share:.3f}"
    bar = tag("progress", text, max="1", value=share, aria_label=text)
    return tag("div", tag("p", text), bar)


def tiles_now(window: Window, totals: Mapping[str, int]) -> Markup:
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
    return tiles(numbers)


_AGENT_HEADINGS = (
    *("agent", "sent, msg/s", "received, msg/s", "sent", "received", "errors"),
    *("reconnects", "CPU seconds", "its machine is busy"),
)


def agent_table(agents: Mapping[int, Any]) -> Markup:
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
    return joined(
        [
            table("Rates are of the last second that each told of", _AGENT_HEADINGS, rows),
            tag("p", f"And {count(left_out)} more.", class_="faint") if left_out else None,
        ]
    )


def result(run: Mapping[str, Any], document: Document | None, show_again: str) -> Markup:
    """Of a run that is over: whether to trust it, and what it came to."""
    if document is None:
        told: Sequence[Markup] = [
            tag("p", one_line(reason), class_="failed") for reason in run["reasons"] or ()
        ]
    else:
        numbers = headline(document) if document.get("counts") else None
        told = [joined([audit(document), numbers])]
    again = tag("p", "The whole run: ", tag("code", show_again))
    return joined([tag("h2", f"The run is over: {run['status']}"), *told, again])
