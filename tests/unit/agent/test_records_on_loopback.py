"""Whole agents that send records of a data set instead of bodies of their own, through memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Load, run_load
from unit.loopbacks import Watch

from bench_spark.agent import endpoints as ends_module
from bench_spark.agent.timeline import CONSUMER, PRODUCER
from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.data.checking import with_records
from bench_spark.errors import ConfigurationError
from bench_spark.plan import Plan, make_plan
from bench_spark.transports.batches import Received

LOOPBACK = Broker(kind="loopback")
RECORDS = [
    f'{{"id": "", "number": {number}, "text": "{"x" * (number % 50)}"}}' for number in range(97)
]
INSERT = '"id": "()'


class Caught:
    """Watches what arrives, and may change it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.change: Callable[[Received], Received] = lambda received: received

    def __call__(self, received: Received) -> Received:
        received = self.change(received)
        self.bodies += received.bodies or ()
        return received


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Caught:
    caught = Caught()
    watch = Watch(alter=caught)
    monkeypatch.setattr(ends_module, "make_transport", watch.make)
    return caught


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join(RECORDS) + "\n")
    return str(path)


def plan(run_id: str, **keys: Any) -> Plan:
    defaults = {"phases": {"warmup_seconds": 0.2, "measure_seconds": 0.3, "drain_seconds": 5}}
    scenario = Scenario.model_validate(defaults | {"load": {"rate_per_second": 2000}} | keys)
    return make_plan(with_records(scenario, LOOPBACK), run_id)


def assert_all_arrived(load: Load) -> None:
    assert load.control.failures == []
    for phase in ("warmup", "measure"):
        assert load.total(PRODUCER, "sent", phase) == load.total(CONSUMER, "received", phase)
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.sent == accounts.received_once == load.total(PRODUCER, "sent")
    assert load.histogram("latency").count == accounts.sent
    assert load.total(PRODUCER, "bytes") == load.total(CONSUMER, "bytes")
    for counter in ("malformed", "foreign", "duplicates", "out_of_order", "corrupted"):
        assert load.total_of_all_phases(CONSUMER, counter) == 0


def test_a_system_that_writes_capitals_is_seen_through(caught: Caught, data: str) -> None:
    def in_capitals(received: Received) -> Received:
        return replace(received, bodies=[body.upper() for body in received.bodies or ()])

    caught.change = in_capitals
    find = '"ID": "([0-9A-F]{32})'
    identity = {"carrier": "regex", "insert": INSERT, "find": find}
    made = plan("capitals", dataset={"path": data}, identity=identity)
    assert made.scenario.dataset.found.is_found_as_sent is False
    assert_all_arrived(run_load(made, LOOPBACK))


SLOW_FIND = "^(?:x|xx)+$|([0-9a-f]{32})"
SLOW_BODY = b"x" * 100 + b"?"


@pytest.mark.parametrize("content_hash", [False, True])
def test_messages_on_which_a_pattern_takes_too_long_are_malformed(
    caught: Caught, data: str, content_hash: bool
) -> None:
    changed = 0

    def slow(received: Received) -> Received:
        nonlocal changed
        bodies = list(received.bodies or ())
        for place in range(min(len(bodies), 3 - changed)):
            bodies[place] = SLOW_BODY
            changed += 1
        return replace(received, bodies=bodies)

    caught.change = slow
    identity = {"carrier": "prefix", "find": SLOW_FIND, "content_hash": content_hash}
    made = plan("slow-few", dataset={"path": data}, identity=identity)
    load = run_load(made, LOOPBACK)
    assert load.control.failures == []
    assert load.total_of_all_phases(CONSUMER, "malformed") == changed == 3
    assert load.accounts().closes


def test_a_pattern_that_takes_too_long_on_every_message_ends_the_run_by_name(
    caught: Caught, data: str
) -> None:
    def slow(received: Received) -> Received:
        return replace(received, bodies=[SLOW_BODY for _ in received.bodies or ()])

    caught.change = slow
    identity = {"carrier": "prefix", "find": SLOW_FIND}
    load = run_load(plan("slow-all", dataset={"path": data}, identity=identity), LOOPBACK)
    [failure] = load.control.failures
    assert "identity.find: ^(?:x|xx)+$|([0-9a-f]{32}) takes longer than" in str(failure)


@pytest.mark.parametrize(
    ("identity", "stripped"),
    [
        ({"carrier": "prefix"}, lambda body: body[32:]),
        ({"carrier": "append"}, lambda body: body[:-32]),
        ({"carrier": "regex", "insert": INSERT}, lambda body: body[:8] + body[40:]),
        ({"carrier": "header"}, lambda body: body),
        ({"carrier": "key"}, lambda body: body),
    ],
)
def test_records_arrive_as_they_are_but_for_the_id(
    caught: Caught, data: str, identity: dict[str, Any], stripped: Any
) -> None:
    made = plan(
        f"carried-{identity['carrier']}",
        producers=3,
        consumers=2,
        destinations=2,
        dataset={"path": data},
        identity=identity | {"content_hash": True},
    )
    load = run_load(made, LOOPBACK)
    assert_all_arrived(load)
    assert load.total(PRODUCER, "sent") == 600
    sent = {stripped(body).decode() for body in caught.bodies}
    assert sent == set(RECORDS)
    mean_bytes = sum(map(len, caught.bodies)) / len(caught.bodies)
    assert made.scenario.message.bytes == pytest.approx(mean_bytes, abs=1)
    assert made.scenario.dataset.found.records == 97


