"""Rows of single messages on their way into files: all of them, each once, in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from bench_spark.agent import tracer as tracing
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import MessageEvent, MessageFile, Rows, Tracer, TraceSetup
from bench_spark.core.envelope import Envelopes, empty_envelopes
from bench_spark.errors import StoreError
from bench_spark.transports.batches import Batch, OutcomeKind, Outcomes, Received

RUN_TAG = 7


def setup_of(every: int = 1) -> TraceSetup:
    return TraceSetup(
        run_id="run",
        run_tag=RUN_TAG,
        agent=3,
        attempt=0,
        every=every,
        producers=2,
        timeline=Timeline(0, 0, 10**12, 0),
        destinations_by_producer=("a", "b"),
        subscriptions=(0, 1),
        destinations_by_subscription=("a", "b"),
    )


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self, fails: bool = False) -> None:
        self.rows: list[Rows] = []
        self.starts: list[int] = []
        self._fails = fails

    def write(self, number: int, first_row: int, rows: Sequence[Rows]) -> MessageFile:
        if self._fails:
            raise StoreError("the disk is full")
        self.rows += [part.copy() for part in rows]
        self.starts.append(first_row)
        return MessageFile(number, f"run/{number}", 1, sum(map(len, rows)))

    @property
    def all_rows(self) -> Rows:
        return np.concatenate(self.rows)


def envelopes(first: int, count: int, producer: int = 0, run_tag: int = RUN_TAG) -> Envelopes:
    envelope = empty_envelopes(count)
    envelope["sequence"] = np.arange(first, first + count)
    envelope["producer"] = producer
    envelope["run_tag"] = run_tag
    envelope["sent_ns"] = np.arange(first, first + count) + 1_000
    return envelope


def batch(envelope: Envelopes) -> tuple[Batch, int]:
    """All of these messages, and how many."""
    count = len(envelope)
    return Batch(np.zeros(count, np.uint32), envelope, b"", np.zeros(count, np.uint16)), count


def received(envelope: Envelopes) -> Received:
    count = len(envelope)
    return Received.of_columns(
        received_ns=np.arange(count, dtype=np.int64) + 5_000,
        lane=np.zeros(count, np.uint32),
        route=np.zeros(count, np.uint16),
        envelope=envelope,
        size=np.full(count, 100, np.uint32),
        redelivered=np.zeros(count, np.bool_),
    )


def test_every_row_reaches_a_file_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "CHUNK_ROWS", 64)
    kept = Kept()
    files: list[MessageFile] = []
    tracer = Tracer(setup_of(), kept, files.append)
    for first in range(0, 1_000, 100):
        tracer.sent(*batch(envelopes(first, 100)), 50, insert_ns=9)
        tracer.flush_if_due(first * 10**9)
    tracer.close()
    rows = kept.all_rows
    assert rows["envelope"]["sequence"].tolist() == list(range(1_000))
    assert set(rows["kind"]) == {MessageEvent.SENT}
    assert set(rows["insert_ns"]) == {9}
    assert [file.number for file in files] == list(range(len(files)))
    assert sum(file.rows for file in files) == 1_000
    assert kept.starts == np.cumsum([0, *(file.rows for file in files)])[:-1].tolist()


def test_both_ends_sample_the_same_messages() -> None:
    kept = Kept()
    tracer = Tracer(setup_of(every=10), kept, lambda file: None)
    tracer.sent(*batch(envelopes(3, 95)), 50, insert_ns=1)
    tracer.received(received(envelopes(3, 95)))
    told = envelopes(3, 95)
    kinds = np.full(95, OutcomeKind.CONFIRMED, np.uint8)
    kinds[7] = OutcomeKind.UNKNOWN
    tracer.outcomes(
        Outcomes.of_columns(np.zeros(95, np.int64), np.zeros(95, np.uint32), kinds, told)
    )
    tracer.close()
    rows = kept.all_rows
    by_kind = {
        kind: rows["envelope"]["sequence"][rows["kind"] == kind].tolist()
        for kind in (MessageEvent.SENT, MessageEvent.RECEIVED, MessageEvent.CONFIRMED)
    }
    assert by_kind[MessageEvent.SENT] == by_kind[MessageEvent.RECEIVED] == list(range(10, 98, 10))
    assert by_kind[MessageEvent.CONFIRMED] == list(range(20, 98, 10))


def test_messages_of_others_are_kept_without_an_id() -> None:
    kept = Kept()
    tracer = Tracer(setup_of(), kept, lambda file: None)
    mixed = np.concatenate(
        [envelopes(0, 2), envelopes(0, 1, run_tag=8), envelopes(5, 1, producer=2)]
    )
    tracer.received(received(mixed))
    tracer.close()
    assert kept.all_rows["is_ours"].tolist() == [True, True, False, False]


def test_a_writer_that_fails_ends_the_tracing_and_says_so() -> None:
    tracer = Tracer(setup_of(), Kept(fails=True), lambda file: None)
    tracer.sent(*batch(envelopes(0, 1)), 50, insert_ns=1)
    tracer.close()
    assert str(tracer.failure) == "the disk is full"
