"""How many messages a run sent, received, lost, and how fast.

Counts are about messages of the measured phase whenever they arrived; rates are about the seconds
of the measured phase whatever they carried.
"""

from __future__ import annotations

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.collector.accounts import Accounts, completed
from bench_spark.summary.facts import RunFacts
from bench_spark.summary.totals import TickTotals

_SENDING_COUNTS = ("due", "unsent", "sent", "refused", "returned", "bytes_sent")
_RECEIVING_COUNTS = (
    "received",
    "acked",
    "redelivered",
    "out_of_order",
    "corrupted",
    "malformed",
    "foreign",
    "bytes_received",
)
_JUDGED_BY_ENVELOPE = ("out_of_order", "malformed", "foreign")
"""Counts that a run which takes messages of any origin cannot make."""

Counts = dict[str, int | None]
Rates = dict[str, float | None]


def completed_accounts(totals: TickTotals, facts: RunFacts) -> Accounts | None:
    """As the agents reported them; where one was killed, with what its events say."""
    accounts = facts.accounts
    if accounts is None or accounts.is_reported:
        return accounts
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
        "confirmed": measured(PRODUCER, "confirmed") if facts.confirms else None,
        "unconfirmed": _unconfirmed(totals) if facts.confirms else None,
        "refused": measured(PRODUCER, "refused"),
        "returned": measured(PRODUCER, "returned"),
        "received": received,
        "acked": measured(CONSUMER, "acked"),
        "redelivered": measured(CONSUMER, "redelivered"),
        "out_of_order": measured(CONSUMER, "out_of_order"),
        "corrupted": _corrupted(totals, facts),
        "malformed": in_all(CONSUMER, "malformed"),
        "foreign": in_all(CONSUMER, "foreign"),
        "errors": in_all(PRODUCER, "errors") + in_all(CONSUMER, "errors"),
        "reconnects": in_all(PRODUCER, "reconnects") + in_all(CONSUMER, "reconnects"),
        "bytes_sent": measured(PRODUCER, "bytes"),
        "bytes_received": measured(CONSUMER, "bytes"),
    }
    accounts = facts.accounts
    if accounts is None:
        scenario = facts.plan.scenario
        absent = [] if scenario.has_both_ends else ["received_once"]
        absent += _RECEIVING_COUNTS if scenario.only_publishes else ()
        absent += _SENDING_COUNTS + _JUDGED_BY_ENVELOPE if scenario.only_consumes else ()
        unknown = ("duplicates", "left_in_broker", "lost", "indeterminate", *absent)
        return counts | {"received_once": received} | dict.fromkeys(unknown)
    return counts | {
        "received_once": accounts.received_once,
        "duplicates": received - accounts.received_once,
        "left_in_broker": accounts.left_in_broker,
        "lost": accounts.lost,
        "indeterminate": accounts.indeterminate,
    }


def _corrupted(totals: TickTotals, facts: RunFacts) -> int | None:
    """Known where whoever received a message had also sent it, or where all were joined."""
    if not facts.plan.scenario.identity.content_hash:
        return None
    if facts.trace is not None:
        return facts.trace.joined.total("corrupted")
    return totals.of_measured(CONSUMER, "corrupted") if facts.plan.is_paired else None


def _unconfirmed(totals: TickTotals) -> int:
    """Sent, and the broker has said neither yes nor no."""
    measured = totals.of_measured
    answered = sum(measured(PRODUCER, name) for name in ("confirmed", "refused", "returned"))
    return max(0, measured(PRODUCER, "sent") - answered)


def rates_of(totals: TickTotals, facts: RunFacts) -> Rates:
    scenario, seconds = facts.plan.scenario, facts.measured_seconds
    if facts.counted is not None:
        sent, received = facts.counted
    else:
        sent = totals.of_window(PRODUCER, "sent")
        received = totals.of_window(CONSUMER, "received")
    return {
        "send_rate": None if scenario.only_consumes else per_second(sent, seconds),
        "receive_rate": None if scenario.only_publishes else per_second(received, seconds),
    }


def per_second(messages: int, seconds: float) -> float:
    return messages / seconds if seconds else 0.0


def expected_deliveries(facts: RunFacts, counts: Counts) -> int | None:
    """Deliveries the load asked for; those of what was sent where the load finds its own speed;
    None where it is to receive whatever is there."""
    planned = facts.plan.expected_deliveries
    if facts.plan.scenario.only_consumes:
        return planned
    if planned is None or facts.ended_early:
        return (counts["sent"] or 0) * facts.plan.copies
    return planned


def never_seen(counts: Counts, facts: RunFacts) -> dict[str, int]:
    """Messages that belong to a measure but have no value in it."""
    accounts = facts.accounts
    if accounts is None:
        return {}
    on_their_way = accounts.left_in_broker + accounts.indeterminate
    unsent = (counts["unsent"] or 0) * facts.plan.copies
    return {"latency": on_their_way, "delivery_latency": on_their_way + unsent}
