"""Keeps all agents of a run in step (`RunControl`): a state machine without sockets or threads.

Agents report each step they have reached. When all that still take part have reported it, the
driver broadcasts the command that begins the next. A failure or an interruption only shortens the
run: agents stop sending, wait briefly for what is on its way, and go through the same closing
steps, so that what was measured is kept and what was declared is deleted.

`Settling` finds out when a load without a schedule has settled, which is when as much is received
as is sent. In mode `maximum` producers first fill the broker. If the measured phase began then, it
would contain a backlog of the warm-up, or producers that are held back until that is consumed.

`SilenceWatch` finds consumers that got nothing while messages for them were there. Once a second
every agent reports how many messages its producers had confirmed (where confirms are not used: had
sent) and how many its subscriptions received. The unit is the subscription, because its consumers
may share its messages in any way. A subscription is *silent* while it receives nothing although
more and more is confirmed: from the first such confirmation on. On a schedule until the last, of
which there must be several: so neither a pause of the schedule is a silence, nor the time between
two messages of a slow one, of which the first was received before it was confirmed. Without one
a silence itself stops the producers, so it lasts as long as anything is missing; only where a limit
may have dropped that, or repeats are not known, it needs a confirmation to begin.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench_spark.agent.load import WriteOff
from bench_spark.agent.protocol import Delivered, EventRow, Message, decode_rows
from bench_spark.agent.timeline import Timeline
from bench_spark.agent.tracer import MessageFile
from bench_spark.config.delivery import dropping_limits
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS, NowNs
from bench_spark.plan import Plan, has_to_settle, longest_warmup_seconds, timeline_of

LOOKED_BACK_SECONDS = 2.0
MOST_APART = 0.1
"""Share of what was sent, every copy counted, by which what was received may differ from it."""
ANNOUNCED_NS = 500_000_000
"""Time for the announcement to reach every agent before the moment it names. An agent that gets it
even later begins to measure on arrival, and reports the delay."""
_STEP_NS = 1_000_000
"""Warm-ups last whole milliseconds: times in tables are whole microseconds."""


@dataclass(frozen=True)
class Settled:
    """How a load stood when its measured phase began."""

    is_settled: bool
    after_seconds: float
    sent_per_second: float
    """Over the last two seconds, every copy counted."""
    received_per_second: float


class Settling:
    """Decides when the measured phase of one run begins. Pure."""

    def __init__(self, scenario: Scenario, start_ns: int) -> None:
        warmup_seconds = scenario.phases.warmup_seconds
        self._start_ns = start_ns
        self._earliest_ns = start_ns + _rounded_up(round(warmup_seconds * NANOSECONDS))
        self._latest_ns = start_ns + round(longest_warmup_seconds(scenario) * NANOSECONDS)
        self._looked_back_ns = round(min(LOOKED_BACK_SECONDS, warmup_seconds) * NANOSECONDS)
        self._totals: deque[tuple[int, int, int]] = deque()
        """Moments that are looked back at, with what was sent and received until then."""
        self.outcome: Settled | None = None
        """None as long as nothing is decided."""

    def look(self, now: int, sent: int, received: int) -> int | None:
        """Note what was sent (every copy counted) and received so far. Returns the moment at which
        the measured phase begins, in the call that finds the load settled; else None."""
        if self.outcome is not None or now < self._start_ns:
            return None
        self._totals.append((now, sent, received))
        while len(self._totals) > 1 and self._totals[1][0] <= now - self._looked_back_ns:
            self._totals.popleft()
        begins_ns = max(
            self._earliest_ns, self._start_ns + _rounded_up(now - self._start_ns + ANNOUNCED_NS)
        )
        if begins_ns >= self._latest_ns:
            # Agents know the latest moment: they begin then without a command.
            if now >= self._latest_ns:
                self._decide(is_settled=self._are_alike(), begins_ns=self._latest_ns)
            return None
        if now < self._earliest_ns - ANNOUNCED_NS or not self._are_alike():
            return None
        self._decide(is_settled=True, begins_ns=begins_ns)
        return begins_ns

    def _gained(self) -> tuple[int, int, int]:
        """Over the time that is looked back at: its length, what was sent, what was received."""
        first, last = self._totals[0], self._totals[-1]
        return last[0] - first[0], last[1] - first[1], last[2] - first[2]

    def _are_alike(self) -> bool:
        length_ns, sent, received = self._gained()
        return length_ns >= self._looked_back_ns and abs(sent - received) < MOST_APART * sent

    def _decide(self, is_settled: bool, begins_ns: int) -> None:
        length_ns, sent, received = self._gained()
        seconds = max(length_ns, 1) / NANOSECONDS
        self.outcome = Settled(
            is_settled,
            (begins_ns - self._start_ns) / NANOSECONDS,
            sent / seconds,
            received / seconds,
        )


def _rounded_up(length_ns: int) -> int:
    return -(-length_ns // _STEP_NS) * _STEP_NS


LONGEST_SILENCE_NS = 5 * NANOSECONDS
FEWEST_CONFIRMATIONS = 3
"""Looks that find more confirmed, on a schedule."""
SHORTEST_LOOK_NS = NANOSECONDS // 2
"""At least between two looks: the agents' reports of one second arrive one after the other."""


