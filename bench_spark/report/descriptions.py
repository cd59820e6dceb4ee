"""What a result says in words: scenario, broker, environment, audit, objectives, resources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bench_spark.config.objectives import UNIT_OF_PATH
from bench_spark.config.problems import plural
from bench_spark.plan import Plan, has_open_end
from bench_spark.report.formatting import (
    Document,
    byte_size,
    count,
    duration,
    one_line,
    per_cent,
    rate,
    seconds,
    share,
    words,
)

_USER_INFO = re.compile(r"(?<=://)[^/]*@")

_RATE_SCOPES = {"total": "in all", "per_producer": "per producer", "per_agent": "per agent"}


def load_of(scenario: Mapping[str, Any]) -> str:
    """How much is sent, and what decides when."""
    load = scenario["load"]
    if not scenario["producers"]:
        text = "whatever is there, as fast as possible"
    elif load["mode"] in ("rate", "request"):
        # Runs stored before there were steps have none.
        rates = [step["rate_per_second"] for step in load.get("steps", ())]
        numbers = ", then ".join(map(rate, rates or [load["rate_per_second"]]))
        text = f"{numbers} msg/s {_RATE_SCOPES[load['scope']]}"
        if load["mode"] == "request":
            text += ", each producer waiting for its own message"
    elif load["mode"] == "window":
        text = f"closed loop of {plural(load['in_flight'], 'message')} per producer"
        # Runs stored before the key was renamed have `fill_first`.
        text += ", filled first" if load.get("prefill", load.get("fill_first")) else ""
    elif not scenario["consumers"]:
        text = "as fast as possible"
    else:
        text = f"as fast as possible, at most {byte_size(load['backlog_limit_bytes'])} on their way"
    if load["messages"] is not None:
        text += f", {count(load['messages'])} messages"
    return text


def end_of(plan: Plan) -> str | None:
    """What ends a measured phase of a length not known beforehand; None if it is known."""
    if not has_open_end(plan.scenario):
        return None
    if plan.scenario.sampling.samples:
        return f"until every pair has {plural(plan.scenario.sampling.samples, 'sample')}"
    did = "received" if plan.scenario.only_consumes else "sent"
    return f"until all messages are {did}"


def members_of(scenario: Mapping[str, Any]) -> str:
    """Who sends, who receives, over what."""
    agents = scenario["agents"]
    # Runs stored before there were topologies have none.
    topology = scenario.get("topology")
    return ", ".join(
        [
            *([topology] if topology else []),
            "as many agents as fit" if agents == "auto" else plural(agents, "agent"),
            plural(scenario["producers"], "producer") if scenario["producers"] else "no producer",
            plural(scenario["consumers"], "consumer") if scenario["consumers"] else "no consumer",
            plural(scenario["destinations"], "destination"),
        ]
    )


def clients_of(document: Mapping[str, Any]) -> str | None:
    """How many connections or clients stand for the members; None where each has its own."""
    # Runs stored before it was counted do not know.
    connections = document.get("connections") or {}
    scenario = document["scenario"]
    shared = {role: clients for role, clients in connections.items() if clients != scenario[role]}
    if not shared:
        return None
    return ", ".join(
        f"{plural(scenario[role], role[:-1])} over {plural(clients, 'client')}"
        for role, clients in shared.items()
    )


def scenario_of(scenario: Mapping[str, Any]) -> str:
    phases = scenario["phases"]
    samples = (scenario.get("sampling") or {}).get("samples")
    if samples:
        measured = f"measured for {plural(samples, 'sample')} per pair"
    elif scenario["load"]["messages"] is None:
        measured = f"{seconds(phases['measure_seconds'])} measured"
    else:
        measured = f"measured for {count(scenario['load']['messages'])} messages"
    return (
        f"{scenario['name']}: {members_of(scenario)}, {content_of(scenario)}; "
        f"{seconds(phases['warmup_seconds'])} warm-up, {measured}"
    )


def content_of(scenario: Mapping[str, Any]) -> str:
    """What goes through the broker; the size of what others have sent is not known."""
    load = load_of(scenario)
    if not scenario["producers"]:
        return load
    message = scenario["message"]
    # Runs stored before there were data sets have none.
    found = scenario.get("dataset", {}).get("found", {})
    if found.get("records"):
        records = plural(found["records"], "record")
        return f"{records}, {byte_size(message['bytes'])} on average, {load}"
    # Runs stored before there were steps have none.
    sizes = [step["bytes"] for step in message.get("steps", ())] or [message["bytes"]]
    return f"{', then '.join(map(byte_size, sizes))}, {load}"


def address_of(broker: Mapping[str, Any]) -> str:
    """Where the broker is, without the user."""
    address = broker.get("bootstrap_servers") or broker.get("uri") or "in memory"
    return one_line(_USER_INFO.sub("", address))


def brokers_of(document: Mapping[str, Any]) -> str:
    """The broker of a run, or all of them with what they are to it."""
    environment = document.get("environment") or {}
    # Runs stored before there could be several have one.
    brokers = document.get("brokers") or [document["broker"]]
    if len(brokers) == 1:
        return broker_of(document["broker"], environment)
    of_each = environment.get("brokers") or [None] * len(brokers)
    return "; ".join(
        f"{broker['role']} {broker_of(broker, {'broker': facts})}"
        for broker, facts in zip(brokers, of_each, strict=True)
    )


def broker_of(broker: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    facts = environment.get("broker") or {}
    product = " ".join(filter(None, (facts.get("product"), facts.get("version"))))
    return f"{broker['name']} ({address_of(broker)})" + (
        f", {one_line(product)}" if product else ""
    )


def environment_of(environment: Mapping[str, Any]) -> str:
    """The machines of the agents and the versions that matter for a comparison."""
    hosts = environment.get("hosts") or []
    parts = [_machine(hosts[0])] if hosts else []
    if len(hosts) > 1:
        parts = [f"{len(hosts)} hosts, the first with {parts[0]}"]
    client = (environment.get("broker") or {}).get("client_library")
    libraries = environment.get("libraries") or {}
    spark = libraries.get("pyspark")
    parts += [
        f"{name} {version}".strip()
        for name, version in (
            ("", client),
            ("Spark", spark),
            ("Python", environment.get("python")),
            ("Java", environment.get("java")),
        )
        if version
    ]
    return one_line(", ".join(parts)) or "not known"


def _machine(host: Mapping[str, Any]) -> str:
    memory = byte_size(host.get("memory_bytes"))
    return f"{plural(host.get('cores') or 0, 'core')} ({host.get('cpu')}), {memory} of memory"


TROUBLES = ("missing", "duplicates", "out_of_order", "corrupted", "unexpected")
"""What a look at every message may find."""


def trace_of(trace: Mapping[str, Any] | None) -> str | None:
    """The join of all messages in one line; None where there was none."""
    if not trace or not trace.get("joined"):
        return None
    found = [f"{words(name)} {count(trace[name])}" for name in TROUBLES if trace.get(name)]
    none = [words(name) for name in TROUBLES if trace.get(name) == 0]
    parts = [f"{count(trace['sent'])} joined by ID in {trace['join_seconds']:.1f} s", *found]
    return ", ".join(parts) + (f"; no {', '.join(none)}" if none else "")


def audit_findings(document: Document) -> Iterator[tuple[str, str, str]]:
    """Verdict, name and text of each check, the worst first."""
    checks = (document.get("audit") or {}).get("checks", [])
    # The reasons repeat the checks that failed; what else is among them comes from the agents.
    of_checks = {check["text"] for check in checks}
    for reason in document.get("reasons") or []:
        if reason not in of_checks:
            yield "fail", "run", reason
    for verdict in ("fail", "warn", "pass"):
        for check in checks:
            if check["verdict"] == verdict:
                yield verdict, check["name"], check["text"]


def objective_text(one: Document) -> str:
    """`p99 < 50ms: 12.3 ms`, and what else is to be said."""
    note = f" ({one['note']})" if one.get("note") else ""
    return f"{one['objective']}: {objective_value(one)}{note}"


def objective_value(one: Document) -> str:
    value, unit = one["value"], UNIT_OF_PATH[one["path"]]
    if value is None:
        return "unknown"
    if unit == "us":
        return duration(value)
    if unit == "per_second":
        return f"{rate(value)} msg/s"
    return share(value) if unit == "share" else count(round(value))


SHOWN_VALUES = 6
"""More are in the result document and in the table."""


def resource_lines(resources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, source in (resources.get("broker") or {}).items():
        yield "uses", f"{name}: {source_text(source)}"
    flow = resources.get("flow") or {}
    if flow.get("polls"):
        yield "flow", f"{flow['state']} ({share(flow['share'])} of {count(flow['polls'])} polls)"


def source_text(source: Mapping[str, Any]) -> str:
    parts = [*_cpu(source), *_sizes(source), *_values(source)]
    if not parts:
        return f"unknown ({source.get('problem') or 'nothing was read in the measured phase'})"
    return ", ".join(parts)


def _cpu(source: Mapping[str, Any]) -> Iterator[str]:
    user, system = (source.get(f"cpu_{kind}_share_of_machine") for kind in ("user", "system"))
    if user is not None and system is not None:
        cores = source["cpu_user_share_of_core"] + source["cpu_system_share_of_core"]
        yield (
            f"CPU {per_cent(user)} user + {per_cent(system)} system of the machine "
            f"({cores:.2f} cores)"
        )


def _sizes(source: Mapping[str, Any]) -> Iterator[str]:
    if source.get("rss_bytes_max") is not None:
        yield f"RSS {byte_size(source['rss_bytes_max'])}"
    written = source.get("written_bytes")
    device = source.get("device_written_bytes")
    if written is not None:
        yield f"written {byte_size(written)}"
    if device is not None:
        yield f"to disk {byte_size(device)}"


def _values(source: Mapping[str, Any]) -> Iterator[str]:
    values = source.get("values") or {}
    for name in list(values)[:SHOWN_VALUES]:
        yield f"{name} {_number(values[name]['mean'])}"
    if len(values) > SHOWN_VALUES:
        yield f"{len(values) - SHOWN_VALUES} more values"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
