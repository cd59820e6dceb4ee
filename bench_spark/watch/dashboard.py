"""A local page about a run that goes on, fed from the store's tables.

The page asks for news once a second; a thread of its own reads the tables, so that viewers do not
make the reading more frequent.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench_spark.agent.timeline import CONSUMER, Timeline
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import has_open_end
from bench_spark.process import watched
from bench_spark.report import blocks, descriptions
from bench_spark.report.charts import Line, SeriesColours
from bench_spark.report.formatting import (
    UNKNOWN,
    Document,
    count,
    duration,
    one_line,
    per_cent,
    rate,
    seconds,
    words,
)
from bench_spark.report.live import Progress, RollingWindow, progress_of
from bench_spark.report.page import POLICY, fragment, live_page
from bench_spark.report.run import audit, caption_of, headline
from bench_spark.report.serving import Answer, Question, Served
from bench_spark.report.timeline import (
    MEASURES_OVER_TIME,
    Axes,
    TimeChart,
    TimeSeries,
    axes_of,
    drawn_row,
    live_spec,
    time_charts,
)
from bench_spark.watch.followed_run import KEPT_SECONDS, FollowedRun, RunState

LIVE_POLICY = f"{POLICY}; connect-src 'self'"
"""Unlike a report, the page fetches updates, from its own server only."""
MOST_AGENTS_SHOWN = 50

HEAD, PROGRESS, RESULT, TILES, AGENTS = "head", "progress", "result", "tiles", "agents"
"""The parts that change, by the id of the element that holds each."""


def head(run: Mapping[str, Any], scenario: Mapping[str, Any]) -> str:
    """Of the run's row in `runs`, and its scenario."""
    started = f"run {run['run_id']}; started {run['started_at']:%Y-%m-%d %H:%M:%S} UTC"
    status = blocks.status_mark(run["status"])
    return fragment(
        [blocks.Heading(title_of(run), status, [started], descriptions.scenario_of(scenario))]
    )


def title_of(run: Mapping[str, Any]) -> str:
    return f"{run['scenario']} on {run['broker']}"


def progress_bar(progress: Progress) -> str:
    total = progress.total_seconds
    of_all = "" if total is None else f" of {seconds(total)}"
    text = f"{progress.phase}, {progress.elapsed_seconds:.0f} s{of_all}"
    return fragment([blocks.ProgressBar(text, None if total is None else progress.share)])


def tiles_now(window: RollingWindow, totals: Mapping[str, int]) -> str:
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
    return fragment([blocks.Tiles(numbers)])


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
    parts: list[blocks.Block] = [
        blocks.Table("Rates are of the last second that each reported", _AGENT_HEADINGS, rows)
    ]
    if left_out:
        parts.append(blocks.Paragraph(f"And {count(left_out)} more.", "faint"))
    return fragment(parts)


def result(run: Mapping[str, Any], document: Document | None, show_again: str) -> str:
    """Of a run that is over: whether to trust it, and what it came to."""
    parts: list[blocks.Block] = [blocks.Heading(f"The run is over: {run['status']}", level=2)]
    if document is None:
        parts += [blocks.Paragraph(one_line(reason), "failed") for reason in run["reasons"] or ()]
    else:
        parts += [audit(document), *([headline(document)] if document.get("counts") else [])]
    return fragment([*parts, blocks.Paragraph("The whole run: ", code=show_again)])


NO_AXES = Axes((), {})


class _Row(NamedTuple):
    source: Mapping[str, Any]
    """As read from the table: an unchanged row is not converted again."""
    drawn: dict[str, Any]
    version: int
    """The update that last changed it."""


@dataclass
class _Chart:
    caption: str
    spec: dict[str, Any]
    rows: dict[float, _Row] = field(default_factory=dict)
    axes: Axes = NO_AXES

    def update(
        self,
        described: TimeChart,
        span: tuple[float, float],
        measured: tuple[float, float],
        version: int,
    ) -> None:
        known, self.rows = self.rows, {}
        for row in described.rows:
            second = row["second"]
            if span[0] <= second <= span[1]:
                earlier = known.get(second)
                if earlier is None or earlier.source != row:
                    earlier = _Row(row, drawn_row(described, row), version)
                self.rows[second] = earlier
        self.axes = axes_of(described, [row.drawn for row in self.rows.values()], span, measured)


