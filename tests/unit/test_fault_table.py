"""docs/reliability.md tells of every case of the fault suite, and of tests that are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fault_table", ROOT / "tools" / "fault_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documented(tool: ModuleType) -> dict[int, list[str]]:
    text = tool.DOCUMENT.read_text()
    inside = text.partition(tool.BEGIN)[2].partition(tool.END)[0]
    rows = [line.strip("| ").split(" | ") for line in inside.splitlines() if line.startswith("| ")]
    return {int(cells[0]): cells for cells in rows if cells[0].isdecimal()}


def test_every_case_is_in_the_document_with_what_was_seen(tool: ModuleType) -> None:
    rows = documented(tool)
    assert list(rows) == list(tool.CASES) == list(range(1, 21))
    for number, (fault, expected) in tool.CASES.items():
        assert rows[number][1:3] == [fault, expected], "run `make test-faults`"
        assert "not run" not in rows[number][-1]


def test_every_case_has_a_test_that_is_marked_with_it(tool: ModuleType) -> None:
    marked = {
        int(found)
        for path in (ROOT / "tests").rglob("test_*.py")
        for found in re.findall(r"pytest\.mark\.fault\(case=(\d+)\)", path.read_text())
    }
    assert marked == set(tool.CASES)


def test_a_row_tells_figures_outcomes_and_where_the_tests_are(tool: ModuleType) -> None:
    results = [
        {"test": "tests/a/test_a.py::x", "cases": [1], "outcome": "passed", "slow": True},
        {"test": "tests/a/test_a.py::y", "cases": [1, 2], "outcome": "failed", "slow": False},
    ]
    results[0]["seen"] = [[None, "a | b"], [2, "of another case"]]
    results[1]["seen"] = [[None, "of a test that failed"]]
    case = tool.Case("fault", "expected")
    where = "1 of 2 (1 slow) in [test_a](../tests/a/test_a.py)"
    assert tool.row(1, case, results) == rf"| 1 | fault | expected | a \| b | {where} |"
    assert tool.row(3, case, results) == "| 3 | fault | expected |  | not run |"


def test_the_table_takes_the_place_of_the_one_before(tool: ModuleType) -> None:
    before = f"head\n{tool.BEGIN}\nold\n{tool.END}\ntail\n"
    after = tool.with_table(before, "new")
    assert after == f"head\n{tool.BEGIN}\n\nnew\n\n{tool.END}\ntail\n"
    assert tool.with_table(after, "new") == after
