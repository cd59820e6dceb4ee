"""Finds consumers that got nothing while messages for them were there.

Once a second every agent reports how many messages its producers had confirmed (where confirms are
not used: had sent) and how many its subscriptions received. The unit is the subscription, because
consumers of one subscription may share its messages as they like. A subscription is *silent* while
nothing arrives by it although confirmed messages are outstanding. In mode `rate` only seconds in
which more was confirmed count, so that a pause of the schedule is no silence; in the other modes
producers wait for what they have sent, so that a silence stops them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench_spark.agent.ticks import Delivered
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import Plan

LONGEST_SILENCE_NS = 5 * NANOSECONDS
SHORTEST_LOOK_NS = NANOSECONDS // 2
"""Reports of a second come from all agents, one after the other."""


@dataclass(frozen=True)
class Silence:
    """The longest of one subscription."""

    consumers: tuple[int, ...]
    since_ns: int
    length_ns: int


class SilenceWatch:
    """Pure: reports carry their own times."""

    def __init__(self, plan: Plan) -> None:
        scenario = plan.scenario
        self._wiring = wiring = scenario.wiring
        self._is_watched = scenario.has_both_ends
        self._needs_confirms_meanwhile = scenario.load.mode == "rate"
        self._reported_ns = {
            assignment.agent: 0 for assignment in plan.assignments if assignment.consumers
        }
        subscriptions = wiring.subscriptions if self._is_watched else 0
        self._group = np.arange(subscriptions, dtype=np.int64) % max(1, wiring.groups)
        self._confirmed = np.zeros(wiring.groups, np.int64)
        self._received = np.zeros(subscriptions, np.int64)
        self._seen_confirmed = self._confirmed.copy()
        self._seen_received = self._received.copy()
        self._was_waiting = np.zeros(subscriptions, np.bool_)
        self._since_ns = np.zeros(subscriptions, np.int64)
        self._silent_ns = np.zeros(subscriptions, np.int64)
        self._longest_ns = np.zeros(subscriptions, np.int64)
        self._longest_since_ns = np.zeros(subscriptions, np.int64)
        self._measured_from_ns: int | None = None
        self._looked_ns = 0

    def begin(self, measured_from_ns: int) -> None:
        """Only silences of the measured phase count, from this moment on."""
        self._measured_from_ns = measured_from_ns

    def end(self) -> None:
        """Producers have ended: from now on nothing need arrive."""
        self._measured_from_ns = None

    def add(self, agent: int, at_ns: int, delivered: Delivered) -> None:
        """What an agent has counted since its last report, until `at_ns`."""
        if self._measured_from_ns is None or not self._is_watched:
            return
        np.add.at(self._confirmed, delivered.groups, delivered.confirmed)
        np.add.at(self._received, delivered.subscriptions, delivered.received)
        if agent in self._reported_ns:
            self._reported_ns[agent] = at_ns
        # An agent that has not reported may have received: time goes on when all have.
        until_ns = min(self._reported_ns.values())
        if until_ns >= max(self._looked_ns + SHORTEST_LOOK_NS, self._measured_from_ns):
            self._look(until_ns)

    def _look(self, now_ns: int) -> None:
        passed_ns = now_ns - self._looked_ns if self._looked_ns else 0
        confirmed = self._confirmed[self._group]
        is_waiting = confirmed > self._received
        is_silent = self._was_waiting & is_waiting & (self._received == self._seen_received)
        counts = is_silent
        if self._needs_confirms_meanwhile:
            counts = is_silent & (confirmed > self._seen_confirmed[self._group])
        self._since_ns[~is_silent] = now_ns
        self._silent_ns[~is_silent] = 0
        self._silent_ns[counts] += passed_ns
        is_longest = self._silent_ns > self._longest_ns
        self._longest_ns[is_longest] = self._silent_ns[is_longest]
        self._longest_since_ns[is_longest] = self._since_ns[is_longest]
        self._was_waiting = is_waiting
        self._seen_confirmed = self._confirmed.copy()
        self._seen_received = self._received.copy()
        self._looked_ns = now_ns

    def silences(self) -> list[Silence]:
        """Those that were too long, the longest first."""
        found = np.flatnonzero(self._longest_ns >= LONGEST_SILENCE_NS)
        order = found[np.argsort(-self._longest_ns[found], kind="stable")]
        return [
            Silence(
                consumers=tuple(self._wiring.consumers_of_subscription(int(one))),
                since_ns=int(self._longest_since_ns[one]),
                length_ns=int(self._longest_ns[one]),
            )
            for one in order
        ]
