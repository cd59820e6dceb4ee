"""Figures of a suite: which axis lies where, and what they hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import result_documents as documents

from bench_spark.config.suite import Trial, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.errors import ConfigurationError
from bench_spark.report.suite import SuiteFigure, suite_figures
from bench_spark.report.suite_table import TrialResult, suite_table

COLUMNS = "columns: [{value: latency.p99}]"


def figures(
    tmp_path: Path, text: str, outcome: Callable[[Trial], TrialResult] | None = None
) -> list[SuiteFigure]:
    file = tmp_path / "study.yaml"
    file.write_text(f"base: steady\n{text}")
    suite = load_suite(str(file))
    found = {trial.key: (outcome or result)(trial) for trial in trials_of(suite)}
    return suite_figures(suite_table(suite, found))


def result(trial: Trial, **changes: Any) -> TrialResult:
    rate = 100.0 * trial.number
    used = {"host": "h", "written_bytes": 5_000_000, "device_written_bytes": 1_000_000}
    used |= {"cpu_user_share_of_machine": 0.25, "cpu_system_share_of_machine": 0.05}
    return TrialResult(
        documents.changed(
            rates={"send_rate": rate, "receive_rate": rate},
            resources={"broker": {"node": used}},
            **changes,
        )
    )


def lines(figure: SuiteFigure) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in figure.spec["data"]["values"]:
        found.setdefault(row["series"], []).append(row["x"])
    return found


def test_throughput_cpu_and_disk_are_drawn_beside_the_columns(tmp_path: Path) -> None:
    found = figures(tmp_path, f"axes: {{producers: [1, 2]}}\nreport: {{{COLUMNS}}}")
    assert [figure.name for figure in found] == [
        *("latency_p99_us", "send_rate", "receive_rate"),
        *("broker_cpu_user", "broker_cpu_system", "broker_written", "broker_device_written"),
    ]
    by_name = {figure.name: figure for figure in found}
    assert [row["y"] for row in by_name["broker_written"].spec["data"]["values"]] == [5.0, 5.0]
    assert by_name["broker_cpu_user"].caption == "broker CPU user, %"
    assert by_name["broker_cpu_user"].rows == [
        ["1", "broker CPU user", "25.0 %"],
        ["2", "broker CPU user", "25.0 %"],
    ]


def test_the_axis_with_the_most_numbers_lies_along_the_bottom(tmp_path: Path) -> None:
    first = figures(
        tmp_path,
        "axes: {queue: {plain: {}, lazy: {}, other: {}}, message.bytes: [1000, 100], "
        "consumers: [1, 2]}\nreport: {headings: {consumers: Consumers}}",
    )[0]
    assert lines(first) == {
        f"queue {queue}, message.bytes {size}": [1, 2]
        for queue in ("plain", "lazy", "other")
        for size in (1000, 100)
    }
    assert first.headings == ["Consumers", "series", "received msg/s"]


def test_numbers_are_drawn_in_their_order(tmp_path: Path) -> None:
    first = figures(tmp_path, "axes: {message.bytes: [1000, 100, 500]}")[0]
    assert list(lines(first).values()) == [[100, 500, 1000]]


def test_axes_that_are_zipped_with_it_make_no_lines(tmp_path: Path) -> None:
    text = "axes: {producers: [1, 2], consumers: [1, 2]}\nzip: [[producers, consumers]]"
    assert list(lines(figures(tmp_path, text)[0]).values()) == [[1, 2]]


def test_too_many_lines_make_further_figures(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        "axes: {producers: [1, 2, 3], amqp.confirms: [0, 1, 2], message.bytes: "
        f"{{from: 100, to: 400, step: 100}}}}\nreport: {{{COLUMNS}}}",
    )
    names = [figure.name for figure in found if figure.name.startswith("latency")]
    assert names == ["latency_p99_us-1", "latency_p99_us-2", "latency_p99_us-3"]
    assert list(lines(found[0])) == [f"amqp.confirms {confirms}" for confirms in (0, 1, 2)]
    assert found[0].caption == "latency p99 (producers 1)"


def test_a_study_may_choose_its_axes(tmp_path: Path) -> None:
    found = figures(
        tmp_path,
        "axes: {producers: [1, 2, 3], message.bytes: [100, 200], amqp.confirms: [0, 1]}\n"
        f"report: {{{COLUMNS}, figures: {{x: amqp.confirms, series: producers}}}}",
    )
    assert lines(found[0]) == {f"producers {number}": [0, 1] for number in (1, 2, 3)}
    assert [figure.name for figure in found[:2]] == ["latency_p99_us-100", "latency_p99_us-200"]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ("x: produces", "report.figures.x: .*did you mean producers"),
        ("x: producers, series: producers", "report.figures.series: producers is along the bottom"),
    ],
)
def test_axes_that_are_not_there_are_refused(tmp_path: Path, chosen: str, told: str) -> None:
    text = f"axes: {{producers: [1, 2]}}\nreport: {{figures: {{{chosen}}}}}"
    with pytest.raises(ConfigurationError, match=told):
        figures(tmp_path, text)


def test_a_rate_that_was_found_stands_where_it_is(tmp_path: Path) -> None:
    first = figures(tmp_path, "axes: {load.rate_per_second: [500, 700, max]}")[0]
    assert list(lines(first).values()) == [[300, 500, 700]]


def test_words_keep_the_order_of_the_file(tmp_path: Path) -> None:
    first = figures(tmp_path, "axes: {queue: {plain: {}, lazy: {}}}")[0]
    assert list(lines(first).values()) == [["plain", "lazy"]]


def test_repetitions_have_their_extremes(tmp_path: Path) -> None:
    found = figures(tmp_path, "axes: {producers: [1, 2]}\nrepetitions: 3")
    row = found[0].spec["data"]["values"][0]
    assert (row["y"], row["low"], row["high"]) == (300.0, 100.0, 500.0)


def test_what_was_not_measured_leaves_a_hole(tmp_path: Path) -> None:
    def only_odd(trial: Trial) -> TrialResult:
        return result(trial) if trial.number % 2 else TrialResult(failure="the broker refused it")

    found = figures(tmp_path, "axes: {producers: [1, 2, 3]}", only_odd)
    assert list(lines(found[0]).values()) == [[1, 3]]
    assert figures(tmp_path, "axes: {producers: [1]}", lambda _: TrialResult(failure="no")) == []
