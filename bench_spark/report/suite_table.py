"""The table of a suite: a cell per combination of its axes, whatever became of its trials.

From the suite, and what its trials left behind, to the numbers; `suite_formats.py` writes them.
Nothing falls out in silence: where a trial is missing, failed, skipped or degraded the cell says
so, and has a note that says why. Repetitions become their median, with the least and the greatest.

Where a source was never read there is no number: unknown is None, never zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bench_spark.config.suite import (
    RATES,
    RESOURCES,
    SUSTAINED,
    Column,
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


def broker_cpu(document: Document, kind: str) -> float | None:
    """CPU of kind `user` or `system`, as a share of the broker's machine.

    Two sources on one machine may be about the same processes: the busiest counts. Of the machines
    of a cluster it is the mean.
    """
    by_host: dict[Any, float] = {}
    for source in (_resources(document).get("broker") or {}).values():
        share = source.get(f"cpu_{kind}_share_of_machine")
        if share is not None:
            host = source.get("host")
            by_host[host] = max(share, by_host.get(host, 0.0))
    return statistics.fmean(by_host.values()) if by_host else None


def broker_bytes(document: Document, counter: str) -> float | None:
    """Bytes that the broker wrote in the measured phase, all its machines together.

    `written_bytes` were handed to the kernel, `device_written_bytes` have reached a disk. Two
    sources on one machine may be about the same processes: the busiest counts.
    """
    by_host: dict[Any, float] = {}
    for source in (_resources(document).get("broker") or {}).values():
        written = source.get(counter)
        if written is not None:
            host = source.get("host")
            by_host[host] = max(written, by_host.get(host, 0.0))
    return sum(by_host.values()) if by_host else None


def flow_state(document: Document) -> str | None:
    """never, intermittent or permanent; None if no poll has seen the trial's connections."""
    state = (_resources(document).get("flow") or {}).get("state")
    return None if state == UNKNOWN_STATE else state


def scheduler_utilisation(document: Document) -> str | None:
    """Scheduler by scheduler; None where no source reports it."""
    found = _resources(document).get("scheduler_utilisation") or {}
    shares = {name.removeprefix(SCHEDULER_PREFIX): share for name, share in found.items()}
    shown = [f"{name}: {per_cent(share)}" for name, share in shares.items() if share is not None]
    return ", ".join(shown) or None


def _resources(document: Document) -> Mapping[str, Any]:
    return document.get("resources") or {}


Unit = Literal["us", "per_second", "share", "cpu_share", "bytes", "text"]
Status = Literal["valid", "degraded", "failed", "missing", "skipped"]

DOUBTED_ENDS = {end: text for end, text in ENDS.items() if end != "settled"}
"""How a search may have ended whose answer is not to be trusted, in words."""

_WORST_FIRST: tuple[Status, ...] = ("missing", "failed", "degraded", "valid")
_MEASURED = ("valid", "degraded")


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
    is_about_broker: bool = False
    """From its resources, which only some broker files say how to read."""


@dataclass(frozen=True)
class TableCell:
    parameters: Mapping[str, Value]
    status: Status
    """The worst of its repetitions."""
    asked: int
    """Repetitions there should be."""
    measured: int
    """Repetitions the figures come from."""
    figures: tuple[Spread | Words | None, ...]
    """One per column, then one per further column; None where it is unknown."""
    overheads_seconds: tuple[float, ...]
    """Of each repetition: how long it took beside warm-up, measured phase and drain."""
    rate_found: Spread | None
    """Messages per second, where the load was to find its own: values `max` and `sustained`."""
    is_settled: bool | None
    """Whether all searches of the cell are settled; None where nothing was searched."""
    notes: tuple[str, ...]
    warnings: tuple[tuple[str, str], ...] = ()
    """Of the audit of each trial: the name of a check, and what it says."""


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
    suite: str
    title: str
    is_quick: bool
    rows: tuple[str, ...]
    across: str | None
    across_values: tuple[Value, ...]
    headings: Mapping[str, str]
    """Of every parameter, in the order of the suite."""
    columns: tuple[TableColumn, ...]
    """As the suite asks for them."""
    further: tuple[TableColumn, ...]
    """Further columns of every trial, for programs: the page for people is narrower."""
    cells: tuple[TableCell, ...]
    """In the order of the grid."""
    x: str | None = None
    """The axis along the bottom of figures; None: whichever suits."""
    series: str | None = None
    """The axis with a line for each of its values; None: whichever suits."""
    brokers: tuple[str, ...] = ()
    """What the trials ran against, with its version; several where that has changed."""
    machines: tuple[str, ...] = ()
    """What the agents of the trials ran on."""

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """What the audits warn of, a check at a time."""
        found: dict[str, list[tuple[TableCell, str]]] = {}
        for cell in self.cells:
            for name, text in cell.warnings:
                found.setdefault(name, []).append((cell, text))
        measured = sum(cell.measured for cell in self.cells)
        return tuple(
            Warned(name, len(places), measured, *places[0]) for name, places in found.items()
        )

    @property
    def is_repeated(self) -> bool:
        return any(cell.measured > 1 for cell in self.cells)

    @property
    def all_columns(self) -> tuple[TableColumn, ...]:
        """A cell has a figure for each."""
        return (*self.columns, *self.further)

    @property
    def mean_overhead_seconds(self) -> float | None:
        """Over all trials measured; None where none of them reports it."""
        known = [seconds for cell in self.cells for seconds in cell.overheads_seconds]
        return statistics.fmean(known) if known else None


