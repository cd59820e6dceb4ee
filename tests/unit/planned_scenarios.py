"""Scenarios of any size, and the plans of those that can be planned."""

from __future__ import annotations

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from bench_spark.config.models import Scenario
from bench_spark.errors import ConfigurationError
from bench_spark.plan import Plan, make_plan


def scenario(**keys: Any) -> Scenario:
    return Scenario.model_validate(keys)


@st.composite
def scenarios(
    draw: st.DrawFn,
    placement: str | None = None,
    messages: st.SearchStrategy[int | None] = st.none() | st.integers(1, 10**12),  # noqa: B008
    fastest: float = 200_000,
) -> Scenario:
    """Scenarios of any size; few of them leave an agent idle."""
    producers, consumers = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    destinations = draw(st.integers(1, min(producers, consumers)))
    placement = placement or draw(st.sampled_from(["paired", "split"]))
    if placement == "split":
        agents = draw(st.integers(2, producers + consumers))
    else:
        agents = draw(st.integers(1, max(destinations, min(producers, consumers))))
    return scenario(
        agents=agents,
        producers=producers,
        consumers=consumers,
        destinations=destinations,
        placement=placement,
        load={
            "rate_per_second": draw(st.floats(0.5, fastest)),
            "scope": draw(st.sampled_from(["total", "per_producer"])),
            "messages": draw(messages),
        },
        phases={
            "warmup_seconds": draw(st.sampled_from([0, 0.25, 1, 5])),
            "measure_seconds": draw(st.sampled_from([0.5, 1, 10])),
        },
    )


def planned(asked: Scenario) -> Plan:
    """The plan; sizes that would leave an agent without work are not of interest."""
    try:
        return make_plan(asked, "run-1")
    except ConfigurationError as refusal:
        assume("without work" not in str(refusal))
        raise


@st.composite
def topologies(draw: st.DrawFn) -> Scenario:
    topology = draw(st.sampled_from(["fan-in", "fan-out", "straight-run", "round-robin"]))
    producers = draw(st.integers(1, 12))
    destinations = draw(st.integers(1, producers))
    consumers = draw(st.integers(1, destinations if topology == "fan-in" else 12))
    if topology == "straight-run":
        consumers = destinations = producers
    placement = draw(st.sampled_from(["paired", "split"]))
    fewest = 2 if placement == "split" else 1
    agents = draw(st.integers(fewest, max(fewest, min(producers, consumers))))
    return scenario(
        topology=topology,
        agents=agents,
        producers=producers,
        consumers=consumers,
        destinations=destinations,
        placement=placement,
        load={"rate_per_second": draw(st.integers(1, 5000)), "scope": "per_producer"},
        phases={"warmup_seconds": 0, "measure_seconds": draw(st.integers(1, 60))},
    )


def schedule_rates(plan: Plan) -> list[float]:
    return [a.schedule.rate_per_second for a in plan.assignments if a.schedule is not None]
