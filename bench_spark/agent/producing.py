"""When to send and how much: by the schedule, or as fast as quota, backlog and broker allow."""

from __future__ import annotations

from bench_spark.agent.backlog import Backlog
from bench_spark.agent.flow import ScheduledFlow
from bench_spark.agent.heeding import Heeding
from bench_spark.agent.pacer import Pacing
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.sending import REFUSED_WAIT_NS, Paced, Sending
from bench_spark.agent.tally import Tally
from bench_spark.agent.timeline import WARMUP, Timeline
from bench_spark.agent.waiting import LONGEST_WAIT_NS
from bench_spark.core.clock import NowNs


class Producing:
    def __init__(
        self,
        timeline: Timeline,
        sending: Sending,
        paced: Paced | None,
        scheduled_total: int,
        messages: int | None,
        backlog: Backlog | None,
        heeding: Heeding,
        recorder: Recorder,
        tally: Tally,
        now_ns: NowNs,
    ) -> None:
        """`scheduled_total`: messages of the whole schedule. Without a schedule, `messages` may be
        sent in the measured phase, and no more than the `backlog` has room for; None: any number.
        """
        self._timeline = timeline
        self._sending = sending
        self._paced = paced
        self.scheduled_total = scheduled_total
        self._messages = messages
        self._backlog = backlog
        self._heeding = heeding
        self._recorder = recorder
        self._tally = tally
        self._now_ns = now_ns
        self._sent_before_measure: int | None = None
        self.last_due_ns = (
            timeline.start_ns + paced[0].intended_ns(scheduled_total - 1)
            if paced is not None and scheduled_total
            else None
        )
        """When the last message of the schedule is due."""
        self._batch_complete_ns = (
            0 if paced is None else self._next_batch_complete_ns(paced[0], due=0)
        )

    def produce(self, now: int) -> int:
        """Send what may go now; when to come back."""
        sending = self._sending
        if now < sending.refused_until_ns:
            return sending.refused_until_ns
        if self._paced is not None:
            return self._produce_on_schedule(*self._paced, now)
        wanted = min(sending.batch_messages, self.quota_left(now), self._room())
        if wanted <= 0:
            return now + REFUSED_WAIT_NS
        return now if sending.send(wanted) else self._refused(now)

    def _produce_on_schedule(self, schedule: Pacing, stream: ScheduledFlow, now: int) -> int:
        if now >= self._batch_complete_ns:
            due = min(schedule.messages_due(now - self._timeline.start_ns), self.scheduled_total)
            behind = stream.ready(due)
            if behind > 0:
                accepted = self._sending.send(min(behind, self._sending.batch_messages))
                if not accepted:
                    return self._refused(now)
                if accepted < behind:
                    return now
            self._batch_complete_ns = self._next_batch_complete_ns(schedule, due)
        return self._batch_complete_ns

    def _next_batch_complete_ns(self, schedule: Pacing, due: int) -> int:
        """When the last message of the next batch is due: until then none of it is sent.

        Without that, every arrival that wakes the loop would send what fell due since the last, one
        message at a time.
        """
        if due >= self.scheduled_total:
            # What is still unsent is owed by lanes that are down.
            is_all_sent = self._tally.sent >= self.scheduled_total
            return (
                self._timeline.measure_end_ns if is_all_sent else self._now_ns() + LONGEST_WAIT_NS
            )
        last = min(due + schedule.batch_from(due), self.scheduled_total) - 1
        return self._timeline.start_ns + schedule.intended_ns(last)

    def send_at_once(self) -> None:
        """What is late does not wait for the next batch to be complete."""
        self._batch_complete_ns = 0

    def measured_phase_moved(self) -> None:
        """Sizes that change with the measured phase change at other moments now."""
        self._sending.set_size(self._now_ns())

    def may_send_again(self) -> None:
        """The producers say that there may be room."""
        self._sending.refused_until_ns = 0

    def _refused(self, now: int) -> int:
        """Nothing was accepted: a lane is full, or down, and then the others go on without it."""
        self._heeding.heed_refusal(now)
        return now + REFUSED_WAIT_NS

    def _room(self) -> int:
        if self._backlog is None:
            return self._sending.batch_messages
        return self._backlog.room(self._sending.body_bytes)

    def quota_left(self, now: int) -> int:
        """What `load.messages` still allows in the measured phase."""
        messages = self._messages
        if messages is None or self._paced is not None:
            return self._sending.batch_messages
        if now < self._timeline.measure_start_ns:
            # No more than that at once: the phase may change before the batch is stamped.
            return min(self._sending.batch_messages, messages)
        if self._sent_before_measure is None:
            self._sent_before_measure = int(self._recorder.sent_by_lane[WARMUP].sum())
        return messages - (self._tally.sent - self._sent_before_measure)
