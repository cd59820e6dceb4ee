"""How contenders take turns, and what becomes of their figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.__main__ import LINES, main
from benchmarks.figures import RATE, Bar, Figures
from benchmarks.lines import Comparison, Effort, Line, Opened, rotated, run_line, section
from benchmarks.progress import NoFigures

EFFORT = Effort(warmup_seconds=5, measure_seconds=6, repetitions=3)


def test_every_repetition_begins_with_another_contender() -> None:
    assert [rotated("abc", by) for by in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_contenders_alternate_on_one_opening_of_the_line(tmp_path: Path) -> None:
    seen: list[str] = []

    def turn_of(name: str, rate: float) -> Figures:
        seen.append(name)
        return {RATE: rate}

    @contextmanager
    def open_line(effort: Effort, directory: Path) -> Iterator[Opened]:
        seen.append("open")
        contenders = {"a": lambda: turn_of("a", 30.0), "b": lambda: turn_of("b", 10.0)}
        bars = [Bar(RATE, "a", "b", at_least=2)]
        yield Opened([Comparison("only", contenders, (RATE,), "b", bars)])
        seen.append("close")

    taken = run_line(Line("x", "Title", "About.", open_line), EFFORT, tmp_path)
    assert seen == ["open", "a", "b", "b", "a", "a", "b", "close"]
    assert taken.failed_turns == 0
    assert "- **met**: messages per second of a at least 2 x b (3.00)" in taken.section


def test_a_turn_that_fails_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    outcomes: list[float | None] = [5.0, None, 7.0]

    def unsteady() -> Figures:
        rate = outcomes.pop(0)
        if rate is None:
            raise NoFigures("it broke\nwith many words")
        return {RATE: rate}

    @contextmanager
    def open_line(effort: Effort, directory: Path) -> Iterator[Opened]:
        yield Opened([Comparison("only", {"a": unsteady}, (RATE,))])

    taken = run_line(Line("x", "Title", "About.", open_line), EFFORT, tmp_path, "A remark.")
    assert taken.failed_turns == 1
    assert "| a | 6 (5 .. 7) |" in taken.section
    assert taken.section.endswith("- **failed**: only, repetition 2, a: it broke\n\nA remark.")


def test_a_section_says_what_was_compared_under_which_conditions() -> None:
    line = Line("x", "Title", "About.", lambda effort, directory: pytest.fail("not opened"))
    comparison = Comparison("1 B", {}, (RATE,))
    opened = Opened([comparison], ("6 s each", "Broker 1.0"))
    made_at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    text = section(line, opened, [{"a": [{RATE: 1.0}]}], 1, "Because.\n", made_at)
    assert text == (
        "## Title\n\nAbout.\n\n"
        "Medians of 1 alternating repetitions (smallest .. largest), 6 s each, Broker 1.0, "
        "2026-01-02 03:04 UTC.\n\n"
        "### 1 B\n\n"
        "|  | messages per second |\n|---|---:|\n| a | 1 (1 .. 1) |\n\n"
        "Because."
    )


def test_line_names_are_unique() -> None:
    names = [line.name for line in LINES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    "arguments", [["--line", "nonsense"], ["--repetitions", "0"], ["--measure-seconds", "-1"]]
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err
