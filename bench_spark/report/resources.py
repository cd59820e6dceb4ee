"""The broker's use of its machine, a line per source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench_spark.report.formatting import byte_size, count, per_cent, share

SHOWN_VALUES = 6
"""More are in the result document and in the table."""


def resource_lines(resources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, source in (resources.get("broker") or {}).items():
        yield "uses", f"{name}: {source_text(source)}"
    flow = resources.get("flow") or {}
    if flow.get("polls"):
        yield "flow", f"{flow['state']} ({share(flow['share'])} of {count(flow['polls'])} polls)"


def source_text(source: Mapping[str, Any]) -> str:
    parts = [*_cpu(source), *_sizes(source), *_values(source)]
    if not parts:
        return f"unknown ({source.get('problem') or 'nothing was read in the measured phase'})"
    return ", ".join(parts)


def _cpu(source: Mapping[str, Any]) -> Iterator[str]:
    user, system = (source.get(f"cpu_{kind}_share_of_machine") for kind in ("user", "system"))
    if user is not None and system is not None:
        cores = source["cpu_user_share_of_core"] + source["cpu_system_share_of_core"]
        yield (
            f"CPU {per_cent(user)} user + {per_cent(system)} system of the machine "
            f"({cores:.2f} cores)"
        )


def _sizes(source: Mapping[str, Any]) -> Iterator[str]:
    if source.get("rss_bytes_max") is not None:
        yield f"RSS {byte_size(source['rss_bytes_max'])}"
    written = source.get("written_bytes")
    device = source.get("device_written_bytes")
    if written is not None:
        yield f"written {byte_size(written)}"
    if device is not None:
        yield f"to disk {byte_size(device)}"


def _values(source: Mapping[str, Any]) -> Iterator[str]:
    values = source.get("values") or {}
    for name in list(values)[:SHOWN_VALUES]:
        yield f"{name} {_number(values[name]['mean'])}"
    if len(values) > SHOWN_VALUES:
        yield f"{len(values) - SHOWN_VALUES} more values"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
