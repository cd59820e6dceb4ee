"""What happens to lanes: blocked, lost, reopened; whom that concerns, and the time it cost."""

from __future__ import annotations

from collections.abc import Callable

from bench_spark.agent.backlog import Backlog
from bench_spark.agent.flow import Flow, WindowFlow
from bench_spark.agent.lanes import Lanes
from bench_spark.agent.outages import Outages
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.setting_aside import SetAside
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import CONSUMER, PRODUCER, Timeline
from bench_spark.errors import BenchError, LaneLost
from bench_spark.plan import Assignment
from bench_spark.transports.base import Signal, SignalKind

HEED_NS = 5_000_000
"""How often to ask for signals while nothing is accepted: a full socket is the usual reason."""


class Heeding:
    def __init__(
        self,
        assignment: Assignment,
        timeline: Timeline,
        lanes: Lanes,
        flow: Flow,
        aside: SetAside | None,
        backlog: Backlog | None,
        recorder: Recorder,
        tally: Tally,
        fail: Callable[[BenchError], None],
    ) -> None:
        """`fail`: called with the reason why a lane is lost for good."""
        self._assignment = assignment
        self._timeline = timeline
        self._lanes = lanes
        self._flow = flow
        self._aside = aside
        self._backlog = backlog
        self._recorder = recorder
        self._tally = tally
        self._fail = fail
        self._blocked_since: dict[int, int] = {}
        self._next_heed_ns = 0
        self.outages = Outages()

    def heed_all(self) -> None:
        if self._lanes.producers is not None:
            for signal in self._lanes.producers.signals():
                self.heed(signal, PRODUCER)
        if self._lanes.consumers is not None:
            for signal in self._lanes.consumers.signals():
                self.heed(signal, CONSUMER)

    def heed_refusal(self, now: int) -> None:
        """Nothing was accepted: maybe because a lane is down."""
        if now >= self._next_heed_ns:
            self._next_heed_ns = now + HEED_NS
            self.heed_all()

    def heed(self, signal: Signal, role: str) -> None:
        if signal.kind is SignalKind.BLOCKED:
            self._blocked_since.setdefault(signal.lane, signal.at_ns)
        elif signal.kind is SignalKind.UNBLOCKED:
            since = self._blocked_since.pop(signal.lane, signal.at_ns)
            self._recorder.blocked(signal.at_ns, signal.at_ns - since)
        elif signal.kind is SignalKind.LOST:
            self._lose(signal, role)
        elif signal.kind is SignalKind.REOPENED:
            self._reopen(signal, role)
        elif signal.kind is SignalKind.REPEATS_DROPPED:
            self._recorder.repeats_dropped(signal.at_ns, signal.count)

    def _lose(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        if role == PRODUCER and lane in self._blocked_since:
            self._recorder.blocked(at_ns, at_ns - self._blocked_since.pop(lane))
        if self.outages.is_down(role, lane):
            self._book_outage(role, lane, at_ns)
        else:
            self._recorder.error(role, at_ns)
        if not signal.is_reopening:
            self._fail(self._lost(signal, role))
            return
        members = self._assignment.producers if role == PRODUCER else self._assignment.consumers
        self.outages.lost(role, lane, members[lane].index, at_ns, signal.reason)
        if role == PRODUCER:
            if self._aside is not None:
                self._aside.forget(lane)
            self._flow.suspend(lane)

    def _lost(self, signal: Signal, role: str) -> LaneLost:
        address = self._lanes.addresses[role]
        named = signal.reason if address in signal.reason else f"{address}: {signal.reason}"
        return LaneLost(named)

    def _reopen(self, signal: Signal, role: str) -> None:
        lane, at_ns = signal.lane, signal.at_ns
        self._recorder.reconnected(role, at_ns)
        self._book_outage(role, lane, at_ns)
        self.outages.reopened(role, lane)
        self._tally.reopened += 1
        if self._backlog is not None:
            self._backlog.reopened()
        if role == PRODUCER:
            self._flow.resume(lane)
        elif isinstance(self._flow, WindowFlow):
            self._flow.settle_all()

    # -- what lasts ------------------------------------------------------------------------------

    def book_ongoing(self, now: int) -> None:
        """What lanes that are blocked or down have cost until now."""
        for lane, since in self._blocked_since.items():
            self._recorder.blocked(now, now - since)
            self._blocked_since[lane] = now
        for role, lane in self.outages.down():
            self._book_outage(role, lane, now)

    def _book_outage(self, role: str, lane: int, until_ns: int) -> None:
        timeline = self._timeline
        for at_ns, down_ns in self.outages.book(
            role, lane, until_ns, lambda at_ns: timeline.tick_end_ns(timeline.tick_at(at_ns))
        ):
            self._recorder.disconnected(role, at_ns, down_ns)
