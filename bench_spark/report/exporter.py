"""The Prometheus endpoint of the driver: /metrics while the command runs.

It shows what the display on the terminal shows, read whenever it is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from bench_spark.report.live import RollingWindow, Steps
from bench_spark.report.serving import Answer, Question, Served
from bench_spark.store.schema import PERCENTILES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "bench_spark"

Labels = Mapping[str, str]

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_]")
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class ExportedRun:
    """State of a run at one moment."""

    run_id: str
    scenario: str
    broker: str
    tags: Labels = field(default_factory=dict)
    phase: str = "setup"
    totals: Mapping[str, int] = field(default_factory=dict)
    window: RollingWindow | None = None
    """The newest rolling window; None before the first and without live metrics."""

    @property
    def labels(self) -> dict[str, str]:
        """Tags have a prefix, and cannot hide a label of ours."""
        own = {"run": self.run_id, "scenario": self.scenario, "broker": self.broker}
        tags = {f"tag_{_NOT_IN_A_NAME.sub('_', key)}": value for key, value in self.tags.items()}
        return own | tags


def exposition(trial: ExportedRun | None) -> str:
    """All metrics; outside of runs only that nothing runs."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(trial))
    return generate_latest(registry).decode()


class _Metrics(Collector):
    """The metrics of one moment."""

    def __init__(self, trial: ExportedRun | None) -> None:
        self._trial = trial

    def collect(self) -> Iterator[Metric]:
        trial = self._trial
        yield _gauge("running", "Whether a trial runs now.", [({}, int(trial is not None))])
        if trial is None:
            return
        labels, window = trial.labels, trial.window
        phase = {**labels, "phase": trial.phase}
        yield _gauge("phase", "1 for the phase that the trial is in.", [(phase, 1)])
        for total, name, meaning in (
            ("sent", "messages_sent", "Messages sent since the start, warm-up included."),
            ("received_once", "messages_received", "Messages received, each counted once."),
        ):
            if total in trial.totals:
                counter = CounterMetricFamily(f"{PREFIX}_{name}", meaning, labels=list(labels))
                counter.add_metric(list(labels.values()), trial.totals[total])
                yield counter
        if window is None:
            return
        for name, value in (
            ("sent_per_second", window.sent_per_second),
            ("received_per_second", window.received_per_second),
        ):
            yield _gauge(name, "Rate over the newest 10 s window.", [(labels, value)])
        yield _gauge(
            "duration_seconds",
            "Percentiles of each measure over the newest 10 s window.",
            [
                (
                    {**labels, "measure": measure, "quantile": f"{percentile / 100:g}"},
                    found[name] / _MICROSECONDS,
                )
                for measure, found in window.measures.items()
                for name, percentile in PERCENTILES
                if found.get(name) is not None
            ],
        )


def _gauge(name: str, meaning: str, samples: Iterable[tuple[Labels, float]]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(f"{PREFIX}_{name}", meaning)
    for labels, value in samples:
        gauge.add_sample(gauge.name, dict(labels), value)
    return gauge


class Exporter:
    """Serves the state of the run that a display shows; asked by the threads of requests."""

    def __init__(self, host: str, port: int, display: Steps, broker: str) -> None:
        self._display = display
        self._broker = broker
        self._served = Served("--prometheus", host, port, self._answer)

    @property
    def port(self) -> int:
        return self._served.port

    def close(self) -> None:
        self._served.close()

    def _answer(self, question: Question) -> Answer | None:
        if question.path != "/metrics":
            return None
        return Answer(exposition(self._exported()).encode(), CONTENT_TYPE)

    def _exported(self) -> ExportedRun | None:
        shown = self._display.shown
        if shown is None:
            return None
        plan, scenario = shown.plan, shown.plan.scenario
        return ExportedRun(
            plan.run_id,
            scenario.name,
            self._broker,
            scenario.tags,
            "setup" if shown.progress is None else shown.progress.phase,
            shown.totals,
            shown.window,
        )
