"""Figures of a program that prints, once a second, how many messages it has moved."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Figures
from benchmarks.lines import Effort
from benchmarks.processes import START_SECONDS_AT_MOST, printed, started
from benchmarks.progress import NoFigures, Progress, steady


def seconds_to_count(effort: Effort) -> float:
    """How long such a program is to run: its first word comes after a second, and the last must
    not be missed."""
    return effort.warmup_seconds + effort.measure_seconds + 2


def figures_of_counting(name: str, command: Sequence[str], effort: Effort) -> Figures:
    """Messages and the CPU of all its processes, from the end of the warm-up on."""
    with started(command, seconds_to_count(effort) + START_SECONDS_AT_MOST) as process:
        lines = list(printed(process))
    try:
        progress = [
            Progress(line.at_seconds, int(line.text), line.cpu_seconds)
            for line in lines
            if line.text.isdecimal()
        ]
        return steady(progress, effort.warmup_seconds)
    except NoFigures as error:
        last_words = "\n".join(line.text for line in lines[-10:])
        raise NoFigures(f"{name}: {error}\n{last_words}") from error
