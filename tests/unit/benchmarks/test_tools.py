"""What other tools print, and our own result documents, as figures."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import bare_sockets, kafka_tools, ours, perftest
from benchmarks.figures import CLIENT_CPU, P50, P99, RATE, SPARK_CORES, TURNS, WHOLE_CPU
from benchmarks.processes import Printed
from benchmarks.progress import NoFigures, Progress, steady


def second(number: int, received: int, latency: str, cpu_seconds: float) -> Printed:
    text = (
        f"id: test-1, time {number}.000 s, sent: 9 msg/s, received: {received} msg/s, "
        f"min/median/75th/95th/99th consumer latency: {latency}"
    )
    return Printed(text, 100.0 + number, cpu_seconds)


def test_steady_figures_begin_after_the_warm_up() -> None:
    progress = [
        Progress(10.0, 1, 5.0),
        Progress(11.0, 100, 6.0),
        Progress(12.0, 1100, 6.5),
        Progress(14.0, 5100, 7.5),
    ]
    figures = steady(progress, warmup_seconds=2)
    assert figures == {RATE: 2000.0, CLIENT_CPU: pytest.approx(250.0)}


@pytest.mark.parametrize(
    "progress",
    [
        [],
        [Progress(10.0, 1, 5.0)],
        [Progress(10.0, 1, 5.0), Progress(11.9, 9, 5.0), Progress(12.0, 9, 5.0)],
        [Progress(10.0, 1, 5.0), Progress(12.0, 9, 5.0), Progress(13.0, 9, 5.0)],
    ],
)
def test_too_little_progress_gives_no_figures(progress: list[Progress]) -> None:
    with pytest.raises(NoFigures):
        steady(progress, warmup_seconds=2)


def test_perftest_is_counted_from_its_steady_seconds() -> None:
    lines = [
        Printed("id: test-1, starting consumer #0", 100.5, 0.5),
        second(1, 10, "1/9/9/9/9000 µs", 3.0),
        second(2, 500, "1/20/40/60/300 µs", 4.0),
        second(3, 1000, "1/10/40/60/200 ?s", 4.5),
        second(4, 2000, "0/2/3/4/5 ms", 5.5),
        Printed("test stopped (Reached time limit)", 105.0, 5.6),
        Printed("id: test-1, receiving rate avg: 877 msg/s", 105.0, 5.6),
    ]
    figures = perftest.figures_of(lines, warmup_seconds=1)
    assert figures == {RATE: 1500.0, CLIENT_CPU: pytest.approx(500.0), P50: 1005.0, P99: 2600.0}


def test_perftest_that_failed_gives_no_figures() -> None:
    with pytest.raises(NoFigures):
        perftest.figures_of([Printed("Main thread caught exception", 1.0, 1.0)], 1)


def test_kafkas_producer_says_what_it_sent_since_its_last_line() -> None:
    lines = [
        Printed(
            "1 records sent, 0.5 records/sec (0.00 MB/sec), 2 ms avg latency, 2 ms max latency.",
            1,
            3,
        ),
        Printed(
            "90 records sent, 9 records/sec (4 MB/sec), 658.3 ms avg latency, 9.0 ms max latency.",
            2,
            4,
        ),
        Printed(
            "91 records sent, 33.0 records/sec (3 MB/sec), 5 ms avg latency, 2 ms max latency, "
            "523 ms 50th, 1086 ms 95th, 1221 ms 99th, 1254 ms 99.9th.",
            3,
            5,
        ),
    ]
    assert kafka_tools.produced(lines) == [Progress(1, 1, 3), Progress(2, 91, 4)]


def test_kafkas_consumer_says_what_it_received_in_all() -> None:
    lines = [
        Printed(
            "time, threadId, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec", 1, 1
        ),
        Printed(
            "2026-11-16 06:39:12:888, 0, 0.0010, 0.0008, 1, 0.7987, 1010, 242, 0.0039, 4.13", 2, 3
        ),
        Printed(
            "2026-11-16 06:39:13:398, 0, 32.9218, 64.55, 34521, 67686.27, 0, 510, 64.5, 67", 3, 4
        ),
    ]
    assert kafka_tools.consumed(lines) == [Progress(2, 1, 3), Progress(3, 34521, 4)]


def agent(**figures: Any) -> dict[str, Any]:
    return {"sent": 0, "received_once": 0, "turns_per_second": None} | figures


def document(**changes: Any) -> dict[str, Any]:
    return {
        "run_id": "run",
        "rates": {"send_rate": 1000.0, "receive_rate": 2000.0},
        "agents": [
            agent(sent=100, cpu_seconds=0.001, turns_per_second=80.0),
            agent(received_once=50, cpu_seconds=0.003, turns_per_second=20.0),
        ],
        "resources": {"spark_cores": 0.5},
        "measures": {"latency": {"p50_us": 5, "p99_us": 9}},
        **changes,
    }


def test_our_cpu_is_that_of_all_agents_and_with_spark_that_of_the_whole() -> None:
    figures = ours.figures_of(document())
    assert figures == {
        RATE: 2000.0,
        CLIENT_CPU: pytest.approx(40.0),
        TURNS: 100.0,
        WHOLE_CPU: pytest.approx(290.0),
        SPARK_CORES: 0.5,
        P50: 5,
        P99: 9,
    }


def test_a_run_with_one_end_has_the_rate_of_that_end_and_no_latency() -> None:
    figures = ours.figures_of(
        document(
            rates={"send_rate": 1000.0, "receive_rate": None},
            agents=[agent(sent=100, cpu_seconds=0.001)],
            measures={},
            resources={"spark_cores": None},
        )
    )
    assert figures == {RATE: 1000.0, CLIENT_CPU: pytest.approx(10.0)}


def test_a_run_without_messages_gives_no_figures() -> None:
    with pytest.raises(NoFigures, match="run"):
        ours.figures_of(document(rates={"send_rate": 0.0, "receive_rate": 0.0}))


@pytest.mark.parametrize(
    ("value", "text"),
    [("manual", "manual"), (5, "5"), (-1, "-1"), (True, "true"), (0.5, "0.5")],
)
def test_a_setting_is_written_as_the_command_line_reads_it(value: object, text: str) -> None:
    assert ours.as_setting(value) == text


def test_reading_bare_sockets_costs_something() -> None:
    assert bare_sockets.run(connections=50, packet_bytes=100)[CLIENT_CPU] > 0


def test_lines_of_the_consumer_tool_count_as_progress() -> None:
    """A paced pair is measured for some seconds from the consumer's first progress on."""
    words = "2026-11-18 08:00:0{}:000, 0, 1.0, 1.0, {}, 1.0, 0, 0, 0.0, 0.0"
    lines = [Printed(words.format(at, 1000 * at), float(at), float(at)) for at in range(9)]
    taken = list(kafka_tools._for_seconds(lines, seconds=3))
    assert len(taken) == 5
    assert [one.messages for one in kafka_tools.consumed(taken)] == [0, 1000, 2000, 3000, 4000]


def test_franz_go_says_how_many_there_were_so_far() -> None:
    lines = [Printed(text, float(at), 2.0 * at) for at, text in enumerate(("0", "x", "7", "90"))]
    assert kafka_tools.counted(lines) == [Progress(2, 7, 4), Progress(3, 90, 6)]


def test_where_no_go_is_installed_franz_go_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert kafka_tools.franz_go() == "franz-go is left out: no Go is installed"
