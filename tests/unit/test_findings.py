"""What the doctor says of what it finds, and that no check keeps it waiting."""

from __future__ import annotations

import io
import json
import resource
import threading
from pathlib import Path

import pytest

from bench_spark.doctor import (
    ClockState,
    Finding,
    FindingsReport,
    Level,
    clock_finding,
    clock_source_finding,
    cores_finding,
    examine,
    failing,
    files_finding,
    kernels_finding,
    machine_checks,
    memory_finding,
    ok,
    packages_finding,
    python_finding,
    store_finding,
    time_slice_finding,
    warning,
)
from bench_spark.errors import EnvironmentNotReady

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("finding", "level"),
    [
        (python_finding((3, 11, 0)), Level.OK),
        (python_finding((3, 10, 9)), Level.FAILING),
        (packages_finding(["pytest==0.1"]), Level.WARNING),
        (packages_finding(["no-such-package==1.0"]), Level.FAILING),
        (packages_finding(['no-such-package==1.0; extra == "dev"', "pytest>=1"]), Level.OK),
        (packages_finding(["pytest>=1,<2"]), Level.WARNING),
        (kernels_finding(True, 12, "/x"), Level.OK),
        (kernels_finding(True, 0, "/x"), Level.WARNING),
        (kernels_finding(False, 12, "/x"), Level.WARNING),
        (cores_finding(1), Level.WARNING),
        (cores_finding(2), Level.OK),
        (memory_finding(1 * GB), Level.FAILING),
        (memory_finding(2 * GB), Level.WARNING),
        (memory_finding(4 * GB), Level.OK),
        (files_finding(1024), Level.WARNING),
        (files_finding(65_536), Level.OK),
        (files_finding(resource.RLIM_INFINITY), Level.OK),
        (clock_finding(None), Level.WARNING),
        (clock_finding(ClockState(False, 16_000_000, 0.0)), Level.WARNING),
        (clock_finding(ClockState(True, 500_000, 1.5)), Level.WARNING),
        (clock_finding(ClockState(True, 2_000, 1.5)), Level.OK),
        (clock_source_finding("hpet"), Level.WARNING),
        (clock_source_finding("tsc"), Level.OK),
        (clock_source_finding(None), Level.OK),
        (time_slice_finding(None), Level.WARNING),
        (time_slice_finding(3_000_000), Level.WARNING),
        (time_slice_finding(100_000), Level.OK),
        (store_finding(Path("/x"), 100_000_000), Level.FAILING),
        (store_finding(Path("/x"), 1 * GB), Level.WARNING),
        (store_finding(Path("/x"), 50 * GB), Level.OK),
    ],
)
def test_the_level_fits_and_what_is_not_well_can_be_mended(finding: Finding, level: Level) -> None:
    assert finding.level is level
    assert bool(finding.mend) == (level is not Level.OK)


def test_a_check_that_hangs_fails_and_the_others_answer() -> None:
    never = threading.Event()

    def hang() -> Finding:
        never.wait()
        return ok("late")

    found = examine({"a": hang, "b": lambda: ok("well")}, timeout_seconds=0.2)
    never.set()
    levels = [(name, finding.level) for name, finding in found.items()]
    assert levels == [("a", Level.FAILING), ("b", Level.OK)]
    assert "no answer within 0.2 s" in found["a"].text


def test_a_check_that_raises_has_failed() -> None:
    def refuse() -> Finding:
        raise EnvironmentNotReady("no Java")

    def break_down() -> Finding:
        raise KeyError("secret")

    found = examine({"a": refuse, "b": break_down}, timeout_seconds=10)
    ready, broken = found.values()
    assert (ready.level, ready.text) == (Level.FAILING, "no Java")
    assert (broken.level, broken.text) == (Level.FAILING, "could not be checked: KeyError")


def test_this_machine_can_be_examined() -> None:
    found = examine(machine_checks(), timeout_seconds=30)
    assert list(found) == list(machine_checks())
    assert not [one for one in found.values() if "could not be checked" in one.text]


FINDINGS = {
    "java": ok("Java 17"),
    "clock": warning("adrift", "set it"),
    "a b": failing("x", "y"),
}


def test_people_read_a_line_per_check_and_what_to_do() -> None:
    written = io.StringIO()
    FindingsReport(FINDINGS).write_terminal(written)
    assert written.getvalue().splitlines() == [
        "ok       java   Java 17",
        "warning  clock  adrift",
        "                -> set it",
        "failing  a b    x",
        "                -> y",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "no_colour", "expected"),
    [
        (Terminal(), None, True),
        (Terminal(), "", True),
        (Terminal(), "1", False),
        (io.StringIO(), None, False),
    ],
)
def test_only_terminals_get_colours_unless_they_do_not_want_them(
    stream: io.StringIO,
    no_colour: str | None,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour is not None:
        monkeypatch.setenv("NO_COLOR", no_colour)
    FindingsReport(FINDINGS).write_terminal(stream)
    assert ("\x1b[" in stream.getvalue()) is expected


def test_programs_read_one_document() -> None:
    written = io.StringIO()
    FindingsReport(FINDINGS).write_json(written)
    document = json.loads(written.getvalue())
    assert document["ready"] is False
    assert document["checks"][0] == {
        "check": "java",
        "level": "ok",
        "text": "Java 17",
        "mend": None,
    }
