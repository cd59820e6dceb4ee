"""What a check of a run is, the verdict, and the checks of what became of the messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from bench_spark.driver.accounts import Accounts


Verdict = Literal["pass", "warn", "fail"]
Ends = Literal["both", "producers", "consumers"]
"""Which ends of the broker the run is at."""
LimitedBy = Literal["broker", "generator", "host"]
"""Who was too slow; `host`: broker and generator share one that had no CPU left, so either."""


@dataclass(frozen=True)
class Check:
    name: str
    verdict: Verdict
    text: str
    limited_by: LimitedBy | None = None
    """Whose limit it was, if the run did not keep what was asked; None where that is not said."""

    def as_dict(self) -> dict[str, str]:
        found = {"name": self.name, "verdict": self.verdict, "text": self.text}
        return found if self.limited_by is None else {**found, "limited_by": self.limited_by}


def passing(name: str, text: str) -> Check:
    return Check(name, "pass", text)


def warning(name: str, text: str, limited_by: LimitedBy | None = None) -> Check:
    return Check(name, "warn", text, limited_by)


def failing(name: str, text: str, limited_by: LimitedBy | None = None) -> Check:
    return Check(name, "fail", text, limited_by)


@dataclass(frozen=True)
class TraceFindings:
    """What came of joining all messages by their IDs."""

    messages: int
    disagreements: Mapping[str, tuple[int, int]]
    """Counts that differ: by the join, and by the agents' own sets and counters."""
    corrupted: int
    unexpected: int


@dataclass(frozen=True)
class Throughput:
    """What was received in the measured seconds, against what was sent."""

    send_rate: float
    """Deliveries per second that the messages sent ask for: every copy counts."""
    receive_rate: float
    seconds: float
    left_of_warmup: int
    """Messages of the warm-up that arrived in the measured seconds."""
    after_the_end: int
    """Messages of the measured phase that arrived after it."""


@dataclass(frozen=True)
class AuditInput:
    mode: str
    due: int
    sent: int
    wanted_rate_per_second: float | None
    send_rate_per_second: float
    blocked_seconds: float
    """How long the broker blocked a producer in the measured phase, on average over all of them."""
    busiest_agent_share: float | None
    """Highest share of one core that any agent used in a measured second."""
    busiest_host_share: float | None
    """How busy the busiest agent's machine was in the measured phase, all cores and programs."""
    spark_cores: float | None
    """What Spark and the driver used in the measured phase, in cores."""
    accounts: Accounts | None
    received: int
    ends: Ends
    asked_for: int | None
    """Messages of the measured phase, where their number was known beforehand."""
    unconfirmed: int | None
    """None where confirms are not used."""
    lost_is_explained_by: str | None
    confirms: bool
    clock_bound_ns: int
    negative: int
    latency_p50_us: int | None
    warmup_seconds: float
    shares_host: bool
    bytes_per_second: float
    link_speed_mbit: int | None
    lower_bounds: dict[str, list[str]]
    trace: TraceFindings | None = None
    corrupted: int | None = None
    """As the agents counted it; None where contents were not compared."""
    samples_wanted: int = 0
    """Per pair; 0 where the throughput is not sampled."""
    samples_by_pair: tuple[int, ...] = ()
    outages: tuple[Mapping[str, Any], ...] = ()
    """Connections that were lost and opened again, as `agents` in the document lists them, each
    with its `agent`."""
    expected: int | None = None
    """Deliveries that the load asked for; None: as many as were sent, every copy counted."""
    undelivered_share: float = 0.001
    """Share of the expected deliveries that may stay undelivered, and of the messages sent that the
    broker may refuse or not confirm."""
    refused: int = 0
    is_cut_short: bool = False
    """Whether a failure, a signal or an objective ended the run before its time: what was under way
    then had no whole drain."""
    has_other_verdict: bool = False
    """Whether a failure or a signal decides the status, or the run goes on still."""
    measured_seconds: float = 0.0
    stalled_seconds: Mapping[int, float] = field(default_factory=dict)
    """By agent: how much of the measured phase its loop did not run, where it was too long."""
    silences: tuple[Mapping[str, Any], ...] = ()
    """As `RunFacts` has them."""
    throughput: Throughput | None = None
    """None where one end is missing, or the run was cut short."""
    copies: int = 1
    """How often each message is to be received."""
    malformed: int = 0
    uncompiled_hosts: tuple[str, ...] = ()
    """Hosts whose agents ran their kernels as plain Python."""
    unexpected: int = 0


def verdict_of(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "passed": all(check.verdict != "fail" for check in checks),
        "checks": [check.as_dict() for check in checks],
    }


