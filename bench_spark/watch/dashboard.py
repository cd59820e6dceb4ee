"""A local page about a run that goes on, fed from the store's tables.

The page asks for news once a second; what it is told was read in a thread of its own, so that
nobody who looks can make the reading more frequent.
"""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from bench_spark.report import html_live
from bench_spark.report.live import progress_of
from bench_spark.report.serving import Answer, Question, Served
from bench_spark.threads import watched
from bench_spark.watch.changing_charts import ChangingCharts
from bench_spark.watch.followed_run import FollowedRun
from bench_spark.watch.over_time import charts_so_far, span_of, timeline_so_far
from bench_spark.watch.run_state import RunState

REFRESH_SECONDS = 1.0
VIEWER_SECONDS = 5.0
"""A page that has not asked for so long is not there any more."""
MOST_VIEWERS = 64

_HTML, _JSON = "text/html; charset=utf-8", "application/json; charset=utf-8"
_HEADERS = {"Content-Security-Policy": f"{html_live.LIVE_POLICY}; frame-ancestors 'none'"}


class Dashboard:
    """Serves from the first moment; `show` gives it something to tell."""

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._page = html_live.live_page().encode()
        self._news = _News("Waiting for the run to start.")
        self._viewers = Viewers()
        self._served = Served("--dashboard", host, port, self._answer)
        shown = f"[{host}]" if ":" in host else host
        self.port = self._served.port
        self.address = f"http://{shown}:{self.port}/"

    def show(self, state: RunState, message: str = "", show_again: str = "") -> None:
        """From now on tell this."""
        with self._lock:
            self._news.update(state, message, show_again)

    def say(self, message: str) -> None:
        """Beside what is shown already."""
        with self._lock:
            self._news.message = message

    def close(self, wait_for_viewers: bool) -> None:
        """End; pages that are open are given a moment to hear of the end of the run."""
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
            told = self._news.since(
                question.query.get("layout", ""), int(after) if after.isdecimal() else 0
            )
        self._viewers.note(question.query.get("viewer", "")[:40], told["is_over"])
        text = json.dumps(told, allow_nan=False, separators=(",", ":"))
        return Answer(text.encode(), _JSON, _HEADERS)


class Viewers:
    """Who looks, and who of them has heard that the run is over."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, bool]] = {}

    def note(self, viewer: str, heard_the_end: bool) -> None:
        with self._lock:
            self._seen.pop(viewer, None)
            self._seen[viewer] = (time.monotonic(), heard_the_end)
            while len(self._seen) > MOST_VIEWERS:
                del self._seen[next(iter(self._seen))]

    def are_waiting(self) -> bool:
        """Whether a page that is still there has not heard of the end."""
        oldest = time.monotonic() - VIEWER_SECONDS
        with self._lock:
            return any(at >= oldest and not heard for at, heard in self._seen.values())


class _News:
    """What a page can be told."""

    def __init__(self, message: str) -> None:
        self.message = message
        self._charts = ChangingCharts()
        self._told: dict[str, Any] = {"title": "bench-spark", "fragments": {}, "is_over": False}

    def since(self, layout: str, version: int) -> dict[str, Any]:
        return {"message": self.message, **self._told, **self._charts.since(layout, version)}

    def update(self, state: RunState, message: str, show_again: str) -> None:
        run, plan, phases = state.run, state.plan, state.timeline
        if run is None or plan is None:
            return
        fragments: dict[str, str] = {
            html_live.HEAD: html_live.head(run, json.loads(run["scenario_json"]))
        }
        if phases is not None and not state.is_over:
            progress = progress_of(plan, phases, state.newest_ns, state.window, is_draining=False)
            fragments[html_live.PROGRESS] = html_live.progress_bar(progress)
        if state.window is not None and not state.is_over:
            totals = state.agents.totals
            fragments[html_live.TILES] = html_live.tiles_now(state.window, totals)
        if state.agents.by_number:
            fragments[html_live.AGENTS] = html_live.agent_table(state.agents.by_number)
        if state.is_over:
            ended = html_live.result(run, state.document, show_again)
            fragments |= {html_live.RESULT: ended, html_live.PROGRESS: "", html_live.TILES: ""}
        self.message = message
        self._told = {
            "title": f"{html_live.title_of(run)}: {run['status']}",
            "fragments": fragments,
            "is_over": state.is_over,
        }
        timeline = timeline_so_far(state)
        if timeline is not None:
            charts = charts_so_far(state, timeline)
            self._charts.update(charts, span_of(timeline), timeline.measured)


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
        """Look once more, and end."""
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
