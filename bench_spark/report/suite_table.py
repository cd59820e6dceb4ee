"""The table of a suite: a cell per combination of its axes, whatever became of its trials.

From the suite, and what its trials left behind, to the numbers; `suite.py` writes them.
Nothing falls out in silence: where a trial is missing, failed, skipped or degraded the cell says
so, and has a note that says why. Repetitions become their median, with the least and the greatest.

Where a source was never read there is no number: unknown is None, never zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from bench_spark.config.objectives import Unit, headline_measure
from bench_spark.config.suite import (
    SUSTAINED,
    Column,
    ReportLayout,
    Suite,
    Trial,
    Value,
    trial_key,
    trials_of,
)
from bench_spark.monitor.monitor import SCHEDULER_PREFIX
from bench_spark.report.descriptions import brokers_of, environment_of
from bench_spark.report.formatting import Document, one_line, per_cent, statistics_of
from bench_spark.suites.rate import ENDS, SETTLED

UNKNOWN_STATE = "unknown"

Status = Literal["valid", "degraded", "failed", "missing", "skipped"]

DOUBTED_ENDS = {end: text for end, text in ENDS.items() if end != "settled"}
"""How a search may have ended whose answer is not to be trusted, in words."""

_WORST_FIRST: tuple[Status, ...] = ("missing", "failed", "degraded", "valid")
_MEASURED = ("valid", "degraded")

_Reading = tuple[float, bool] | str | None
"""A number, and whether it is only a lower bound; or what is said instead of one."""


@dataclass(frozen=True)
class TrialResult:
    """What a trial left behind."""

    document: Document | None = None
    """Its result, if there is one; of a search, that of the load at the rate found."""
    failure: str | None = None
    """Why there is no result."""
    note: str | None = None
    """What the reader of its numbers should know: `>= 41000 msg/s, generator-limited`."""
    search_end: str | None = None
    """Of a search: `settled`, or why its answer is not to be trusted."""


@dataclass(frozen=True)
class Spread:
    """A number of a cell: over repetitions the median and the extremes."""

    median: float
    lowest: float
    highest: float
    is_lower_bound: bool
    """Slower messages are missing from it."""


@dataclass(frozen=True)
class Words:
    """What a cell says instead of a number: over repetitions whatever was said, each once."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class TableColumn:
    name: str
    """For programs: `interval_max_latency_p99_us`."""
    heading: str
    unit: Unit
    read: Callable[[Document], _Reading]
    """Its value in the result of a trial."""
    is_about_broker: bool = False
    """From its resources, which only some broker files say how to read."""


# -- columns ---------------------------------------------------------------------------------------


def _resources(document: Document) -> Mapping[str, Any]:
    return document.get("resources") or {}


def _rate(name: str) -> Callable[[Document], _Reading]:
    return lambda document: _exact((document.get("rates") or {}).get(name))


def _exact(value: float | None) -> _Reading:
    return None if value is None else (value, False)


def _of_hosts(
    field: str, together: Callable[[Iterable[float]], float]
) -> Callable[[Document], _Reading]:
    """Of the broker's machines together. Two sources on one machine may be about the same
    processes: the busiest counts."""

    def read(document: Document) -> _Reading:
        by_host: dict[Any, float] = {}
        for source in (_resources(document).get("broker") or {}).values():
            if (value := source.get(field)) is not None:
                host = source.get("host")
                by_host[host] = max(value, by_host.get(host, 0.0))
        return _exact(together(by_host.values()) if by_host else None)

    return read


def _flow_state(document: Document) -> str | None:
    """never, intermittent or permanent; None if no poll has seen the trial's connections."""
    state = (_resources(document).get("flow") or {}).get("state")
    return None if state == UNKNOWN_STATE else state


def _scheduler_utilisation(document: Document) -> str | None:
    """Scheduler by scheduler; None where no source reports it."""
    found = _resources(document).get("scheduler_utilisation") or {}
    shares = {name.removeprefix(SCHEDULER_PREFIX): share for name, share in found.items()}
    shown = [f"{name}: {per_cent(share)}" for name, share in shares.items() if share is not None]
    return ", ".join(shown) or None


_KNOWN_COLUMNS = (
    TableColumn("send_rate", "sent msg/s", "per_second", _rate("send_rate")),
    TableColumn("receive_rate", "received msg/s", "per_second", _rate("receive_rate")),
    TableColumn("delivery_rate", "delivered", "share", lambda it: _exact(it.get("delivery_rate"))),
    *(
        TableColumn(
            f"broker_cpu_{kind}",
            f"broker CPU {kind}",
            "cpu_share",
            _of_hosts(f"cpu_{kind}_share_of_machine", statistics.fmean),
            True,
        )
        for kind in ("user", "system")
    ),
    # Handed to the kernel, and arrived at a disk.
    *(
        TableColumn(f"broker_{field.removesuffix('_bytes')}", heading, "bytes", read, True)
        for field, heading in (
            ("written_bytes", "broker wrote"),
            ("device_written_bytes", "broker wrote to disk"),
        )
        for read in [_of_hosts(field, sum)]
    ),
    TableColumn("flow_state", "flow", "text", _flow_state, True),
    TableColumn("scheduler_utilisation", "schedulers", "text", _scheduler_utilisation, True),
)
_BY_NAME = {column.name: column for column in _KNOWN_COLUMNS}
FURTHER = [name for name in _BY_NAME if name != "delivery_rate"]
"""Throughput and what it cost the broker: of interest whatever a suite is about."""


