"""Tries a carrier on the records before a run: what would fail in its midst is said now, with the
record that shows it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import numpy as np

from bench_spark.datasets.source import I64, RecordSource
from bench_spark.errors import ConfigurationError
from bench_spark.identity.base import Carrier
from bench_spark.transports.registry import SizeLimit

MOST_RECORDS_CHECKED = 100_000
"""Of larger data sets so many are checked, at even distances; sizes are known of all."""
MOST_PATTERN_SECONDS = 60.0
"""CPU time that patterns may take on all of these."""
_BATCH_BYTES = 1 << 24


def check_records(
    source: RecordSource, carrier: Carrier, limit: SizeLimit, are_json: bool = False
) -> None:
    """Raise ConfigurationError for the first record that cannot be sent or found again."""
    _refuse_too_large(source, carrier, limit)
    seconds = 0.0
    for numbers in _checked(source):
        for number, body in zip(numbers.tolist(), source.read(numbers).bodies, strict=True):
            started = time.thread_time()
            problem = carrier.ambiguity(body)
            seconds += time.thread_time() - started
            if problem is None and seconds > MOST_PATTERN_SECONDS:
                problem = (
                    "identity.insert and identity.find have taken more than "
                    f"{MOST_PATTERN_SECONDS:g} s for the records up to this one; use faster ones"
                )
            if limit.forbidden and limit.forbidden in body:
                problem = (
                    f"contains {limit.forbidden!r} at byte {body.index(limit.forbidden)}, which "
                    "ends a message on this connection (tcp.framing: line)"
                )
            if problem is None and are_json:
                problem = _json_problem(body)
            if problem is not None:
                raise ConfigurationError(f"{source.place(number)}: {problem}: {_shown(body)}")


def _refuse_too_large(source: RecordSource, carrier: Carrier, limit: SizeLimit) -> None:
    sizes = source.sizes()
    body_bytes = sizes.largest_bytes + carrier.added_bytes
    if body_bytes > limit.most_bytes:
        with_id = " with its ID" if carrier.added_bytes else ""
        raise ConfigurationError(
            f"{source.place(sizes.largest)}: the record has {body_bytes} bytes{with_id}, which is "
            f"more than the {limit.most_bytes} that {limit.reason} allows"
        )


def _checked(source: RecordSource) -> Iterator[I64]:
    """Numbers of the records to look at, in batches that fit into memory."""
    count = min(source.count, MOST_RECORDS_CHECKED)
    at_once = max(1, int(_BATCH_BYTES / max(1.0, source.sizes().mean_bytes)))
    for first in range(0, count, at_once):
        places = np.arange(first, min(first + at_once, count), dtype=np.int64)
        yield places * source.count // count


def _json_problem(body: bytes) -> str | None:
    try:
        json.loads(body)
    except ValueError as error:
        return f"is not JSON ({error})"
    return None


def _shown(body: bytes, most: int = 120) -> str:
    """A record as people can read it."""
    text = body[:most].decode("utf-8", "backslashreplace")
    shown = text if text.isprintable() else repr(text)
    return shown if len(body) <= most else f"{shown}..."