@pytest.mark.parametrize(
    ("agents", "producers", "order"), [(1, 1, "sequential"), (2, 5, "shuffled")]
)
@pytest.mark.parametrize("mode", ["rate", "maximum"])
def test_without_repeating_each_record_is_sent_once(
    caught: Caught, data: str, agents: int, producers: int, order: str, mode: str
) -> None:
    made = plan(
        f"once-{agents}-{mode}",
        agents=agents,
        producers=producers,
        consumers=producers,
        destinations=producers,
        dataset={"path": data, "repeat": False, "order": order},
        load={"mode": mode, "rate_per_second": 1000},
        phases={"warmup_seconds": 0, "measure_seconds": 30, "drain_seconds": 5},
    )
    assert made.expected_messages == 97
    load = run_load(made, LOOPBACK)
    assert_all_arrived(load)
    assert sorted(body[32:].decode() for body in caught.bodies) == sorted(RECORDS)


def test_ids_go_without_a_data_set_too(caught: Caught) -> None:
    made = plan("made", identity={"carrier": "append"}, message={"bytes": 100})
    load = run_load(made, LOOPBACK)
    assert_all_arrived(load)
    assert {len(body) for body in caught.bodies} == {100}


def test_a_window_is_given_back_by_ids(caught: Caught, data: str) -> None:
    made = plan(
        "window",
        producers=2,
        consumers=2,
        dataset={"path": data},
        load={"mode": "window", "in_flight": 5, "messages": 200},
    )
    load = run_load(made, LOOPBACK)
    assert_all_arrived(load)
    assert load.total(PRODUCER, "sent") == 200


def test_what_another_agent_sent_is_counted_by_phase_but_not_timed(
    caught: Caught, data: str
) -> None:
    made = plan("split", agents=2, placement="split", producers=3, dataset={"path": data})
    load = run_load(made, LOOPBACK)
    assert load.control.failures == []
    for phase, messages in (("warmup", 400), ("measure", 600)):
        assert load.total(PRODUCER, "sent", phase) == messages
        assert load.total(CONSUMER, "received", phase) == messages
    accounts = load.accounts()
    assert accounts.closes
    assert accounts.received_once == 600
    assert not any(
        "latency" in row.histograms and row.histograms["latency"].counts.sum()
        for _, row in load.rows
    )


def test_without_a_schedule_nobody_knows_the_phase_of_what_others_sent(data: str) -> None:
    keys = {"agents": 2, "placement": "split", "dataset": {"path": data}}
    load = {"mode": "maximum", "messages": 100}
    with pytest.raises(ConfigurationError, match=r"warmup_seconds: with identity.carrier prefix"):
        plan("split", **keys, load=load)
    phases = {"warmup_seconds": 0, "measure_seconds": 1}
    assert plan("split", **keys, load=load, phases=phases).expected_messages == 100


def _damaged(received: Received) -> Received:
    """Of those that carry certain numbers: lost, sent twice, changed, without an ID."""
    bodies, places = list(received.bodies or ()), []
    for place, body in enumerate(bodies):
        number = int(body[16:32], 16)
        if number == 10:
            continue
        places += [place] * (2 if number == 20 else 1)
        if number == 30:
            bodies[place] = body[:-1] + b"!"
        elif number == 40:
            bodies[place] = b"no ID at all, but long enough for one"
        elif number == 50:
            bodies[place] = b"0badcafe" + body[8:]
    received = replace(received, bodies=bodies)
    return received.at(np.array(places, np.int64))


def test_what_a_system_does_to_messages_is_counted_exactly(caught: Caught, data: str) -> None:
    caught.change = _damaged
    made = plan(
        "damaged",
        dataset={"path": data},
        identity={"content_hash": True},
        phases={"warmup_seconds": 0, "measure_seconds": 0.2, "drain_seconds": 0.2},
    )
    load = run_load(made, LOOPBACK)
    assert load.control.failures == []
    counts = {
        name: load.total(CONSUMER, name)
        for name in ("received", "duplicates", "corrupted", "malformed", "foreign")
    }
    assert counts == {
        "received": 400 - 3 + 1,
        "duplicates": 1,
        "corrupted": 1,
        "malformed": 1,
        "foreign": 1,
    }
    accounts = load.accounts()
    assert (accounts.received_once, accounts.lost + accounts.indeterminate) == (397, 3)


def test_a_data_set_that_is_missing_on_the_agents_machine_fails_the_run(data: str) -> None:
    made = plan("gone", dataset={"path": data})
    Path(data).unlink()
    load = run_load(made, LOOPBACK)
    [failure] = load.control.failures
    assert "no such file" in failure.text
