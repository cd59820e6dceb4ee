"""Result documents made by hand: the shape that `results/document.py` gives them, small numbers."""

from __future__ import annotations

import copy
from typing import Any

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Load, Sampling

SCENARIO = Scenario(name="steady")
BROKER = Broker(name="qpid", kind="amqp", uri="amqp://guest:guest@127.0.0.1:20672/")


def statistics(p50_us: int, *lower_bounds: str, **changes: Any) -> dict[str, Any]:
    """A measure whose percentiles are p50 times 1, 2, 4 ..."""
    names = ("p50_us", "p75_us", "p90_us", "p95_us", "p99_us", "p999_us", "max_us")
    return {
        "min_us": p50_us // 2,
        "mean_us": p50_us * 1.5,
        **{name: p50_us * 2**power for power, name in enumerate(names)},
        "count": 100_000,
        "negative": 0,
        "overflow": 0,
        "lower_bounds": list(lower_bounds),
        **changes,
    }


COUNTS = {
    "due": 100_000,
    "unsent": 0,
    "sent": 100_000,
    "confirmed": None,
    "unconfirmed": None,
    "refused": 0,
    "returned": 0,
    "received": 100_000,
    "received_once": 100_000,
    "duplicates": 0,
    "left_in_broker": 0,
    "lost": 0,
    "indeterminate": 0,
    "acked": 0,
    "redelivered": 0,
    "out_of_order": 0,
    "malformed": 0,
    "foreign": 0,
    "errors": 0,
    "reconnects": 0,
    "bytes_sent": 100_000_000,
    "bytes_received": 100_000_000,
    "given_up": None,
    "late": 0,
}

VALID: dict[str, Any] = {
    "run_id": "steady-qpid-20260102-030405-0a1b",
    "status": "valid",
    "exit_code": 0,
    "reasons": [],
    "scenario": SCENARIO.dump(),
    "broker": BROKER.masked(),
    "measured_seconds": 10.0,
    "counts": COUNTS,
    "rates": {"send_rate": 9_999.6, "receive_rate": 9_998.7},
    "expected": 100_000,
    "delivery_rate": 1.0,
    "measures": {
        "send_lag": statistics(15),
        "latency": statistics(450),
        "delivery_latency": statistics(470),
        "insert_duration": statistics(40),
    },
    "percentiles": {
        "run": {"latency": {"p50_us": 450}},
        "interval_max": {
            name: statistics(p50_us, intervals=10)
            for name, p50_us in (
                ("latency", 700),
                ("delivery_latency", 720),
                ("send_lag", 20),
                ("insert_duration", 60),
            )
        },
        "interval_mean": {
            name: statistics(p50_us, intervals=10)
            for name, p50_us in (
                ("latency", 460),
                ("delivery_latency", 480),
                ("send_lag", 16),
                ("insert_duration", 41),
            )
        },
    },
    "audit": {
        "passed": True,
        "checks": [
            {"name": "schedule", "verdict": "pass", "text": "sent 100000 of 100000 messages due"},
            {"name": "accounts", "verdict": "pass", "text": "all messages are accounted for"},
            {"name": "generator_cpu", "verdict": "pass", "text": "the busiest agent used 31%"},
            {
                "name": "host",
                "verdict": "warn",
                "text": "broker and generator share a host and compete for its CPU",
            },
        ],
    },
    "resources": {"busiest_agent_share_of_core": 0.31},
    "environment": {
        "python": "3.11.7",
        "java": "17.0.15",
        "libraries": {"pyspark": "4.2.0"},
        "broker": {"product": "qpid", "version": "10.1.0", "client_library": "pika 1.4.4"},
        "hosts": [{"cpu": "Some CPU", "cores": 2, "memory_bytes": 8_000_000_000}],
    },
}


def changed(**changes: Any) -> dict[str, Any]:
    """The valid document with other values at its top level."""
    return copy.deepcopy(VALID) | changes


