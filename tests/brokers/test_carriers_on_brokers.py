"""Records with IDs through real brokers: everything is found again, and nothing has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agents import run_load

from bench_spark.agent.recorder import CONSUMER, PRODUCER
from bench_spark.config.models import Scenario
from bench_spark.data.checking import with_records
from bench_spark.plan import make_plan
from bench_spark.transports.registry import fitted

REGEX = {"carrier": "regex", "insert": '"id": "()'}


@pytest.mark.parametrize(
    ("broker", "identity", "keys"),
    [
        ("rabbitmq", {"carrier": "prefix"}, {"amqp": {"confirms": 1000}}),
        ("rabbitmq", {"carrier": "header"}, {}),
        ("kafka", {"carrier": "append"}, {}),
        ("kafka", {"carrier": "key"}, {}),
        ("kafka", REGEX, {}),
        ("mosquitto", {"carrier": "header"}, {"mqtt": {"version": "5"}}),
    ],
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, one.values())),
)
def test_records_come_back_from_a_broker_as_they_were_sent(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    broker: str,
    identity: dict[str, Any],
    keys: dict[str, Any],
) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text(
        "".join(f'{{"id": "", "n": {n}, "t": "{"y" * (n * 7)}"}}\n' for n in range(300))
    )
    where = request.getfixturevalue(f"{broker}_broker")
    scenario = Scenario.model_validate(
        {
            "producers": 2,
            "consumers": 2,
            "destinations": 2,
            "dataset": {"path": str(path), "order": "shuffled"},
            "identity": identity | {"content_hash": True},
            "load": {"rate_per_second": 2000},
            "phases": {"warmup_seconds": 0.3, "measure_seconds": 0.7, "drain_seconds": 10},
        }
        | keys
    )
    run_id = f"carried-{request.node.callspec.id}".replace('"', "").replace(" ", "")
    run_id = "".join(character for character in run_id if character.isalnum() or character == "-")
    plan = make_plan(with_records(fitted(scenario, where), where), run_id)
    load = run_load(plan, where)
    assert load.control.failures == []
    accounts = load.accounts()
    assert accounts.sent == accounts.received_once == load.total(PRODUCER, "sent") > 0
    assert load.histogram("latency").count == accounts.sent
    assert load.total(PRODUCER, "bytes") == load.total(CONSUMER, "bytes")
    for counter in ("corrupted", "malformed", "foreign", "duplicates"):
        assert load.total_of_all_phases(CONSUMER, counter) == 0
