"""The contract between an agent and a broker protocol.

A transport drives many *lanes* (connections) at once and passes columns (`batches.py`), not
messages: Python per message is what makes a load generator slow. It moves bytes and reports what
became of them. Pacing, phases and counting belong to the agent.

One rule about time: `received_ns` and `Outcomes.at_ns` are taken before anything is decoded, with
the clock given to `open_*`; `sent_ns` is stamped by the agent just before `send`.

One rule about waiting: `descriptor` becomes readable when `receive`, `outcomes` or `signals` may
have something new, or when a refused `send` may succeed, so that the agent waits in one place for
everything. A transport whose library owns threads queues their columns and writes to a pipe, whose
other end is the descriptor.

One rule about lost connections: a lane whose connection ends gives the signal LOST. Where a new
connection may succeed and `reconnect_seconds` is not 0, the signal has `is_reopening`: for so long
the transport tries to open the lane again, with growing pauses, and never makes the agent wait.
Meanwhile the lane takes no messages and all other lanes go on. The attempts end in one of two ways:
REOPENED, with the number of the lane's new *generation*; or a second LOST, now for good, because
the time is up or the broker's answer is final (login refused, queue gone). Nothing crosses from one
generation to the next: messages unsettled at the loss have the outcome UNKNOWN, what was received
before is never acknowledged on the new connection, and destinations that this run declared and the
broker has forgotten are declared again, by name.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from bench_spark.config.broker import Broker, Credentials
from bench_spark.config.models import Scenario
from bench_spark.config.sections import LARGEST_BODY_BYTES
from bench_spark.core.clock import NowNs
from bench_spark.errors import RunError
from bench_spark.transports.batches import ENVELOPE_ONLY, Batch, Outcomes, Part, Received
from bench_spark.transports.leftovers import NothingLeft, Sweeper


@dataclass(frozen=True)
class Destination:
    """A queue or topic. `name` is None until the broker has resolved it."""

    index: int
    name: str | None = None
    declared: bool = False
    """Whether this run made it. A run deletes what it declared, and nothing else."""


@dataclass(frozen=True)
class Lane:
    """One producer or consumer, on whatever connection it has.

    `member` is the producer's or consumer's number in the whole run; `route` in batches indexes
    `destinations`.
    """

    member: int
    destinations: tuple[Destination, ...]
    subscriptions: tuple[int, ...] = (0,)
    """Of a consumer: the run's subscriptions that it serves. Where there are several, `route` in
    what it receives indexes these instead of `destinations`."""

    @property
    def subscription(self) -> int:
        return self.subscriptions[0]


@dataclass(frozen=True)
class Subscription:
    """Destinations, each of whose messages one of the subscription's consumers receives, once.

    Without a topology, destination i is subscription i, and its consumers share its messages. With
    a topology, `scenario.wiring` ties destinations and subscriptions together in groups: every
    subscription of a group gets all messages of the group's destinations, and its consumers share
    them. `declare` makes all destinations of a group.
    """

    index: int
    destinations: tuple[Destination, ...]


def alone(destinations: Iterable[Destination]) -> list[Subscription]:
    """Each destination as a subscription of its own."""
    return [Subscription(one.index, (one,)) for one in destinations]


@dataclass(frozen=True)
class Capabilities:
    """What a protocol can do in one scenario. Data, known before anything is connected."""

    confirms: bool = False
    """Every message sent has an outcome."""
    parts: frozenset[Part] = frozenset({Part.BODY})
    """Parts of a message that can be sent, and that consumers hand over where they are wanted."""
    topologies: bool = False
    """Subscriptions need not be single destinations."""
    pausable: bool = False
    """`Consumers.hold` can make a consumer slow."""
    answers: bool = False
    """Outcomes carry the peer's answers, in which an ID may be found."""
    listens: bool = False
    """Consumers listen for connections instead of making them."""
    counts_by_reader: bool = False
    """`backlog` counts what the run's own consumers have not read, not what others have not."""
    returns_unconsumed: bool = False
    """A message that no consumer waits for comes back at once, instead of being kept."""
    drops_overflow: bool = False
    """Destinations have a limit, and drop what is beyond it."""


