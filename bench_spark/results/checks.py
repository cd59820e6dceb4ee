"""What a check of a run is, the verdict, and the checks of what became of the messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.delivery import dropping_limits
from bench_spark.config.models import Scenario
from bench_spark.core.clock import NANOSECONDS
from bench_spark.plan import longest_warmup_seconds
from bench_spark.results.counts import Counts, Rates, expected_deliveries
from bench_spark.results.facts import GeneratorFacts, RunFacts, TraceFindings, trace_findings
from bench_spark.results.totals import TickTotals

if TYPE_CHECKING:
    from bench_spark.driver.accounts import Accounts


Verdict = Literal["pass", "warn", "fail"]
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
class ReceivedAgainstSent:
    """What was received in the measured seconds, against what was sent."""

    send_rate: float
    """Deliveries per second that the messages sent ask for: every copy counts."""
    receive_rate: float
    left_of_warmup: int
    """Messages of the warm-up that arrived in the measured seconds."""
    after_the_end: int
    """Messages of the measured phase that arrived after it."""


@dataclass(frozen=True)
class Evidence:
    """What the checks of a run read."""

    facts: RunFacts
    totals: TickTotals
    counts: Counts
    rates: Rates
    measures: Mapping[str, Mapping[str, Any]]
    samples_by_pair: Sequence[int] = ()
    """How many samples of the throughput each pair has."""

    @property
    def scenario(self) -> Scenario:
        return self.facts.plan.scenario

    @property
    def generator(self) -> GeneratorFacts:
        return self.facts.generator

    @property
    def accounts(self) -> Accounts | None:
        return self.facts.messages.accounts

    def count(self, name: str) -> int:
        """0 where it is not known."""
        return self.counts[name] or 0

    @property
    def was_cut_short(self) -> bool:
        """A run that was cut short says so; its last moments are no measure of the schedule."""
        return bool(self.facts.end.failures) or self.facts.ended_early

    @property
    def lacks_drain(self) -> bool:
        """Whether what was under way at the end may not have had the time to arrive."""
        return self.was_cut_short or self.facts.measured_from is None

    @property
    def has_other_verdict(self) -> bool:
        """Whether a failure or a signal decides the status, or the run goes on still."""
        end = self.facts.end
        was_ended = bool(end.failures) or end.interrupted_by is not None or end.is_partial
        return was_ended or self.facts.measured_from is None

    @property
    def has_schedule(self) -> bool:
        """Whether there is a schedule, and something to judge it by."""
        is_judged = self.scenario.is_paced and self.facts.measured_seconds > 0
        return is_judged and not self.was_cut_short

    @property
    def blocked_seconds(self) -> float:
        """How long the broker blocked a producer in the measured phase, on average over all.

        Events add up the time of all connections; what they show is never longer than the phase.
        """
        added_up = self.totals.of_window(PRODUCER, "blocked_ns") / NANOSECONDS
        return min(added_up / max(1, self.scenario.producers), self.facts.measured_seconds)

    @property
    def expected(self) -> int:
        """Deliveries that the load asked for."""
        return expected_deliveries(self.facts, self.counts) or 0

    def is_too_much(self, undelivered: int, of_all: int) -> bool:
        return undelivered > self.scenario.audit.undelivered_share * of_all

    @property
    def too_much(self) -> str:
        share = self.scenario.audit.undelivered_share
        return f"more than the {share:.2%} of audit.undelivered_share"

    @property
    def lost_is_explained_by(self) -> str | None:
        return declared_limit(
            self.facts,
            sent=self.totals.of_all(PRODUCER, "sent"),
            sent_bytes=self.totals.of_all(PRODUCER, "bytes"),
        )

    @property
    def hosts(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.generator.environment.get("hosts", ())
        return found

    @property
    def shares_host(self) -> bool:
        return any(host.get("shares_host_with_broker") for host in self.hosts)

    @property
    def outages(self) -> list[dict[str, Any]]:
        """Connections that were lost and opened again, as `agents` in the document lists them, each
        with its `agent`."""
        return [
            {"agent": agent["agent"], **outage}
            for agent in self.generator.agents
            for outage in agent.get("outages", ())
        ]

    @property
    def received_against_sent(self) -> ReceivedAgainstSent | None:
        """None where one end is missing, or the run was cut short."""
        sent, received = self.rates["send_rate"], self.rates["receive_rate"]
        if sent is None or received is None or self.was_cut_short:
            return None
        in_time = self.totals.of_measured_in_window(CONSUMER, "received")
        return ReceivedAgainstSent(
            send_rate=sent * self.facts.plan.copies,
            receive_rate=received,
            left_of_warmup=self.totals.of_window(CONSUMER, "received") - in_time,
            after_the_end=self.totals.of_measured(CONSUMER, "received") - in_time,
        )

    @property
    def trace(self) -> TraceFindings | None:
        return trace_findings(self.facts, self.counts)


def declared_limit(facts: RunFacts, sent: int, sent_bytes: int) -> str | None:
    """A limit in the scenario by which a healthy broker can have dropped messages in this run, in
    which so many were `sent`, warm-up included; None if there is none.

    Only sections of the brokers' own protocols count: the others were ignored.
    """
    scenario = facts.plan.scenario
    seconds = longest_warmup_seconds(scenario) + facts.measured_seconds
    milliseconds = 1000 * (seconds + scenario.phases.drain_seconds)
    reached = {"messages": sent, "bytes": sent_bytes, "milliseconds": milliseconds}
    kinds = {str(broker.get("kind")) for broker in (facts.broker, *facts.brokers)}
    for limit in sorted(dropping_limits(scenario), key=lambda limit: limit.kind):
        if limit.kind in kinds and 0 <= limit.value < reached[limit.unit]:
            return f"{limit.name}={limit.declared}"
    return None


def verdict_of(checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "passed": all(check.verdict != "fail" for check in checks),
        "checks": [check.as_dict() for check in checks],
    }


MOST_LEFT = 0.05
"""Share of the expected deliveries that may be left in the broker where the load has a rate."""


def message_checks(run: Evidence) -> Iterator[Check]:
    """Without a measured message there is nothing that a verdict could be about."""
    if run.has_other_verdict:
        return
    sent, received = run.count("sent"), run.count("received")
    if run.scenario.only_consumes:
        if not received:
            yield failing(
                "messages",
                "nothing was received in the measured phase: the source was empty, or the warm-up "
                "took all there was; put more into it, or set phases.warmup_seconds to 0",
            )
    elif not sent:
        yield failing(
            "messages",
            "nothing was sent in the measured phase: lengthen phases.measure_seconds, shorten the "
            f"warm-up, or look for what holds the producers back{_left_of_warmup(run)}",
        )
    elif run.scenario.has_both_ends and not received:
        yield failing(
            "messages",
            f"none of the {sent} messages of the measured phase was received: look at what lies "
            "between the broker and its consumers",
        )


def _left_of_warmup(run: Evidence) -> str:
    """A rate of receiving beside no message received needs an explanation."""
    found = run.received_against_sent
    if found is None or not found.receive_rate:
        return ""
    received = f"{found.receive_rate:.0f} msg/s received"
    return f"; the {received} are what the warm-up had left, and no result"


def account_checks(run: Evidence) -> Iterator[Check]:
    if run.scenario.only_publishes:
        yield from _publishing(run)
        return
    if run.scenario.only_consumes:
        yield from _consuming(run)
        return
    accounts = run.accounts
    if accounts is None and not run.count("sent"):
        return
    if accounts is None:
        yield from _without_numbers(run)
        return
    if not accounts.closes or run.count("received") < accounts.received_once:
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


def _without_numbers(run: Evidence) -> Iterator[Check]:
    """Bodies without a sequence number: how many are missing is known, but not which, or why."""
    text = "bodies below 32 bytes carry no sequence: losses are not counted"
    yield warning("accounts", text)
    expected = run.expected
    missing = expected - run.count("refused") - run.count("received")
    is_above = run.is_too_much(missing, expected)
    if is_above and not run.lacks_drain and not run.lost_is_explained_by:
        yield failing(
            "indeterminate",
            f"{missing} messages were not received, of {expected} expected: {run.too_much}",
        )


def _loss(run: Evidence, accounts: Accounts) -> Iterator[Check]:
    if not accounts.lost:
        return
    if run.lost_is_explained_by:
        yield warning(
            "loss", f"{accounts.lost} messages lost, as {run.lost_is_explained_by} allows"
        )
    elif run.facts.messages.confirms:
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


def _undelivered(run: Evidence, accounts: Accounts) -> Verdict:
    return "fail" if _is_above_share(run, accounts) else "warn"


def _is_above_share(run: Evidence, accounts: Accounts) -> bool:
    """Whether more is missing than may be: lost without a limit that allows it, or unknown."""
    lost = 0 if run.lost_is_explained_by else accounts.lost
    return not run.lacks_drain and run.is_too_much(lost + accounts.indeterminate, run.expected)


def _above_share(run: Evidence, accounts: Accounts) -> str:
    if not _is_above_share(run, accounts):
        return ""
    return f", of {run.expected} expected: {run.too_much}"


def _drain(run: Evidence, accounts: Accounts) -> Iterator[Check]:
    left, expected = accounts.left_in_broker, run.expected
    if not left:
        return
    has_rate = run.scenario.load.mode in ("rate", "request")
    text = f"{left} messages were still in the broker when the drain ended"
    if has_rate and not run.lacks_drain and left > MOST_LEFT * expected:
        yield failing(
            "drain",
            f"{text}, {left / expected:.0%} of the {expected} expected: the consumers did not keep "
            "up with the rate",
        )
    else:
        yield warning("drain", text)


def refusal_checks(run: Evidence) -> Iterator[Check]:
    """A load that the broker says no to is not the load that was asked for."""
    refused, returned, sent = (run.count(name) for name in ("refused", "returned", "sent"))
    if not refused + returned:
        return
    text = f"the broker refused {refused} of {sent} messages"
    if returned:
        text = f"the broker refused {refused} and returned {returned} of {sent} messages"
    if run.is_too_much(refused + returned, sent):
        yield failing("refused", f"{text}: {run.too_much}")
    else:
        yield warning("refused", text)


def given_up_checks(run: Evidence) -> Iterator[Check]:
    """Requests whose senders went on without an answer."""
    given_up, sent = run.count("given_up"), run.count("sent")
    if not given_up:
        return
    text = f"{given_up} of {sent} messages were given up by their senders"
    if not run.lacks_drain and run.is_too_much(given_up, sent):
        yield failing("given_up", f"{text}: {run.too_much}")
    else:
        yield warning("given_up", text)


def silence_checks(run: Evidence) -> Iterator[Check]:
    """Consumers that got nothing while messages for them were confirmed."""
    silences = run.facts.messages.silences
    if not silences:
        return
    longest = silences[0]
    others = len(silences) - 1
    who = f"consumer {longest['consumers'][0]}"
    if len(longest["consumers"]) > 1:
        who = f"the {len(longest['consumers'])} consumers that share with {who}"
    done = "confirmed" if run.facts.messages.confirms else "sent"
    more = f"; {others} more had such a time" if others else ""
    yield failing(
        "silence",
        f"{who} received nothing for {longest['seconds']:.0f} s, from second "
        f"{max(0.0, longest['after_seconds']):.0f} of the measured phase on, while messages for it "
        f"were {done}{more}",
    )


def _publishing(run: Evidence) -> Iterator[Check]:
    """No consumers: what the broker confirmed is all that is known."""
    sent, unconfirmed = run.count("sent"), run.counts["unconfirmed"]
    if not sent:
        return
    if unconfirmed is None:
        yield warning(
            "accounts",
            "nobody receives and the broker confirms nothing: what became of the messages is "
            "unknown",
        )
    elif unconfirmed:
        is_above = not run.lacks_drain and run.is_too_much(unconfirmed, sent)
        text = f"{unconfirmed} of {sent} messages had no answer when the drain ended"
        if is_above:
            yield failing("indeterminate", f"{text}: {run.too_much}")
        else:
            yield warning("indeterminate", text)
    else:
        yield passing("accounts", f"all {sent} messages sent have the broker's answer")


def _consuming(run: Evidence) -> Iterator[Check]:
    """No producers: what should have arrived is unknown, unless a number was asked for."""
    wanted, received = run.facts.plan.expected_messages, run.count("received")
    if wanted is None or received >= wanted:
        return
    text = f"only {received} of the {wanted} messages asked for were received"
    if not run.has_other_verdict and run.is_too_much(wanted - received, wanted):
        yield failing("accounts", f"{text}: {run.too_much}")
    else:
        yield warning("accounts", text)


def trace_checks(run: Evidence) -> Iterator[Check]:
    trace = run.trace
    if trace is None:
        return
    if trace.disagreements:
        differences = ", ".join(
            f"{name} {by_join} by the join and {by_agents} by the agents"
            for name, (by_join, by_agents) in trace.disagreements.items()
        )
        # A message that was never sent counts for the agent that received it, and not for the join.
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


def content_checks(run: Evidence) -> Iterator[Check]:
    corrupted = run.counts["corrupted"] if run.trace is None else run.trace.corrupted
    is_unknown = corrupted is None and run.scenario.identity.content_hash
    # What agents received of their own is known all the same.
    known = run.totals.of_measured(CONSUMER, "corrupted") if is_unknown else corrupted
    if known:
        yield failing("content", f"{known} messages arrived with other content than sent")
    elif is_unknown:
        yield warning(
            "content",
            "agents received what others had sent, and cannot tell whether it is the same: use "
            "trace: all, or no more agents than destinations",
        )


def body_checks(run: Evidence) -> Iterator[Check]:
    """Messages that arrived and are not those that were sent."""
    malformed, unexpected = run.count("malformed"), run.count("unexpected")
    if malformed and run.scenario.only_consumes:
        yield warning(
            "bodies",
            f"{malformed} of {run.count('received')} messages do not say when they were sent, in "
            "the way of message.timestamped, or say a time that cannot be: they have no latency",
        )
    elif malformed:
        yield warning(
            "bodies",
            f"{malformed} messages arrived that no producer of this run can have sent as they are: "
            "too short, or with other numbers or times",
        )
    if unexpected and run.trace is None:
        yield warning("unexpected", f"{unexpected} messages arrived that nobody here had sent")


def _sent(accounts: Accounts) -> str:
    times = f" x {accounts.copies}" if accounts.copies > 1 else ""
    return f"{accounts.sent}{times}"
