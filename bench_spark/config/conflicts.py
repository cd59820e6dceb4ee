"""Which keys of a scenario do not go together.

Each conflict names the keys it is about, the key to change first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bench_spark.config.fields import Conflict
from bench_spark.config.sections import IN_BODY, OFF, Load, Message, size_conflicts
from bench_spark.config.topologies import Sizes, size_problem
from bench_spark.core.envelope import ENVELOPE_BYTES, ID_BYTES

if TYPE_CHECKING:
    from bench_spark.config.models import Scenario


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


_LONGEST_OPENING_SECONDS = 500
_NEEDS_BOUND = (
    "needs a bound: load.messages, x-max-length or x-max-length-bytes in amqp.queue.arguments, or "
    "retention.bytes in kafka.topic.properties"
)


def conflicts_of(scenario: Scenario) -> list[Conflict]:
    if not scenario.producers and not scenario.consumers:
        problem = "0, and so are producers: nobody would send or receive"
        return [Conflict(("consumers", "producers"), problem)]
    return [
        *_end_conflicts(scenario),
        *_topology_conflicts(scenario),
        *_opening_conflicts(scenario),
        *_destination_conflicts(scenario),
        *_name_conflicts(scenario),
        *_placement_conflicts(scenario),
        *_one_ended_conflicts(scenario),
        *_step_conflicts(scenario),
        *_transaction_conflicts(scenario),
        *_sampling_conflicts(scenario),
        *_filling_conflicts(scenario),
        *_trace_conflicts(scenario),
        *data_conflicts(scenario),
    ]


def _end_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if not scenario.has_ends_apart:
        return
    key = "ingress" if scenario.ingress else "egress"
    if not scenario.has_both_ends:
        role = _absent_role(scenario)
        yield Conflict((role, key), f"0, but {key} is for messages that come out again")
        return
    if scenario.topology is not None:
        yield Conflict(
            ("topology", key),
            f"{scenario.topology} does not go with {key}: the system between the ends decides who "
            "gets what, and every message is to come out once",
        )
    if scenario.metrics_by == "destination":
        yield Conflict(
            ("metrics_by", key),
            f"destination does not go with {key}: a message may come out of any destination",
        )
    yield from size_conflicts(
        "ingress", "producers", scenario.ingress, scenario.producers, scenario.destinations
    )
    yield from size_conflicts(
        "egress", "consumers", scenario.egress, scenario.consumers, scenario.destinations
    )


def _topology_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.subscriptions_per_consumer > 1 and scenario.topology != "fan-out":
        yield Conflict(
            ("subscriptions_per_consumer", "topology"),
            f"{scenario.subscriptions_per_consumer} needs topology fan-out, in which every "
            "subscription gets a copy of each message",
        )
    if scenario.topology is None:
        if scenario.topology_scale != 1:
            problem = f"{scenario.topology_scale:g} scales the sizes of a topology; there is none"
            yield Conflict(("topology_scale", "topology"), problem)
        return
    sizes = Sizes(scenario.producers, scenario.consumers, scenario.destinations)
    wrong = size_problem(scenario.topology, sizes)
    if wrong is not None:
        yield Conflict((wrong[0], "topology"), wrong[1])
    if scenario.load.most_awaited and scenario.topology == "fan-out":
        yield Conflict(
            ("load.mode", "topology"),
            f"{scenario.load.mode} does not go with topology fan-out: a message gives its place "
            "back by arriving, and here each arrives many times",
        )
    if scenario.metrics_by == "destination" and not scenario.wiring.is_plain:
        yield Conflict(
            ("metrics_by", "topology"),
            f"destination does not go with topology {scenario.topology}: consumers receive from "
            "several destinations at once",
        )


def _opening_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.connections_per_second is None:
        return
    taking = (scenario.producers + scenario.consumers) / scenario.connections_per_second
    if taking > _LONGEST_OPENING_SECONDS:
        yield Conflict(
            ("connections_per_second", "producers", "consumers"),
            f"{scenario.connections_per_second:g} is too slow: opening "
            f"{scenario.producers + scenario.consumers} connections would take {taking:.0f} s; "
            f"allowed: {_LONGEST_OPENING_SECONDS} s",
        )


def _destination_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    """Where no topology has its own rules, and no end."""
    if scenario.has_ends_apart:
        return
    if scenario.has_both_ends:
        ends = min(scenario.producers, scenario.consumers)
        need = "a producer and a consumer"
    else:
        ends = scenario.producers + scenario.consumers
        need = "a producer" if scenario.only_publishes else "a consumer"
    if scenario.topology is None and scenario.destinations > ends:
        yield Conflict(
            ("destinations", "producers", "consumers"),
            f"{scenario.destinations} is too many: each needs {need}, and "
            f"there are {scenario.producers} and {scenario.consumers}",
        )


def _name_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.has_ends_apart:
        return  # each end has names of its own: see `ends.py`
    queues = scenario.wiring.subscriptions
    for key, name, count, what in (
        ("amqp.queue.name", scenario.amqp.queue.name, queues, "queues"),
        ("kafka.topic.name", scenario.kafka.topic.name, scenario.destinations, "destinations"),
        ("mqtt.topic", scenario.mqtt.topic, scenario.destinations, "destinations"),
        ("mqtt.topic_filter", scenario.mqtt.topic_filter, scenario.destinations, "destinations"),
    ):
        if name is not None and "%d" not in name and count > 1:
            what = "destinations" if scenario.wiring.is_plain else what
            yield Conflict(
                (key, "destinations"),
                f"one name for {count} {what}; put %d where the {what[:-1]}'s number goes",
            )


def _step_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    for key, steps in (
        ("load.steps", scenario.load.steps),
        ("message.steps", scenario.message.steps),
    ):
        lasting = sum(step.seconds for step in steps)
        if lasting > scenario.phases.measure_seconds:
            yield Conflict(
                (key, "phases.measure_seconds"),
                f"last {lasting:g} s, which is more than phases.measure_seconds: "
                f"{scenario.phases.measure_seconds:g}",
            )
    if scenario.message.steps and scenario.only_consumes:
        yield Conflict(
            ("message.steps", "producers"), "say what is sent, but there are no producers"
        )


def _transaction_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    """A load that waits for messages inside transactions that wait for more of them."""
    messages = scenario.amqp.producer_transaction
    awaited = scenario.load.most_awaited
    if awaited is not None and awaited < messages:
        is_window = scenario.load.mode == "window"
        what = f"{awaited}" if is_window else "request, and so one message of each producer,"
        yield Conflict(
            ("load.in_flight" if is_window else "load.mode", "amqp.producer_transaction"),
            f"{what} is below amqp.producer_transaction, which is {messages}: nothing would "
            "ever be committed",
        )
    limit = scenario.load.backlog_limit_bytes // scenario.message.largest_bytes
    together = messages * scenario.producers
    if scenario.load.mode == "maximum" and messages and limit < together:
        yield Conflict(
            ("load.backlog_limit_bytes", "amqp.producer_transaction", "producers"),
            f"{scenario.load.backlog_limit_bytes} is less than the {together} messages of "
            f"{scenario.message.largest_bytes} bytes in the transactions of all producers",
        )


def _sampling_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if not scenario.sampling.samples:
        return
    if scenario.load.has_schedule:
        yield Conflict(
            ("sampling.samples", "load.mode"),
            f"needs load.mode window or maximum: in mode {scenario.load.mode} the throughput is "
            "what was asked for",
        )
    if scenario.load.messages is not None:
        yield Conflict(
            ("sampling.samples", "load.messages"),
            "excludes load.messages: both would end the measured phase",
        )
    if not scenario.has_both_ends:
        role = _absent_role(scenario)
        yield Conflict(
            ("sampling.samples", role), f"needs both ends of a destination, but {role} is 0"
        )
    if scenario.placement == "split":
        yield Conflict(
            ("sampling.samples", "placement"),
            "needs placement paired: whoever samples also ends the load",
        )
    if scenario.load.mode == "maximum" and scenario.sampling.skip_windows is not None:
        yield Conflict(
            ("sampling.skip_windows", "load.mode"),
            "counts windows, which load.mode maximum has none of; phases.warmup_seconds is "
            "what is skipped there",
        )


def _filling_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.load.prefill and scenario.load.mode != "window":
        yield Conflict(
            ("load.prefill", "load.mode"),
            f"needs load.mode window: mode {scenario.load.mode} has no window to fill",
        )


def _trace_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.trace == OFF:
        return
    if scenario.only_consumes:
        problem = f"{scenario.trace} needs producers: messages of others have no ID"
        yield Conflict(("trace", "producers"), problem)
    if scenario.has_envelopes and scenario.message.bytes < ENVELOPE_BYTES:
        yield Conflict(
            ("trace", "message.bytes"),
            f"{scenario.trace} needs message.bytes of at least {ENVELOPE_BYTES}: smaller bodies "
            "carry no number",
        )


def _placement_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.placement != "split":
        return
    if not scenario.has_both_ends:
        role = _absent_role(scenario)
        problem = f"split parts both ends, but {role} is 0; use paired"
        yield Conflict(("placement", role), problem)
    if scenario.agents == 1:
        yield Conflict(("placement", "agents"), "split needs agents of at least 2, not 1")
    if scenario.load.mode == "window":
        yield Conflict(
            ("load.mode", "placement"),
            "window needs placement paired: its credit stays inside one task",
        )
    # Backlog is sent minus received, which only a task that has both ends can know.
    if scenario.has_both_ends and _is_unbounded_maximum(scenario):
        problem = f"maximum with placement split {_NEEDS_BOUND}"
        yield Conflict(("load.mode", "placement"), problem)


def _one_ended_conflicts(scenario: Scenario) -> Iterator[Conflict]:
    if scenario.message.timestamped and scenario.producers:
        problem = "is for runs without producers: messages of our own always are"
        yield Conflict(("message.timestamped", "producers"), problem)
        return
    if scenario.has_both_ends:
        return
    role = _absent_role(scenario)
    if scenario.only_publishes and scenario.consumer.is_slow:
        yield Conflict(("consumer", "consumers"), "slows consumers down, but there are none")
    elif scenario.load.most_awaited:
        yield Conflict(
            ("load.mode", role),
            f"{scenario.load.mode} needs both ends, but {role} is 0: a message gives its place "
            "back by arriving",
        )
    elif scenario.only_publishes and _is_unbounded_maximum(scenario):
        yield Conflict(("load.mode", role), f"maximum without consumers {_NEEDS_BOUND}")


def _absent_role(scenario: Scenario) -> str:
    """The key of the end that a run with one end lacks."""
    return "consumers" if scenario.only_publishes else "producers"


def _is_unbounded_maximum(scenario: Scenario) -> bool:
    """Nothing stops it: neither a number of messages nor the destination itself."""
    is_bounded = scenario.load.messages is not None or _limits_length(scenario)
    return scenario.load.mode == "maximum" and not is_bounded


def _limits_length(scenario: Scenario) -> bool:
    return (
        not scenario.amqp.queue.arguments.keys().isdisjoint(("x-max-length", "x-max-length-bytes"))
        or "retention.bytes" in scenario.kafka.topic.properties
    )