def suite_table(suite: Suite, outcomes: Mapping[str, TrialResult]) -> SuiteTable:
    """`outcomes` by the trial's key; a trial without one has not been run."""
    report = suite.report
    asked = {column.value for column in report.columns}
    further = [Column(value=value) for value in FURTHER if value not in asked]
    trials: dict[str, list[Trial]] = {trial_key(cell.parameters, 1): [] for cell in suite.cells}
    for trial in sorted(trials_of(suite), key=lambda trial: trial.repetition):
        trials[trial_key(trial.parameters, 1)].append(trial)
    names = dict.fromkeys(name for cell in suite.cells for name in cell.parameters)
    across = next((axis for axis in suite.axes if axis.name == report.across), None)
    documents = [
        outcomes[trial.key].document or {}
        for found in trials.values()
        for trial in found
        if trial.key in outcomes and (outcomes[trial.key].document or {}).get("environment")
    ]
    return SuiteTable(
        suite=suite.name,
        title=report.title or suite.name,
        is_quick=suite.is_quick,
        rows=tuple(report.rows),
        across=report.across,
        across_values=across.values if across else (),
        headings={name: report.headings.get(name, name) for name in names},
        columns=tuple(map(_table_column, report.columns)),
        further=tuple(map(_table_column, further)),
        cells=tuple(
            _cell(found, [*report.columns, *further], outcomes) for found in trials.values()
        ),
        x=report.figures.x,
        series=report.figures.series,
        brokers=tuple(dict.fromkeys(map(brokers_of, documents))),
        machines=tuple(dict.fromkeys(environment_of(one["environment"]) for one in documents)),
    )


def _table_column(column: Column) -> TableColumn:
    if column.value in RATES:
        unit: Unit = "share" if column.value == "delivery_rate" else "per_second"
        return TableColumn(column.value, column.heading or _HEADINGS[column.value], unit)
    if column.value in RESOURCES:
        unit = _RESOURCE_UNITS.get(column.value, "text")
        return TableColumn(column.value, column.heading or _HEADINGS[column.value], unit, True)
    measure, _, statistic = column.value.partition(".")
    aggregation = "" if column.aggregation == "run" else column.aggregation
    words = [measure, statistic, aggregation]
    return TableColumn(
        "_".join(filter(None, (aggregation, measure, statistic, "us"))),
        column.heading or " ".join(filter(None, words)).replace("_", " "),
        "us",
    )


FURTHER = ("send_rate", "receive_rate", *RESOURCES)
"""Throughput and what it cost the broker: of interest whatever a suite is about."""

_CPU_KINDS = {"broker_cpu_user": "user", "broker_cpu_system": "system"}
_BYTE_COUNTERS = {
    "broker_written": "written_bytes",
    "broker_device_written": "device_written_bytes",
}
_RESOURCE_UNITS: Mapping[str, Unit] = {
    **dict.fromkeys(_CPU_KINDS, "cpu_share"),
    **dict.fromkeys(_BYTE_COUNTERS, "bytes"),
}

_HEADINGS = {
    "send_rate": "sent msg/s",
    "receive_rate": "received msg/s",
    "delivery_rate": "delivered",
    "broker_cpu_user": "broker CPU user",
    "broker_cpu_system": "broker CPU system",
    "broker_written": "broker wrote",
    "broker_device_written": "broker wrote to disk",
    "flow_state": "flow",
    "scheduler_utilisation": "schedulers",
}


