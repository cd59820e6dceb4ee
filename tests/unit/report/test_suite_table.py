"""The table of a suite: which numbers stand where, and what stands where there are none."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest
import result_documents as documents

from bench_spark.config.objectives import MEASURES
from bench_spark.config.suite import Suite, Trial, trials_of
from bench_spark.config.suite_loader import load_suite
from bench_spark.report.formatting import in_order
from bench_spark.report.suite import SuiteReport, write_markdown
from bench_spark.report.suite_table import Spread, SuiteTable, TableCell, TrialResult, suite_table

GOLDEN = Path(__file__).parent / "golden"

COLUMNS = """
  columns:
    - {value: latency.p99, aggregation: interval_max, heading: Max 99th}
    - {value: receive_rate, heading: msg/s}
"""


def result(latency_us: int, received: float, *lower_bounds: str, **changes: Any) -> dict[str, Any]:
    """A document whose worst interval has this p50; p99 is 16 times that."""
    percentiles = {
        aggregation: {"latency": documents.statistics(latency_us, *lower_bounds)}
        for aggregation in ("interval_max", "interval_mean")
    }
    return documents.changed(
        measures={"latency": documents.statistics(latency_us // 2)},
        percentiles=percentiles,
        rates={"send_rate": received, "receive_rate": received},
        **changes,
    )


def suite_of(tmp_path: Path, text: str) -> Suite:
    file = tmp_path / "study.yaml"
    file.write_text(f"base: steady\n{text}")
    return load_suite(str(file))


def table_of(suite: Suite, outcome_of: Callable[[Trial], TrialResult | None]) -> SuiteTable:
    outcomes = {trial.key: outcome_of(trial) for trial in trials_of(suite)}
    return suite_table(suite, {key: found for key, found in outcomes.items() if found is not None})


def report_of(table: SuiteTable) -> SuiteReport:
    return SuiteReport(table, "study", "rabbitmq", "bench-store")


def markdown(table: SuiteTable) -> str:
    writer = io.StringIO()
    write_markdown(table, writer)
    return writer.getvalue()


def only_cell(suite: Suite, *outcomes: TrialResult | None) -> TableCell:
    found = iter(outcomes)
    (cell,) = table_of(suite, lambda _: next(found)).cells
    return cell


def shown_figures(cell: TableCell, table: SuiteTable) -> list[Spread | None]:
    """Those of the columns that the suite asks for, none of which may hold words."""
    shown = cell.figures[: len(table.columns)]
    figures = [figure for figure in shown if figure is None or isinstance(figure, Spread)]
    assert len(figures) == len(table.columns)
    return figures


@pytest.fixture
def one_cell(tmp_path: Path) -> Suite:
    return suite_of(tmp_path, f"axes: {{producers: [1]}}\nreport:{COLUMNS}")


@pytest.fixture
def three_times(tmp_path: Path) -> Suite:
    return suite_of(tmp_path, f"axes: {{producers: [1]}}\nrepetitions: 3\nreport:{COLUMNS}")


# ---- golden: the study's own table with everything that can happen to a row


def rates_of_the_study(trial: Trial) -> TrialResult | None:
    match trial.parameters["load.rate_per_second"]:
        case 100:
            return TrialResult(result(50, 100.0))
        case 1000:
            return TrialResult(result(40, 999.9))
        case 10000:
            return None
        case 20000:
            return TrialResult(failure="hook before: timed out after 60 s")
        case 30000:
            return TrialResult(result(1_200, 30_000.0, "p99_us"))
        case 50000:
            reasons = ["the rate was not kept: 41200 of 50000 msg/s"]
            return TrialResult(result(90_000, 41_200.4, status="degraded", reasons=reasons))
        case 80000:
            return TrialResult(documents.never_started())
        case "max":
            return TrialResult(result(150_000, 43_210.9))
        case _:
            scenario = trial.at_rate(41_000).dump()
            note = ">= 41000 msg/s, generator-limited"
            return TrialResult(result(2_000, 40_999.7, scenario=scenario), note=note)


def study_table() -> SuiteTable:
    return table_of(load_suite("rabbitmq-latency-rate"), rates_of_the_study)


def repeated_table(tmp_path: Path) -> SuiteTable:
    suite = suite_of(
        tmp_path,
        f"""
