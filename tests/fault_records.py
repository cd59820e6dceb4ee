"""Which case of the fault table a test shows, and what it saw.

A test is marked `fault(case=N)`, wherever it lives, and tells by the fixture `seen` the figures
that docs/reliability.md shows. `--fault-results FILE` keeps all of it (see tools/fault_table.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

CASES = "fault_cases"
SLOW = "fault_slow"
SEEN = "fault_seen"


class Seen(Protocol):
    """Takes a short text with a figure, for the column "Seen" of the fault table; of the given case
    only, if its test shows several."""

    def __call__(self, text: str, case: int | None = None) -> None: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fault-results", metavar="FILE", type=Path, help="Write what the fault suite saw, as JSON"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Reports of other processes carry an item's properties, but not its marks.
    for item in items:
        cases = sorted({mark.kwargs["case"] for mark in item.iter_markers("fault")})
        if cases:
            item.user_properties.append((CASES, cases))
            is_slow = item.get_closest_marker("faults_slow") is not None
            item.user_properties.append((SLOW, is_slow))


@pytest.fixture
def seen(record_property: Callable[[str, object], None]) -> Seen:
    def note(text: str, case: int | None = None) -> None:
        record_property(SEEN, [case, text])

    return note


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--fault-results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(path))


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and not (report.when == "setup" and not report.passed):
            return
        cases = [one for name, value in report.user_properties if name == CASES for one in value]
        if cases:
            self._found.append(
                {
                    "test": report.nodeid,
                    "cases": cases,
                    "outcome": report.outcome,
                    "slow": (SLOW, True) in report.user_properties,
                    "seconds": round(report.duration, 1),
                    "seen": [value for name, value in report.user_properties if name == SEEN],
                }
            )

    def pytest_sessionfinish(self) -> None:
        """Earlier results stay, but for tests that ran again: the suite may be run in parts."""
        known = json.loads(self._path.read_text()) if self._path.exists() else []
        again = {one["test"] for one in self._found}
        kept = [one for one in known if one["test"] not in again]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(kept + self._found, indent=1) + "\n")