MOST_LEFT = 0.05
"""Share of the expected deliveries that may be left in the broker where the load has a rate."""


def message_checks(run: AuditInput) -> Iterator[Check]:
    """Without a measured message there is nothing that a verdict could be about."""
    if run.has_other_verdict:
        return
    if run.ends == "consumers":
        if not run.received:
            yield failing(
                "messages",
                "nothing was received in the measured phase: the source was empty, or the warm-up "
                "took all there was; put more into it, or set phases.warmup_seconds to 0",
            )
    elif not run.sent:
        yield failing(
            "messages",
            "nothing was sent in the measured phase: lengthen phases.measure_seconds, shorten the "
            f"warm-up, or look for what holds the producers back{_left_of_warmup(run)}",
        )
    elif run.ends == "both" and not run.received:
        yield failing(
            "messages",
            f"none of the {run.sent} messages of the measured phase was received: look at what "
            "lies between the broker and its consumers",
        )


def _left_of_warmup(run: AuditInput) -> str:
    """A rate of receiving beside no message received needs an explanation."""
    if run.throughput is None or not run.throughput.receive_rate:
        return ""
    return (
        f"; the {run.throughput.receive_rate:.0f} msg/s received are what the warm-up had left, "
        "and no result"
    )


def account_checks(run: AuditInput) -> Iterator[Check]:
    if run.ends == "producers":
        yield from _publishing(run)
        return
    if run.ends == "consumers":
        yield from _consuming(run)
        return
    accounts = run.accounts
    if accounts is None and not run.sent:
        return
    if accounts is None:
        yield from _without_numbers(run)
        return
    if not accounts.closes or run.received < accounts.received_once:
        yield failing("accounts", f"{_sent(accounts)} sent, but {accounts.settled} accounted for")
    else:
        yield passing("accounts", f"all {_sent(accounts)} messages sent are accounted for")
    if accounts.indeterminate:
        yield Check(
            "indeterminate",
            _undelivered(run, accounts),
            f"the fate of {accounts.indeterminate} messages is unknown"
            f"{_above_share(run, accounts)}",
        )
    yield from _loss(run, accounts)
    yield from _drain(run, accounts)


def _without_numbers(run: AuditInput) -> Iterator[Check]:
    """Bodies without a sequence number: how many are missing is known, but not which, or why."""
    text = "bodies below 32 bytes carry no sequence: losses are not counted"
    yield warning("accounts", text)
    expected = run.sent if run.expected is None else run.expected
    missing = expected - run.refused - run.received
    is_above = missing > run.undelivered_share * expected
    if is_above and not run.is_cut_short and not run.lost_is_explained_by:
        yield failing(
            "indeterminate",
            f"{missing} messages were not received, of {expected} expected: more than the "
            f"{run.undelivered_share:.2%} of audit.undelivered_share",
        )


def _loss(run: AuditInput, accounts: Accounts) -> Iterator[Check]:
    if not accounts.lost:
        return
    if run.lost_is_explained_by:
        yield warning(
            "loss", f"{accounts.lost} messages lost, as {run.lost_is_explained_by} allows"
        )
    elif run.confirms:
        yield failing(
            "loss", f"{accounts.lost} confirmed messages lost, and no declared limit explains it"
        )
    else:
        yield Check(
            "loss",
            _undelivered(run, accounts),
            f"{accounts.lost} messages lost, and no declared limit explains it"
            f"{_above_share(run, accounts)}",
        )


def _undelivered(run: AuditInput, accounts: Accounts) -> Verdict:
    return "fail" if _is_above_share(run, accounts) else "warn"


def _is_above_share(run: AuditInput, accounts: Accounts) -> bool:
    """Whether more is missing than may be: lost without a limit that allows it, or unknown."""
    lost = 0 if run.lost_is_explained_by else accounts.lost
    undelivered = lost + accounts.indeterminate
    return not run.is_cut_short and undelivered > run.undelivered_share * _expected(run, accounts)


def _above_share(run: AuditInput, accounts: Accounts) -> str:
    if not _is_above_share(run, accounts):
        return ""
    return (
        f", of {_expected(run, accounts)} expected: more than the {run.undelivered_share:.2%} of "
        "audit.undelivered_share"
    )


def _drain(run: AuditInput, accounts: Accounts) -> Iterator[Check]:
    left, expected = accounts.left_in_broker, _expected(run, accounts)
    if not left:
        return
    has_rate = run.mode in ("rate", "request")
    text = f"{left} messages were still in the broker when the drain ended"
    if has_rate and not run.is_cut_short and left > MOST_LEFT * expected:
        yield failing(
            "drain",
            f"{text}, {left / expected:.0%} of the {expected} expected: the consumers did not keep "
            "up with the rate",
        )
    else:
        yield warning("drain", text)


