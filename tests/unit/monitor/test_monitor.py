"""The monitor of a run: rows of each second in their phases, and what fails without ending it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from patience import eventually

from bench_spark.agent.timeline import Timeline
from bench_spark.config.broker import Broker, Credentials, ResourceSource
from bench_spark.config.ends import Ends
from bench_spark.core.clock import Clock
from bench_spark.monitor.monitor import Monitor
from bench_spark.store.delta import Store

SECOND = 1_000_000_000


@pytest.fixture
def idle() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE
    ) as process:
        yield process.pid


def run(
    store: Store,
    sources: list[dict[str, Any]],
    is_enough: Callable[[Monitor], bool] = lambda monitor: True,
    **broker: Any,
) -> Monitor:
    """A load with a warm-up of a second, until enough is known of it."""
    clock = Clock.local()
    resources = [ResourceSource.model_validate(source) for source in sources]
    where = Broker(name="b", kind="amqp", uri="amqp://h", resources=resources, **broker)
    monitor = Monitor(Ends.of(where, Credentials()), "r1", store, clock.now_ns)
    start_ns = clock.now_ns() + SECOND // 10
    monitor.begin(Timeline(start_ns, SECOND, 600 * SECOND, 0))
    assert eventually(lambda: is_enough(monitor), timeout_seconds=300)
    monitor.end()
    monitor.close()
    return monitor


def has_measured(monitor: Monitor) -> bool:
    return (monitor.document()["broker"]["pid"]["rss_bytes_max"] or 0) > 0


def has_told_all(monitor: Monitor) -> bool:
    return has_measured(monitor) and bool(monitor.problems())


def test_there_is_a_row_per_second_and_source_in_its_phase(store: Store, idle: int) -> None:
    began = time.monotonic()
    monitor = run(
        store,
        [
            {"pid": idle},
            {"name": "told", "command": [sys.executable, "-c", "print('a=1')"]},
            {"name": "gone", "pid": 4194304},
        ],
        has_told_all,
    )
    lasted_seconds = time.monotonic() - began
    rows = store.read("resources").to_pylist(maps_as_pydicts="strict")
    of_process = [row for row in rows if row["source"] == "pid"]
    phases = [row["phase"] for row in of_process]
    assert phases == sorted(phases, reverse=True), "the warm-up comes first"
    assert phases[-1] == "measure"
    # Each reading begins where the one before ended, and none is longer ago than the load.
    assert sum(row["interval_seconds"] for row in of_process) < lasted_seconds
    for row in of_process:
        assert row["interval_seconds"] > 0
        assert row["rss_bytes"] > 1_000_000
        assert row["processes"] == 1
        assert row["problem"] is None
    assert {row["values"].get("a") for row in rows if row["source"] == "told"} <= {1.0}
    gone = [row for row in rows if row["source"] == "gone"]
    assert {row["problem"] for row in gone} == {"there is no process 4194304"}
    assert all(row["rss_bytes"] is None and "rss_bytes" in row["unreadable"] for row in gone)

    document = monitor.document()
    assert document["broker"]["pid"]["rss_bytes_max"] == of_process[-1]["rss_bytes"]
    assert document["broker"]["gone"]["rss_bytes_max"] is None
    assert document["flow"] == {"state": "unknown", "share": None, "polls": 0}
    assert monitor.problems() == [
        "resources of gone could not be read: there is no process 4194304"
    ]


def test_a_management_api_that_does_not_answer_leaves_the_flow_unknown(store: Store) -> None:
    monitor = run(
        store,
        [],
        lambda monitor: bool(monitor.problems()),
        management_uri="http://u:hunter2@127.0.0.1:1",
    )
    assert monitor.document()["flow"]["state"] == "unknown"
    [problem] = monitor.problems()
    assert problem == "resources of flow could not be read: 127.0.0.1:1: ConnectionRefusedError"
    rows = store.read("resources").to_pylist()
    assert "hunter2" not in str(rows)


def test_a_broker_without_sources_costs_nothing(store: Store) -> None:
    version = store.version("resources")
    monitor = run(store, [])
    assert monitor.document()["broker"] == {}
    assert monitor.problems() == []
    assert store.version("resources") == version


def test_a_source_that_hangs_does_not_hold_up_the_end_of_the_run(store: Store) -> None:
    began = time.monotonic()
    run(store, [{"command": ["sleep", "60"], "timeout_seconds": 60}])
    assert time.monotonic() - began < 55


def test_rows_that_cannot_be_kept_are_said_and_end_nothing(store: Store, idle: int) -> None:
    import shutil

    shutil.rmtree(f"{store.uri}/resources")
    monitor = run(store, [{"pid": idle}], has_measured)
    assert any("rows of resources are missing" in problem for problem in monitor.problems())
    assert monitor.document()["broker"]["pid"]["rss_bytes_max"] > 0


def test_sources_of_several_brokers_are_named_by_both(store: Store) -> None:
    """A broker that is ingress and egress at once is read once."""
    pid = {"pid": 4194304}
    one, two = (
        Broker(
            name=name,
            kind="amqp",
            uri=f"amqp://{name}",
            management_uri="http://127.0.0.1:1",
            resources=[ResourceSource.model_validate(pid)],
        )
        for name in ("one", "two")
    )
    monitor = Monitor(Ends.apart([one, two], [one]), "r1", store, Clock.local().now_ns)
    document = monitor.document()
    monitor.close()
    assert list(document["broker"]) == ["one/pid", "two/pid"]
    assert document["flow"] == {"state": "unknown", "share": None, "polls": 0}
