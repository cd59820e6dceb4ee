"""A scenario with a data set, once the data set has been read: in the driver, before anything
connects."""

from __future__ import annotations

from contextlib import closing
from functools import lru_cache
from pathlib import Path

import numpy as np

from bench_spark.core.envelope import TIMESTAMP_BYTES
from bench_spark.datasets.files import files_of
from bench_spark.datasets.record_files import RecordFiles
from bench_spark.datasets.source import RecordSource
from bench_spark.errors import ConfigurationError
from bench_spark.identity.base import Carrier
from bench_spark.identity.checking import check_records
from bench_spark.identity.in_body import InBody
from bench_spark.identity.registry import (
    carrier_named,
    make_carrier,
    refuse_carrier,
    refuse_carrier_to_find,
)
from bench_spark.scenario.broker import Broker
from bench_spark.scenario.dataset_section import Dataset, Found
from bench_spark.scenario.ends import Ends, scenario_at
from bench_spark.scenario.identity_section import Identity
from bench_spark.scenario.load_sections import LARGEST_BODY_BYTES
from bench_spark.scenario.models import Scenario
from bench_spark.transports.registry import SizeLimit, size_limit

_Stamp = tuple[tuple[str, int, int], ...]


def with_records(scenario: Scenario, broker: Broker) -> Scenario:
    """The scenario with what its data set was found to hold; refuses records that cannot be sent.
    A table is read later, by Spark."""
    refuse_carrier(scenario, broker)
    return _with_files(scenario, size_limit(scenario, broker))


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
                limits.append(size_limit(at_end, end.broker))
            else:
                refuse_carrier_to_find(at_end, end.broker)
        except ConfigurationError as error:
            raise ConfigurationError(f"{end.label}: {error}") from None
    return _with_files(scenario, min(limits))


def with_checked_files(scenario: Scenario) -> Scenario:
    """The same for no broker in particular."""
    return _with_files(scenario, SizeLimit(LARGEST_BODY_BYTES, "bench-spark"))


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
