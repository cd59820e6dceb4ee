"""A scenario at a rate of the whole run, whatever its `load.scope` counts."""

from __future__ import annotations

from bench_spark.errors import ConfigurationError
from bench_spark.scenario.models import Scenario


def at_whole_rate(scenario: Scenario, rate_per_second: float) -> Scenario:
    """On a schedule of so many messages per second, all producers and agents together."""
    load = scenario.load
    update: dict[str, object] = {"mode": "rate", "rate_per_second": float(rate_per_second)}
    if load.scope == "per_producer":
        update["scope"] = "total"
    elif load.scope == "per_agent":
        if scenario.agents == "auto":
            raise ConfigurationError(
                "load.scope: per_agent with agents auto has no rate of the whole run; give a "
                "number of agents"
            )
        update["rate_per_second"] = rate_per_second / scenario.agents
    return scenario.model_copy(update={"load": load.model_copy(update=update)})