class ChangingCharts:
    """Charts with numbered updates: a page names the last that it has, and gets what came later.

    A page that has drawn other charts, or other lines in them, gets everything.
    """

    def __init__(self) -> None:
        self.layout = ""
        self.version = 0
        self._charts: dict[str, _Chart] = {}
        self._colours = SeriesColours()

    def update(
        self,
        charts: Iterable[TimeChart],
        span: tuple[float, float],
        measured: tuple[float, float],
    ) -> None:
        listed = list(charts)
        layout = _layout_of(listed)
        if layout != self.layout:
            self.layout = layout
            self._charts = {
                f"chart-{number}": _Chart(caption_of(chart), live_spec(chart, self._colours))
                for number, chart in enumerate(listed, start=1)
            }
        self.version += 1
        for known, chart in zip(self._charts.values(), listed, strict=True):
            known.update(chart, span, measured, self.version)

    def since(self, layout: str, version: int) -> dict[str, Any]:
        """The changes for a page with this layout and version."""
        is_new = layout != self.layout
        charts: dict[str, dict[str, Any]] = {}
        for name, chart in self._charts.items():
            rows = [row.drawn for row in chart.rows.values() if is_new or row.version > version]
            drawn = {"caption": chart.caption, "spec": chart.spec} if is_new else {}
            charts[name] = {
                **drawn,
                "rows": rows,
                "outside": chart.axes.outside,
                "signals": chart.axes.signals,
            }
        return {"layout": self.layout, "version": self.version, "charts": charts}


def _layout_of(charts: Iterable[TimeChart]) -> str:
    named = [[chart.title, chart.unit, [line.label for line in chart.lines]] for chart in charts]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]


_SPREAD = ("slowest", "median", "fastest")


def timeline_so_far(state: RunState) -> TimeSeries | None:
    """None before the load starts."""
    if state.timeline is None:
        return None
    return TimeSeries(
        throughput=list(state.throughput.values()),
        durations={measure: list(rows.values()) for measure, rows in state.durations.items()},
        broker={source: list(rows.values()) for source, rows in state.broker.items()},
        generator=[
            {"second": state.second_of(each.started_at), "busy": each.busiest_share}
            for each in state.agents.by_tick.values()
            if each.busiest_share is not None
        ],
        measured=(
            (state.timeline.measure_start_ns - state.origin_ns) / NANOSECONDS,
            _measured_until(state, state.timeline),
        ),
    )


def _measured_until(state: RunState, phases: Timeline) -> float:
    """From the run's row at the end; before, as planned."""
    if state.run is not None and state.run["measured_until"] is not None:
        return state.second_of(state.run["measured_until"])
    ends_ns = phases.measure_end_ns
    if state.plan is not None and has_open_end(state.plan.scenario):
        ends_ns = max(phases.measure_start_ns, state.newest_ns)
    return (ends_ns - state.origin_ns) / NANOSECONDS


def charts_so_far(state: RunState, timeline: TimeSeries) -> Iterator[TimeChart]:
    yield from time_charts(timeline)
    if len(state.agents.by_number) > 1:
        yield _agents_apart(state, timeline)


def span_of(timeline: TimeSeries) -> tuple[float, float]:
    """The time axis: the whole run if it is short, the last minutes of a long one."""
    first, last = timeline.span
    if last - first <= KEPT_SECONDS:
        return first, last
    newest = max([row["second"] for row in timeline.throughput] or [last])
    return max(first, newest - KEPT_SECONDS), newest


def _agents_apart(state: RunState, timeline: TimeSeries) -> TimeChart:
    """How far agents differ; hundreds of lines would be unreadable."""
    assert state.timeline is not None
    rows = []
    for tick, each in sorted(state.agents.by_tick.items()):
        spread = each.spread_now
        if spread is not None:
            second = (state.timeline.tick_end_ns(tick) - state.origin_ns) / NANOSECONDS
            rows.append({"second": second, **dict(zip(_SPREAD, spread, strict=True))})
    does = "received" if state.agents.counted_role == CONSUMER else "sent"
    return TimeChart(
        "Agents",
        f"messages {does} per second by the slowest, the median and the fastest agent",
        "per_second",
        rows,
        [Line(name, name) for name in _SPREAD],
    )


WAITING = "Waiting for the run to start: Spark starts, and the broker is asked what it can do."
WAITING_FOR_LOAD = "Waiting for the load: agents start and connect to the broker."
WAITING_FOR_METRICS = "The load runs; waiting for the first rolling metrics."
REFRESH_SECONDS = 1.0
VIEWER_SECONDS = 5.0
"""A page that has not asked for this long counts as closed."""
MOST_VIEWERS = 64

_HTML, _JSON = "text/html; charset=utf-8", "application/json; charset=utf-8"
_HEADERS = {"Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'"}


