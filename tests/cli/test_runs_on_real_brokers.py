"""`bench-spark run` end to end on real brokers, in this process and on the shared Spark session."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest
import yaml
from deltalake import DeltaTable

from bench_spark import brokers
from bench_spark.cli import main
from bench_spark.config.broker import Broker
from bench_spark.errors import EXIT_DEGRADED, EXIT_VALID

QUICK = (
    *("--set", "load.rate_per_second=1000", "--set", "phases.warmup_seconds=0.5"),
    *("--set", "phases.measure_seconds=2"),
)

Run = Callable[..., tuple[int, str, str]]


def assert_ended(code: int, err: str) -> None:
    """A busy machine may not keep the schedule, or stand still; the tests look at everything
    else."""
    assert code in (EXIT_VALID, EXIT_DEGRADED), err


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], spark: Any) -> Run:
    """A command line in; its exit code, standard output and standard error out.

    Commands run in this process, on the session that all tests share.
    """

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(list(arguments))
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def broker_file(directory: Path, **keys: Any) -> str:
    path = directory / f"{keys['name']}.yaml"
    path.write_text(yaml.safe_dump(keys))
    return str(path)


def file_of(directory: Path, broker: Broker, **changes: Any) -> str:
    keys = broker.model_dump(exclude_none=True, exclude_defaults=True)
    return broker_file(directory, **(keys | changes))


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka", "mosquitto"])
def test_the_same_scenario_runs_on_every_broker(
    run: Run, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    broker = request.getfixturevalue(f"{kind}_broker")
    code, out, err = run(
        "run",
        "steady",
        *("--broker", file_of(tmp_path, broker), "--store", store, "--run-id", "first"),
        *("--format", "json", *QUICK),
        *("--set", "agents=2", "--set", "producers=2", "--set", "consumers=2"),
        *("--set", "destinations=2"),
    )
    assert_ended(code, err)
    document = json.loads(out)
    counts = document["counts"]
    sent = counts["sent"]
    assert counts["due"] == sent + counts["unsent"] == document["expected"] == 2000
    assert 0 < sent == counts["received_once"]
    assert counts["lost"] == counts["duplicates"] == 0
    assert document["measures"]["latency"]["count"] == sent
    assert document["delivery_rate"] == sent / 2000
    assert document["spec"]["messages_received"] == sent
    assert {agent["agent"] for agent in document["agents"]} == {0, 1}
    assert "measure" in err
    assert "guest" not in out.replace("guest:***@", "")

    events = DeltaTable(str(tmp_path / "store" / "events")).to_pandas()
    assert events[events.phase == "measure"].sent.sum() == sent
    metrics = DeltaTable(str(tmp_path / "store" / "metrics")).to_pandas()
    assert set(metrics.window) == {"rolling", "interval"}

    code, out, _ = run("show", "first", "--store", store, "--format", "json")
    assert code == 0
    assert json.loads(out) == document
    code, out, _ = run("runs", "--store", store)
    assert "first" in out


def test_the_live_line_has_a_rate_at_once_and_confirm_latency_where_nobody_consumes(
    run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    code, _, err = run(
        "run",
        "publish",
        *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", str(tmp_path / "store")),
        *("--set", "load.mode=rate", "--set", "load.rate_per_second=500"),
        *("--set", "load.messages=null", "--set", "phases.warmup_seconds=0"),
        *("--set", "phases.measure_seconds=6"),
    )
    assert_ended(code, err)
    lines = re.findall(r"measure +\d+/6 s +([\d,.]+|-) msg/s +(.*)", err)
    # What agents have sent is on the line before the rolling metrics are.
    rates = [float(shown.replace(",", "")) for shown, _ in lines if shown != "-"]
    assert len(rates) >= len(lines) - 1 > 0, err
    assert max(rates) > 0
    assert all(p99.startswith("confirm P99") for _, p99 in lines), err


def test_a_maximum_whose_consumer_lags_is_measured_late_and_says_so(
    run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    """The consumer takes 20 messages a second, of thousands: they never come to be as many."""
    store = tmp_path / "store"
    code, out, err = run(
        "run",
        "maximum",
        *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", str(store)),
        *("--format", "json", "--run-id", "lags", "--set", "consumer.rate_per_second=20"),
        *("--set", "amqp.confirms=100", "--set", "phases.warmup_seconds=0.8"),
        # With a full backlog as little is sent as is received, and the load has settled.
        *("--set", "load.backlog_limit_bytes=1000000000"),
        *("--set", "phases.measure_seconds=2", "--set", "phases.drain_seconds=0.5"),
    )
    # It depends on the backlog of the warm-up whether any message of the phase arrives in time.
    assert code in (0, 4), err
    document = json.loads(out)
    [check] = [one for one in document["audit"]["checks"] if one["name"] == "settled"]
    assert check["verdict"] == "warn"
    assert "had not settled after 2.4 s" in check["text"]
    assert document["counts"]["sent"] > 0

    [row] = DeltaTable(str(store / "runs")).to_pyarrow_table().to_pylist()
    events = DeltaTable(str(store / "events")).to_pandas()
    events = events[events.tick >= 0]
    begins = events.groupby("tick").tick_start.min()
    # Times in the tables are whole microseconds.
    after = {tick: (begin - row["measured_from"]).total_seconds() for tick, begin in begins.items()}
    assert after[0] == pytest.approx(-2.4, abs=1e-5)
    assert after[3] == pytest.approx(0, abs=1e-5)
    assert events[events.tick == 2].tick_seconds.unique() == pytest.approx([0.4])
    sent = events[events.sent > 0]
    assert (sent[sent.tick < 3].phase == "warmup").all()
    assert (sent[sent.tick >= 3].phase == "measure").all()
    assert sent[sent.phase == "measure"].sent.sum() == document["counts"]["sent"]
    lasted = (row["measured_until"] - row["measured_from"]).total_seconds()
    assert lasted == pytest.approx(document["measured_seconds"], abs=1e-5)
    # Metrics of the measured phase lie in it.
    metrics = DeltaTable(str(store / "metrics")).to_pandas()
    intervals = metrics[metrics.window == "interval"]
    first = (intervals.window_start.min() - row["measured_from"]).total_seconds()
    assert first == pytest.approx(0, abs=1e-5)


def test_a_closed_loop_ends_with_its_samples_and_they_are_in_the_store(
    run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    code, out, err = run(
        "run",
        "window",
        *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", store, "--run-id", "loop"),
        *("--format", "json", "--no-live", "--set", "load.prefill=true"),
        *("--set", "amqp.queue.server_named=true", "--set", "amqp.queue.auto_delete=true"),
        *("--set", "sampling.samples=20", "--set", "phases.warmup_seconds=0"),
        *("--set", "phases.measure_seconds=60"),
    )
    assert_ended(code, err)
    document = json.loads(out)
    assert "settled" not in [check["name"] for check in document["audit"]["checks"]]
    throughput = document["throughput"]
    assert throughput["samples"] == 20
    assert throughput["low_per_second"] <= throughput["median_per_second"]
    assert throughput["median_per_second"] <= throughput["high_per_second"]
    assert document["measured_seconds"] < 50
    # Both are of the same stream, of which the samples leave out the beginning.
    assert 0.2 < document["rates"]["receive_rate"] / throughput["mean_per_second"] < 2
    samples = DeltaTable(str(tmp_path / "store" / "samples")).to_pandas().sort_values("number")
    assert samples.number.tolist() == list(range(20))
    assert set(samples.run_id) == {"loop"}
    assert (samples.seconds > 0.01).all()
    per_second = samples.messages / samples.seconds
    assert per_second.median() == pytest.approx(throughput["median_per_second"])
    code, out, _ = run("show", "loop", "--store", store)
    assert "sampled msg/s" in out


def test_what_rabbitmq_does_not_know_is_refused_in_its_own_words(
    run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    code, _, err = run(
        "run",
        "window",
        *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", str(tmp_path / "store")),
        *("--no-live", *QUICK, "--set", "amqp.immediate=true"),
    )
    assert code == 3
    assert "amqp.immediate" in err
    assert "540 NOT_IMPLEMENTED" in " ".join(err.split())


def test_one_run_publishes_and_the_next_consumes(
    run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    broker = file_of(tmp_path, rabbitmq_broker)
    common = (
        *("--broker", broker, "--store", str(tmp_path / "store"), "--no-live"),
        *("--set", "phases.warmup_seconds=0", "--set", "load.messages=20000"),
        *("--set", "amqp.queue.name=filled"),
    )
    code, out, err = run(
        "run", "publish", *common, "--format", "json", "--set", "keep_destinations=true"
    )
    assert_ended(code, err)
    published = json.loads(out)
    assert published["counts"]["sent"] == published["counts"]["confirmed"] == 20_000
    assert published["counts"]["received"] is published["counts"]["lost"] is None
    assert published["delivery_rate"] is published["rates"]["receive_rate"] is None
    assert published["rates"]["send_rate"] > 0
    assert published["measures"]["confirm_latency"]["count"] == 20_000

    consuming = ("--run-id", "taken", "--set", "producers=0", "--set", "consumers=1")
    code, out, err = run("run", "publish", *common, *consuming)
    assert_ended(code, err)
    assert "received" in out
    code, out, _ = run("show", "taken", "--store", str(tmp_path / "store"), "--format", "json")
    consumed = json.loads(out)
    assert consumed["counts"]["received"] == consumed["expected"] == 20_000
    assert consumed["counts"]["bytes_received"] == 20_000_000
    assert consumed["counts"]["sent"] is consumed["rates"]["send_rate"] is None
    assert consumed["rates"]["receive_rate"] == pytest.approx(20_000 / consumed["measured_seconds"])
    assert consumed["measures"] == {}
    code, out, _ = run("runs", "--store", str(tmp_path / "store"))
    assert "taken" in out


def test_split_placement_measures_between_two_agents_and_sql_answers_for_them(
    run: Run, qpid_broker: Broker, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    code, out, err = run(
        "run",
        "steady",
        *("--broker", file_of(tmp_path, qpid_broker), "--store", store, "--run-id", "split"),
        *("--format", "json", "--no-live", *QUICK),
        *("--set", "agents=2", "--set", "placement=split"),
    )
    assert_ended(code, err)
    document = json.loads(out)
    assert document["counts"]["received_once"] == 2000
    assert [agent["sent"] for agent in document["agents"]] == [2500, 0]
    assert [agent["received_once"] for agent in document["agents"]] == [0, 2500]

    query = "SELECT run_id, messages_received FROM latency_spec"
    code, out, _ = run("sql", query, "--store", store, "--format", "json")
    assert code == 0
    assert json.loads(out) == [{"run_id": "split", "messages_received": 2000}]

    for changing in ("DELETE FROM runs", "SELECT reflect('java.lang.System', 'lineSeparator')"):
        code, out, err = run("sql", changing, "--store", store)
        assert (code, out) == (2, "")
        assert "SQL: only what reads is answered" in err
    code, out, _ = run("sql", query, "--store", store, "--format", "json")
    assert len(json.loads(out)) == 1


def when_received(store: Path, do: Callable[[], None]) -> threading.Thread:
    """A thread that does it once messages of the measured phase are in the store."""

    def wait() -> None:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            time.sleep(0.2)
            if not (store / "events").exists():
                continue
            rows = DeltaTable(str(store / "events")).to_pandas(columns=["phase", "received"])
            if rows[rows.phase == "measure"].received.sum() > 0:
                do()
                return

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.fault(case=1)
def test_a_broker_killed_in_mid_run_leaves_what_was_measured(run: Run, tmp_path: Path) -> None:
    with brokers.embedded("qpid") as started:
        status = started["qpid"]
        assert status.pid is not None
        killer = when_received(tmp_path / "store", partial(os.kill, status.pid, signal.SIGKILL))
        code, out, err = run(
            "run",
            "steady",
            *("--broker", file_of(tmp_path, status.broker), "--store", str(tmp_path / "store")),
            *("--format", "json", *QUICK, "--set", "phases.measure_seconds=30"),
            *("--set", "reconnect_seconds=1"),
        )
        killer.join()
    assert code == 4, err
    document = json.loads(out)
    assert document["status"] == "degraded"
    assert document["counts"]["sent"] > 0
    assert document["counts"]["received_once"] > 0
    assert document["counts"]["errors"] > 0
    assert f"127.0.0.1:{status.port}" in " ".join(document["reasons"])
    assert "Traceback" not in err


@pytest.mark.fault(case=12)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 143)])
def test_a_signal_keeps_the_partial_result_and_leaves_no_queue(
    number: signal.Signals, code: int, run: Run, rabbitmq_broker: Broker, tmp_path: Path
) -> None:
    """The signal comes to this process, which runs the command; `make test-faults` sends it to
    programs of their own."""
    run_id = f"cut-short-by-{number.name}"
    stopped_at: list[float] = []

    def stop() -> None:
        stopped_at.append(time.monotonic())
        os.kill(os.getpid(), number)

    stopper = when_received(tmp_path / "store", stop)
    ended, out, err = run(
        *("run", "steady", "--run-id", run_id, "--format", "json", *QUICK),
        *("--broker", file_of(tmp_path, rabbitmq_broker), "--store", str(tmp_path / "store")),
        *("--set", "phases.measure_seconds=300"),
    )
    stopper.join()
    assert ended == code, err
    assert time.monotonic() - stopped_at[0] < 120  # On an idle machine it is well below 10 s.
    document = json.loads(out)
    assert document["status"] == "aborted"
    assert document["counts"]["received_once"] > 0
    assert "Traceback" not in err
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_broker.uri))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare(f"bench-{run_id}-0", passive=True)
    connection.close()