def degraded() -> dict[str, Any]:
    """The broker went away: losses, lower bounds, an agent's last words, overflow."""
    schedule = (
        "the rate was not kept: 7431 of 10000 msg/s, 25 690 of 100000 messages stayed unsent; the "
        "broker blocked its producers for 2.5 s"
    )
    return changed(
        status="degraded",
        exit_code=4,
        reasons=["agent 0: 127.0.0.1:20672 closed the connection [320]", schedule],
        counts=COUNTS
        | {"unsent": 25_690, "sent": 74_310, "received": 74_300, "received_once": 74_290}
        | {
            "duplicates": 10,
            "lost": 3,
            "indeterminate": 17,
            "confirmed": 74_293,
            "unconfirmed": 17,
        },
        rates={"send_rate": 7_431.0, "receive_rate": 7_429.9},
        delivery_rate=0.742_9,
        measures={
            "latency": statistics(450_000, "p999_us", overflow=12),
            "delivery_latency": statistics(900_000, "p90_us", "p95_us", "p99_us", "p999_us"),
            "confirm_latency": statistics(300, negative=2),
        },
        percentiles={
            aggregation: {
                name: statistics(600, intervals=10)
                for name in ("latency", "delivery_latency", "confirm_latency")
            }
            for aggregation in ("interval_max", "interval_mean")
        },
        audit={
            "passed": False,
            "checks": [
                {"name": "schedule", "verdict": "fail", "text": schedule},
                {"name": "clocks", "verdict": "pass", "text": "clocks agree within 0 us"},
            ],
        },
    )


def only_published() -> dict[str, Any]:
    """A run without consumers."""
    nobody = ("received", "received_once", "duplicates", "left_in_broker", "lost", "indeterminate")
    nobody += ("acked", "redelivered", "out_of_order", "malformed", "foreign", "bytes_received")
    scenario = Scenario(name="publish", consumers=0, load=Load(mode="maximum", messages=100_000))
    measures = {"confirm_latency": statistics(900), "insert_duration": statistics(40)}
    return changed(
        scenario=scenario.dump(),
        counts=COUNTS | {"confirmed": 99_997, "unconfirmed": 3} | dict.fromkeys(nobody),
        rates={"send_rate": 58_820.1, "receive_rate": None},
        delivery_rate=None,
        measures=measures,
        percentiles=dict.fromkeys(("interval_max", "interval_mean"), measures),
    )


def only_consumed() -> dict[str, Any]:
    """A run without producers."""
    nobody = ("due", "unsent", "sent", "refused", "returned", "received_once", "duplicates")
    nobody += ("left_in_broker", "lost", "indeterminate", "out_of_order", "malformed", "foreign")
    nobody += ("bytes_sent", "late")
    scenario = Scenario(name="consume", producers=0, load=Load(messages=100_000))
    return changed(
        scenario=scenario.dump(),
        counts=COUNTS | dict.fromkeys(nobody),
        rates={"send_rate": None, "receive_rate": 212_765.9},
        delivery_rate=None,
        measures={},
        percentiles={},
    )


def sampled(pairs: int) -> dict[str, Any]:
    """A closed loop whose throughput was sampled, the last pair's in vain."""
    keys = ("median_per_second", "low_per_second", "high_per_second", "mean_per_second")

    def figures(median: float) -> dict[str, Any]:
        values = dict(zip(keys, (median, median * 0.9, median * 1.1, median + 7), strict=True))
        return values | {"stddev_per_second": median / 20, "samples": 100}

    nothing = dict.fromkeys((*keys, "stddev_per_second")) | {"samples": 0}
    of_pairs = [figures(20_000 + 1000 * pair) for pair in range(pairs)]
    if pairs > 1:
        of_pairs[-1] = nothing
    scenario = Scenario(
        name="loop", load=Load(mode="window", prefill=True), sampling=Sampling(samples=100)
    )
    return changed(
        scenario=scenario.dump(),
        throughput={
            **(nothing if pairs > 1 else of_pairs[0]),
            "samples": 100 * (pairs - (pairs > 1)),
            "pairs": [{"pair": pair} | one for pair, one in enumerate(of_pairs)],
        },
    )


def never_started() -> dict[str, Any]:
    """What a store has of a run whose preflight failed."""
    kept = ("run_id", "scenario", "broker")
    return {name: VALID[name] for name in kept} | {
        "status": "failed",
        "exit_code": 3,
        "reasons": ["127.0.0.1:20672 refused the connection"],
    }
