"""The load of one agent: what takes part in it, and how much of it is on its way.

`Backlog` counts messages and says how far senders may run ahead of consumers. `WriteOff` answers
the question that a lost connection leaves behind: how many of the messages that are out will never
arrive?
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench_spark.agent.flow import QUIET_NS, Flow, Quiet, RequestFlow, RoundRobinFlow, WindowFlow
from bench_spark.agent.link import Link
from bench_spark.agent.recorder import Recorder
from bench_spark.agent.records import Bodies, RecordCodec
from bench_spark.agent.sampler import Sampler
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import NoTracer, Tracer
from bench_spark.plan import Assignment
from bench_spark.transports.base import Consumers, Producers, Signal


@dataclass(frozen=True)
class AgentLoad:
    """What an agent is to send and receive, by which clients, and what measures it."""

    assignment: Assignment
    timeline: Timeline
    link: Link
    producers: Producers
    """A role without members has a null object."""
    consumers: Consumers
    bodies: Bodies
    """What makes bodies, and knows messages again by them."""
    recorder: Recorder
    sampler: Sampler
    """Ends the measured phase once it is complete."""
    tracer: Tracer | NoTracer
    """Writes single messages down."""
    addresses: Mapping[str, str]
    """By role the broker's host and port, for messages to people."""
    confirms: bool = False
    """Whether every message sent will have an outcome."""
    fills_first: bool = False
    """Whether the consumers are still to be attached, once the windows are full."""
    drops_overflow: bool = False
    """Whether the destinations drop what is too much, so that nothing else need bound a backlog."""
    early_signals: Sequence[tuple[str, Signal]] = ()
    """Role and what happened to its lanes before the load began."""

    @property
    def codecs(self) -> tuple[RecordCodec, ...]:
        """What puts IDs into messages and finds them again: nothing where envelopes do."""
        return (self.bodies,) if isinstance(self.bodies, RecordCodec) else ()

    @property
    def tracers(self) -> tuple[Tracer, ...]:
        """What is told of every message: nothing, unless the scenario asks for single ones."""
        return (self.tracer,) if isinstance(self.tracer, Tracer) else ()


def flow_for(assignment: Assignment) -> Flow:
    load = assignment.scenario.load
    members = assignment.producer_numbers
    if load.mode == "request":
        return RequestFlow(members)
    if load.mode == "window":
        return WindowFlow(members, load.in_flight)
    return RoundRobinFlow(members or (0,), owes=assignment.schedule is not None)


def backlog_for(load: AgentLoad) -> Backlog:
    scenario = load.assignment.scenario
    # Without consumers there is no backlog to watch: the scenario bounds the load otherwise.
    is_bounded = load.drops_overflow or scenario.only_publishes or scenario.load.mode != "maximum"
    return Backlog(
        None if is_bounded else scenario.load.backlog_limit_bytes,
        copies=scenario.wiring.copies,
        is_shared=load.assignment.shares_destinations,
    )


class WriteOff:
    """Messages that are counted as out although they went down with a connection.

    Without confirms nobody can tell them from those still on their way. So after a connection came
    back they are written off once nothing has arrived for `QUIET_NS`. Those that arrive all the
    same are taken back.
    """

    def __init__(self) -> None:
        self.messages = 0
        self.is_due = False
        """A connection came back, and it is not known yet what went down with it."""
        self._quiet = Quiet()

    def reopened(self) -> None:
        self.is_due = True
        self._quiet.start_again()

    def look(self, out: int, received: int, now_ns: int) -> None:
        """`out`: sent, and not received or known to have failed."""
        self.messages = max(0, min(self.messages, out))
        if self.is_due and (out <= 0 or self._quiet.lasts_ns(received, now_ns) >= QUIET_NS):
            self.messages = max(0, out)
            self.is_due = False


class Backlog:
    """What an agent has sent and received, and how much more may be out. Every number has one part
    that adds to it, and others that read it.

    The limit is one of deliveries: every copy of a message counts, and one message is always let
    out.
    """

    def __init__(self, limit_bytes: int | None, copies: int, is_shared: bool) -> None:
        """`limit_bytes`: None where the load is bounded otherwise. `copies` of each message are
        delivered. `is_shared`: other agents send to and receive from the same destinations, and the
        driver sends how much is in them."""
        self.sent = 0
        """Accepted by the transport."""
        self.received = 0
        """Of this run: what another one left behind counts for nothing here."""
        self.freed = 0
        """Refused or returned by the broker: no longer on their way."""
        self.reopened = 0
        """Lanes that came back, not messages."""
        self.is_bounded = limit_bytes is not None
        self._limit_bytes = limit_bytes or 0
        self._copies = copies
        self._is_shared = is_shared
        self._everyones = 0
        self._sent_at_news = 0
        self._write_off = WriteOff()

    def room(self, body_bytes: int) -> int:
        """How many more messages of that size the limit allows, where there is one."""
        limit = max(self._copies, self._limit_bytes // body_bytes)
        if self._is_shared:
            sent_since = self.sent - self._sent_at_news
            backlog = self._everyones + sent_since * self._copies
        else:
            backlog = self._out - self._write_off.messages
            if self._write_off.is_due and backlog > limit // 2:
                # Sending on would hide that of all these nothing arrives any more.
                return 0
        return (limit - backlog) // self._copies

    @property
    def _out(self) -> int:
        """Sent by this agent, and neither received by it nor known to have failed."""
        return (self.sent - self.freed) * self._copies - self.received

    def told(self, everyones: int) -> None:
        """The driver says how much all agents together have under way."""
        self._everyones = everyones
        self._sent_at_news = self.sent

    def lane_reopened(self) -> None:
        """A lane is back; nobody knows yet what went down with its connection."""
        self.reopened += 1
        self._write_off.reopened()

    def look(self, now_ns: int) -> None:
        """While all lanes are up: write off what will not arrive any more."""
        self._write_off.look(self._out, self.received, now_ns)
