"""What `bench-spark doctor` found, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TextIO

from bench_spark.doctor.finding import Finding, Level
from bench_spark.report.formatting import COLOURS, coloured, has_colours, one_line

_COLOUR_OF = {
    Level.OK: COLOURS["green"],
    Level.WARNING: COLOURS["yellow"],
    Level.FAILING: COLOURS["red"],
}
_LEVEL_WIDTH = max(map(len, Level))


def write_findings(findings: Sequence[Finding], writer: TextIO) -> None:
    """A line per check, and what to do under each that is not well."""
    name_width = max((len(finding.check) for finding in findings), default=0)
    colours = has_colours(writer)
    for finding in findings:
        level = f"{finding.level:<{_LEVEL_WIDTH}}"
        shown = coloured(level, _COLOUR_OF[finding.level]) if colours else level
        writer.write(f"{shown}  {finding.check:<{name_width}}  {one_line(finding.text)}\n")
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
