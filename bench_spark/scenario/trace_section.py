"""The key `trace`: which messages have rows of their own in the table `messages`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator

from bench_spark.scenario.keys import Described

OFF, ALL = "off", "all"
TRACE_RULE = f"{OFF}, {ALL}, or sample 1/N with N from 2 to 1000000"

_SAMPLE = re.compile(r"sample\s+1/(?P<every>[1-9][0-9]{0,6})")
_MOST_EVERY = 1_000_000


def _trace(value: object) -> object:
    # Other tools that write YAML take a bare `off` for false.
    if value is False:
        return OFF
    found = _SAMPLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is not None and 2 <= int(found["every"]) <= _MOST_EVERY:
        return f"sample 1/{found['every']}"
    if value in (OFF, ALL):
        return value
    raise ValueError(f"allowed: {TRACE_RULE}")


Trace = Annotated[str, BeforeValidator(_trace), Described("text", TRACE_RULE)]


def traced_every(trace: str) -> int:
    """Of how many sequence numbers one is traced; 0 if none is."""
    if trace in (OFF, ALL):
        return int(trace == ALL)
    return int(trace.rpartition("/")[2])