@dataclass(frozen=True)
class Silence:
    """The longest silence of one subscription."""

    consumers: tuple[int, ...]
    since_ns: int
    length_ns: int


class SilenceWatch:
    """Finds subscriptions that were silent. Pure: it goes by the times in the reports."""

    def __init__(self, plan: Plan) -> None:
        scenario = plan.scenario
        self._wiring = wiring = scenario.wiring
        self._is_watched = scenario.has_both_ends
        self._has_schedule = scenario.load.has_schedule
        self._knows_repeats = scenario.has_accounts
        """Small bodies that come twice count twice, and would seem to be all that was confirmed."""
        self._begins_with_confirmation = (
            self._has_schedule or not self._knows_repeats or any(dropping_limits(scenario))
        )
        """Else whatever is missing is waited for: it was not dropped."""
        self._reported_ns = {
            assignment.agent: 0 for assignment in plan.assignments if assignment.consumers
        }
        subscriptions = wiring.subscriptions if self._is_watched else 0
        self._group = np.arange(subscriptions, dtype=np.int64) % max(1, wiring.groups)
        self._confirmed = np.zeros(wiring.groups, np.int64)
        self._received = np.zeros(subscriptions, np.int64)
        self._seen_confirmed = self._confirmed.copy()
        self._seen_received = self._received.copy()
        self._since_ns = np.zeros(subscriptions, np.int64)
        self._confirmations = np.zeros(subscriptions, np.int64)
        """Looks since the last message was received that found what it waits for."""
        self._longest_ns = np.zeros(subscriptions, np.int64)
        self._longest_since_ns = np.zeros(subscriptions, np.int64)
        self._measured_from_ns: int | None = None
        self._looked_ns = 0

    def begin(self, measured_from_ns: int) -> None:
        """Only silences of the measured phase count, from this moment on."""
        self._measured_from_ns = measured_from_ns

    def end(self) -> None:
        """Producers have ended: from now on a silence is expected."""
        self._measured_from_ns = None

    def add(self, agent: int, at_ns: int, delivered: Delivered) -> None:
        """What an agent has counted since its last report, until `at_ns`."""
        if self._measured_from_ns is None or not self._is_watched:
            return
        np.add.at(self._confirmed, delivered.groups, delivered.confirmed)
        np.add.at(self._received, delivered.subscriptions, delivered.received)
        if agent in self._reported_ns:
            self._reported_ns[agent] = at_ns
        # An agent whose report is still to come may have received something: look up to the moment
        # until which all have reported.
        until_ns = min(self._reported_ns.values())
        if until_ns >= max(self._looked_ns + SHORTEST_LOOK_NS, self._measured_from_ns):
            self._look(until_ns)

    def _look(self, now_ns: int) -> None:
        confirmed = self._confirmed[self._group]
        is_silent = self._received == self._seen_received
        if self._knows_repeats:
            is_silent &= confirmed > self._received
        grew = is_silent & (confirmed > self._seen_confirmed[self._group])
        if not self._looked_ns:
            grew[:] = False
        self._confirmations[~is_silent] = 0
        waits = grew if self._begins_with_confirmation else is_silent
        self._since_ns[waits & (self._confirmations == 0)] = self._looked_ns or now_ns
        self._confirmations[waits] += 1
        if self._has_schedule:
            counts = grew & (self._confirmations >= FEWEST_CONFIRMATIONS)
        else:
            counts = self._confirmations > 0
        silent_ns = np.where(counts, now_ns - self._since_ns, 0)
        is_longest = silent_ns > self._longest_ns
        self._longest_ns[is_longest] = silent_ns[is_longest]
        self._longest_since_ns[is_longest] = self._since_ns[is_longest]
        self._seen_confirmed = self._confirmed.copy()
        self._seen_received = self._received.copy()
        self._looked_ns = now_ns

    def silences(self) -> list[Silence]:
        """The silences that were too long, the longest first."""
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


