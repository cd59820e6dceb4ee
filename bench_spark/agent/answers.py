"""What the broker says became of messages."""

from __future__ import annotations

import numpy as np

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.flow import Flow
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.releasing import Releasing
from bench_spark.agent.tally import Tally
from bench_spark.agent.tracing import Tracer
from bench_spark.transports.base import OutcomeKind, Producers


class Answers:
    def __init__(
        self,
        producers: Producers,
        flow: Flow,
        recorder: Recorder,
        tally: Tally,
        releasing: Releasing | None = None,
        carrying: Carrying | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._producers = producers
        self.descriptor = producers.descriptor
        self._flow = flow
        self._recorder = recorder
        self._tally = tally
        self._releasing = releasing
        self._carrying = carrying
        self._tracer = tracer

    def collect(self) -> None:
        outcomes = self._producers.outcomes()
        if not len(outcomes):
            return
        self._recorder.outcomes(outcomes)
        if self._carrying is not None:
            self._carrying.answered(outcomes)
        if self._tracer is not None:
            self._tracer.outcomes(outcomes)
        failed = (outcomes.kind == OutcomeKind.REFUSED) | (outcomes.kind == OutcomeKind.RETURNED)
        if failed.any():
            # A message that came back frees its place in the backlog and in the window.
            self._tally.freed += int(np.count_nonzero(failed))
            self._flow.consumed(outcomes.head["producer"][failed])
            if self._releasing is not None:
                head = outcomes.head[failed]
                self._releasing.arrived(head["producer"], head["sequence"])
