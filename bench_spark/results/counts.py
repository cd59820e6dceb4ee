"""How many messages a run sent, received, lost, how fast, and which ticks count.

Counts are about messages of the measured phase whenever they arrived, and so is the rate at which
they were sent. The rate of receiving is about the seconds of the measured phase whatever they
brought: what was left of the warm-up counts, and what the drain brings does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench_spark.agent.sampler import SAMPLE_DTYPE, seconds_of
from bench_spark.agent.timeline import CONSUMER, MEASURE, PRODUCER
from bench_spark.core.throughput import throughput, throughput_of_all
from bench_spark.plan import has_open_end, mean_rate_per_second
from bench_spark.results.facts import RunFacts
from bench_spark.results.totals import Tick, TickTotals

if TYPE_CHECKING:
    from bench_spark.driver.accounts import Accounts, AgentSamples

_SENDING_COUNTS = ("due", "unsent", "sent", "refused", "returned", "bytes_sent", "late")
_RECEIVING_COUNTS = (
    *("received", "acked", "redelivered", "out_of_order", "corrupted", "malformed", "foreign"),
    *("bytes_received", "unexpected", "repeats_dropped"),
)
_JUDGED_BY_ENVELOPE = ("out_of_order", "foreign", "unexpected")
"""Counts that a run which takes messages of any origin cannot make; nor `malformed`, unless these
are to say when they were sent."""

Counts = dict[str, int | None]
Rates = dict[str, float | None]


def completed_accounts(totals: TickTotals, facts: RunFacts) -> Accounts | None:
    """As the agents reported them; where one was killed, with what its events say."""
    accounts = facts.messages.accounts
    if accounts is None or accounts.is_reported:
        return accounts
    from bench_spark.driver.accounts import completed

    return completed(
        accounts,
        sent=totals.of_measured(PRODUCER, "sent"),
        received=totals.of_measured(CONSUMER, "received"),
        duplicates=totals.of_measured(CONSUMER, "duplicates"),
    )


def counts_of(totals: TickTotals, facts: RunFacts) -> Counts:
    measured, in_all = totals.of_measured, totals.of_all
    due, sent = measured(PRODUCER, "due"), measured(PRODUCER, "sent")
    received = measured(CONSUMER, "received")
    counts: Counts = {
        "due": due,
        "unsent": max(0, due - sent),
        "sent": sent,
        "confirmed": measured(PRODUCER, "confirmed") if facts.messages.confirms else None,
        "unconfirmed": _unconfirmed(totals) if facts.messages.confirms else None,
        "refused": measured(PRODUCER, "refused"),
        "returned": measured(PRODUCER, "returned"),
        "received": received,
        "acked": _acked(totals),
        "redelivered": measured(CONSUMER, "redelivered"),
        "out_of_order": measured(CONSUMER, "out_of_order"),
        "corrupted": _corrupted(totals, facts),
        "malformed": in_all(CONSUMER, "malformed"),
        "foreign": in_all(CONSUMER, "foreign"),
        "errors": in_all(PRODUCER, "errors") + in_all(CONSUMER, "errors"),
        "reconnects": in_all(PRODUCER, "reconnects") + in_all(CONSUMER, "reconnects"),
        "bytes_sent": measured(PRODUCER, "bytes"),
        "bytes_received": measured(CONSUMER, "bytes"),
        "unexpected": in_all(CONSUMER, "unexpected"),
        "repeats_dropped": in_all(CONSUMER, "repeats_dropped"),
        "given_up": measured(PRODUCER, "given_up") if _waits(facts) else None,
        "late": sent - totals.of_measured_in_window(PRODUCER, "sent"),
    }
    accounts = facts.messages.accounts
    if accounts is None:
        scenario = facts.plan.scenario
        absent = [] if scenario.has_both_ends else ["received_once"]
        absent += _RECEIVING_COUNTS if scenario.only_publishes else ()
        absent += _SENDING_COUNTS + _JUDGED_BY_ENVELOPE if scenario.only_consumes else ()
        if scenario.only_consumes and not scenario.message.timestamped:
            absent.append("malformed")
        unknown = ("duplicates", "left_in_broker", "lost", "indeterminate", *absent)
        return counts | {"received_once": received} | dict.fromkeys(unknown)
    # What the agents took for messages of the run, and the driver found that it was never sent.
    not_sent = min(accounts.unexpected, max(0, received - accounts.received_once))
    received -= not_sent
    return counts | {
        "received": received,
        # A number that was never sent has moved the highest seen: what came after it seems late.
        "out_of_order": None if accounts.unexpected else counts["out_of_order"],
        "unexpected": in_all(CONSUMER, "unexpected") + accounts.unexpected,
        "received_once": accounts.received_once,
        # Fewer than were received once: only where bodies were forged; the audit says so.
        "duplicates": max(0, received - accounts.received_once),
        "left_in_broker": accounts.left_in_broker,
        "lost": accounts.lost,
        "indeterminate": accounts.indeterminate,
    }


def _acked(totals: TickTotals) -> int:
    """Of messages of the measured phase. Events count acknowledgements in the second in which they
    are sent; messages are acknowledged in the order in which they came, so those of the warm-up are
    the first."""
    received, received_in_all = (
        count(CONSUMER, "received") for count in (totals.of_measured, totals.of_all)
    )
    of_warmup = received_in_all - received
    return min(received, max(0, totals.of_all(CONSUMER, "acked") - of_warmup))


def _waits(facts: RunFacts) -> bool:
    return facts.plan.scenario.load.mode == "request"


def _corrupted(totals: TickTotals, facts: RunFacts) -> int | None:
    """Known where the agent that received a message had sent it, or where all were joined."""
    if not facts.plan.scenario.identity.content_hash:
        return None
    if facts.messages.trace is not None:
        return facts.messages.trace.joined.total("corrupted")
    return totals.of_measured(CONSUMER, "corrupted") if facts.plan.is_paired else None


def _unconfirmed(totals: TickTotals) -> int:
    """Sent, and the broker has said neither yes nor no."""
    measured = totals.of_measured
    answered = sum(measured(PRODUCER, name) for name in ("confirmed", "refused", "returned"))
    return max(0, measured(PRODUCER, "sent") - answered)


MOST_LATE = 0.01
"""Share of the messages due that may be sent after the measured phase, or not at all."""
LATE_AT_THE_END_SECONDS = 0.1
"""What is due in so short a time may be late in any run: of a short phase that is a larger share,
and a busy machine makes such pauses."""


def is_late(due: int, in_time: int, measured_seconds: float, agents: int) -> bool:
    """Whether fewer messages were sent within the measured phase than a schedule that was kept has;
    the last one of each agent may always be late."""
    share = max(MOST_LATE, LATE_AT_THE_END_SECONDS / (measured_seconds or 1.0))
    return due - in_time > max(1, agents, share * due)


def rates_of(totals: TickTotals, facts: RunFacts) -> Rates:
    scenario, seconds = facts.plan.scenario, facts.measured_seconds
    if facts.messages.counted is not None:
        sent, received = facts.messages.counted
        sent_per_second = per_second(sent, seconds)
    else:
        sent_per_second = _sent_as_asked(totals.of_measured(PRODUCER, "sent"), facts)
        received = totals.of_window(CONSUMER, "received")
    return {
        "send_rate": None if scenario.only_consumes else sent_per_second,
        "receive_rate": None if scenario.only_publishes else per_second(received, seconds),
    }


def _sent_as_asked(sent: int, facts: RunFacts) -> float:
    """Messages per second, and never more than the schedule asked for.

    Where bodies carry only the time of sending, what the warm-up was late with belongs to the
    measured phase. And 1.55 s have 16 messages of 10 a second, which is one more than the rate.
    """
    scenario, planned = facts.plan.scenario, facts.plan.expected_messages
    if planned is None or not scenario.is_paced:
        return per_second(sent, facts.measured_seconds)
    sent_per_second = per_second(min(sent, planned), facts.measured_seconds)
    was_cut_short = facts.ended_early or bool(facts.end.failures)
    if scenario.dataset.is_recorded or (scenario.load.steps and was_cut_short):
        return sent_per_second
    return min(sent_per_second, mean_rate_per_second(scenario))


def quotients_of(counts: Counts, facts: RunFacts) -> Rates:
    """The rates of the metrics specification: counts divided by the length of the phase."""
    counted = {"send_rate": counts["sent"], "receive_rate": counts["received"]}
    return {
        name: None if count is None else per_second(count, facts.measured_seconds)
        for name, count in counted.items()
    }


def per_second(messages: int, seconds: float) -> float:
    return messages / seconds if seconds else 0.0


def expected_deliveries(facts: RunFacts, counts: Counts) -> int | None:
    """Deliveries the load asked for; those of what was sent where the load finds its own speed, or
    where the warm-up left more to send; None where it is to receive whatever is there."""
    planned = facts.plan.expected_deliveries
    if facts.plan.scenario.only_consumes:
        return planned
    of_sent = (counts["sent"] or 0) * facts.plan.copies
    return of_sent if planned is None or facts.ended_early else max(planned, of_sent)


def delivered_share(facts: RunFacts, counts: Counts, expected: int | None) -> float | None:
    """Never above 1: repeats are no deliveries, also where they cannot be told apart."""
    if not expected or not facts.plan.scenario.has_both_ends:
        return None
    return min(1.0, (counts["received_once"] or 0) / expected)


def never_seen(counts: Counts, facts: RunFacts, round_trips: int) -> dict[str, int]:
    """Messages that belong to a measure but have no value in it. `round_trips`: how many have
    one."""
    # Given up, or still waited for at the end.
    unanswered = max(0, (counts["sent"] or 0) - round_trips) if _waits(facts) else 0
    accounts = facts.messages.accounts
    if accounts is None:
        return {"round_trip": unanswered}
    on_their_way = accounts.left_in_broker + accounts.indeterminate
    unsent = (counts["unsent"] or 0) * facts.plan.copies
    return {
        "latency": on_their_way,
        "delivery_latency": on_their_way + unsent,
        "round_trip": unanswered,
    }


_EDGE_SECONDS = 2e-6
"""How far apart the start of a tick and that of its phase may seem: tables cut to microseconds,
and seconds since the epoch are exact to a quarter of one."""


def in_window(tick: Tick, facts: RunFacts) -> bool:
    if facts.measured_from is None or facts.measured_until is None:
        return False
    scenario = facts.plan.scenario
    if not scenario.has_both_ends and has_open_end(scenario):
        # Such a phase lasts from the first message to the last, whatever ticks they were in.
        return tick.phase == MEASURE
    return facts.measured_from <= tick.start_seconds + _EDGE_SECONDS < facts.measured_until


def interval_of(start_seconds: float, facts: RunFacts) -> int | None:
    """Which interval of the measured phase a tick with its messages belongs to; None if the load
    never started. What arrives after the phase belongs to the last interval."""
    if facts.measured_from is None:
        return None
    since = max(0.0, start_seconds - facts.measured_from + _EDGE_SECONDS)
    interval = int(since // facts.plan.scenario.interval_seconds)
    return min(interval, intervals_of(facts) - 1)


def intervals_of(facts: RunFacts) -> int:
    """How many intervals the measured phase has: at least one, and a rest that is shorter than half
    of one is part of the last."""
    length = facts.plan.scenario.interval_seconds
    whole, rest = divmod(facts.measured_seconds + _EDGE_SECONDS, length)
    return max(1, int(whole) + (1 if rest >= length / 2 else 0))


def throughput_section(pairs: int, found: Sequence[AgentSamples] | None) -> dict[str, Any] | None:
    """Sums over all pairs, and each pair on its own; None where nothing was to be sampled."""
    if found is None:
        return None
    samples = np.concatenate([np.zeros(0, SAMPLE_DTYPE), *(one.samples for one in found)])
    samples = samples[np.argsort(samples["pair"], kind="stable")]
    per_second = samples["messages"] / seconds_of(samples)
    edges = np.searchsorted(samples["pair"], np.arange(pairs + 1))
    of_pairs = [
        throughput(per_second[start:end])
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return {
        **throughput_of_all(of_pairs).as_dict(),
        "pairs": [{"pair": pair, **figures.as_dict()} for pair, figures in enumerate(of_pairs)],
    }
