"""The Prometheus endpoint of the driver: /metrics while the command runs.

It is a display like those on the terminal, around one of them: the engine tells it what it tells
them, and it hands everything on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bench_spark.agent.timeline import Timeline
from bench_spark.plan import Plan
from bench_spark.report.exposition import CONTENT_TYPE, Trial, exposition
from bench_spark.report.live import Steps, Window, progress_of
from bench_spark.report.serving import Answer, Question, Served


class Exporter:
    """Serves the newest state of the trial; written by one thread, read by those of requests."""

    def __init__(self, host: str, port: int) -> None:
        self.trial: Trial | None = None
        self._served = Served("--prometheus", host, port, self._answer)

    @property
    def port(self) -> int:
        return self._served.port

    def close(self) -> None:
        self._served.close()

    def _answer(self, question: Question) -> Answer | None:
        if question.path != "/metrics":
            return None
        return Answer(exposition(self.trial).encode(), CONTENT_TYPE)


class ExportingDisplay(Steps):
    """Hands everything on to `display`, and keeps what the exporter tells."""

    def __init__(self, display: Steps, exporter: Exporter, broker: str) -> None:
        self._display = display
        self.shows_details = display.shows_details
        self._exporter = exporter
        self._broker = broker
        self._timeline: Timeline | None = None
        self._plan: Plan | None = None
        self._now_ns: Callable[[], int] = lambda: 0
        self._totals: Mapping[str, int] = {}

    def name_next(self, name: str) -> None:
        self._display.name_next(name)

    def step(self, text: str) -> None:
        self._display.step(text)

    def detail(self, text: str) -> None:
        self._display.detail(text)

    def opening(self, plan: Plan, opened: int) -> None:
        if self._exporter.trial is None:
            self._exporter.trial = self._trial(plan)
        self._display.opening(plan, opened)

    def started(
        self,
        plan: Plan,
        timeline: Timeline,
        now_ns: Callable[[], int],
        window: Window | None = None,
    ) -> None:
        self._plan, self._timeline, self._now_ns = plan, timeline, now_ns
        self._exporter.trial = self._trial(plan)
        self._display.started(plan, timeline, now_ns, window)

    def counted(self, totals: Mapping[str, int]) -> None:
        self._totals = dict(totals)
        self._display.counted(totals)

    def update(self, window: Window | None, is_draining: bool) -> None:
        if self._exporter.trial is not None and self._plan and self._timeline:
            progress = progress_of(self._plan, self._timeline, self._now_ns(), window, is_draining)
            self._exporter.trial = replace(
                self._exporter.trial, phase=progress.phase, totals=self._totals, window=window
            )
        self._display.update(window, is_draining)

    def ended(self) -> None:
        self._exporter.trial = self._plan = self._timeline = None
        self._totals = {}
        self._display.ended()

    def _trial(self, plan: Plan) -> Trial:
        scenario = plan.scenario
        return Trial(plan.run_id, scenario.name, self._broker, scenario.tags)
