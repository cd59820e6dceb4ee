"""What happened between two readings, and what rows add up to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench_spark.monitor.endpoints import flow_state, flow_values, is_held_back
from bench_spark.monitor.monitor import SourceTotals, never_read, resources_document
from bench_spark.monitor.reading import COLUMNS, Reading, SourceUnreadable, usage_between

BEFORE = Reading(
    at_ns=1_000_000_000,
    host="h",
    cores=4,
    counters={"cpu_user_seconds": 10.0, "cpu_system_seconds": 1.0, "written_bytes": 100},
    gauges={"rss_bytes": 5},
    identity="1",
)
AFTER = replace(
    BEFORE,
    at_ns=3_000_000_000,
    counters={"cpu_user_seconds": 13.0, "cpu_system_seconds": 1.0, "written_bytes": 350},
    gauges={"rss_bytes": 7},
    values={"queues": 3.0},
    unreadable=("read_bytes", "cpu_system_seconds"),
)


def test_cpu_is_a_share_of_a_core_and_of_the_machine_and_bytes_are_of_the_interval() -> None:
    usage = usage_between(BEFORE, replace(AFTER, unreadable=()))
    assert usage["interval_seconds"] == 2.0
    assert usage["cpu_user_share_of_core"] == 1.5
    assert usage["cpu_user_share_of_machine"] == 0.375
    assert usage["cpu_system_share_of_core"] == 0.0
    assert (usage["written_bytes"], usage["rss_bytes"]) == (250, 7)
    assert usage["values"] == {"queues": 3.0}
    assert usage["unreadable"] == []


def test_what_was_not_read_is_null_and_named_by_its_columns() -> None:
    after = replace(AFTER, counters={"cpu_user_seconds": 13.0})
    usage = usage_between(BEFORE, after)
    assert usage["read_bytes"] is None
    assert usage["cpu_system_share_of_core"] is None
    assert usage["unreadable"] == [
        "read_bytes",
        "cpu_system_share_of_machine",
        "cpu_system_share_of_core",
    ]


@pytest.mark.parametrize(
    "after",
    [
        replace(AFTER, identity="2"),
        replace(AFTER, counters=dict.fromkeys(AFTER.counters, 0.0)),
        replace(AFTER, at_ns=BEFORE.at_ns),
    ],
    ids=["another process", "counters that fell", "no time between"],
)
def test_counters_that_began_anew_say_nothing_about_the_time_between(after: Reading) -> None:
    usage = usage_between(BEFORE, after)
    assert usage["written_bytes"] is None
    assert usage["cpu_user_share_of_machine"] is None
    assert {"written_bytes", "cpu_user_share_of_machine"} <= set(usage["unreadable"])
    assert usage["rss_bytes"] == 7


def test_a_counter_that_was_not_there_before_has_no_difference_yet() -> None:
    usage = usage_between(replace(BEFORE, counters={}), AFTER)
    assert usage["written_bytes"] is None
    assert "written_bytes" in usage["unreadable"]


names = st.text(min_size=1, max_size=20)
numbers = st.dictionaries(names, st.floats(allow_nan=False, allow_infinity=False), max_size=5)


@given(
    at_ns=st.integers(0, 2**62),
    cores=st.integers(1, 512),
    counters=numbers,
    gauges=numbers,
    values=numbers,
    unreadable=st.lists(names, max_size=3).map(tuple),
)
def test_a_reading_survives_its_message(**fields: Any) -> None:
    reading = Reading(host="h", identity="i", **fields)
    assert Reading.from_message(reading.as_message()) == reading


@pytest.mark.parametrize(
    "change",
    [
        {"cores": 0},
        {"at_ns": None},
        {"values": {"a": float("nan")}},
        {"values": {"a": "x"}},
        {"counters": []},
        {"gauges": {str(number): 1 for number in range(1001)}},
        {"unreadable": 5},
    ],
    ids=str,
)
def test_a_message_that_is_no_reading_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(SourceUnreadable):
        Reading.from_message(AFTER.as_message() | change)


# -- totals ----------------------------------------------------------------------------------------


def row(seconds: float = 1.0, **columns: Any) -> dict[str, Any]:
    known = {"host": "h", "interval_seconds": seconds, "values": {}, "unreadable": []}
    return dict.fromkeys(COLUMNS) | known | columns


def test_shares_are_means_over_time_memory_is_the_highest_and_bytes_are_sums() -> None:
    totals = SourceTotals()
    totals.add(row(1.0, cpu_user_share_of_core=1.0, rss_bytes=9, written_bytes=10))
    totals.add(row(3.0, cpu_user_share_of_core=0.2, rss_bytes=5, written_bytes=30))
    document = totals.as_document()
    assert document["cpu_user_share_of_core"] == pytest.approx(0.4)
    assert (document["rss_bytes_max"], document["written_bytes"]) == (9, 40)
    assert (document["rows"], document["seconds"]) == (2, 4.0)


def test_a_column_that_no_row_has_is_null_and_one_that_some_lack_is_named() -> None:
    totals = SourceTotals()
    totals.add(row(written_bytes=10))
    totals.add(row(unreadable=["written_bytes"]))
    document = totals.as_document()
    assert document["written_bytes"] == 10
    assert document["unreadable"] == ["written_bytes"]
    assert document["read_bytes"] is None


def test_values_keep_their_first_and_last_so_that_counters_can_be_subtracted() -> None:
    totals = SourceTotals()
    for value in (10.0, 40.0, 25.0):
        totals.add(row(values={"x": value}))
    assert totals.as_document()["values"]["x"] == {"mean": 25, "max": 40, "first": 10, "last": 25}


def test_only_a_source_that_was_never_read_is_reported() -> None:
    never, once = SourceTotals(), SourceTotals()
    for totals in (never, once):
        totals.problem = "refused"
    once.has_been_read = True
    assert never_read({"a": never, "b": once}) == [("a", "refused")]


def test_schedulers_are_told_where_a_command_names_them_and_else_null() -> None:
    totals = SourceTotals()
    totals.add(row(values={"scheduler_1": 0.5, "other": 1.0}))
    told = resources_document({"erl": totals})
    assert told["scheduler_utilisation"] == {"scheduler_1": 0.5}
    assert resources_document({}) == {
        "broker": {},
        "flow": {"state": "unknown", "share": None, "polls": 0},
        "scheduler_utilisation": None,
    }


# -- flow ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("polls", "state", "share"),
    [
        ([], "unknown", None),
        ([{"connections": 0}], "unknown", None),
        ([{"connections": 2, "in_flow": 0}] * 20, "never", 0.0),
        ([{"connections": 2, "in_flow": 1}] + [{"connections": 2}] * 3, "intermittent", 0.25),
        ([{"connections": 1, "blocked": 1}] * 19 + [{"connections": 1}], "permanent", 0.95),
        ([{"connections": 1, "in_flow": 1}] * 18 + [{"connections": 1}], "intermittent", 18 / 19),
    ],
)
def test_flow_is_never_intermittent_or_permanent_by_the_share_of_polls(
    polls: list[dict[str, float]], state: str, share: float | None
) -> None:
    totals = SourceTotals()
    for values in polls:
        totals.add(row(values=values))
    flow = totals.as_flow()
    assert (flow["state"], flow["share"]) == (state, share)


def test_flow_states_have_their_edges_where_the_study_has_them() -> None:
    assert [flow_state(s) for s in (None, 0.0, 0.001, 0.949, 0.95, 1.0)] == [
        *("unknown", "never", "intermittent", "intermittent", "permanent", "permanent")
    ]


def test_only_connections_of_the_run_and_their_channels_count() -> None:
    connections = [
        {"name": "a", "state": "flow", "user_provided_name": "bench-spark r1"},
        {"name": "b", "state": "running", "user_provided_name": "bench-spark r1"},
        {"name": "c", "state": "flow", "user_provided_name": "bench-spark r2"},
        {"name": "new", "user_provided_name": "bench-spark r1"},
        {"name": "d", "state": "blocked"},
    ]
    channels = [
        {"state": "flow", "connection_details": {"name": "b"}},
        {"state": "flow", "connection_details": {"name": "c"}},
        {"state": "flow", "connection_details": []},
        {"connection_details": {"name": "a"}},
    ]
    values = flow_values(connections, channels, "bench-spark r1")
    assert values == {"connections": 2, "channels": 2, "in_flow": 2, "blocked": 0}
    assert is_held_back(values) is True
    assert is_held_back(flow_values([], channels, "bench-spark r1")) is None
