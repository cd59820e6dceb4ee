"""What a check says, how checks are carried out (side by side, none for long), and how findings are
written, for people and for programs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TextIO

from rich.text import Text

from bench_spark.errors import BenchError
from bench_spark.report.formatting import one_line
from bench_spark.report.terminal import console_for, print_block


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """A run works, but something will be slower or less certain than it could be."""
    FAILING = "failing"
    """A run that needs this does not work."""


@dataclass(frozen=True)
class Finding:
    check: str
    level: Level
    text: str
    """What is so."""
    mend: str = ""
    """What to do about it; empty where all is well."""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Level.WARNING, text, mend)


def failing(check: str, text: str, mend: str) -> Finding:
    return Finding(check, Level.FAILING, text, mend)


@dataclass(frozen=True)
class Check:
    name: str
    look: Callable[[], Finding]


def examine(checks: Sequence[Check], timeout_seconds: float) -> list[Finding]:
    """What each check has found, in their order; what takes too long has failed.

    The threads are daemons: one that hangs in a system call does not keep the program from ending.
    """
    found: list[Finding | None] = [None] * len(checks)

    def look(place: int) -> None:
        found[place] = _looked(checks[place])

    threads = [
        threading.Thread(target=look, args=(place,), name=check.name, daemon=True)
        for place, check in enumerate(checks)
    ]
    deadline = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # Copied first: a thread may still answer while this is read.
    return [
        finding or _no_answer(check, timeout_seconds)
        for finding, check in zip(tuple(found), checks, strict=True)
    ]


def _looked(check: Check) -> Finding:
    try:
        return check.look()
    except BenchError as error:
        return failing(check.name, str(error), "see above")
    except Exception as error:  # a check that breaks must not hide what the others found
        return failing(
            check.name,
            f"could not be checked: {type(error).__name__}",
            "this is a bug in bench-spark: report it",
        )


def _no_answer(check: Check, timeout_seconds: float) -> Finding:
    return failing(
        check.name,
        f"no answer within {timeout_seconds:g} s",
        "try it by hand: something on the way neither answers nor refuses; or give --timeout",
    )


_STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILING: "red"}
_LEVEL_WIDTH = max(map(len, Level))


def write_findings(findings: Sequence[Finding], writer: TextIO) -> None:
    """A line per check, and what to do under each that is not well."""
    name_width = max((len(finding.check) for finding in findings), default=0)
    console = console_for(writer)
    for finding in findings:
        level = (f"{finding.level:<{_LEVEL_WIDTH}}", _STYLES[finding.level])
        text = f"  {finding.check:<{name_width}}  {one_line(finding.text)}"
        print_block(console, Text.assemble(level, text))
        if finding.mend:
            writer.write(f"{'':{_LEVEL_WIDTH + name_width + 4}}-> {one_line(finding.mend)}\n")


def write_findings_json(findings: Sequence[Finding], writer: TextIO) -> None:
    document = {
        "ready": all(finding.level is not Level.FAILING for finding in findings),
        "checks": [
            {
                "check": finding.check,
                "level": str(finding.level),
                "text": finding.text,
                "mend": finding.mend or None,
            }
            for finding in findings
        ],
    }
    json.dump(document, writer, indent=2)
    writer.write("\n")