axes:
  amqp.confirms: [0, 10]
  queue: {{plain: {{}}, "lazy | new": {{}}}}
repetitions: 3
skip: [{{when: {{amqp.confirms: 10, queue: plain}}, reason: the broker cannot}}]
report:
  title: Confirms and queues
  across: queue
  headings: {{queue: Queue, amqp.confirms: Unconfirmed}}{COLUMNS}
""",
    )

    def outcome_of(trial: Trial) -> TrialResult | None:
        if trial.parameters == {"amqp.confirms": 0, "queue": "plain"} and trial.repetition == 2:
            return None
        return TrialResult(result(100 * trial.repetition, 1000.0 * trial.repetition))

    return table_of(suite, outcome_of)


PAGES: dict[str, Callable[[Path, TextIO], None]] = {
    "suite_study.md": lambda _, writer: write_markdown(study_table(), writer),
    "suite_study.csv": lambda _, writer: report_of(study_table()).write_csv(writer),
    "suite_repeated.md": lambda path, writer: write_markdown(repeated_table(path), writer),
    "suite_repeated.json": lambda path, writer: report_of(repeated_table(path)).write_json(writer),
}


@pytest.mark.parametrize("name", PAGES)
def test_tables_look_as_they_did(name: str, tmp_path: Path) -> None:
    writer = io.StringIO()
    PAGES[name](tmp_path, writer)
    golden = GOLDEN / name
    if os.environ.get("REFRESH_GOLDEN"):
        golden.write_text(writer.getvalue())
    assert writer.getvalue() == golden.read_text()


# ---- single cells


def test_the_columns_take_the_aggregation_they_ask_for(tmp_path: Path) -> None:
    text = """
axes: {producers: [1]}
report:
  columns:
    - {value: latency.p99}
    - {value: latency.mean, aggregation: interval_mean}
    - {value: latency.p99, aggregation: interval_max}
    - {value: confirm_latency.p99}
    - {value: send_rate}
    - {value: delivery_rate}
"""
    suite = suite_of(tmp_path, text)
    document = result(100, 5.0, delivery_rate=0.5)
    document["percentiles"]["interval_mean"]["latency"]["mean_us"] = 77.0
    table = table_of(suite, lambda _: TrialResult(document))
    (cell,) = table.cells
    found = [figure and figure.median for figure in shown_figures(cell, table)]
    assert found == [50 * 16, 77.0, 100 * 16, None, 5.0, 0.5]
    assert [column.name for column in table.columns] == [
        "latency_p99_us",
        "interval_mean_latency_mean_us",
        "interval_max_latency_p99_us",
        "confirm_latency_p99_us",
        "send_rate",
        "delivery_rate",
    ]
    assert "| 1 | 800 us | 77 us | 1.60 ms | - | 5 | 50 % |" in markdown(table)


@pytest.mark.parametrize(
    ("modes", "heading", "expected"),
    [
        ("[rate]", "delivery latency p99", [3200.0]),
        ("[maximum]", "latency p99", [800.0]),
        ("[rate, maximum]", "delivery latency or latency p99", [3200.0, 800.0]),
    ],
)
def test_a_statistic_alone_is_of_the_delivery_latency_in_open_loops_and_says_so(
    tmp_path: Path, modes: str, heading: str, expected: list[float]
) -> None:
    text = f"""
axes: {{load.mode: {modes}}}
report:
  columns: [{{value: p99}}]
