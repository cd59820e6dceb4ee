"""What a check has found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
