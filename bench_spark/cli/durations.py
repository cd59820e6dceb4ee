"""`--duration`: how long the measured phase lasts, in words like 90s, 15m or 1h30m."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bench_spark.config.models import Scenario
from bench_spark.config.problems import shown_value
from bench_spark.errors import ConfigurationError

KEY = "phases.measure_seconds"
_OPTION = "--duration"
_RULE = "numbers with s, m or h, as in 90s, 15m, 8h or 1h30m"
_FORM = re.compile(
    r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m)?(?:(?P<s>\d+(?:\.\d+)?)s)?"
)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def duration_overrides(text: str | None, overrides: Sequence[str]) -> list[str]:
    """The overrides with the key that a duration stands for; none is given twice."""
    if text is None:
        return list(overrides)
    if any(one.partition("=")[0].strip() == KEY for one in overrides):
        raise ConfigurationError(f"{_OPTION}: sets {KEY}, which --set sets too; give one of them")
    return [*overrides, f"{KEY}={parse_duration(text):g}"]


def parse_duration(text: str) -> float:
    """In seconds."""
    found = _FORM.fullmatch(text.strip())
    seconds = 0.0
    if found is not None:
        seconds = sum(float(found[unit] or 0) * worth for unit, worth in _SECONDS.items())
    if seconds <= 0:
        raise ConfigurationError(f"{_OPTION}: {shown_value(text)} is not allowed; allowed: {_RULE}")
    return seconds


def refuse_other_end(text: str | None, scenario: Scenario) -> None:
    """A run that a number of messages ends does not last as long as it is told to."""
    if text is not None and scenario.load.messages is not None:
        raise ConfigurationError(
            f"{_OPTION}: load.messages ends the measured phase of this scenario; unset it with "
            "--set load.messages=null"
        )