"""

    def outcome(trial: Trial) -> TrialResult:
        document = result(100, 5.0)
        if trial.scenario.load.mode == "rate":
            document["measures"]["delivery_latency"] = documents.statistics(200)
        return TrialResult(document)

    table = table_of(suite_of(tmp_path, text), outcome)
    assert [column.heading for column in table.columns] == [heading]
    assert [shown_figures(cell, table)[0].median for cell in table.cells] == expected


def test_repetitions_become_their_median_with_the_extremes(three_times: Suite) -> None:
    cell = only_cell(three_times, *(TrialResult(result(us, 10.0 * us)) for us in (30, 10, 20)))
    latency, received, *_ = cell.figures
    assert isinstance(latency, Spread)
    assert (latency.lowest, latency.median, latency.highest) == (160, 320, 480)
    assert isinstance(received, Spread)
    assert (received.lowest, received.median, received.highest) == (100, 200, 300)
    assert (cell.status, len(cell.trials), cell.measured, cell.notes) == ("valid", 3, 3, ())


@pytest.mark.parametrize(
    ("bounded", "is_lower_bound"), [((10,), True), ((20,), True), ((30,), False), ((), False)]
)
def test_a_lower_bound_above_the_median_does_not_touch_it(
    three_times: Suite, bounded: tuple[int, ...], is_lower_bound: bool
) -> None:
    outcomes = [
        TrialResult(result(us, 1.0, *(["p99_us"] if us in bounded else []))) for us in (10, 20, 30)
    ]
    latency, *_ = only_cell(three_times, *outcomes).figures
    assert isinstance(latency, Spread)
    assert latency.is_lower_bound == is_lower_bound


def test_a_repetition_that_is_missing_or_failed_is_told_beside_the_others(
    three_times: Suite,
) -> None:
    cell = only_cell(
        three_times, TrialResult(result(10, 1.0)), None, TrialResult(failure="no broker")
    )
    assert (cell.status, len(cell.trials), cell.measured) == ("missing", 3, 1)
    assert cell.notes == ("repetition 2 missing: not run", "repetition 3 failed: no broker")


@pytest.mark.parametrize(
    ("outcome", "status", "note"),
    [
        (None, "missing", "missing: not run"),
        (TrialResult(), "missing", "missing: not run"),
        (TrialResult(failure="no\nbroker"), "failed", "failed: no broker"),
        (
            TrialResult(result(1, 1.0, status="aborted", reasons=["interrupted"])),
            "failed",
            "failed: interrupted",
        ),
        (TrialResult(result(1, 1.0, status="failed")), "failed", "failed: failed"),
    ],
)
def test_a_cell_without_a_result_says_what_it_lacks(
    one_cell: Suite, outcome: TrialResult | None, status: str, note: str
) -> None:
    cell = only_cell(one_cell, outcome)
    assert (cell.status, cell.measured, cell.notes) == (status, 0, (note,))
    assert set(cell.figures) == {None}


def test_a_degraded_result_keeps_its_numbers_and_gets_a_mark(one_cell: Suite) -> None:
    outcome = TrialResult(result(100, 7.0, status="degraded", reasons=["a", "b"]))
    text = markdown(table_of(one_cell, lambda _: outcome))
    assert "| 1 | 1.60 ms [1] | 7 [1] |" in text
    assert "[1] degraded: a; b" in text


def test_warnings_machines_and_brokers_of_the_trials_are_told(three_times: Suite) -> None:
    def outcome(trial: Trial) -> TrialResult:
        busy = {"name": "host_cpu", "verdict": "warn", "text": f"busy {trial.repetition}"}
        bounds = [
            {"name": "lower_bounds", "verdict": "warn", "text": f"{name}: p99"} for name in "ab"
        ]
        passed = {"name": "schedule", "verdict": "pass", "text": "all sent"}
        checks = [passed, busy, *(bounds if trial.repetition == 2 else [])]
        version = "4.0" if trial.repetition == 1 else "4.1"
        facts = {"product": "RabbitMQ", "version": version}
        environment = {"hosts": [{"cores": 2, "cpu": "c", "memory_bytes": 10**9}], "broker": facts}
        found = result(1, 1.0, audit={"checks": checks}, environment=environment)
        return TrialResult(found)

    table = table_of(three_times, outcome)
    *brokers, machine = table.surroundings
    assert [text.rpartition(", ")[2] for _, text in brokers] == ["RabbitMQ 4.0", "RabbitMQ 4.1"]
    assert machine == ("machine", "2 cores (c), 1.00 GB of memory")
    found = [(one.check, one.trials, one.of_trials, one.text) for one in table.warnings]
    assert found == [("host_cpu", 3, 3, "busy 1"), ("lower_bounds", 1, 3, "a: p99; b: p99")]
    text = markdown(table)
    assert "- machine: 2 cores (c), 1.00 GB of memory\n" in text
    assert "- warning: host cpu: 3 of 3 trials, first " in text
    assert "all sent" not in text
    sheet = io.StringIO()
    report_of(table).write_csv(sheet)
    [row] = csv.DictReader(io.StringIO(sheet.getvalue()))
    assert row["warnings"].startswith("host_cpu: busy 1; host_cpu: busy 2; lower_bounds: a: p99")


@pytest.mark.parametrize("end", ["trials", "disputed", "nothing_kept"])
def test_a_search_whose_answer_is_doubtful_is_degraded(one_cell: Suite, end: str) -> None:
    note = "9,000 msg/s, not settled: 9,000 to 9,400 msg/s"
    doubtful = only_cell(one_cell, TrialResult(result(1, 1.0), note=note, search_end=end))
    assert (doubtful.status, doubtful.measured) == ("degraded", 1)
    assert doubtful.notes[0].startswith("degraded: ")
    assert doubtful.notes[1] == note
    assert doubtful.is_settled is (end == "nothing_kept")
    settled = only_cell(one_cell, TrialResult(result(1, 1.0), search_end="settled"))
    assert (settled.status, settled.is_settled) == ("valid", True)
    assert only_cell(one_cell, TrialResult(result(1, 1.0))).is_settled is None


RESOURCES = """
axes: {producers: [1]}
report:
  columns:
    - {value: broker_cpu_user}
    - {value: broker_cpu_system, heading: sys}
    - {value: flow_state}
    - {value: scheduler_utilisation}
