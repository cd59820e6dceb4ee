"""Bodies whose size changes over time, through real brokers."""

from __future__ import annotations

import pytest
from agents import run_load

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.plan import make_plan

# Below one frame of AMQP, several frames, and hardly more than the envelope.
STEPS = [
    {"seconds": 0.4, "bytes": 5_000},
    {"seconds": 0.4, "bytes": 300_000},
    {"seconds": 0.2, "bytes": 40},
]


@pytest.mark.parametrize(("kind", "mode"), [("rabbitmq", "maximum"), ("kafka", "rate")])
def test_every_byte_sent_arrives_and_is_counted(
    request: pytest.FixtureRequest, kind: str, mode: str
) -> None:
    broker: Broker = request.getfixturevalue(f"{kind}_broker")
    scenario = Scenario.model_validate(
        {
            # A number of messages: in a second of time a busy machine may send none.
            "load": {
                "mode": mode,
                "rate_per_second": 400,
                "messages": 400,
                "backlog_limit_bytes": 20_000_000,
            },
            "message": {"bytes": 5_000, "steps": STEPS},
            "phases": {"warmup_seconds": 0.3, "drain_seconds": 20},
        }
    )
    load = run_load(make_plan(scenario, f"sizes-{mode}"), broker)
    assert not load.control.failures
    assert load.accounts().closes
    assert load.accounts().lost == 0
    sent, received = (load.total(role, "bytes", "measure") for role in (PRODUCER, CONSUMER))
    # How large a body is depends on when it is sent, which a busy machine decides.
    assert sent == received > 0
