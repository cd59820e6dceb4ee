"""The recorder's kernels against the same rules, written for one message at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.recordings import RUN_TAG, START_NS, TIMELINE, at, merged, recorded, recorder, total

from bench_spark.agent.pacing import DueTimes, Schedule, Stream
from bench_spark.agent.timeline import MEASURE, WARMUP
from bench_spark.core.clock import NANOSECONDS
from bench_spark.core.envelope import empty_envelopes, word_rows_of
from bench_spark.transports.batches import RECEIVED_DTYPE

MESSAGES_SENT = 12
"""By the only producer of this agent, number 1."""
SCHEDULE = Schedule(8.0, changes=((NANOSECONDS, 20.0), (2 * NANOSECONDS, 3.0)))
STREAMS = (Stream((0, 2), SCHEDULE), Stream((1,), SCHEDULE))


@dataclass
class Model:
    """Plain words for what is in the documentation of measures."""

    has_due_times: bool
    counts: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[int, int, int]] = field(default_factory=set)
    largest: dict[tuple[int, int], int] = field(default_factory=dict)
    latencies_us: list[float] = field(default_factory=list)
    delivery_us: list[float] = field(default_factory=list)

    def due_ns(self, producer: int, sequence: int) -> int | None:
        if not self.has_due_times or producer > 2:
            return None
        messages = {0: 2 * sequence, 1: sequence, 2: 2 * sequence + 1}
        return START_NS + SCHEDULE.intended_ns(messages[producer])

    def kind(self, row: Any) -> str:
        envelope, received_ns = row["envelope"], int(row["received_ns"])
        sent_ns, intended_ns = int(envelope["sent_ns"]), int(envelope["intended_ns"])
        producer, sequence = int(envelope["producer"]), int(envelope["sequence"])
        if row["size"] < 32:
            return "malformed"
        if envelope["run_tag"] != RUN_TAG:
            return "foreign"
        if producer > 3 or sequence >= 2**40:
            return "malformed"
        due_ns = self.due_ns(producer, sequence)
        if producer == 1:
            is_unexpected = sequence >= MESSAGES_SENT
        else:
            is_unexpected = sequence >= (received_ns - START_NS + NANOSECONDS) // 20
            if due_ns is not None:
                is_unexpected |= not START_NS <= due_ns <= received_ns + NANOSECONDS
        if is_unexpected:
            return "unexpected"
        if not 978_307_200 * NANOSECONDS <= sent_ns <= received_ns + 3600 * NANOSECONDS:
            return "malformed"
        if self.has_due_times:
            return "received" if due_ns in (None, intended_ns) else "malformed"
        in_time = intended_ns <= sent_ns
        in_time |= sent_ns < START_NS and intended_ns <= received_ns + NANOSECONDS
        return "received" if in_time and intended_ns >= START_NS else "malformed"

    def add(self, row: Any) -> None:
        kind, envelope = self.kind(row), row["envelope"]
        phase_ns = int(envelope["intended_ns"]) if kind == "received" else int(row["received_ns"])
        phase = MEASURE if phase_ns >= TIMELINE.measure_start_ns else WARMUP
        self.counts[f"{kind} {phase}"] += 1
        self.counts["redelivered"] += int(row["redelivered"])
        if kind != "received":
            return
        self.counts["bytes"] += int(row["size"])
        group = (int(row["subscription"]), int(envelope["producer"]) // 2)
        key = (*group, int(envelope["sequence"]))
        if key in self.seen:
            self.counts["duplicates"] += 1
            return
        self.seen.add(key)
        self.counts["out_of_order"] += key[2] < self.largest.get(group, -1)
        self.largest[group] = max(self.largest.get(group, -1), key[2])
        self.latencies_us.append((int(row["received_ns"]) - int(envelope["sent_ns"])) / 1000)
        self.delivery_us.append((int(row["received_ns"]) - int(envelope["intended_ns"])) / 1000)


message = st.fixed_dictionaries(
    {
        "producer": st.sampled_from([0, 1, 1, 2, 3, 4, 2**32 - 1]),
        "sequence": st.one_of(st.integers(0, 20), st.sampled_from([2**39, 2**40, 2**64 - 1])),
        "intended": st.sampled_from(["as due", "as due", "as due", "changed", "before the start"]),
        "sent": st.sampled_from(["late", "late", "late", "early", "never", "in 2200"]),
        "run_tag": st.sampled_from([RUN_TAG, RUN_TAG, RUN_TAG, 0, 5]),
        "size": st.sampled_from([100, 100, 32, 31, 0]),
        "subscription": st.integers(0, 1),
        "received": st.floats(0.0, 3.5),
        "redelivered": st.booleans(),
    }
)


def row_of(one: dict[str, Any]) -> np.void:
    row = np.zeros(1, RECEIVED_DTYPE)[0]
    turn = one["sequence"] if one["sequence"] < 100 else 0
    places = {0: 2 * turn, 2: 2 * turn + 1}
    due_ns = START_NS + SCHEDULE.intended_ns(places.get(one["producer"], turn))
    intended_ns = {"as due": due_ns, "changed": due_ns + 1, "before the start": START_NS - 1}
    sent_ns = {"late": due_ns + 1500, "early": START_NS - 10, "never": 0, "in 2200": 2**63 - 1}
    row["envelope"]["intended_ns"] = intended_ns[one["intended"]]
    row["envelope"]["sent_ns"] = sent_ns[one["sent"]]
    for name in ("producer", "sequence", "run_tag"):
        row["envelope"][name] = one[name]
    row["received_ns"] = at(one["received"])
    for name in ("size", "subscription", "redelivered"):
        row[name] = one[name]
    return row


@settings(deadline=None, max_examples=150)
@given(st.lists(message, max_size=40), st.integers(1, 40), st.booleans(), st.booleans())
def test_messages_are_classified_as_one_by_one(
    messages: list[dict[str, Any]], at_once: int, has_due_times: bool, by_destination: bool
) -> None:
    into = recorder(
        own_producers=(1,),
        destinations_by_producer=("blue",),
        by_destination=by_destination,
        due_times=DueTimes(STREAMS, RUN_TAG, START_NS) if has_due_times else None,
    )
    own = empty_envelopes(MESSAGES_SENT)
    own["sent_ns"] = own["intended_ns"] = START_NS
    into.sent(np.zeros(MESSAGES_SENT, np.uint32), word_rows_of(own), 0)
    rows = np.array([row_of(one) for one in messages], RECEIVED_DTYPE)
    model, found = Model(has_due_times), []
    for row in rows:
        model.add(row)
    for first in range(0, len(rows), at_once):
        into.received(rows[first : first + at_once])
        if first % 3 == 0:
            found += into.rows_until(at(1.5))
    found += into.all_rows()
    found = [row for row in found if row.role == "consumer"]
    counts = Counter[str]()
    for name in ("received", "malformed", "foreign", "unexpected"):
        for phase in (WARMUP, MEASURE):
            counts[f"{name} {phase}"] = total(found, name, phase=phase)
    for name in ("redelivered", "bytes", "duplicates", "out_of_order"):
        counts[name] = total(found, name)
    assert +counts == +model.counts
    assert into.received_once == len(model.seen) == into.received_by_subscription.sum()
    assert merged(found, "latency") == recorded(model.latencies_us)
    assert merged(found, "delivery_latency") == recorded(model.delivery_us)
