"""Books what fell due, tick by tick: what was asked for stands beside what was done."""

from __future__ import annotations

from bench_spark.agent.pacer import Pacing
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.timeline import MEASURE, WARMUP, Timeline


class DueBook:
    """With a schedule a message is due at its intended time; without one, when it is sent.

    Where the time of sending decides which phase a message belongs to, what the warm-up has not
    sent is due in the measured phase."""

    def __init__(
        self, schedule: Pacing | None, total: int, timeline: Timeline, recorder: Recorder
    ) -> None:
        """`total`: messages of the whole schedule, warm-up and measured phase together."""
        self._schedule = schedule
        self._total = total
        self._timeline = timeline
        self._recorder = recorder
        self._booked = 0
        self._booked_by_phase = {WARMUP: 0, MEASURE: 0}

    def book_until(self, at_ns: int) -> None:
        """Book what fell due since the last time, each message to the phase and tick it is of."""
        if self._schedule is None:
            self._book_what_was_sent(at_ns)
        elif self._recorder.goes_by_sending:
            self._book_by_sending(self._schedule, at_ns)
        else:
            self._book_by(self._schedule, at_ns - self._timeline.start_ns)

    def _book_by(self, schedule: Pacing, elapsed_ns: int) -> None:
        timeline = self._timeline
        while True:
            first_ns = timeline.start_ns + schedule.intended_ns(self._booked)
            tick_end_ns = timeline.tick_end_ns(timeline.tick_at(first_ns)) - timeline.start_ns
            due = min(schedule.messages_before(min(tick_end_ns, elapsed_ns)), self._total)
            if due <= self._booked:
                return
            phase = MEASURE if first_ns >= timeline.measure_start_ns else WARMUP
            self._recorder.due(phase, first_ns, due - self._booked)
            self._booked = due

    def _book_by_sending(self, schedule: Pacing, at_ns: int) -> None:
        of_warmup = int(self._recorder.sent_by_lane[WARMUP].sum())
        self._book_phase(WARMUP, at_ns, of_warmup)
        if at_ns >= self._timeline.measure_start_ns:
            due = min(schedule.messages_before(at_ns - self._timeline.start_ns), self._total)
            self._book_phase(MEASURE, at_ns, due - of_warmup)

    def _book_what_was_sent(self, at_ns: int) -> None:
        for phase, lanes in self._recorder.sent_by_lane.items():
            self._book_phase(phase, at_ns, int(lanes.sum()))

    def _book_phase(self, phase: str, at_ns: int, due: int) -> None:
        """`due`: messages of this phase until now."""
        if due > self._booked_by_phase[phase]:
            self._recorder.due(phase, at_ns, due - self._booked_by_phase[phase])
            self._booked_by_phase[phase] = due