class SizeLimit(NamedTuple):
    """The largest body that can be sent, what sets that limit, and bytes that bodies must lack."""

    most_bytes: int = LARGEST_BODY_BYTES
    reason: str = "bench-spark"
    forbidden: bytes = b""


@dataclass(frozen=True)
class BrokerFacts:
    """What the broker reports of itself, and what it was found to support."""

    product: str
    version: str
    platform: str = ""
    capabilities: frozenset[str] = frozenset()
    """Names such as `confirms`, `blocked_notification`, `queue_arguments`, `transactions`."""
    client_library: str = ""


class SignalKind(Enum):
    """LOST and REOPENED: see the rule about lost connections above."""

    BLOCKED = "blocked"
    UNBLOCKED = "unblocked"
    LOST = "lost"
    REOPENED = "reopened"
    REPEATS_DROPPED = "repeats dropped"
    """The protocol itself dropped messages that had come before; `count` says how many."""


@dataclass(frozen=True)
class Signal:
    """Something that happened to a lane. `reason` is fit for people and free of credentials."""

    kind: SignalKind
    at_ns: int
    lane: int
    generation: int = 0
    """Which connection of the lane; 0 is the first, and later ones have higher numbers."""
    reason: str = ""
    is_reopening: bool = False
    """Of a lane that is LOST: the transport is opening it again, so it is not lost for good."""
    count: int = 0


class Producers(Protocol):
    """The sending end of a transport, with defaults for what only some protocols have."""

    has_closed_in_order: bool = True
    """Once closed: whether the broker has read all that was sent."""

    @property
    def descriptor(self) -> int: ...

    def send(self, batch: Batch) -> int:
        """Hand over as many messages as possible without waiting; returns how many, from the front.

        Accepted means handed to the socket or the library. The agent stamps a refused payload
        again.
        """

    def commit(self) -> None:
        """End the open transaction, if there is one; also called at the end of a phase."""

    def outcomes(self) -> Outcomes: ...

    def in_flight(self) -> int:
        """Messages accepted whose outcome is still to come (0 where outcomes are not asked for)."""

    def flush(self, timeout_seconds: float) -> None:
        """Push out what is buffered, waiting for at most that long."""

    def full_among(self, lanes: Iterable[int]) -> set[int]:
        """Those of these lanes that take no message now: on a schedule the others go on without
        them. Empty where lanes share what is full, so that none can go on."""
        return set()

    @property
    def answers_by_status(self) -> Mapping[str, int]:
        """How often a peer gave each answer, in protocols whose answers have a status."""
        return {}

    def connections(self, lanes: int) -> int:
        """How many connections, or clients of the protocol's library, carry so many lanes."""
        return lanes

    def signals(self) -> list[Signal]: ...

    def close(self) -> None: ...


class Consumers(Protocol):
    """The receiving end of a transport, with defaults for what only some protocols do."""

    @property
    def descriptor(self) -> int: ...

    def attach(self) -> None:
        """Start deliveries; returns when the broker has agreed (Kafka: assigned and positioned)."""

    def detach(self) -> bool:
        """End deliveries, and wait until all that was on its way has arrived; `receive` hands it
        over. (A broker that needs no acknowledgement will not send it again.) False if the wait
        failed or timed out: the fate of missing messages is then unknown."""

    def receive(self, timeout_seconds: float) -> Received:
        """What has arrived; waits at most that long for the first message."""

    def acknowledge(self, received: Received) -> int:
        """Acknowledge as the scenario asks; how many messages were acknowledged by this call."""

    def hold(self, lanes: Collection[int]) -> None:
        """Stop fetching for exactly these lanes and resume all others, until the next call. What
        the broker sends to held lanes waits in the network, then in the broker. Called only where
        `Capabilities.pausable`."""
        raise RunError("consumer: consumers of this kind of broker cannot be slowed down")

    def connections(self, lanes: int) -> int:
        """How many connections, or clients of the protocol's library, carry so many lanes."""
        return lanes

    def signals(self) -> list[Signal]: ...

    def close(self) -> None:
        """Stop deliveries, acknowledge what was received, disconnect."""


