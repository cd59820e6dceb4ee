"""A scenario at a rate of the whole run, whatever its scope counts."""

from __future__ import annotations

import pytest

from bench_spark.config.models import Scenario, at_whole_rate
from bench_spark.errors import ConfigurationError
from bench_spark.plan import make_plan, total_rate_per_second


@pytest.mark.parametrize("scope", ["total", "per_producer", "per_agent"])
def test_the_plan_asks_for_that_rate_in_all(scope: str) -> None:
    keys = {"agents": 2, "producers": 4, "consumers": 4}
    scenario = Scenario.model_validate(keys | {"load": {"mode": "maximum", "scope": scope}})
    planned = make_plan(at_whole_rate(scenario, 12_345.0), "run").scenario
    assert planned.load.mode == "rate"
    assert total_rate_per_second(planned) == pytest.approx(12_345.0)
    assert planned.producers == (8 if scope == "per_agent" else 4)


def test_a_share_of_a_number_of_agents_that_is_not_known_is_refused() -> None:
    scenario = Scenario.model_validate({"agents": "auto", "load": {"scope": "per_agent"}})
    with pytest.raises(ConfigurationError, match=r"load\.scope: per_agent with agents auto"):
        at_whole_rate(scenario, 1.0)
