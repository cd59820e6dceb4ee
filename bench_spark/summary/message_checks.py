"""Checks of what became of the messages: accounted for, lost, joined by ID, with their content."""

from __future__ import annotations

from collections.abc import Iterator

from bench_spark.collector.accounts import Accounts
from bench_spark.summary.checks import AuditInput, Check


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
        yield Check(
            "accounts", "warn", "bodies below 32 bytes carry no sequence: losses are not counted"
        )
        return
    if not accounts.closes or run.received < accounts.received_once:
        yield Check(
            "accounts",
            "fail",
            f"{_sent(accounts)} sent, but {accounts.settled} accounted for",
        )
    elif accounts.indeterminate:
        yield Check("accounts", "warn", f"the fate of {accounts.indeterminate} messages is unknown")
    else:
        yield Check("accounts", "pass", f"all {_sent(accounts)} messages sent are accounted for")
    if accounts.lost and run.lost_is_explained_by:
        yield Check(
            "loss", "warn", f"{accounts.lost} messages lost, as {run.lost_is_explained_by} allows"
        )
    elif accounts.lost:
        kind = "confirmed messages" if run.confirms else "messages"
        yield Check(
            "loss", "fail", f"{accounts.lost} {kind} lost, and no declared limit explains it"
        )
    if accounts.left_in_broker:
        yield Check(
            "drain",
            "warn",
            f"{accounts.left_in_broker} messages were still in the broker when the drain ended",
        )


def _publishing(run: AuditInput) -> Iterator[Check]:
    """Nobody receives: what the broker confirmed is all that is known."""
    if not run.sent:
        return
    if run.unconfirmed is None:
        yield Check(
            "accounts",
            "warn",
            "nobody receives and the broker confirms nothing: what became of the messages is "
            "unknown",
        )
    elif run.unconfirmed:
        yield Check(
            "accounts",
            "warn",
            f"{run.unconfirmed} of {run.sent} messages had no answer when the drain ended",
        )
    else:
        yield Check("accounts", "pass", f"all {run.sent} messages sent have the broker's answer")


def _consuming(run: AuditInput) -> Iterator[Check]:
    """Nobody sends: there is no telling what should have arrived, unless a number was asked for."""
    if run.asked_for is not None and run.received < run.asked_for:
        yield Check(
            "accounts",
            "warn",
            f"only {run.received} of the {run.asked_for} messages asked for were received",
        )
    elif not run.received:
        yield Check("accounts", "warn", "nothing was received")


def trace_checks(run: AuditInput) -> Iterator[Check]:
    trace = run.trace
    if trace is None:
        return
    if trace.disagreements:
        told = ", ".join(
            f"{name} {by_join} by the join and {by_agents} by the agents"
            for name, (by_join, by_agents) in trace.disagreements.items()
        )
        # A message that nobody sent counts for the agent that received it, and not for the join.
        is_explained = all(
            abs(by_join - by_agents) <= trace.unexpected
            for by_join, by_agents in trace.disagreements.values()
        )
        yield Check("trace", "warn" if is_explained else "fail", f"messages and counts: {told}")
    else:
        yield Check("trace", "pass", f"{trace.messages} messages, joined by ID, agree with counts")
    if trace.unexpected:
        yield Check(
            "unexpected", "warn", f"{trace.unexpected} messages arrived that nobody here had sent"
        )


def content_checks(run: AuditInput) -> Iterator[Check]:
    corrupted = run.corrupted if run.trace is None else run.trace.corrupted
    if corrupted:
        yield Check("content", "fail", f"{corrupted} messages arrived with other content than sent")


def _sent(accounts: Accounts) -> str:
    times = f" x {accounts.copies}" if accounts.copies > 1 else ""
    return f"{accounts.sent}{times}"