def _expected(run: AuditInput, accounts: Accounts) -> int:
    return accounts.sent * accounts.copies if run.expected is None else run.expected


def refusal_checks(run: AuditInput) -> Iterator[Check]:
    """A load that the broker says no to is not the load that was asked for."""
    if not run.refused:
        return
    text = f"the broker refused {run.refused} of {run.sent} messages"
    if run.refused > run.undelivered_share * run.sent:
        yield failing(
            "refused",
            f"{text}: more than the {run.undelivered_share:.2%} of audit.undelivered_share",
        )
    else:
        yield warning("refused", text)


def silence_checks(run: AuditInput) -> Iterator[Check]:
    """Consumers that got nothing while messages for them were confirmed."""
    if not run.silences:
        return
    longest = run.silences[0]
    others = len(run.silences) - 1
    who = f"consumer {longest['consumers'][0]}"
    if len(longest["consumers"]) > 1:
        who = f"the {len(longest['consumers'])} consumers that share with {who}"
    done = "confirmed" if run.confirms else "sent"
    more = f"; {others} more had such a time" if others else ""
    yield failing(
        "silence",
        f"{who} received nothing for {longest['seconds']:.0f} s, from second "
        f"{max(0.0, longest['after_seconds']):.0f} of the measured phase on, while messages for it "
        f"were {done}{more}",
    )


def _publishing(run: AuditInput) -> Iterator[Check]:
    """Nobody receives: what the broker confirmed is all that is known."""
    if not run.sent:
        return
    if run.unconfirmed is None:
        yield warning(
            "accounts",
            "nobody receives and the broker confirms nothing: what became of the messages is "
            "unknown",
        )
    elif run.unconfirmed:
        is_above = not run.is_cut_short and run.unconfirmed > run.undelivered_share * run.sent
        more = f": more than the {run.undelivered_share:.2%} of audit.undelivered_share"
        yield Check(
            "indeterminate",
            "fail" if is_above else "warn",
            f"{run.unconfirmed} of {run.sent} messages had no answer when the drain ended"
            f"{more if is_above else ''}",
        )
    else:
        yield passing("accounts", f"all {run.sent} messages sent have the broker's answer")


def _consuming(run: AuditInput) -> Iterator[Check]:
    """Nobody sends: what should have arrived is unknown, unless a number was asked for."""
    if run.asked_for is not None and run.received < run.asked_for:
        yield warning(
            "accounts",
            f"only {run.received} of the {run.asked_for} messages asked for were received",
        )


def trace_checks(run: AuditInput) -> Iterator[Check]:
    trace = run.trace
    if trace is None:
        return
    if trace.disagreements:
        differences = ", ".join(
            f"{name} {by_join} by the join and {by_agents} by the agents"
            for name, (by_join, by_agents) in trace.disagreements.items()
        )
        # A message that nobody sent counts for the agent that received it, and not for the join.
        is_explained = all(
            abs(by_join - by_agents) <= trace.unexpected
            for by_join, by_agents in trace.disagreements.values()
        )
        yield Check(
            "trace", "warn" if is_explained else "fail", f"messages and counts: {differences}"
        )
    else:
        yield passing("trace", f"{trace.messages} messages, joined by ID, agree with counts")
    if trace.unexpected:
        yield warning(
            "unexpected", f"{trace.unexpected} messages arrived that nobody here had sent"
        )


def content_checks(run: AuditInput) -> Iterator[Check]:
    corrupted = run.corrupted if run.trace is None else run.trace.corrupted
    if corrupted:
        yield failing("content", f"{corrupted} messages arrived with other content than sent")


def body_checks(run: AuditInput) -> Iterator[Check]:
    """Messages that arrived and are not those that were sent."""
    if run.malformed and run.ends == "consumers":
        yield warning(
            "bodies",
            f"{run.malformed} of {run.received} messages do not say when they were sent, in the "
            "way of message.timestamped, or say a time that cannot be: they have no latency",
        )
    elif run.malformed:
        yield warning(
            "bodies",
            f"{run.malformed} messages arrived that no producer of this run can have sent as they "
            "are: too short, or with other numbers or times",
        )
    if run.unexpected and run.trace is None:
        yield warning("unexpected", f"{run.unexpected} messages arrived that nobody here had sent")


def _sent(accounts: Accounts) -> str:
    times = f" x {accounts.copies}" if accounts.copies > 1 else ""
    return f"{accounts.sent}{times}"
