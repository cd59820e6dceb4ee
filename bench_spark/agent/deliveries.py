"""What an agent's producers had confirmed and its subscriptions received, reported every second."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench_spark.agent.link import Link
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.serving import Serving
from bench_spark.transports.base import I64


@dataclass(frozen=True, eq=False)
class Delivered:
    """Since the last report; what has not changed is left out."""

    groups: I64
    confirmed: I64
    """By group. Where confirms are not used: sent, and not returned."""
    subscriptions: I64
    received: I64

    def to_bytes(self) -> bytes:
        columns = (self.groups, self.confirmed, self.subscriptions, self.received)
        return b"".join(column.astype("<i8", copy=False).tobytes() for column in columns)

    @staticmethod
    def from_bytes(data: bytes, groups: int) -> Delivered:
        """Raises ValueError when the bytes are not what an agent sends."""
        columns = np.frombuffer(data, "<i8")
        subscriptions = (len(columns) - 2 * groups) // 2
        if groups < 0 or subscriptions < 0 or 2 * (groups + subscriptions) != len(columns):
            raise ValueError("this is no report of deliveries")
        ends = np.cumsum([groups, groups, subscriptions])
        return Delivered(*np.split(columns, ends))


class Deliveries:
    """Of one agent of a run with both ends."""

    def __init__(self, serving: Serving, recorder: Recorder, link: Link, confirms: bool) -> None:
        wiring = serving.assignment.scenario.wiring
        self._recorder = recorder
        self._link = link
        self._confirms = confirms
        members = [wiring.group_of_producer(one.index) for one in serving.assignment.producers]
        self._groups, self._group_of_lane = np.unique(
            np.array(members, np.int64), return_inverse=True
        )
        self._subscriptions = np.array(serving.subscriptions, np.int64)
        self._confirmed = np.zeros(len(self._groups), np.int64)
        self._received = np.zeros(len(self._subscriptions), np.int64)

    def report(self, now_ns: int) -> None:
        confirmed = np.zeros_like(self._confirmed)
        by_lane = self._recorder.confirmed_by_lane if self._confirms else self._recorder.under_way
        np.add.at(confirmed, self._group_of_lane, by_lane[: len(self._group_of_lane)])
        received = self._recorder.received_by_subscription[: len(self._received)].copy()
        more_confirmed, more_received = confirmed - self._confirmed, received - self._received
        sent_by, got = np.flatnonzero(more_confirmed), np.flatnonzero(more_received)
        self._confirmed, self._received = confirmed, received
        delivered = Delivered(
            groups=self._groups[sent_by],
            confirmed=more_confirmed[sent_by],
            subscriptions=self._subscriptions[got],
            received=more_received[got],
        )
        self._link.send(
            {"type": "deliveries", "at_ns": now_ns, "groups": len(sent_by)}, delivered.to_bytes()
        )
