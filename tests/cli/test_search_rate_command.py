"""`bench-spark search-rate` end to end, in this process: on the shared Spark session, and with a
simulated engine for outcomes that a real broker does not give on demand."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest

from bench_spark.cli import main
from bench_spark.config.models import Scenario
from bench_spark.errors import (
    EXIT_DATA_LOST,
    EXIT_DEGRADED,
    EXIT_GATE_MISSED,
    EXIT_INTERRUPTED,
    EXIT_VALID,
)
from bench_spark.results.document import RunSummary
from bench_spark.results.facts import judged_objectives
from bench_spark.store.delta import Store

QUICK = (
    *("--set", "phases.warmup_seconds=0.1", "--set", "phases.measure_seconds=0.5"),
    *("--set", "phases.drain_seconds=2", "--set", "load.backlog_limit_bytes=100000"),
)
CONSUMER_PER_SECOND = 2000.0


@pytest.mark.usefixtures("spark")
def test_a_search_for_a_rate_tells_its_trials_and_its_answer(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plot, table = tmp_path / "knee.svg", tmp_path / "trials.csv"
    code = main(
        [
            *(
                "search-rate",
                "steady",
                "--broker",
                "loopback",
                "--trials",
                "4",
                "--tag",
                "why=test",
            ),
            *("--store", str(tmp_path / "store"), "--plot", str(plot), "--slo", "p99 < 9s"),
            *("--format", "json", "--format", "terminal", "--format", f"csv={table}", *QUICK),
            *("--set", f"consumer.rate_per_second={CONSUMER_PER_SECOND:g}"),
        ]
    )
    said = capfd.readouterr()
    document = json.loads(said.out)

    unthrottled, *paced = document["trials"]
    assert 1 <= len(paced) <= 3
    assert unthrottled["rate_per_second"] is unthrottled["kept"] is None
    assert 0 < document["unthrottled_per_second"] <= 1.1 * CONSUMER_PER_SECOND
    first = document["unthrottled_per_second"] * 0.6**0.5
    assert paced[0]["rate_per_second"] == pytest.approx(first, rel=0.001)
    kept = [trial["rate_per_second"] for trial in paced if trial["kept"]]
    assert document["rate_per_second"] == max(kept, default=None)
    assert all(trial["why"] for trial in paced if not trial["kept"])
    # What a starved machine makes of so short a load is not known here, but the code says it.
    answer = next(trial for trial in paced if trial["run_id"] == document["run_id"])
    is_good = document["is_settled"] and answer["kept"] and answer["status"] == "valid"
    assert code == (EXIT_VALID if is_good else EXIT_DEGRADED)
    assert document["status"] == ("valid" if is_good else "degraded")
    for trial in paced:
        [stored_run] = Store(tmp_path / "store").read("runs", run_id=trial["run_id"]).to_pylist()
        checks = json.loads(stored_run["result_json"])["audit"]["checks"]
        assert trial["limit"] == "" or trial["limit"] in {check["text"] for check in checks}
    assert answer["p50_us"] <= answer["p99_us"]
    assert document["measure"] == "delivery_latency"

    lines = said.err.splitlines()
    assert lines[0].startswith("searching the highest rate: probably 4 trials in about")
    assert sum(line.startswith("trial ") for line in lines) == len(document["trials"])
    assert "steady on loopback" in lines

    runs = Store(tmp_path / "store").read("runs").to_pylist(maps_as_pydicts="strict")
    stored = {run["run_id"]: run for run in runs}
    assert stored.keys() == {trial["run_id"] for trial in document["trials"]}
    at_most = stored[unthrottled["run_id"]]
    assert at_most["parameters"] == {"load.rate_per_second": "max"}
    checked = json.loads(at_most["result_json"])["audit"]["checks"]
    assert {"accounts", "settled"} <= {check["name"] for check in checked}
    for trial in paced:
        run = stored[trial["run_id"]]
        load = json.loads(run["scenario_json"])["load"]
        assert (load["mode"], load["rate_per_second"]) == ("rate", trial["rate_per_second"])
        assert float(run["parameters"]["load.rate_per_second"]) == trial["rate_per_second"]
        assert run["tags"]["why"] == "test"
    assert len({run["suite"] for run in runs}) == 1

    assert ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert len(table.read_text().splitlines()) == len(document["trials"]) + 1


# -- outcomes that a real broker does not give on demand ------------------------------------------


@dataclass(frozen=True)
class Ticked:
    """One second of one role."""

    role: str
    start_seconds: float
    counted: int
    phase: str = "measure"
    tick_seconds: float = 1.0

    def counter(self, name: str) -> int:
        return self.counted


def late(limited_by: str, text: str) -> dict[str, str]:
    """What the audit of a run says that did not keep its rate."""
    return {"name": "schedule", "verdict": "fail", "text": text, "limited_by": limited_by}


@dataclass
class SimulatedBroker:
    """Keeps rates up to its capacity; latency is that of a queue, 1 ms when it is idle."""

    capacity: float = 10_000.0
    is_unsteady: bool = False
    """Moves only half of a rate that it is asked for again."""
    late: dict[str, str] = field(default_factory=lambda: late("broker", "took no more"))
    outcome_of: Callable[[Scenario], tuple[str, int] | None] = field(default=lambda _: None)
    scenarios: list[Scenario] = field(default_factory=list)

    def moved(self, scenario: Scenario) -> tuple[float, float]:
        is_paced = scenario.load.mode == "rate"
        counted = scenario.producers if scenario.load.scope == "per_producer" else 1
        asked = scenario.load.rate_per_second * counted if is_paced else self.capacity
        times = [known.load.rate_per_second for known in self.scenarios if is_paced]
        is_tired = self.is_unsteady and times.count(scenario.load.rate_per_second) > 1
        return asked, min(asked, self.capacity) * (0.5 if is_tired else 1.0)

    def document(self, run_id: str, scenario: Scenario) -> tuple[dict[str, Any], int]:
        self.scenarios.append(scenario)
        asked, moved = self.moved(scenario)
        is_kept = moved == asked < self.capacity
        p50_us = 1000 / (1 - asked / self.capacity) if is_kept else 2e6
        latency = {"p50_us": p50_us, "p99_us": 3 * p50_us, "lower_bounds": []}
        measures = {"latency": latency}
        if scenario.load.mode == "rate":
            measures["delivery_latency"] = latency
        status, code = ("valid", EXIT_VALID) if is_kept else ("degraded", EXIT_DEGRADED)
        document: dict[str, Any] = {
            "run_id": run_id,
            "counts": {"due": asked * 5, "sent": moved * 5, "received_once": moved * 5},
            "rates": {"send_rate": moved, "receive_rate": moved},
            "audit": {"checks": [] if is_kept else [self.late]},
            "measures": measures,
        }
        document["slo"] = judged_objectives(scenario.slo, document)
        if code == EXIT_VALID and not all(one["met"] for one in document["slo"]):
            code = EXIT_GATE_MISSED
        status, code = self.outcome_of(scenario) or (status, code)
        return document | {"status": status}, code


class SimulatedEngine:
    """Answers as the engine does, for the broker given."""

    broker: ClassVar[SimulatedBroker]

    def __init__(self, *_: object) -> None:
        pass

    def run(self, request: Any) -> RunSummary:
        document, code = self.broker.document(request.plan.run_id, request.plan.scenario)
        return RunSummary(document, code, {})

    def close(self) -> None:
        pass


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch, without_session: None) -> SimulatedBroker:
    broker = SimulatedBroker()

    def ticks(store: object, run_id: str) -> list[Ticked]:
        moved = round(broker.moved(broker.scenarios[-1])[1])
        seconds = [float(second) for second in range(5)]
        return [Ticked(role, at, moved) for at in seconds for role in ("producer", "consumer")]

    monkeypatch.setattr("bench_spark.spark.engine.Engine", SimulatedEngine)
    monkeypatch.setattr("bench_spark.spark.merge.merged_ticks_here", ticks)
    monkeypatch.setattr(SimulatedEngine, "broker", broker, raising=False)
    return broker


@pytest.fixture
def search(
    simulated: SimulatedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def searched(*more: str) -> tuple[int, str, str]:
        store = ("--store", str(tmp_path / "store"))
        code = main(["search-rate", "steady", "--broker", "loopback", *store, *more])
        said = capsys.readouterr()
        return code, said.out, said.err

    return searched


Search = Callable[..., tuple[int, str, str]]


def test_degraded_trials_above_the_answer_do_not_spoil_it(search: Search) -> None:
    code, out, err = search()
    assert code == EXIT_VALID, err
    assert "  limit     the broker: " in out
    assert "  degraded: unthrottled; bench-spark show steady-loopback-" in out
    assert " msg/s, not kept; bench-spark show steady-loopback-" in out
    assert "trial 1: unthrottled, 10,000 msg/s received, degraded\n" in err
    assert "trial 2: 7,746 msg/s kept\n" in err
    assert "trial 3: 12,000 msg/s not kept, 83.3 % sent in time, degraded\n" in err


def test_the_answer_is_as_close_as_asked_for(search: Search) -> None:
    _, out, _ = search("--format", "json", "--precision", "0.005")
    document = json.loads(out)
    assert document["rate_per_second"] < 10_000 <= document["above_per_second"]
    assert document["above_per_second"] / document["rate_per_second"] <= 1.005
    assert document["end"] == "settled"


def test_an_objective_is_held_by_every_rate_that_counts_as_kept(search: Search) -> None:
    code, out, err = search("--format", "json", "--slo", "delivery_latency.p99 < 6ms")
    assert code == EXIT_VALID, err
    document = json.loads(out)
    assert document["rate_per_second"] <= 5_000 <= document["above_per_second"]
    assert document["objective"] == "delivery_latency.p99 < 6ms"
    assert document["limited_by"] == "broker"
    assert document["p99_us"] < 6_000
    missed = [trial["why"] for trial in document["trials"] if trial["objective"]]
    assert missed
    assert all(why.startswith("delivery_latency.p99 < 6ms: ") for why in missed)


def test_a_rate_is_that_of_the_whole_run(simulated: SimulatedBroker, search: Search) -> None:
    sizes = ("--set", "producers=4", "--set", "consumers=4")
    _, out, _ = search("--format", "json", *sizes, "--set", "load.scope=per_producer")
    document = json.loads(out)
    assert document["rate_per_second"] < 10_000 <= document["above_per_second"]
    assert simulated.scenarios[-1].producers == 4

    agents = ("--set", "agents=2", "--set", "load.scope=per_agent")
    _, out, _ = search("--format", "json", *agents)
    document = json.loads(out)
    assert document["rate_per_second"] < 10_000 <= document["above_per_second"]
    assert simulated.scenarios[-1].producers == 2


@pytest.mark.parametrize(
    ("limited_by", "shown"), [("generator", "the generator"), ("host", "the host's CPU")]
)
def test_a_limit_that_is_not_the_brokers_makes_a_lower_bound(
    simulated: SimulatedBroker, search: Search, limited_by: str, shown: str
) -> None:
    simulated.late = late(limited_by, "so the audit of the trial has it")
    code, out, _ = search()
    assert code == EXIT_VALID
    assert "  highest   >= 9," in out
    [limit] = [line for line in out.splitlines() if line.startswith("  limit ")]
    assert limit.startswith(f"  limit     {shown}: ")
    assert limit.endswith("; so the audit of the trial has it")


def test_trials_at_the_same_rate_that_disagree_are_both_shown(
    simulated: SimulatedBroker, search: Search
) -> None:
    simulated.is_unsteady = True
    code, out, err = search("--trials", "10", "--format", "json", "--format", "terminal")
    document = json.loads(out)
    assert (code, document["status"]) == (EXIT_DEGRADED, "degraded")
    assert (document["end"], document["is_settled"]) == ("disputed", False)
    kept, refused = (document["trials"][number - 1] for number in document["edge_trials"])
    assert kept["rate_per_second"] == refused["rate_per_second"]
    assert (kept["kept"], refused["kept"]) == (True, False)
    assert document["range_low_per_second"] < kept["rate_per_second"]
    assert kept["rate_per_second"] < document["range_high_per_second"]
    assert "  settled   NO: trials at about the same rate disagree\n" in err
    folded = " ".join(err.split())
    for trial, word in ((kept, "kept"), (refused, "not kept")):
        moved = f"{trial['rate_per_second']:,.0f} msg/s, {trial['received_per_second']:,.0f}"
        assert f" {word} {moved} received, p50 " in folded


def test_without_a_rate_that_was_kept_the_search_has_failed(search: Search) -> None:
    code, out, _ = search("--slo", "p99 < 100us")
    assert code == EXIT_DEGRADED
    assert "  highest   none: 1 msg/s was not kept\n" in out
    assert "  ended as  no rate was kept, down to the lowest there is\n" in out


def test_an_answer_that_is_degraded_is_none_to_trust(
    simulated: SimulatedBroker, search: Search
) -> None:
    simulated.outcome_of = lambda _: ("degraded", EXIT_DEGRADED)
    code, out, _ = search()
    assert code == EXIT_DEGRADED
    assert " msg/s, kept; bench-spark show " in out


def test_lost_messages_of_any_trial_decide_the_exit_code(
    simulated: SimulatedBroker, search: Search
) -> None:
    def outcome(scenario: Scenario) -> tuple[str, int] | None:
        return ("degraded", EXIT_DATA_LOST) if scenario.load.mode == "maximum" else None

    simulated.outcome_of = outcome
    assert search()[0] == EXIT_DATA_LOST


def test_an_interrupted_trial_ends_the_search(simulated: SimulatedBroker, search: Search) -> None:
    def outcome(scenario: Scenario) -> tuple[str, int] | None:
        is_third = len(simulated.scenarios) == 3
        return ("aborted", EXIT_INTERRUPTED) if is_third else None

    simulated.outcome_of = outcome
    code, out, err = search()
    assert (code, out) == (EXIT_INTERRUPTED, "")
    assert "interrupted; 2 whole trials are in the store" in err


def test_a_run_that_moved_nothing_is_no_beginning(
    simulated: SimulatedBroker, search: Search
) -> None:
    simulated.capacity = 0.0
    code, _, err = search()
    assert code == EXIT_DEGRADED
    assert "the unthrottled run received nothing" in err


def test_an_objective_that_the_runs_do_not_know_ends_the_search(search: Search) -> None:
    code, _, err = search("--slo", "confirm_latency.p99 < 5ms")
    assert code == EXIT_DEGRADED
    assert "slo: confirm_latency.p99 < 5ms: not known of run steady-loopback-" in err


def test_phases_too_short_to_see_a_backlog_are_said_to_be(search: Search) -> None:
    said = "phases.measure_seconds: too short to see whether a backlog grows"
    assert said in search("--set", "phases.measure_seconds=1")[2]
    assert said not in search()[2]


def test_spark_submit_has_a_job_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = str(Path(__file__).parents[2] / "jobs" / "search_rate.py")
    monkeypatch.setattr("sys.argv", [job, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(job, run_name="__main__")
    assert ended.value.code == EXIT_VALID
    assert "Usage: bench-spark search-rate " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "load.rate_per_second=5"], "load.rate_per_second: the search sets this itself"),
        (["--set", "load.mode=window"], "load.mode: the search sets this itself"),
        (["--set", "consumers=0"], "consumers: 0, but a rate is kept when all that is sent"),
        (["--set", "producers=0"], "producers: 0, but a rate is kept when all that is sent"),
        (
            ["--set", "load.steps=[{seconds: 1, rate_per_second: 10}]"],
            "load.steps: the rate that is searched for does not change",
        ),
        (["--set", "sampling.samples=5"], "sampling.samples: needs load.mode window or maximum"),
        (["--slo", "receive_rate > 9000"], "slo: receive_rate > 9000: is about the rate"),
        (["--slo", "p99 is good"], "--slo: 'p99 is good'"),
        (["--precision", "0"], "--precision: 0 is no share to come close to"),
        (["--precision", "nan"], "--precision: nan"),
        (["--trials", "1"], "--trials"),
        (["--plot", "knee.pdf"], "--plot: knee.pdf: allowed"),
        (["--format", "pdf"], "--format: 'pdf' is unknown"),
    ],
)
def test_what_has_no_rate_to_be_found_is_refused(
    search: Search, simulated: SimulatedBroker, arguments: list[str], problem: str
) -> None:
    code, _, err = search(*arguments)
    assert code == 2
    assert problem in " ".join(err.split())
    assert simulated.scenarios == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("load: {mode: request}", "load.mode: request has senders that wait"),
        (
            "dataset: {table: t, columns: {interval: i}}",
            "dataset.columns.interval: the records have a pace of their own",
        ),
    ],
)
def test_scenarios_without_a_rate_to_be_found_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{text}\n")
    assert main(["search-rate", str(file), "--broker", "loopback"]) == 2
    assert problem in capsys.readouterr().err
