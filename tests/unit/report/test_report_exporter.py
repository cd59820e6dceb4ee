"""A running trial for Prometheus: the text, and the endpoint that serves it."""

from __future__ import annotations

import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.agent.timeline import Timeline
from bench_spark.cli import main
from bench_spark.config.models import Scenario
from bench_spark.errors import EnvironmentNotReady
from bench_spark.monitor.endpoints import parse_text
from bench_spark.plan import make_plan
from bench_spark.report.exporter import ExportedRun, Exporter, exposition
from bench_spark.report.live import LiveLog

SECOND = 1_000_000_000


@dataclass(frozen=True)
class HandWindow:
    sent_per_second: float = 1000.0
    received_per_second: float = 990.5
    ended_ns: int = 0
    measures: dict[str, dict[str, int]] = field(
        default_factory=lambda: {"latency": {"p50_us": 1500, "p99_us": 20000, "p999_us": 90000}}
    )


def test_a_trial_is_told_as_counters_rates_and_quantiles() -> None:
    trial = ExportedRun(
        "r1", "steady", "mine", {"git.sha": "ab"}, "measure", {"sent": 5, "received_once": 4}
    )
    text = exposition(ExportedRun(**{**vars(trial), "window": HandWindow()}))
    found = {
        (sample.name, sample.labels.get("quantile")): sample.value for sample in parse_text(text)
    }
    assert found == {
        ("bench_spark_running", None): 1,
        ("bench_spark_phase", None): 1,
        ("bench_spark_messages_sent_total", None): 5,
        ("bench_spark_messages_received_total", None): 4,
        ("bench_spark_sent_per_second", None): 1000,
        ("bench_spark_received_per_second", None): 990.5,
        ("bench_spark_duration_seconds", "0.5"): 0.0015,
        ("bench_spark_duration_seconds", "0.99"): 0.02,
        ("bench_spark_duration_seconds", "0.999"): 0.09,
    }
    labels = {"run": "r1", "scenario": "steady", "broker": "mine", "tag_git_sha": "ab"}
    assert all(labels.items() <= s.labels.items() for s in parse_text(text) if s.labels)


def test_without_a_trial_only_that_is_told() -> None:
    assert [(s.name, s.value) for s in parse_text(exposition(None))] == [("bench_spark_running", 0)]


@given(st.text())
def test_any_value_of_a_tag_survives_its_escaping(value: str) -> None:
    text = exposition(ExportedRun("r", "s", "b", {"t": value}, totals={"sent": 1}))
    assert [s.labels["tag_t"] for s in parse_text(text) if s.labels] == [value, value]


@pytest.fixture
def display() -> LiveLog:
    return LiveLog(io.StringIO())


@pytest.fixture
def exporter(display: LiveLog) -> Iterator[Exporter]:
    exporter = Exporter("127.0.0.1", 0, display, "mine")
    yield exporter
    exporter.close()


def scraped(exporter: Exporter, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{exporter.port}{path}", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def test_the_endpoint_follows_the_run_that_the_display_is_told_of(
    display: LiveLog, exporter: Exporter
) -> None:
    plan = make_plan(Scenario(name="steady", tags={"who": 'a "b"'}), "r1")
    assert "bench_spark_running 0" in scraped(exporter)
    display.name_next("a name")
    display.opening(plan, 0)
    assert 'phase="setup"' in scraped(exporter)
    now = SECOND
    display.started(plan, Timeline(0, 5 * SECOND, 10 * SECOND, SECOND), lambda: now)
    display.counted({"sent": 7, "received_once": 6})
    display.update(HandWindow(), is_draining=False)
    text = scraped(exporter)
    assert 'phase="warm-up"' in text
    (sent,) = (s for s in parse_text(text) if s.name == "bench_spark_messages_sent_total")
    assert (sent.value, sent.labels) == (
        7,
        {"run": "r1", "scenario": "steady", "broker": "mine", "tag_who": 'a "b"'},
    )
    now = 6 * SECOND
    display.update(HandWindow(), is_draining=False)
    assert 'phase="measure"' in scraped(exporter)
    display.ended()
    assert "bench_spark_running 0" in scraped(exporter)


def test_there_is_nothing_but_the_metrics(exporter: Exporter) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        scraped(exporter, "/")


def test_a_port_that_is_taken_is_refused_by_name(exporter: Exporter) -> None:
    with pytest.raises(EnvironmentNotReady, match=f"--prometheus.*{exporter.port}"):
        Exporter("127.0.0.1", exporter.port, LiveLog(io.StringIO()), "mine")


@pytest.mark.parametrize("text", ["x", "0", "70000", "host:", "host:x", ""])
def test_an_endpoint_that_is_none_is_refused_before_anything_starts(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "steady", "--broker", "loopback", "--prometheus", text]) == 2
    is_number = text.isdigit()
    rule = "allowed: a port from 1 to 65535" if is_number else "allowed: PORT or HOST:PORT"
    assert f"--prometheus: '{text}' is not allowed; {rule}" in capsys.readouterr().err