START_DELAY_NS = 100_000_000
"""Time for the start command to reach every agent before the moment it names."""
STOPPED_DRAIN_NS = 2 * NANOSECONDS
BACKLOG_NEWS_NS = 50_000_000
DRIVER = -1
"""In place of an agent's number: the driver itself."""

# When all agents have reached the step on the left, the command on the right is broadcast.
_NEXT_COMMAND = {
    "probed": "declare",
    "declared": "open",
    "ready": "start",
    "sampled": "enough",
    "closed": "inspect",
}


@dataclass(frozen=True)
class Failure:
    agent: int
    """DRIVER where no single agent failed."""
    kind: str
    text: str

    @property
    def named(self) -> str:
        """The text, with the agent's name in front unless it is there already."""
        if self.agent == DRIVER:
            return self.text
        who = f"agent {self.agent}: "
        return who + self.text.removeprefix(who)


@dataclass
class AgentState:
    """What the driver knows of one agent."""

    attempt: int = 0
    is_here: bool = False
    has_left: bool = False
    reached: set[str] = field(default_factory=set)
    opened: int = 0
    """Lanes that it has opened so far, by its last report."""
    progress: dict[str, int] = field(default_factory=dict)
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)
    pages: bytes = b""

    @property
    def is_over(self) -> bool:
        return self.has_left or "inspected" in self.reached


