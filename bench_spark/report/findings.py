"""What `bench-spark doctor` found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from rich.text import Text

from bench_spark.doctor.finding import Finding, Level
from bench_spark.report.formatting import one_line
from bench_spark.report.terminal import console_for, print_block

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
