"""docs/coming-from.md says what the importers do, and names keys that exist."""

from __future__ import annotations

import re
from pathlib import Path

from bench_spark.config.broker import Broker
from bench_spark.config.models import Scenario
from bench_spark.config.problems import all_keys
from tools.importer_tables import TABLES, with_tables

DOCUMENT = Path(__file__).parents[3] / "docs" / "coming-from.md"

_ROW = re.compile(r"^\| [^|]*\| (?P<keys>[^|]*)\|", re.MULTILINE)


def test_the_tables_are_those_of_the_importers() -> None:
    text = DOCUMENT.read_text()
    for name in TABLES:
        assert f"<!-- table: {name} -->" in text
    assert with_tables(text) == text, "python -m tools.importer_tables docs/coming-from.md"


def test_every_key_that_a_table_names_exists() -> None:
    scenario_keys = {key.dotted for key in all_keys(Scenario)}
    broker_keys = {f"broker:{key.dotted}" for key in all_keys(Broker)}
    named = {
        key
        for row in _ROW.finditer(DOCUMENT.read_text())
        for key in re.findall(r"`([^`]+)`", row["keys"])
    }
    assert len(named) > 40
    assert named - scenario_keys - broker_keys == set()