class RunControl:
    """Collects the agents' reports, and sends every command of a run.

    Used only from the collector's thread, except for the events and the fields that are set before
    one of them is.
    """

    def __init__(
        self,
        plan: Plan,
        now_ns: NowNs,
        send: Callable[[int, Message], None],
        on_rows: Callable[[int, int, list[EventRow]], None],
        holds_start: bool = False,
        on_files: Callable[[int, int, list[MessageFile]], None] | None = None,
    ) -> None:
        """`holds_start`: agents get ready, but none starts before `allow_start`. `on_files`: called
        with files of messages, where messages are traced."""
        self._plan = plan
        self._now_ns = now_ns
        self._send = send
        self._on_rows = on_rows
        self._on_files = on_files
        self.agents = [AgentState() for _ in plan.assignments]
        self.failures: list[Failure] = []
        self.destinations: dict[int, tuple[str, bool]] = {}
        self.start_at_ns: int | None = None
        self.timeline: Timeline | None = None
        """From the start on. The measured phase of a load that has to settle begins at the latest
        when it says, and is moved forward once the load has settled."""
        self.settling: Settling | None = None
        """Of a load that has to settle, from the start on."""
        self.drained_at_ns: int | None = None
        """When the last message had arrived, or was no longer waited for."""
        self.stop_reason: str | None = None
        self.stopped_at_ns: int | None = None
        self.all_joined = threading.Event()
        self.started = threading.Event()
        self.produced = threading.Event()
        self.finished = threading.Event()
        self._holds_start = holds_start
        self._said: set[str] = set()
        self._drain_deadline_ns: int | None = None
        self._next_backlog_news_ns = 0
        self._write_off = WriteOff()
        self._seen_reopened = 0
        self.silence = SilenceWatch(plan)
        self._owner_of_producer = {
            member.index: assignment.agent
            for assignment in plan.assignments
            for member in assignment.producers
        }
        self._has_both_ends = plan.scenario.has_both_ends
        self._shares_backlog = self._has_both_ends and any(
            assignment.shares_destinations for assignment in plan.assignments
        )

    # -- what agents report ----------------------------------------------------------------------

    def on_joined(self, agent: int, attempt: int) -> None:
        self.agents[agent].is_here = True
        self.agents[agent].attempt = attempt
        if all(state.is_here for state in self.agents):
            self.all_joined.set()
        if self.stop_reason is not None:
            self._send(agent, {"type": "stop", "reason": self.stop_reason})

    def on_left(self, agent: int) -> None:
        state = self.agents[agent]
        state.has_left = True
        if "inspected" not in state.reached and not self._has_failed(agent):
            self._fail(Failure(agent, "RunError", f"agent {agent}: its connection ended"))
        self._advance()

    def on_message(self, agent: int, message: Message, payload: bytes) -> None:
        state = self.agents[agent]
        match message["type"]:
            case "reached":
                step = str(message["step"])
                state.reached.add(step)
                state.reports[step] = message
                self._note_step(state, step, message, payload)
                self._advance()
            case "progress":
                state.progress = message
            case "arrived":
                self._release(message["producers"], message["sequences"])
            case "deliveries":
                delivered = Delivered.from_bytes(payload, int(message["groups"]))
                self.silence.add(agent, int(message["at_ns"]), delivered)
            case "opening":
                state.opened = int(message["opened"])
            case "rows":
                rows = decode_rows(message["rows"], payload)
                self._on_rows(agent, state.attempt, rows)
                numbers = [row.row_number for row in rows]
                self._send(agent, {"type": "rows_kept", "row_numbers": numbers})
            case "files" if self._on_files is not None:
                files = [MessageFile(**file) for file in message["files"]]
                self._on_files(agent, state.attempt, files)
                numbers = [file.number for file in files]
                self._send(agent, {"type": "files_kept", "numbers": numbers})
            case "failed":
                self._fail(Failure(agent, str(message["kind"]), str(message["text"])))

    def _note_step(self, state: AgentState, step: str, message: Message, payload: bytes) -> None:
        if step == "declared":
            for index, name, declared in message["destinations"]:
                self.destinations[int(index)] = (str(name), bool(declared))
        elif step == "closed":
            state.pages = payload

    @property
    def opened_lanes(self) -> int:
        """How many lanes of all agents are open already."""
        return sum(state.opened for state in self.agents)

    @property
    def totals(self) -> dict[str, int]:
        """What all agents have sent and received so far, by their last progress reports."""
        return {name: self._total(name) for name in ("sent", "received_once")}

    # -- what the driver does --------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the run early; the agents go through the closing steps."""
        if self.stop_reason is not None:
            return
        self.stop_reason = reason
        self.stopped_at_ns = self._now_ns()
        self.silence.end()
        for agent in range(len(self.agents)):
            self._send(agent, {"type": "stop", "reason": reason})
        self._limit_drain(STOPPED_DRAIN_NS)

    def allow_start(self) -> None:
        self._holds_start = False
        self._advance()

    def on_time(self) -> None:
        now = self._now_ns()
        if self.settling is not None and self.stop_reason is None:
            self._see_whether_settled(self.settling, now)
        if self._drain_deadline_ns is not None and not self._was_said("drained"):
            if now >= self._drain_deadline_ns or self._has_everything_arrived():
                self._say("drained")
        elif self._shares_backlog and now >= self._next_backlog_news_ns:
            self._next_backlog_news_ns = now + BACKLOG_NEWS_NS
            self._broadcast({"type": "backlog", "messages": self._backlog_to_wait_for(now)})

    def _advance(self) -> None:
        for step, command in _NEXT_COMMAND.items():
            # Once stopped, no further step begins but the closing one.
            is_wanted = self.stop_reason is None or command == "inspect"
            if command == "start" and self._holds_start:
                is_wanted = False
            if is_wanted and not self._was_said(command) and self._all_reached(step):
                self._say(command)
        if self._all_reached("produced") and self._drain_deadline_ns is None:
            self.produced.set()
            self.silence.end()
            self._limit_drain(round(self._plan.scenario.phases.drain_seconds * NANOSECONDS))
        if all(state.is_over for state in self.agents):
            self.finished.set()

    def _say(self, command: str) -> None:
        self._said.add(command)
        message: Message = {"type": command}
        if command == "open":
            message["destinations"] = [
                [index, name, declared] for index, (name, declared) in self.destinations.items()
            ]
        elif command == "start":
            self.start_at_ns = self._now_ns() + START_DELAY_NS
            message["start_at_ns"] = self.start_at_ns
            self.timeline = timeline_of(self._plan.scenario, self.start_at_ns)
            self.silence.begin(self.timeline.measure_start_ns)
            if has_to_settle(self._plan.scenario):
                self.settling = Settling(self._plan.scenario, self.start_at_ns)
            self.started.set()
        elif command == "drained":
            self.drained_at_ns = self._now_ns()
        self._broadcast(message)

    def _broadcast(self, message: Message) -> None:
        for agent in range(len(self.agents)):
            self._send(agent, message)

    def _was_said(self, command: str) -> bool:
        return command in self._said

    def _all_reached(self, step: str) -> bool:
        """Whether every agent that still takes part has come to this step."""
        taking_part = (state for state in self.agents if not state.is_over)
        reached = [step in state.reached for state in taking_part]
        return bool(reached) and all(reached)

    def _limit_drain(self, length_ns: int) -> None:
        deadline = self._now_ns() + length_ns
        if self._drain_deadline_ns is None or deadline < self._drain_deadline_ns:
            self._drain_deadline_ns = deadline

    def _see_whether_settled(self, settling: Settling, now: int) -> None:
        """Once the load has settled, announce when the measured phase begins."""
        under_way = self._total("sent") - self._total("freed")
        begins_ns = settling.look(now, under_way * self._plan.copies, self._total("received_once"))
        if begins_ns is not None and self.timeline is not None:
            self.timeline.measure_from(begins_ns)
            self.silence.begin(begins_ns)
            self._broadcast({"type": "measure", "measure_at_ns": begins_ns})

    def _backlog(self) -> int:
        """Deliveries still to come, each copy of a message counted."""
        if not self._has_both_ends:
            return 0  # what is sent is not received here, or what is received was not sent here
        under_way = self._total("sent") - self._total("freed")
        return under_way * self._plan.copies - self._total("received_once")

    def _backlog_to_wait_for(self, now: int) -> int:
        """The backlog without messages that were lost with a connection: they will never arrive."""
        reopened = self._total("reopened")
        if reopened > self._seen_reopened:
            self._seen_reopened = reopened
            self._write_off.reopened()
        backlog = self._backlog()
        if not self._total("down"):
            self._write_off.look(backlog, self._total("received_once"), now)
        return backlog - self._write_off.messages

    def _total(self, name: str) -> int:
        return sum(state.progress.get(name, 0) for state in self.agents)

    def _has_everything_arrived(self) -> bool:
        if not self._all_reached("produced"):
            return False
        return self._backlog() <= 0 and self._total("unsettled") == 0

    def _release(self, producers: list[int], sequences: list[int]) -> None:
        """Forward arrivals to the agents of their senders, who wait for them in mode `request`."""
        of_owner: dict[int, tuple[list[int], list[int]]] = {}
        for producer, sequence in zip(producers, sequences, strict=True):
            waiting = of_owner.setdefault(self._owner_of_producer[producer], ([], []))
            waiting[0].append(producer)
            waiting[1].append(sequence)
        for owner, (theirs, numbers) in of_owner.items():
            self._send(owner, {"type": "released", "producers": theirs, "sequences": numbers})

    def _has_failed(self, agent: int) -> bool:
        return any(failure.agent == agent for failure in self.failures)

    def _fail(self, failure: Failure) -> None:
        self.failures.append(failure)
        self.stop(f"agent {failure.agent} failed: {failure.text}")
