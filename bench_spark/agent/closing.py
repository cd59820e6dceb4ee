"""What an agent tells of its load when all is over: totals, and which messages it is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench_spark.agent.recorder import Recorder
from bench_spark.agent.sampling import Sampler
from bench_spark.agent.serving import Serving
from bench_spark.agent.timeline import MEASURE, WARMUP
from bench_spark.agent.tracing import Tracer
from bench_spark.core.sequences import SequencePages, SequenceSets
from bench_spark.transports.base import I64


def closing_report(
    serving: Serving, recorder: Recorder, sampler: Sampler | None, tracer: Tracer | None
) -> tuple[dict[str, Any], bytes]:
    """Per producer what was sent, and which sequence numbers arrived, were confirmed, failed;
    last come the samples.

    Numbers of groups are made global here: subscription and stream for what was received, the
    producer for the rest.
    """
    producers = serving.assignment.producers
    streams = serving.assignment.scenario.wiring.streams
    subscriptions = np.array(serving.subscriptions or [0], dtype=np.int64)
    members = np.array([member.index for member in producers] or [0], dtype=np.int64)
    blobs = [
        _relabelled(
            recorder.received_sets,
            lambda group: subscriptions[group // streams] * streams + group % streams,
        ),
        _relabelled(recorder.confirmed_sets, lambda group: members[group]),
        _relabelled(recorder.failed_sets, lambda group: members[group]),
        sampler.samples(subscriptions).tobytes() if sampler is not None else b"",
    ]
    totals = {
        "sent_by_producer": [
            [
                member.index,
                int(recorder.sent_by_lane[WARMUP][lane]),
                int(recorder.sent_by_lane[MEASURE][lane]),
            ]
            for lane, member in enumerate(producers)
        ],
        "page_bytes": [len(blob) for blob in blobs],
        "received_span_ns": recorder.received_span_ns,
        "trace": tracer.report() if tracer is not None else None,
    }
    return totals, b"".join(blobs)


def _relabelled(sets: SequenceSets, label: Callable[[I64], I64]) -> bytes:
    pages = sets.export()
    return SequencePages(group=label(pages.group), page=pages.page, bits=pages.bits).to_bytes()
