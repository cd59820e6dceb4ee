"""What a trial cost its broker (C3), as a table of a suite tells it: from the result's `resources`.

Where a source has told nothing there is no number: None is what nobody knows, never zero.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from bench_spark.monitor.totals import SCHEDULER_PREFIX
from bench_spark.report.formatting import per_cent
from bench_spark.report.measures import Document

UNKNOWN_STATE = "unknown"


def broker_cpu(document: Document, kind: str) -> float | None:
    """CPU of kind `user` or `system`, as a share of the broker's machine.

    Two sources on one machine may be about the same processes: the busiest counts. Of the machines
    of a cluster it is the mean.
    """
    by_host: dict[Any, float] = {}
    for source in (_resources(document).get("broker") or {}).values():
        share = source.get(f"cpu_{kind}_share_of_machine")
        if share is not None:
            host = source.get("host")
            by_host[host] = max(share, by_host.get(host, 0.0))
    return statistics.fmean(by_host.values()) if by_host else None


def broker_bytes(document: Document, counter: str) -> float | None:
    """Bytes that the broker wrote in the measured phase, all its machines together.

    `written_bytes` were handed to the kernel, `device_written_bytes` have reached a disk. Two
    sources on one machine may be about the same processes: the busiest counts.
    """
    by_host: dict[Any, float] = {}
    for source in (_resources(document).get("broker") or {}).values():
        written = source.get(counter)
        if written is not None:
            host = source.get("host")
            by_host[host] = max(written, by_host.get(host, 0.0))
    return sum(by_host.values()) if by_host else None


def flow_state(document: Document) -> str | None:
    """never, intermittent or permanent; None if no poll has seen the trial's connections."""
    state = (_resources(document).get("flow") or {}).get("state")
    return None if state == UNKNOWN_STATE else state


def scheduler_utilisation(document: Document) -> str | None:
    """Scheduler by scheduler; None where no source tells it."""
    found = _resources(document).get("scheduler_utilisation") or {}
    shares = {name.removeprefix(SCHEDULER_PREFIX): share for name, share in found.items()}
    told = [f"{name}: {per_cent(share)}" for name, share in shares.items() if share is not None]
    return ", ".join(told) or None


def _resources(document: Document) -> Mapping[str, Any]:
    return document.get("resources") or {}
