"""What the sections `dataset` and `identity` do not go together with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench_spark.core.identity import ID_BYTES
from bench_spark.scenario.fields import Conflict
from bench_spark.scenario.identity_section import IN_BODY
from bench_spark.scenario.load_sections import Load, Message

if TYPE_CHECKING:
    from bench_spark.scenario.models import Scenario


def data_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.dataset.is_set:
        yield from _dataset_conflicts(scenario)
    if scenario.dataset.is_set and not scenario.dataset.repeat:
        yield from _once_conflicts(scenario)
    if scenario.dataset.is_recorded:
        yield from _replay_conflicts(scenario)
    if scenario.has_envelopes:
        for name in ("find", "content_hash"):
            if getattr(scenario.identity, name) and scenario.identity.carrier is None:
                problem = "needs a data set, or identity.carrier: messages have envelopes otherwise"
                yield Conflict((f"identity.{name}", "identity.carrier"), problem)
    else:
        yield from _carrier_conflicts(scenario)


def _dataset_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.only_consumes:
        yield Conflict(("dataset", "producers"), "says what is sent, but there are no producers")
    if scenario.has_envelopes:
        yield Conflict(
            ("identity.carrier", "dataset"),
            "envelope does not go with a data set: it would overwrite the records",
        )
    # A scenario that has been read knows the sizes of its records, and says them there.
    made = ("steps", "padding") if scenario.dataset.found.records else ("bytes", "steps", "padding")
    for name in made:
        if getattr(scenario.message, name) != Message.model_fields[name].get_default(
            call_default_factory=True
        ):
            yield Conflict(
                (f"message.{name}", "dataset"), "says how bodies are made, but there is a data set"
            )
    if scenario.carrier == "key" and scenario.dataset.columns.key is not None:
        yield Conflict(
            ("identity.carrier", "dataset.columns.key"),
            "key does not go with keys from the data set: a message has one",
        )


def _once_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    each_once = "false sends each record once"
    if scenario.phases.warmup_seconds:
        yield Conflict(
            ("dataset.repeat", "phases.warmup_seconds"),
            f"{each_once}, and those of the warm-up would not be measured; use "
            "phases.warmup_seconds: 0",
        )
    if scenario.load.mode == "window":
        yield Conflict(
            ("dataset.repeat", "load.mode"),
            f"{each_once}, which needs load.mode rate or maximum: windows are not dealt evenly",
        )
    if scenario.load.scope == "per_agent":
        yield Conflict(
            ("dataset.repeat", "load.scope"), f"{each_once}, by all agents together; use total"
        )
    if scenario.sampling.samples or scenario.load.steps:
        key = "sampling.samples" if scenario.sampling.samples else "load.steps"
        yield Conflict(("dataset.repeat", key), f"{each_once}, but {key} ends the run otherwise")
    if scenario.load.messages is not None and not scenario.dataset.found.records:
        problem = f"{each_once}: load.messages is then their number"
        yield Conflict(("dataset.repeat", "load.messages"), problem)


def _replay_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    key, load = "dataset.columns.interval", scenario.load
    if load.mode != "rate":
        yield Conflict((key, "load.mode"), f"is a schedule, which load.mode {load.mode} has not")
    if load.steps or load.messages is not None:
        other = "load.steps" if load.steps else "load.messages"
        yield Conflict((key, other), f"excludes {other}: the data says when messages are due")
    default = Load.model_fields["rate_per_second"].default
    if load.rate_per_second != default and not scenario.dataset.found.records:
        yield Conflict(
            (key, "load.rate_per_second"),
            "excludes load.rate_per_second: the rate is the recorded one; dataset.replay.speed "
            "scales it",
        )


def _carrier_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    carrier = scenario.carrier
    if scenario.only_consumes:
        yield Conflict(
            ("identity.carrier", "producers"),
            f"{carrier} is for messages of this run, but there are no producers",
        )
    if scenario.dataset.is_set:
        return
    if carrier == "regex":
        yield Conflict(
            ("identity.carrier", "dataset"), "regex needs a data set whose records it matches"
        )
    if scenario.message.steps:
        yield Conflict(
            ("message.steps", "identity.carrier"),
            f"need carrier envelope; {carrier} has bodies of one size, or of a data set",
        )
    if carrier in IN_BODY and scenario.message.bytes < ID_BYTES:
        yield Conflict(
            ("message.bytes", "identity.carrier"),
            f"{scenario.message.bytes} is below the {ID_BYTES} of the ID that carrier {carrier} "
            "puts in",
        )