def _table_column(column: Column, headline: str) -> TableColumn:
    """`headline`: what a statistic without a measure is of in this suite, for people."""
    if (known := _BY_NAME.get(column.value)) is not None:
        return replace(known, heading=column.heading or known.heading)
    named, _, statistic = column.value.rpartition(".")
    aggregation = "" if column.aggregation == "run" else column.aggregation
    words = [named or headline, statistic, aggregation]
    name = f"{statistic}_us"

    def read(document: Document) -> _Reading:
        measures = document.get("measures") or {}
        measure = named or headline_measure(measures)
        if measure is None or measure not in measures:
            return None
        found = statistics_of(document, column.aggregation, measure)
        value = found.get(name)
        return None if value is None else (value, name in (found.get("lower_bounds") or ()))

    return TableColumn(
        "_".join(filter(None, (aggregation, named, name))),
        column.heading or " ".join(filter(None, words)).replace("_", " "),
        "us",
        read,
    )


# -- cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableCell:
    trials: Sequence[Trial]
    """The repetitions there should be."""
    results: Sequence[TrialResult | None]
    """Of each; None: it has not been run."""
    columns: Sequence[TableColumn]

    @property
    def parameters(self) -> Mapping[str, Value]:
        return self.trials[0].parameters

    @cached_property
    def _judged(self) -> list[tuple[Status, str | None]]:
        """The status of each repetition, and why it is no better."""
        pairs = zip(self.trials, self.results, strict=True)
        return [_judged(trial, result or TrialResult()) for trial, result in pairs]

    @property
    def status(self) -> Status:
        """The worst of its repetitions."""
        if self.trials[0].skipped_because:
            return "skipped"
        return min((status for status, _ in self._judged), key=_WORST_FIRST.index)

    @cached_property
    def documents(self) -> list[Document]:
        """Of the repetitions that the figures come from."""
        return [
            result.document
            for result, (status, _) in zip(self.results, self._judged, strict=True)
            if result is not None and result.document is not None and status in _MEASURED
        ]

    @property
    def measured(self) -> int:
        return len(self.documents)

    @cached_property
    def figures(self) -> list[Spread | Words | None]:
        """One per column; None where it is unknown."""
        return [
            _of_repetitions([column.read(document) for document in self.documents])
            for column in self.columns
        ]

    @property
    def overheads_seconds(self) -> list[float]:
        """Of each repetition: how long it took beside warm-up, measured phase and drain."""
        known = (document.get("overhead_seconds") for document in self.documents)
        return [seconds for seconds in known if seconds is not None]

    @property
    def rate_found(self) -> Spread | None:
        """Messages per second, where the load was to find its own: values `max` and `sustained`."""
        first = self.trials[0]
        if first.search is None or first.skipped_because is not None:
            return None
        if first.search == SUSTAINED:
            loads = [document["scenario"]["load"] for document in self.documents]
            return _spread([(load["rate_per_second"], False) for load in loads])
        return _spread([_rate("receive_rate")(document) for document in self.documents])

    @property
    def is_settled(self) -> bool | None:
        """Whether all searches of the cell are settled; None where nothing was searched."""
        ends = [result.search_end for result in self.results if result is not None]
        known = [end for end in ends if end is not None]
        return all(end in SETTLED for end in known) if known else None

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know of each repetition."""
        notes: list[str] = []
        for trial, result, (status, reason) in zip(
            self.trials, self.results, self._judged, strict=True
        ):
            texts = [f"{status}: {reason}"] if reason else []
            texts += [result.note] if result is not None and result.note else []
            is_one_of_many = len(self.trials) > 1 and status != "skipped"
            prefix = f"repetition {trial.repetition} " if is_one_of_many else ""
            notes += [one_line(prefix + text) for text in texts]
        return tuple(dict.fromkeys(notes))

    @property
    def warnings(self) -> list[tuple[str, str]]:
        """Of the audit of each repetition: the name of a check, and what it says."""
        return [found for document in self.documents for found in _warnings(document)]


def _judged(trial: Trial, result: TrialResult) -> tuple[Status, str | None]:
    if trial.skipped_because is not None:
        return "skipped", trial.skipped_because
    document = result.document
    if result.failure is not None:
        return "failed", result.failure
    if document is None:
        return "missing", "not run"
    reasons = "; ".join(document.get("reasons") or ()) or None
    match document["status"]:
        case "valid" if result.search_end in DOUBTED_ENDS:
            return "degraded", DOUBTED_ENDS[result.search_end]
        case "valid":
            return "valid", None
        case "degraded":
            return "degraded", reasons or "no reason given"
        case other:
            return "failed", reasons or other


def _warnings(document: Document) -> Iterable[tuple[str, str]]:
    """Of one trial's audit, each check once."""
    found: dict[str, list[str]] = {}
    for check in (document.get("audit") or {}).get("checks", ()):
        if check["verdict"] == "warn":
            found.setdefault(check["name"], []).append(one_line(check["text"]))
    return [(name, "; ".join(texts)) for name, texts in found.items()]