def _cell(
    trials: Sequence[Trial], columns: Iterable[Column], outcomes: Mapping[str, TrialResult]
) -> TableCell:
    statuses: list[Status] = []
    documents: list[Document] = []
    notes: list[str] = []
    for trial in trials:
        outcome = outcomes.get(trial.key, TrialResult())
        status, reason = _judged(trial, outcome)
        statuses.append(status)
        if status in _MEASURED and outcome.document is not None:
            documents.append(outcome.document)
        texts = [f"{status}: {reason}"] if reason else []
        texts += [outcome.note] if outcome.note else []
        is_one_of_many = len(trials) > 1 and status != "skipped"
        prefix = f"repetition {trial.repetition} " if is_one_of_many else ""
        notes += [one_line(prefix + text) for text in texts]
    first = trials[0]
    return TableCell(
        parameters=first.parameters,
        status="skipped" if first.skipped_because else min(statuses, key=_WORST_FIRST.index),
        asked=len(trials),
        measured=len(documents),
        figures=tuple(
            _of_repetitions([_reading(document, column) for document in documents])
            for column in columns
        ),
        overheads_seconds=tuple(
            document["overhead_seconds"]
            for document in documents
            if document.get("overhead_seconds") is not None
        ),
        rate_found=_rate_found(first, documents),
        is_settled=_is_settled(trials, outcomes),
        notes=tuple(dict.fromkeys(notes)),
        warnings=tuple(found for document in documents for found in _warnings(document)),
    )


def _warnings(document: Document) -> Iterable[tuple[str, str]]:
    """Of one trial's audit, each check once."""
    found: dict[str, list[str]] = {}
    for check in (document.get("audit") or {}).get("checks", ()):
        if check["verdict"] == "warn":
            found.setdefault(check["name"], []).append(one_line(check["text"]))
    return [(name, "; ".join(texts)) for name, texts in found.items()]


def _is_settled(trials: Sequence[Trial], outcomes: Mapping[str, TrialResult]) -> bool | None:
    ends = [outcomes[trial.key].search_end for trial in trials if trial.key in outcomes]
    known = [end for end in ends if end is not None]
    return all(end in SETTLED for end in known) if known else None


def _judged(trial: Trial, outcome: TrialResult) -> tuple[Status, str | None]:
    """The status, and why it is no better."""
    if trial.skipped_because is not None:
        return "skipped", trial.skipped_because
    document = outcome.document
    if outcome.failure is not None:
        return "failed", outcome.failure
    if document is None:
        return "missing", "not run"
    reasons = "; ".join(document.get("reasons") or ()) or None
    match document["status"]:
        case "valid" if outcome.search_end in DOUBTED_ENDS:
            return "degraded", DOUBTED_ENDS[outcome.search_end]
        case "valid":
            return "valid", None
        case "degraded":
            return "degraded", reasons or "no reason given"
        case other:
            return "failed", reasons or other


_Reading = tuple[float, bool]
"""A number, and whether it is only a lower bound."""


def _reading(document: Document, column: Column) -> _Reading | str | None:
    match column.value:
        case "flow_state":
            return flow_state(document)
        case "scheduler_utilisation":
            return scheduler_utilisation(document)
        case "broker_cpu_user" | "broker_cpu_system" as kind:
            share = broker_cpu(document, _CPU_KINDS[kind])
            return None if share is None else (share, False)
        case "broker_written" | "broker_device_written" as kind:
            written = broker_bytes(document, _BYTE_COUNTERS[kind])
            return None if written is None else (written, False)
    if column.value in RATES:
        holder = document if column.value == "delivery_rate" else document.get("rates") or {}
        rate = holder.get(column.value)
        return None if rate is None else (rate, False)
    measure, _, statistic = column.value.partition(".")
    if measure not in (document.get("measures") or {}):
        return None
    found = statistics_of(document, column.aggregation, measure)
    name = f"{statistic}_us"
    value = found.get(name)
    return None if value is None else (value, name in (found.get("lower_bounds") or ()))


def _of_repetitions(readings: Sequence[_Reading | str | None]) -> Spread | Words | None:
    texts = tuple(dict.fromkeys(reading for reading in readings if isinstance(reading, str)))
    if texts:
        return Words(texts)
    return _figure([reading for reading in readings if not isinstance(reading, str)])


def _figure(readings: Sequence[_Reading | None]) -> Spread | None:
    known = [reading for reading in readings if reading is not None]
    if not known:
        return None
    values = [value for value, _ in known]
    median = statistics.median(values)
    # A lower bound above the median stays above it, whatever its true value.
    is_lower_bound = any(is_bound and value <= median for value, is_bound in known)
    return Spread(median, min(values), max(values), is_lower_bound)


def _rate_found(trial: Trial, documents: Sequence[Document]) -> Spread | None:
    if trial.search is None or trial.skipped_because is not None:
        return None
    if trial.search == SUSTAINED:
        rates = [document["scenario"]["load"]["rate_per_second"] for document in documents]
    else:
        rates = [(document.get("rates") or {}).get("receive_rate") for document in documents]
    return _figure([None if rate is None else (rate, False) for rate in rates])
