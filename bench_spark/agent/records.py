"""What an agent sends, where that is real records, and how it knows them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench_spark.agent.carrying import Carrying
from bench_spark.agent.given_ids import GivenIds
from bench_spark.agent.sent_ring import SentRing
from bench_spark.core.clock import NowNs
from bench_spark.datasets.column_records import ColumnRecords
from bench_spark.datasets.made_records import MadeRecords
from bench_spark.datasets.ordering import ordering_of
from bench_spark.datasets.record_files import RecordFiles
from bench_spark.datasets.source import RecordSource
from bench_spark.identity.base import Carrier
from bench_spark.identity.registry import ACKNOWLEDGEMENT, make_carrier
from bench_spark.plan import Assignment


@contextmanager
def carrying_for(assignment: Assignment, now_ns: NowNs) -> Iterator[Carrying | None]:
    """None where bodies have envelopes. Reads the data set once through, to know where records
    are: raises ConfigurationError if it is not on this machine."""
    scenario = assignment.scenario
    carrier = make_carrier(scenario)
    if carrier is None:
        yield None
        return
    ring = SentRing(tuple(member.index for member in assignment.producers))
    given = GivenIds(now_ns) if scenario.carrier == ACKNOWLEDGEMENT else None
    is_hashed = scenario.identity.content_hash
    if not assignment.producers:
        yield Carrying(carrier, None, None, ring, is_hashed, given)
        return
    with closing(_open_records(assignment, carrier)) as records:
        ordering = ordering_of(scenario.dataset, records.count, scenario.producers)
        yield Carrying(carrier, records, ordering, ring, is_hashed, given)


def _open_records(assignment: Assignment, carrier: Carrier) -> RecordSource:
    scenario = assignment.scenario
    if scenario.dataset.path is not None:
        return RecordFiles(scenario.dataset)
    if assignment.rows_at is not None:
        return ColumnRecords(Path(assignment.rows_at))
    seed = assignment.run_tag + assignment.agent
    return MadeRecords(scenario.message, carrier.added_bytes, seed)
