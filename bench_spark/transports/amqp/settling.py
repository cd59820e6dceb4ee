"""What producers of every plane have in common: what became of the messages they have sent."""

from __future__ import annotations

from collections.abc import Sequence

from bench_spark.measure.clock import NowNs
from bench_spark.scenario.models import Amqp
from bench_spark.transports.amqp.lanes import Lanes, LaneT
from bench_spark.transports.amqp.opening import Access
from bench_spark.transports.amqp.reopening import ReopeningRule
from bench_spark.transports.amqp.settlement import Settlement, joined
from bench_spark.transports.base import Lane, Outcomes


class SettlingLanes(Lanes[LaneT]):
    """Lanes with a settlement each; a plane's producers mix them with its own lanes."""

    def __init__(
        self,
        access: Access,
        amqp: Amqp,
        lanes: Sequence[Lane],
        now_ns: NowNs,
        rule: ReopeningRule | None = None,
    ) -> None:
        self._amqp = amqp
        self._settled: list[Outcomes] = []
        self._settlements = [self._make_settlement(number) for number in range(len(lanes))]
        super().__init__(access, lanes, now_ns, rule)
        try:
            self._begin_all("confirm.select")
        except BaseException:
            self.close()
            raise

    def _make_settlement(self, number: int) -> Settlement:
        return Settlement(number, self._amqp.confirms, self._amqp.mandatory, self._settled)

    def _renew(self, lane: LaneT) -> None:
        # Tags begin at 1 again: what the new generation is told must not settle the old one's.
        self._settlements[lane.number] = self._make_settlement(lane.number)

    def commit(self) -> None:
        """No transaction is ever open here, so there is none to end."""

    def flush(self, timeout_seconds: float) -> None:
        self._loop.run_until(
            lambda: not any(lane.connection.unsent_bytes for lane in self._opened),
            timeout_seconds,
        )
        self._ring_if_more()

    def in_flight(self) -> int:
        return sum(settlement.in_flight for settlement in self._settlements)

    def outcomes(self) -> Outcomes:
        self._pump()
        if self._amqp.mandatory:
            now_ns = self._now_ns()
            for settlement in self._settlements:
                settlement.release(now_ns)
        settled = joined(self._settled)
        self._settled.clear()
        self._ring_if_more()
        return settled

    def _has_news(self) -> bool:
        return bool(self._settled)

    def _abandon(self, lane: LaneT) -> None:
        self._settlements[lane.number].abandon(self._now_ns())