def _of_repetitions(readings: Sequence[_Reading]) -> Spread | Words | None:
    texts = tuple(dict.fromkeys(reading for reading in readings if isinstance(reading, str)))
    return Words(texts) if texts else _spread(readings)


def _spread(readings: Sequence[_Reading]) -> Spread | None:
    known = [reading for reading in readings if isinstance(reading, tuple)]
    if not known:
        return None
    values = [value for value, _ in known]
    median = statistics.median(values)
    # A lower bound above the median stays above it, whatever its true value.
    is_lower_bound = any(is_bound and value <= median for value, is_bound in known)
    return Spread(median, min(values), max(values), is_lower_bound)


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Warned:
    """A check of the audit that warns of some trials."""

    check: str
    trials: int
    of_trials: int
    first: TableCell
    text: str
    """Of the first of them."""


@dataclass(frozen=True)
class SuiteTable:
    suite: Suite
    columns: Sequence[TableColumn]
    """As the suite asks for them."""
    further: Sequence[TableColumn]
    """Further columns of every trial, for programs: the page for people is narrower."""
    cells: Sequence[TableCell]
    """In the order of the grid; a cell has a figure for each column, then for each further one."""

    @property
    def report(self) -> ReportLayout:
        return self.suite.report

    @property
    def title(self) -> str:
        title = self.report.title or self.suite.name
        return f"{title} (quick)" if self.suite.is_quick else title

    @property
    def across_values(self) -> Sequence[Value]:
        axes = {axis.name: axis.values for axis in self.suite.axes}
        return axes.get(self.report.across or "", ())

    @cached_property
    def headings(self) -> Mapping[str, str]:
        """Of every parameter, in the order of the suite."""
        names = dict.fromkeys(name for cell in self.suite.cells for name in cell.parameters)
        return {name: self.report.headings.get(name, name) for name in names}

    @property
    def all_columns(self) -> Sequence[TableColumn]:
        return [*self.columns, *self.further]

    @property
    def surroundings(self) -> list[tuple[str, str]]:
        """What the trials ran against, with its version, and on; several where that has changed."""
        documents = [
            result.document
            for cell in self.cells
            for result in cell.results
            if result is not None and result.document and result.document.get("environment")
        ]
        machines = (environment_of(document["environment"]) for document in documents)
        return [
            *(("broker", text) for text in dict.fromkeys(map(brokers_of, documents))),
            *(("machine", text) for text in dict.fromkeys(machines)),
        ]

    @property
    def warnings(self) -> list[Warned]:
        """What the audits warn of, a check at a time."""
        found: dict[str, list[tuple[TableCell, str]]] = {}
        for cell in self.cells:
            for name, text in cell.warnings:
                found.setdefault(name, []).append((cell, text))
        measured = sum(cell.measured for cell in self.cells)
        return [Warned(name, len(places), measured, *places[0]) for name, places in found.items()]

    @property
    def is_repeated(self) -> bool:
        return any(cell.measured > 1 for cell in self.cells)

    @property
    def mean_overhead_seconds(self) -> float | None:
        """Over all trials measured; None where none of them reports it."""
        known = [seconds for cell in self.cells for seconds in cell.overheads_seconds]
        return statistics.fmean(known) if known else None


def suite_table(suite: Suite, results: Mapping[str, TrialResult]) -> SuiteTable:
    """`results` by the trial's key; a trial without one has not been run."""
    asked = {column.value for column in suite.report.columns}
    measures = (trial.scenario.headline_measure for trial in trials_of(suite))
    headline = " or ".join(dict.fromkeys(measures))
    columns = [_table_column(column, headline) for column in suite.report.columns]
    further = [_BY_NAME[name] for name in FURTHER if name not in asked]
    trials: dict[str, list[Trial]] = {trial_key(cell.parameters, 1): [] for cell in suite.cells}
    for trial in sorted(trials_of(suite), key=lambda trial: trial.repetition):
        trials[trial_key(trial.parameters, 1)].append(trial)
    cells = [
        TableCell(found, [results.get(trial.key) for trial in found], [*columns, *further])
        for found in trials.values()
    ]
    return SuiteTable(suite, columns, further, cells)