class Dashboard:
    """Serves the page of a run; it has no content before the first `show`."""

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._page = live_page(LIVE_POLICY, WAITING).encode()
        self._news = _News(WAITING)
        self._viewers = Viewers()
        self._served = Served("--dashboard", host, port, self._answer)
        shown = f"[{host}]" if ":" in host else host
        self.port = self._served.port
        self.address = f"http://{shown}:{self.port}/"

    def show(self, state: RunState, message: str = "", show_again: str = "") -> None:
        """Serve this state from now on."""
        with self._lock:
            self._news.update(state, message, show_again)

    def say(self, message: str) -> None:
        """Change the message only."""
        with self._lock:
            self._news.message = message

    def close(self, wait_for_viewers: bool) -> None:
        """End, once open pages have fetched the end of the run or some seconds have passed."""
        deadline = time.monotonic() + VIEWER_SECONDS
        while wait_for_viewers and self._viewers.are_waiting() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._served.close()

    def _answer(self, question: Question) -> Answer | None:
        if question.path == "/":
            return Answer(self._page, _HTML, _HEADERS)
        if question.path != "/news":
            return None
        after = question.query.get("after", "")
        with self._lock:
            news = self._news.since(
                question.query.get("layout", ""), int(after) if after.isdecimal() else 0
            )
        self._viewers.note(question.query.get("viewer", "")[:40], news["is_over"])
        text = json.dumps(news, allow_nan=False, separators=(",", ":"))
        return Answer(text.encode(), _JSON, _HEADERS)


class Viewers:
    """Open pages, and which of them have fetched the end of the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, bool]] = {}

    def note(self, viewer: str, fetched_the_end: bool) -> None:
        with self._lock:
            self._seen.pop(viewer, None)
            self._seen[viewer] = (time.monotonic(), fetched_the_end)
            while len(self._seen) > MOST_VIEWERS:
                del self._seen[next(iter(self._seen))]

    def are_waiting(self) -> bool:
        """Whether an open page has not fetched the end of the run."""
        oldest = time.monotonic() - VIEWER_SECONDS
        with self._lock:
            return any(at >= oldest and not has_fetched for at, has_fetched in self._seen.values())


class _News:
    """The current content of the page."""

    def __init__(self, message: str) -> None:
        self.message = message
        self._charts = ChangingCharts()
        self._state: dict[str, Any] = {"title": "bench-spark", "fragments": {}, "is_over": False}

    def since(self, layout: str, version: int) -> dict[str, Any]:
        return {"message": self.message, **self._state, **self._charts.since(layout, version)}

    def update(self, state: RunState, message: str, show_again: str) -> None:
        run, plan, phases = state.run, state.plan, state.timeline
        if run is None or plan is None:
            return
        fragments: dict[str, str] = {HEAD: head(run, json.loads(run["scenario_json"]))}
        if phases is not None and not state.is_over:
            progress = progress_of(plan, phases, state.newest_ns, state.window, is_draining=False)
            fragments[PROGRESS] = progress_bar(progress)
        if state.window is not None and not state.is_over:
            totals = state.agents.totals
            fragments[TILES] = tiles_now(state.window, totals)
        if state.agents.by_number:
            fragments[AGENTS] = agent_table(state.agents.by_number)
        if state.is_over:
            ended = result(run, state.document, show_again)
            fragments |= {
                RESULT: ended,
                PROGRESS: "",
                TILES: "",
            }
        self.message = message or _awaited(state)
        self._state = {
            "title": f"{title_of(run)}: {run['status']}",
            "fragments": fragments,
            "is_over": state.is_over,
        }
        timeline = timeline_so_far(state)
        if timeline is not None:
            charts = charts_so_far(state, timeline)
            self._charts.update(charts, span_of(timeline), timeline.measured)


def _awaited(state: RunState) -> str:
    """The step that a run has to reach before there is something to see."""
    if state.is_over or state.window is not None:
        return ""
    return WAITING_FOR_LOAD if state.timeline is None else WAITING_FOR_METRICS


class FollowingThread:
    """Keeps a dashboard up to date with a run of this process."""

    def __init__(self, dashboard: Dashboard, followed: FollowedRun, show_again: str) -> None:
        self._dashboard = dashboard
        self._followed = followed
        self._show_again = show_again
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=watched(self._follow), name="dashboard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refresh once more, and end."""
        self._is_ending.set()
        self._thread.join()
        self._refresh()

    def _follow(self) -> None:
        while not self._is_ending.wait(REFRESH_SECONDS):
            self._refresh()

    def _refresh(self) -> None:
        try:
            if self._followed.refresh():
                self._dashboard.show(self._followed.state, show_again=self._show_again)
        except Exception as error:  # Whatever goes wrong in here must not cost the run its result.
            self._dashboard.say(f"The tables cannot be followed: {error}")