class Transport(Protocol):
    @property
    def capabilities(self) -> Capabilities: ...

    def probe(self) -> BrokerFacts:
        """Connect, log in, ask what the broker can do; raises a PreflightError that names host and
        port, or what the scenario needs and this broker lacks."""

    def declare(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Make the destinations; names as the broker resolved them. One that was there before is
        used as it is, and not marked as declared."""

    def find(self, destinations: Sequence[Destination]) -> tuple[Destination, ...]:
        """Look for the destinations of a run that only consumes, without making any; raises a
        BrokerRefused that names one that is missing."""

    def open_producers(self, lanes: Sequence[Lane], now_ns: NowNs) -> Producers: ...

    def open_consumers(
        self, lanes: Sequence[Lane], now_ns: NowNs, want: frozenset[Part] = ENVELOPE_ONLY
    ) -> Consumers:
        """Connected, but nothing is delivered before `attach`."""

    def backlog(self, subscriptions: Sequence[Subscription]) -> tuple[int | None, ...]:
        """Messages left for each subscription once all lanes are closed; None where unknown."""

    def delete(self, destinations: Sequence[Destination]) -> None:
        """Delete those that this run declared; a destination already gone is no error."""

    def close(self) -> None: ...


OPENED_TOGETHER = 32
"""Connections that are opened side by side: enough to hide round trips, below any accept queue."""

_BURST_SECONDS = 0.05
"""Connections are opened in groups of this share of a second's rate."""


class OpeningPace:
    """Limits how many connections are opened at once, and per second if a rate is given: thousands
    at once look like an attack to most brokers."""

    def __init__(
        self,
        per_second: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._per_second = per_second
        self._clock = clock
        self._sleep = sleep
        self._next = 0.0

    def take(self, wanted: int) -> int:
        """Wait until a connection may be opened; returns how many of those wanted may be now."""
        if self._per_second is None:
            return min(wanted, OPENED_TOGETHER)
        together = max(1, min(wanted, OPENED_TOGETHER, int(self._per_second * _BURST_SECONDS)))
        begin = max(self._clock(), self._next)
        if begin > self._clock():
            self._sleep(begin - self._clock())
        self._next = begin + together / self._per_second
        return together


@dataclass(frozen=True)
class TransportContext:
    """What a transport is made from; see `TransportKind.make`."""

    run_id: str
    scenario: Scenario
    broker: Broker
    credentials: Credentials
    attempt: int = 0
    """Which attempt of its Spark task this is, for names that must not be used twice."""
    pace: OpeningPace = field(default_factory=OpeningPace)
    """How fast connections may be opened; lost ones have their own."""
    on_opened: Callable[[int], None] = lambda lanes: None
    """Called while lanes are opened, with how many more are open: thousands take seconds."""


class TransportKind(ABC):
    """One protocol, as it is known before there is a transport.

    Nothing heavy is imported before it is needed: a run on one broker never loads the client
    library of another.
    """

    files_per_connection: int = 1
    """The most file descriptors that one connection takes."""

    @abstractmethod
    def make(self, context: TransportContext) -> Transport:
        """A transport, which connects to nothing yet."""

    def capabilities(self, scenario: Scenario) -> Capabilities:
        return Capabilities()

    def check(self, scenario: Scenario, broker: Broker) -> None:  # noqa: B027 (nothing, by default)
        """Raise ConfigurationError for what this protocol can never do, from the files alone."""

    def size_limit(self, scenario: Scenario) -> SizeLimit:
        """As far as it is known without asking the broker."""
        return SizeLimit()

    def connections(self, scenario: Scenario, producers: int, consumers: int) -> int:
        """How many connections so many lanes of one agent have."""
        return producers + consumers

    def sweeper(self, context: TransportContext) -> Sweeper:
        """Finds and deletes what killed runs have left. Connects to nothing yet."""
        return NothingLeft()
