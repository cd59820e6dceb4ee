"""A run that was a trial of a search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrialRun:
    """The run behind one trial."""

    run_id: str
    status: str
