"""The SQL behind every number of a report: `bench-spark sql` answers the same.

Where the tables hold more than the result, the query goes back to them: percentiles come out of the
buckets in `events`. What only the driver has seen (sets of sequence numbers, a phase with an open
end) can be asked of `runs` alone, and the query's remark says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench_spark.report.formatting import Document, in_order
from bench_spark.store.schema import PERCENTILES

_SENT_SIDE = ("due", "sent", "confirmed", "refused", "returned", "given_up")
_RECEIVED_SIDE = ("received", "redelivered", "out_of_order", "corrupted")
_ANY_PHASE = ("malformed", "foreign", "repeats_dropped")
_BOTH_SIDES = ("errors", "reconnects")
_OF_SETS = ("received_once", "duplicates", "left_in_broker", "lost", "indeterminate", "unexpected")

_SAME_MOMENT = "INTERVAL 2 MICROSECONDS"
"""How far apart the start of a tick and that of its phase may seem, as in
`results/counts.py`."""
_INSIDE = (
    f" AND tick_start + {_SAME_MOMENT} >= measured_from"
    f"\n         AND tick_start + {_SAME_MOMENT} < measured_until"
)


@dataclass(frozen=True)
class Query:
    title: str
    sql: str
    answer: Mapping[str, Any] = field(default_factory=dict)
    """The one row that it answers, as the report has it; empty: rows of a chart."""
    remark: str = ""


def queries_of_run(document: Document) -> Iterator[Query]:
    run = _text(document["run_id"])
    if document.get("rates"):
        yield _rates(document, run)
    if document.get("counts"):
        yield _counts(document, run)
        yield _accounts(document, run)
    measures = document.get("measures") or {}
    for measure in in_order(measures):
        yield _percentiles(document, run, measure)
    for measure in in_order(measures):
        yield from _intervals(document, run, measure)
    yield from queries_of_charts(document)
    yield Query(
        "Audit",
        "SELECT check.name, check.verdict, check.text FROM (\n"
        "  SELECT explode(from_json(result_json, 'audit STRUCT<checks: ARRAY<STRUCT<name: STRING, "
        "verdict: STRING, text: STRING>>>').audit.checks) AS check\n"
        f"  FROM runs WHERE run_id = {run})",
    )


def queries_of_charts(document: Document) -> Iterator[Query]:
    run = _text(document["run_id"])
    names = ", ".join(name for name, _ in PERCENTILES)
    yield Query(
        "Over time: throughput and percentiles",
        f"SELECT window_end, measure, sent_per_second, received_per_second, {names}, max_us\n"
        f"FROM metrics_latest WHERE run_id = {run} AND window = 'rolling'\n"
        "ORDER BY window_end, measure",
    )
    yield Query(
        "Over time: the broker's resources",
        "SELECT at, source, cpu_user_share_of_machine, cpu_system_share_of_machine, rss_bytes,\n"
        "       written_bytes / interval_seconds AS written_per_second,\n"
        "       device_written_bytes / interval_seconds AS device_written_per_second\n"
        f"FROM resources WHERE run_id = {run} ORDER BY at, source",
    )
    yield Query(
        "Agents",
        "SELECT agent, sum(sent) AS sent, sum(received - duplicates) AS received_once,\n"
        "       sum(cpu_seconds) AS cpu_seconds, max(host_busy_share) AS busiest_host_share\n"
        f"FROM events WHERE run_id = {run} GROUP BY agent ORDER BY agent",
    )


def _rates(document: Document, run: str) -> Query:
    answer = dict(document["rates"])
    answer |= {name: document.get(name) for name in ("expected", "delivery_rate")}
    if _has_open_end(document):
        return Query(
            "Rates",
            "SELECT rates['send_rate'] AS send_rate, rates['receive_rate'] AS receive_rate,\n"
            f"       expected, delivery_rate FROM runs WHERE run_id = {run}",
            answer,
            "A phase with an open end is counted at the moment it ends, between two ticks.",
        )
    seconds = "(unix_micros(any_value(measured_until)) - unix_micros(any_value(measured_from)))"
    send = receive = None
    if answer["send_rate"] is not None:
        send = _one_side("sent", "producer", " AND phase = 'measure'")
    if answer["receive_rate"] is not None:
        receive = _one_side("received", "consumer", _INSIDE)
    per_second = [
        f"{count} * 1e6D / {seconds} AS {name}" if count else f"NULL AS {name}"
        for count, name in ((send, "send_rate"), (receive, "receive_rate"))
    ]
    return Query(
        "Rates",
        f"SELECT {per_second[0]},\n       {per_second[1]},\n"
        "       any_value(expected) AS expected, any_value(delivery_rate) AS delivery_rate\n"
        f"FROM events JOIN runs USING (run_id) WHERE run_id = {run}",
        answer,
    )


def _counts(document: Document, run: str) -> Query:
    counts = document["counts"]
    measured = " AND phase = 'measure'"
    sums = {name: _one_side(name, "producer", measured) for name in _SENT_SIDE}
    sums |= {name: _one_side(name, "consumer", measured) for name in _RECEIVED_SIDE}
    sums |= {name: _one_side(name, "consumer") for name in _ANY_PHASE}
    of_warmup = _one_side("received", "consumer", " AND phase = 'warmup'")
    acked_since = f"{_one_side('acked', 'consumer')} - {of_warmup}"
    sums["acked"] = f"least({sums['received']}, greatest(0, {acked_since}))"
    sums |= {name: f"sum({name})" for name in _BOTH_SIDES}
    sums["bytes_sent"] = _one_side("bytes", "producer", measured)
    sums["bytes_received"] = _one_side("bytes", "consumer", measured)
    sums["unsent"] = f"greatest(0, {sums['due']} - {sums['sent']})"
    if _has_open_end(document):
        sums["late"] = "any_value(counts['late'])"
    else:
        sums["late"] = f"{sums['sent']} - {_one_side('sent', 'producer', measured + _INSIDE)}"
    answered = " - ".join(sums[name] for name in ("sent", "confirmed", "refused", "returned"))
    sums["unconfirmed"] = f"greatest(0, {answered})"
    known = {name: text for name, text in sums.items() if counts.get(name) is not None}
    columns = ",\n       ".join(f"{text} AS {name}" for name, text in known.items())
    return Query(
        "Counts",
        f"SELECT {columns}\nFROM events JOIN runs USING (run_id) WHERE run_id = {run}",
        {name: counts[name] for name in known},
    )


def _accounts(document: Document, run: str) -> Query:
    columns = ",\n       ".join(f"counts['{name}'] AS {name}" for name in _OF_SETS)
    return Query(
        "What became of the messages",
        f"SELECT {columns}\nFROM runs WHERE run_id = {run}",
        {name: document["counts"].get(name) for name in _OF_SETS},
        "Counted by the driver from the sets of sequence numbers that the agents handed in.",
    )


def _percentiles(document: Document, run: str, measure: str) -> Query:
    """From the buckets, by HdrHistogram's own rule of ranks, and never above the maximum."""
    found = document["measures"][measure]
    highest_us = round(document["scenario"]["histogram"]["highest_seconds"] * 1_000_000)
    values = ",\n       ".join(
        f"least(coalesce(min(IF(rank >= greatest(1, floor({percentile}D * n / 100 + 0.5D)), "
        f"value_us, NULL)), greatest({highest_us}, max(value_us))), any_value(max_us)) AS {name}"
        for name, percentile in PERCENTILES
    )
    names = ("min_us", "mean_us", *(name for name, _ in PERCENTILES), "max_us", "count")
    return Query(
        f"{measure}: percentiles of the run",
        "WITH histogram AS (\n"
        f"  SELECT inline(histograms) FROM events WHERE run_id = {run} AND phase = 'measure'),\n"
        "bucket AS (\n"
        "  SELECT one.values_us AS value_us, sum(one.counts) AS messages FROM (\n"
        "    SELECT explode(arrays_zip(values_us, counts)) AS one\n"
        f"    FROM histogram WHERE measure = {_text(measure)}) GROUP BY one.values_us),\n"
        "total AS (\n"
        "  SELECT min(min_us) AS min_us, max(max_us) AS max_us, sum(sum_us) AS sum_us,\n"
        "         sum(overflow + aggregate(counts, 0L, (a, b) -> a + b)) AS n\n"
        f"  FROM histogram WHERE measure = {_text(measure)}),\n"
        "ranked AS (\n"
        "  SELECT value_us, sum(messages) OVER (ORDER BY value_us) AS rank FROM bucket)\n"
        f"SELECT any_value(min_us) AS min_us, any_value(sum_us) / any_value(n) AS mean_us,\n"
        f"       {values},\n"
        "       any_value(max_us) AS max_us, any_value(n) AS count\n"
        "FROM ranked CROSS JOIN total",
        {name: found.get(name) for name in names},
    )


