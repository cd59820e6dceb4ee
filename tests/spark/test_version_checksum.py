"""The checksums that `Store` writes beside commits, judged by Spark's own Delta."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError

from bench_spark.store.arrow import EVENTS
from bench_spark.store.delta import Store


def event(number: int) -> pa.Table:
    row = {"run_id": "r", "agent": 0, "attempt": 0, "row_number": number, "tick": number}
    return pa.Table.from_pylist([row], schema=EVENTS)


def newest_snapshot(spark: Any, store: Store) -> Any:
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog
    log.clearCache()
    return log.forTable(spark._jsparkSession, store.table_uri("events")).unsafeVolatileSnapshot()


def is_confirmed(spark: Any, snapshot: Any) -> bool:
    """Delta reads the whole log and compares it with the checksum."""
    nothing = spark._jvm.PythonUtils.toScalaMap(spark._jvm.java.util.HashMap())
    return bool(snapshot.validateChecksum(nothing))


def test_delta_finds_and_confirms_the_checksum_of_every_commit(spark: Any, store: Store) -> None:
    for number in range(3):
        store.append("events", event(number))
        snapshot = newest_snapshot(spark, Store(store.uri))
        assert snapshot.version() == store.version("events")
    assert snapshot.checksumOpt().isDefined()
    assert is_confirmed(spark, snapshot)


def test_checksums_are_right_between_the_commits_of_others_and_after_compacting(
    spark: Any, store: Store
) -> None:
    other = Store(store.uri).open()
    store.append("events", event(0))
    other.append("events", event(1))
    store.append("events", event(2))
    store.compact("events")
    other.append("events", event(3))
    snapshot = newest_snapshot(spark, store)
    assert snapshot.checksumOpt().isDefined()
    assert is_confirmed(spark, snapshot)


def test_checksums_are_right_when_writers_race(spark: Any, store: Store) -> None:
    stores = [Store(store.uri).open() for _ in range(3)]

    def write(which: int) -> None:
        for number in range(5):
            stores[which].append("events", event(which * 100 + number))

    threads = [threading.Thread(target=write, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = newest_snapshot(spark, store)
    assert snapshot.version() == 15
    assert snapshot.checksumOpt().isDefined()
    assert is_confirmed(spark, snapshot)


def test_a_wrong_checksum_would_be_noticed(spark: Any, store: Store) -> None:
    store.append("events", event(0))
    checksum = Path(store.table_uri("events"), "_delta_log", f"{store.version('events'):020d}.crc")
    checksum.write_text(checksum.read_text().replace('"numFiles": 1,', '"numFiles": 7,'))
    with pytest.raises(Py4JJavaError, match="Number of files - Expected: 7 Computed: 1"):
        is_confirmed(spark, newest_snapshot(spark, store))
