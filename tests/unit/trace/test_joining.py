"""The join of messages against a reference that is too simple to be wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import MessageEvent
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.hdr import Histogram, shape_for
from bench_spark.trace.joining import ROWS, JoinedMessages, JoinRule, join_parts, unite

HIGHEST_US = 2_000_000
TIMELINE = Timeline(NANOSECONDS, NANOSECONDS, 3 * NANOSECONDS, NANOSECONDS)
RULE = JoinRule(TIMELINE, HIGHEST_US, has_schedule=True)


@dataclass(frozen=True)
class Sent:
    producer: int
    sequence: int
    intended_ns: int
    late_ns: int
    content: int | None
    confirmed_after_ns: int | None
    arrivals: tuple[tuple[int, int, int | None], ...]
    """Subscription, how long it took, and its content."""


arrivals = st.tuples(
    st.integers(0, 1),
    st.integers(-1_000, 4 * NANOSECONDS),
    st.one_of(st.none(), st.integers(1, 2)),
)
messages = st.lists(
    st.builds(
        Sent,
        producer=st.integers(0, 2),
        sequence=st.integers(0, 200_000),
        intended_ns=st.integers(NANOSECONDS, 5 * NANOSECONDS),
        late_ns=st.integers(0, 10_000_000),
        content=st.one_of(st.none(), st.integers(1, 2)),
        confirmed_after_ns=st.one_of(st.none(), st.integers(0, NANOSECONDS)),
        arrivals=st.lists(arrivals, max_size=4).map(tuple),
    ),
    max_size=12,
    unique_by=lambda sent: (sent.producer, sent.sequence),
)
strangers = st.lists(
    st.one_of(st.none(), st.tuples(st.integers(0, 2), st.integers(300_000, 300_009))), max_size=3
)


def row(kind: MessageEvent, at_ns: int, number: int, **values: Any) -> dict[str, Any]:
    return {"kind": int(kind), "at_ns": at_ns, "number": number} | values


def rows_of(sent: list[Sent], unknown: list[tuple[int, int] | None]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for one in sent:
        identity = {"producer": one.producer, "sequence": one.sequence}
        is_measured = one.intended_ns >= TIMELINE.measure_start_ns
        sent_ns = one.intended_ns + one.late_ns
        known = identity | {
            "is_measured": is_measured,
            "intended_ns": one.intended_ns,
            "sent_ns": sent_ns,
        }
        rows.append(row(MessageEvent.SENT, sent_ns, len(rows), content_hash=one.content, **known))
        if one.confirmed_after_ns is not None:
            at_ns = sent_ns + one.confirmed_after_ns
            rows.append(row(MessageEvent.CONFIRMED, at_ns, len(rows), **known))
        for subscription, took_ns, content in one.arrivals:
            # As from an agent that did not send it: when that was is not known there.
            rows.append(
                row(
                    MessageEvent.RECEIVED,
                    sent_ns + took_ns,
                    len(rows),
                    subscription=subscription,
                    content_hash=content,
                    is_measured=False,
                    **identity,
                )
            )
    for stranger in unknown:
        named = {} if stranger is None else {"producer": stranger[0], "sequence": stranger[1]}
        at_ns = TIMELINE.measure_start_ns
        rows.append(
            row(MessageEvent.RECEIVED, at_ns, len(rows), subscription=0, is_measured=True, **named)
        )
    return rows


def reference(sent: list[Sent]) -> tuple[Counter[str], dict[str, Histogram]]:
    counts: Counter[str] = Counter()
    measures = {
        name: Histogram(shape_for(HIGHEST_US))
        for name in ("latency", "delivery_latency", "confirm_latency")
    }

    def record(measure: str, duration_ns: int) -> None:
        measures[measure].record_ns(_one(duration_ns))

    for one in sent:
        if one.intended_ns < TIMELINE.measure_start_ns:
            continue
        counts["sent"] += 1
        counts["received"] += len(one.arrivals)
        if one.confirmed_after_ns is not None:
            counts["confirmed"] += 1
            record("confirm_latency", one.confirmed_after_ns)
        for subscription in (0, 1):
            took = [ns for where, ns, _ in one.arrivals if where == subscription]
            if took:
                counts["received_once"] += 1
                record("latency", min(took))
                record("delivery_latency", min(took) + one.late_ns)
        counts["corrupted"] += sum(
            content is not None and one.content is not None and content != one.content
            for _, _, content in one.arrivals
        )
    return counts, measures


def _one(value: int) -> Any:
    import numpy as np

    return np.array([value], np.int64)


def joined(rows: list[dict[str, Any]], partitions: int) -> JoinedMessages:
    """As Spark does it: all rows of a message in one partition, in any order."""
    shares: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    for one in rows:
        key = (one.get("producer"), (one.get("sequence") or 0) // 65_536)
        shares[hash(key) % partitions].append(one)
    batches = [
        batch
        for share in shares
        for batch in join_parts(pa.Table.from_pylist(share, schema=ROWS).to_batches(), RULE)
    ]
    return unite(pa.Table.from_batches(batches) if batches else pa.table({"tick": []}))


@settings(max_examples=150, deadline=None)
@given(messages, strangers, st.integers(1, 3), st.randoms(use_true_random=False))
def test_the_join_counts_and_measures_what_a_look_at_every_message_finds(
    sent: list[Sent],
    unknown: list[tuple[int, int] | None],
    partitions: int,
    random: Any,
) -> None:
    rows = rows_of(sent, unknown)
    random.shuffle(rows)
    found = joined(rows, partitions)
    counts, measures = reference(sent)
    for name in ("sent", "received", "received_once", "confirmed", "corrupted"):
        assert found.total(name) == counts[name], name
    assert found.total("unexpected") == len(unknown)
    assert found.total("untimed") == counts["received_once"]
    assert found.duplicates == counts["received"] - counts["received_once"]
    assert found.missing(copies=2) == 2 * counts["sent"] - counts["received_once"]
    for measure, histogram in measures.items():
        assert found.histogram(measure) == histogram.sparse(), measure


def test_ticks_are_those_of_the_arrival() -> None:
    due_ns = TIMELINE.measure_start_ns
    one = Sent(0, 0, due_ns, 0, None, None, ((0, 1_500_000_000, None),))
    assert list(joined(rows_of([one], []), 1).ticks["latency"]) == [2]


@pytest.mark.parametrize("has_schedule", [True, False])
def test_time_since_due_is_measured_only_on_a_schedule(has_schedule: bool) -> None:
    rule = JoinRule(TIMELINE, HIGHEST_US, has_schedule)
    one = Sent(0, 0, TIMELINE.measure_start_ns, 0, None, None, ((0, 5_000, None),))
    table = pa.Table.from_pylist(rows_of([one], []), schema=ROWS)
    found = unite(pa.Table.from_batches(list(join_parts(table.to_batches(), rule))))
    assert ("delivery_latency" in found.ticks) == has_schedule


@pytest.mark.parametrize(
    ("arrived", "is_in_order"),
    [
        ([0, 1, 2, 70_000, 140_000], True),
        ([0, 1, 1, 2], True),
        ([1, 0], False),
        ([0, 2, 1], False),
        ([70_000, 0], False),
        ([0, 70_000, 1], False),
        ([], True),
    ],
)
def test_it_is_seen_whether_any_message_overtook_another(
    arrived: list[int], is_in_order: bool
) -> None:
    rows = [
        row(MessageEvent.RECEIVED, 5, number, agent=0, producer=0, sequence=one, subscription=0)
        for number, one in enumerate(arrived)
    ]
    assert joined(rows, partitions=3).is_in_order == is_in_order


def test_streams_of_other_agents_and_subscriptions_do_not_overtake() -> None:
    places = [(0, 0, 5), (1, 0, 4), (0, 1, 3)]
    rows = [
        row(MessageEvent.RECEIVED, 5, 7, agent=a, producer=0, sequence=one, subscription=where)
        for a, where, one in places
    ]
    assert joined(rows, partitions=1).is_in_order