def _intervals(document: Document, run: str, measure: str) -> Iterator[Query]:
    """The worst interval's percentile is never given as less than the run's."""
    percentiles = document.get("percentiles") or {}
    values = [name for name, _ in PERCENTILES]
    names = ("min_us", "mean_us", *values, "max_us")
    worst = {name: f"max(i.{name})" for name in names}
    worst |= {name: f"greatest(max(i.{name}), max(s.{name}))" for name in values}
    mean = {name: f"avg(i.{name})" for name in names}
    for aggregation, columns in (("interval_max", worst), ("interval_mean", mean)):
        found = (percentiles.get(aggregation) or {}).get(measure)
        if found:
            selected = ",\n       ".join(f"{text} AS {name}" for name, text in columns.items())
            yield Query(
                f"{measure}: {aggregation}",
                f"SELECT {selected}\n"
                "FROM latency_by_interval i JOIN summary s ON s.run_id = i.run_id\n"
                "  AND s.measure = i.measure AND s.aggregation = 'run'\n"
                f"WHERE i.run_id = {run} AND i.measure = {_text(measure)}",
                {name: found.get(name) for name in names},
            )


def queries_of_suite(suite: str, broker: str) -> Iterator[Query]:
    where = f"suite = {_text(suite)} AND r.broker = {_text(broker)}"
    yield Query(
        "Trials",
        "SELECT r.run_id, r.trial, r.status, r.parameters, r.tags['trial_key'] AS trial_key,\n"
        "       r.rates['send_rate'] AS send_rate, r.rates['receive_rate'] AS receive_rate,\n"
        "       r.delivery_rate\n"
        f"FROM runs r WHERE {where} ORDER BY r.trial, r.started_at",
    )
    names = ", ".join(f"s.{name}" for name, _ in PERCENTILES)
    yield Query(
        "Statistics of each trial",
        f"SELECT r.run_id, r.parameters, s.measure, s.aggregation, s.min_us, s.mean_us, {names},\n"
        "       s.max_us, s.lower_bounds\n"
        f"FROM runs r JOIN summary s ON s.run_id = r.run_id WHERE {where}\n"
        "ORDER BY r.trial, s.measure, s.aggregation",
    )


def _one_side(name: str, role: str, more: str = "") -> str:
    return f"sum(IF(role = '{role}'{more}, {name}, 0))"


def _has_open_end(document: Document) -> bool:
    scenario = document["scenario"]
    samples = (scenario.get("sampling") or {}).get("samples")
    return scenario["load"].get("messages") is not None or bool(samples)


def _text(value: str) -> str:
    """A text of Spark SQL, which knows backslashes."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