"""


def uses(host: str, user: float | None, system: float | None) -> dict[str, Any]:
    return {"host": host, "cpu_user_share_of_machine": user, "cpu_system_share_of_machine": system}


@pytest.mark.parametrize(
    ("resources", "cells"),
    [
        ({}, "unknown | unknown | unknown | unknown"),
        (
            {
                "broker": {"a": uses("one", 0.25, 0.125)},
                "flow": {"state": "intermittent"},
                "scheduler_utilisation": {"scheduler_1": 0.5, "scheduler_2": 0.75},
            },
            "25.0 % | 12.5 % | intermittent | 1: 50.0 %, 2: 75.0 %",
        ),
        # Two sources of one machine, of which one cannot read all, and a second machine.
        (
            {
                "broker": {
                    "a": uses("one", 0.2, 0.1),
                    "b": uses("one", 0.4, None),
                    "c": uses("two", 0.6, 0.3),
                },
                "flow": {"state": "unknown", "share": None, "polls": 0},
                "scheduler_utilisation": None,
            },
            "50.0 % | 20.0 % | unknown | unknown",
        ),
    ],
)
def test_what_the_broker_used_is_told_or_unknown(
    tmp_path: Path, resources: dict[str, Any], cells: str
) -> None:
    suite = suite_of(tmp_path, RESOURCES)
    table = table_of(suite, lambda _: TrialResult(result(1, 1.0, resources=resources)))
    assert f"| 1 | {cells} |" in markdown(table)
    sheet, document = io.StringIO(), io.StringIO()
    report_of(table).write_csv(sheet)
    report_of(table).write_json(document)
    [row] = csv.DictReader(io.StringIO(sheet.getvalue()))
    [cell] = json.loads(document.getvalue())["cells"]
    user, _, state, schedulers = cells.split(" | ")
    assert (row["flow_state"], row["scheduler_utilisation"]) == (state, schedulers)
    assert cell["values"]["flow_state"] == state
    if user == "unknown":
        assert row["broker_cpu_user"] == cell["values"]["broker_cpu_user"] == "unknown"
    else:
        assert float(row["broker_cpu_user"]) == float(user.removesuffix(" %")) / 100
        assert cell["values"]["broker_cpu_user"]["median"] == float(row["broker_cpu_user"])


def test_repetitions_tell_every_state_once(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, f"repetitions: 3{RESOURCES}")
    states = iter(["never", "intermittent", "never"])
    table = table_of(
        suite, lambda _: TrialResult(result(1, 1.0, resources={"flow": {"state": next(states)}}))
    )
    assert "| never; intermittent |" in markdown(table)


def test_what_trials_took_beside_their_loads_is_told(three_times: Suite) -> None:
    took = iter([0.5, None, 1.0])
    table = table_of(
        three_times, lambda _: TrialResult(result(1, 1.0, overhead_seconds=next(took, None)))
    )
    assert table.mean_overhead_seconds == 0.75
    assert "A trial took 0.8 s on average beside warm-up, load and drain." in markdown(table)
    sheet, document = io.StringIO(), io.StringIO()
    report_of(table).write_csv(sheet)
    report_of(table).write_json(document)
    [row] = csv.DictReader(io.StringIO(sheet.getvalue()))
    found = json.loads(document.getvalue())
    assert row["overhead_seconds"] == "0.75"
    assert found["mean_overhead_seconds"] == 0.75
    assert found["cells"][0]["overhead_seconds"] == [0.5, 1.0]


def test_programs_get_throughput_and_resources_whatever_the_suite_shows(one_cell: Suite) -> None:
    sheet = io.StringIO()
    table = table_of(one_cell, lambda _: TrialResult(result(100, 7.0)))
    report_of(table).write_csv(sheet)
    [row] = csv.DictReader(io.StringIO(sheet.getvalue()))
    assert (row["send_rate"], row["receive_rate"], row["flow_state"]) == ("7.0", "7.0", "unknown")


def test_values_that_python_takes_for_the_same_have_rows_of_their_own(tmp_path: Path) -> None:
    suite = suite_of(tmp_path, "parameters: {x: any}\naxes: {x: [1, true, '1']}\n")
    table = table_of(suite, lambda trial: TrialResult(result(10 * trial.number, 1.0)))
    rows = markdown(table).splitlines()[4:7]
    assert [row.split("|")[1].strip() for row in rows] == ["1", "true", "1"]
    assert len({row.split("|")[3] for row in rows}) == 3


def test_csv_and_json_have_every_cell(tmp_path: Path) -> None:
    suite = load_suite("rabbitmq-latency-queue-types")
    table = suite_table(suite, {})
    sheet, document = io.StringIO(), io.StringIO()
    report_of(table).write_csv(sheet)
    report_of(table).write_json(document)
    rows = list(csv.DictReader(io.StringIO(sheet.getvalue())))
    cells = json.loads(document.getvalue())["cells"]
    assert len(rows) == len(cells) == 25
    assert {row["status"] for row in rows} == {cell["status"] for cell in cells} == {"missing"}
    assert [row["queue"] for row in rows] == [cell["parameters"]["queue"] for cell in cells]


def test_a_suite_can_ask_for_every_measure_that_a_report_knows() -> None:
    assert in_order(MEASURES) == list(MEASURES)
