"""The shipped Grafana dashboard asks for nothing that the Prometheus endpoint does not tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from bench_spark.monitor.endpoints import parse_text
from bench_spark.report.exporter import PREFIX, ExportedRun, exposition
from bench_spark.store.schema import PERCENTILES
from bench_spark.watch.followed_run import StoredWindow

FILE = Path(__file__).parents[3] / "conf" / "grafana" / "bench-spark.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]

WINDOW = StoredWindow(
    datetime(2026, 1, 2, tzinfo=UTC),
    10.0,
    9.0,
    {"latency": {name: 1000 for name, _ in PERCENTILES}},
)
TRIAL = ExportedRun("r", "s", "b", {}, "measure", {"sent": 1, "received_once": 1}, WINDOW)
TOLD = list(parse_text(exposition(TRIAL)))


def expressions() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_every_metric_and_label_that_is_asked_for_is_told(expression: str) -> None:
    asked = set(re.findall(rf"{PREFIX}_\w+", expression))
    assert asked, "a panel without a metric of ours"
    told = {sample.name: set(sample.labels) for sample in TOLD}
    assert asked <= set(told)
    labels = set(re.findall(r"(\w+)\s*=~?\s*\"", expression))
    labels |= set(re.findall(r"label_values\(.*, (\w+)\)", expression))
    assert all(labels <= told[name] for name in asked)


def test_everything_that_is_told_is_shown() -> None:
    shown = set(re.findall(rf"{PREFIX}_\w+", " ".join(expressions())))
    assert {sample.name for sample in TOLD} == shown


def test_legends_name_labels_that_there_are() -> None:
    told = {label for sample in TOLD for label in sample.labels}
    legends = " ".join(t["legendFormat"] for panel in PANELS for t in panel["targets"])
    assert set(re.findall(r"{{(\w+)}}", legends)) <= told


def test_a_fixed_value_of_a_label_is_one_that_is_told() -> None:
    [fixed] = [text for text in expressions() if 'quantile="' in text]
    wanted = dict(re.findall(r'(\w+)="([^$"]+)"', fixed))
    assert any(wanted.items() <= sample.labels.items() for sample in TOLD)


def test_grafana_can_import_it() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= set(DASHBOARD)
    identifiers = [panel["id"] for panel in PANELS]
    assert len(set(identifiers)) == len(identifiers)
    sources = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(PANELS))) - {"__rate_interval"}
    assert used <= sources


def test_no_panel_lies_upon_another() -> None:
    for one, other in combinations((panel["gridPos"] for panel in PANELS), 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)
