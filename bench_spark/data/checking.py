"""Checks a scenario against its data set in the driver, before anything connects."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench_spark.config.broker import Broker
from bench_spark.config.ends import Ends, scenario_at
from bench_spark.config.models import Scenario
from bench_spark.config.sections import Dataset, Found, Identity
from bench_spark.core.envelope import TIMESTAMP_BYTES
from bench_spark.data.carriers import (
    Carrier,
    InBody,
    carrier_named,
    make_carrier,
    refuse_carrier,
    refuse_carrier_to_find,
)
from bench_spark.data.records import RecordFiles
from bench_spark.data.scanning import I64, RecordSource, files_of
from bench_spark.errors import ConfigurationError
from bench_spark.transports.base import SizeLimit
from bench_spark.transports.registry import kind_of

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


_Stamp = tuple[tuple[str, int, int], ...]


def with_records(scenario: Scenario, broker: Broker) -> Scenario:
    """The scenario with what its data set was found to hold; refuses records that cannot be sent.
    A table is read later, by Spark."""
    refuse_carrier(scenario, broker)
    return _with_files(scenario, kind_of(broker).size_limit(scenario))


def with_records_at(scenario: Scenario, ends: Ends) -> Scenario:
    """The same for all brokers of a run: IDs must fit into what goes in at every ingress, and be
    found in what comes out at every egress."""
    if not ends.are_apart:
        return with_records(scenario, ends.ingress[0].broker)
    limits = []
    for end in ends.every:
        at_end = scenario_at(scenario, end)
        try:
            if end.role == "ingress":
                refuse_carrier(at_end, end.broker)
                limits.append(kind_of(end.broker).size_limit(at_end))
            else:
                refuse_carrier_to_find(at_end, end.broker)
        except ConfigurationError as error:
            raise ConfigurationError(f"{end.label}: {error}") from None
    return _with_files(scenario, min(limits))


def with_checked_files(scenario: Scenario) -> Scenario:
    """The same for no broker in particular."""
    return _with_files(scenario, SizeLimit())


def find_doubt(scenario: Scenario) -> str | None:
    """What is to be said of `identity.find` where no system between two ends is known of."""
    if scenario.dataset.found.is_found_as_sent is not False or scenario.has_ends_apart:
        return None
    return (
        "identity.find does not find the ID in the first record as it is sent: messages are "
        "recognised only where a system changes them"
    )


def _with_files(scenario: Scenario, limit: SizeLimit) -> Scenario:
    dataset = scenario.dataset
    if dataset.table is not None and _is_missing(dataset.table):
        raise ConfigurationError(f"dataset.table: {dataset.table}: there is no such directory")
    if dataset.path is None:
        return scenario
    found = _read_files(dataset, scenario.carrier, scenario.identity, limit, _stamp(dataset.path))
    return with_found(scenario, found)


def _is_missing(table: str) -> bool:
    """A path that leads nowhere; whether there is a table of that name is for Spark to say."""
    return "/" in table and "://" not in table and not Path(table).exists()


def _stamp(path: str) -> _Stamp:
    """Changes when the files do."""
    try:
        found = [(str(file), file.stat()) for file in files_of(path)]
    except OSError as error:
        raise ConfigurationError(f"dataset.path: {path}: cannot be read: {error}") from None
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in found)


@lru_cache(maxsize=16)
def _read_files(
    dataset: Dataset, carrier: str, identity: Identity, limit: SizeLimit, stamp: _Stamp
) -> Found:
    """Trials of a suite have the same data: it is read once, as long as the stamp is the same."""
    with closing(RecordFiles(dataset)) as source:
        return found_in(source, carrier_named(carrier, identity), limit, source.format == "jsonl")


def found_in(
    source: RecordSource, carrier: Carrier, limit: SizeLimit, are_json: bool = False
) -> Found:
    """What a source holds; raises ConfigurationError for a record that cannot be sent."""
    check_records(source, carrier, limit, are_json)
    sizes = source.sizes()
    return Found(
        records=source.count,
        mean_bytes=sizes.mean_bytes,
        largest_bytes=sizes.largest_bytes,
        largest_body_bytes=sizes.largest_bytes + carrier.added_bytes,
        smallest_bytes=sizes.smallest_bytes,
        is_found_as_sent=_is_found_as_sent(source, carrier),
    )


def _is_found_as_sent(source: RecordSource, carrier: Carrier) -> bool | None:
    if not isinstance(carrier, InBody) or not carrier.has_given_pattern:
        return None
    [first] = source.read(np.zeros(1, dtype=np.int64)).bodies
    return carrier.find_problem(first) is None


def with_found(scenario: Scenario, found: Found) -> Scenario:
    """Bodies have the mean size of the records wherever one size is asked for; where each record
    is sent once, their number ends the run."""
    carrier = make_carrier(scenario)
    assert carrier is not None, "a data set excludes envelopes"
    body_bytes = max(TIMESTAMP_BYTES, round(found.mean_bytes + carrier.added_bytes))
    update: dict[str, object] = {
        "dataset": scenario.dataset.model_copy(update={"found": found}),
        "message": scenario.message.model_copy(update={"bytes": body_bytes}),
    }
    if not scenario.dataset.repeat and not scenario.dataset.is_recorded:
        update["load"] = scenario.load.model_copy(update={"messages": found.records})
    return scenario.model_copy(update=update)
